"""The pipeline in virtual streams, as callers hold it.

Flows in: stages. Flows out: runs that can be saved at any item, and resumed under any number of ranks and workers.
"""

from dataclasses import replace
from typing import Self

from webdataset.stages.base import Run

from . import streamed  # noqa: F401  loaded here, before workers are forked that need it
from .in_streams import InStreams
from .pipeline import DataPipeline, add_length_method, unsized


class ElasticPipeline(InStreams, DataPipeline):
    """A pipeline in virtual streams.

    ``iter()`` gives an :class:`~webdataset.flow.elastic.ElasticRun`: the items of the streams that this rank and worker
    own, by rising position. ``with_epoch(n)`` and ``repeat(nbatches=n)`` count the items of all streams together.
    """

    __module__ = "webdataset.flow.pipeline"  # where it is imported from, and what pickles say

    @classmethod
    def of(cls, pipeline: DataPipeline, streams: int) -> Self:
        """Return a pipeline with the stages, seed, epoch and bounds of another.

        Args:
            pipeline: the other one.
            streams: number of virtual streams, at least 1.

        Raises:
            UsageError: a number below 1.
        """
        result = cls.__new__(cls)
        result.__dict__.update(pipeline._copied().__dict__)  # noqa: SLF001  the same class
        result.in_streams(streams)
        return add_length_method(result) if type(pipeline) is not unsized(type(pipeline)) else result

    def _copied(self) -> Self:
        result = super()._copied()
        result.in_streams(self.streams)
        return result

    __copy__ = _copied

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which with the seed decides every order.

        Of the epoch of a state that was loaded, the rest comes. Any other one begins at its start, and a warning says
        that the state is not used, unless its epoch is over and the next one was named.

        Args:
            epoch: from 0.
        """
        self.choose_epoch(epoch)
        super().set_epoch(epoch)

    def adopt(self, run: Run, *, persistent: bool = False) -> None:
        """Take part in the run of a pipeline that reads this one through a loader; see ``DataPipeline.adopt``.

        Args:
            run: its run. The first one behind a state that was loaded is in that state's epoch.
            persistent: the loader's workers live on, and would not hear of it.
        """
        chosen = self._present.chosen  # by the user, and not by the loader's run
        super().adopt(replace(run, epoch=self.shifted(run.epoch)), persistent=persistent)
        self._present.chosen = chosen

    def close(self) -> None:
        """Close the present run, and the stages that can be closed; forget all of them."""
        self.close_run()
        super().close()
