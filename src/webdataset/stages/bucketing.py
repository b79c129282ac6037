"""Batches of samples of like length, or of one class (bucketing).

Theory. Each sample belongs to one *bucket*, and a bucket is given as a batch when it is full, always as a whole. So
the state is the addresses of the samples that wait, bucket by bucket, the buckets in the order of their oldest sample;
a restored stage fetches these samples again and finds their buckets anew, which shows another function or other data.
"""

import copy
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from math import inf, isnan
from numbers import Real
from operator import index
from typing import NamedTuple, cast
from zlib import crc32

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import (
    Handler,
    count_drop,
    make_handler_error,
    reraise_exception,
    should_continue,
)
from webdataset.core.errors import SampleError, StateMismatch, UsageError
from webdataset.core.json_types import Address, JsonValue, as_int, as_list, as_object, as_pair, as_text
from webdataset.core.upstream_utils import check_flags
from webdataset.stages.address_codec import decode_addresses, encode_addresses
from webdataset.stages.argument_checks import check_collation
from webdataset.stages.base import Fetch, Run, Sample, Stage, StageState, collate_batch, with_blame
from webdataset.stages.batch import Collation, default_collation_fn
from webdataset.stages.padding import check_edges, is_tensor, simplify_number

_PLAIN = frozenset([bool, bytes, float, int, str, type(None)])

# whole numbers below this are the same as floats
_PRECISE = 2**53

# of the heap of buckets, before what is of no use any more is left out
_LEAST_NOTED = 64

BatchSize = int | Sequence[int] | Callable[[Hashable], int]


class Bucket(NamedTuple):
    """Samples of one bucket that wait.

    Args:
        size: samples in a batch.
        waiting: address (in a tracked run) and sample, in the order of arrival.
        number: of the bucket, in the order in which buckets began.
    """

    size: int
    waiting: list[tuple[Address, object]]
    number: int


class BucketState(StageState):
    """What bucketing remembers: the samples that wait.

    Attributes:
        buckets: by name, those in which samples wait, in the order of their oldest sample.
        count: samples that wait.
        ended: a handler has ended the stage: nothing more is read.
    """

    plain = True

    def __init__(self, stage: "Bucketed") -> None:
        self._stage = stage
        self.buckets: dict[Hashable, Bucket] = {}
        self.count = 0
        self.ended = False
        self._begun = 0
        # how many buckets there are of each size
        self._sizes: Counter[int] = Counter()
        # a heap of how full each bucket was whenever a sample came: what is not so any more is passed over; None until
        # a window is full
        self._fullest: list[tuple[float, int, Hashable]] | None = None

    def snapshot(self) -> JsonValue:
        """Return the addresses of the samples, and how many wait in each bucket."""
        buckets = [bucket.waiting for bucket in self.buckets.values()]
        return {
            "buckets": [[len(waiting), _sum_name(name)] for name, waiting in zip(self.buckets, buckets, strict=True)],
            "ended": self.ended,
            "waiting": encode_addresses([address for address, _ in chain.from_iterable(buckets)]),
        }

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Fetch the samples again, and put them into their buckets.

        Raises:
            StateMismatch: they belong to other buckets than they did.
        """
        parts = as_object(state)
        self.ended = bool(parts["ended"])
        addresses = decode_addresses(as_text(parts["waiting"]))
        pairs = iter(zip(addresses, fetch(addresses), strict=True))
        for size, check in map(as_pair, as_list(parts["buckets"])):
            if not 0 < as_int(size) <= len(addresses):
                raise self._stage.mismatch()
            names = {self._add_again(*pair) for pair in islice(pairs, as_int(size))}
            found = [(len(self.buckets[name].waiting), _sum_name(name)) for name in names]
            if found != [(size, check)] or as_int(size) >= self.buckets[names.pop()].size:
                raise self._stage.mismatch()
        if self.count != len(addresses):
            raise self._stage.mismatch()

    def _add_again(self, address: Address, sample: object) -> Hashable:
        """Let a sample wait that waited; a failure says which one it is, and no handler is asked."""
        try:
            return self.add(address, sample)
        except Exception as error:  # user code: located and raised again
            self._stage.blame(error, sample)
            raise

    def add(self, address: Address, sample: object) -> Hashable:
        """Let a sample wait; return the name of its bucket.

        Raises:
            Exception: its bucket cannot be told; nothing was added.
        """
        name = self._stage.find_bucket(sample)
        if name not in self.buckets:
            self.buckets[name] = Bucket(self._stage.batch_size_of(name), [], self._begun)
            self._begun += 1
            self._sizes[self.buckets[name].size] += 1
        self.buckets[name].waiting.append((address, sample))
        self.count += 1
        if self._fullest is not None:
            heappush(self._fullest, self._rank(name))
            if len(self._fullest) > 4 * self.count + _LEAST_NOTED:
                # it is made anew where it is wanted
                self._fullest = None
        return name

    def _rank(self, name: Hashable) -> tuple[float, int, Hashable]:
        """Return what orders buckets: the fullest first, and of equally full ones that which began first."""
        size, waiting, number = self.buckets[name]
        return -len(waiting) / size, number, name

    def largest_size(self) -> int:
        """Return the size of the largest batch that any of the buckets is to give."""
        return max(self._sizes)

    def find_fullest(self) -> Hashable:
        """Return the name of the bucket that lacks least of a batch; one at least has samples."""
        heap = self._fullest
        if heap is None:
            heap = self._fullest = [self._rank(name) for name in self.buckets]
            heapify(heap)
        while True:
            name = heap[0][-1]
            if name in self.buckets and self._rank(name) == heap[0]:
                return name
            heappop(heap)

    def take(self, name: Hashable) -> list[tuple[Address, object]]:
        """Remove the samples of a bucket, and return them."""
        size, waiting, _ = self.buckets.pop(name)
        self.count -= len(waiting)
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]
        return waiting


class Bucketed(Stage[BucketState]):
    """Batches of samples that are alike; the arguments are those of :func:`bucket`.

    Args:
        by: as there.
        edges: the same.
        batch_size: the same.
        max_total: the same.
        collation_fn: the same.
        partial: the same.
        window: the same.
        handler: the same.

    Raises:
        UsageError: arguments that do not go together.
    """

    state_name = "Bucketed"
    reorders = True

    def __init__(
        self,
        by: str | Callable[..., object],
        edges: Iterable[float] | None,
        *,
        batch_size: BatchSize | None,
        max_total: float | None,
        collation_fn: Collation | None,
        partial: bool,
        window: int | None,
        handler: Handler,
    ) -> None:
        if not isinstance(by, str) and not callable(by):
            raise UsageError(f"by= is the name of a field or a function of a sample, and not {by!r}")
        if handler is not None and not callable(handler):
            raise make_handler_error(handler)
        if collation_fn is not None:
            check_collation(collation_fn)
        self.by = by
        # tuples of plain numbers, which states describe
        self.edges = None if edges is None else tuple(check_edges(edges))
        self.batch_size = _read_sizes(batch_size)
        self.max_total = simplify_number(max_total) if isinstance(max_total, Real) else max_total
        self.collation_fn = collation_fn
        check_flags(partial=partial)
        self.partial = partial
        self.window = window
        self.handler = handler
        if (batch_size is None) == (max_total is None):
            raise UsageError("give one of batch_size=, samples in a batch, and max_total=, samples times edge")
        if max_total is not None:
            self._check_total(max_total)
        elif not callable(batch_size):
            self._check_sizes()
        if window is not None and (not isinstance(window, int) or window < 1):
            raise UsageError(f"window is {window!r}: it is an int, at least 1")

    def _check_total(self, total: object) -> None:
        if self.edges is None:
            raise UsageError("max_total= bounds samples times edge: give edges=, or batch_size= as a function")
        last = self.edges[-1]
        if not isinstance(total, Real) or not last <= cast("float", total) < inf:
            raise UsageError(
                f"max_total is {total!r}, and the last of edges= is {last!r}: a batch holds at least one sample and a "
                "finite number of them, so that max_total is a finite number no less than the last edge"
            )

    def _check_sizes(self) -> None:
        given = self.batch_size
        if isinstance(given, tuple) and (self.edges is None or len(given) != len(self.edges)):
            raise UsageError(f"batch_size= has {len(given)} sizes, and edges= {len(self.edges or [])} buckets")
        for size in given if isinstance(given, tuple) else [given]:
            if not _is_size(size):
                raise UsageError(f"batch_size is {size!r}: a batch holds at least one sample, a whole number")

    @property
    def most_waiting(self) -> int | None:
        """Samples that can wait at most; None where the number of buckets or their sizes are not known before."""
        if self.edges is None or callable(self.batch_size):
            return self.window
        sizes = [self.batch_size_of(edge) for edge in self.edges]
        most = sum(sizes) - len(sizes)
        return most if self.window is None else min(most, max(self.window, *sizes))

    def for_stream(self, stream: StreamNumber) -> "Bucketed":
        """Return the stage of one stream: the windows of all streams together are as large as this one, or larger."""
        part = copy.copy(self)
        if self.window is not None:
            part.window = -(-self.window // stream.of)
        return part

    def begin(self, run: Run) -> BucketState:  # noqa: ARG002
        """Return a state in which nothing waits."""
        return BucketState(self)

    def flow(self, upstream: Iterator[object], state: BucketState) -> Iterator[object]:
        """Yield batches."""
        while not state.ended:
            sample = next(upstream, state)
            if sample is state:
                break
            for name in self._take_in(sample, state):
                yield self._give(name, state)
        if not self.partial:
            for _ in range(state.count):
                count_drop("bucket")
            return
        while state.buckets:
            yield self._give(next(iter(state.buckets)), state)

    def _take_in(self, sample: object, state: BucketState) -> list[Hashable]:
        """Let a sample wait; return the names of the buckets that are to be given now: none, or one."""
        address = None if state.origin is None else state.origin()
        try:
            name = state.add(address, sample)
        except Exception as exn:  # noqa: BLE001  a sample without a bucket, or user code: the handler decides
            state.ended = not should_continue(self.handler, self.blame(exn, sample), "bucket")
            return []
        if len(state.buckets[name].waiting) >= state.buckets[name].size:
            return [name]
        if self.window is None or state.count < self.window:
            return []
        # a window that is smaller than a batch would make all batches smaller
        return [] if state.count < state.largest_size() else [state.find_fullest()]

    def _give(self, name: Hashable, state: BucketState) -> object:
        """Return a bucket as a batch."""
        waiting = state.take(name)
        if state.origin is not None:
            state.address = [address for address, _ in waiting]
        return self.collate([sample for _, sample in waiting])

    def collate(self, samples: list[object]) -> object:
        """Return a batch of samples."""
        return samples if self.collation_fn is None else collate_batch(self.collation_fn, samples, "bucket")

    def blame(self, error: Exception, sample: object) -> Exception:
        """Return an error that says which sample it is about."""
        return with_blame(error, "bucket", sample, self.by if callable(self.by) else None)

    def find_bucket(self, sample: object) -> Hashable:
        """Return the name of a sample's bucket: its edge, or its class.

        Raises:
            SampleError: it has none.
        """
        value = self.by(cast("Sample", sample)) if callable(self.by) else _read_field(sample, self.by)
        if self.edges is None:
            return _check_class(value)
        length = _measure(value)
        place = bisect_left(self.edges, length)
        if place == len(self.edges):
            raise SampleError(
                f"a sample has length {_format(length)}, and the last of edges= is {_format(self.edges[-1])}: add an "
                "edge, leave such samples out before, or give a handler"
            )
        return self.edges[place]

    def batch_size_of(self, name: Hashable) -> int:
        """Return the number of samples in a batch of a bucket.

        Raises:
            SampleError: a function gave no such number.
        """
        if self.max_total is not None:
            return int(self.max_total // cast("float", name))
        if isinstance(self.batch_size, tuple):
            return index(self.batch_size[cast("tuple[float, ...]", self.edges).index(cast("float", name))])
        size = self.batch_size(name) if callable(self.batch_size) else self.batch_size
        if not _is_size(size):
            raise SampleError(f"batch_size({name!r}) is {size!r}: a batch holds at least one sample, a whole number")
        return index(cast("int", size))

    def mismatch(self) -> StateMismatch:
        """Return the error for samples that belong to other buckets than in the run that was saved."""
        return StateMismatch(
            "samples that wait in buckets belong to other ones than when this state was saved: is the function in "
            "by=, that of batch_size=, or the data another one? Use the same, or begin the epoch again",
            stage=repr(self),
        )

    def refetch(self, addresses: list[Address], fetch: Fetch, state: object = None) -> list[object]:  # noqa: ARG002
        """Fetch all samples of the batches at once, and collate them again."""
        batches = [as_list(batch) for batch in addresses]
        samples = iter(fetch([address for batch in batches for address in batch]))
        return [self.collate(list(islice(samples, len(batch)))) for batch in batches]

    def __repr__(self) -> str:
        shown = [f"by={self.by!r}" if isinstance(self.by, str) else f"by={getattr(self.by, '__qualname__', self.by)}"]
        for name in ("edges", "batch_size", "max_total", "window"):
            value = getattr(self, name)
            if value is not None:
                shown.append(f"{name}={getattr(value, '__qualname__', None) or repr(value)}")
        if self.collation_fn is None or self.collation_fn is not default_collation_fn:
            shown.append(f"collation_fn={self.collation_fn!r}")
        return f"bucket({', '.join(shown)}{'' if self.partial else ', partial=False'})"


def _sum_name(name: Hashable) -> int:
    """Return a check sum of the name of a bucket; 0 where it may be printed in another way in another process."""
    # a tuple of names, too, is printed as a plain one
    parts = tuple(name) if isinstance(name, tuple) else (name,)
    return crc32(repr(parts).encode()) if all(type(part) in _PLAIN for part in parts) else 0


def _read_field(sample: object, name: str) -> object:
    if not isinstance(sample, dict):
        raise SampleError(f"by={name!r} names a field of dictionaries, and this is a {type(sample).__name__}")
    if name not in sample:
        raise SampleError(f"there is no field {name!r} to bucket by, but {', '.join(map(str, sample))}", field=name)
    return sample[name]


def _read_sizes(given: object) -> "int | tuple[int, ...] | Callable[[Hashable], int] | None":
    """Return numbers of samples as ints, one or one for each edge; what is none as it is."""
    # arrays are sizes too, but the keys of a dictionary are not
    plain = getattr(given, "tolist", lambda: given)()
    if isinstance(plain, Sequence) and not isinstance(plain, str | bytes):
        return tuple(index(size) if _is_size(size) else size for size in plain)
    return index(cast("int", plain)) if _is_size(plain) else cast("None", plain)


def _is_size(size: object) -> bool:
    """Tell whether this is a number of samples in a batch."""
    try:
        return index(cast("int", size)) >= 1
    except TypeError:
        return False


def _measure(value: object) -> float:
    """Return a number, or the length of what has one."""
    try:
        # arrays without dimensions say TypeError, as numbers do
        length = float(len(value))  # type: ignore[arg-type]
    except TypeError:
        try:
            length = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise SampleError(
                f"edges= divide numbers or lengths, and this is a {type(value).__name__}: let by= be a field, or a "
                "function, that gives one of these"
            ) from None
    if isnan(length):
        raise SampleError("a sample has the length NaN, which belongs to no bucket")
    return length


def _format(length: float) -> str:
    """Return a length as text; a whole number has all of its digits, as in ``edges=``."""
    return str(int(length)) if abs(length) < _PRECISE and length == int(length) else repr(length)


def _check_class(value: object) -> Hashable:
    """Return what names a bucket.

    Raises:
        SampleError: equal ones could not be told.
    """
    if value is None:
        return None
    if isinstance(value, tuple):
        for part in value:
            _check_class(part)
        return value
    # tensors and plain objects are hashed by where they are in memory; only NaN differs from itself
    if is_tensor(value) or type(value).__hash__ in (None, object.__hash__) or value != value:  # noqa: PLR0124
        raise SampleError(
            f"without edges= samples of one value of by= make a batch, and {value!r:.80} is no value that can be "
            "compared: give a number, a text or a tuple of these"
        )
    return value


def bucket(
    by: str | Callable[..., object],
    edges: Iterable[float] | None = None,
    *,
    batch_size: BatchSize | None = None,
    max_total: float | None = None,
    collation_fn: Collation | None = default_collation_fn,
    partial: bool = True,
    window: int | None = None,
    handler: Handler = reraise_exception,
) -> Bucketed:
    """Gather samples that are alike into batches: of like length, or of one class.

    Args:
        by: a field, or a function of a sample. With ``edges`` its value is a number, or something with a length;
            without, it is the bucket: a number, a text or a tuple of these.
        edges: the greatest length of each bucket, rising; ``math.inf`` may be the last.
        batch_size: samples in a batch; a list with one number for each edge; or a function from a bucket (its edge or
            its class) to the number.
        max_total: instead: samples times edge are no more than this, so a batch has ``max_total // edge`` samples.
        collation_fn: from a list of samples to a batch; None leaves the list. See :class:`PaddingCollator`.
        partial: at the end, give what waits in each bucket too; else it is dropped, and counted.
        window: samples that may wait; where so many do, the fullest bucket is given as it is. The streams of an elastic
            dataset share it. None: each bucket waits until it is full.
        handler: asked where ``by`` raises, or a sample is longer than the last edge.

    Returns:
        A stage.

    Raises:
        UsageError: arguments that do not go together.

    Flow: n to 1, in the order in which buckets are full; holds the samples that wait; resumes exactly.
    """
    return Bucketed(
        by,
        edges,
        batch_size=batch_size,
        max_total=max_total,
        collation_fn=collation_fn,
        partial=partial,
        window=window,
        handler=handler,
    )
