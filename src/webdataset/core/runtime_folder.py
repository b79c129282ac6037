"""The folder in which this user's processes on one host share small files, refused where others could write to it.

It is ``webdataset`` in ``XDG_RUNTIME_DIR``, else ``webdataset-<uid>`` among the temporary files. What is in it is gone
after a restart of the machine at the latest, and may be deleted at any time while no program runs.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable

from webdataset.core import settings

FILE_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_runtime_folder() -> str:
    """Return the folder's path; it exists, and belongs to this user alone.

    Raises:
        OSError: there is no such folder on this system, it cannot be made, or another user owns or may enter it.
    """
    if not hasattr(os, "geteuid"):
        raise OSError("this system has no folder that is one user's alone")
    root = settings.RUNTIME_FOLDER.get()
    name = "webdataset" if root else f"webdataset-{os.geteuid()}"
    path = os.path.join(root or tempfile.gettempdir(), name)  # noqa: PTH118  joined for calls of the system
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102
    _refuse_foreign(os.lstat(path), path, stat.S_ISDIR)
    return path


def open_private_file(path: str) -> int:
    """Open a file of the folder for reading and writing, made where it is not there; return its descriptor.

    Raises:
        OSError: it cannot be opened, is no regular file, or another user owns it or may read it.
    """
    descriptor = os.open(path, FILE_FLAGS, 0o600)
    try:
        _refuse_foreign(os.fstat(descriptor), path, stat.S_ISREG)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def touch_private_file(path: str) -> None:
    """Make a file, or change its time.

    Raises:
        OSError: as :func:`open_private_file` does.
    """
    descriptor = open_private_file(path)
    try:
        os.utime(descriptor)
    finally:
        os.close(descriptor)


def file_stamp(path: str) -> tuple[int, int] | None:
    """Return what changes when a file is made or touched; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _refuse_foreign(status: os.stat_result, path: str, is_kind: Callable[[int], bool]) -> None:
    """Refuse what is of another kind, or what other users own, may read or may change."""
    if not is_kind(status.st_mode):
        raise OSError(f"{path} is no file or folder of this library: delete it")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise OSError(
            f"{path} belongs to another user, or others may enter it: delete it, or set XDG_RUNTIME_DIR to a folder "
            "that is yours alone"
        )
