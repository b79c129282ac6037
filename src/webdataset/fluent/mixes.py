"""Mixes of datasets with the chainable methods: ``wds.RandomMix([a, b]).shuffle(1000).batched(64)``.

A method returns a pipeline whose first stage is the mix; the mixes are in :mod:`webdataset.stages.mix`.
"""

from typing import Any

from webdataset.flow.run import STREAMS
from webdataset.fluent.elastic_dataset import ElasticDataset
from webdataset.fluent.interface import FluidInterface
from webdataset.fluent.loader import FluidWrapper
from webdataset.stages import mix


class ChainableMix(FluidInterface):
    """The chainable methods of a mix."""

    def compose(self, *args: Any) -> Any:
        """Return a pipeline of this mix and more stages.

        Args:
            *args: stages; None is left out.
        """
        return FluidWrapper(self).compose(*args)

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> FluidWrapper:
        """End each epoch after a number of items; see :meth:`webdataset.flow.pipeline.DataPipeline.with_epoch`.

        Args:
            nsamples: items in an epoch.
            nbatches: another name for it.
        """
        return FluidWrapper(self).with_epoch(nsamples, nbatches)

    def with_length(self, n: int, silent: bool = False) -> FluidWrapper:  # noqa: FBT001, FBT002  upstream's signature
        """Declare a length; see :meth:`webdataset.flow.pipeline.DataPipeline.with_length`.

        Args:
            n: what ``len`` returns.
            silent: do not compare it with the items of a pass.
        """
        return FluidWrapper(self).with_length(n, silent)

    def repeat(self, nepochs: int | None = None, nbatches: int | None = None) -> FluidWrapper:
        """Run several passes; see :meth:`webdataset.flow.pipeline.DataPipeline.repeat`.

        Args:
            nepochs: number of passes; None, 0 or negative for no end.
            nbatches: end one iteration after this many items, over all passes.
        """
        return FluidWrapper(self).repeat(nepochs, nbatches)

    def elastic(self, streams: int = STREAMS) -> ElasticDataset:
        """Read in virtual streams, to be resumed under any number of ranks and workers.

        Args:
            streams: how many; see :meth:`webdataset.flow.pipeline.DataPipeline.elastic`.
        """
        return FluidWrapper(self).elastic(streams)


class RandomMix(ChainableMix, mix.RandomMix):
    """Mix datasets by chance; arguments, errors and order are those of :class:`webdataset.stages.mix.RandomMix`."""

    state_name = "RandomMix"


class RoundRobin(ChainableMix, mix.RoundRobin):
    """Mix datasets in turn; arguments and order are those of :class:`webdataset.stages.mix.RoundRobin`."""

    state_name = "RoundRobin"
