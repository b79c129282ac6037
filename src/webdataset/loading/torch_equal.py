"""Equally many batches on every rank where nobody can know beforehand how many there are.

Theory. Before each step (or each ``every`` steps) the ranks tell each other how many batches they have at hand: one
number each, in one collective. The fewest (drop) or the most (pad) of them are given by all. A rank whose loader raises
says so in the same collective, so that the others raise too and wait for nobody.

Flows in: a loader on each rank. Flows out: its batches, up to a number that all ranks have in common.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from webdataset.ground.errors import FlowError, UsageError
from webdataset.ground.extras import require

_FAILED = -1


class EqualSteps:
    """The batches of a loader, equally many on all ranks; see :func:`equal_steps`.

    Args:
        loader: what gives the batches.
        how: ``drop`` or ``pad``.
        every: batches between two words with the other ranks.
        group: a process group; None for the default one.
    """

    def __init__(self, loader: Any, how: str, every: int, group: Any) -> None:
        self.loader = loader
        self.how = how
        self.every = every
        self._distributed = require("torch.distributed", extra="torch", purpose="equal_steps")
        self._group = group
        self._own: Any = None  # a group of ours, where the default one has no tensors of the CPU

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch.

        Args:
            epoch: from 0.
        """
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches.

        Raises:
            FlowError: another rank has failed, or some rank has no batch at all; the message names it.
        """
        batches = iter(self.loader)
        first: Any = None
        given = 0
        try:
            while True:
                ready = self._ready(batches)
                if given == 0 and ready:
                    first = ready[0]
                counts = self._told(len(ready))
                self._check(counts, given)
                many = min(counts) if self.how == "drop" else max(counts)
                last = min(counts) < self.every if self.how == "drop" else many < self.every
                ready += [_padded(first) for _ in range(many - len(ready))]
                given += many
                yield from ready[:many]
                if last:
                    return
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _ready(self, batches: Iterator[Any]) -> list[Any]:
        """Return the next batches; tell the others where that fails."""
        try:
            return list(islice(batches, self.every))
        except Exception:  # whatever it is: the others must not wait for this rank
            self._told(_FAILED)
            raise

    def _told(self, count: int) -> list[int]:
        """Tell all ranks a number; return those of all."""
        distributed = self._distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return [count]
        torch = require("torch", extra="torch", purpose="equal_steps")
        group = self._cpu_group()
        told = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size(group=group))]
        distributed.all_gather(told, torch.tensor([count], dtype=torch.int64), group=group)
        return [int(number) for number in told]

    def _cpu_group(self) -> Any:
        distributed = self._distributed
        if "gloo" in str(distributed.get_backend(group=self._group)):
            return self._group
        if self._own is None:
            ranks = None if self._group is None else distributed.get_process_group_ranks(self._group)
            self._own = distributed.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)
        return self._own

    def _check(self, counts: list[int], given: int) -> None:
        failed = [rank for rank, count in enumerate(counts) if count == _FAILED]
        if failed:
            raise FlowError(f"the loader of {_ranks(failed)} failed after {given} batches: see the error there")
        without = [rank for rank, count in enumerate(counts) if count == 0]
        if without and not given and max(counts):
            raise FlowError(
                f"{_ranks(without)} of {len(counts)} gave no batch at all: fewer shards than workers, or smaller ones "
                "than a batch. Pass nodesplitter=wds.split_by_sample, or partial=True to batched()"
            )

    def __repr__(self) -> str:
        return f"equal_steps({self.loader!r}, {self.how!r}, every={self.every})"


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _padded(batch: Any) -> Any:
    return {**batch, "__pad__": True} if isinstance(batch, dict) else batch


def equal_steps(loader: Any, how: str = "drop", *, every: int = 1, group: Any = None) -> EqualSteps:
    """Give equally many batches on every rank, by one small collective before each step.

    For datasets of unknown length, or with filters; where the numbers of samples are known, ``dataset.equal_epochs()``
    needs no words at all. All ranks must iterate it, in the process that torch.distributed was initialised in; without
    torch.distributed it gives what the loader gives.

    Args:
        loader: a loader, or anything else that can be iterated.
        how: ``drop`` stops where the first rank has no batch left; ``pad`` goes on to the last one: ranks that have
            none left give their first batch again (with ``__pad__``, where it is a dict).
        every: batches between two collectives; so many batches are held at a time.
        group: a process group; None for the default one.

    Raises:
        UsageError: arguments that cannot mean anything.
        MissingExtra: torch is not installed.
    """
    if how not in ("drop", "pad"):
        raise UsageError(f"equal_steps(…, {how!r}): there are 'drop' and 'pad'")
    if every < 1:
        raise UsageError(f"every={every!r}: at least one batch")
    return EqualSteps(loader, how, every, group)
