"""Lists of shards, the first stage of a pipeline: in order, resampled, or with a dataset's name.

Each iteration (a *pass*) yields ``{"url": url}`` for one shard after another, each a dict of its own. The number of
the pass, and what an unseeded list draws from, come from the pipeline's run where there is one, else from the list's
own count of passes and from the operating system. Seeds equal those of published versions where these are
reproducible. Lists with a name log each time that they begin again.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from random import Random
from typing import Any, Protocol, SupportsIndex, TypeVar

from webdataset.core import settings
from webdataset.core.distributed import detect_context, thread_context, worker_context
from webdataset.core.errors import NoShards, UsageError
from webdataset.core.fork_safety import epoch_lock
from webdataset.core.logs import log
from webdataset.core.optional_imports import IterableDataset
from webdataset.core.seeds import hash_seed, random_seed, read_epoch, read_seed
from webdataset.core.upstream_utils import check_flags
from webdataset.shards.expand import expand_source, expand_to_sequence
from webdataset.storage.open_url import load_openers

T = TypeVar("T")

_MASK = 0x7FFFFFFF
_WORKERS_PER_RANK = 1000


def make_seed(*args: object) -> int:
    """Fold any values into one seed: ``s = 31 * s + hash(x)``, 31 bits.

    Args:
        *args: numbers enter by their hash, as ever; anything else by a digest of its text, so that the seed does not
            change from process to process.

    Returns:
        An integer in [0, 2**31).
    """
    seed = 0
    for arg in args:
        number = hash(arg) if isinstance(arg, int | float | complex) else hash_seed(str(arg))
        seed = (seed * 31 + number) & _MASK
    return seed


def pytorch_worker_info(group: object = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers) of this process.

    Args:
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = detect_context(group)
    return where.rank, where.world_size, where.worker, where.num_workers


def pytorch_worker_seed(group: object = None) -> int:
    """Return a number that differs between the workers of a job: ``1000 * rank + worker``.

    Args:
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = worker_context(group)
    return where.rank * _WORKERS_PER_RANK + where.worker


Shard = dict[str, Any]


class ShardPass(Protocol):
    """What a running pipeline tells a shard list: which pass it is, and what to draw from."""

    @property
    def epoch(self) -> int:
        """Number of the pass, from 0."""

    def random(self, *names: int | str) -> Random:
        """Return the generator of this list in this pass, the same in all workers where a split follows."""


class ShardList(IterableDataset):
    """Base of the shard lists: passes are numbered, by themselves or by ``set_epoch``.

    Attributes:
        epoch: number of the pass that was begun last; -1 before the first.
    """

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass.

        Args:
            epoch: from 0.

        Raises:
            UsageError: no such epoch.
        """
        self.epoch = read_epoch(epoch) - 1

    def shards(self, epoch: int, draw: Callable[[], Random]) -> Iterator[Shard]:
        """Yield the shards of the pass ``epoch``; ``draw`` gives the generator for what is not seeded."""
        raise NotImplementedError(f"{type(self).__name__}.shards")

    def __iter__(self) -> Iterator[Shard]:
        with epoch_lock.lock:
            self.epoch = epoch = self.epoch + 1
        return self.shards(epoch, make_unseeded_rng)

    def draw_shards(self, run: ShardPass) -> Iterator[Shard]:
        """Yield the shards of one pass of a running pipeline: reproducible from the run's seed and epoch.

        Args:
            run: the pipeline's run. Where a subclass brings an ``__iter__`` of its own, that is called, after
                ``set_epoch``.
        """
        if type(self).__iter__ is not ShardList.__iter__:
            self.set_epoch(run.epoch)
            return iter(self)
        self.epoch = run.epoch
        return self.shards(run.epoch, run.random)


def make_unseeded_rng() -> Random:
    """Return a generator from the operating system's entropy."""
    return Random(random_seed())  # noqa: S311  shuffling, not cryptography


class SimpleShardList(ShardList):
    """A list of shards in order, or in the order that a seed gives, the same in every pass.

    Args:
        urls: as for :func:`~webdataset.shards.expand.expand_urls`, or an iterable of ``{"url": …}``.
        seed: shuffles the list; True takes a seed from the operating system when the list is made, so that workers,
            which get copies, agree.
        storage_options: how the objects of a folder or wildcard are listed.

    Raises:
        NoShards: an empty list (a ValueError and an IndexError).
        UsageError: something that gives no urls.
    """

    def __init__(
        self, urls: object, seed: int | SupportsIndex | None = None, *, storage_options: object = None
    ) -> None:
        self.urls = expand_to_sequence(urls, storage_options=storage_options)
        if not self.urls:
            raise NoShards(
                f"an empty list of shards: {urls!r} gives no urls; is the list, the wildcard or the folder right?"
            )
        if not isinstance(seed, int | None):
            # texts and the like are taken, as ever, and not declared
            seed = read_seed(seed)  # type: ignore[assignment]
        self.seed: int | None = random_seed() if seed is True else seed  # type: ignore[assignment]
        load_openers(self.urls)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.urls)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.urls)} shards, seed={self.seed})"

    def shards(self, epoch: int, draw: Callable[[], Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield each shard once."""
        urls: Iterable[Any] = self.urls
        if self.seed is not None:
            urls = list(urls)
            Random(self.seed).shuffle(urls)  # noqa: S311  shuffling, not cryptography
        for url in urls:
            yield {"url": url}


class ResampledShards(ShardList):
    """Shards drawn at random with replacement, without end or ``nshards`` of them a pass.

    Args:
        urls: as for :class:`SimpleShardList`.
        nshards: draws in one pass.
        seed: enters the draws; None leaves it out, which gives the draws of webdataset 0.2.
        worker_seed: function giving a number that differs between workers; by default ``1000 * rank + worker``.
        deterministic: draw from (worker, epoch, seed) alone. Else every pass draws anew: from the pipeline's run, or
            from the operating system.
        max_urls: the most urls to take from an iterable.
        empty_check: raise at once where there are no urls, rather than at the first draw.
        dataset_name: a name for the log, which then says each time that as many shards were drawn as there are.
        storage_options: how the objects of a folder or wildcard are listed.

    The order of arguments in webdataset 0.2, ``(urls, nshards, worker_seed, deterministic)``, is understood too where
    it can be told apart: by a function in third or a bool in fourth place; and so is the order with a name first,
    ``(dataset_name, urls, nshards, worker_seed, deterministic)``, by urls in second place.

    Raises:
        NoShards: no urls.
        UsageError: something that gives no urls.
    """

    def __init__(  # noqa: PLR0917  upstream's signature
        self,
        urls: Any,
        nshards: Any = sys.maxsize,
        seed: Any = 0,
        worker_seed: Any = None,
        deterministic: bool = False,  # noqa: FBT001, FBT002  upstream's signature
        max_urls: float = 1e6,
        empty_check: bool = True,  # noqa: FBT001, FBT002
        *,
        dataset_name: str | None = None,
        storage_options: object = None,
    ) -> None:
        self.dataset_name = dataset_name
        if isinstance(nshards, str | list | tuple):
            self.dataset_name, urls = urls, nshards
            nshards, seed = seed or sys.maxsize, None
        if callable(seed) or isinstance(worker_seed, bool):
            deterministic = worker_seed if isinstance(worker_seed, bool) else deterministic
            seed, worker_seed = None, seed if callable(seed) else None
        if worker_seed is not None and not callable(worker_seed):
            raise UsageError(f"worker_seed is a function that returns a number, not {worker_seed!r}")
        if not isinstance(nshards, SupportsIndex) or index(nshards) < 0:
            raise UsageError(f"nshards={nshards!r:.60}: the draws in a pass, a whole number; leave it out for no end")
        check_flags(deterministic=deterministic, empty_check=empty_check)
        self.urls: Sequence[Any] = (
            expand_to_sequence(urls, storage_options=storage_options)
            if isinstance(urls, str)
            else expand_source(urls, _read_most(max_urls), storage_options=storage_options)
        )
        if empty_check and not self.urls:
            raise NoShards(f"no shards to draw from: {urls!r} gives no urls")
        load_openers(self.urls)
        self.nshards: int = index(nshards)
        self.seed = read_seed(seed)
        self.worker_seed: Callable[[], int] = worker_seed or pytorch_worker_seed
        self.deterministic = deterministic
        self.epoch = -1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.urls)} shards, seed={self.seed!r}, deterministic={self.deterministic})"

    def shards(self, epoch: int, draw: Callable[[], Random]) -> Iterator[Shard]:
        """Yield ``nshards`` draws; a virtual stream its part of so many."""
        urls, count = self.urls, len(self.urls)
        if not count:
            raise NoShards("no shards to draw from")
        generator = self._generator(epoch, draw)
        stream = thread_context.stream
        for drawn in range(self.nshards) if stream is None else range(stream.number, self.nshards, stream.of):
            if self.dataset_name is not None and drawn and drawn % count == 0:
                log.warning("dataset %s: %d shards were drawn, %d times all", self.dataset_name, drawn, drawn // count)
            yield {"url": urls[generator.randrange(count)]}

    def _generator(self, epoch: int, draw: Callable[[], Random]) -> Random:
        parts = [self.worker_seed(), epoch, *([] if self.seed is None else [self.seed])]
        if thread_context.stream is not None:
            parts.append(hash_seed("stream", *thread_context.stream))
        if not self.deterministic:
            parts.append(draw().getrandbits(62))
        seed = make_seed(*parts)
        if settings.SHOW_SEED.get():
            log.warning("resampled shards: seed %d in process %d, pass %d", seed, os.getpid(), epoch)
        return Random(seed)  # noqa: S311  drawing shards, not cryptography


def _read_most(max_urls: float) -> int:
    """Return the most urls to take as a whole number."""
    try:
        return int(max_urls)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"max_urls={max_urls!r:.60}: the most urls to take, a whole number") from None


ResampledShardList = ResampledShards


def resampled_shards(src: Iterable[T], n: int = sys.maxsize) -> Iterator[T]:
    """Read all of ``src``, then yield ``n`` uniform draws with replacement.

    Args:
        src: a finite iterable of shards, or of anything.
        n: number of draws.

    Raises:
        NoShards: ``src`` is empty.
        UsageError: ``n`` is no number.
    """
    check_draws(n)
    return _draw_shards(src, index(n))


def check_draws(n: object = sys.maxsize) -> None:
    """Raise where a number of draws is none.

    Raises:
        UsageError: as it says.
    """
    if not isinstance(n, SupportsIndex) or index(n) < 0:
        raise UsageError(f"resampled(n={n!r:.60}): the number of draws; leave it out for no end")


def _draw_shards(src: Iterable[T], n: int) -> Iterator[T]:
    known = list(src)
    if not known:
        raise NoShards("nothing to draw from: the stage before resampled gave no shards")
    generator = make_unseeded_rng()
    for _ in range(n):
        yield generator.choice(known)


def listed_shards(urls: object, *, shuffle: bool = False) -> Iterator[Shard]:
    """Yield each shard of a list once.

    Args:
        urls: as for :func:`~webdataset.shards.expand.expand_urls`.
        shuffle: in random order.

    Raises:
        NoShards: an empty list.
    """
    return iter(SimpleShardList(urls, seed=True if shuffle else None))


class InfiniteShardList(SimpleShardList):
    """A list of shards, over and over.

    Args:
        dataset_name: for the log.
        urls: as for :class:`SimpleShardList`.
        seed: shuffles the list, the same in every round; True takes a seed from the operating system.

    Raises:
        NoShards: an empty list.
        UsageError: something that gives no urls.
    """

    def __init__(self, dataset_name: str, urls: object, seed: int | None = None) -> None:
        super().__init__(urls, seed)
        self.dataset_name = dataset_name

    def __len__(self) -> int:
        """Return the number of shards of one round."""
        return super().__len__()

    def shards(self, epoch: int, draw: Callable[[], Random]) -> Iterator[Shard]:
        """Yield all shards, round after round."""
        rounds = 0
        while True:
            yield from super().shards(epoch, draw)
            rounds += 1
            log.warning("dataset %s: all %d shards were given %d times", self.dataset_name, len(self.urls), rounds)

    def __repr__(self) -> str:
        return f"InfiniteShardList({self.dataset_name!r}, {len(self.urls)} shards, seed={self.seed})"


class NamedResampledShards(ResampledShards):
    """Shards drawn at random with replacement, from a dataset with a name.

    Args:
        dataset_name: for the log.
        urls: as for :class:`ResampledShards`.
        nshards: draws in one pass.
        worker_seed: function giving a number that differs between workers.
        deterministic: draw from (worker, epoch) alone.

    Raises:
        NoShards: no urls.
        UsageError: something that gives no urls.
    """

    def __init__(
        self,
        dataset_name: str,
        urls: object,
        nshards: int = sys.maxsize,
        worker_seed: Callable[[], int] | bool | None = None,  # noqa: FBT001  existing code's signature
        deterministic: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        super().__init__(urls, nshards, None, worker_seed, deterministic=deterministic)
        self.dataset_name = dataset_name
