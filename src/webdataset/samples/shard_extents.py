"""Reads some samples of one shard where a table says where each stands: the bytes between them are not read.

Theory. A table cuts a shard into regions, one a sample, each beginning where the one before it ends. What is read is
parsed header by header, with the header that follows it: a region has to give exactly the sample that the table says,
by its key, its fields and their sizes, and the next one has to begin after it. So no sample is given that the shard's
own headers do not prove. Each region belongs to one process: the one that reads its sample finds what is wrong in it,
and a table that is wrong anywhere contradicts the shard at the first wrong border, whose region begins where it should.

Where the shard contradicts the table, the shard is read whole from the last sample that was proven. An error in the
shard is met there, as without a table. Where samples follow that the table lists elsewhere, the table is stale, and
other processes may have counted by it: an error, never a sample under another number.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from webdataset.core import settings
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import FormatError, StaleIndex
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.samples.address import Address
from webdataset.samples.grouping import Grouper, Sample, Shard
from webdataset.samples.member_sizes import check_member_size
from webdataset.samples.reading_rules import SampleListReader
from webdataset.samples.sample_reader import Reading
from webdataset.tar.header import BLOCK, parse_header
from webdataset.tar.scanner import TarScanner

if TYPE_CHECKING:
    from webdataset.storage.extents import Extents

# below this share of bytes that need not be read, one stream is better than many requests
_LEAST_SHARE = 0.2
_LONGEST_END_BYTES = 2 * 10240
# longer ones may be cut in the header
_PLAIN_NAME_BYTES = 99
_WAY_OUT = "write the index again or remove it, or read without indexes with WDS_SHARED_BYTES=0"


def can_read_ahead() -> bool:
    """Tell whether the settings allow several requests at once, and as many as there are ranges."""
    bounded = bool(settings.REQUESTS_PER_SECOND.get())
    return settings.CONNECTIONS.get() > 1 and settings.PREFETCH_BYTES.get() > 0 and not bounded


class TableField(Protocol):
    """One field of a sample."""

    @property
    def name(self) -> str:
        """The field's name."""
        ...

    @property
    def member(self) -> str:
        """The member's name."""
        ...

    @property
    def offset(self) -> int:
        """Where the payload starts, in bytes."""
        ...

    @property
    def size(self) -> int:
        """Bytes of payload."""
        ...


class TableEntry(Protocol):
    """One sample."""

    @property
    def key(self) -> str:
        """Its key."""
        ...

    @property
    def offset(self) -> int:
        """Where its first header starts, in bytes."""
        ...

    @property
    def fields(self) -> "Sequence[TableField]":
        """Its fields, as they stand in the shard."""
        ...


class SampleTable:
    """Where all samples of a shard stand.

    Args:
        entries: the samples, in the order of the shard.
        end: where the end mark starts.
        size_bytes: bytes of the shard; None where that is not known.

    Attributes:
        starts: where each region begins, and where the last one ends.
        rising: number of samples up to which each key is greater than the one before.
    """

    def __init__(self, entries: Sequence[TableEntry], end: int, size_bytes: int | None) -> None:
        self.entries = entries
        self.size_bytes = size_bytes
        self.starts: list[int] = []
        self.rising = 0
        self.whole = self._cut(end)

    def _cut(self, end: int) -> bool:
        """Find the regions; tell whether they leave no gap and overlap nowhere, and no key stands twice."""
        place = 0
        keys: dict[str, None] = {}
        last = ""
        rises = True
        for number, entry in enumerate(self.entries):
            self.starts.append(place)
            # folders and the like stand before the first sample alone
            if not entry.fields or (entry.offset != place if number else entry.offset < 0):
                return False
            place = entry.offset
            for field in entry.fields:
                # extended headers, of two blocks and more, may stand before it, and links may not
                before = field.offset - place
                if before < BLOCK or before == 2 * BLOCK or field.offset % BLOCK or field.size < 0:
                    return False
                place = field.offset + (field.size + BLOCK - 1 & -BLOCK)
            rises = rises and entry.key > last
            self.rising += rises
            keys[entry.key] = None
            last = entry.key
        self.starts.append(place)
        return len(keys) == len(self.entries) > 0 and place == end

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.entries)

    def fits(self, length: int) -> bool:
        """Tell whether a shard of so many bytes can be the one that the table is about."""
        rest = length - self.starts[-1]
        return self.size_bytes in (None, length) and BLOCK <= rest <= _LONGEST_END_BYTES

    def begins_with(self, block: bytes) -> bool:
        """Tell whether a shard's first block is the header of the first member, where that is a plain one."""
        first = find_plain_member(self.entries)
        return first is None or is_header(block, *first)

    def find(self, offset: int) -> int:
        """Return the number of the sample that starts at an offset; -1 where none does."""
        number = bisect_right(self.starts, offset) - 1
        within = 0 <= number < len(self.entries)
        return number if within and self.entries[number].offset == offset else -1


def find_plain_member(entries: "Sequence[TableEntry]") -> tuple[str, int] | None:
    """Return name and size of the member that a shard begins with; None where its first block does not tell them.

    Args:
        entries: the samples of the shard, at least one.
    """
    field = entries[0].fields[0]
    plain = field.offset == BLOCK and len(field.member) <= _PLAIN_NAME_BYTES and field.member.isascii()
    return (field.member, field.size) if plain else None


def is_header(block: bytes, name: str, size: int) -> bool:
    """Tell whether a block is the header of a member.

    Args:
        block: 512 bytes.
        name: of the member.
        size: of its payload, in bytes.
    """
    try:
        header = parse_header(block, 0)
    except FormatError:
        return False
    return (header.name, header.size) == (name.encode(), size)


class ExtentRun(NamedTuple):
    """Samples that are read at once.

    Args:
        first: number of the first one.
        stop: number after the last.
        start_bytes: where the first one's region begins.
        stop_bytes: where the bytes end that prove the last one.
    """

    first: int
    stop: int
    start_bytes: int
    stop_bytes: int


def find_gap(kept: Sequence[int], step: int) -> int:
    """Return how many samples that are not wanted stand next to each other, at most.

    Args:
        kept: which of each ``step`` samples are wanted, by their numbers modulo ``step``.
        step: see ``kept``.
    """
    ordered = sorted(kept)
    return max(after - before - 1 for before, after in pairwise([*ordered, ordered[0] + step]))


def plan_runs(table: SampleTable, first: int, kept: Sequence[int], step: int, extents: "Extents") -> list[ExtentRun]:
    """Return what to read of a shard.

    Args:
        table: where samples stand.
        first: number of the first sample.
        kept: which of each ``step`` samples are wanted, by their numbers modulo ``step``.
        step: see ``kept``.
        extents: the shard, whose gaps below ``gap_bytes`` are read.

    Returns:
        Runs, rising; none where reading all of the shard is better.
    """
    starts, gap_bytes, count = table.starts, extents.gap_bytes, len(table)
    wanted = set(kept)
    runs: list[list[int]] = []
    for number in range(first, count):
        if number % step in wanted:
            if runs and starts[number] - starts[runs[-1][1]] < gap_bytes:
                runs[-1][1] = number + 1
            else:
                runs.append([number, number + 1])
    found = [ExtentRun(low, high, starts[low], find_run_stop(table, high, extents.length)) for low, high in runs]
    most = extents.length - starts[min(first, count)]
    return found if most - sum(run.stop_bytes - run.start_bytes for run in found) >= _LEAST_SHARE * most else []


def find_run_stop(table: SampleTable, number: int, length: int) -> int:
    """Return where the header ends that the sample with this number begins with, or the shard; -1 without a field."""
    fields = table.entries[number].fields if number < len(table) else None
    return length if fields is None else fields[0].offset if fields else -1


class Contradiction(Exception):
    """The shard is not as the table says. Never leaves this module."""


SampleLists: TypeAlias = Iterator[tuple[list[Any], list[int]]]
WholeReader: TypeAlias = Callable[[Reading, Address | None], SampleListReader]

TableFinder: TypeAlias = "Callable[[int], tuple[SampleTable, Extents] | None]"
"""Finds where the samples of a shard stand, and opens it; None where that is not known, or not worth it.

It is told how many samples stand next to each other that are not wanted, at most."""


class ExtentReader:
    """One shard of which some samples are read.

    Args:
        shard: dict with ``url``; ``__…__`` entries go into every sample.
        reading: how to read.
        table: where samples stand.
        extents: the shard, open.
        runs: what to read of it.
        first: number of the first sample.
        start: its address; None for the shard's first.
        open_whole: opens the shard to be read whole, from a sample on.

    Attributes:
        rising: whether the keys of the shard rise, up to the list given last.
    """

    def __init__(  # noqa: PLR0917  one value each
        self,
        shard: Shard,
        reading: Reading,
        table: SampleTable,
        extents: "Extents",
        runs: list[ExtentRun],
        first: int,
        start: Address | None,
        open_whole: WholeReader,
    ) -> None:
        self.url = str(shard["url"])
        self.reading = reading
        self.rising = bool(shard.get("rising", True))
        self._table, self._extents, self._runs = table, extents, runs
        self._stamp = {"__url__": self.url, **{name: part for name, part in shard.items() if name.startswith("__")}}
        self._scanner = TarScanner(None, reading.limits)
        self._scanner.weigh = check_member_size
        self._grouper: Grouper = reading.grouper()
        self._next = first  # number of the next sample of a list
        self._proven = first  # number and address of the last sample that was given, or of the first
        self._address = start
        self._open_whole = open_whole
        self._whole: SampleListReader | None = None

    @classmethod
    def open(  # noqa: PLR0917  one value each
        cls,
        shard: Shard,
        reading: Reading,
        find_table: TableFinder,
        kept: Sequence[int],
        step: int,
        first: int,
        start: Address | None,
        open_whole: WholeReader,
    ) -> "ExtentReader | None":
        """Return the reader of some samples of a shard; None where reading all of it is better.

        Args:
            shard: as for the class.
            reading: how to read.
            find_table: finds where samples stand.
            kept: which of each ``step`` samples are wanted, by their numbers modulo ``step``.
            step: see ``kept``.
            first: number of the first sample.
            start: its address; None for the shard's first.
            open_whole: opens the shard to be read whole, from a sample on.
        """
        found = find_table(find_gap(kept, step))
        if found is None:
            return None
        table, extents = found
        runs: list[ExtentRun] = []
        same = table.fits(extents.length) and table.begins_with(extents.head)
        if same and (start is None or table.find(start.offset) == first):
            runs = plan_runs(table, first, kept, step, extents)
        if not runs:
            extents.close()
            return None
        return cls(shard, reading, table, extents, runs, first, start, open_whole)

    def lists(self) -> SampleLists:
        """Yield lists of samples, and where each starts; None stands for each sample that is not read.

        Raises:
            StaleIndex: other samples stand in the shard than in the table.
            WebDatasetError: the shard cannot be read.
        """
        self._extents.begin((run.start_bytes, run.stop_bytes) for run in self._runs)
        try:
            for run in self._runs:
                for samples, offsets in self._read_run(run):
                    passed = run.first - self._next if self._next < run.first else 0
                    self._next += passed + len(samples)
                    self._proven, self._address = self._next - 1, Address(0, 0, offsets[-1])
                    self.rising = self.rising and self._next <= self._table.rising
                    skipped: list[None] = [None] * passed
                    yield skipped + samples, [offsets[0]] * passed + offsets
                    del samples, skipped
        except Contradiction:
            pass
        else:
            return
        yield from self._read_whole()

    def _read_run(self, run: ExtentRun) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield the samples of one run.

        Raises:
            Contradiction: the table says otherwise.
        """
        scanner, grouper = self._scanner, self._grouper
        self._extents.advance()
        scanner.restart(run.start_bytes)
        grouper.open(self._stamp)
        number = run.first
        while scanner.offset < run.stop_bytes:
            piece = self._extents.read(min(scanner.want, run.stop_bytes - scanner.offset))
            if not piece:
                raise Contradiction
            members = scanner.feed(piece)
            del piece
            samples, offsets = grouper.add(members), grouper.offsets
            del members
            if scanner.error is not None or scanner.payloadless or grouper.fault is not None:
                raise Contradiction
            if scanner.offset >= run.stop_bytes:
                self._end_run(run, samples, offsets)
            if samples:
                self._compare(samples, offsets, number, run.stop)
                number += len(samples)
                yield samples, offsets
            del samples
        if number != run.stop:
            raise Contradiction

    def _end_run(self, run: ExtentRun, samples: list[Sample], offsets: list[int]) -> None:
        """Complete the last sample of a run by what comes after it: the header of the next sample, or the end mark."""
        scanner, grouper = self._scanner, self._grouper
        if run.stop == len(self._table):
            if not scanner.finish() or scanner.error is not None:
                raise Contradiction
            samples += grouper.close()
            offsets += grouper.offsets
            return
        following = self._table.entries[run.stop]
        name = scanner.pending_name
        if name is None:
            # a member without a byte is complete, and the next sample is in progress
            if grouper.key != following.key:
                raise Contradiction
        else:
            body = scanner.progress[0]
            field = following.fields[0]
            if body is None or (name, body.size, body.offset) != (field.member, field.size, following.offset):
                raise Contradiction
            grouper.offsets = offsets
            grouper.announce(name, samples)

    def _compare(self, samples: list[Sample], offsets: list[int], first: int, stop: int) -> None:
        """Compare samples with the table, the first one being the sample with this number.

        Raises:
            Contradiction: they differ.
        """
        if first + len(samples) > stop:
            raise Contradiction
        entries, stamped = self._table.entries, len(self._grouper.stamped)
        for number, (sample, offset) in enumerate(zip(samples, offsets, strict=True), first):
            entry = entries[number]
            if (sample["__key__"], offset) != (entry.key, entry.offset) or len(sample) != stamped + len(entry.fields):
                raise Contradiction
            for field in entry.fields:
                payload = sample.get(field.name)
                if payload is None or len(payload) != field.size:
                    raise Contradiction

    def _read_whole(self) -> SampleLists:
        """Yield all samples from the next one on, as the shard itself gives them."""
        self._extents.close()
        place = self._next  # of what contradicts
        number, entries = self._proven, self._table.entries
        strict = replace(self.reading, handler=reraise_exception)
        self._whole = whole = self._open_whole(strict, self._address)
        for samples, offsets in whole.lists():
            for index, sample in enumerate(samples):
                at = number + index
                if at >= len(entries) or sample["__key__"] != entries[at].key:
                    raise self._stale(offsets[index])
            passed = max(0, self._next - number)
            number += len(samples)
            if passed < len(samples):
                self._next = number
                self.rising = bool(getattr(whole, "rising", True))
                yield samples[passed:], offsets[passed:]
            del samples
        if number != len(entries):
            raise self._stale(None)
        warn_user(
            f"{redact(self.url)}: it could not be read by its index from sample {place} on, and was read whole from "
            "there: write the index again",
        )

    def _stale(self, offset: int | None) -> StaleIndex:
        return StaleIndex(
            "the index does not describe this shard: other samples stand there, and other processes may have counted "
            f"by it; {_WAY_OUT}",
            url=self.url,
            offset=offset,
        )

    @property
    def stream(self) -> object:
        """What tells which object is read."""
        return self._extents if self._whole is None else getattr(self._whole, "stream", None)

    def explain_error(self, error: Exception) -> Exception:
        """Return the error: it says where it struck."""
        return error

    def close(self) -> None:
        """Close the shard."""
        self._extents.close()
        if self._whole is not None:
            self._whole.close()
