"""Samples by number and by key, out of one local or remote shard.

Flows in: a shard's url, then ordinals and keys. Flows out: samples, as the stream reader gives them. A shard is opened
when it is first asked, and again in each process that it was sent to. Never gives bytes that are not proved to be the
sample's: see ``fetching``.
"""

import dataclasses
import os
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Literal, Self, overload

from webdataset.ground.errors import NoSuchSample, ShardChanged, UsageError, WebDatasetError
from webdataset.ground.locks import ForkSafeLock
from webdataset.ground.redaction import redacted
from webdataset.ground.tracebacks import TrimmedTracebacks
from webdataset.samples.grouping import Sample
from webdataset.samples.reading import Reading
from webdataset.sources.ranges import Ranges, open_ranges
from webdataset.sources.stream import identity_of

from .decoding import Decode, decoder_of
from .entries import Entries, ShardIndex
from .fetching import fetch
from .finding import IndexSpec, check_spec, index_of
from .resolving import OffsetEntries, stale


class IndexedShard:
    """One shard, as a sequence of samples.

    Sample *i* is the *i*-th sample of the stream. Made for map-style datasets: it pickles, and may be used by several
    threads and after a fork.

    Args:
        url: a local path, or an http(s) url on a server that knows ranges.
        index: None looks for an index beside the shard (``X.json``, ``X.idx``, ``X.tar.idx``) and else reads the
            shard's headers; False always reads them; a :class:`ShardIndex`; or the name of an index file. A DALI index
            that is named here may list a part of the samples, in any order, and is kept to.
        decode: how to decode samples: a spec such as ``"rgb"`` or ``"pil"``, ``True`` for the basic decoders alone, a
            list of specs and functions, or a function of the sample; None gives bytes.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.reading.Reading` in place of ``reading``, such as
            ``duplicates`` and ``select_files``.

    Raises:
        UsageError: an argument that cannot mean anything.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        index: IndexSpec = None,
        *,
        decode: Decode = None,
        reading: Reading | None = None,
        **rules: Any,
    ) -> None:
        check_spec(index)
        self.url = os.fsdecode(url)
        self.decode = decode
        self._given = index
        self._reading = reading or Reading(**rules)
        self._decoder: Callable[[Sample], Sample] | None = None
        self._ranges: Ranges | None = None
        self._index: ShardIndex | None = None
        self._identity: tuple[int | None, str | None] | None = None
        self._ordinals: dict[str, int | list[int]] | None = None
        self._opening = ForkSafeLock()

    @property
    def index(self) -> ShardIndex:
        """Where the samples lie; found out when it is first asked for.

        Raises:
            StaleIndex: the index does not describe the shard.
            NoRandomAccess: the shard is compressed, or its source is read front to back only.
            SourceError: it cannot be read.
            TarError: it is damaged.
        """
        if self._index is None:
            self._open()
        return self._index  # type: ignore[return-value]  # it is there now

    def _open(self) -> Ranges:
        with self._opening:
            try:
                if self._ranges is None:
                    rules = self._reading
                    opened = open_ranges(self.url, level=rules.trust, storage_options=rules.storage_options)
                    self._recognise(opened)
                    self._ranges = opened
                if self._index is None:
                    index = index_of(self.url, self._ranges, self._given, self._reading)
                    self._index = dataclasses.replace(index, url=self.url)
                elif isinstance(self._index.entries, OffsetEntries):
                    self._index.entries.ranges = self._ranges
            except WebDatasetError as error:
                raise error.locate(url=self.url)  # noqa: B904  the same error, with its place
            return self._ranges

    def _recognise(self, opened: Ranges) -> None:
        """Compare a shard that is opened again with what it was: headers prove names and sizes, not payloads.

        Raises:
            ShardChanged: it is another one.
        """
        before, now = self._identity or identity_of(opened), identity_of(opened)
        if before[0] != now[0] or (None not in (before[1], now[1]) and before[1] != now[1]):
            opened.close()
            raise ShardChanged("the shard has changed since it was first opened: make a new IndexedShard of it")
        self._identity = before

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.index)

    @overload
    def __getitem__(self, ordinal: int) -> Sample: ...

    @overload
    def __getitem__(self, ordinal: slice) -> list[Sample]: ...

    def __getitem__(self, ordinal: Any) -> Sample | list[Sample]:
        """Return one sample, or a list of them; negative numbers count from the end.

        Raises:
            NoSuchSample: there is no such number (an IndexError, too).
            UsageError: a key, which is no number.
            StaleIndex: the shard is not the one that was indexed.
            ShardChanged: it has changed since it was first opened.
            SourceError: it cannot be read.
        """
        if isinstance(ordinal, slice):
            return [self.read(each) for each in range(*ordinal.indices(len(self)))]
        if isinstance(ordinal, str):
            raise UsageError(f"samples are numbered: write shard.by_key({ordinal!r}) for the sample of a key")
        with TrimmedTracebacks():
            return self.read(ordinal)

    def read(self, ordinal: int, fields: Container[str] | None = None) -> Sample:
        """Return one sample, or some of its fields.

        Args:
            ordinal: its number; negative ones count from the end.
            fields: names of the fields to read, so that others are not fetched; None reads all.

        Raises:
            NoSuchSample: there is no such number.
            StaleIndex: the shard is not the one that was indexed.
            ShardChanged: it has changed since it was first opened.
            SourceError: it cannot be read.
        """
        index = self.index
        count = len(index.entries)
        place = ordinal + count if ordinal < 0 else ordinal
        if not 0 <= place < count:
            raise NoSuchSample(f"there is no sample {ordinal}: the shard has {count}", url=self.url)
        try:
            sample = fetch(index, place, self._ranges or self._open(), self._reading, fields)
        except WebDatasetError as error:
            raise error.locate(url=self.url)  # noqa: B904  the same error, with its place
        if self.decode is None:
            return sample
        if self._decoder is None:
            self._decoder = decoder_of(self.decode, self._reading.trust)
        return self._decoder(sample)

    @overload
    def by_key(self, key: str, *, all: Literal[False] = False) -> Sample: ...

    @overload
    def by_key(self, key: str, *, all: Literal[True]) -> list[Sample]: ...

    def by_key(self, key: str, *, all: bool = False) -> Sample | list[Sample]:  # noqa: A002  the word for it
        """Return the sample of a key; where several have it, the first.

        Args:
            key: the key.
            all: return a list of all samples that have it, in order.

        Raises:
            NoSuchSample: no sample has it (a KeyError, too).
            StaleIndex: the shard is not the one that was indexed.
            ShardChanged: it has changed since it was first opened.
            SourceError: it cannot be read.
        """
        found = self.ordinals(key)
        if not found:
            raise NoSuchSample("no sample of the shard has this key", url=self.url, key=key)
        return [self.read(ordinal) for ordinal in found] if all else self.read(found[0])

    def ordinals(self, key: str) -> list[int]:
        """Return the numbers of all samples that have a key; none where no sample has it.

        Args:
            key: the key.
        """
        if self._ordinals is None:
            self._ordinals = by_key_of(self.keys())
        found = self._ordinals.get(key, [])
        return [found] if isinstance(found, int) else list(found)

    def keys(self) -> list[str]:
        """Return the keys of all samples, in order."""
        entries = self.index.entries
        if isinstance(entries, OffsetEntries):  # an index without names: the shard's headers have them
            whole = index_of(self.url, self._ranges or self._open(), False, self._reading)
            if [entries.start(place) for place in range(len(entries))] != [entry.offset for entry in whole.entries]:
                raise stale("the samples start elsewhere", url=self.url)
            self._index = dataclasses.replace(whole, url=self.url)
            entries = whole.entries
        return list(entries.keys()) if isinstance(entries, Entries) else [entry.key for entry in entries]

    def __contains__(self, key: object) -> bool:
        """Tell whether a sample has a key."""
        return isinstance(key, str) and bool(self.ordinals(key))

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples, in order."""
        return (self.read(ordinal) for ordinal in range(len(self)))

    def close(self) -> None:
        """Let go of the shard; it is opened again when it is asked again. A read in progress still ends well."""
        self._ranges = None
        if self._index is not None and isinstance(self._index.entries, OffsetEntries):
            self._index.entries.ranges = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what is open, with the index if it is known."""
        state = self.__dict__.copy()
        # another host has its own copy, with a time of its own
        state.update(_ranges=None, _decoder=None, _ordinals=None, _identity=None)
        if self._index is not None and isinstance(self._index.entries, OffsetEntries):
            state["_index"] = None
        return state

    def __repr__(self) -> str:
        known = f"{len(self._index)} samples" if self._index is not None else "not opened yet"
        return f"<IndexedShard {redacted(self.url)!r}: {known}>"


def by_key_of(keys: Iterable[str]) -> dict[str, int | list[int]]:
    """Return the ordinals of each key: a number, or a list where several samples have it."""
    found: dict[str, int | list[int]] = {}
    for ordinal, key in enumerate(keys):
        known = found.get(key)
        if known is None:
            found[key] = ordinal
        elif isinstance(known, int):
            found[key] = [known, ordinal]
        else:
            known.append(ordinal)
    return found
