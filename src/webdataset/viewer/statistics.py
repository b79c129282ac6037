"""Counts, sizes, labels, image sizes and durations of a dataset, as histograms whose bars are expressions.

With an index of every shard, counts and sizes of fields are those of all samples, and nothing but the indexes is read.
What stands in the fields is taken from some samples: spread evenly over all of them where there is an index, else the
first ones. The answer says which. Images, sound and videos are read
as far as their headers.

Each bar has the expression that selects its samples. Values are computed as the expression computes them, so that a bar
counts exactly the samples that its expression finds.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from webdataset.core.errors import SampleError, WebDatasetError, describe_error
from webdataset.core.redaction import redact
from webdataset.index.entries import SampleEntry
from webdataset.inspection.expression_values import MOST_BITS, Scope
from webdataset.inspection.field_preview import JSON_FIELDS, TEXT_FIELDS, name_kind
from webdataset.inspection.image_header import IMAGE_FIELDS
from webdataset.inspection.media_header import MEDIA_FIELDS
from webdataset.viewer.search import Budget, EntryFields, SampleQuery

if TYPE_CHECKING:
    from webdataset.viewer.session import DatasetView
    from webdataset.viewer.shard_pages import ShardView

MOST_ENTRIES: Final = 2_000_000
"""Samples of which all entries are looked at."""

Numbers = np.ndarray[Any, np.dtype[Any]]
_BARS = 24
_WIDE = 100  # from here on, largest to smallest, bars grow by factors
_MOST_SHARDS = 200
_MOST_UNINDEXED = 20  # looked at where not all have an index
_MOST_FIELDS = 200
_MOST_LABELS = 60
_COUNTED_LABELS = 1000
_MOST_VALUES = 10_000
_SHOWN_VALUES = 30
_SHOWN_POINTS = 500
_LABEL_BYTES = 64
_LABEL_CHARACTERS = 200
_DEPTH = 4


def make_histogram(values: Numbers, name: str) -> dict[str, Any] | None:
    """Return a histogram whose bars are expressions; None where there are no values.

    Args:
        values: numbers; those that are not finite are left out.
        name: the expression that has these values.

    Returns:
        ``edges`` (one more than bars), ``counts`` and ``where``. A bar has its lower edge, the last one its upper edge
        too.
    """
    numbers = np.asarray(values)
    if numbers.dtype.kind == "f":
        numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    edges = _choose_edges(numbers)
    bars = np.searchsorted(np.asarray(edges[:-1]), numbers, side="right") - 1
    counts = np.bincount(bars, minlength=len(edges) - 1)
    where = [f"{name} >= {low!r} and {name} < {high!r}" for low, high in pairwise(edges)]
    where[-1] = f"{name} >= {edges[-2]!r} and {name} <= {edges[-1]!r}"
    return {"edges": edges, "counts": counts.tolist(), "where": where}


def _choose_edges(numbers: Numbers) -> list[Any]:
    low, high = numbers.min().item(), numbers.max().item()
    whole = numbers.dtype.kind in "iu"
    if whole and high - low <= _BARS:
        return [*range(low, high + 2)]
    if low == high:
        return [low, high]
    parts = [each / _BARS for each in range(1, _BARS)]
    # neither the quotient nor the difference of two floats need be finite
    if low > 0 and low <= high / _WIDE:
        first, last = math.log(low), math.log(high)
        inner = [math.exp(first + (last - first) * part) for part in parts]
    else:
        inner = [low * (1 - part) + high * part for part in parts]
    found = [low, *(min(max(each, low), high) for each in inner), high]
    edges = sorted({math.floor(each) if whole else float(each) for each in found})
    return [low, high] if len(edges) < 2 else edges


@dataclass
class _Label:
    """The values of a class, or of a place in JSON.

    Args:
        title: the name that is shown.
        name: the expression that has its values.
    """

    title: str
    name: str
    counts: Counter[Any] = field(default_factory=Counter)
    left_out: int = 0

    def add(self, value: object) -> None:
        if isinstance(value, str):
            usable = len(value) <= _LABEL_CHARACTERS
        elif isinstance(value, int):
            usable = value.bit_length() <= min(MOST_BITS, 63)
        else:
            usable = isinstance(value, float) and math.isfinite(value)
        if usable and (value in self.counts or len(self.counts) < _MOST_VALUES):
            self.counts[value] += 1
        else:
            self.left_out += 1

    def to_json(self) -> dict[str, Any] | None:
        """Return it, or None where it says nothing: texts that nearly all differ."""
        total = self.counts.total()
        texts = sum(isinstance(value, str) for value in self.counts)
        if not total or (texts > _SHOWN_VALUES and 2 * texts > total):
            return None
        values = [
            {"value": value, "count": count, "where": f"{self.name} == {value!r}"}
            for value, count in self.counts.most_common(_SHOWN_VALUES)
        ]
        numbers = [value for value in self.counts.elements() if not isinstance(value, str)]
        histogram = None
        # an order with texts among the values would fail
        if len(self.counts) > _SHOWN_VALUES and not texts and not self.left_out:
            histogram = make_histogram(np.asarray(numbers), self.name)
        return {
            "field": self.title,
            "distinct": len(self.counts),
            "values": values,
            "left_out": self.left_out,
            "histogram": histogram,
        }


class _Fields:
    """How often fields are there, and how large they are."""

    def __init__(self) -> None:
        self.samples = 0
        self.sizes: dict[str, list[int]] = {}
        self.others: set[str] = set()
        self.size_bytes = 0

    def add(self, entry: SampleEntry) -> None:
        self.samples += 1
        for name, _, _, size in entry.fields:
            self.size_bytes += size
            sizes = self.sizes.get(name)
            if sizes is None:
                if len(self.sizes) >= _MOST_FIELDS:
                    if len(self.others) < _MOST_VALUES:
                        self.others.add(name)
                    continue
                sizes = self.sizes[name] = []
            sizes.append(size)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "kind": name_kind(name) or "binary",
                "count": len(sizes),
                "missing": self.samples - len(sizes),
                "where": f"has({name!r})",
                "where_missing": f"not has({name!r})",
                "least": min(sizes),
                "most": max(sizes),
                "size": make_histogram(np.array(sizes, np.int64), f"size({name!r})"),
            }
            for name, sizes in sorted(self.sizes.items())
        ]


class _Contents:
    """What stands in the fields of the samples that are looked at."""

    def __init__(self) -> None:
        self.samples = 0
        self.images: dict[str, list[tuple[int, int]]] = {}
        self.durations: dict[str, list[float]] = {}
        self.labels: dict[str, _Label] = {}
        self.others: set[str] = set()

    def add(self, fields: EntryFields) -> None:
        self.samples += 1
        scope = Scope(fields, "", "")
        for name in fields:
            ending = name.rpartition(".")[2]
            if ending in IMAGE_FIELDS:
                found = fields.image_size(name)
                if found is not None:
                    self.images.setdefault(name, []).append(found)
            elif ending in MEDIA_FIELDS:
                seconds = fields.duration(name)
                if seconds is not None:
                    self.durations.setdefault(name, []).append(seconds)
            elif ending in JSON_FIELDS or (ending in TEXT_FIELDS and (fields.size(name) or 0) <= _LABEL_BYTES):
                try:
                    value = scope.field(name)
                except (TypeError, ArithmeticError):
                    continue  # an expression fails for it, too
                for path, each in _list_scalars(value):
                    self._label(name, path).add(each)

    def _label(self, name: str, path: tuple[str, ...]) -> _Label:
        shown = ".".join((name, *path))
        place = f"field({name!r})" + "".join(f"[{part!r}]" for part in path)
        if place not in self.labels and len(self.labels) >= _COUNTED_LABELS:
            if len(self.others) < _MOST_VALUES:
                self.others.add(place)
            return _Label(shown, place)
        return self.labels.setdefault(place, _Label(shown, place))

    def to_json(self) -> dict[str, Any]:
        # what one of many samples has says nothing of them
        told = [label for label in self.labels.values() if self.samples == 1 or label.counts.total() > 1]
        most = {id(label) for label in sorted(told, key=lambda label: -label.counts.total())[:_MOST_LABELS]}
        labels = [label.to_json() for label in told if id(label) in most]
        return {
            "durations": [
                {"field": name, "histogram": make_histogram(np.array(seconds), f"duration({name!r})")}
                for name, seconds in sorted(self.durations.items())
            ],
            "images": [self._describe_images(name, sizes) for name, sizes in sorted(self.images.items())],
            "labels": [label for label in labels if label is not None],
            "other_labels": len(self.labels) - len(labels) + len(self.others),
        }

    def _describe_images(self, name: str, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        widths, heights = np.array(sizes, np.int64).T
        return {
            "field": name,
            "width": make_histogram(widths, f"width({name!r})"),
            "height": make_histogram(heights, f"height({name!r})"),
            "points": [[*size, count] for size, count in Counter(sizes).most_common(_SHOWN_POINTS)],
        }


def _list_scalars(value: object) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the scalars in a value and in objects within it, each with its path; None is nothing."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, dict):
            if len(path) < _DEPTH:
                waiting.extend(((*path, name), part) for name, part in reversed(each.items()) if len(name) < 100)
        elif isinstance(each, str | int | float):
            yield path, each


@dataclass
class _Survey:
    """The shards, as far as they are known.

    Args:
        counts: samples of each shard that has an index.
        rows: what is shown of the first shards.
        complete: every shard has an index.
    """

    counts: dict[int, int]
    rows: list[dict[str, Any]]
    complete: bool

    @property
    def total(self) -> int | None:
        return sum(self.counts.values()) if self.complete else None


def _survey(view: "DatasetView", budget: Budget) -> _Survey:
    counts, rows = {}, []
    for number in range(len(view)):
        if number and budget.is_spent(0):
            break
        try:
            shard = view.shard(number)
            shard.await_index()
            indexed, known, size = shard.indexed, shard.count, shard.size_bytes
        except (OSError, WebDatasetError):
            indexed, known, size = False, None, None
        if indexed and known is not None:
            counts[number] = known
        if number < _MOST_SHARDS:
            rows.append({"shard": number, "samples": known, "size_bytes": size})
        if len(counts) < number + 1 and number >= min(_MOST_SHARDS, _MOST_UNINDEXED):
            break
    return _Survey(counts, rows, len(counts) == len(view))


def spread_positions(total: int, wanted: int) -> Iterator[int]:
    """Yield so many numbers, evenly spread; those that were given at any time are spread as well.

    Args:
        total: the numbers are below it.
        wanted: how many, at most ``total``.
    """
    bits = max(1, (wanted - 1).bit_length())
    for each in range(1 << bits):
        place = int(f"{each:0{bits}b}"[::-1], 2)
        if place < wanted:
            yield place * total // wanted


def collect_statistics(
    view: "DatasetView", *, where: str = "", samples: int = 1000, budget: Budget | None = None
) -> dict[str, Any]:
    """Return counts, sizes, labels, image sizes and durations, as the contract of ``/api/statistics`` has them.

    Args:
        view: the dataset.
        where: an expression; only samples for which it holds count.
        samples: whose contents are looked at, at most.
        budget: time and bytes for these contents.

    Raises:
        UsageError: the expression is none.
    """
    budget = budget or Budget(seconds=5.0)
    query = SampleQuery(where=where)
    survey = _survey(view, budget)
    run = _Sampling(view, query, survey, budget)
    run.take(max(1, samples))
    total = survey.total
    exact = total is not None and run.seen >= total and not run.problems
    fields, basis = run.fields, run.describe()
    if total is not None and not exact and query.expression is None and total <= MOST_ENTRIES:
        walked = _walk_entries(view, budget)
        if walked is not None:
            fields, exact, basis = walked, True, f"index of {_plural(len(view), 'shard')}"
    elif exact and total is not None:
        basis = f"index of {_plural(len(view), 'shard')}"
    return {
        "exact": exact,
        "basis": basis,
        "samples": fields.samples,
        "total": total,
        "fields": fields.to_json(),
        "other_fields": len(fields.others),
        "size_bytes": fields.size_bytes,
        **run.contents.to_json(),
        "contents": {"samples": run.contents.samples, "seen": run.seen, "basis": run.describe()},
        "failed": run.failed,
        "problems": run.problems,
        "shards": survey.rows,
    }


def _walk_entries(view: "DatasetView", budget: Budget) -> _Fields | None:
    """Return the fields of all samples, by the indexes; None: the client has left, or one cannot be read."""
    fields = _Fields()
    try:
        for number in range(len(view)):
            for _, entry in view.shard(number).samples():
                if fields.samples % 1024 == 0 and budget.is_cancelled():
                    return None
                fields.add(entry)
    except (OSError, WebDatasetError):
        return None
    return fields


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class _Sampling:
    """The samples whose contents are looked at.

    Args:
        view: the dataset.
        query: its expression holds for those that count.
        survey: of the shards.
        budget: time and bytes.
    """

    def __init__(self, view: "DatasetView", query: SampleQuery, survey: _Survey, budget: Budget) -> None:
        self.view = view
        self.query = query
        self.survey = survey
        self.budget = budget
        self.fields = _Fields()
        self.contents = _Contents()
        self.seen = 0
        self.failed = 0
        self.shards: set[int] = set()
        self.problems: list[str] = []

    def take(self, wanted: int) -> None:
        """Look at so many samples, or at fewer where the time is over."""
        read: Counter[int] = Counter()
        for number, shard, entry in self._choose(wanted):
            before = shard.read_statistics.bytes
            self.seen += 1
            self.shards.add(number)
            try:
                self._add(shard, entry)
            except (OSError, WebDatasetError) as error:
                self._note(error)
            read[0] += shard.read_statistics.bytes - before
            if self.seen >= wanted or self.budget.is_spent(read[0]):
                return

    def _add(self, shard: "ShardView", entry: SampleEntry) -> None:
        fields = EntryFields(shard, entry)
        try:
            if not self.query.holds(entry, fields, shard.name):
                return
        except SampleError:
            self.failed += 1
            return
        self.fields.add(entry)
        self.contents.add(fields)

    def _choose(self, wanted: int) -> Iterator[tuple[int, "ShardView", SampleEntry]]:
        total = self.survey.total
        if total is not None:
            yield from self._spread(total, min(wanted, total))
            return
        for number in range(len(self.view)):
            try:
                shard = self.view.shard(number)
                for _, entry in shard.samples():
                    yield number, shard, entry
            except (OSError, WebDatasetError) as error:
                self._note(error)

    def _spread(self, total: int, wanted: int) -> Iterator[tuple[int, "ShardView", SampleEntry]]:
        starts = np.cumsum([0, *self.survey.counts.values()])
        for position in spread_positions(total, wanted):
            number = int(np.searchsorted(starts, position, side="right")) - 1
            try:
                shard = self.view.shard(number)
                yield number, shard, shard.entry(position - int(starts[number]))
            except (OSError, WebDatasetError) as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        if len(self.problems) < 10:
            self.problems.append(redact(describe_error(error)))

    def describe(self) -> str:
        """Return which samples were looked at, as text."""
        shards = _plural(len(self.shards), "shard")
        filtered = "" if self.query.expression is None else f", {self.contents.samples} of which fit the filter"
        if self.survey.total is not None:
            every = self.seen >= self.survey.total
            spread = "all " if every else ""
            return f"{spread}{_plural(self.seen, 'sample')}{'' if every else ' spread'} over {shards}{filtered}"
        return f"first {_plural(self.seen, 'sample')} of {shards}{filtered}"
