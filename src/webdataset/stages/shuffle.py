"""Shuffles samples through a buffer that is bounded by a number of samples or by bytes.

Theory. The buffer grows by two items for each one given until it holds ``bufsize``; from then on each item that
arrives replaces a random one, which leaves; at the end the buffer is emptied in random order. Each output is drawn
uniformly from the buffer with the newest item in it. The draws, and so the order, are those of upstream for the same
generator. Without one, they come from a :class:`~webdataset.core.seeds.CounterRng`, whose state is one number.
Between two outputs the buffer is complete, so its addresses and the generator's state are the whole state.

Theory of a bound in bytes. Samples arrive one at a time. While the buffer grows, every second arrival lets a random
one leave (as soon as ``initial`` wait); when the newest makes the buffer too long or too heavy, random ones leave
until it fits again. So besides the newest sample the buffer holds less than ``bufsize`` samples and at most
``max_bytes`` bytes. A sample that is heavier than the bound alone bypasses the buffer. Weights count payloads in any
state of decoding, not Python's own overhead; weighing never copies or decodes anything.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from operator import index
from typing import Any

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import Handler
from webdataset.core.errors import FlowError, UsageError
from webdataset.core.json_types import Address, JsonValue, SplitJson, as_object, as_text, join_snapshot
from webdataset.core.seeds import CounterRng, Seed
from webdataset.core.upstream_utils import PipelineStage
from webdataset.stages import randomness
from webdataset.stages.address_codec import decode_addresses, encode_addresses
from webdataset.stages.argument_checks import check_random_source, read_count
from webdataset.stages.base import Fetch, Item, PassThroughStage, Run, StageState, deliver_pairs, pair_addresses
from webdataset.stages.randomness import Rng
from webdataset.stages.shuffle_journal import ShuffleJournal, WeighedShuffleJournal

_NONE: Any = object()


def shuffle_buffer(source: Iterator[Item], buffer: list[Item], bufsize: int, initial: int, rng: Rng) -> Iterator[Item]:
    """Yield the items of ``source`` in random order, keeping what waits in ``buffer``.

    Args:
        source: the items.
        buffer: what waits; complete between two outputs. May hold items from an earlier run.
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        rng: ``random.Random`` or anything with ``randint``.
    """
    if isinstance(rng, CounterRng):
        yield from _shuffle_with_words(source, buffer, bufsize, initial, rng)
        return
    last = bufsize - 1
    yield from _grow_buffer(source, buffer, bufsize, min(initial, bufsize), rng)
    draw, width = randomness.make_bit_source(rng, bufsize), bufsize.bit_length()
    for newest in source:
        place = draw(width)
        while place > last:
            place = draw(width)
        if place == last:
            yield newest
            continue
        picked = buffer[place]
        buffer[place] = newest
        yield picked
    while buffer:
        yield pick(buffer, rng)


def _shuffle_with_words(
    source: Iterator[Item], buffer: list[Item], bufsize: int, initial: int, draws: CounterRng
) -> Iterator[Item]:
    """Yield what ``shuffle_buffer`` does, with numbers from ``draws``."""
    last = bufsize - 1
    yield from _grow_buffer(source, buffer, bufsize, min(initial, bufsize), draws)
    words = draws.words
    for newest in source:
        if not words:
            draws.refill()
        place = words.pop() * bufsize >> 32
        if place == last:
            yield newest
            continue
        picked = buffer[place]
        buffer[place] = newest
        yield picked
    while buffer:
        yield pick(buffer, draws)


def _grow_buffer(source: Iterator[Item], buffer: list[Item], bufsize: int, initial: int, rng: Rng) -> Iterator[Item]:
    """Fill the buffer up to one item less than ``bufsize``: two in, and one out as soon as ``initial`` are there."""
    while len(buffer) < bufsize - 1:
        newest = next(source, _NONE)
        if newest is _NONE:
            return
        buffer.append(newest)
        if len(buffer) < bufsize:
            newest = next(source, _NONE)
            if newest is not _NONE:
                buffer.append(newest)
        if len(buffer) >= initial:
            yield pick(buffer, rng)


def pick(buf: list[Item], rng: Rng) -> Item:
    """Take a random item out of a list; the last one takes its place.

    Args:
        buf: at least one item; changed in place.
        rng: ``random.Random`` or anything with ``randint``.
    """
    place = randomness.randbelow(rng, len(buf))
    picked = buf[place]
    newest = buf.pop()
    if place < len(buf):
        buf[place] = newest
    return picked


class ShuffleState(StageState):
    """What a shuffle remembers: its buffer and its generator."""

    def __init__(self, rng: Rng | None) -> None:
        self.rng = rng
        self.waiting: list[Any] = []  # items; in a tracked run, (address, item)

    def snapshot(self) -> JsonValue:
        """Return the addresses of the buffer and the state of the generator."""
        return {
            "waiting": encode_addresses([address for address, _ in self.waiting]),
            "random": randomness.rng_state(self.rng),
        }

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Fetch the buffer's items again and set the generator."""
        parts = as_object(state)
        addresses = decode_addresses(as_text(parts["waiting"]))
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)
        randomness.restore_rng(self.rng, parts["random"])


class JournaledShuffleState(ShuffleState):
    """A buffer whose generator is the run's own, so that it can be followed by addresses alone.

    Args:
        rng: the generator.
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        sorts: put the buffer into the order of addresses now and then; see :mod:`webdataset.stages.shuffle_journal`.
    """

    plain = True
    rng: CounterRng

    def __init__(self, rng: CounterRng, bufsize: int, initial: int, *, sorts: bool) -> None:
        super().__init__(rng)
        self.bufsize = bufsize
        self.initial = initial
        self.journal = ShuffleJournal(bufsize, self.waiting, lambda: rng.position, sorts=sorts)

    def snapshot(self) -> JsonValue:
        """Return an earlier buffer, and what came in since."""
        return join_snapshot(self.split_snapshot())

    def split_snapshot(self) -> SplitJson:
        """Return the same in two parts: what the last chunk of addresses holds, and what came before."""
        return self.journal.split_snapshot()

    def writer(self) -> Callable[[], SplitJson]:
        """Return ``split_snapshot``, a call less."""
        return self.journal.split_snapshot

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Follow the buffer to where it was, and fetch its items again."""
        parts = as_object(state)
        randomness.restore_rng(self.rng, parts["random"])
        addresses = self.journal.reread(
            parts, lambda entered, buffer: shuffle_buffer(entered, buffer, self.bufsize, self.initial, self.rng)
        )
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)


class Shuffle(PassThroughStage):
    """A shuffle through a buffer.

    Args:
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        rng: a generator, or None.
        seed: a seed, or None.

    Flow: random order within the buffer; holds ``bufsize`` items; resumes exactly.
    """

    state_name = "Shuffle"
    name = "shuffle"

    @property
    def reorders(self) -> bool:
        """Whether items change their places; see :mod:`webdataset.flow.whole_shards`."""
        return self.bufsize > 1

    def __init__(self, bufsize: float = 1000, initial: float = 100, rng: Rng | None = None, seed: Seed = None) -> None:
        self.bufsize = bufsize if isinstance(bufsize, int) else read_count(bufsize, "bufsize")
        self.initial = initial if isinstance(initial, int) else read_count(initial, "initial")
        if rng is not None or seed is not None:
            seed = check_random_source(rng, seed)
        self.rng = rng
        self.seed = seed

    def begin(self, run: Run) -> ShuffleState:
        """Return an empty buffer and the generator of this run."""
        if self.bufsize < 2 and self.rng is None and not run.tracked:
            return ShuffleState(None)  # the order is left alone, so nothing is drawn
        return self._empty(randomness.select_rng(run, self.rng, self.seed), run)

    def _empty(self, rng: Rng, run: Run) -> ShuffleState:
        # a run that keeps no addresses is never saved, and needs no journal
        if not isinstance(rng, CounterRng) or not run.tracked:
            return ShuffleState(rng)
        return JournaledShuffleState(rng, max(self.bufsize, 1), self.initial, sorts=run.stream is not None)

    def for_stream(self, stream: StreamNumber) -> "Shuffle":
        """Return the shuffle of one stream: the buffers of all streams together are as large as this one."""
        part = copy.copy(self)
        part.bufsize, part.initial = -(-self.bufsize // stream.of), -(-self.initial // stream.of)
        return part

    def flow(self, upstream: Iterator[Item], state: ShuffleState) -> Iterator[Item]:
        """Yield the items in random order."""
        origin, waiting = state.origin, state.waiting
        bufsize = max(self.bufsize, 1)
        if state.rng is None:
            return upstream
        if origin is None:
            waiting[:] = [item for _, item in waiting]  # restored into a run that keeps no addresses
            if isinstance(state.rng, CounterRng):
                return _shuffle_with_words(upstream, waiting, bufsize, self.initial, state.rng)
            return shuffle_buffer(upstream, waiting, bufsize, self.initial, state.rng)
        if not isinstance(state, JournaledShuffleState):
            return deliver_pairs(
                shuffle_buffer(pair_addresses(upstream, origin), waiting, bufsize, self.initial, state.rng), state
            )
        pairs = state.journal.note_addresses(upstream, origin)
        return state.journal.deliver(shuffle_buffer(pairs, waiting, bufsize, self.initial, state.rng), state)

    def __repr__(self) -> str:
        # a copy, as another thread may add attributes meanwhile
        attributes = dict(self.__dict__)
        named = [f"{name}={value!r}" for name, value in attributes.items() if name != "bufsize" and value is not None]
        return f"{self.name}({', '.join([repr(self.bufsize), *named])})"


_FLAT = (int, float, bool, type(None))
_UNKNOWN = 64  # the same on every Python: orders depend on it


def sample_size_bytes(value: Any) -> int:
    """Return the bytes that a sample or a value holds.

    Args:
        value: bytes, text (one byte a character), arrays and tensors (``nbytes``), Pillow images (pixels times bands),
            and dictionaries, lists and tuples of these; not ``__key__``, ``__url__`` and
            their like. Of dataclasses, their fields; anything else counts 64.
    """
    kind = value.__class__
    if kind is bytes or kind is str:
        return len(value)
    if kind is dict:
        total = 0
        for name, part in value.items():
            if part.__class__ is bytes:
                total += len(part)
            # as bytes, whatever the field is called
            elif part.__class__ is memoryview:
                total += part.nbytes
            elif name.__class__ is not str or name[:2] != "__":  # where a shard lies must not decide an order
                total += sample_size_bytes(part)
        return total
    if isinstance(value, _FLAT):
        return 8
    return _other_size(value)


def _other_size(value: object) -> int:
    if isinstance(value, bytearray | memoryview):
        return memoryview(value).nbytes
    if isinstance(value, dict):
        return sample_size_bytes(dict(value))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(sample_size_bytes(part) for part in value)
    counted = getattr(value, "nbytes", None)
    return counted if isinstance(counted, int) else _object_size(value)


def _object_size(value: Any) -> int:
    bands = getattr(value, "getbands", None)
    if bands is not None:
        width, height = value.size
        return int(width) * int(height) * len(bands())
    if is_dataclass(value) and not isinstance(value, type):
        return sum(sample_size_bytes(getattr(value, field.name)) for field in fields(value))
    return _UNKNOWN


def _pair_weight(pair: tuple[Address, object]) -> int:
    return sample_size_bytes(pair[1])


class WeighedShuffleState(ShuffleState):
    """What a shuffle with a bound in bytes remembers: buffer, weights, generator, and whether a sample stands alone."""

    rng: Rng

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.weights: list[int] = []
        self.total = 0
        self.odd = False  # an odd number of samples has come in
        self.codes: list[int] | None = None  # what is to be told of what went out; see journal_weighed

    def snapshot(self) -> JsonValue:
        """Return the addresses of the buffer, the generator's state, and whether an odd number came in."""
        return {**as_object(super().snapshot()), "odd": self.odd}

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Fetch the buffer's samples again."""
        super().restore(state, fetch)
        self.odd = bool(as_object(state)["odd"])

    def insert(self, entry: object, weight: int) -> None:
        """Take one in."""
        self.waiting.append(entry)
        self.weights.append(weight)
        self.total += weight
        if self.codes is not None:
            self.codes.append(0)

    def note_bypass(self) -> None:
        """Take note of one that passes by the buffer."""
        if self.codes is not None:
            self.codes.append(1)

    def pick(self) -> Any:
        """Take a random one out; the last one takes its place."""
        if self.codes is not None:
            self.codes[-1] += 2
        place = randomness.randbelow(self.rng, len(self.waiting))
        self.waiting[place], self.waiting[-1] = self.waiting[-1], self.waiting[place]
        self.weights[place], self.weights[-1] = self.weights[-1], self.weights[place]
        self.total -= self.weights.pop()
        return self.waiting.pop()


class JournaledWeighedState(WeighedShuffleState):
    """The same with the run's own generator, so that it can be followed by addresses alone."""

    plain = True

    def __init__(self, rng: CounterRng, bufsize: int) -> None:
        super().__init__(rng)
        self.journal = WeighedShuffleJournal(bufsize, self.waiting, lambda: rng.position)

    def snapshot(self) -> JsonValue:
        """Return an earlier buffer, what came in since, how many went out for each, and whether one stands alone."""
        return join_snapshot(self.split_snapshot())

    def split_snapshot(self) -> SplitJson:
        """Return the same in two parts: what the last chunk of addresses holds, and what came before."""
        changing, lasting = self.journal.split_snapshot()
        parts = {**as_object(changing), "odd": self.odd, "outs": self.journal.outs()}
        return [{name: parts[name] for name in sorted(parts)}, lasting]

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Follow the buffer to where it was, and fetch its samples again."""
        parts = as_object(state)
        randomness.restore_rng(self.rng, parts["random"])
        addresses = self.journal.follow(parts, lambda buffer: pick(buffer, self.rng))
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)
        self.odd = bool(as_object(state)["odd"])


class ShuffleBytes(Shuffle):
    """A shuffle through a buffer of bounded length and weight; see :func:`webdataset.stages.shuffle.shuffle`.

    Args:
        bufsize: largest number of samples that wait.
        initial: number of samples to gather before the first one is given.
        rng: a generator, or None.
        seed: a seed, or None.
        max_bytes: bytes that may wait, at least 1.

    Raises:
        UsageError: ``max_bytes`` below 1.

    Flow: random order within the buffer; holds ``bufsize`` samples and ``max_bytes`` bytes, and one sample more;
    resumes exactly.
    """

    state_name = "ShuffleBytes"

    def __init__(self, bufsize: float, initial: float, rng: Rng | None, seed: Seed, max_bytes: int) -> None:
        super().__init__(bufsize, initial, rng, seed)
        self.max_bytes = read_count(max_bytes, "max_bytes")
        if self.max_bytes < 1:
            raise UsageError(f"max_bytes={max_bytes!r}: a buffer needs room for at least one byte")

    def begin(self, run: Run) -> WeighedShuffleState:
        """Return an empty buffer and the generator of this run."""
        rng = randomness.select_rng(run, self.rng, self.seed)
        return (
            JournaledWeighedState(rng, max(self.bufsize, 1))
            if isinstance(rng, CounterRng)
            else WeighedShuffleState(rng)
        )

    def for_stream(self, stream: StreamNumber) -> "ShuffleBytes":
        """Return the shuffle of one stream: the buffers of all streams together are as large as this one."""
        return ShuffleBytes(
            -(-self.bufsize // stream.of),
            -(-self.initial // stream.of),
            self.rng,
            self.seed,
            -(-self.max_bytes // stream.of),
        )

    def flow(self, upstream: Iterator[Item], state: ShuffleState) -> Iterator[Item]:
        """Yield the samples in random order."""
        if not isinstance(state, WeighedShuffleState):
            raise FlowError(f"{self!r} does not run with the state of another stage", stage=repr(self))
        origin = state.origin
        state.weights[:] = [sample_size_bytes(item) for _, item in state.waiting]
        state.total = sum(state.weights)
        if origin is None:
            state.waiting[:] = [item for _, item in state.waiting]  # restored into a run that keeps no addresses
            return self._shuffle_pairs(upstream, state, sample_size_bytes)
        if not isinstance(state, JournaledWeighedState):
            return deliver_pairs(self._shuffle_pairs(pair_addresses(upstream, origin), state, _pair_weight), state)
        state.codes = state.journal.codes
        return state.journal.deliver(
            self._shuffle_pairs(state.journal.note_addresses(upstream, origin), state, _pair_weight), state
        )

    def _shuffle_pairs(
        self, source: Iterator[Any], state: WeighedShuffleState, weigh: Callable[[Any], int]
    ) -> Iterator[Any]:
        waiting, size, most = state.waiting, max(self.bufsize, 1), self.max_bytes
        initial = min(self.initial, size)
        while len(waiting) >= size or state.total > most:  # a restored run may stand here
            yield state.pick()
        for newest in source:
            weight = weigh(newest)
            if weight > most:
                state.note_bypass()
                yield newest
                continue
            state.insert(newest, weight)
            state.odd = not state.odd
            if len(waiting) < size and state.total <= most:
                if not state.odd and len(waiting) >= initial:
                    yield state.pick()
                continue
            while len(waiting) >= size or state.total > most:
                yield state.pick()
        while waiting:
            yield state.pick()


class DetShuffle(Shuffle, PipelineStage):
    """A shuffle whose order is a function of seed and epoch alone.

    Args:
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        seed: first number of the generators' seeds.
        epoch: the epoch before the first one: epoch ``n`` of a run draws from ``Random(seed + epoch + 1 + n)``.

    Attributes:
        epoch: number of the pass begun last; where it is set, the next pass has the number after it.

    Flow: random order within the buffer; holds ``bufsize`` items; resumes exactly.
    """

    state_name = "DetShuffle"
    name = "detshuffle"

    def __init__(self, bufsize: float = 1000, initial: float = 100, seed: int = 0, epoch: int = -1) -> None:
        super().__init__(bufsize, initial, None, seed)
        if not isinstance(self.seed, int | float):
            raise UsageError(f"seed={seed!r}: the seed of detshuffle is a number, to which that of the epoch is added")
        self.seed: int
        self.first = read_count(epoch if isinstance(epoch, float) else index(epoch), "epoch") + 1
        self._begun: int | None = None  # the pass begun last
        self._set: int | None = None  # since then

    @property
    def epoch(self) -> int:
        """Number of the pass begun last."""
        if self._set is not None:
            return self._set
        return self.first - 1 if self._begun is None else self._begun

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._set = epoch

    def begin(self, run: Run) -> ShuffleState:
        """Return an empty buffer and the generator of seed and epoch."""
        if self._set is not None:
            self.first, self._set = self._set + 1 - run.epoch, None
        self._begun = self.first + run.epoch
        return self._empty(randomness.select_rng(run, None, self.seed + self._begun), run)

    def run(self, src: Iterable[Item]) -> Iterator[Item]:
        """Shuffle ``src`` alone; each call is one epoch more, counted in ``epoch`` as upstream counts it."""
        self._set = self.epoch  # the pass after it is the next one
        return self.flow(iter(src), self.begin(Run()))

    def __call__(self, source: Iterable[Item]) -> Iterator[Item]:
        """Shuffle ``source`` alone, as ``run`` does."""
        return self.run(source)

    def __repr__(self) -> str:
        return f"{self.name}({self.bufsize!r}, initial={self.initial}, seed={self.seed}, epoch={self.epoch})"


detshuffle = DetShuffle


def shuffle(
    bufsize: float = 1000,
    initial: float = 100,
    rng: Rng | None = None,
    seed: Seed | Handler = None,
    handler: Handler | None = None,  # noqa: ARG001  accepted as upstream accepts it: nothing can fail here
    *,
    max_bytes: int | None = None,
) -> Shuffle:
    """Shuffle samples through a buffer.

    Args:
        bufsize: largest number of samples that wait; below 2 the order is left alone. A fraction is rounded up.
        initial: number of samples to gather before the first one is given; likewise.
        rng: a ``random.Random``; its state moves on from epoch to epoch.
        seed: seed of a generator that starts afresh in every epoch. With neither, the run's seed and epoch decide. A
            function in this place is the handler, which stands here in webdataset 0.2.86.
        handler: accepted for compatibility.
        max_bytes: bound on the bytes that wait (payloads of fields, arrays, images); samples go out earlier where it
            would be exceeded. None for no bound.

    Returns:
        A stage.

    Raises:
        UsageError: both ``rng`` and ``seed`` are given (when it runs); a size that is no number; ``max_bytes`` below
            1; an ``rng`` that draws nothing, or a ``seed`` that seeds none.

    Flow: random order within the buffer; holds ``bufsize`` items, and ``max_bytes`` bytes besides one sample; resumes
    exactly.
    """
    chosen = None if callable(seed) else seed
    if max_bytes is None:
        return Shuffle(bufsize, initial, rng, chosen)
    return ShuffleBytes(bufsize, initial, rng, chosen, max_bytes)


def _shuffle(  # noqa: PLR0917  called by position
    data: Iterable[Item],
    bufsize: float = 1000,
    initial: float = 100,
    rng: Rng | None = None,
    seed: Seed | Handler = None,
    handler: Handler | None = None,  # noqa: ARG001  accepted as upstream accepts it
) -> Iterator[Item]:
    """Yield the items of ``data`` in random order; the plain function of :func:`shuffle`.

    Args:
        data: the items.
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        rng: a ``random.Random``.
        seed: seed of a generator, instead of ``rng``; a function in this place is the handler, as in 0.2.86.
        handler: accepted for compatibility.
    """
    chosen = None if callable(seed) else seed
    size = max(read_count(bufsize, "bufsize"), 1)
    return shuffle_buffer(
        iter(data), [], size, read_count(initial, "initial"), randomness.select_rng(Run(), rng, chosen)
    )
