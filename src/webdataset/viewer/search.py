"""Finds samples by a text and an expression, a piece of work at a time; also the fields that an expression looks at.

A request works until it has found enough, or has spent its time or bytes, and returns a cursor with which the next one
continues. Where shards have an index, their keys are searched first, which reads no payload; contents follow. An
expression reads the fields that it looks at and nothing else: of an image its head, of a size nothing.

A cursor holds three numbers and a digest of what is searched, so that it can name no place outside the dataset and
cannot be used with another search.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webdataset.core.errors import SampleError, UsageError, WebDatasetError, describe_error
from webdataset.core.redaction import redact
from webdataset.index.entries import FieldEntry, SampleEntry
from webdataset.inspection.expression import Expression
from webdataset.inspection.expression_values import FieldSource
from webdataset.inspection.field_preview import JSON_FIELDS, LINE_FIELDS, TEXT_FIELDS
from webdataset.inspection.image_header import read_image_size_in
from webdataset.inspection.media_header import read_media_duration

if TYPE_CHECKING:
    from webdataset.viewer.session import DatasetView
    from webdataset.viewer.shard_pages import ShardView

MOST_FIELD_BYTES: Final = 8 << 20
"""A larger field is not read for an expression; texts of any size are searched."""

_MOST_QUERY = 1000
_PIECE_BYTES = 1 << 20
_KEYS, _CONTENTS = "k", "c"
_CURSOR = re.compile(r"([kc])-(\d{1,9})-(\d{1,15})-([0-9a-f]{16})")


@dataclass
class Budget:
    """What a request may spend.

    Args:
        seconds: of time.
        most_bytes: that are read.
        is_cancelled: tells whether the client has disconnected.
    """

    seconds: float = 1.0
    most_bytes: int = 64 << 20
    is_cancelled: Callable[[], bool] = field(default=lambda: False)
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def is_spent(self, read_bytes: int) -> bool:
        """Tell whether work has to end.

        Args:
            read_bytes: read so far.
        """
        return read_bytes >= self.most_bytes or time.monotonic() >= self._deadline or self.is_cancelled()


class EntryFields(FieldSource):
    """The fields of a sample in a shard, read when an expression looks at them.

    Args:
        shard: that it stands in.
        entry: the sample.
    """

    def __init__(self, shard: "ShardView", entry: SampleEntry) -> None:
        self._shard = shard
        self._entries: dict[str, FieldEntry] = {each.name: each for each in entry.fields}
        self._payloads: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        """Return the bytes of a field.

        Raises:
            KeyError: there is none of this name.
            OverflowError: it is too large to be read for this.
        """
        entry = self._entries[name]
        if entry.size > MOST_FIELD_BYTES:
            raise OverflowError(f"{name!r} has {entry.size} bytes; at most {MOST_FIELD_BYTES} are read here")
        if name not in self._payloads:
            self._payloads[name] = self._shard.read_field(entry)
        return self._payloads[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of fields."""
        return len(self._entries)

    def size(self, name: str) -> int | None:
        """Return the bytes of a field, by its header; None where there is none.

        Args:
            name: of the field.
        """
        entry = self._entries.get(name)
        return None if entry is None else entry.size

    def image_size(self, name: str) -> tuple[int, int] | None:
        """Return width and height of an image by its head; None where there is none.

        Args:
            name: of the field.
        """
        entry = self._entries.get(name)
        return None if entry is None else read_image_size_in(self.reader(name), min(entry.size, MOST_FIELD_BYTES))

    def duration(self, name: str) -> float | None:
        """Return how long a sound or video is in seconds by its header; None where that does not tell.

        Args:
            name: of the field.
        """
        entry = self._entries.get(name)
        return None if entry is None else read_media_duration(self.reader(name), entry.size)

    def reader(self, name: str) -> Callable[[int, int], bytes]:
        """Return the function that reads a field from a start to a stop.

        Args:
            name: of a field that is there.
        """
        entry = self._entries[name]
        return lambda start, stop: self._shard.read_field(entry, start, stop)


class SampleQuery:
    """What is searched: a text in keys and contents, and an expression that holds.

    Args:
        text: part of the key, of a text or of a text in JSON; capitals do not matter; empty for all.
        where: an expression; empty for all.

    Raises:
        UsageError: the text is too long, or the expression is none; the message says where.
    """

    def __init__(self, text: str = "", where: str = "") -> None:
        if len(text) > _MOST_QUERY:
            raise UsageError(f"the text to search for has at most {_MOST_QUERY} characters")
        self.needle = text.casefold()
        self.where = where.strip()
        self.expression = Expression(where) if self.where else None

    def has_key(self, entry: SampleEntry) -> bool:
        """Tell whether the text is part of a sample's key.

        Args:
            entry: the sample.
        """
        return self.needle in entry.key.casefold()

    def has_content(self, fields: EntryFields) -> bool:
        """Tell whether the text is part of a text, or of a text in JSON, of a sample.

        Args:
            fields: of the sample.
        """
        return any(self._is_in(name, fields) for name in fields)

    def _is_in(self, name: str, fields: EntryFields) -> bool:
        ending = name.rpartition(".")[2]
        if ending in JSON_FIELDS and (fields.size(name) or 0) <= MOST_FIELD_BYTES:
            try:
                return any(self.needle in text.casefold() for text in _list_texts(json.loads(fields[name])))
            except (ValueError, RecursionError):
                return self._is_in_text(name, fields)
        return ending in TEXT_FIELDS | LINE_FIELDS | JSON_FIELDS and self._is_in_text(name, fields)

    def _is_in_text(self, name: str, fields: EntryFields) -> bool:
        """Search a text in pieces, each of which has the end of the one before it."""
        read, size = fields.reader(name), fields.size(name) or 0
        overlap = 4 * len(self.needle) + 8
        for start in range(0, size, _PIECE_BYTES):
            piece = read(max(0, start - overlap), min(size, start + _PIECE_BYTES))
            if self.needle in piece.decode("utf-8", "replace").casefold():
                return True
        return False

    def holds(self, entry: SampleEntry, fields: EntryFields, shard: str) -> bool:
        """Tell whether the expression holds for a sample.

        Args:
            entry: the sample.
            fields: of the sample.
            shard: name of its shard, without secrets.

        Raises:
            SampleError: the expression makes no sense for this sample.
        """
        return self.expression is None or self.expression.holds(fields, key=entry.key, shard=shard)

    def digest(self, *scope: object) -> str:
        """Return what tells this search from others.

        Args:
            *scope: what else belongs to it.
        """
        content = json.dumps([self.needle, self.where, *map(str, scope)]).encode()
        return hashlib.blake2b(content, digest_size=8, usedforsecurity=False).hexdigest()


def _list_texts(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict | list):
            waiting.extend(each.values() if isinstance(each, dict) else each)


class FoundSample(NamedTuple):
    """A sample that was found.

    Args:
        shard: number of its shard.
        ordinal: its number in the shard.
        entry: the sample.
    """

    shard: int
    ordinal: int
    entry: SampleEntry


@dataclass
class SearchResult:
    """What one request found.

    Args:
        samples: in the order of the search.
        cursor: where the next request continues; None at the end.
        samples_seen: looked at in this request.
        shards_seen: of which samples were looked at.
        read_bytes: read in this request.
        failed: samples for which the expression makes no sense.
        problems: messages, the first of each kind: of shards that cannot be read, and of a sample that failed.
    """

    samples: list[FoundSample] = field(default_factory=list)
    cursor: str | None = None
    samples_seen: int = 0
    shards_seen: int = 0
    read_bytes: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return all but the samples as a JSON value."""
        scanned = {"shards": self.shards_seen, "samples": self.samples_seen, "bytes": self.read_bytes}
        return {
            "cursor": self.cursor,
            "scanned": scanned,
            "done": self.cursor is None,
            "failed": self.failed,
            "problems": self.problems,
        }


def search_samples(
    view: "DatasetView",
    query: SampleQuery,
    *,
    shard: int | None = None,
    cursor: str | None = None,
    count: int = 50,
    budget: Budget | None = None,
) -> SearchResult:
    """Find samples, from the beginning or from a cursor on.

    Args:
        view: the dataset.
        query: what is searched.
        shard: number of the only shard that is searched; None for all.
        cursor: of the request before.
        count: samples after which to stop.
        budget: time and bytes after which to stop; at least one sample is looked at.

    Raises:
        UsageError: a cursor of another search, or none at all.
    """
    return _Search(view, query, shard, budget or Budget()).run(cursor, count)


class _Search:
    def __init__(self, view: "DatasetView", query: SampleQuery, only: int | None, budget: Budget) -> None:
        self.view = view
        self.query = query
        self.numbers = range(len(view)) if only is None else range(only, only + 1)
        self.budget = budget
        self.digest = query.digest(view.name, only)
        self.found = SearchResult()
        # no request ends where it began
        self.moved = False

    def run(self, cursor: str | None, count: int) -> SearchResult:
        phase, number, ordinal = self._parse(cursor)
        stopped = False
        while not stopped and number < self.numbers.stop:
            stopped, ordinal = self._search_shard(phase, number, ordinal, count)
            if not stopped:
                number, ordinal = number + 1, 0
                if number == self.numbers.stop and phase == _KEYS:
                    phase, number = _CONTENTS, self.numbers.start
        if number < self.numbers.stop:
            self.found.cursor = f"{phase}-{number}-{ordinal}-{self.digest}"
        return self.found

    def _parse(self, cursor: str | None) -> tuple[str, int, int]:
        if not cursor:
            return (_KEYS if self.query.needle else _CONTENTS), self.numbers.start, 0
        parts = _CURSOR.fullmatch(cursor)
        if parts is None or not parts[0].isascii() or parts[4] != self.digest or int(parts[2]) not in self.numbers:
            raise UsageError("this cursor is not one of this search: search from the beginning")
        return parts[1], int(parts[2]), int(parts[3])

    def _search_shard(self, phase: str, number: int, ordinal: int, count: int) -> tuple[bool, int]:
        """Search a shard from a sample on; return whether to stop there, and at which sample."""
        found, budget = self.found, self.budget
        if self.moved and budget.is_spent(found.read_bytes):
            return True, ordinal
        self.moved = True
        try:
            shard = self.view.shard(number)
            shard.await_index()
            if phase == _KEYS and not shard.indexed:
                return False, 0
            before, start = shard.read_statistics.bytes - found.read_bytes, ordinal
            found.shards_seen += 1
            for place, entry in shard.samples(start):
                ordinal = place
                if found.samples_seen and (len(found.samples) >= count or budget.is_spent(found.read_bytes)):
                    return True, place
                found.samples_seen += 1
                if self._fits(phase, shard, entry):
                    found.samples.append(FoundSample(number, place, entry))
                found.read_bytes = shard.read_statistics.bytes - before
                ordinal = place + 1
            if shard.problem is not None:
                self._note(f"shard {number} after sample {ordinal}: {shard.problem.message}")
        except (OSError, WebDatasetError) as error:
            self._note(f"shard {number}, sample {ordinal}: {describe_error(error)}")
        return False, ordinal

    def _fits(self, phase: str, shard: "ShardView", entry: SampleEntry) -> bool:
        query = self.query
        fields = EntryFields(shard, entry)
        if query.needle:
            by_key = query.has_key(entry)
            if phase == _KEYS:
                fits = by_key
            elif shard.indexed:
                # its keys were searched before
                fits = not by_key and query.has_content(fields)
            else:
                fits = by_key or query.has_content(fields)
            if not fits:
                return False
        try:
            return query.holds(entry, fields, shard.name)
        except SampleError as error:
            self.found.failed += 1
            if self.found.failed == 1:
                self._note(str(error))
            return False

    def _note(self, message: str) -> None:
        self.found.problems.append(redact(message))
