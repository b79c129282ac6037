"""Parts on their way from a worker process: small ones through its pipe, large ones through shared memory.

Theory. A pipe copies twice and lets the sender wait until somebody reads. So whatever is large (images of different
sizes, undecoded fields, batches that a pipeline made itself) goes into a *segment*: a file in memory without a name,
made by the worker, whose descriptor is sent once. Arrays are pickled beside the stream (protocol 5) and stand in the
segment as they are; the consumer's arrays are views of it, and the worker writes to it again when they are gone.

Flows in: a part. Flows out: an equal part. No segment outlives both processes, however they end.
"""

import io
import mmap
import os
import pickle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from webdataset.ground.errors import FlowError, said
from webdataset.ground.extras import loaded

from .buffers import Block, shared_file
from .layout import as_array
from .parts import Part

_INLINE_BYTES = 1 << 14
_LEAST_BYTES = 1 << 18
_ALIGNMENT = 64
_MOST_SEGMENTS = 64  # of a worker; each costs a descriptor


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as arrays, which travel without a copy into the stream."""

    def reducer_override(self, value: Any) -> Any:
        torch = loaded("torch")
        if torch is not None and type(value) is torch.Tensor:
            array = as_array(value)
            if array is not None:
                from .torch_batches import tensor_of  # noqa: PLC0415  torch is loaded already, this module not

                return tensor_of, (array,)
        return NotImplemented


def send_block(pipe: Connection, order: Any, descriptor: int, process: int) -> None:
    """Send a message and a descriptor.

    Args:
        pipe: to the other process.
        order: the message.
        descriptor: of a file; it stays open here.
        process: id of the other process.
    """
    pipe.send(order)
    reduction.send_handle(pipe, descriptor, process)


def receive_block(pipe: Connection, number: int, size_bytes: int) -> Block:
    """Receive the descriptor that follows a message, and map its file.

    Args:
        pipe: to the other process.
        number: of the block.
        size_bytes: of the file.
    """
    descriptor = reduction.recv_handle(pipe)
    try:
        return Block(number, mmap.mmap(descriptor, size_bytes))
    finally:
        os.close(descriptor)


class Sender:
    """The worker's side.

    Args:
        pipe: to the consumer.
        consumer: id of its process.
    """

    def __init__(self, pipe: Connection, consumer: int) -> None:
        self._pipe = pipe
        self._consumer = consumer
        self._segments: dict[int, mmap.mmap] = {}
        self._free: list[int] = []

    def freed(self, number: int) -> None:
        """Take note that the consumer needs a segment no more."""
        self._free.append(number)

    def send(self, part: Part) -> None:
        """Send a part.

        Raises:
            FlowError: a sample that cannot be pickled.
        """
        beside, part.beside = part.beside, []
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        try:
            _Pickler(stream, 5, buffer_callback=buffers.append).dump(beside)
        except Exception as error:  # whatever pickling a user's object raises
            raise FlowError(
                f"a sample cannot be sent from a worker process, since it cannot be pickled ({said(error)}): "
                "take the field out before the loader, or use mode='threads'"
            ) from error
        views = [buffer.raw() for buffer in buffers]
        content = stream.getbuffer()
        size = len(content) + sum(view.nbytes + _ALIGNMENT for view in views)
        if size <= _INLINE_BYTES:
            self._pipe.send(("part", part, bytes(content), [bytes(view) for view in views]))
            return
        number, memory = self._segment(size)
        memory[: len(content)] = content
        places = [(0, len(content))]
        stop = len(content)
        for view in views:
            start = -(-stop // _ALIGNMENT) * _ALIGNMENT
            stop = start + view.nbytes
            memory[start:stop] = view
            places.append((start, stop))
        self._pipe.send(("far", part, number, places))

    def _segment(self, size: int) -> tuple[int, mmap.mmap]:
        """Return a segment of at least so many bytes that nobody uses."""
        for number in self._free:
            if len(self._segments[number]) >= size:
                self._free.remove(number)
                return number, self._segments[number]
        if self._free:  # all too small
            self._pipe.send(("forget", gone := self._free.pop()))
            del self._segments[gone]
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        number = max(self._segments, default=-1) + 1
        descriptor = shared_file(size)
        try:
            memory = self._segments[number] = mmap.mmap(descriptor, size)
            send_block(self._pipe, ("segment", number, size), descriptor, self._consumer)
        finally:
            os.close(descriptor)
        return number, memory


class Receiver:
    """The consumer's side.

    Args:
        pipe: to the worker.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._segments: dict[int, Block] = {}
        self._returned: list[Block] = []  # appended to by finalizers, in any thread

    def freed(self) -> int | None:
        """Return the number of a segment that the worker can use again, and was not told of; None: there is none."""
        try:
            return self._returned.pop().number
        except IndexError:
            return None

    def receive(self) -> Part | None:
        """Read a message; return the part that it brought, if it did.

        Raises:
            EOFError: the worker is gone.
            OSError: the same.
        """
        kind, *rest = self.pipe.recv()
        if kind == "segment":
            number, size = rest
            self._segments[number] = receive_block(self.pipe, number, size)
            return None
        if kind == "forget":
            del self._segments[rest[0]]
            return None
        part: Part = rest[0]
        if kind == "part":
            part.beside = pickle.loads(rest[1], buffers=[bytearray(each) for each in rest[2]])  # noqa: S301  our own worker's
            return part
        _, number, places = rest
        memory = self._segments[number].lend(self._returned.append)
        if len(self._segments) > _MOST_SEGMENTS:  # the consumer keeps what it gets
            memory = memory[: places[-1][1]].copy()
        first, *others = [memory[start:stop] for start, stop in places]
        part.beside = pickle.loads(first, buffers=others)  # noqa: S301  our own worker's
        return part
