"""A local file that appears under its name when it is complete, and never before.

It is written as ``.name.pid-hostrandom.partial`` beside its final place, synced to the disk, and renamed; so, however
the program ends, the final name holds the old file, the whole new one, or nothing.
"""

import binascii
import contextlib
import errno
import functools
import io
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence

from webdataset.core.durable_files import sync_folder
from webdataset.core.errors import AlreadyExists, UsageError
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.storage.path_errors import translate_os_error

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

Buffer = bytes | bytearray | memoryview

# IOV_MAX of every system that has it
_MAX_PIECES = 1024 if hasattr(os, "writev") else 0
_LONGEST_NAME = 200
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES)
_DESCRIPTORS = ("/dev/fd/", "/dev/std", "/proc/")


class LocalFileOutput:
    """An output that renames on commit.

    Raises:
        AlreadyExists: a file is there, and ``overwrite`` is false.
        NotFound: the folder does not exist.
        SourceError: the folder cannot be written to.
    """

    def __init__(self, path: str, *, overwrite: bool = True) -> None:
        # a symbolic link continues pointing to its target
        self.path = os.path.realpath(path)
        self.overwrite = overwrite
        self._shown = path
        try:
            self._found = _find_identity(self.path)
        except OSError as error:
            raise translate_os_error(error, path, "create") from error
        self._kept = False
        # device and number of the file, once it is written
        self._written: tuple[int, int] | None = None
        self._process = os.getpid()
        if self._found is not None and not overwrite:
            raise AlreadyExists("a file is there already: pass overwrite=True or choose another name", url=path)
        if self._found is None and os.path.islink(self.path):  # noqa: PTH114  bytes of names stay
            # nothing could ever be given this name
            raise translate_os_error(OSError(errno.ELOOP, os.strerror(errno.ELOOP)), path, "create")
        self.partial = name_partial(self.path)
        try:
            self.stream = io.FileIO(self.partial, "xb")
        except OSError as error:
            raise translate_os_error(error, path, "create") from error
        except BaseException:  # an interrupt that came while the system made the file: no output is there to remove it
            with contextlib.suppress(OSError):
                os.unlink(self.partial)  # noqa: PTH108
            raise
        self._descriptor = self.stream.fileno()

    def write(self, pieces: Sequence[Buffer], size: int) -> None:
        """Write pieces without joining them.

        Args:
            pieces: what to write, in order.
            size: sum of their lengths in bytes.

        Raises:
            SourceError: the system refuses (disk full, quota, input/output error).
            UsageError: a process that inherited the output writes to it.
        """
        if os.getpid() != self._process:
            raise make_child_error(self._shown)
        try:
            written = os.writev(self._descriptor, pieces) if len(pieces) <= _MAX_PIECES else 0
            if written != size:
                self._write_rest(b"".join(pieces), written)
        except OSError as error:
            raise translate_os_error(error, self._shown, "write") from error

    def _write_rest(self, joined: bytes, written: int) -> None:
        rest = memoryview(joined)[written:]
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def commit(self) -> None:
        """Bring the file to the disk and give it its name.

        Raises:
            AlreadyExists: another writer finished a file of this name meanwhile; ours stays under its partial name.
            SourceError: the system refuses.
            UsageError: a process that inherited the output completes it.
        """
        if os.getpid() != self._process:
            raise make_child_error(self._shown)
        try:
            self._keep_mode()
            os.fsync(self._descriptor)
            status = os.fstat(self._descriptor)
            self._written = status.st_dev, status.st_ino
            self.stream.close()
            self._rename()
            sync_folder(os.path.dirname(self.path))  # noqa: PTH120
        except AlreadyExists:
            raise
        except OSError as error:
            raise translate_os_error(error, self._shown, "complete") from error

    def _keep_mode(self) -> None:
        """Give the file the permissions of the one that it replaces: who may not read that may not read this."""
        if self._found is not None and hasattr(os, "fchmod"):
            with contextlib.suppress(OSError):
                os.fchmod(self._descriptor, stat.S_IMODE(os.stat(self.path).st_mode))  # noqa: PTH116

    def _rename(self) -> None:
        if self._found is not None:
            # between the look at the old file and its replacement no other writer may replace it
            with _lock_file(self.path):
                if _find_identity(self.path) not in (None, self._found):
                    raise self._make_conflict_error()
                self._replace()
            return
        try:
            os.link(self.partial, self.path)
        except OSError as error:
            if not self._has_name():
                if isinstance(error, FileExistsError) or _find_identity(self.path) is not None:
                    raise self._make_conflict_error() from error
                # a file system without hard links
                self._replace()
                return
        # the shard is there: what is left over is removed by a later writer
        with contextlib.suppress(OSError):
            os.unlink(self.partial)  # noqa: PTH108

    def _replace(self) -> None:
        try:
            os.replace(self.partial, self.path)  # noqa: PTH105
        except FileNotFoundError:
            if not self._has_name():
                raise

    def _has_name(self) -> bool:
        """Tell whether the file has its final name: where NFS loses an answer, what was done seems to have failed."""
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._written

    def _make_conflict_error(self) -> AlreadyExists:
        self._kept = True
        return AlreadyExists(
            f"another writer made this file while it was being written; the complete new file is kept as {self.partial}"
            ": give each writer its own name, for example with {rank} and {worker} in the pattern",
            url=self._shown,
        )

    def abort(self) -> None:
        """Remove what was written, unless it is complete and only its name was taken; that name is left as it was.

        In a process that inherited the output, the file stays: it is its parent's.
        """
        self._close()
        if self._kept or os.getpid() != self._process:
            return
        try:
            os.unlink(self.partial)  # noqa: PTH108
        except FileNotFoundError:
            pass
        # why it is given up matters more; a later writer removes it
        except OSError as error:
            log.warning("%s is left over: %s", redact(self.partial), error.strerror)

    def abandon(self) -> str:
        """Close the unfinished file and leave it under its partial name, which is returned."""
        self._close()
        return self.partial

    def _close(self) -> None:
        # some file systems write, and fail, now
        with contextlib.suppress(OSError):
            self.stream.close()


def make_child_error(url: str) -> UsageError:
    """Return the error to raise where a forked child, which shares the files of its parent, writes to an output."""
    return UsageError("a writer belongs to the process that made it: give every process its own", url=url)


@contextlib.contextmanager
def _lock_file(path: str) -> Iterator[None]:
    """Hold the lock of a file that is there, against others who lock it so; without one, where it cannot be had."""
    descriptor = -1
    if fcntl is not None:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def name_partial(path: str) -> str:
    """Return the name under which a file is written, beside its final place; it tells who writes it."""
    folder, name = os.path.split(path)
    short = os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])
    unique = f"{os.getpid()}-{host_tag()}{os.urandom(4).hex()}"
    return os.path.join(folder, f".{short}.{unique}.partial")  # noqa: PTH118  bytes of names stay


@functools.cache
def host_tag() -> str:
    """Return 8 hexadecimal digits for this host since it was started, where a process id means one process."""
    parts = [getattr(os, "uname", lambda: ["", "windows"])()[1]]
    boot = "/proc/sys/kernel/random/boot_id"
    with contextlib.suppress(OSError), open(boot, encoding="ascii") as file:  # noqa: PTH123  pathlib is slow to import
        parts.append(file.read())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    # no digest: a writer of local shards imports little
    return f"{binascii.crc32(chr(0).join(parts).encode('utf-8', 'surrogateescape')):08x}"


def list_partial_files(folder: str) -> list[str]:
    """Return the names of the unfinished files in a folder; none where it cannot be read."""
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(folder) if name.endswith(".partial")]  # noqa: PTH208  bytes of names stay
    return []


def remove_orphans(path: str, names: Sequence[str], grace_seconds: float | None = None) -> int:
    """Remove what writers of a file left under partial names when they were killed, on this host; return how many.

    Args:
        path: of the file, links resolved.
        names: of the unfinished files in its folder.
        grace_seconds: remove those of other hosts, too, which have not been written to for so long.
    """
    if not names:  # as after most of the 100 000 outputs of a job
        return 0
    folder, name = os.path.split(path)
    short = os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])
    pattern = re.compile(rf"\.{re.escape(short)}\.(\d+)-([0-9a-f]{{8}})[0-9a-f]{{8}}\.partial")
    removed = 0
    for entry in names:
        match = pattern.fullmatch(entry)
        place = os.path.join(folder, entry)  # noqa: PTH118
        with contextlib.suppress(OSError):
            if match is not None and _is_orphan(place, int(match[1]), match[2], grace_seconds):
                os.unlink(place)  # noqa: PTH108
                removed += 1
    return removed


def _is_orphan(place: str, pid: int, tag: str, grace_seconds: float | None) -> bool:
    """Tell whether the writer of a partial file is gone."""
    if tag == host_tag():
        return not is_alive(pid)
    return grace_seconds is not None and time.time() - os.stat(place).st_mtime > grace_seconds  # noqa: PTH116


def is_alive(pid: int) -> bool:
    """Tell whether a process of this host runs, or may run; one that ended and was not waited for does not."""
    if sys.platform == "win32":  # signal 0 ends a process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  writers are to stay light
            # the state follows the name, which may hold any character
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return True


def is_special(path: str) -> bool:
    """Tell whether a path is no regular file but is there (a device, a named pipe, a folder), or names a descriptor."""
    if path.startswith(_DESCRIPTORS):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def _find_identity(path: str) -> tuple[int, int, int, int] | None:
    """Return what tells one state of a file from another, or None where there is none.

    Raises:
        OSError: the system does not say.
    """
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        # what stands in the way of a name stands in the way of the file, too
        if error.errno in _NO_FILE:
            return None
        raise
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
