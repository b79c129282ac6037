"""Sends parts from a worker process: small ones through its pipe, large ones through shared memory.

Theory. A pipe copies twice, and the sender waits until the other side reads. So large content (images of different
sizes, undecoded fields, batches that a pipeline made) goes into a *segment*: a memory file without a name, made by the
worker, whose descriptor is sent once. Arrays are pickled out of band (protocol 5); the consumer's arrays are views of
the segment, and the worker writes to it again when they are gone. Columns of small texts and bytes are packed by the
native core, and stay so until the parts of a window are joined. Undecoded fields are copied into the segment one
after the other, and out of it when the part is received, so that the segment can be written to again at once.

No segment outlives both processes, however they end.
"""

import itertools
import mmap
import operator
import pickle
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from webdataset.core.errors import FlowError, describe_error, shorten_pickling_error
from webdataset.core.optional_imports import loaded_module
from webdataset.loading.columns import LISTED, LOOSE, PACKED, Columns, FieldColumn, PackedValues
from webdataset.loading.mapped_views import ViewReceiver, ViewSender, is_plain_view, open_view, reduce_view
from webdataset.loading.message_pipe import MessagePipe, share_memory
from webdataset.loading.shared_memory import Leases, MemoryBlock, as_array
from webdataset.loading.worker import WindowCredit, WindowPart
from webdataset.samples.mapped_shard import has_mapped_files
from webdataset.samples.native_core import PackValues, find_native

if TYPE_CHECKING:
    import numpy.typing as npt

_INLINE_BYTES = 1 << 16
# bytes from here on are copied once on each side, and not through the stream of small values
_LARGE_BYTES = 1 << 13
# a sample, on average
_SMALL_BYTES = 1 << 10
_CONTAINERS = frozenset([dict, list, tuple])
_BYTES, _VIEWS = frozenset([bytes]), frozenset([memoryview])
# of a part that comes through the pipe: the first byte (no pickle's), the number of pieces; the size of each
_PART = 0x50
_INLINE = struct.Struct("<BI")
# the same of one piece, with its size
_INLINE_ALONE = struct.Struct("<BII")
# of a part in a segment: the first byte, the number of pieces, the segment; the size of each
_FAR_PART = 0x46
_FAR = struct.Struct("<BII")
# what stands for views of mapped shards, before the part that they belong to: the first byte, the number of bytes
_VIEWS_MARK = 0x56
_VIEWS_HEAD = struct.Struct("<BI")
# of credits: the first byte and how many; of each window, block, eager, collating; the segments that can be used again
_GRANT = 0x47
_GRANTS = struct.Struct("<BI")
_CREDIT = struct.Struct("<qq??")
_LEAST_BYTES = 1 << 18
_ALIGNMENT = 64
# how a column's values travel: as a list; packed by the native core; beside the part; as bytes of an array; as views
_LIST, _PACKED, _BESIDE, _ARRAY, _VIEWED = range(5)
# a part or columns as a tuple of values that are pickled fast
Packed = tuple[Any, ...]
# of all workers; each costs a descriptor, of which a program may have 1024 as a rule
_MOST_SEGMENTS = 128
# of a worker
_SEGMENTS = range(8, 64)


class _Stream:
    """What a pickler writes to.

    Args:
        write: takes bytes.
    """

    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as arrays, which travel without a copy into the stream.

    It is used again and again, and keeps nothing of a value between two calls.
    """

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._buffers: list[pickle.PickleBuffer] = []
        super().__init__(_Stream(self._written.append), 5, buffer_callback=self._buffers.append)

    def pickle_value(self, value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
        """Return a value as bytes, and the buffers that go beside them."""
        written, buffers = self._written, self._buffers
        try:
            self.dump(value)
            return written[0] if len(written) == 1 else b"".join(written), buffers.copy()
        finally:
            self.clear_memo()
            written.clear()
            buffers.clear()

    def reducer_override(self, value: object) -> tuple[Callable[..., object], tuple[object, ...]]:
        if type(value) is memoryview:
            return reduce_view(value)
        torch = loaded_module("torch")
        if torch is not None and type(value) is torch.Tensor:
            array = as_array(value)
            if array is not None:
                from webdataset.codecs.torch_codecs import array_to_tensor  # noqa: PLC0415  torch is loaded already, this module not

                return array_to_tensor, (array,)
        unchanged: tuple[Callable[..., object], tuple[object, ...]] = NotImplemented
        return unchanged


class _LargeBytes:
    """Bytes that are pickled as a buffer, and unpickled as bytes: the consumer's are their only copy there."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def __reduce__(self) -> tuple[type[bytes], tuple[pickle.PickleBuffer]]:
        return bytes, (pickle.PickleBuffer(self._value),)


def _expose_bytes(value: object, depth: int) -> object:
    """Return a value with large bytes in it marked as such.

    Args:
        value: a dictionary, list or tuple; anything else is returned as it is.
        depth: of the containers that are looked into.
    """
    if type(value) not in _CONTAINERS or not depth:
        return value
    held = cast("Collection[Any]", value.values() if isinstance(value, dict) else value)
    kinds = set(map(type, held))
    if kinds == _BYTES and max(map(len, held)) < _LARGE_BYTES:
        return value
    inside = depth > 1 and not kinds.isdisjoint(_CONTAINERS)
    if not inside and bytes not in kinds:
        return value
    exposed: list[object] = [
        _LargeBytes(each) if type(each) is bytes and len(each) >= _LARGE_BYTES else each for each in held
    ]
    if inside:
        exposed = [_expose_bytes(each, depth - 1) for each in exposed]
    if all(map(operator.is_, exposed, held)):
        return value
    if isinstance(value, dict):
        return dict(zip(value, exposed, strict=True))
    return exposed if isinstance(value, list) else tuple(exposed)


def _pack_part(part: WindowPart, payloads: list[bytes | memoryview], pack: PackValues | None) -> Packed:
    """Return a part as a tuple of values that are pickled fast; what travels beside it goes to ``payloads``."""
    rows = part.rows
    return (
        part.worker,
        part.window,
        (rows.start, rows.stop, rows.step) if type(rows) is range else rows,
        None if part.columns is None else _pack_columns(part.columns, payloads, pack),
        [_expose_bytes(sample, 2) for sample in part.beside],
        part.placed,
        part.progress,
        part.steps,
        part.over,
        part.busy,
        part.error,
        part.timings,
        part.findings,
        part.turns,
        part.counted,
        part.outcomes,
    )


def _unpack_part(packed: Packed, payloads: Iterator[bytes | memoryview]) -> WindowPart:
    worker, window, rows, columns, *rest = packed
    found = range(*rows) if type(rows) is tuple and rows else rows
    return WindowPart(worker, window, found, None if columns is None else _unpack_columns(columns, payloads), *rest)


def _pack_columns(columns: Columns, payloads: list[bytes | memoryview], pack: PackValues | None) -> Packed:
    fields: list[Packed | None]
    # what is small on the whole is copied as fast as it is looked at
    if columns.size_bytes < _SMALL_BYTES * columns.size:
        fields = [None if column is None else _pack_small(column, pack) for column in columns.fields]
    else:
        fields = [None if column is None else _pack_large(column, payloads) for column in columns.fields]
    return columns.kind, columns.keys, fields, columns.size, columns.size_bytes, columns.placed, columns.shown


def _pack_small(column: FieldColumn, pack: PackValues | None) -> Packed:
    form, values = column.form, column.values
    if form not in (LISTED, LOOSE):
        return _pack_array(column)
    packed = pack(values) if pack is not None and form == LISTED else None
    if packed is None:
        return _LIST, form, values
    return _PACKED, PACKED, packed, len(values), type(values[0]) is str


def _pack_large(column: FieldColumn, payloads: list[bytes | memoryview]) -> Packed:
    form, values = column.form, column.values
    if form not in (LISTED, LOOSE):
        return _pack_array(column)
    kinds = set(map(type, values))
    if kinds == _VIEWS and all(map(is_plain_view, values)):
        payloads += values
        return _VIEWED, form, len(values)
    if kinds == _BYTES and sum(map(len, values)) >= max(_INLINE_BYTES, _LARGE_BYTES * len(values)):
        payloads += values
        return _BESIDE, form, len(values)
    return _LIST, form, _expose_bytes(values, 1)


def _pack_array(column: FieldColumn) -> Packed:
    return _ARRAY, column.form, column.values.tobytes(), column.values.dtype.str


def _unpack_columns(packed: Packed, payloads: Iterator[bytes | memoryview]) -> Columns:
    kind, keys, fields, *rest = packed
    found: list[FieldColumn | None] = []
    for field in fields:
        if field is None:
            found.append(None)
            continue
        way, form, values, *more = field
        if way == _PACKED:
            values = PackedValues(values, *more)
        elif way == _BESIDE:
            values = list(itertools.islice(payloads, values))
        elif way == _VIEWED:
            # some were sent as bytes
            values = list(map(open_view, itertools.islice(payloads, values)))
        elif way == _ARRAY:
            # a copy of numbers, since it becomes the consumer's
            values = np.frombuffer(values, *more).copy()
        found.append(FieldColumn(form, values))
    return Columns(kind, keys, found, *rest)


def pack_credits(grants: Sequence[WindowCredit], freed: Sequence[int] = ()) -> bytes:
    """Return credits as a message, without the blocks' arrays.

    Args:
        grants: for windows.
        freed: segments that the worker can use again.
    """
    message = _GRANTS.pack(_GRANT, len(grants))
    for each in grants:
        message += _CREDIT.pack(each.window, each.block, each.eager, each.collating)
    return message + struct.pack(f"<{len(freed)}I", *freed) if freed else message


def unpack_credits(message: bytes) -> tuple[list[WindowCredit], tuple[int, ...]] | None:
    """Return the credits of a message, without the blocks' arrays, and the freed segments; None for another order."""
    if message[0] != _GRANT:
        return None
    _, count = _GRANTS.unpack_from(message)
    end = _GRANTS.size + count * _CREDIT.size
    granted = [
        WindowCredit(window, block, eager=eager, collating=collating)
        for window, block, eager, collating in _CREDIT.iter_unpack(message[_GRANTS.size : end])
    ]
    return granted, struct.unpack_from(f"<{(len(message) - end) // 4}I", message, end)


# the largest block that glibc takes for a hint
_MOST_KEPT_BYTES = (1 << 25) - (1 << 16)
_KEPT_WINDOWS = 2


def _keep_freed_memory(size_bytes: int) -> None:
    """Let the C library keep freed memory, about twice as many bytes, for what comes next.

    By default glibc gives memory back to the system as soon as 128 KB at the end of its heap are free, and the system
    clears each page again at its first touch. A larger block that was freed once raises that limit to twice its size,
    as a program's own arrays do. The block is not touched. Other C libraries are as they were.
    """
    np.empty(min(size_bytes, _MOST_KEPT_BYTES), np.uint8)


class PartSender:
    """The worker's side."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._pickler = _Pickler()
        core = find_native()
        self._pack: PackValues | None = None if core is None else core.pack_values
        self._segments: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        # where views of mapped shards were sent
        self._views: ViewSender | None = None

    def release_segment(self, number: int) -> None:
        """Take note that the consumer needs a segment no more."""
        self._free.append(number)

    def send(self, part: WindowPart) -> None:
        """Send a part.

        Raises:
            FlowError: a sample that cannot be pickled.
            SharedMemoryError: there is no memory for a large one.
        """
        payloads: list[bytes | memoryview] = []
        try:
            content, buffers = self._pickler.pickle_value(_pack_part(part, payloads, self._pack))
        except Exception as error:  # whatever pickling a user's object raises
            why = shorten_pickling_error(error)
            raise FlowError(
                f"a sample cannot be sent from a worker process, since it cannot be pickled ({why}): take "
                "the field out before the loader, or use mode='threads'"
            ) from error
        views = None
        if (buffers or payloads) and has_mapped_files():
            self._views = self._views or ViewSender(self._pipe)
            views = self._views.refer_to(buffers, payloads)
        if not buffers and not payloads and len(content) <= _INLINE_BYTES:
            self._send_part(views, _INLINE_ALONE.pack(_PART, 1, len(content)), content)
            return
        pieces: list[bytes | memoryview] = [content, *[buffer.raw() for buffer in buffers], *payloads]
        sizes = [len(piece) for piece in pieces]
        if sum(sizes) <= _INLINE_BYTES and not payloads:
            self._send_part(views, _INLINE.pack(_PART, len(sizes)), struct.pack(f"<{len(sizes)}I", *sizes), *pieces)
            return
        number, memory = self._segment(sum(sizes) + _ALIGNMENT * len(sizes))
        start = 0
        for piece, size in zip(pieces, sizes, strict=True):
            memory[start : start + size] = piece
            start += size + -size % _ALIGNMENT
        head = _FAR.pack(_FAR_PART, len(buffers) + 1, number)
        self._send_part(views, head, struct.pack(f"<{len(sizes)}Q", *sizes))

    def _send_part(self, views: bytes | None, *pieces: bytes | memoryview) -> None:
        """Send a part, with what stands for its views before it."""
        if views is None:
            self._pipe.send(*pieces)
        else:
            self._pipe.send(_VIEWS_HEAD.pack(_VIEWS_MARK, len(views)), views, *pieces)

    def _segment(self, size: int) -> tuple[int, mmap.mmap]:
        """Return a segment of at least so many bytes that is not in use."""
        # the one used last: its pages are warm
        for number in reversed(self._free):
            if len(self._segments[number]) >= size:
                self._free.remove(number)
                return number, self._segments[number]
        # all too small
        if self._free:
            self._pipe.send(pickle.dumps(("forget", gone := self._free.pop())))
            del self._segments[gone]
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        # the samples of a part are freed all at once
        _keep_freed_memory(size)
        number = max(self._segments, default=-1) + 1
        with share_memory(size) as (descriptor, memory):
            self._pipe.send(pickle.dumps(("segment", number, size)))
            self._pipe.send_descriptor(descriptor)
            self._segments[number] = memory
        return number, memory


class PartReceiver:
    """The consumer's side.

    Args:
        pipe: to the worker.
        workers: how many there are: together they have a bounded number of segments.
    """

    def __init__(self, pipe: MessagePipe, workers: int) -> None:
        self.pipe = pipe
        self._workers = workers
        self._most = min(max(_MOST_SEGMENTS // workers, _SEGMENTS.start), _SEGMENTS.stop)
        self._segments: dict[int, MemoryBlock] = {}
        self._loans: Leases[int] = Leases()
        # of which all was copied
        self._copied: list[int] = []
        self._largest = 0
        # number and size of one that was announced, and whose descriptor has not come yet
        self._announced: tuple[int, int] | None = None
        self._views: ViewReceiver | None = None

    def release_segments(self) -> list[int]:
        """Return the numbers of segments that the worker can use again, and was not told of."""
        freed, self._copied = self._copied, []
        while (number := self._loans.back()) is not None:
            freed.append(number)
        return freed

    def receive(self) -> WindowPart | None:
        """Wait for a message; return the part that it brought. None: it brought none, or did not come in time.

        Raises:
            EOFError: the worker is gone.
            OSError: the same.
            SharedMemoryError: memory cannot be mapped here.
            FlowError: a sample that cannot be unpickled.
        """
        views = self._views
        if self._announced is not None or (views is not None and views.awaited is not None):
            if self._announced is not None:
                self._receive_segment(*self._announced)
            elif views is not None:
                views.receive_file()
            return None
        message = self.pipe.receive_in_time()
        if message is None:
            return None
        if message[0] == _VIEWS_MARK:
            message = self._take_views(message)
        if message[0] == _PART:
            _, count = _INLINE.unpack_from(message)
            if count == 1:
                return _unpickle(memoryview(message)[_INLINE.size + 4 :], [], iter(()), self._views)
            sizes = struct.unpack_from(f"<{count}I", message, _INLINE.size)
            stops = itertools.accumulate(sizes, initial=_INLINE.size + 4 * count)
            content, *pieces = [memoryview(message)[a:b] for a, b in itertools.pairwise(stops)]
            return _unpickle(content, list(map(bytearray, pieces)), iter(()), self._views)
        if message[0] == _FAR_PART:
            return self._receive_far(message)
        self._take_order(*pickle.loads(message))  # noqa: S301  our own worker's
        return None

    def _take_order(self, kind: str, number: int, *rest: object) -> None:
        """Take what a message says of segments, or of views."""
        if kind == "segment":
            self._receive_segment(number, cast("int", rest[0]))
        elif kind == "forget":
            del self._segments[number]
        else:
            self._views = self._views or ViewReceiver(self.pipe)
            self._views.take(kind, (number, *rest))

    def _take_views(self, message: bytes) -> bytes:
        """Take what stands for the views of a part; return the part's message."""
        stop = _VIEWS_HEAD.size + _VIEWS_HEAD.unpack_from(message)[1]
        if self._views is None:
            raise FlowError("views of a file came before the file")
        self._views.take_views(message[_VIEWS_HEAD.size : stop])
        return message[stop:]

    def _receive_segment(self, number: int, size_bytes: int) -> None:
        """Receive the descriptor of a segment, or take note that it is to come."""
        self._announced = number, size_bytes
        block = self.pipe.receive_block_in_time(number, size_bytes)
        if block is not None:
            self._segments[number], self._announced = block, None

    def _receive_far(self, message: bytes) -> WindowPart:
        """Return a part that stands in a segment."""
        _, count, number = _FAR.unpack_from(message)
        sizes = struct.unpack_from(f"<{(len(message) - _FAR.size) // 8}Q", message, _FAR.size)
        block = self._segments[number]
        starts = list(itertools.accumulate([size + -size % _ALIGNMENT for size in sizes], initial=0))
        if starts[-1] - starts[count] > self._largest:
            self._largest = block.size_bytes
            # the payloads of a batch are freed all at once, and those of all windows at the end of an epoch
            _keep_freed_memory(self._largest * self._workers * _KEPT_WINDOWS)
        cut = block.memory.__getitem__
        payloads = map(cut, map(slice, starts[count:], map(operator.add, starts[count:], sizes[count:])))
        if count == 1:
            try:
                with memoryview(block.memory) as content:
                    return _unpickle(content[: sizes[0]], [], payloads, self._views)
            finally:
                self._copied.append(number)
        lent = block.lend(self._loans, number)
        # the consumer keeps what it gets
        if len(self._segments) > self._most:
            lent = lent[: starts[count]].copy()
        first, *others = [lent[start : start + size] for start, size in zip(starts, sizes[:count], strict=False)]
        return _unpickle(first, others, payloads, self._views)


def _unpickle(
    content: "memoryview | npt.NDArray[np.uint8]",
    buffers: Sequence[object],
    payloads: Iterator[bytes | memoryview],
    views: ViewReceiver | None,
) -> WindowPart:
    if views is not None:
        buffers, payloads = views.insert_views(buffers, payloads)
    try:
        packed: Packed = pickle.loads(content, buffers=buffers)  # type: ignore[arg-type]  # noqa: S301  our own worker's
    except Exception as error:  # whatever unpickling a user's object raises
        raise FlowError(
            f"a sample that came from a worker process cannot be unpickled ({describe_error(error)}): mend its class, "
            "take the "
            "field out before the loader, or use mode='threads'"
        ) from error
    return _unpack_part(packed, payloads)
