"""An elastic dataset as a node of torchdata.nodes, with a state for a graph of nodes.

It stands alone since a subclass needs torchdata when it is imported.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import require
from webdataset.flow.elastic import ElasticRun
from webdataset.flow.elastic_state import check_state

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline

nodes: Any = require("torchdata.nodes", extra="torchdata", purpose="a node over a dataset")


class DatasetNode(nodes.BaseNode):  # type: ignore[misc]
    """A source of a graph of nodes; each reset without a state begins the next epoch.

    Args:
        dataset: an elastic one.

    Raises:
        UsageError: a dataset that is not elastic.
        MissingExtra: torchdata is not installed (when this module is imported).
    """

    def __init__(self, dataset: "ElasticPipeline") -> None:
        super().__init__()
        if not getattr(dataset, "streams", None):
            raise UsageError("a node needs an elastic dataset: WebDataset(...).elastic()")
        self.dataset = dataset
        self._run: ElasticRun | None = None

    def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
        """Begin the next epoch, or continue after a state.

        Args:
            initial_state: what ``get_state`` returned, on any number of ranks if merged; None for the next epoch.

        Raises:
            StateMismatch: it belongs to another dataset.
        """
        super().reset(initial_state)
        if self._run is not None:
            self._run.close()
        if initial_state is not None:
            # after its end the graph asks for another reset
            self.dataset.load_for_one_epoch(check_state(initial_state))
        self._run = iter(self.dataset)

    def next(self) -> object:
        """Return the next item.

        Raises:
            StopIteration: after the last one.
        """
        return next(self._start_run())

    def get_state(self) -> dict[str, Any]:
        """Return the state after the item given last."""
        return self._start_run().state_dict()

    def _start_run(self) -> ElasticRun:
        if self._run is None:
            raise UsageError("a node is reset before it is read")
        return self._run
