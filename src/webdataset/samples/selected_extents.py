"""Reads the samples of a shard that a table does not exclude, and nothing of the others.

Theory. What may match is read by ranges and proven as in :mod:`webdataset.samples.shard_extents`, so that no sample is
given that the shard's own headers do not prove. A gap between two ranges is read over where that costs few bytes: the
smallest gaps first, until twice the bytes are read that are needed.

Where the shard contradicts the table, it is read whole from the last sample that was proven, and compared with the
table: what is damaged is met as without a table. A table of other samples is an error, since it may have excluded some
that match.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from webdataset.core.errors import BadIndex, ShardChanged, SourceError, StaleIndex
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.samples.address import Address
from webdataset.samples.grouping import Sample, Shard
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_extents import (
    Contradiction,
    ExtentReader,
    ExtentRun,
    SampleLists,
    SampleTable,
    WholeReader,
    find_run_stop,
)

if TYPE_CHECKING:
    from webdataset.core.error_handlers import Handler
    from webdataset.samples.shard_extents import TableEntry
    from webdataset.storage.extents import Extents

MOST_GAP_BYTES: Final = 256 * 1024
WASTE: Final = 2
"""How many times the bytes that are needed may be read."""


class SelectionTable(SampleTable):
    """Where all samples of a shard stand, as a columns file says that was checked when it was made.

    Args:
        entries: the samples, in the order of the shard.
        offsets: where each one's first header starts.
        end: where the end mark starts.
        size_bytes: bytes of the shard; None where that is not known.
        rising: number of samples up to which each key is greater than the one before.
    """

    def __init__(
        self, entries: "Sequence[TableEntry]", offsets: Sequence[int], end: int, size_bytes: int | None, rising: int
    ) -> None:
        self.entries = entries
        self.size_bytes = size_bytes
        # folders and the like may stand before the first sample
        self.starts = [0, *offsets[1:], end]
        self.rising = rising
        self.whole = True


def plan_selected_runs(table: SampleTable, wanted: Sequence[int], length: int) -> list[ExtentRun]:
    """Return what to read of a shard.

    Args:
        table: where samples stand.
        wanted: numbers of samples, rising.
        length: bytes of the shard.

    Raises:
        BadIndex: a sample's first payload does not stand within the sample.
    """
    starts = table.starts
    runs: list[list[int]] = []
    for number in wanted:
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    # the first header after each run is read with it
    spans = [(starts[low], find_run_stop(table, high, length)) for low, high in runs]
    for (_, stop), (_, high) in zip(spans, runs, strict=True):
        if not starts[high] < stop <= (starts[high + 1] if high < len(table) else length):
            raise BadIndex("the columns file is damaged: a field does not stand in its sample")
    budget = (WASTE - 1) * sum(stop - start for start, stop in spans)
    gaps = sorted((max(0, spans[place + 1][0] - spans[place][1]), place) for place in range(len(spans) - 1))
    joined = set()
    for gap, place in gaps:
        budget -= gap
        if budget < 0 or gap > MOST_GAP_BYTES:
            break
        joined.add(place)
    found: list[ExtentRun] = []
    for place, ((low, high), (start, stop)) in enumerate(zip(runs, spans, strict=True)):
        if place - 1 in joined:
            found[-1] = found[-1]._replace(stop=high, stop_bytes=stop)
        else:
            found.append(ExtentRun(low, high, start, stop))
    return found


class EmptyReader:
    """A shard of which no sample is wanted: it is not opened.

    Args:
        reading: how to read.
        count: samples in the share.

    Attributes:
        stream: None.
    """

    stream = None

    def __init__(self, reading: Reading, count: int) -> None:
        self.reading = reading
        self._count = count

    def lists(self) -> SampleLists:
        """Yield None for each sample."""
        yield [None] * self._count, [0] * self._count

    def explain_error(self, error: Exception) -> Exception:
        """Return the error as it is."""
        return error

    def close(self) -> None:
        """Do nothing."""


class SelectingReader(Protocol):
    """One shard of which some samples are read."""

    reading: Reading

    @property
    def stream(self) -> object:
        """What tells which object is read."""
        ...

    def lists(self) -> SampleLists:
        """Yield lists of samples, None for each that is left out, and where each starts."""
        ...

    def close(self) -> None:
        """Close the shard."""
        ...


class SelectedReader(ExtentReader):
    """One shard of which the samples are read that a table does not exclude.

    It gives the samples of one share of the shard; None stands for each that is excluded.

    Args:
        shard: dict with ``url``; ``__…__`` entries go into every sample.
        reading: how to read.
        table: where samples stand.
        extents: the shard, open.
        share: numbers of the samples of the share.
        wanted: numbers of those to read, rising, all of the share.
        start: the address of the first one where a run is continued; None for the shard's first.
        open_whole: opens the shard to be read whole, from a sample on.
    """

    def __init__(  # noqa: PLR0917  one value each
        self,
        shard: Shard,
        reading: Reading,
        table: SampleTable,
        extents: "Extents",
        share: range,
        wanted: Sequence[int],
        start: Address | None,
        open_whole: WholeReader,
    ) -> None:
        runs = plan_selected_runs(table, wanted, extents.length)
        first = 0 if start is None else wanted[0]
        super().__init__(shard, reading, table, extents, runs, first, start, open_whole)
        self._share = share
        self._wanted = frozenset(wanted)
        # of the share
        self._given = 0 if start is None else share.index(first)

    def lists(self) -> SampleLists:
        """Yield lists of the share's samples, None for each that is excluded, and where each starts.

        Raises:
            StaleIndex: other samples stand in the shard than in the table.
            WebDatasetError: the shard cannot be read.
        """
        self._extents.begin((run.start_bytes, run.stop_bytes) for run in self._runs)
        try:
            for run in self._runs:
                number = run.first
                for samples, offsets in self._read_run(run):
                    self._proven, self._address = number + len(samples) - 1, Address(0, 0, offsets[-1])
                    self.rising = self.rising and self._proven < self._table.rising
                    given = self._take_share(samples, offsets, number, self._wanted)
                    number += len(samples)
                    del samples
                    if given[0]:
                        yield given
                    del given
        except ShardChanged:
            raise
        # one stream has more patience than many requests
        except (Contradiction, SourceError):
            pass
        else:
            rest = len(self._share) - self._given
            yield [None] * rest, [0] * rest
            return
        yield from self._read_on()

    def _take_share(
        self, samples: list[Sample], offsets: list[int], first: int, wanted: Collection[int]
    ) -> tuple[list[Sample | None], list[int]]:
        """Return the samples of the share that were not given, with those in between that were passed over."""
        share = self._share
        kept: list[Sample | None] = []
        places: list[int] = []
        for number, (sample, offset) in enumerate(zip(samples, offsets, strict=True), first):
            index = share.index(number) if number in share else -1
            if index < self._given:
                continue
            passed = index - self._given
            kept += [None] * passed
            kept.append(sample if number in wanted else None)
            places += [offset] * (passed + 1)
            self._given = index + 1
        return kept, places

    def _read_on(self) -> SampleLists:
        """Yield the rest of the share as the shard itself gives it, compared with the table."""
        self._extents.close()
        asked: list[Exception] = []
        reading = replace(self.reading, handler=_note_errors(self.reading.handler, asked))
        self._whole = whole = self._open_whole(reading, self._address)
        number, count = self._proven if self._address is not None else 0, len(self._table)
        for samples, offsets in whole.lists():
            # after one that was stepped over, too: streams that did not meet it number samples by the table
            try:
                self._compare(samples, offsets, number, count)
            except Contradiction:
                raise self._stale(offsets[0]) from None
            self.rising = bool(getattr(whole, "rising", True))
            given = self._take_share(samples, offsets, number, range(number, number + len(samples)))
            number += len(samples)
            del samples
            if given[0]:
                yield given
            del given
        if not asked and number != count:
            raise self._stale(None)
        if not asked:
            warn_user(f"{redact(self.url)}: a range of it could not be read, and the rest of it was read whole")

    def _stale(self, offset: int | None) -> StaleIndex:
        return StaleIndex(
            "the columns file does not describe this shard: other samples stand there, and it may have excluded some "
            "that match; write it again with 'wds columns', or remove it",
            url=self.url,
            offset=offset,
        )


def _note_errors(handler: "Handler", asked: list[Exception]) -> Callable[[Exception], bool]:
    """Return a handler that asks another one, and takes note of what it was asked about."""

    def ask_handler(error: Exception) -> bool:
        asked.append(error)
        return bool(handler(error))

    return ask_handler
