"""Orders in which to read a dataset with random access, such that most reads stay in few shards.

Indices are shuffled within ranges (shards or chunks), and the ranges are shuffled too. The order depends on the seed
and the epoch alone, and is that of wids 0.2.111 (its generator is ``random.Random(seed + 1289738273 * epoch)``; ranges
keep their order in epoch 0 unless ``shufflefirst``). A pass is counted when it begins, so that one that is left early
is not repeated. Imports no torch, opens no shard.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence, Sized

from webdataset.core import distributed, settings
from webdataset.core.errors import UsageError
from webdataset.core.seeds import random_seed
from webdataset.core.tracebacks import warn_user

IndexRange = tuple[int, int]


def lengths_to_ranges(lengths: Iterable[int]) -> list[IndexRange]:
    """Return consecutive ranges ``(start, stop)`` of these lengths, from 0 on.

    Args:
        lengths: numbers of samples.
    """
    stops = list(itertools.accumulate(map(int, lengths)))
    return list(zip([0, *stops], stops, strict=False))


def intersect_range(a: IndexRange, b: IndexRange) -> IndexRange | None:
    """Return what two ranges have in common, or None.

    Args:
        a: ``(start, stop)``.
        b: ``(start, stop)``.
    """
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None


def intersect_ranges(rangelist: Iterable[IndexRange], r: IndexRange) -> list[IndexRange]:
    """Return what each range of a list has in common with one range, empty ones left out.

    Args:
        rangelist: ``(start, stop)`` each.
        r: ``(start, stop)``.
    """
    return [common for each in rangelist if (common := intersect_range(each, r)) is not None]


def iterate_ranges(
    ranges: Sequence[IndexRange],
    rng: random.Random,
    indexshuffle: bool = True,  # noqa: FBT001, FBT002  upstream's signature, here and below
    shardshuffle: bool = True,  # noqa: FBT001, FBT002
) -> Iterator[int]:
    """Yield the indices of ranges, one range after another.

    Args:
        ranges: ``(start, stop)`` each.
        rng: what to draw from.
        indexshuffle: shuffle the indices of each range.
        shardshuffle: shuffle the ranges.
    """
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for number in order:
        if not indexshuffle:
            yield from range(*ranges[number])
            continue
        indices = list(range(*ranges[number]))
        rng.shuffle(indices)
        yield from indices


def split_range(start: int, stop: int, size: int) -> list[IndexRange]:
    """Return a range cut into ranges of one size, the last one shorter."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


_EPOCH_STEP = 1289738273


class _EpochSampler:
    """Counts passes; the base of the samplers."""

    epoch: int = 0
    seed: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass."""
        self.epoch = int(epoch)

    def _begin(self) -> tuple[int, random.Random]:
        """Return number and generator of a pass, and count it."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        return epoch, random.Random(self.seed + _EPOCH_STEP * epoch)  # noqa: S311  shuffling, not cryptography


class ShardListSampler(_EpochSampler):
    """Shuffles samples within shards, and the shards.

    Args:
        dataset: has ``lengths``, the numbers of samples of its shards.
        lengths: these numbers, where they are not the dataset's.
        batch_size: accepted and not used, as in wids 0.2.86.
        shuffle: False keeps the order of the dataset. Left out, it shuffles.
        seed: decides the order together with the epoch; 0 by default.
        shufflefirst: shuffle the shards in epoch 0 too; in later ones they always are.

    Where it is called as in 0.2.86, with ``batch_size``, ``shuffle`` or more than one argument by position, it does
    what that version does: shards are shuffled in every pass, and without a seed each sampler has an order of its own.
    That version shuffles for ``shuffle=False`` too.

    Raises:
        UsageError: neither lengths nor a dataset that has them.
    """

    def __init__(
        self,
        dataset: Sized,
        lengths: Iterable[int] | None = None,
        batch_size: int | None = None,
        shuffle: bool | None = None,  # noqa: FBT001
        *,
        seed: int | None = None,
        shufflefirst: bool = False,
    ) -> None:
        older = batch_size is not None or shuffle is not None
        lengths = getattr(dataset, "lengths", None) if lengths is None else lengths
        if lengths is None:
            raise UsageError(f"{type(dataset).__name__} has no 'lengths': pass lengths=[samples of each shard]")
        self.ranges = lengths_to_ranges(lengths)
        self.seed = (random_seed() if older else 0) if seed is None else int(seed)
        self.shufflefirst = shufflefirst or older
        self.shuffle = shuffle is not False

    def __iter__(self) -> Iterator[int]:
        """Yield all indices, each once."""
        epoch, generator = self._begin()
        if not self.shuffle:
            yield from range(len(self))
            return
        yield from iterate_ranges(self.ranges, generator, shardshuffle=self.shufflefirst or epoch > 0)

    def __len__(self) -> int:
        """Return the number of indices of a pass."""
        return self.ranges[-1][1] if self.ranges else 0


ShardedSampler = ShardListSampler


class ChunkedSampler(_EpochSampler):
    """Shuffles samples within chunks of the dataset, and the chunks.

    Args:
        dataset: has a length.
        dslength_per_replica: how many indices a pass gives: where there are more it ends early, where there are fewer
            it begins again from the start of its range. -1: as many as there are.
        num_samples: read the first so many samples, or those of a range ``(start, stop)``; None reads all.
        chunksize: samples of a chunk.
        seed: decides the order together with the epoch.
        shuffle: shuffle at all.
        shufflefirst: shuffle the chunks in epoch 0 too; in later ones they always are.

    Raises:
        UsageError: samples that the dataset does not have, or no chunk size.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | Sequence[int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        total = len(dataset)
        start, stop = _select_range(num_samples, total)
        self._set_range(start, stop, int(chunksize))
        self.dslength_per_replica = int(dslength_per_replica) if dslength_per_replica >= 0 else stop - start
        if self.dslength_per_replica and start == stop:
            raise UsageError(f"no samples to give {self.dslength_per_replica} indices from")
        self.seed = int(seed)
        self.shuffle = shuffle
        self.shufflefirst = shufflefirst

    def _set_range(self, start: int, stop: int, chunksize: int) -> None:
        if chunksize < 1:
            raise UsageError(f"chunksize is a number of samples from 1, not {chunksize}")
        self.ranges = split_range(start, stop, chunksize)
        self._extra: tuple[int, int] = (start, max(1, stop - start))

    def __iter__(self) -> Iterator[int]:
        """Yield ``len()`` indices."""
        epoch, generator = self._begin()
        if self.shuffle:
            indices = iterate_ranges(self.ranges, generator, shardshuffle=self.shufflefirst or epoch > 0)
        else:
            indices = iterate_ranges(self.ranges, generator, indexshuffle=False, shardshuffle=False)
        first, size = self._extra
        padding = (first + number % size for number in itertools.count())
        yield from itertools.islice(itertools.chain(indices, padding), len(self))

    def __len__(self) -> int:
        """Return the number of indices of a pass."""
        return self.dslength_per_replica


class DistributedChunkedSampler(ChunkedSampler):
    """A :class:`ChunkedSampler` over this rank's part of the dataset; all ranks get equally many indices.

    Rank *r* of *n* reads a contiguous part of ``ceil(total / n)`` samples. Where these do not divide, the last ranks
    are filled up with samples from the start of the dataset; with ``drop_last`` the parts are ``total // n`` long, and
    the rest at the end is not read.

    Args:
        dataset: has a length.
        num_replicas: number of ranks; by default the job's.
        num_samples: read the first so many samples of the dataset, or a range ``(start, stop)``; None reads all.
        rank: this rank, from 0; by default the job's.
        shuffle: shuffle at all.
        shufflefirst: shuffle the chunks in epoch 0 too.
        seed: decides the order together with the epoch.
        drop_last: leave out samples rather than read some twice.
        chunksize: samples of a chunk.

    Raises:
        UsageError: samples that the dataset does not have, a rank that there is not, or one without the other.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        num_samples: int | Sequence[int] | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        shufflefirst: bool = False,
        seed: int = 0,
        drop_last: bool | None = None,
        chunksize: int = 1_000_000,
    ) -> None:
        rank, replicas = _detect_rank(rank, num_replicas)
        start, stop = _select_range(num_samples, len(dataset))
        share = (stop - start) // replicas if drop_last else -(-(stop - start) // replicas)
        mine = intersect_range((start + rank * share, start + (rank + 1) * share), (start, stop))
        super().__init__(
            dataset,
            num_samples=mine or (start, start),
            chunksize=chunksize,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
        self.dslength_per_replica = share
        self._extra = (start, max(1, stop - start))


def _select_range(num_samples: int | Sequence[int] | None, total: int) -> IndexRange:
    """Return the range of samples asked for."""
    if num_samples is None:
        return 0, total
    start, stop = (0, num_samples) if isinstance(num_samples, int) else map(int, num_samples)
    if not 0 <= start <= stop <= total:
        raise UsageError(f"num_samples={num_samples!r} asks for samples that a dataset of {total} does not have")
    return start, stop


def _detect_rank(rank: int | None, replicas: int | None) -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    if (rank is None) != (replicas is None):
        raise UsageError("pass both num_replicas and rank, or neither")
    if rank is None or replicas is None:
        here = distributed.worker_context()
        if here.world_size == 1 and settings.WORLD_SIZE.get() is None:
            warn_user(
                "no distributed job is known (RANK and WORLD_SIZE, or torch.distributed): this sampler reads all of "
                "the dataset. Pass num_replicas= and rank=",
            )
        rank, replicas = here.rank, here.world_size
    if not 0 <= rank < replicas:
        raise UsageError(f"rank {rank} is not one of {replicas} ranks: they count from 0")
    return rank, replicas
