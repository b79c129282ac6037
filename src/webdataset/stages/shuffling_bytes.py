"""Shuffling through a buffer with a bound in bytes.

Theory. Samples come in one at a time. While the buffer grows, every second one is answered by a random one going out
(as soon as ``initial`` wait); when the newest makes it too long or too heavy, random ones go out until it fits again.
So besides the newest sample the buffer holds less than ``bufsize`` samples and at most ``max_bytes`` bytes. A sample
that is heavier than the bound by itself passes by the buffer.
"""

from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.seeds import Draws
from webdataset.ground.topology import Stream

from . import randomness
from .base import Fetch, Json, Run, delivered, paired
from .journal_weighed import WeighedJournal
from .shuffling_buffer import Buffer, Shuffle, pick
from .weighing import size_bytes

_PARTS = ("given", "odd", "outs", "phase", "random", "since", "tail", "waiting")


def _weight(pair: tuple[Any, Any]) -> int:
    return size_bytes(pair[1])


class Weighed(Buffer):
    """What a shuffle with a bound in bytes remembers: buffer, weights, generator, and whether a sample stands alone.

    Args:
        rng: the generator.
    """

    def __init__(self, rng: Any) -> None:
        super().__init__(rng)
        self.weights: list[int] = []
        self.total = 0
        self.odd = False  # an odd number of samples has come in
        self.codes: list[int] | None = None  # what is to be told of what went out; see journal_weighed

    def snapshot(self) -> Json:
        """Return the addresses of the buffer, the generator's state, and whether an odd number came in."""
        return {**super().snapshot(), "odd": self.odd}

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Fetch the buffer's samples again."""
        super().restore(state, fetch)
        self.odd = bool(state["odd"])

    def put(self, entry: Any, weight: int) -> None:
        """Take one in."""
        self.waiting.append(entry)
        self.weights.append(weight)
        self.total += weight
        if self.codes is not None:
            self.codes.append(0)

    def passed(self) -> None:
        """Take note of one that passes by the buffer."""
        if self.codes is not None:
            self.codes.append(1)

    def pick(self) -> Any:
        """Take a random one out; the last one takes its place."""
        if self.codes is not None:
            self.codes[-1] += 2
        place = randomness.below(self.rng, len(self.waiting))
        self.waiting[place], self.waiting[-1] = self.waiting[-1], self.waiting[place]
        self.weights[place], self.weights[-1] = self.weights[-1], self.weights[place]
        self.total -= self.weights.pop()
        return self.waiting.pop()


class FollowedWeighed(Weighed):
    """The same with the run's own generator, so that it can be followed by addresses alone.

    Args:
        rng: the generator.
        bufsize: largest number of samples that wait.
    """

    plain = True

    def __init__(self, rng: Draws, bufsize: int) -> None:
        super().__init__(rng)
        self.journal = WeighedJournal(bufsize, self.waiting, lambda: rng.position)

    def snapshot(self) -> Json:
        """Return an earlier buffer, what came in since, how many went out for each, and whether one stands alone."""
        parts = {**self.journal.written(), "odd": self.odd, "outs": self.journal.outs()}
        return {name: parts[name] for name in _PARTS}

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Follow the buffer to where it was, and fetch its samples again."""
        randomness.reread(self.rng, state["random"])
        addresses = self.journal.followed(state, lambda buffer: pick(buffer, self.rng))
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)
        self.odd = bool(state["odd"])


class ShuffleBytes(Shuffle):
    """A shuffle through a buffer of bounded length and weight; see :func:`webdataset.stages.shuffling.shuffle`.

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

    def __init__(self, bufsize: int, initial: int, rng: Any, seed: Any, max_bytes: int) -> None:
        super().__init__(bufsize, initial, rng, seed)
        if max_bytes < 1:
            raise UsageError(f"max_bytes={max_bytes!r}: a buffer needs room for at least one byte")
        self.max_bytes = int(max_bytes)

    def begin(self, run: Run) -> Weighed:
        """Return an empty buffer and the generator of this run."""
        rng = randomness.chosen(run, self.rng, self.seed)
        return FollowedWeighed(rng, max(self.bufsize, 1)) if isinstance(rng, Draws) else Weighed(rng)

    def divided(self, stream: Stream) -> "ShuffleBytes":
        """Return the shuffle of one stream: the buffers of all streams together are as large as this one."""
        return ShuffleBytes(
            -(-self.bufsize // stream.of),
            -(-self.initial // stream.of),
            self.rng,
            self.seed,
            -(-self.max_bytes // stream.of),
        )

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:
        """Yield the samples in random order."""
        origin = memory.origin
        memory.weights[:] = [size_bytes(item) for _, item in memory.waiting]
        memory.total = sum(memory.weights)
        if origin is None:
            memory.waiting[:] = [item for _, item in memory.waiting]  # restored into a run that keeps no addresses
            return self._stirred(upstream, memory, size_bytes)
        if not isinstance(memory, FollowedWeighed):
            return delivered(self._stirred(paired(upstream, origin), memory, _weight), memory)
        memory.codes = memory.journal.codes
        return memory.journal.delivered(self._stirred(memory.journal.noted(upstream, origin), memory, _weight), memory)

    def _stirred(self, source: Iterator[Any], memory: Weighed, weigh: Callable[[Any], int]) -> Iterator[Any]:
        waiting, size, most = memory.waiting, max(self.bufsize, 1), self.max_bytes
        initial = min(self.initial, size)
        while len(waiting) >= size or memory.total > most:  # a restored run may stand here
            yield memory.pick()
        for newest in source:
            weight = weigh(newest)
            if weight > most:
                memory.passed()
                yield newest
                continue
            memory.put(newest, weight)
            memory.odd = not memory.odd
            if len(waiting) < size and memory.total <= most:
                if not memory.odd and len(waiting) >= initial:
                    yield memory.pick()
                continue
            while len(waiting) >= size or memory.total > most:
                yield memory.pick()
        while waiting:
            yield memory.pick()
