"""Samples into batches.

Flows in: samples. Flows out: batches, collated. While a batch is held by whoever asked for it, no sample waits here;
so there is nothing to remember but the batch's address, the list of its samples' addresses.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from webdataset.ground.errors import UsageError

from .base import Address, Fetch, Memory, Run, Stage, paired
from .blame import collated
from .collation import default_collation_fn

Collation = Callable[[list[Any]], Any]


class Batched(Stage):
    """Batches of samples.

    Args:
        batchsize: number of samples in a batch.
        collation_fn: from a list of samples to a batch; None leaves the list.
        partial: give the last batch even where it is smaller.
    """

    def __init__(self, batchsize: int, collation_fn: Collation | None, partial: bool) -> None:  # noqa: FBT001
        self.batchsize = batchsize
        self.collation_fn = collation_fn
        self.partial = partial

    def begin(self, run: Run) -> Memory | None:  # noqa: ARG002
        """Return the place for the last batch's address."""
        return Memory()

    def flow(self, upstream: Iterator[Any], memory: Memory) -> Iterator[Any]:
        """Yield batches."""
        origin, size, collate = memory.origin, self.batchsize, self.collation_fn or _listed
        source: Iterator[Any] = upstream if origin is None else paired(upstream, origin)
        while chunk := list(islice(source, size)):
            whole = len(chunk) == size
            if not whole and not self.partial:
                return
            if origin is None:
                yield collated(collate, chunk, "batched")
            else:
                batch = collated(collate, [sample for _, sample in chunk], "batched")
                memory.address = [address for address, _ in chunk]
                yield batch
            if not whole:
                return

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:  # noqa: ARG002
        """Fetch all samples of the batches at once, and collate them again."""
        samples = iter(fetch([address for batch in addresses for address in batch]))
        collate = self.collation_fn or _listed
        return [collated(collate, list(islice(samples, len(batch))), "batched") for batch in addresses]

    def __repr__(self) -> str:
        name = "listed" if self.collation_fn is None else "batched"
        with_function = (
            f", collation_fn={self.collation_fn!r}" if self.collation_fn not in (None, default_collation_fn) else ""
        )
        return f"{name}({self.batchsize}{with_function}{'' if self.partial else ', partial=False'})"


def _listed(samples: list[Any]) -> list[Any]:
    return samples


def batched(
    batchsize: int = 20,
    collation_fn: Collation | None = default_collation_fn,
    partial: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Batched:
    """Gather samples into batches.

    Args:
        batchsize: number of samples in a batch, at least 1.
        collation_fn: from a list of samples to a batch; None leaves the list.
        partial: give the last batch even where it is smaller.

    Returns:
        A stage.

    Raises:
        UsageError: a batch size below 1.

    Flow: in order; holds one batch while it is made; resumes exactly.
    """
    if batchsize < 1:
        raise UsageError(f"batchsize={batchsize!r}: a batch holds at least one sample")
    return Batched(batchsize, collation_fn, partial)


def listed(batchsize: int = 20, partial: bool = True) -> Batched:  # noqa: FBT001, FBT002  positional upstream
    """Gather samples into lists.

    Args:
        batchsize: number of samples in a list, at least 1.
        partial: give the last list even where it is shorter.

    Returns:
        A stage.

    Raises:
        UsageError: a size below 1.

    Flow: in order; holds one list while it is filled; resumes exactly.
    """
    return batched(batchsize, None, partial)


def _batched(
    data: Iterable[Any],
    batchsize: int = 20,
    collation_fn: Collation | None = default_collation_fn,
    partial: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Iterator[Any]:
    """Yield batches of the samples of ``data``; the plain function behind :func:`batched`."""
    return batched(batchsize, collation_fn, partial)(data)
