"""Reads samples by number and by key out of one local or remote shard.

A shard is opened at the first access, and again in each process that it was sent to. Codecs are loaded when the first
sample is decoded.
"""

import dataclasses
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from webdataset.core.errors import NoSuchSample, ShardChanged, UsageError, WebDatasetError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import trim_traceback
from webdataset.index.build import choose_reading
from webdataset.index.convert import OffsetEntries, stale_error
from webdataset.index.entries import SampleEntries, ShardIndex
from webdataset.index.local_samples import open_local_samples
from webdataset.index.lookup import IndexSpec, check_index_spec, find_index
from webdataset.index.sample_fetch import fetch_sample
from webdataset.samples.grouping import Sample
from webdataset.samples.sample_reader import Reading
from webdataset.storage.random_access import RandomAccess, open_ranges
from webdataset.storage.streams import stream_identity

if TYPE_CHECKING:
    from webdataset.codecs.media.video_decode import Clip, FrameSize
    from webdataset.index.video_clips import VideoMembers

Decode = bool | str | Sequence[Any] | Callable[[Sample], Sample] | None


def make_sample_decoder(decode: Decode, trust: str | None) -> Callable[[Sample], Sample]:
    """Return the function that decodes samples.

    Args:
        decode: True for the basic decoders, a spec such as ``"rgb"``, a list of specs and functions, or a function of
            the sample.
        trust: trust level; None is the process's.

    Raises:
        UsageError: none of these.
    """
    if callable(decode):
        return decode
    if decode is True:
        handlers: list[object] = []
    elif isinstance(decode, str):
        handlers = [decode]
    elif isinstance(decode, Sequence):
        handlers = list(decode)
    else:
        raise UsageError(f"decode={decode!r}: pass True, a spec such as 'rgb', a list of them, a function or None")
    from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded when they are used

    return Decoder(handlers, trust=trust).decode


class IndexedShard:
    """One shard, as a sequence of samples.

    Sample *i* is the *i*-th sample of the stream. Made for map-style datasets: it pickles, and may be used by several
    threads and after a fork.

    Args:
        url: a local path, or an http(s) url on a server that knows ranges.
        index: None looks for an index beside the shard (``X.wdsindex``, ``X.json``, ``X.idx``, ``X.tar.idx``) and
            else reads the shard's headers; False always reads them; a :class:`ShardIndex`; or the name of an index
            file. A DALI index that is named here may list a part of the samples, in any order, and is kept to.
        decode: how to decode samples: a spec such as ``"rgb"`` or ``"pil"``, ``True`` for the basic decoders alone, a
            list of specs and functions, or a function of the sample; None gives bytes.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.sample_reader.Reading` in place of ``reading``, such as
            ``duplicates`` and ``select_files``.

    Attributes:
        quick: reads an undecoded sample by its number from 0 on, or returns None: :meth:`read` does it then; None while
            the shard is not open, or is read in another way.

    Raises:
        UsageError: an argument that cannot mean anything.
        TypeError: a rule of reading that there is not.
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
        check_index_spec(index)
        self.url = os.fsdecode(url)
        self.decode = decode
        self._given = index
        self._reading = choose_reading("IndexedShard", reading, rules)
        self._decoder: Callable[[Sample], Sample] | None = None
        self._ranges: RandomAccess | None = None
        self._index: ShardIndex | None = None
        self._identity: tuple[int | None, str | None] | None = None
        self._ordinals: dict[str, int | list[int]] | None = None
        self._opening = ForkSafeLock()
        self._read_local: Callable[[int], Sample | None] | None = None
        self.quick: Callable[[int], Sample | None] | None = None
        self._videos: VideoMembers | None = None

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

    def _open(self) -> RandomAccess:
        with self._opening:
            try:
                # another thread may close it meanwhile
                ranges = self._ranges
                if ranges is None:
                    rules = self._reading
                    ranges = open_ranges(self.url, level=rules.trust, storage_options=rules.storage_options)
                    self._recognise(ranges)
                    self._ranges = ranges
                if self._index is None:
                    index = find_index(self.url, ranges, self._given, self._reading)
                    self._index = dataclasses.replace(index, url=self.url)
                elif isinstance(self._index.entries, OffsetEntries):
                    self._index.entries.ranges = ranges
            except WebDatasetError as error:
                raise error.locate(url=self.url)  # noqa: B904  the same error, with its place
            return ranges

    def _recognise(self, opened: RandomAccess) -> None:
        """Compare a shard that is opened again with what it was: headers prove names and sizes, not payloads."""
        before, now = self._identity or stream_identity(opened), stream_identity(opened)
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
        quick = self.quick
        if quick is not None and ordinal.__class__ is int and ordinal >= 0:
            sample = quick(ordinal)
            if sample is not None:
                return sample
        if isinstance(ordinal, slice):
            return [self.read(each) for each in range(*ordinal.indices(len(self)))]
        if isinstance(ordinal, str):
            raise UsageError(f"samples are numbered: write shard.by_key({ordinal!r}) for the sample of a key")
        try:
            return self.read(ordinal)
        except WebDatasetError as error:
            trim_traceback(error)
            raise

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
        read_local = self._read_local
        sample = read_local(ordinal) if read_local is not None and fields is None and ordinal >= 0 else None
        if sample is None:
            sample = self._fetch(ordinal, fields)
        if self.decode is None:
            return sample
        if self._decoder is None:
            self._decoder = make_sample_decoder(self.decode, self._reading.trust)
        return self._decoder(sample)

    def clip(
        self,
        ordinal: int,
        field: str,
        start_seconds: float = 0.0,
        stop_seconds: float | None = None,
        *,
        stride: int = 1,
        size: "FrameSize" = None,
    ) -> "Clip":
        """Return the frames of a span of time of a video; only their bytes are read, if its tables say where they are.

        Args:
            ordinal: the sample's number; negative ones count from the end.
            field: name of the field, such as ``"mp4"``.
            start_seconds: the first frame shown at this time or later is the first.
            stop_seconds: frames shown at this time or later are not in it; None means to the end.
            stride: every n-th frame of these.
            size: of the frames, (height, width) or the length of the shorter side; None leaves it.

        Returns:
            A clip: ``frames`` uint8[T, H, W, 3] and ``seconds`` float64[T], from the first frame of the video on.

        Raises:
            NoSuchSample: there is no such number.
            UsageError: the sample has no such field, or the video no frame in this time.
            DecodingError: the video is damaged.
            FieldTooLarge: the frames take more than ``WDS_MAX_MEDIA_BYTES``.
            MissingExtra: PyAV is not installed.
            StaleIndex: the shard is not the one that was indexed.
            SourceError: it cannot be read.
        """
        place = self._place(ordinal)
        try:
            members = self._videos or self._open_videos()
            return members.find(place, field).clip(start_seconds, stop_seconds, stride=stride, size=size)
        except WebDatasetError as error:
            raise error.locate(url=self.url, key=self.index.entries[place].key, field=field)  # noqa: B904  the same error

    def _open_videos(self) -> "VideoMembers":
        from webdataset.index.video_clips import VideoMembers  # noqa: PLC0415  numpy is for videos only

        plain = self._reading.rename_files is None
        self._videos = VideoMembers(self.index, self._ranges or self._open(), self._fetch_field, plain=plain)
        return self._videos

    def _fetch_field(self, ordinal: int, field: str) -> bytes:
        return bytes(self._fetch(ordinal, (field,))[field])

    def _place(self, ordinal: int) -> int:
        """Return a sample's number, counted from the beginning."""
        count = len(self.index.entries)
        place = ordinal + count if ordinal < 0 else ordinal
        if not 0 <= place < count:
            raise NoSuchSample(f"there is no sample {ordinal}: the shard has {count}", url=self.url)
        return place

    def _fetch(self, ordinal: int, fields: Container[str] | None) -> Sample:
        """Return the bytes of one sample; arguments and errors are those of :meth:`read`."""
        index, place = self.index, self._place(ordinal)
        try:
            ranges = self._ranges or self._open()
            sample = fetch_sample(index, place, ranges, self._reading, fields)
        except WebDatasetError as error:
            raise error.locate(url=self.url)  # noqa: B904  the same error, with its place
        if (
            self._read_local is None
            and not self._reading.memory_map
            and self._reading.rename_files is None
            and ranges is self._ranges
        ):
            self._read_local = open_local_samples(index, ranges)
            self.quick = self._read_local if self.decode is None else None
            if ranges is not self._ranges:
                # another thread has closed it meanwhile
                self._read_local = self.quick = None
        return sample

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
            self._ordinals = group_ordinals(self.keys())
        found = self._ordinals.get(key, [])
        return [found] if isinstance(found, int) else list(found)

    def keys(self) -> list[str]:
        """Return the keys of all samples, in order."""
        entries = self.index.entries
        # an index without names: the shard's headers have them
        if isinstance(entries, OffsetEntries):
            whole = find_index(self.url, self._ranges or self._open(), False, self._reading)
            if [entries.start(place) for place in range(len(entries))] != [entry.offset for entry in whole.entries]:
                raise stale_error("the samples start elsewhere", url=self.url)
            self._index = dataclasses.replace(whole, url=self.url)
            entries = whole.entries
        return list(entries.keys()) if isinstance(entries, SampleEntries) else [entry.key for entry in entries]

    def __contains__(self, key: object) -> bool:
        """Tell whether a sample has a key."""
        return isinstance(key, str) and bool(self.ordinals(key))

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples, in order."""
        return (self.read(ordinal) for ordinal in range(len(self)))

    def close(self) -> None:
        """Let go of the shard; it is opened again when it is asked again. A read in progress still ends well."""
        self._ranges = self._read_local = self.quick = self._videos = None
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
        state.update(_ranges=None, _read_local=None, quick=None, _decoder=None, _ordinals=None, _identity=None,
                     _videos=None)  # fmt: skip
        entries = None if self._index is None else self._index.entries
        if isinstance(entries, OffsetEntries) or (isinstance(entries, SampleEntries) and entries.is_mapped):
            state["_index"] = None
        return state

    def __repr__(self) -> str:
        known = f"{len(self._index)} samples" if self._index is not None else "not opened yet"
        return f"<IndexedShard {redact(self.url)!r}: {known}>"


def group_ordinals(keys: Iterable[str]) -> dict[str, int | list[int]]:
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
