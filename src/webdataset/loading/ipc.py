"""Sends parts from a worker process: small ones through its pipe, large ones through shared memory.

Theory. A pipe copies twice, and the sender waits until the other side reads. So large content (images of different
sizes, undecoded fields, batches that a pipeline made) goes into a *segment*: a memory file without a name, made by the
worker, whose descriptor is sent once. Arrays are pickled out of band (protocol 5); the consumer's arrays are views of
the segment, and the worker writes to it again when they are gone.

No segment outlives both processes, however they end.
"""

import contextlib
import errno
import io
import itertools
import mmap
import operator
import os
import pickle
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from webdataset.core.errors import FlowError, describe_error
from webdataset.core.optional_imports import loaded_module
from webdataset.loading.columns import LISTED, LOOSE, Columns, FieldColumn
from webdataset.loading.shared_memory import Leases, MemoryBlock, as_array, create_shared_file
from webdataset.loading.worker import WindowCredit, WindowPart

if TYPE_CHECKING:
    import numpy.typing as npt

_INLINE_BYTES = 1 << 16
# bytes from here on are copied once on each side, and not through the stream of small values
_LARGE_BYTES = 1 << 13
# a sample, on average
_SMALL_BYTES = 1 << 10
_CONTAINERS = frozenset([dict, list, tuple])
_BYTES = frozenset([bytes])
# of a part that comes through the pipe: the first byte (no pickle's), the number of pieces; the size of each
_PART = 0x50
# of a credit: the first byte, window, block, eager, collating
_GRANT = 0x47
_CREDIT = struct.Struct("<Bqq??")
_INLINE, _SIZE = struct.Struct("<BI"), struct.Struct("<I")
_LEAST_BYTES = 1 << 18
_ALIGNMENT = 64
# a part or columns as a tuple of values that are pickled fast
Packed = tuple[Any, ...]
# of all workers; each costs a descriptor, of which a program may have 1024 as a rule
_MOST_SEGMENTS = 128
# of a worker
_SEGMENTS = range(8, 64)


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as arrays, which travel without a copy into the stream."""

    def reducer_override(self, value: object) -> tuple[Callable[..., object], tuple[object]]:
        torch = loaded_module("torch")
        if torch is not None and type(value) is torch.Tensor:
            array = as_array(value)
            if array is not None:
                from webdataset.codecs.torch_codecs import array_to_tensor  # noqa: PLC0415  torch is loaded already, this module not

                return array_to_tensor, (array,)
        unchanged: tuple[Callable[..., object], tuple[object]] = NotImplemented
        return unchanged


class SharedMemoryError(FlowError):
    """Memory could not be shared with a worker process: this system has no room for it, or no descriptor is left."""


@contextlib.contextmanager
def explain_shared_memory() -> Iterator[None]:
    """Say what to do where memory cannot be shared.

    Raises:
        SharedMemoryError: the system refused.
        ConnectionError: the other process is gone.
    """
    try:
        yield
    except ConnectionError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: a descriptor that could not be received
        if isinstance(error, RuntimeError) or error.errno in (errno.EMFILE, errno.ENFILE):
            import resource  # noqa: PLC0415  not on Windows, where this is not reached

            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            found, hint = "there are no file descriptors left", f"raise the limit (ulimit -n, now {most}), hold fewer"
        else:
            found, hint = describe_error(error), "take a smaller batch_size or prefetch, hold fewer"
        raise SharedMemoryError(
            f"a batch's memory cannot be shared between this program and its workers: {found}; {hint} batches at a "
            "time, or use mode='threads'"
        ) from error


@contextlib.contextmanager
def share_memory(size_bytes: int) -> Iterator[tuple[int, mmap.mmap]]:
    """Give the descriptor of a new memory file, to be sent within this context, and its map, which outlives it.

    Raises:
        SharedMemoryError: the system refused.
    """
    with explain_shared_memory():
        descriptor = create_shared_file(size_bytes)
    try:
        with explain_shared_memory():
            memory = mmap.mmap(descriptor, size_bytes)
        yield descriptor, memory
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _pipe_socket(pipe: Connection) -> Iterator[socket.socket]:
    """Give a pipe as a socket, without a descriptor of its own."""
    way = socket.socket(fileno=pipe.fileno())
    try:
        # socket.setdefaulttimeout() would let the pipe not wait any more
        way.setblocking(True)
        yield way
    finally:
        way.detach()


def send_block(pipe: Connection, order: object, descriptor: int) -> None:
    """Send a message and a descriptor.

    Args:
        pipe: to the other process.
        order: the message.
        descriptor: of a file; it stays open here.

    Raises:
        SharedMemoryError: too many descriptors are on their way.
        OSError: the other process is gone.
    """
    pipe.send(order)
    with explain_shared_memory(), _pipe_socket(pipe) as way:
        reduction.sendfds(way, [descriptor])


def receive_block(pipe: Connection, number: int, size_bytes: int) -> MemoryBlock:
    """Receive the descriptor that follows a message, and map its file.

    Raises:
        SharedMemoryError: this process can have no more files.
        EOFError: the other process is gone.
    """
    with explain_shared_memory():
        with _pipe_socket(pipe) as way:
            (descriptor,) = reduction.recvfds(way, 1)
        try:
            return MemoryBlock(number, mmap.mmap(descriptor, size_bytes))
        finally:
            os.close(descriptor)


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


def _pack_part(part: WindowPart) -> Packed:
    """Return a part as a tuple of values that are pickled fast."""
    rows = part.rows
    return (
        part.worker,
        part.window,
        (rows.start, rows.stop, rows.step) if type(rows) is range else rows,
        None if part.columns is None else _pack_columns(part.columns),
        [_expose_bytes(sample, 2) for sample in part.beside],
        part.placed,
        part.progress,
        part.over,
        part.busy,
        part.error,
        part.timings,
        part.findings,
        part.turns,
        part.counted,
        part.outcomes,
    )


def _unpack_part(packed: Packed) -> WindowPart:
    worker, window, rows, columns, *rest = packed
    found = range(*rows) if type(rows) is tuple and rows else rows
    return WindowPart(worker, window, found, None if columns is None else _unpack_columns(columns), *rest)


def _pack_columns(columns: Columns) -> Packed:
    # what is small on the whole is copied as fast as it is looked at
    depth = 0 if columns.size_bytes < _SMALL_BYTES * columns.size else 1
    fields = [
        None
        if column is None
        else (column.form, _expose_bytes(column.values, depth))
        if column.form in (LISTED, LOOSE)
        else (column.form, column.values.tobytes(), column.values.dtype.str)
        for column in columns.fields
    ]
    return columns.kind, columns.keys, fields, columns.size, columns.size_bytes, columns.placed, columns.shown


def _unpack_columns(packed: Packed) -> Columns:
    kind, keys, fields, *rest = packed
    found = [
        None
        if field is None
        # a copy of numbers, since it becomes the consumer's
        else FieldColumn(field[0], np.frombuffer(field[1], field[2]).copy() if field[2:] else field[1])
        for field in fields
    ]
    return Columns(kind, keys, found, *rest)


def pack_credit(credit: WindowCredit) -> bytes:
    """Return a credit as a message, without the block's arrays."""
    return _CREDIT.pack(_GRANT, credit.window, credit.block, credit.eager, credit.collating)


def unpack_credit(message: bytes) -> WindowCredit | None:
    """Return the credit of a message, without the block's arrays; None where it is another order."""
    if message[0] != _GRANT:
        return None
    _, window, block, eager, collating = _CREDIT.unpack(message)
    return WindowCredit(window, block, eager=eager, collating=collating)


class PartSender:
    """The worker's side."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._segments: dict[int, mmap.mmap] = {}
        self._free: list[int] = []

    def release_segment(self, number: int) -> None:
        """Take note that the consumer needs a segment no more."""
        self._free.append(number)

    def send(self, part: WindowPart) -> None:
        """Send a part.

        Raises:
            FlowError: a sample that cannot be pickled.
            SharedMemoryError: there is no memory for a large one.
        """
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        try:
            _Pickler(stream, 5, buffer_callback=buffers.append).dump(_pack_part(part))
        except Exception as error:  # whatever pickling a user's object raises
            raise FlowError(
                f"a sample cannot be sent from a worker process, since it cannot be pickled ({describe_error(error)}): "
                "take the field out before the loader, or use mode='threads'"
            ) from error
        pieces = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = [piece.nbytes for piece in pieces]
        if sum(sizes) <= _INLINE_BYTES:
            self._pipe.send_bytes(b"".join([_INLINE.pack(_PART, len(sizes)), *map(_SIZE.pack, sizes), *pieces]))
            return
        number, memory = self._segment(sum(sizes) + _ALIGNMENT * len(sizes))
        places = []
        stop = 0
        for piece, size in zip(pieces, sizes, strict=True):
            start = -(-stop // _ALIGNMENT) * _ALIGNMENT
            stop = start + size
            memory[start:stop] = piece
            places.append((start, stop))
        self._pipe.send(("far", number, places))

    def _segment(self, size: int) -> tuple[int, mmap.mmap]:
        """Return a segment of at least so many bytes that is not in use."""
        # the one used last: its pages are warm
        for number in reversed(self._free):
            if len(self._segments[number]) >= size:
                self._free.remove(number)
                return number, self._segments[number]
        # all too small
        if self._free:
            self._pipe.send(("forget", gone := self._free.pop()))
            del self._segments[gone]
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        number = max(self._segments, default=-1) + 1
        with share_memory(size) as (descriptor, memory):
            send_block(self._pipe, ("segment", number, size), descriptor)
            self._segments[number] = memory
        return number, memory


class PartReceiver:
    """The consumer's side.

    Args:
        pipe: to the worker.
        workers: how many there are: together they have a bounded number of segments.
    """

    def __init__(self, pipe: Connection, workers: int) -> None:
        self.pipe = pipe
        self._most = min(max(_MOST_SEGMENTS // workers, _SEGMENTS.start), _SEGMENTS.stop)
        self._segments: dict[int, MemoryBlock] = {}
        self._loans: Leases[int] = Leases()

    def release_segment(self) -> int | None:
        """Return the number of a segment that the worker can use again, and was not told of; None: there is none."""
        return self._loans.back()

    def receive(self) -> WindowPart | None:
        """Read a message; return the part that it brought, if it did.

        Raises:
            EOFError: the worker is gone.
            OSError: the same.
            SharedMemoryError: memory cannot be mapped here.
            FlowError: a sample that cannot be unpickled.
        """
        message = self.pipe.recv_bytes()
        if message[0] == _PART:
            _, count = _INLINE.unpack_from(message)
            sizes = struct.unpack_from(f"<{count}I", message, _INLINE.size)
            stop = _INLINE.size + count * _SIZE.size
            stops = list(itertools.accumulate(sizes, initial=stop))
            content, *views = [memoryview(message)[a:b] for a, b in itertools.pairwise(stops)]
            return _unpickle(content, list(map(bytearray, views)))
        kind, *rest = pickle.loads(message)  # noqa: S301  our own worker's
        if kind == "segment":
            number, size = rest
            self._segments[number] = receive_block(self.pipe, number, size)
            return None
        if kind == "forget":
            del self._segments[rest[0]]
            return None
        number, places = rest
        memory = self._segments[number].lend(self._loans, number)
        # the consumer keeps what it gets
        if len(self._segments) > self._most:
            memory = memory[: places[-1][1]].copy()
        first, *others = [memory[start:stop] for start, stop in places]
        return _unpickle(first, others)


def _unpickle(
    content: "memoryview | npt.NDArray[np.uint8]", buffers: "Sequence[bytearray | npt.NDArray[np.uint8]]"
) -> WindowPart:
    try:
        packed: Packed = pickle.loads(content, buffers=buffers)  # type: ignore[arg-type]  # noqa: S301  our own worker's
    except Exception as error:  # whatever unpickling a user's object raises
        raise FlowError(
            f"a sample that came from a worker process cannot be unpickled ({describe_error(error)}): mend its class, "
            "take the "
            "field out before the loader, or use mode='threads'"
        ) from error
    return _unpack_part(packed)
