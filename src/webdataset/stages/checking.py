"""A pass that gave nothing is an error, said with the numbers that explain it."""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.errors import NoSamples
from webdataset.ground.topology import place

from .base import Fetch, Json, Passage, Passing, Run


class SeenMemory(Passage):
    """Whether a sample has come by."""

    def __init__(self) -> None:
        self.seen = False

    def snapshot(self) -> Json:
        """Return whether a sample has come by."""
        return self.seen

    def restore(self, state: Json, fetch: Fetch) -> None:  # noqa: ARG002
        """Take it up."""
        self.seen = bool(state)


class CheckSamples(Passing):
    """Raises at the end of a pass that gave no sample at all.

    Flow: in order; remembers one bit; resumes exactly.

    Args:
        shards: number of shards of the dataset, for the message; None where it is not known.
    """

    def __init__(self, shards: int | None = None) -> None:
        self._shards = shards

    def begin(self, run: Run) -> SeenMemory:  # noqa: ARG002
        """Return a memory that has seen nothing."""
        return SeenMemory()

    def flow(self, upstream: Iterator[Any], memory: SeenMemory) -> Iterator[Any]:
        """Yield all samples.

        Raises:
            NoSamples: there were none.
        """
        for sample in upstream:
            memory.seen = True
            yield sample
            break
        yield from upstream
        if not memory.seen:
            raise NoSamples(self._explained())

    def _explained(self) -> str:
        where = place()
        workers = where.world_size * where.num_workers
        told = (
            f"no samples found in this pass on rank {where.rank} of {where.world_size}, worker {where.worker} of "
            f"{where.num_workers}: "
        )
        others = "the shards are empty, were stepped over by the handler, or hold no selected member with an extension"
        fix = (
            "Pass nodesplitter=wds.split_by_sample to cut shards between workers, use fewer workers or more shards, "
            "resampled=True, or pass empty_check=False to let such workers give nothing"
        )
        if self._shards is None:
            return f"{told}there are fewer shards than workers ({workers} in all), or {others}. {fix}"
        shards = "there is 1 shard" if self._shards == 1 else f"there are {self._shards} shards"
        if self._shards < workers:
            return f"{told}{shards}, fewer than the {workers} workers in all. {fix}"
        return f"{told}{shards} for {workers} worker{'s in all' if workers > 1 else ''}; {others}. {fix}"

    def __repr__(self) -> str:
        return "check_samples()"


def check_empty(source: Iterable[Any]) -> Iterator[Any]:
    """Yield all samples of a source, and raise where there were none.

    Args:
        source: samples.

    Raises:
        NoSamples: there were none.
    """
    return CheckSamples()(source)
