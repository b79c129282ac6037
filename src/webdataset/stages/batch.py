"""Makes batches of samples, collates them, and takes batches apart again.

While the consumer holds a batch, no sample waits in the stage; so its state is only the batch's address, the list of
its samples' addresses. Taking batches apart keeps the address of the current batch and how many of its samples were
given.

Collation takes samples of one shape: dictionaries with the same keys, tuples or lists of the same length, or plain
values, and gives a dictionary or tuple of columns. Numbers become arrays, arrays of one shape are stacked, tensors
too; everything else (text, bytes, dictionaries, None) stays a list. It loads numpy at its first use, and torch never:
a tensor can only appear where torch is loaded already.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from webdataset.core.error_handlers import count_drop
from webdataset.core.errors import SampleError, StateMismatch, UsageError
from webdataset.core.json_types import Address, JsonValue, as_count, as_int, as_list, as_pair
from webdataset.core.optional_imports import loaded_module
from webdataset.core.upstream_utils import check_flags
from webdataset.stages.argument_checks import check_collation, read_count
from webdataset.stages.base import Fetch, Item, Outcome, Run, Stage, StageState, collate_batch, pair_addresses


def default_collation_fn(
    samples: Sequence[Any],
    combine_tensors: bool = True,  # noqa: FBT001, FBT002  positional upstream
    combine_scalars: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Any:
    """Collate samples into a batch.

    Args:
        samples: at least one; all dictionaries with the same keys, all tuples (or lists) of one length, or all values.
        combine_tensors: stack arrays (``[N, ...]``) and tensors; otherwise lists of them.
        combine_scalars: make arrays ``[N]`` of int, float and bool; otherwise lists of them.

    Returns:
        For dictionaries a dictionary of columns, in the order of the first sample's keys; for tuples and lists a tuple
        of columns; for other values one column.

    Raises:
        SampleError: samples of different keys or lengths, or arrays of different shapes.
        UsageError: no samples.
    """
    if not samples:
        raise UsageError("there is nothing to collate: the list of samples is empty")
    first = samples[0]
    if isinstance(first, dict):
        keys = first.keys()
        for sample in samples:
            if sample.keys() != keys:
                raise SampleError(_shape_error(first, sample), key=sample.get("__key__"))
        return {
            key: combine_values([sample[key] for sample in samples], combine_tensors, combine_scalars) for key in keys
        }
    if isinstance(first, tuple | list):
        if len(set(map(len, samples))) > 1:
            raise SampleError(f"samples of different lengths in one batch: {sorted(set(map(len, samples)))}")
        return tuple(combine_values(list(column), combine_tensors, combine_scalars) for column in zip(*samples))  # noqa: B905  checked above
    return combine_values(list(samples), combine_tensors, combine_scalars)


def combine_values(
    b: list[Any],
    combine_tensors: bool = True,  # noqa: FBT001, FBT002  positional upstream
    combine_scalars: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Any:
    """Combine one column of a batch; the first value decides how.

    Args:
        b: the column's values, at least one.
        combine_tensors: stack arrays and tensors.
        combine_scalars: make an array of int, float and bool.

    Returns:
        An array, a tensor, or ``b``.

    Raises:
        SampleError: arrays of different shapes.
    """
    first = b[0]
    if isinstance(first, int | float):
        return _make_array(b) if combine_scalars else b
    if isinstance(first, str | bytes | dict | tuple | list) or first is None or not combine_tensors:
        return b
    return _stack_column(b)


def _make_array(column: list[Any]) -> object:
    import numpy as np  # noqa: PLC0415  loaded when a batch needs it

    return np.array(column)


def _stack_column(column: list[Any]) -> object:
    import numpy as np  # noqa: PLC0415  loaded when a batch needs it

    torch = loaded_module("torch")
    for kind, stack in ((np.ndarray, np.stack), (getattr(torch, "Tensor", None), getattr(torch, "stack", None))):
        if kind is not None and stack is not None and isinstance(column[0], kind):
            shapes = {tuple(getattr(value, "shape", (type(value).__name__,))) for value in column}
            if len(shapes) > 1:
                raise SampleError(
                    f"arrays of different shapes in one batch: {sorted(shapes, key=repr)}; resize them in a map, pad "
                    "them with collation_fn=wds.PaddingCollator({field: 0}), or get lists with collation_fn=None"
                )
            return stack(column)
    return column


def _shape_error(first: dict[str, object], other: dict[str, object]) -> str:
    return (
        f"samples with different fields in one batch: {sorted(map(str, first))} and {sorted(map(str, other))}; "
        f"choose fields with to_tuple or rename(..., keep=False)"
    )


def dict2tuple(d: dict[int, Item]) -> tuple[Item, ...]:
    """Return the values of a dict whose keys are 0, 1, 2 …, in that order.

    Args:
        d: the dict.

    Raises:
        SampleError: its keys are others.
    """
    if set(d) != set(range(len(d))):
        raise SampleError(f"dict2tuple takes keys 0 to {len(d) - 1}, not {list(d)!r}")
    return tuple(d[place] for place in range(len(d)))


def tuple2dict(l: Iterable[Item]) -> dict[int, Item]:  # noqa: E741  upstream's name
    """Return a dict of values by place: 0, 1, 2 ….

    Args:
        l: the values.
    """
    return dict(enumerate(l))


Collation = Callable[[list[Any]], Any]


class Batched(Stage[StageState]):
    """Batches of samples.

    Args:
        batchsize: number of samples in a batch.
        collation_fn: from a list of samples to a batch; None leaves the list.
        partial: give the last batch even where it is smaller.
    """

    state_name = "Batched"
    # without partial batches: what is left out is judged at the end of a pass
    drops = True

    def __init__(self, batchsize: int, collation_fn: Collation | None, partial: bool) -> None:  # noqa: FBT001
        self.batchsize = batchsize
        self.collation_fn = collation_fn
        self.partial = partial

    @property
    def name(self) -> str:
        """What reports call it."""
        return "listed" if self.collation_fn is None else "batched"

    @property
    def function(self) -> Collation | None:
        """The user's function."""
        return self.collation_fn

    def begin(self, run: Run) -> StageState:  # noqa: ARG002
        """Return the place for the last batch's address."""
        return StageState()

    def flow(self, upstream: Iterator[object], state: StageState) -> Iterator[object]:
        """Yield batches."""
        origin, size, collate = state.origin, self.batchsize, self.collation_fn or _keep_list
        source: Iterator[Any] = upstream if origin is None else pair_addresses(upstream, origin)
        outcome = state.outcome or Outcome()
        while chunk := list(islice(source, size)):
            whole = len(chunk) == size
            if not whole and not self.partial:
                for _ in chunk:
                    count_drop(self.name)
                outcome.dropped = 0 if outcome.gave else len(chunk)
                break
            outcome.gave = True
            if origin is None:
                yield collate_batch(collate, chunk, "batched")
            else:
                batch = collate_batch(collate, [sample for _, sample in chunk], "batched")
                state.address = [address for address, _ in chunk]
                yield batch
            if not whole:
                break
        outcome.ended = True

    def refetch(self, addresses: list[Address], fetch: Fetch, state: object = None) -> list[object]:  # noqa: ARG002
        """Fetch all samples of the batches at once, and collate them again."""
        batches = [as_list(batch) for batch in addresses]
        samples = iter(fetch([address for batch in batches for address in batch]))
        collate = self.collation_fn or _keep_list
        return [collate_batch(collate, list(islice(samples, len(batch))), "batched") for batch in batches]

    def __repr__(self) -> str:
        with_function = (
            f", collation_fn={self.collation_fn!r}" if self.collation_fn not in (None, default_collation_fn) else ""
        )
        return f"{self.name}({self.batchsize}{with_function}{'' if self.partial else ', partial=False'})"


def _read_size(batchsize: float) -> int:
    """Return the number of samples that upstream gathers for a size, which programs compute (``64 / world_size``)."""
    try:
        size = read_count(batchsize, "batchsize")
    except UsageError:
        size = 0
    if size < 1:
        raise UsageError(f"batchsize={batchsize!r}: a batch holds at least one sample, and a finite number of them")
    return size


def _keep_list(samples: list[Item]) -> list[Item]:
    return samples


def batched(
    batchsize: float = 20,
    collation_fn: Collation | None = default_collation_fn,
    partial: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Batched:
    """Gather samples into batches.

    Args:
        batchsize: number of samples in a batch, at least 1; a fraction is rounded up.
        collation_fn: from a list of samples to a batch; None leaves the list.
        partial: give the last batch even where it is smaller. False drops its samples, and counts them as dropped.

    Returns:
        A stage.

    Raises:
        UsageError: a batch size below 1, or that is no number; a ``collation_fn`` that is no function.

    Flow: in order; holds one batch while it is made; resumes exactly.
    """
    if collation_fn:
        check_collation(collation_fn)
    check_flags(partial=partial)
    return Batched(_read_size(batchsize), collation_fn, partial)


def listed(batchsize: float = 20, partial: bool = True) -> Batched:  # noqa: FBT001, FBT002  positional upstream
    """Gather samples into lists.

    Args:
        batchsize: number of samples in a list, at least 1; a fraction is rounded up.
        partial: give the last list even where it is shorter.

    Returns:
        A stage.

    Raises:
        UsageError: a size below 1.

    Flow: in order; holds one list while it is filled; resumes exactly.
    """
    return batched(batchsize, None, partial)


def _batched(
    data: Iterable[object],
    batchsize: float = 20,
    collation_fn: Collation | None = default_collation_fn,
    partial: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Iterator[Any]:
    """Yield batches of the samples of ``data``; the plain function of :func:`batched`."""
    return batched(batchsize, collation_fn, partial)(data)


def split_rows(batch: object) -> Iterable[object]:
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
        return [dict(zip(names, values, strict=True)) for values in _zip_columns(batch, list(batch.values()))]
    if isinstance(batch, tuple | list):
        return _zip_columns(batch, batch)
    raise SampleError(f"a batch is a tuple, list or dictionary of columns, and this is a {type(batch).__name__}")


def _zip_columns(batch: object, columns: list[Any] | tuple[Any, ...]) -> list[tuple[object, ...]]:
    if not columns:
        raise SampleError("a batch without columns has no samples to give")
    columns = [split_rows(column) if isinstance(column, dict) else column for column in columns]
    try:
        return list(zip(*columns, strict=True))
    except (TypeError, ValueError) as error:
        lengths = [len(column) if hasattr(column, "__len__") else type(column).__name__ for column in columns]
        named = dict(zip(batch, lengths, strict=True)) if isinstance(batch, dict) else lengths
        raise SampleError(f"the columns of a batch differ in length: {named}") from error


def split_members(batch: object) -> Iterable[object]:
    """Return the samples of a list.

    Raises:
        SampleError: it is not a list (or tuple).
    """
    if not isinstance(batch, list | tuple):
        raise SampleError(
            f"unlisted takes lists apart, and this is a {type(batch).__name__}; use unbatched for batches"
        )
    return batch


class UnbatchState(StageState):
    """What unbatching remembers: ``[address of the batch, index]`` of the last sample, and the rest of that batch."""

    def __init__(self, stage: "Unbatched") -> None:
        self.stage = stage
        self.left = 0
        self.rest: list[object] = []

    def snapshot(self) -> JsonValue:
        """Return the address of the last sample and how many samples its batch has left."""
        return None if self.address is None else [*self.address, self.left]

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Open the batch once more, if any of its samples are left."""
        if state is None:
            return
        if len(as_list(state)) != 3:
            raise StateMismatch(f"this is not where a batch was taken apart: {str(state)[:80]}")
        batch, place, left = as_list(state)
        index, self.left = as_int(place), as_count(left)
        self.address = [batch, index]
        if self.left:
            self.rest = list(self.stage.rows(fetch([batch])[0]))[index + 1 :]


class Unbatched(Stage[UnbatchState]):
    """Batches taken apart; see :func:`unbatched` and :func:`unlisted`."""

    state_name = "Unbatched"

    def __init__(self, rows: Callable[[object], Iterable[object]], name: str) -> None:
        self.rows = rows
        self.name = name

    def begin(self, run: Run) -> UnbatchState:  # noqa: ARG002
        """Return a state without a batch."""
        return UnbatchState(self)

    def flow(self, upstream: Iterator[object], state: UnbatchState) -> Iterator[object]:
        """Yield the samples."""
        if state.origin is not None:
            return self._flow_with_addresses(upstream, state)
        return self._plain(upstream, state)

    def _plain(self, upstream: Iterator[object], state: UnbatchState) -> Iterator[object]:
        apart = self.rows
        yield from state.rest
        for batch in upstream:
            yield from apart(batch)

    def _flow_with_addresses(self, upstream: Iterator[object], state: UnbatchState) -> Iterator[object]:
        if state.rest:
            address, index = state.address
            yield from self._count_samples(state, address, index + 1, state.rest)
        for batch in upstream:
            address = state.origin() if state.origin else None
            yield from self._count_samples(state, address, 0, list(self.rows(batch)))

    def _count_samples(
        self, state: UnbatchState, address: Address, first: int, samples: list[object]
    ) -> Iterator[object]:
        end = first + len(samples)
        for index, sample in enumerate(samples, first):
            state.address = [address, index]
            state.left = end - index - 1
            yield sample

    def refetch(self, addresses: list[Address], fetch: Fetch, state: object = None) -> list[object]:  # noqa: ARG002
        """Fetch each batch once, and take the samples out of it."""
        places = [as_pair(address) for address in addresses]
        names = {repr(batch): batch for batch, _ in places}
        batches = fetch(list(names.values()))
        opened = {name: list(self.rows(batch)) for name, batch in zip(names, batches, strict=True)}
        return [opened[repr(batch)][as_int(index)] for batch, index in places]

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
    return Unbatched(split_rows, "unbatched")


def unlisted() -> Unbatched:
    """Take lists apart into their samples: the reverse of :func:`listed`.

    Returns:
        A stage.

    Raises:
        SampleError: something that is not a list (when it runs).

    Flow: in order; holds one list; resumes exactly.
    """
    return Unbatched(split_members, "unlisted")


def _unbatched(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of batches; the plain function of :func:`unbatched`."""
    return (sample for batch in data for sample in split_rows(batch))


def _unlisted(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of lists; the plain function of :func:`unlisted`."""
    return (sample for batch in data for sample in split_members(batch))
