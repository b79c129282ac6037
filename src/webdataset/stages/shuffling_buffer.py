"""Shuffling through a buffer.

Theory. The buffer grows by two items for each one given until it holds ``bufsize``; from then on each item that comes
in takes the place of a random one, which goes out; at the end the buffer is emptied in random order. Each output is
drawn uniformly from the buffer with the newest item in it. The draws, and so the order, are those of upstream for the
same generator. Without one, they are ``Draws``, whose state is one number. Between two outputs the buffer is complete,
so its addresses and the generator's state are all there is to remember.
"""

import copy
from collections.abc import Iterator
from typing import Any

from webdataset.ground.seeds import Draws
from webdataset.ground.topology import Stream

from . import randomness
from .base import Fetch, Json, Memory, Passing, Run, delivered, paired
from .journal import Journal
from .packing import packed, unpacked

_NONE = object()


def stirred(source: Iterator[Any], buffer: list[Any], bufsize: int, initial: int, rng: Any) -> Iterator[Any]:
    """Yield the items of ``source`` in random order, keeping what waits in ``buffer``.

    Args:
        source: the items.
        buffer: what waits; complete between two outputs. May hold items from an earlier run.
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        rng: ``random.Random`` or anything with ``randint``.
    """
    if isinstance(rng, Draws):
        yield from _drawn(source, buffer, bufsize, initial, rng)
        return
    last = bufsize - 1
    yield from _grown(source, buffer, bufsize, min(initial, bufsize), rng)
    draw, width = randomness.bits(rng, bufsize), bufsize.bit_length()
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


def _drawn(source: Iterator[Any], buffer: list[Any], bufsize: int, initial: int, draws: Draws) -> Iterator[Any]:
    """Yield what ``stirred`` does, with numbers from ``draws``."""
    last = bufsize - 1
    yield from _grown(source, buffer, bufsize, min(initial, bufsize), draws)
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


def _grown(source: Iterator[Any], buffer: list[Any], bufsize: int, initial: int, rng: Any) -> Iterator[Any]:
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


def pick(buf: list[Any], rng: Any) -> Any:
    """Take a random item out of a list; the last one takes its place.

    Args:
        buf: at least one item; changed in place.
        rng: ``random.Random`` or anything with ``randint``.
    """
    place = randomness.below(rng, len(buf))
    picked = buf[place]
    newest = buf.pop()
    if place < len(buf):
        buf[place] = newest
    return picked


class Buffer(Memory):
    """What a shuffle remembers: its buffer and its generator.

    Args:
        rng: the generator.
    """

    def __init__(self, rng: Any) -> None:
        self.rng = rng
        self.waiting: list[Any] = []  # items; in a tracked run, (address, item)

    def snapshot(self) -> Json:
        """Return the addresses of the buffer and the state of the generator."""
        return {"waiting": packed([address for address, _ in self.waiting]), "random": randomness.written(self.rng)}

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Fetch the buffer's items again and set the generator."""
        addresses = unpacked(state["waiting"])
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)
        randomness.reread(self.rng, state["random"])


class FollowedBuffer(Buffer):
    """A buffer whose generator is the run's own, so that it can be followed by addresses alone.

    Args:
        rng: the generator.
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        sorts: put the buffer into the order of addresses now and then; see :mod:`webdataset.stages.journal`.
    """

    plain = True

    def __init__(self, rng: Draws, bufsize: int, initial: int, *, sorts: bool) -> None:
        super().__init__(rng)
        self.bufsize = bufsize
        self.initial = initial
        self.journal = Journal(bufsize, self.waiting, lambda: rng.position, sorts=sorts)

    def snapshot(self) -> Json:
        """Return an earlier buffer, and what came in since."""
        return self.journal.written()

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Follow the buffer to where it was, and fetch its items again."""
        randomness.reread(self.rng, state["random"])
        addresses = self.journal.reread(
            state, lambda entered, buffer: stirred(entered, buffer, self.bufsize, self.initial, self.rng)
        )
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)


class Shuffle(Passing):
    """A shuffle through a buffer.

    Args:
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        rng: a generator, or None.
        seed: a seed, or None.

    Flow: random order within the buffer; holds ``bufsize`` items; resumes exactly.
    """

    name = "shuffle"

    def __init__(self, bufsize: int = 1000, initial: int = 100, rng: Any = None, seed: Any = None) -> None:
        self.bufsize = bufsize
        self.initial = initial
        self.rng = rng
        self.seed = seed

    def begin(self, run: Run) -> Buffer:
        """Return an empty buffer and the generator of this run."""
        return self._empty(randomness.chosen(run, self.rng, self.seed), run)

    def _empty(self, rng: Any, run: Run) -> Buffer:
        if not isinstance(rng, Draws):
            return Buffer(rng)
        return FollowedBuffer(rng, max(self.bufsize, 1), self.initial, sorts=run.stream is not None)

    def divided(self, stream: Stream) -> "Shuffle":
        """Return the shuffle of one stream: the buffers of all streams together are as large as this one."""
        part = copy.copy(self)
        part.bufsize, part.initial = -(-self.bufsize // stream.of), -(-self.initial // stream.of)
        return part

    def flow(self, upstream: Iterator[Any], memory: Buffer) -> Iterator[Any]:
        """Yield the items in random order."""
        origin, waiting = memory.origin, memory.waiting
        bufsize = max(self.bufsize, 1)
        if origin is None:
            waiting[:] = [item for _, item in waiting]  # restored into a run that keeps no addresses
            kind = _drawn if isinstance(memory.rng, Draws) else stirred
            return kind(upstream, waiting, bufsize, self.initial, memory.rng)
        if not isinstance(memory, FollowedBuffer):
            return delivered(stirred(paired(upstream, origin), waiting, bufsize, self.initial, memory.rng), memory)
        pairs = memory.journal.noted(upstream, origin)
        return memory.journal.delivered(stirred(pairs, waiting, bufsize, self.initial, memory.rng), memory)

    def __repr__(self) -> str:
        named = [
            f"{name}={value!r}" for name, value in self.__dict__.items() if name != "bufsize" and value is not None
        ]
        return f"{self.name}({', '.join([repr(self.bufsize), *named])})"
