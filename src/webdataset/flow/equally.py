"""What a pipeline is more where all its ranks give equally many items; mixed into every pipeline.

Flows in: a choice. Flows out: a copy of the pipeline that keeps to it. The planning is in :mod:`webdataset.flow.equal`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from webdataset.ground.topology import Place, physical, place
from webdataset.stages.base import Run

from .looping import Bounds, item_bound

if TYPE_CHECKING:
    from .equal import Equal


class EqualEpochs:
    """The equal epochs of a pipeline.

    Attributes:
        evenness: what was chosen; None: every rank gives what its shards hold.
    """

    pipeline: list[Any]
    repetitions: int
    nsamples: int
    fixed_epoch: bool
    _copied: Callable[[], Self]

    evenness: "Equal | None" = None

    def equal_epochs(self, how: str = "drop", *, steps: int | None = None, counts: Any = None) -> Self:
        """Give equally many items on every rank, so that none waits for others that have ended; see docs/multinode.md.

        It shares the shards out itself, in the place of the splitters, cutting shards where a share ends.

        Args:
            how: ``drop`` leaves out the last samples of a pass that cannot be shared out (fewer than there are ranks;
                than streams, where the dataset is elastic); ``pad`` repeats samples instead, whose ``__pad__`` is true;
                ``resample`` gives ``steps`` items, beginning the source again as often as that takes.
            steps: items (batches, where the pipeline makes them) for each rank in an epoch. Needed by ``resample``, and
                where a stage such as ``select`` makes their number unknown.
            counts: for ``drop`` and ``pad``: url (or file name) to number of samples; or a JSON file of that, or of a
                wids index; True reads the shards' headers, now. None looks for ``sizes.json`` and indexes beside the
                shards.

        Returns:
            A copy. Stages may be added behind it.

        Raises:
            UsageError: the numbers of samples are not known, or the pipeline reads no list of shards; the message says
                what to write.
        """
        from .equal import equalized  # noqa: PLC0415  knows indexes and most stages, and is seldom asked

        result = self._copied()
        result.pipeline, result.evenness = equalized(self.pipeline, how, steps, counts)
        return result

    def _entries(self, run: Run) -> list[Any]:
        """Return the stages of a run."""
        if self.evenness is None:
            return self.pipeline
        return self.evenness.entries(self.pipeline, run.epoch, self.repetitions)

    def _limits(self) -> Bounds:
        """Return how long this worker runs."""
        if self.evenness is None:
            return Bounds(self.repetitions, item_bound(self))
        return self.evenness.bounds(self.pipeline, place(), self.repetitions, item_bound(self))

    def _stream_limits(self, streams: int, where: Place | None) -> Bounds:
        """Return how long all virtual streams together run."""
        if self.evenness is None:
            return Bounds(self.repetitions, item_bound(self), fixed=self.fixed_epoch)
        world = (where or physical()).world_size
        return self.evenness.in_streams(self.pipeline, streams, world, self.repetitions, item_bound(self))
