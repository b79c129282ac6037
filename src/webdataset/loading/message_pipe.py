"""Pipes between a loader and its worker processes: messages, and descriptors of memory.

Theory. A message is its size and its bytes. The workers' side waits until a message is sent. The consumer's side never
waits for a full pipe, since the worker may wait for the consumer to read: ``send_now`` sends what fits. Nor does it
wait for the rest of a message: a worker may be stopped in the midst of it while others have sent theirs. A descriptor
follows the message that announces it. `multiprocessing.connection` copies each message twice more, and takes two system
calls and about twenty calls of Python for one.
"""

import contextlib
import errno
import mmap
import os
import select
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

from webdataset.core.errors import FlowError, describe_error
from webdataset.core.process_limits import find_file_limits
from webdataset.loading.shared_memory import MemoryBlock, create_shared_file

_SIZE = struct.Struct("<I")


class MessagePipe:
    """One end of a pipe.

    Args:
        connection: of ``multiprocessing.Pipe()``; it is closed here, its descriptor lives on.
        waiting_seconds: how long what receives in time waits; None: until something comes.
    """

    def __init__(self, connection: Connection, waiting_seconds: float | None = None) -> None:
        # what came in time of a message whose rest did not
        self._begun = b""
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        # socket.setdefaulttimeout() would let it not wait any more
        self._socket.setblocking(True)
        if waiting_seconds is not None:
            whole = int(waiting_seconds)
            limit = struct.pack("@ll", whole, int((waiting_seconds - whole) * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def receive(self) -> bytes:
        """Wait for a message, and return it.

        Raises:
            EOFError: the other process is gone.
            OSError: the same.
        """
        while (message := self.receive_in_time()) is None:
            pass
        return message

    def receive_in_time(self) -> bytes | None:
        """Wait for a message, and return it; None where it has not come in time, or not all of it: it is kept.

        Raises:
            EOFError: the other process is gone.
            OSError: the same.
        """
        if self._begun:
            return self._receive_rest(self._begun)
        try:
            head = self._socket.recv(_SIZE.size, socket.MSG_WAITALL)
        except BlockingIOError:
            return None
        if len(head) < _SIZE.size:
            return self._receive_rest(head)
        (size,) = _SIZE.unpack(head)
        try:
            message = self._socket.recv(size, socket.MSG_WAITALL)
        except BlockingIOError:
            message = b""
        return message if len(message) == size else self._receive_rest(head + message)

    def _receive_rest(self, begun: bytes) -> bytes | None:
        """Return a message of which some bytes came before a signal, or in time; None where the rest does not."""
        # the size, and then all
        length = _SIZE.size
        while begun:
            if len(begun) >= _SIZE.size:
                length = _SIZE.size + _SIZE.unpack_from(begun)[0]
                if len(begun) == length:
                    self._begun = b""
                    return begun[_SIZE.size :]
            try:
                more = self._socket.recv(length - len(begun), socket.MSG_WAITALL)
            except BlockingIOError:
                self._begun = begun
                return None
            if not more:
                break
            begun += more
        raise EOFError

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send a message, and wait until the pipe has taken it.

        Args:
            *pieces: follow each other in the message.

        Raises:
            OSError: the other process is gone.
        """
        self._socket.sendall(frame_message(*pieces))

    def send_now(self, frame: memoryview) -> int:
        """Send as much as fits into the pipe; return the number of bytes.

        Args:
            frame: of ``frame_message``, or the rest of it.

        Raises:
            OSError: the other process is gone.
        """
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def poll(self, seconds: float = 0.0, *, writing: bool = False) -> bool:
        """Wait until there is something to read, or room to write; return whether there is."""
        found = select.poll()
        found.register(self._socket, select.POLLOUT if writing else select.POLLIN)
        return bool(found.poll(seconds * 1000))

    def send_descriptor(self, descriptor: int) -> None:
        """Send a descriptor, after the message that announces it; it stays open here.

        Raises:
            SharedMemoryError: too many descriptors are on their way.
            OSError: the other process is gone.
        """
        with explain_shared_memory():
            # multiprocessing.reduction.sendfds() waits for an answer on macOS, and since Python 3.14 everywhere
            socket.send_fds(self._socket, [b"\0"], [descriptor])

    def receive_block(self, number: int, size_bytes: int) -> MemoryBlock:
        """Wait for the descriptor that follows a message, and map its file.

        Raises:
            SharedMemoryError: this process can have no more files.
            EOFError: the other process is gone.
        """
        while (block := self.receive_block_in_time(number, size_bytes)) is None:
            pass
        return block

    def receive_block_in_time(self, number: int, size_bytes: int) -> MemoryBlock | None:
        """Receive the descriptor that follows a message, and map its file; None where it has not come in time.

        Raises:
            SharedMemoryError: this process can have no more files.
            EOFError: the other process is gone.
        """
        descriptor = self.receive_descriptor_in_time()
        if descriptor is None:
            return None
        try:
            with explain_shared_memory():
                return MemoryBlock(number, mmap.mmap(descriptor, size_bytes))
        finally:
            os.close(descriptor)

    def receive_descriptor_in_time(self) -> int | None:
        """Receive the descriptor that follows a message, which is the caller's to close; None where it has not come.

        Raises:
            SharedMemoryError: this process can have no more files.
            EOFError: the other process is gone.
        """
        with explain_shared_memory():
            try:
                sent, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
            except BlockingIOError:
                # the other process may be stopped between the message and its descriptor
                return None
            if not sent:
                raise EOFError
            if not descriptors:
                raise OSError(errno.EMFILE, "a descriptor was lost on its way")
            descriptor: int = descriptors[0]
            return descriptor

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def __del__(self) -> None:
        # a loader that was forgotten, or that a fork has inherited, warns of nothing
        with contextlib.suppress(AttributeError):
            self.close()


def frame_message(*pieces: bytes | memoryview) -> bytes:
    """Return a message with its size before it."""
    if len(pieces) == 1:
        return _SIZE.pack(len(pieces[0])) + pieces[0]
    return b"".join([_SIZE.pack(sum([len(piece) for piece in pieces])), *pieces])


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
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            found = "there are no file descriptors left"
            hint = f"raise the limit (ulimit -n, now {find_file_limits()[0]}), hold fewer"
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
