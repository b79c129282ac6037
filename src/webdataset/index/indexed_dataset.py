"""Reads samples by number and by key out of many shards, as one sequence in the order of the list.

The number of open shards is bounded; indexes are looked up once, several shards at a time.
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from webdataset.core.errors import NoShards, NoSuchSample, StaleIndex, UsageError, WebDatasetError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.core.tracebacks import trim_traceback
from webdataset.index.build import choose_reading, shard_urls
from webdataset.index.entries import ShardIndex
from webdataset.index.indexed_shard import Decode, IndexedShard, group_ordinals
from webdataset.index.lookup import IndexSpec
from webdataset.samples.grouping import Sample
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lists import ShardList

if TYPE_CHECKING:
    from webdataset.codecs.media.video_decode import Clip, FrameSize


class IndexedDataset:
    """Many shards, as one sequence of samples.

    Made for map-style datasets: it pickles, and may be used by several threads and after a fork.

    Args:
        shards: text with braces or ``::``, a path, a shard list object, or a list of urls, paths,
            :class:`ShardIndex`, :class:`IndexedShard`, or
            dicts with ``url`` and ``nsamples``, of which the shards' indexes are found out only when they are used.
        index: for each shard given by url: None looks beside the shard, False reads its headers.
        decode: how to decode samples, as for :class:`IndexedShard`.
        open_shards: shards open at a time.
        threads: shards whose index is found out at the same time.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.sample_reader.Reading` in place of ``reading``.

    Raises:
        NoShards: an empty list.
        UsageError: an argument that cannot mean anything.
        TypeError: a rule of reading that there is not.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[object],
        *,
        index: Literal[False] | None = None,
        decode: Decode = None,
        open_shards: int = 32,
        threads: int = 4,
        reading: Reading | None = None,
        **rules: Any,
    ) -> None:
        if open_shards < 1 or threads < 1:
            raise UsageError(f"open_shards={open_shards}, threads={threads}: at least one each")
        rules_of = choose_reading("IndexedDataset", reading, rules)
        if isinstance(shards, (str, os.PathLike, ShardList)):
            shards = shard_urls(shards, rules_of.storage_options)
        listed = list(shards)
        if not listed:
            raise NoShards("a dataset of no shards: pass at least one url")
        self.shards: list[IndexedShard] = []
        self._counts: list[int | None] = []
        for each in listed:
            shard, count = _make_shard(each, index, decode, rules_of)
            self.shards.append(shard)
            self._counts.append(count)
        self._most, self._threads = open_shards, threads
        self._ends: list[int] | None = None
        self._keys: dict[str, int | list[int]] | None = None
        self._used: OrderedDict[int, None] = OrderedDict()
        self._using = ForkSafeLock()

    def _borders(self) -> list[int]:
        """Return how many samples there are up to the end of each shard."""
        if self._ends is None:
            unknown = [place for place, count in enumerate(self._counts) if count is None]
            if len(unknown) == 1:
                self._counts[unknown[0]] = self._count(unknown[0])
            else:
                with ThreadPoolExecutor(self._threads, thread_name_prefix="index") as pool:
                    for place, count in zip(unknown, pool.map(self._count, unknown), strict=True):
                        self._counts[place] = count
            self._ends = list(accumulate(count or 0 for count in self._counts))
        return self._ends

    def _count(self, place: int) -> int:
        shard = self.shards[place]
        count = len(shard)
        # one that stays open has its headers verified
        if len(self.shards) > self._most:
            shard.close()
        return count

    def __len__(self) -> int:
        """Return the number of samples of all shards."""
        return self._borders()[-1]

    @overload
    def __getitem__(self, ordinal: int) -> Sample: ...

    @overload
    def __getitem__(self, ordinal: slice) -> list[Sample]: ...

    def __getitem__(self, ordinal: Any) -> Sample | list[Sample]:
        """Return one sample, or a list of them; negative numbers count from the end.

        Raises:
            NoSuchSample: there is no such number (an IndexError, too).
            UsageError: a key, or several numbers.
            StaleIndex: a shard is not the one that was indexed.
            SourceError: it cannot be read.
        """
        ends = self._ends
        if ends is not None and ordinal.__class__ is int and 0 <= ordinal < ends[-1]:
            place = bisect_right(ends, ordinal)
            # none will be closed
            if place in self._used and len(self.shards) <= self._most:
                quick = self.shards[place].quick
                sample = None if quick is None else quick(ordinal - ends[place - 1] if place else ordinal)
                if sample is not None:
                    return sample
        if isinstance(ordinal, slice):
            return self.__getitems__(range(*ordinal.indices(len(self))))
        if isinstance(ordinal, str):
            raise UsageError(f"samples are numbered: write dataset.by_key({ordinal!r}) for the sample of a key")
        if not hasattr(ordinal, "__index__"):
            raise UsageError(
                f"dataset[{ordinal!r:.60}]: one number, or a slice; for more, [dataset[n] for n in numbers]"
            )
        try:
            place, within = self.locate(ordinal)
            with self._use_shard(place) as shard:
                return shard.read(within)
        except WebDatasetError as error:
            trim_traceback(error)
            raise

    def __getitems__(self, ordinals: Sequence[int]) -> list[Sample]:
        """Return several samples, in the order asked for; each shard is read once, front to back."""
        found = {ordinal: self[ordinal] for ordinal in sorted(set(ordinals))}
        return [found[ordinal] for ordinal in ordinals]

    def locate(self, ordinal: int) -> tuple[int, int]:
        """Return which shard a sample is in, and its number there.

        Args:
            ordinal: the sample's number; negative ones count from the end.

        Raises:
            NoSuchSample: there is no such number.
        """
        ends = self._ends or self._borders()
        place = ordinal + ends[-1] if ordinal < 0 else ordinal
        if not 0 <= place < ends[-1]:
            raise NoSuchSample(f"there is no sample {ordinal}: the dataset has {ends[-1]}")
        shard = bisect_right(ends, place)
        return shard, place - (ends[shard - 1] if shard else 0)

    @contextmanager
    def _use_shard(self, place: int) -> Iterator[IndexedShard]:
        """Give a shard for use; close the one that was not used for longest."""
        try:
            yield self._open_shard(place)
        finally:
            # another thread, for which there were too many, may have closed it before it was opened again here
            if place not in self._used:
                self.shards[place].close()

    def _open_shard(self, place: int) -> IndexedShard:
        shard = self.shards[place]
        with self._using:
            fresh = place not in self._used
            self._used[place] = None
            self._used.move_to_end(place)
            if len(self._used) > self._most:
                self.shards[self._used.popitem(last=False)[0]].close()
        if fresh and len(shard) != self._counts[place]:
            raise StaleIndex(
                f"the list of shards says {self._counts[place]} samples, and the shard has {len(shard)}: write the "
                "list again",
                url=shard.url,
            )
        return shard

    @overload
    def by_key(self, key: str, *, all: Literal[False] = False) -> Sample: ...

    @overload
    def by_key(self, key: str, *, all: Literal[True]) -> list[Sample]: ...

    def by_key(self, key: str, *, all: bool = False) -> Sample | list[Sample]:  # noqa: A002  the word for it
        """Return the sample of a key; where several have it, the first in the order of the shards.

        Args:
            key: the key.
            all: return a list of all samples that have it, in order.

        Raises:
            NoSuchSample: no sample has it (a KeyError, too).
            StaleIndex: a shard is not the one that was indexed.
            SourceError: it cannot be read.
        """
        first = self._first_ordinal(key)
        return [self[ordinal] for ordinal in self.ordinals(key)] if all else self[first]

    def clip(
        self,
        sample: int | str,
        field: str,
        start_seconds: float = 0.0,
        stop_seconds: float | None = None,
        *,
        stride: int = 1,
        size: "FrameSize" = None,
    ) -> "Clip":
        """Return the frames of a span of time of a video; only their bytes are read, if its tables say where they are.

        Args:
            sample: its number, or its key; where several have it, the first.
            field: name of the field, such as ``"mp4"``.
            start_seconds: the first frame shown at this time or later is the first.
            stop_seconds: frames shown at this time or later are not in it; None means to the end.
            stride: every n-th frame of these.
            size: of the frames, (height, width) or the length of the shorter side; None leaves it.

        Returns:
            A clip: ``frames`` uint8[T, H, W, 3] and ``seconds`` float64[T], from the first frame of the video on.

        Raises:
            NoSuchSample: no sample has this number or key.
            UsageError: the sample has no such field, or the video no frame in this time.
            DecodingError: the video is damaged.
            FieldTooLarge: the frames take more than ``WDS_MAX_MEDIA_BYTES``.
            MissingExtra: PyAV is not installed.
            StaleIndex: a shard is not the one that was indexed.
            SourceError: it cannot be read.
        """
        place, within = self.locate(self._first_ordinal(sample) if isinstance(sample, str) else sample)
        with self._use_shard(place) as shard:
            return shard.clip(within, field, start_seconds, stop_seconds, stride=stride, size=size)

    def _first_ordinal(self, key: str) -> int:
        found = self.ordinals(key)
        if not found:
            raise NoSuchSample("no sample of the dataset has this key", key=key)
        return found[0]

    def ordinals(self, key: str) -> list[int]:
        """Return the numbers of all samples that have a key; none where no sample has it.

        Args:
            key: the key.
        """
        if self._keys is None:
            self._keys = group_ordinals(self.keys())
        found = self._keys.get(key, [])
        return [found] if isinstance(found, int) else list(found)

    def keys(self) -> Iterator[str]:
        """Yield the keys of all samples, in order; reads the index of every shard."""
        self._borders()
        for place in range(len(self.shards)):
            with self._use_shard(place) as shard:
                keys = shard.keys()
            yield from keys

    def __contains__(self, key: object) -> bool:
        """Tell whether a sample has a key."""
        return isinstance(key, str) and bool(self.ordinals(key))

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples, in order."""
        return (self[ordinal] for ordinal in range(len(self)))

    def close(self) -> None:
        """Let go of all shards; they are opened again when they are asked again."""
        with self._using:
            self._used.clear()
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what is open."""
        return {**self.__dict__, "_used": OrderedDict(), "_keys": None}

    def __repr__(self) -> str:
        known = f", {self._ends[-1]} samples" if self._ends is not None else ""
        return f"<IndexedDataset: {len(self.shards)} shards{known}>"


def _make_shard(given: object, index: IndexSpec, decode: Decode, reading: Reading) -> tuple[IndexedShard, int | None]:
    """Return one element of a list of shards, and how many samples it has where that is known."""
    if isinstance(given, IndexedShard):
        return given, None
    if isinstance(given, ShardIndex):
        return IndexedShard(given.url, given, decode=decode, reading=reading), len(given)
    if isinstance(given, Mapping):
        url, count = given.get("url"), given.get("nsamples")
        if not isinstance(url, (str, os.PathLike)) or (count is not None and not isinstance(count, int)):
            raise UsageError(f"a shard is a url, or a dict with url and nsamples, not {given!r}")
        return IndexedShard(url, index, decode=decode, reading=reading), count
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"a shard is a url, a path, an index or a dict, not {type(given).__name__}")
    return IndexedShard(given, index, decode=decode, reading=reading), None
