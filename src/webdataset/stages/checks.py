"""Checks of a pass: that it gives samples, that shards are not read several times unintentionally; of arguments."""

from collections.abc import Callable, Iterable, Iterator

from webdataset.core.distributed import thread_context, worker_context
from webdataset.core.errors import NoSamples
from webdataset.core.json_types import JsonValue
from webdataset.core.tracebacks import warn_user
from webdataset.shards.split import single_node_only, split_by_worker
from webdataset.stages.base import Fetch, FilterFunction, Item, PassThroughStage, PassThroughState, RestCurried, Run


class SeenState(PassThroughState):
    """Whether a sample has come by."""

    def __init__(self) -> None:
        self.seen = False

    def snapshot(self) -> JsonValue:
        """Return whether a sample has come by."""
        return self.seen

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Take it up."""
        self.seen = bool(state)


class CheckSamples(PassThroughStage):
    """Raises at the end of a pass that gave no sample at all.

    Flow: in order; remembers one bit; resumes exactly.

    Args:
        shards: number of shards of the dataset, for the message; None where it is not known.
        selected: samples are selected where they are read, and a share of a pass may rightly hold none that is wanted:
            all shares are judged together (:mod:`webdataset.flow.outcomes`).
    """

    state_name = "CheckSamples"

    def __init__(self, shards: int | None = None, *, selected: bool = False) -> None:
        self._shards = shards
        self._selected = selected

    def begin(self, run: Run) -> SeenState:  # noqa: ARG002
        """Return a state that has seen nothing."""
        return SeenState()

    def flow(self, upstream: Iterator[Item], state: SeenState) -> Iterator[Item]:
        """Yield all samples.

        Raises:
            NoSamples: there were none.
        """
        for sample in upstream:
            state.seen = True
            yield sample
            break
        yield from upstream
        if not state.seen and not self._selected:
            raise NoSamples(self._explain_error())

    def _explain_error(self) -> str:
        where = worker_context()
        workers = where.world_size * where.num_workers
        setup = (
            f"no samples found in this pass on rank {where.rank} of {where.world_size}, worker {where.worker} of "
            f"{where.num_workers}: "
        )
        others = "the shards are empty, were stepped over by the handler, or hold no selected member with an extension"
        fix = (
            "Pass nodesplitter=wds.split_by_sample to cut shards between workers, use fewer workers or more shards, "
            "resampled=True, or pass empty_check=False to let such workers give nothing"
        )
        if self._shards is None:
            return f"{setup}there are fewer shards than workers ({workers} in all), or {others}. {fix}"
        shards = "there is 1 shard" if self._shards == 1 else f"there are {self._shards} shards"
        if self._shards < workers:
            return f"{setup}{shards}, fewer than the {workers} workers in all. {fix}"
        look = "wds ls --members SHARD lists what a shard holds; empty_check=False allows a pass without samples"
        return f"{setup}{shards} for {workers} worker{'s in all' if workers > 1 else ''}; {others}. {look}"

    def __repr__(self) -> str:
        return "check_samples()"


def check_empty(source: Iterable[Item]) -> Iterator[Item]:
    """Yield all samples of a source, and raise where there were none.

    Args:
        source: samples.

    Raises:
        NoSamples: there were none.
    """
    return CheckSamples()(source)


class FirstPass(PassThroughState):
    """Whether a pass is the first one."""

    def __init__(self, *, first: bool) -> None:
        self.first = first


class SplitAssigned(PassThroughStage):
    """Shares out the shards of a list object where this library assigns them; elsewhere all processes read all of them.

    In a loader of this library it splits as for a list of names. Elsewhere, ranks and workers read the list whole, as
    in webdataset 0.2.86; the first of them warns, in its first pass.

    Flow: in order; remembers nothing; resumes exactly.

    Args:
        ranks: no splitter between ranks was chosen.
        workers: no splitter between workers was chosen.
    """

    state_name = "SplitAssigned"

    def __init__(self, *, ranks: bool, workers: bool) -> None:
        self.ranks = ranks
        self.workers = workers

    @property
    def splits(self) -> bool:
        """Whether shards are shared out here, so that what stands before is drawn alike."""
        return self.workers and thread_context.worker is not None

    def begin(self, run: Run) -> FirstPass:
        """Return whether this is the first pass."""
        return FirstPass(first=run.epoch == 0)

    def flow(self, upstream: Iterator[Item], state: FirstPass) -> Iterator[Item]:
        """Yield this process's share."""
        if thread_context.worker is None:
            if state.first:
                self._warn()
            return upstream
        shards = single_node_only(upstream) if self.ranks else upstream
        return split_by_worker(shards) if self.workers else shards

    def _warn(self) -> None:
        where = worker_context()
        ranks, workers = self.ranks and where.world_size > 1, self.workers and where.num_workers > 1
        if where.rank or where.worker or not (ranks or workers):
            return
        who = [f"{where.world_size} ranks"] * ranks + [f"{where.num_workers} workers"] * workers
        ways = ["nodesplitter=wds.split_by_node"] * ranks + ["workersplitter=wds.split_by_worker"] * workers
        warn_user(
            f"each of {' and of '.join(who)} reads all shards of a list object, so that samples come several times: "
            f"pass {' and '.join(ways)} to share them out, or the urls in the place of the object",
        )

    def __repr__(self) -> str:
        return "split_assigned()"


class CheckedMaker(RestCurried):
    """A maker of stages that checks their arguments.

    Args:
        f: takes an iterator first.
        check: called with the other arguments; raises where they cannot mean anything.
    """

    def __init__(self, f: Callable[..., Iterable[object]], check: Callable[..., None]) -> None:
        super().__init__(f)
        self.check = check

    def __call__(self, /, *args: object, **kw: object) -> FilterFunction:
        """Return the stage that calls the function with the source first and these arguments after it."""
        self.check(*args, **kw)
        return super().__call__(*args, **kw)
