"""Batches back into samples.

Flows in: batches. Flows out: their samples, one by one. Remembers the address of the batch in hand and how many of its
samples were given.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webdataset.ground.errors import SampleError

from .base import Address, Fetch, Json, Memory, Run, Stage


def rows(batch: Any) -> Iterable[Any]:
    """Return the samples of a batch.

    Args:
        batch: a tuple or list of columns, or a dictionary of columns; a column may be a dictionary of columns again.

    Returns:
        Tuples, or dictionaries with the batch's keys.

    Raises:
        SampleError: columns of different lengths, no columns, or something that is not a batch.
    """
    if isinstance(batch, dict):
        names = list(batch)
        return [dict(zip(names, values, strict=True)) for values in _zipped(batch, list(batch.values()))]
    if isinstance(batch, tuple | list):
        return _zipped(batch, batch)
    raise SampleError(f"a batch is a tuple, list or dictionary of columns, and this is a {type(batch).__name__}")


def _zipped(batch: Any, columns: list[Any] | tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if not columns:
        raise SampleError("a batch without columns has no samples to give")
    columns = [rows(column) if isinstance(column, dict) else column for column in columns]
    try:
        return list(zip(*columns, strict=True))
    except (TypeError, ValueError) as error:
        lengths = [len(column) if hasattr(column, "__len__") else type(column).__name__ for column in columns]
        named = dict(zip(batch, lengths, strict=True)) if isinstance(batch, dict) else lengths
        raise SampleError(f"the columns of a batch differ in length: {named}") from error


def members(batch: Any) -> Iterable[Any]:
    """Return the samples of a list.

    Raises:
        SampleError: it is not a list (or tuple).
    """
    if not isinstance(batch, list | tuple):
        raise SampleError(
            f"unlisted takes lists apart, and this is a {type(batch).__name__}; use unbatched for batches"
        )
    return batch


class Opened(Memory):
    """What unbatching remembers: ``[address of the batch, index]`` of the last sample, and the rest of that batch."""

    def __init__(self, stage: "Unbatched") -> None:
        self.stage = stage
        self.left = 0
        self.rest: list[Any] = []

    def snapshot(self) -> Json:
        """Return the address of the last sample and how many samples its batch has left."""
        return None if self.address is None else [*self.address, self.left]

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Open the batch once more, if any of its samples are left."""
        if state is None:
            return
        batch, index, self.left = state
        self.address = [batch, index]
        if self.left:
            self.rest = list(self.stage.rows(fetch([batch])[0]))[index + 1 :]


class Unbatched(Stage):
    """Batches taken apart; see :func:`unbatched` and :func:`unlisted`.

    Args:
        rows: from a batch to its samples.
        name: for ``repr``.
    """

    def __init__(self, rows: Callable[[Any], Iterable[Any]], name: str) -> None:
        self.rows = rows
        self.name = name

    def begin(self, run: Run) -> Opened:  # noqa: ARG002
        """Return a memory without a batch."""
        return Opened(self)

    def flow(self, upstream: Iterator[Any], memory: Opened) -> Iterator[Any]:
        """Yield the samples."""
        if memory.origin is not None:
            return self._tracked(upstream, memory)
        return self._plain(upstream, memory)

    def _plain(self, upstream: Iterator[Any], memory: Opened) -> Iterator[Any]:
        apart = self.rows
        yield from memory.rest
        for batch in upstream:
            yield from apart(batch)

    def _tracked(self, upstream: Iterator[Any], memory: Opened) -> Iterator[Any]:
        if memory.rest:
            address, index = memory.address
            yield from self._counted(memory, address, index + 1, memory.rest)
        for batch in upstream:
            address = memory.origin() if memory.origin else None
            yield from self._counted(memory, address, 0, list(self.rows(batch)))

    def _counted(self, memory: Opened, address: Address, first: int, samples: list[Any]) -> Iterator[Any]:
        end = first + len(samples)
        for index, sample in enumerate(samples, first):
            memory.address = [address, index]
            memory.left = end - index - 1
            yield sample

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:  # noqa: ARG002
        """Fetch each batch once, and take the samples out of it."""
        names = {repr(batch): batch for batch, _ in addresses}
        batches = fetch(list(names.values()))
        opened = {name: list(self.rows(batch)) for name, batch in zip(names, batches, strict=True)}
        return [opened[repr(batch)][index] for batch, index in addresses]

    def __repr__(self) -> str:
        return f"{self.name}()"


def unbatched() -> Unbatched:
    """Take batches apart into samples: the reverse of :func:`batched`.

    Returns:
        A stage. Tuples and lists of columns give tuples, dictionaries of columns give dictionaries.

    Raises:
        SampleError: a batch whose columns differ in length (when it runs).

    Flow: in order; holds one batch; resumes exactly.
    """
    return Unbatched(rows, "unbatched")


def unlisted() -> Unbatched:
    """Take lists apart into their samples: the reverse of :func:`listed`.

    Returns:
        A stage.

    Raises:
        SampleError: something that is not a list (when it runs).

    Flow: in order; holds one list; resumes exactly.
    """
    return Unbatched(members, "unlisted")


def _unbatched(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of batches; the plain function behind :func:`unbatched`."""
    return (sample for batch in data for sample in rows(batch))


def _unlisted(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of lists; the plain function behind :func:`unlisted`."""
    return (sample for batch in data for sample in members(batch))
