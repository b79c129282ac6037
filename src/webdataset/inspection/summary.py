"""Counts what shards hold: samples, fields and how large they are, and the shape of their JSON.

Only headers are read where the storage allows it, unless the shape of JSON or the sizes of images are asked for.
Memory is bounded by the number of different field names and JSON paths: of both, as many as :data:`MOST_NAMES` are
kept apart, and the rest is counted together under ``...``.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from webdataset.core.errors import WebDatasetError
from webdataset.index.build import index_shard
from webdataset.inspection.field_preview import JSON_FIELDS
from webdataset.inspection.image_header import IMAGE_FIELDS, read_image_size
from webdataset.samples.raw_samples import RawSamples
from webdataset.samples.sample_reader import Reading

MOST_NAMES: Final = 1000
REST: Final = "..."
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


@dataclass
class FieldSummary:
    """One field over many samples.

    Args:
        samples: how many have it.
        total_bytes: of its payloads.
        smallest_bytes: of one payload; None before the first.
        largest_bytes: of one payload.
        widths: the least and the greatest width of its images, in pixels, or None.
        heights: likewise.
    """

    samples: int = 0
    total_bytes: int = 0
    smallest_bytes: int | None = None
    largest_bytes: int = 0
    widths: tuple[int, int] | None = None
    heights: tuple[int, int] | None = None

    def add(self, size_bytes: int) -> None:
        """Count a payload.

        Args:
            size_bytes: its length.
        """
        self.samples += 1
        self.total_bytes += size_bytes
        smallest = self.smallest_bytes
        self.smallest_bytes = size_bytes if smallest is None or size_bytes < smallest else smallest
        self.largest_bytes = max(self.largest_bytes, size_bytes)

    def add_image(self, width: int, height: int) -> None:
        """Count an image.

        Args:
            width: in pixels.
            height: in pixels.
        """
        self.widths = _widen(self.widths, width)
        self.heights = _widen(self.heights, height)


def _widen(known: tuple[int, int] | None, number: int) -> tuple[int, int]:
    return (number, number) if known is None else (min(known[0], number), max(known[1], number))


@dataclass
class DatasetSummary:
    """What some shards hold.

    Args:
        shards: the samples of each shard, in order.
        stored_bytes: of all shards, as stored; None where a source does not tell.
        samples: in all.
        fields: by name.
        shapes: which fields samples have together, to how many samples.
        json_paths: a path into JSON (``json.tags[]``) to the kinds found there and how often.
    """

    shards: dict[str, int] = field(default_factory=dict)
    stored_bytes: int | None = 0
    samples: int = 0
    fields: dict[str, FieldSummary] = field(default_factory=dict)
    shapes: Counter[tuple[str, ...]] = field(default_factory=Counter)
    json_paths: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(each.total_bytes for each in self.fields.values())

    def add_sample(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Count a sample.

        Args:
            sizes: each field and the bytes of its payload.
        """
        self.samples += 1
        names = []
        for name, size in sizes:
            self._field(name).add(size)
            names.append(name)
        shape = tuple(sorted(names))
        self.shapes[shape if shape in self.shapes or len(self.shapes) < MOST_NAMES else (REST,)] += 1

    def _field(self, name: str) -> FieldSummary:
        if name not in self.fields and len(self.fields) >= MOST_NAMES:
            name = REST
        return self.fields.setdefault(name, FieldSummary())

    def add_content(self, name: str, payload: bytes) -> None:
        """Take note of what a field holds: the size of an image, the shape of JSON.

        Args:
            name: of the field.
            payload: its bytes.
        """
        ending = name.rpartition(".")[2]
        if ending in IMAGE_FIELDS:
            size = read_image_size(payload)
            if size is not None:
                self._field(name).add_image(*size)
        elif ending in JSON_FIELDS:
            try:
                value = json.loads(payload)
            except (ValueError, RecursionError):
                self._count(name, "invalid")
                return
            for path, kind in _walk_json(name, value):
                self._count(path, kind)

    def _count(self, path: str, kind: str) -> None:
        if path not in self.json_paths and len(self.json_paths) >= MOST_NAMES:
            path = REST
        self.json_paths.setdefault(path, Counter())[kind] += 1


def _walk_json(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each path below a value with the kind found there; of a list, one for all of its members."""
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        yield path, _KINDS.get(type(value), "null")
        if isinstance(value, dict):
            waiting.extend((f"{path}.{name}", each) for name, each in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend((f"{path}[]", each) for each in reversed(value))


def summarize_shards(
    urls: Iterable[str], summary: DatasetSummary, reading: Reading | None = None, *, contents: bool = False
) -> Iterator[str]:
    """Add what shards hold to a summary, and yield each url when it has been read.

    Args:
        urls: the shards.
        summary: what grows.
        reading: the rules of reading.
        contents: look into JSON and images, too: then everything is read.

    Raises:
        WebDatasetError: a shard cannot be read or is damaged.
    """
    rules = reading or Reading()
    for url in urls:
        before = summary.samples
        if contents or url == "-":
            stored = _add_by_reading(summary, url, rules, contents=contents)
        else:
            stored = _add_by_headers(summary, url, rules)
        summary.shards[url] = summary.shards.get(url, 0) + summary.samples - before
        known = summary.stored_bytes
        summary.stored_bytes = None if stored is None or known is None else known + stored
        yield url


def _add_by_headers(summary: DatasetSummary, url: str, reading: Reading) -> int | None:
    index = index_shard(url, reading=reading)
    for entry in index.entries:
        summary.add_sample((each.name, each.size) for each in entry.fields)
    return index.size_bytes


def _add_by_reading(summary: DatasetSummary, url: str, reading: Reading, *, contents: bool) -> int | None:
    from webdataset.storage.random_access import open_ranges  # noqa: PLC0415  beside the reading

    for sample in RawSamples(url, reading):
        payloads = sample.payloads()
        summary.add_sample((name, len(payload)) for name, payload in payloads.items())
        if contents:
            for name, payload in payloads.items():
                summary.add_content(name, payload)
    try:
        with open_ranges(url, level=reading.trust, storage_options=reading.storage_options) as ranges:
            return ranges.length
    except (WebDatasetError, OSError):
        return None
