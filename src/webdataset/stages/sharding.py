"""Divides shards and samples between ranks, workers and streams: by shard, by sample, or in equal shares.

Theory of lists of known length. With at least as many shards as workers in all, each worker takes every n-th shard.
With fewer, some would have none: then every worker reads all of them and takes every n-th sample. Both rules look at
the same numbers: each sample goes to exactly one worker.

Theory of equal shares. The samples of a pass, in the order of its shards, have the positions 0 to N - 1. Of ``n``
parties, party ``k`` reads ``[k * s, (k + 1) * s)``, where ``s`` is N/n rounded down (fewer than ``n`` samples are
left out at the end of the pass) or up (positions from N on begin again at 0: fewer than ``n`` samples come twice, and
have a true ``__pad__``). Workers divide the share of their rank in the same way, without rounding. A share is
consecutive, so that most shards are read by one worker and few are cut. All parties must see the same shards, with
the same numbers of samples; no party communicates. A piece is ``{"url", ..., "part": (first, stop, samples in the
shard)}``.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from webdataset.core.distributed import WorkerContext, worker_context
from webdataset.core.errors import FlowError, StaleIndex, UsageError
from webdataset.core.logs import log
from webdataset.shards.lazy_urls import LazyUrls
from webdataset.stages.base import Item, Run, Stage, StageState
from webdataset.stages.select import Slice, SliceState


class PassNumberState(StageState):
    """Which run this is.

    Attributes:
        run: it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run


class EqualShare(Stage[PassNumberState]):
    """This rank's and worker's part of a pass (or a virtual stream's), as long as that of all others.

    Flow: pieces of shards, in order, equally many samples for everybody; holds the list of shards.

    Args:
        counts: url to number of samples.
        how: ``drop`` or ``pad``.
        samples: number of samples in a pass.
        first: number of the first epoch of the iteration, and of the passes that belong to it; after these, all
            samples are repeats. None: no such bound.
    """

    state_name = "EqualShare"
    splits = True  # what stands before is drawn alike in all workers
    shares_streams = True

    def __init__(self, counts: Mapping[str, int], how: str, samples: int, first: tuple[int, int] | None = None) -> None:
        self._counts = counts
        self.how = how
        self.samples = samples
        self.shards = len(counts)
        self.first = first

    def within(self, epoch: int, passes: int) -> "EqualShare":
        """Return this stage for an iteration that begins with some epoch."""
        return EqualShare(self._counts, self.how, self.samples, (epoch, passes))

    def begin(self, run: Run) -> PassNumberState:
        """Return a state that holds the run."""
        return PassNumberState(run)

    def bounds(self, run: Run) -> tuple[int, int]:
        """Return the positions ``[begin, end)`` that this worker or stream reads."""
        return (
            self.bounds_of(run.worker()) if run.stream is None else compute_share(self.samples, *run.stream, self.how)
        )

    def bounds_of(self, where: WorkerContext) -> tuple[int, int]:
        """Return the positions ``[begin, end)`` that one worker reads."""
        begin, end = compute_share(self.samples, where.rank, where.world_size, self.how)
        each, more = divmod(end - begin, where.num_workers)
        begin += where.worker * each + min(where.worker, more)
        return begin, begin + each + (where.worker < more)

    def flow(self, upstream: Iterator[Any], state: PassNumberState) -> Iterator[dict[str, object]]:
        """Yield the pieces.

        Raises:
            FlowError: a shard whose count is not known, or other shards than those that were counted.
        """
        shards = list(upstream)
        sizes = [self._count(shard) for shard in shards]
        if sum(sizes) != self.samples:
            raise FlowError(
                f"this pass has {len(shards)} shards with {sum(sizes)} samples, and equal shares were planned for "
                f"{self.shards} shards with {self.samples}: what stands before must give each shard once",
                stage=repr(self),
            )
        again = self.first is not None and state.run.epoch >= sum(self.first)
        if again:
            log.warning(
                "samples were left out on the way, by a handler or a function that gave None: others are repeated in "
                "their place (marked with __pad__), so that all ranks give equally many"
            )
        # every sample says whether it is a repeat, so that all have the same fields in a batch
        for turn, piece in cut_pieces(shards, sizes, *self.bounds(state.run)):
            yield {**piece, "__pad__": bool(turn or again)}

    def _count(self, shard: Mapping[str, object]) -> int:
        try:
            return self._counts[str(shard["url"])]
        except KeyError:
            raise StaleIndex(
                "the samples of this shard were not counted: the shards were others when equal shares were planned",
                url=str(shard["url"]),
            ) from None

    def __repr__(self) -> str:
        return f"equal_share({self.how!r}, {self.samples} samples in {self.shards} shards)"


def compute_share(samples: int, number: int, among: int, how: str) -> tuple[int, int]:
    """Return the positions ``[begin, end)`` of one party; with ``pad``, they may go beyond the last sample."""
    size = samples // among if how == "drop" else -(-samples // among)
    return number * size, (number + 1) * size


def cut_pieces(
    shards: Sequence[Mapping[str, object]], sizes: Sequence[int], begin: int, end: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the pieces of shards that hold some positions.

    Args:
        shards: of a pass, in order.
        sizes: number of samples in each.
        begin: first position.
        end: the position after the last one; beyond the last sample, the pass begins again.

    Yields:
        Which time round it is, from 0, and the shard with its ``part``.
    """
    ends = list(accumulate(sizes))
    while begin < end:
        turn, here = divmod(begin, ends[-1])
        number = bisect_right(ends, here)
        size = sizes[number]
        first = here - ends[number] + size
        stop = min(size, first + end - begin)
        yield turn, {**shards[number], "part": (first, stop, size)}
        begin += stop - first


def list_pass_urls(source: object) -> Iterable[str] | None:
    """Return the urls of a source that gives each of them in a pass, or None."""
    urls = getattr(source, "urls", None)
    return urls if isinstance(urls, list | tuple | LazyUrls) and not hasattr(source, "nshards") else None


def _worker_share(*, ranks: bool, workers: bool) -> tuple[int, int]:
    """Return this worker's number and the number of workers, of those between which something is shared out."""
    where = worker_context()
    rank, world = (where.rank, where.world_size) if ranks else (0, 1)
    worker, count = (where.worker, where.num_workers) if workers else (0, 1)
    return rank + world * worker, world * count


class ShareShards:
    """This worker's share of some shards; all of them where there are fewer shards than workers."""

    state_name = "ShareShards"
    splits = True  # what stands before is drawn alike in all workers

    def __init__(self, count: int, *, ranks: bool, workers: bool) -> None:
        self.count = count
        self.ranks = ranks
        self.workers = workers

    def __call__(self, shards: Iterable[Item]) -> Iterator[Item]:
        """Yield this worker's share."""
        number, among = _worker_share(ranks=self.ranks, workers=self.workers)
        yield from islice(shards, number, None, among) if self.count >= among else shards

    def __repr__(self) -> str:
        return f"share_shards({self.count})"


class ShareSamples(Slice):
    """This worker's share of the samples, where the shards before were too few to be shared out.

    Args:
        count: number of shards in a pass.
        ranks: share out between ranks.
        workers: share out between workers of a rank.

    Flow: in order; holds nothing; resumes exactly.
    """

    state_name = "ShareSamples"

    def __init__(self, count: int, *, ranks: bool, workers: bool) -> None:
        super().__init__(None)
        self.count = count
        self.ranks = ranks
        self.workers = workers

    def flow(self, upstream: Iterator[Item], state: SliceState) -> Iterator[Item]:
        """Yield this worker's share.

        Raises:
            UsageError: a later stage joins samples that would be shared out.
        """
        number, among = _worker_share(ranks=self.ranks, workers=self.workers)
        if self.count < among and state.run_context is not None and state.run_context.whole_shards:
            raise UsageError(
                f"{among} workers would share {self.count} shards out by samples, and a later stage joins samples that "
                "stand next to each other in a shard: use at most as many workers as there are shards, or elastic()",
                stage=repr(self),
            )
        mine = Slice(None) if self.count >= among else Slice(number, None, among)
        return mine.flow(upstream, state)

    def __repr__(self) -> str:
        return f"share_samples({self.count})"
