"""A loader over an elastic dataset as the source of a pipeline.

The state of the source is the loader's, so that stages after the loader are saved and resumed with it; the items in
their buffers are made again by address, in the consumer's process.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webdataset.core.errors import FlowError
from webdataset.stages.base import Address, Fetch, Json, Run, Stage, StageState

if TYPE_CHECKING:
    from webdataset.loading.torch_loader import LoaderRun, StateLoader


class LoaderStageState(StageState):
    """The source's state: the loader's present run; tracked where stages follow the loader."""

    def __init__(self, loader: "StateLoader", run: Run) -> None:
        self._loader = loader
        self._tracked = run.tracked
        loader.adopt(replace(run, tracked=True))
        self._begun: LoaderRun[object] | None = None

    @property
    def run(self) -> "LoaderRun[object]":
        """The loader's run, begun when it is first asked for."""
        if self._begun is None:
            self._begun = self._loader.begin(addresses=self._tracked)
        return self._begun

    @property
    def address(self) -> Address:
        """Address of the item given last."""
        return self.run.address()

    def snapshot(self) -> Json:
        """Return the loader's state."""
        return self.run.state_dict()

    def restore(self, state: Json, fetch: Fetch) -> None:  # noqa: ARG002
        """Continue after a state, to the end of its epoch: the next one is for the whole pipeline to begin."""
        self._loader.load_for_one_epoch(state)


def hold(batches: Iterator[object], owner: object) -> Callable[[], object]:
    """Keep torch's iterator until its owner is gone, and return a function that lets go of it.

    A loader and its run refer to each other, so the garbage collection ends them. It would close the queues of torch's
    iterator before that tells its workers to end, and torch would wait five seconds for each of them.

    Args:
        batches: torch's iterator.
        owner: its run, or the loader where workers are persistent.
    """
    held = weakref.finalize(owner, list.clear, [batches])
    held.atexit = False
    return held.detach


class LoaderStage(Stage):
    """The source of a pipeline over a loader.

    Flow: the loader's batches in their order; resumed by the loader's state, whatever the number of its workers.
    """

    state_name = "LoaderStage"
    rewinds = True

    def __init__(self, loader: "StateLoader") -> None:
        self.loader = loader
        # known as a loader, as torch's own is
        self.dataset, self.num_workers = loader.dataset, loader.num_workers

    def begin(self, run: Run) -> LoaderStageState:
        """Return the state of one run."""
        return LoaderStageState(self.loader, run)

    def flow(self, upstream: Iterator[Any], state: LoaderStageState) -> Iterator[Any]:  # noqa: ARG002
        """Yield the loader's batches."""
        run = state.run
        try:
            yield from run
        finally:
            run.close()

    def refetch(self, addresses: list[Address], fetch: Fetch, state: LoaderStageState | None = None) -> list[Any]:  # noqa: ARG002
        """Make items once more, in this process."""
        if state is None:
            raise FlowError("a loader makes items again for the run that gave them")
        return state.run.fetch(addresses)

    def __repr__(self) -> str:
        return type(self.loader).__name__
