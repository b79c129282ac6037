"""Reads samples by number and by key out of one local or remote shard.

A shard is opened at the first access, and again in each process that it was sent to. Codecs are loaded when the first
sample is decoded.

Theory. A payload's header is the block before it. Its checksum, size and name are compared with the index at each
access, so that an index which no longer fits is an error, never wrong bytes. The sum of 512 bytes comes from two Adler
sums over 256 bytes each (exact: at most 65 280, below the modulus). Names in extended headers, and sparse members, are
read by the stream's own scanner. Headers of an open source that were verified when it was indexed are not summed
again: name, kind and size must still stand before the payload.

Never gives bytes that are not proved to be the sample's.
"""

import dataclasses
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Literal, Self, overload
from zlib import adler32

from webdataset.core import errors
from webdataset.core.errors import NoSuchSample, ShardChanged, UsageError, WebDatasetError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import trim_traceback
from webdataset.index.build import choose_reading
from webdataset.index.convert import OffsetEntries, stale_error
from webdataset.index.entries import FieldEntry, SampleEntries, SampleEntry, ShardIndex
from webdataset.index.lookup import IndexSpec, check_index_spec, find_index
from webdataset.index.small_samples import LARGE, open_small_samples
from webdataset.samples.grouping import Sample, is_meta
from webdataset.samples.links import LinkTargets
from webdataset.samples.member_sizes import check_member_size
from webdataset.samples.sample_reader import Reading
from webdataset.storage.random_access import LocalRanges, RandomAccess, open_ranges
from webdataset.storage.streams import stream_identity
from webdataset.tar.header import BLOCK, REGULAR, parse_number, path_prefix
from webdataset.tar.scanner import TarScanner

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


_STEP = 1 << 20
_OCTAL = frozenset(b"01234567")


class UnprovenHeader(Exception):
    """A header that cannot prove the entry by itself: the way through the scanner decides."""


def fetch_sample(
    index: ShardIndex, ordinal: int, ranges: RandomAccess, reading: Reading, fields: Container[str] | None = None
) -> dict[str, Any]:
    """Read one sample: ``__key__``, ``__url__`` and the fields' bytes, as the stream reader gives them.

    Args:
        index: of the shard.
        ordinal: the sample's number, from 0.
        ranges: the shard.
        reading: the rules of reading.
        fields: names of the fields to read; None reads all.

    Raises:
        StaleIndex: the shard is not the one that was indexed.
        SourceError: it cannot be read.
    """
    entry = index.entries[ordinal]
    chosen = entry.fields if fields is None else tuple(field for field in entry.fields if field.name in fields)
    sample: dict[str, Any] = {"__key__": entry.key, "__url__": index.url}
    try:
        if ordinal in index.sparse or reading.rename_files is not None:
            raise UnprovenHeader  # noqa: TRY301  one way out
        if isinstance(ranges, LocalRanges) and ranges.walked and _reread_fields(chosen, ranges, sample):
            return sample
        payloads = _read_payloads(chosen, ranges)
    except UnprovenHeader:
        payloads = _scan_sample(index, ordinal, entry, ranges, reading)
    for field in chosen:
        sample[field.name] = payloads[field.offset]
    return sample


def _reread_fields(fields: Sequence[FieldEntry], ranges: LocalRanges, sample: dict[str, Any]) -> bool:
    """Read fields whose headers were verified before, and put them into the sample; False where anything is unusual."""
    if not fields:
        return True
    start, last = fields[0].offset - BLOCK, fields[-1]
    if 0 <= last.offset + last.size - start <= LARGE:
        return _reread_run(fields, ranges, sample)
    run: list[FieldEntry] = []
    for field in fields:
        if run and field.offset + field.size - run[0].offset > LARGE:
            if not _reread_run(run, ranges, sample):
                return False
            run = []
        if field.size < LARGE:
            run.append(field)
        elif not _reread_large(field, ranges, sample):
            return False
    return not run or _reread_run(run, ranges, sample)


def _reread_run(run: Sequence[FieldEntry], ranges: LocalRanges, sample: dict[str, Any]) -> bool:
    start, size = run[0].offset - BLOCK, run[-1].offset + run[-1].size - run[0].offset + BLOCK
    content = ranges.read_at(start, size) if start >= 0 else b""
    if len(content) != size:
        return False
    for name, member, offset, size in run:
        place = offset - start
        if place < BLOCK or not _is_same_header(content, place - BLOCK, member, size):
            return False
        sample[name] = payload = content[place : place + size]
        if len(payload) != size:
            return False
    return True


def _reread_large(field: FieldEntry, ranges: LocalRanges, sample: dict[str, Any]) -> bool:
    name, member, offset, size = field
    header = ranges.read_at(offset - BLOCK, BLOCK) if offset >= BLOCK else b""
    sample[name] = payload = ranges.read_at(offset, size)
    return len(header) == BLOCK and _is_same_header(header, 0, member, size) and len(payload) == size


def _is_same_header(content: bytes, place: int, member: str, size: int) -> bool:
    """Tell whether the header at a place still has this name, size and kind, in the plainest of forms."""
    return (
        content.startswith(member.encode("utf-8", "surrogateescape") + b"\0", place)
        and content.startswith(b"%011o\0" % size, place + 124)
        and content[place + 156] in REGULAR
        and not content[place + 345]
    )


def _read_payloads(fields: Sequence[FieldEntry], ranges: RandomAccess) -> dict[int, bytes]:
    """Read fields with the headers before them, near ones together; return payloads by offset."""
    payloads: dict[int, bytes] = {}
    start = stop = 0
    run: list[FieldEntry] = []
    for field in sorted(fields, key=_offset_of):
        if field.offset < BLOCK:
            raise stale_error("a payload cannot stand before its header", field=field.member, offset=field.offset)
        if run and field.offset - BLOCK - stop > ranges.latency_bytes:
            _cut_payloads(ranges.read_at(start, stop - start), start, run, payloads)
            run = []
        if not run:
            start = field.offset - BLOCK
        run.append(field)
        stop = field.offset + field.size
    if run:
        _cut_payloads(ranges.read_at(start, stop - start), start, run, payloads)
    return payloads


def _offset_of(field: FieldEntry) -> int:
    return field.offset


def _cut_payloads(content: bytes, start: int, run: list[FieldEntry], payloads: dict[int, bytes]) -> None:
    for field in run:
        place = field.offset - start
        check_header(content[place - BLOCK : place], field)
        payload = content[place : place + field.size]
        if len(payload) != field.size:
            raise stale_error(f"the shard ends before the end of {field.member!r}", offset=field.offset)
        payloads[field.offset] = payload


def check_header(block: bytes, field: FieldEntry) -> None:
    """Compare the block before a payload with the index.

    Raises:
        StaleIndex: it is no header.
        UnprovenHeader: it is one, but its name or size is another, which an extended header may explain.
    """
    whole = len(block) == BLOCK
    stored = block[148:156]
    text = stored.partition(b"\0")[0].strip()
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2 - sum(stored) + 256
    octal = whole and bool(text) and _OCTAL.issuperset(text)
    if not octal or int(text, 8) != total:
        if octal and block[156] in REGULAR:
            # a signed sum, or damage
            raise UnprovenHeader
        raise stale_error(
            f"no header stands before byte {field.offset}", field=field.member, offset=field.offset - BLOCK
        )
    raw = field.member.encode("utf-8", "surrogateescape")
    name = block[:100].partition(b"\0")[0]
    if block[345]:
        name = path_prefix(block) + name
    sized = (
        block[124:136] == b"%011o\0" % field.size or parse_number(block[124:136], "size", field.offset) == field.size
    )
    if name != raw or block[156] not in REGULAR or not sized:
        raise UnprovenHeader


def _scan_sample(
    index: ShardIndex, ordinal: int, entry: SampleEntry, ranges: RandomAccess, reading: Reading
) -> dict[int, bytes]:
    """Read a sample as the stream reader does, from its first header on."""
    scanner = TarScanner(reading.admit(), reading.limits)
    scanner.offset, scanner.weigh = entry.offset, check_member_size
    stop = _find_stop(index, ordinal, entry)
    wanted = {field.member: field for field in entry.fields if field.offset > entry.offset}
    last = reading.duplicates == "last"
    payloads: dict[int, bytes] = {}
    try:
        while scanner.offset < stop and (last or len(payloads) < len(wanted)):
            content = ranges.read_at(scanner.offset, min(scanner.want, stop - scanner.offset, _STEP))
            if not content:
                break
            members = scanner.feed(content)
            for name, payload, _ in members:
                field = None if is_meta(name) else wanted.get(name)
                if field is not None and (last or field.offset not in payloads):
                    payloads[field.offset] = payload
            if scanner.error is not None:
                raise scanner.error
    except errors.LimitExceeded:
        raise
    except WebDatasetError as error:
        raise stale_error(f"no sample can be read at byte {entry.offset}: {error.message}", url=index.url,
                          key=entry.key,
                    offset=entry.offset) from error  # fmt: skip
    _read_links(entry, ranges, reading, payloads)
    for field in entry.fields:
        if len(payloads.get(field.offset, b"")) != field.size or field.offset not in payloads:
            raise stale_error(f"{field.member!r} of {field.size} bytes is not there", url=index.url, key=entry.key,
                        offset=entry.offset)  # fmt: skip
    return payloads


def _read_links(entry: SampleEntry, ranges: RandomAccess, reading: Reading, payloads: dict[int, bytes]) -> None:
    """Read what a sample's hard links lead to, before the sample; of an empty member, its end is the first header."""
    targets = LinkTargets(ranges.read_at, reading.limits)
    for field in entry.fields:
        if field.offset not in payloads and field.offset <= entry.offset:
            place = targets.place(field.member, entry.offset)
            if place is not None and place.payload == field.offset:
                payloads[field.offset] = targets.payload(place) or b""


def _find_stop(index: ShardIndex, ordinal: int, entry: SampleEntry) -> int:
    """Return where the next sample starts, or the last member ends."""
    entries = index.entries
    start = getattr(entries, "start", None)
    if start is not None and ordinal + 1 < len(entries):
        following: int = start(ordinal + 1)
        if following > entry.offset:
            return following
    return index.end


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
        self._read_small: Callable[[int], Sample | None] | None = None
        self.quick: Callable[[int], Sample | None] | None = None

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
                if self._ranges is None:
                    rules = self._reading
                    opened = open_ranges(self.url, level=rules.trust, storage_options=rules.storage_options)
                    self._recognise(opened)
                    self._ranges = opened
                if self._index is None:
                    index = find_index(self.url, self._ranges, self._given, self._reading)
                    self._index = dataclasses.replace(index, url=self.url)
                elif isinstance(self._index.entries, OffsetEntries):
                    self._index.entries.ranges = self._ranges
            except WebDatasetError as error:
                raise error.locate(url=self.url)  # noqa: B904  the same error, with its place
            return self._ranges

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
        read_small = self._read_small
        sample = read_small(ordinal) if read_small is not None and fields is None and ordinal >= 0 else None
        if sample is None:
            sample = self._fetch(ordinal, fields)
        if self.decode is None:
            return sample
        if self._decoder is None:
            self._decoder = make_sample_decoder(self.decode, self._reading.trust)
        return self._decoder(sample)

    def _fetch(self, ordinal: int, fields: Container[str] | None) -> Sample:
        """Return the bytes of one sample; arguments and errors are those of :meth:`read`."""
        index = self.index
        count = len(index.entries)
        place = ordinal + count if ordinal < 0 else ordinal
        if not 0 <= place < count:
            raise NoSuchSample(f"there is no sample {ordinal}: the shard has {count}", url=self.url)
        try:
            ranges = self._ranges or self._open()
            sample = fetch_sample(index, place, ranges, self._reading, fields)
        except WebDatasetError as error:
            raise error.locate(url=self.url)  # noqa: B904  the same error, with its place
        if self._read_small is None and self._reading.rename_files is None and ranges is self._ranges:
            self._read_small = open_small_samples(index, ranges)
            self.quick = self._read_small if self.decode is None else None
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
        self._ranges = self._read_small = self.quick = None
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
        state.update(_ranges=None, _read_small=None, quick=None, _decoder=None, _ordinals=None, _identity=None)
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
