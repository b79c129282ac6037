"""Reads a shard once for all streams of a process that share it by sample.

Where an elastic dataset has fewer shards left than streams, several streams read one shard, and each keeps every n-th
sample. A :class:`SharedReader` scans such a shard once and hands every list of samples out to all of them; a
:class:`StreamReader` is what one stream sees of it, and gives exactly what a reader of its own would give.

Theory. Who reads is never what is read: samples, offsets, order and states are those of streams that read alone. What
waits for streams that are asked later is bounded: beyond ``WDS_SHARED_BYTES``, the stream for which most waits lets go
of it, and reads on alone from where it stands. So memory is bounded however far streams drift apart, and no stream
waits for another.

A shared reader asks no handler. Whatever goes wrong in it, an error or a sample that a handler would be asked about,
ends it: each stream then reads on alone from where it stands, meets the same fault at the same place, and asks its own
handler. A shard that was replaced has no fault any more: the streams are told, and none reads on in another object.
"""

import copy
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from webdataset.core import settings
from webdataset.core.error_handlers import reraise_exception, with_location
from webdataset.core.errors import ShardChanged, SplitSample, StaleIndex
from webdataset.samples.address import Address
from webdataset.samples.grouping import Sample, Shard
from webdataset.samples.reading_rules import SampleListReader
from webdataset.samples.sample_reader import Position, Reading
from webdataset.storage.streams import stream_identity

if TYPE_CHECKING:
    from webdataset.samples.shard_extents import ExtentReader, TableFinder

ShardOpener: TypeAlias = Callable[[Iterable[Shard]], Iterator[Shard]]
"""Opens shards one after the other; an error is raised, and no handler is asked."""

SHARED_BY: Final = "shared_by"
"""Entry of a shard that is shared by sample: a range of the numbers of the streams that share it. Its n-th stream keeps
the samples n, n + step and so on."""


class Held:
    """How many bytes wait in all shared readers of a worker.

    Args:
        limit_bytes: how many may wait.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0


class SharedReaders:
    """The shared readers of one worker. Used by one thread at a time.

    Args:
        streams: numbers of the streams that the worker reads.
        limit_bytes: how many bytes may wait for streams that are asked later; None is ``WDS_SHARED_BYTES``; 0 shares
            nothing.

    Attributes:
        known_indexes: of each folder at a store, which kind of index files lies there.
        known_columns: what is known of columns files beside shards, for the readers that select samples.
    """

    def __init__(self, streams: Iterable[int], limit_bytes: int | None = None) -> None:
        self.held = Held(settings.SHARED_BYTES.get() if limit_bytes is None else limit_bytes)
        self.known_indexes: dict[str, int] = {}
        self.known_columns: object | None = None
        self._streams = set(streams)
        self._readers: dict[tuple[int, int, str, range], SharedReader] = {}

    def claim(  # noqa: PLR0917  one value each
        self,
        shard: Shard,
        reading: object,
        stream: int,
        epoch: int,
        open_shards: ShardOpener,
        start: Address | None = None,
        find_table: "TableFinder | None" = None,
    ) -> "StreamReader | None":
        """Return what a stream reads of a shard, or None where it has to read alone.

        Args:
            shard: a dict with ``url``, ``share`` and ``shared_by``, not opened.
            reading: how to read; the same object for all streams that share a reader.
            stream: number of the stream.
            epoch: of the pass.
            open_shards: opens the shard.
            start: address of the sample to start at; None is the stream's first in the shard.
            find_table: finds where the samples of the shard stand, so that those of other workers are not read.
        """
        shared_by: range = shard[SHARED_BY]
        url = shard["url"]
        if self.held.limit_bytes <= 0 or type(reading) is not Reading or not isinstance(url, str):
            return None
        key = (id(reading), epoch, url, shared_by)
        reader = self._readers.get(key)
        if reader is None:
            own = [number for number in shared_by if number in self._streams]
            if len(own) == len(shared_by):  # all samples are read here
                find_table = None
            if stream not in own or (len(own) == 1 and find_table is None):  # a single stream has none to share with
                return None
            self._forget_before(epoch - 1)
            self._readers[key] = reader = SharedReader(self, shard, reading, own, open_shards, find_table)
        return reader.claim(stream, shard, start)

    def _forget_before(self, epoch: int) -> None:
        """Forget readers of epochs that are long over."""
        kept = [(key, one) for key, one in self._readers.items() if key[1] >= epoch or not (one.released or one.failed)]
        self._readers = dict(kept)

    def leave(self, stream: int) -> None:
        """Hand out nothing to a stream any more: it has ended."""
        self._streams.discard(stream)
        for reader in list(self._readers.values()):
            reader.leave(stream)

    def make_room(self, asking: "StreamReader") -> None:
        """Let streams go that most waits for, until what waits is within the limit."""
        while self.held.bytes > self.held.limit_bytes:
            parts = (part for reader in self._readers.values() for part in reader.parts.values() if part is not asking)
            most = max(parts, key=lambda part: part.held_bytes, default=None)
            if most is None or not most.held_bytes:
                return
            most.let_go()

    def close(self) -> None:
        """Close all readers."""
        for reader in self._readers.values():
            reader.release()
        self._readers.clear()


class SharedReader:
    """One shard that is scanned once for several streams.

    Args:
        owner: the shared readers of the worker.
        shard: of the stream that came first.
        reading: how to read.
        streams: numbers of the streams to hand samples out to.
        open_shards: opens the shard.
        find_table: finds where its samples stand; None: all of it is read.

    Attributes:
        stale: says that the shard is not as its index says, or was replaced while it was read, which a stream that
            reads alone would not notice.
        split: a part of a sample ended this reader, which only a reader of what comes before notices.
    """

    def __init__(  # noqa: PLR0917  one value each
        self,
        owner: SharedReaders,
        shard: Shard,
        reading: Reading,
        streams: list[int],
        open_shards: ShardOpener,
        find_table: "TableFinder | None" = None,
    ) -> None:
        self._owner = weakref.ref(owner)  # in no cycle: what is open is closed at once when the owner goes
        self.held = owner.held
        self.shard = {name: value for name, value in shard.items() if name not in ("share", SHARED_BY)}
        self.reading = reading
        self.step: int = shard["share"][1]
        self.open_shards = open_shards
        self.stale: StaleIndex | ShardChanged | None = None
        self.split = False
        self._find_table = find_table
        self.reader: SampleListReader | None = None
        self.over = False  # nothing more is handed out: the shard has ended
        self.failed = False  # or something went wrong
        self.released = False
        self._opened: Iterator[Shard] | None = None
        self._lists: Iterator[tuple[list[Sample], list[int]]] = iter(())
        self._ordinal = 0  # of the next sample
        self._offset = 0  # of the first header of the last sample that was read
        self.start_offset = 0  # of the first sample that was read
        shared_by: range = shard[SHARED_BY]
        self.parts = {stream: StreamReader(self, shared_by.index(stream)) for stream in streams}

    def claim(self, stream: int, shard: Shard, start: Address | None) -> "StreamReader | None":
        """Return what one stream reads; None where that was claimed, let go, or differs from what is read here."""
        part = self.parts.get(stream)
        alike = _stamps(shard) == _stamps(self.shard)  # what goes into every sample
        # a stream that comes after a shard was replaced is told, too
        failed = self.failed and not isinstance(self.stale, ShardChanged)
        if part is None or part.claimed or part.alone or failed or not alike:
            return None
        if self.reader is None and not self._open(part, shard, start):
            return None
        part.begin(start, rising=bool(shard.get("rising", True)))
        return part

    def _open(self, part: "StreamReader", first: Shard, start: Address | None) -> bool:
        """Open the shard where the stream that came first starts; tell whether that could be done."""
        rising = bool(first.get("rising", True))
        try:
            self.reader = self._open_extents(part, rising, start)
            if self.reader is None and len(self.parts) > 1:
                self.reader = self._open_whole(self.reading, start, rising=rising)
            if self.reader is not None:
                self._lists = self.reader.lists()
        except Exception:  # noqa: BLE001  the streams open it themselves, and their handlers are asked
            self.reader = None
        if self.reader is None:
            self._fail()
        if start is not None:
            self._ordinal = part.first + start.ordinal * self.step
            self._offset = self.start_offset = start.offset
            for each in self.parts.values():
                each.skip_to(self._ordinal)
        return self.reader is not None

    def _open_extents(self, part: "StreamReader", rising: bool, start: Address | None) -> "ExtentReader | None":  # noqa: FBT001  not public
        """Return a reader of these streams' samples alone; None where all of the shard is to be read."""
        if self._find_table is None:
            return None
        from webdataset.samples.shard_extents import ExtentReader  # noqa: PLC0415  most shards are of one worker

        first = 0 if start is None else part.first + start.ordinal * self.step
        kept = [each.first for each in self.parts.values()]
        shard = {**self.shard, "rising": rising}
        return ExtentReader.open(shard, self.reading, self._find_table, kept, self.step, first, start, self._open_whole)

    def _open_whole(self, reading: Reading, start: Address | None, *, rising: bool = True) -> SampleListReader:
        """Return a reader of all samples, from one on."""
        self._opened = self.open_shards([self.shard])
        shard = next(self._opened)
        shard["rising"] = rising
        return replace(reading, handler=reraise_exception).reader(shard, start)

    def hand_out(self, asking: "StreamReader") -> None:
        """Read the next list of samples, and hand it out to all streams.

        Args:
            asking: the stream for which it is read.
        """
        try:
            samples, offsets = next(self._lists)
        except StopIteration:
            self.over = True
            self._close_reader()
            return
        except (StaleIndex, ShardChanged) as error:
            self.stale = error
            self._fail()
            return
        except Exception as error:  # noqa: BLE001  the streams meet it themselves, and ask their handlers
            self.split = isinstance(error, SplitSample)
            self._fail()
            return
        except BaseException:  # an interrupt
            self._fail()
            raise
        step, start = self.step, self._ordinal
        each = max(0, offsets[-1] - self._offset) // len(samples)
        self._ordinal += len(samples)
        self._offset = offsets[-1]
        rising = bool(getattr(self.reader, "rising", True))
        for part in self.parts.values():
            first = (part.first - start) % step
            if first < len(samples) and not part.alone:
                part.take(samples[first::step], offsets[first::step], each, rising=rising)
        owner = self._owner() if self.held.bytes > self.held.limit_bytes else None
        if owner is not None:
            owner.make_room(asking)

    def leave(self, stream: int) -> None:
        """Hand out nothing more to a stream that has not come for its samples."""
        part = self.parts.get(stream)
        if part is not None and not part.claimed:
            part.let_go()
            self.close_if_left()

    def close_if_left(self) -> None:
        """Close the shard where no stream that has come for its samples wants more of them.

        Streams that come later read alone. What waits for them is kept where the shard was read to its end.
        """
        if all(part.closed or (not part.claimed and (part.alone or not self.over)) for part in self.parts.values()):
            self.release()

    def release(self) -> None:
        """Close the shard, and hand out nothing more."""
        if self.released:
            return
        self.released = True
        for part in self.parts.values():
            part.drop_queue()
        self._fail()

    def _fail(self) -> None:
        self.failed = not self.over
        self._close_reader()

    def _close_reader(self) -> None:
        for iterator in (self._lists, self._opened):
            if isinstance(iterator, Generator):
                iterator.close()
        if self.reader is not None:
            self.reader.close()


def _find_size(reader: object) -> int | None:
    """Return how many bytes the object has that a reader reads, where it knows."""
    found = getattr(reader, "file_identity", None) or stream_identity(getattr(reader, "stream", None))
    return found[0]


def _stamps(shard: Shard) -> Shard:
    return {name: value for name, value in shard.items() if name.startswith("__")}


class StreamReader:
    """What one stream reads of a shared shard; a reader of samples as any other.

    Args:
        shared: the shared reader.
        first: number of the stream's first sample in the shard.

    Attributes:
        reading: how the stream reads where it reads alone.
        claimed: the stream has come for its samples.
        alone: it reads alone, or will.
        closed: it wants no more.
        held_bytes: what waits for it.
    """

    def __init__(self, shared: SharedReader, first: int) -> None:
        self.shared = shared
        self.first = first
        self.reading = shared.reading
        self.claimed = self.alone = self.closed = False
        self.held_bytes = 0
        self._queue: deque[tuple[list[Sample], list[int], int, bool]] = deque()
        self._queued_from = 0  # number, among the stream's, of the first sample that is or will be in the queue
        self._next = 0  # number of the sample to be given next
        self._start: Address | None = None  # of the sample to begin with
        self._offset = 0  # of the sample given last: where the stream reads alone, it reads on from there
        self._key: object = None  # of that sample
        self._given = False  # one was
        self._rising = True
        self._own: Any = None
        self._own_shards: Iterator[Shard] | None = None
        self._position: Position | None = None  # samples go there at once, where little waits

    def skip_to(self, ordinal: int) -> None:
        """Take note that the shared reader begins with a sample in the middle of the shard."""
        self._queued_from = max(0, -(-(ordinal - self.first) // self.shared.step))

    def begin(self, start: Address | None, *, rising: bool) -> None:
        """Begin to give samples, with the one at ``start``."""
        self.claimed = True
        self._rising = rising
        if start is not None:
            self._start, self._next = start, start.ordinal

    def take(self, samples: list[Sample], offsets: list[int], each: int, *, rising: bool) -> None:
        """Take samples that wait until the stream is asked.

        Args:
            samples: of this stream.
            offsets: of their first headers.
            each: mean bytes of a sample.
            rising: whether the keys of the shard rise up to here.
        """
        position = self._position if rising is self._rising and not self._queue else None
        if position is not None and len(position.pending) <= len(samples):
            self._queued_from += len(samples)
            self._note(samples, offsets)
            position.extend(samples, offsets)
            return
        size = each * len(samples)
        self._queue.append((samples, offsets, size, rising))
        self.held_bytes += size
        self.shared.held.bytes += size

    def drop_queue(self) -> None:
        """Forget what waits."""
        self.shared.held.bytes -= self.held_bytes
        self.held_bytes = 0
        self._queue.clear()

    def let_go(self) -> None:
        """Forget what waits; the stream reads on alone from where it stands."""
        self.alone = True
        self.drop_queue()

    def lists(self) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield lists of the stream's samples, and where each starts."""
        shared, queue = self.shared, self._queue
        if self._next < self._queued_from and not self.alone:
            # the shared reader began further on
            yield from self._read_alone(shared.start_offset)
            self._check_caught_up()
        while not self.alone:
            while queue:
                samples, offsets, size, self._rising = queue.popleft()
                self.held_bytes -= size
                shared.held.bytes -= size
                passed = min(self._next - self._queued_from, len(samples))
                self._queued_from += len(samples)
                if passed:
                    del samples[:passed], offsets[:passed]
                if samples:
                    self._note(samples, offsets)
                    yield samples, offsets
                    # what is read from now on is given here
                    self._position = None
                del samples
            if self.alone or shared.failed:
                break
            if shared.over:
                return
            shared.hand_out(self)
        if shared.stale is not None:
            raise copy.copy(shared.stale)
        self.alone = True
        yield from self._read_alone()

    def refill(self, position: Position) -> bool:
        """Add further samples to the present list of a position, where ``lists`` would give nothing but these.

        So a stream takes its next samples without being run. Samples that are handed out later go there at once.

        Args:
            position: which ``lists`` of this reader feeds; all samples of its present list have been taken.

        Returns:
            Whether there are any: else ``lists`` is to be asked, which may end, fail or read alone.
        """
        shared, queue = self.shared, self._queue
        if self.reading.addresses or self._own is not None:
            return False
        while not (self.alone or shared.failed):
            self._position = position
            if queue:
                samples, offsets, size, self._rising = queue.popleft()
                self.held_bytes -= size
                shared.held.bytes -= size
                self._queued_from += len(samples)
                self._note(samples, offsets)
                position.extend(samples, offsets)
            elif not shared.over:
                shared.hand_out(self)
            if position.pending:
                return True
            if shared.over:
                return False
        return False

    def _note(self, samples: list[Sample], offsets: list[int]) -> None:
        """Take note of samples that are given."""
        self._next += len(samples)
        self._offset = offsets[-1]
        last = samples[-1]
        self._key = last.get("__key__") if isinstance(last, dict) else None
        self._given = True

    def _read_alone(self, stop: int | None = None) -> Iterator[tuple[list[Sample], list[int]]]:
        """Read on alone, up to the sample at an offset, be it of another stream, or to the end.

        All that stands before that sample is read, so that the stream's own handler is asked about it.
        """
        shared = self.shared
        start = Address(0, self._next - 1, self._offset) if self._given else self._start
        passed = 0  # samples before the one given last
        if self._given and shared.split:
            start = self._start
            passed = self._next - 1 - (0 if start is None else start.ordinal)
        self._own_shards = shared.open_shards([shared.shard])
        shard = next(self._own_shards)
        shard["rising"] = self._rising
        self._own = self.reading.reader(shard, start)
        before, now = (_find_size(reader) for reader in (shared.reader, self._own))
        if before is not None and now is not None and before != now:
            raise ShardChanged(f"it had {before} bytes, and has {now}: another shard stands there now, read it again")
        first = self.first if start is None else 0
        again = self._given  # the first sample that is read was given before
        for everything, places in self._own.lists():
            samples, offsets = everything[first :: shared.step], places[first :: shared.step]
            first = (first - len(everything)) % shared.step
            del everything
            if passed:
                step = min(passed, len(samples))
                passed -= step
                del samples[:step], offsets[:step]
            if again and samples:
                again = False
                if samples[0].get("__key__") != self._key:
                    raise ShardChanged("another sample stands where one was read before: read the shard again")
                del samples[0], offsets[0]
            if samples:
                self._note(samples, offsets)
                yield samples, offsets
            del samples
            if stop is not None and places[-1] >= stop:
                return  # what was read beyond is left out of what waits

    def _check_caught_up(self) -> None:
        """Continue with what waits, after the samples before it."""
        if self._next < self._queued_from:
            raise ShardChanged("the shard ends before a sample that was read before: read it again")
        self._close_own()
        self._own = None

    @property
    def stream(self) -> Any:
        """The open shard, which tells the object that is read."""
        return getattr(self._own or self.shared.reader, "stream", None)

    @property
    def file_identity(self) -> tuple[int | None, str | None] | None:
        """Which object is read, where its stream does not tell once it is closed."""
        return getattr(self._own or self.shared.reader, "file_identity", None)

    @property
    def rising(self) -> bool:
        """Whether the keys of the shard rise, up to the samples given last."""
        return self._rising if self._own is None else bool(self._own.rising)

    def explain_error(self, error: Exception) -> Exception:
        """Say where an error struck."""
        if self._own is not None:
            explained: Exception = self._own.explain_error(error)
            return explained
        return with_location(error, url=str(self.shared.shard["url"]), stage="tarfile_samples")

    def close(self) -> None:
        """Give up the rest."""
        self.closed = self.alone = True
        self.drop_queue()
        self._close_own()
        self.shared.close_if_left()

    def _close_own(self) -> None:
        if self._own is not None:
            self._own.close()
        if isinstance(self._own_shards, Generator):
            self._own_shards.close()
