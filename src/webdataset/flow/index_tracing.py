"""Gives the keys of shards by the indexes beside them, where a trace needs no values.

Theory. A trace replaces samples by their keys (:mod:`webdataset.flow.key_tracing`). An index has the keys of a shard in
the order of the stream, and where each sample starts: all that a reader's state holds of them. So a shard with an index
is opened for positioned reads, which tell its size and validator, and none of its payloads is read. A shard is read
front to back, as in the run, where it has no index or another one than its own, where a key comes again in it (then the
reader decides what becomes of the parts), and under rules of reading that choose samples, or choose or rename members.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import cast

from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import WebDatasetError
from webdataset.index.entries import SampleEntries, ShardIndex
from webdataset.index.lookup import find_index_beside
from webdataset.samples.address import Address
from webdataset.samples.grouping import Sample, Shard
from webdataset.samples.reading_rules import SampleListReader
from webdataset.samples.sample_reader import Reading
from webdataset.stages.base import Run
from webdataset.stages.open_shards import OpenShards
from webdataset.stages.read_shards import ReaderState, ReadShards
from webdataset.storage.random_access import open_ranges

_ENTRIES = "index entries"
_LIST = 256
# rules that decide which samples there are, and what they are called
_RULES = ("select_files", "rename_files", "keys", "lcase", "suffixes", "duplicates", "where")


def trace_by_index(reader: ReadShards) -> ReadShards:
    """Return a reader that gives samples without fields, by indexes where they are; or the same reader.

    Args:
        reader: of a pipeline.
    """
    reading = reader.reading
    if type(reading) is not Reading or any(getattr(reading, name) != getattr(Reading, name) for name in _RULES):
        return reader
    if isinstance(reader, OpenShards):
        return OpenShards(trace_by_index(reader.reader), reader.count)
    return IndexReader(reader)


@dataclass(frozen=True)
class KeyReading(Reading):
    """Rules of reading under which shards with entries of an index are not read."""

    def reader(self, shard: Shard, start: Address | None = None) -> SampleListReader:  # type: ignore[override]
        """Return the reader of one shard, which begins at the sample at ``start``."""
        return KeyReader(shard, start) if _ENTRIES in shard else super().reader(shard, start)


class KeyReader:
    """Gives the keys of a shard by its index.

    Args:
        shard: with the entries; its ``stream`` is open for positioned reads.
        start: the address of the sample to start at; None is the first.

    Attributes:
        stream: tells which object it is.
        rising: whether keys rise, as far as they were given.
    """

    def __init__(self, shard: Shard, start: Address | None) -> None:
        self.stream = shard["stream"]
        self.rising = bool(shard.get("rising", True))
        # what the reader of a shard puts into every sample
        self._stamp = {"__url__": str(shard["url"])} | {n: part for n, part in shard.items() if n.startswith("__")}
        self._entries: SampleEntries = shard[_ENTRIES]
        self._first = 0 if start is None else _find_start(self._entries, start.offset)

    def lists(self) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield lists of samples without fields, and where each starts."""
        last = ""
        for place in range(self._first, len(self._entries), _LIST):
            entries = self._entries[place : place + _LIST]
            for entry in entries:
                self.rising = self.rising and last <= entry.key
                last = entry.key
            yield [{"__key__": entry.key, **self._stamp} for entry in entries], [entry.offset for entry in entries]

    def explain_error(self, error: Exception) -> Exception:
        """Return the error as it is."""
        return error

    def close(self) -> None:
        """Close the shard."""
        self.stream.close()


def _find_start(entries: SampleEntries, offset: int) -> int:
    return bisect_left(range(len(entries)), offset, key=lambda number: entries[number].offset)


class IndexReader(ReadShards):
    """Gives samples without fields of shards that have an index, and reads the others.

    Args:
        reader: opens and reads the others.
    """

    def __init__(self, reader: ReadShards) -> None:
        given = {each.name: getattr(reader.reading, each.name) for each in fields(Reading)}
        super().__init__(KeyReading(**given))
        self.reader = reader

    def begin(self, run: Run) -> ReaderState:
        """Return the reader's state."""
        return self.reader.begin(run)

    def for_stream(self, stream: StreamNumber) -> ReadShards:
        """Return the reader of one stream."""
        return trace_by_index(cast("ReadShards", self.reader.for_stream(stream)))

    def open_shards(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Open shards: by the reader from the first on, if that one has no index."""
        listed = iter(shards)
        for number, shard in enumerate(listed):
            found = self._open_indexed(shard)
            if found is not None:
                yield found
            elif number == 0:
                yield from self.reader.open_shards(chain([shard], listed))
            else:
                yield from self.reader.open_shards([shard])

    def fetch_from(self, shards: Iterable[Shard], addresses: list[Address]) -> list[Sample]:
        """Read the samples at some addresses once more."""
        return self.reader.fetch_from(shards, addresses)

    def _open_indexed(self, shard: Shard) -> Shard | None:
        url = shard.get("url") if isinstance(shard, dict) else None
        if not isinstance(url, str):
            return None
        reading = self.reading
        try:
            ranges = open_ranges(url, level=reading.trust, storage_options=reading.storage_options)
        except (OSError, WebDatasetError):
            # the reader says it better, or reads what has no ranges
            return None
        try:
            index = find_index_beside(url, ranges, reading)
        except (OSError, WebDatasetError):
            index = None
        if index is None or not _has_unique_keys(index):
            ranges.close()
            return None
        return {**shard, "stream": ranges, _ENTRIES: index.entries}


def _has_unique_keys(index: ShardIndex) -> bool:
    return len({entry.key for entry in index.entries}) == len(index.entries)
