"""Shuffles, as pipelines name them: by a number of samples, of bytes, or by seed and epoch alone.

Flows in: what users ask for. Flows out: stages over the buffer of :mod:`webdataset.stages.shuffling_buffer`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.iteration import PipelineStage
from webdataset.ground.policies import Handler

from . import randomness
from .base import Run
from .shuffling_buffer import Buffer, Shuffle, pick, stirred
from .shuffling_bytes import ShuffleBytes

__all__ = ["DetShuffle", "Shuffle", "detshuffle", "pick", "shuffle"]


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

    name = "detshuffle"

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> None:
        super().__init__(bufsize, initial, None, seed)
        self.first = epoch + 1
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

    def begin(self, run: Run) -> Buffer:
        """Return an empty buffer and the generator of seed and epoch."""
        if self._set is not None:
            self.first, self._set = self._set + 1 - run.epoch, None
        self._begun = self.first + run.epoch
        return self._empty(randomness.chosen(run, None, self.seed + self._begun), run)

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """Shuffle ``src`` alone; each call is one epoch more, counted in ``epoch`` as upstream counts it.

        Args:
            src: the items.
        """
        self._set = self.epoch  # the pass after it is the next one
        return self.flow(iter(src), self.begin(Run()))

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Shuffle ``source`` alone, as ``run`` does."""
        return self.run(source)

    def __repr__(self) -> str:
        return f"{self.name}({self.bufsize!r}, initial={self.initial}, seed={self.seed}, epoch={self.epoch})"


detshuffle = DetShuffle


def shuffle(
    bufsize: int = 1000,
    initial: int = 100,
    rng: Any = None,
    seed: Any = None,
    handler: Handler | None = None,  # noqa: ARG001  accepted as upstream accepts it: nothing can fail here
    *,
    max_bytes: int | None = None,
) -> Shuffle:
    """Shuffle samples through a buffer.

    Args:
        bufsize: largest number of samples that wait; below 2 the order is left alone.
        initial: number of samples to gather before the first one is given.
        rng: a ``random.Random``; its state moves on from epoch to epoch.
        seed: seed of a generator that starts afresh in every epoch. With neither, the run's seed and epoch decide. A
            function in this place is the handler, which stands here in webdataset 0.2.86.
        handler: accepted for compatibility.
        max_bytes: bound on the bytes that wait (payloads of fields, arrays, images); samples go out earlier where it
            would be exceeded. None for no bound.

    Returns:
        A stage.

    Raises:
        UsageError: both ``rng`` and ``seed`` are given (when it runs); ``max_bytes`` below 1.

    Flow: random order within the buffer; holds ``bufsize`` items, and ``max_bytes`` bytes besides one sample; resumes
    exactly.
    """
    seed = None if callable(seed) else seed
    if max_bytes is None:
        return Shuffle(bufsize, initial, rng, seed)
    return ShuffleBytes(bufsize, initial, rng, seed, max_bytes)


def _shuffle(  # noqa: PLR0917  called by position
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: Any = None,
    seed: Any = None,
    handler: Handler | None = None,  # noqa: ARG001  accepted as upstream accepts it
) -> Iterator[Any]:
    """Yield the items of ``data`` in random order; the plain function behind :func:`shuffle`.

    Args:
        data: the items.
        bufsize: largest number of items that wait.
        initial: number of items to gather before the first one is given.
        rng: a ``random.Random``.
        seed: seed of a generator, instead of ``rng``; a function in this place is the handler, as in 0.2.86.
        handler: accepted for compatibility.
    """
    seed = None if callable(seed) else seed
    return stirred(iter(data), [], max(bufsize, 1), initial, randomness.chosen(Run(), rng, seed))
