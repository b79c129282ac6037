"""Local files as streams, which read on where a mounted file system fails for a moment.

Theory. Network file systems and FUSE mounts refuse reads for a while, as when their server is started again, and then
work as before. A read that was refused is repeated at its offset, as long as the file is the one that was opened. A
handle may be dead for good ("Stale file handle", a FUSE process that ended): so the file is opened by its name again
before each attempt, and where its size and time are those of the first one, the new handle takes the place of the old
one, under the same descriptor. All who know the descriptor, the native core among them, read on.

Files are unbuffered for the shard reader (it reads in large pieces itself) and buffered for ``gopen``, which hands out
files of Python's own. Every error names the path.
"""

import contextlib
import errno
import io
import os
import stat
import sys
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from webdataset.core import settings
from webdataset.core.errors import ShardChanged, WebDatasetError
from webdataset.core.logs import log
from webdataset.core.process_limits import open_with_raised_limit
from webdataset.core.redaction import redact
from webdataset.storage.path_errors import MOST_NAMES, translate_os_error, unnameable_error
from webdataset.storage.streams import FileIdentity, file_identity

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_DEAD = frozenset((errno.ENOTCONN, getattr(errno, "ESTALE", errno.ENOTCONN)))
# what network and FUSE file systems say of themselves, not of the file; not all of it on every system
_NAMES = (
    "EIO EREMOTEIO ETIMEDOUT ESHUTDOWN ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH ENETDOWN ENETRESET "
    "ENETUNREACH ENOLINK EPROTO EAGAIN"
)
# file systems without a disk of their own number
_OF_THIS_MACHINE = frozenset(("btrfs", "overlay", "ramfs", "tmpfs", "zfs"))
_TRANSIENT = _DEAD.union(getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name))


def is_safe_to_map(descriptor: int) -> bool:
    """Tell whether an open file lies on a file system of this machine, neither of a network nor of a process.

    A map is read when it is used. On other file systems a page that does not come then ends the process (SIGBUS).
    """
    if sys.platform != "linux":
        return True
    try:
        device = os.fstat(descriptor).st_dev
        if os.major(device):
            # a disk
            return True
        with open("/proc/self/mountinfo", errors="replace", encoding="utf-8") as stream:  # noqa: PTH123  pathlib is slow to import
            mounts = stream.read().splitlines()
    except OSError:
        return False
    place = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].partition(" ")[0] for line in mounts if line.split(" ", 3)[2:3] == [place]]
    return any(kind in _OF_THIS_MACHINE for kind in kinds)


def is_transient(error: OSError, path: str) -> bool:
    """Tell whether a file system may give later what it refused now.

    Args:
        error: the system's; none that this library made.
        path: what it refused. That it is not there does not count where its folder lists it: mounts of stores say so
            when their store does not answer.
    """
    if isinstance(error, WebDatasetError):
        return False
    return error.errno in _TRANSIENT or (isinstance(error, FileNotFoundError) and _folder_lists(path))


def _folder_lists(path: str) -> bool:
    """Tell whether a folder lists a name; not that of a link, which may lead nowhere."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or os.curdir) as entries:
            return any(entry.name == name and not entry.is_symlink() for entry in islice(entries, MOST_NAMES))
    except (OSError, ValueError):
        return False


def retry_local(
    action: Callable[[], T], failure: OSError, path: str | bytes | os.PathLike[str], verb: str = "read"
) -> T:
    """Call a function again that a file system has refused, as often as requests to a store are repeated.

    Args:
        action: what is called.
        failure: what it raised the first time.
        path: of the file or folder, for log and error.
        verb: what it does with it.

    Raises:
        SourceError: the system refuses, for good or after the last attempt.
        WebDatasetError: what the function raises.
    """
    name, hint = os.fsdecode(path), ""
    try:
        if is_transient(failure, name):
            # needs files, which may be what is lacking, and modules that most runs do without
            from webdataset.storage.retries import RetryBudget  # noqa: PLC0415

            budget = RetryBudget(url=name)
            log.warning("%s: cannot %s: %s; trying again", redact(name), verb, failure.strerror or failure)
            while not budget.spent():
                budget.pause()
                try:
                    return action()
                except OSError as error:
                    failure = error
                if not is_transient(failure, name):
                    break
            else:
                longer = "" if settings.RETRY_SECONDS.get() else "; WDS_RETRY_SECONDS=600 keeps trying for ten minutes"
                hint = f", {budget.describe()}; is the file system mounted, and its server up?{longer}"
        if isinstance(failure, WebDatasetError):
            raise failure
        raise translate_os_error(failure, name, verb, hint) from failure
    finally:
        # it knows this frame
        del failure


def _require_data(found: T | None) -> T:
    """Return what was read. Python gives None where the system says ``EAGAIN``, as some FUSE file systems do."""
    if found is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return found


class LocalFileStream(io.FileIO):
    """A local file, opened for reading. Never gives bytes that were written after it was opened.

    Attributes:
        identity: size and time of the last change when it was opened; None where it is no regular file.

    Raises:
        OSError: it cannot be opened.
        ValueError: no file can have this name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "rb")
        try:
            status = os.fstat(self.fileno())
        except OSError:
            self.close()
            raise
        self.identity: FileIdentity | None = file_identity(status) if stat.S_ISREG(status.st_mode) else None

    def close(self) -> None:
        """Close the file; a file system that fails now has given all that was read."""
        with contextlib.suppress(OSError):
            super().close()

    def check_identity(self) -> None:
        """Raise where the file has been written to since it was opened.

        Raises:
            ShardChanged: it has; what was read may be old or new.
            SourceError: the system does not say, not after several attempts either.
        """
        identity = self.identity
        if identity is None:
            return
        try:
            identity.check(self.fileno(), self.name)
        except ShardChanged:
            raise
        except OSError as error:
            self.retry(lambda: identity.check(self.fileno(), self.name), error)

    def ends_at(self, offset: int) -> bool:
        """Tell whether this is where the file ended when it was opened."""
        return self.identity is not None and self.identity.length == offset

    def seekable(self) -> bool:
        """Tell whether it can seek: a regular file can, and is not asked."""
        return (self.identity is not None and not self.closed) or super().seekable()

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end.

        Raises:
            ShardChanged: the file has been written to since it was opened; these bytes may be old or new.
            SourceError: the system refuses, after several attempts where its reason may pass.
        """
        if size is None or size < 0:
            return self.readall()
        try:
            content: bytes = _require_data(super().read(size))
        except OSError as error:
            content = self.retry(lambda: _require_data(super(LocalFileStream, self).read(size)), error)
        self.check_identity()
        return content

    def readall(self) -> bytes:
        """Return the rest; raises as ``read`` does."""
        if self.identity is None:
            return super().readall()
        length, pieces = self.identity.length, []
        while piece := self.read(max(1, length - self.tell())):
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, buffer: "Buffer", /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end. Raises as ``read`` does."""
        try:
            count: int = _require_data(super().readinto(buffer))
        except OSError as error:
            count = self.retry(lambda: _require_data(super(LocalFileStream, self).readinto(buffer)), error)
        self.check_identity()
        return count

    def retry(self, action: Callable[[], T], failure: OSError) -> T:
        """Call a function again that reads this file, which is opened again where it can be.

        Args:
            action: reads; it does not move the position before it fails.
            failure: what it raised the first time.

        Raises:
            ShardChanged: the file was replaced, and the one that was opened is not to be had any more.
            SourceError: the system refuses, for good or after the last attempt.
        """
        if self.identity is None:
            raise translate_os_error(failure, self.name, "read") from failure

        def reopen_and_read() -> T:
            changed = self._reopen()
            try:
                return action()
            except OSError as error:
                if changed is not None and error.errno in _DEAD:
                    raise changed from error
                raise

        return retry_local(reopen_and_read, failure, self.name)

    def _reopen(self) -> ShardChanged | None:
        """Lead the descriptor to the file that has the name now, if it is the same one; return how it differs."""
        try:
            with io.FileIO(self.name, "rb") as found:
                if self.identity is not None:
                    self.identity.check(found.fileno(), self.name)
                os.lseek(found.fileno(), self.tell(), os.SEEK_SET)
                os.dup2(found.fileno(), self.fileno(), inheritable=False)
        except ShardChanged as changed:
            return changed
        # then the file that is open may still be read
        except OSError:
            pass
        return None


def open_raw(path: str | os.PathLike[str]) -> LocalFileStream:
    """Open a local file for the shard reader: one system call a read, nothing copied twice.

    Raises:
        NotFound: no such file.
        SourceError: it cannot be opened (a directory, no permission).
        UsageError: no file can have this name.
    """
    try:
        return open_with_raised_limit(lambda: LocalFileStream(path))
    except OSError as error:
        return retry_local(lambda: LocalFileStream(path), error, path, "open")
    except ValueError as error:
        raise unnameable_error(path) from error


def open_buffered(path: str | os.PathLike[str], mode: str = "rb") -> BinaryIO:
    """Open a local file as ``gopen`` does, with a buffer of ``GOPEN_BUFFER`` bytes; raises as :func:`open_raw`."""

    def open_file() -> BinaryIO:
        return cast("BinaryIO", open(path, mode, buffering=size))  # noqa: PTH123  as it was written

    size = settings.GOPEN_BUFFER.get()
    try:
        return open_with_raised_limit(open_file)
    except OSError as error:
        return retry_local(open_file, error, path, "open")
    except ValueError as error:
        raise unnameable_error(path) from error
