"""Messages between processes of one user on one machine: JSON and file descriptors over a Unix socket.

Theory. A ``SEQPACKET`` socket keeps messages apart, and tells the end of the other process. A message is one JSON
object; one that is larger than a packet travels in a memory file whose descriptor is sent in its place. The kernel says
which user and process the other side is (``SO_PEERCRED``): only the same user is spoken to. Nothing is unpickled. What
a socket brings is checked, and descriptors that were not asked for are closed by the kernel.

Descriptors are closed in forked children, so that the end of a process is seen although its children live.
"""

import contextlib
import errno
import json
import os
import re
import select
import socket
import stat
import struct
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from webdataset.core import settings
from webdataset.core.errors import FlowError, NotFound, SourceError, UsageError
from webdataset.loading.shared_memory import create_shared_file
from webdataset.stages.base import Json

# SharedLoader says that it needs Linux
if sys.platform != "win32":
    import fcntl

Message = dict[str, Json]

# of one packet; larger messages travel in a memory file
PACKET_BYTES = 1 << 15
_MOST_BYTES = 1 << 28
# messages that wait for a process which does not read
MOST_WAITING = 256
_PATH_BYTES = 107
_SEAL_FUTURE_WRITE = 16
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _SEAL_FUTURE_WRITE if sys.platform == "linux" else 0
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}\Z")
_CREDENTIALS = struct.Struct("3i")


class ChannelError(FlowError):
    """The other side of a channel said something that it must not say."""


class UnixChannel:
    """One end of a connection.

    Args:
        connection: a connected ``SEQPACKET`` socket, which this owns.
        waits: sending waits until there is room; else messages are kept until :meth:`flush`.
        most_waiting: messages that are kept.
    """

    def __init__(self, connection: socket.socket, *, waits: bool, most_waiting: int = MOST_WAITING) -> None:
        connection.setblocking(waits)
        self._connection = connection
        self._waits, self._most_waiting = waits, most_waiting
        self._poll: select.poll | None = None
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self.process, self.user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        # a process in another namespace has no number here, and is known by its socket alone
        self.alive = _open_process(self.process)
        close_in_children(self)

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 after :meth:`close`."""
        return self._connection.fileno()

    @property
    def has_waiting(self) -> bool:
        """True where messages wait for room."""
        return bool(self._waiting)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Args:
            message: a JSON object.
            descriptors: of files; they stay open here.

        Raises:
            ChannelError: the other process does not read.
            OSError: it is gone.
        """
        packet = json.dumps(message, separators=(",", ":")).encode()
        if len(packet) <= PACKET_BYTES:
            self._send_packet(packet, descriptors)
            return
        file = create_shared_file(len(packet))
        try:
            _write_all(file, packet)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
            self._send_packet(b'{"far":%d}' % len(packet), [file, *descriptors])
        finally:
            os.close(file)

    def _send_packet(self, packet: bytes, descriptors: Sequence[int]) -> None:
        if not self._waiting:
            try:
                socket.send_fds(self._connection, [packet], list(descriptors), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                pass
            else:
                return
        if len(self._waiting) >= self._most_waiting:
            raise ChannelError(f"process {self.process} does not read what is sent to it")
        self._waiting.append((packet, [os.dup(each) for each in descriptors]))

    def flush(self) -> None:
        """Send what waited, as far as there is room.

        Raises:
            OSError: the other process is gone.
        """
        while self._waiting:
            packet, descriptors = self._waiting[0]
            try:
                socket.send_fds(self._connection, [packet], descriptors, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            self._waiting.popleft()
            for each in descriptors:
                os.close(each)

    def receive(self, most_descriptors: int = 1) -> tuple[Message, list[int]] | None:
        """Return a message and the descriptors that came with it, which the caller closes; None where none is there.

        Raises:
            EOFError: the other process is gone.
            ChannelError: what came is no message.
        """
        flags = 0 if self._waits else socket.MSG_DONTWAIT
        try:
            packet, descriptors, _, _ = socket.recv_fds(
                self._connection, PACKET_BYTES + 1, most_descriptors, flags | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
        if not packet:
            _close_all(descriptors)
            raise EOFError("the other process has ended")
        try:
            message = _parse_message(packet)
            if "far" in message:
                message = _parse_message(_read_far(message["far"], descriptors))
        except BaseException:  # raised again, with no descriptor left
            _close_all(descriptors)
            raise
        return message, descriptors

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for a message; return whether one is there.

        Raises:
            EOFError: the other process has ended, and all its messages are read.
        """
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.fileno(), select.POLLIN)
            if self.alive is not None:
                self._poll.register(self.alive, select.POLLIN)
        found = [descriptor for descriptor, _ in self._poll.poll(timeout_seconds * 1000)]
        if self.fileno() in found:
            return True
        # a child of it may hold the socket, so that this does not end
        if found and not _is_readable(self.fileno()):
            raise EOFError("the other process has ended")
        return bool(found)

    @property
    def has_ended(self) -> bool:
        """True where the other process is known to have ended, though a child of it may hold the socket."""
        return self.alive is not None and _is_readable(self.alive)

    def close(self) -> None:
        """Close it; may be called twice."""
        for _, descriptors in self._waiting:
            _close_all(descriptors)
        self._waiting.clear()
        self._connection.close()
        if self.alive is not None:
            os.close(self.alive)
            self.alive = None


def _is_readable(descriptor: int) -> bool:
    """Tell whether a descriptor can be read now; ``select`` would take none from 1024 on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _open_process(process: int) -> int | None:
    try:
        return os.pidfd_open(process) if process > 0 else None
    except OSError:
        return None


def _parse_message(packet: bytes) -> Message:
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise ChannelError("what came is no JSON") from error
    if type(message) is not dict:
        raise ChannelError("what came is no message")
    return message


def _read_far(size: object, descriptors: list[int]) -> bytes:
    """Read a message from the memory file that came in its place, and close that."""
    if type(size) is not int or not 0 < size <= _MOST_BYTES or not descriptors:
        raise ChannelError("a message in a file came without the file")
    file = descriptors.pop(0)
    try:
        check_memory_file(file, size)
        return os.pread(file, size, 0)
    finally:
        os.close(file)


def check_memory_file(descriptor: int, size: int) -> None:
    """Refuse a file that is not a memory file of at least this size, sealed against shrinking.

    Raises:
        ChannelError: it is none.
    """
    status = os.fstat(descriptor)
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:
        sealed = 0
    if not stat.S_ISREG(status.st_mode) or status.st_size < size or not sealed:
        raise ChannelError("a descriptor came that is no sealed memory file of its size")


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _close_all(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def find_socket_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a stream's socket: a name's in the user's own folder, or the path itself.

    Args:
        name: letters, digits, ``_``, ``.``, ``-``; or a path, which has a ``/``.

    Raises:
        UsageError: a name that cannot be used, or a folder that belongs to another user.
    """
    text = os.fspath(name)
    path = Path(text).absolute() if "/" in text else _runtime_folder() / f"{text}.sock"
    if "/" not in text and not _NAME.match(text):
        raise UsageError(f"name={text!r}: up to 60 letters, digits, '_', '.' and '-'; or the path of a socket")
    if len(os.fsencode(path)) > _PATH_BYTES - len(".lock"):
        raise UsageError(f"the socket's path is too long for the system ({path}): take a shorter name or folder")
    return path


def _runtime_folder() -> Path:
    base = settings.RUNTIME_FOLDER.get()
    folder = Path(base) / "webdataset" if base else Path(tempfile.gettempdir()) / f"webdataset-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(f"{folder} is open to other users, or belongs to one: set XDG_RUNTIME_DIR, or chmod 700 it")
    return folder


class StreamLock:
    """The lock of a stream: held by its owner, and freed by the system when that process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        close_in_children(self)

    def close(self) -> None:
        """Free it; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take_lock(path: Path) -> StreamLock | None:
    """Return the lock of a stream, or None where another process holds it.

    Raises:
        UsageError: it is another user's.
        SourceError: there is no such folder, or nothing can be written there.
    """
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise UsageError(f"{path}.lock is another user's: use another name for this user's stream") from error
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else SourceError
        said = f"the folder of the stream's socket cannot be written to: {error.strerror}"
        raise kind(f"{said}; make the folder, or name the stream without '/'", url=str(path)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return StreamLock(descriptor)


def listen(path: Path) -> socket.socket:
    """Return a socket that listens; the caller holds the stream's lock.

    Raises:
        UsageError: there is a file that is no socket.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is there, and is no socket: give the stream another name, or move the file away")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    listener.listen(64)
    listener.setblocking(False)
    close_in_children(listener)
    return listener


def connect(path: Path) -> UnixChannel | None:
    """Return a channel to a stream's owner; None where none listens.

    Raises:
        UsageError: the owner is another user.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(os.fspath(path))
        channel = UnixChannel(connection, waits=True)
    except (FileNotFoundError, ConnectionError):
        connection.close()
        return None
    except PermissionError as error:
        connection.close()
        raise UsageError(f"{path} is another user's socket: use another name for this user's stream") from error
    except OSError:
        connection.close()
        raise
    if channel.user != os.getuid():
        channel.close()
        raise UsageError(
            f"{path} is the socket of user {channel.user}, and this is user {os.getuid()}: use another name"
        )
    return channel


class _Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Close it."""


_open: "weakref.WeakSet[_Closable]" = weakref.WeakSet()


def close_in_children(resource: _Closable) -> None:
    """Close something with ``close()`` in each forked child."""
    _open.add(resource)


def _close_after_fork() -> None:
    for resource in list(_open):
        with contextlib.suppress(OSError):
            resource.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)
