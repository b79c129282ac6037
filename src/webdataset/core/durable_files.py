"""What brings files, and their names, to the disk: a system that loses its power keeps them.

Theory. ``fsync`` of a file brings its bytes to the disk, not its name; ``fsync`` of a folder brings the names in it. A
rename may reach the disk before the bytes of the file, and changes in two folders in either order. So a file is
complete under its name where it was synced before the rename. It is there for certain after the folder was synced, and
so was the one above a folder that is new. Where a second file (a receipt, a record) says something of a first in
another folder, the folder of the first is synced between the two. ``tests/faults/test_power_failures.py`` tries the
states that a power failure may leave.
"""

import contextlib
import errno
import os

_NOT_FOR_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR}


def sync_folder(folder: str) -> None:
    """Bring the names in a folder to the disk; file systems that cannot sync folders do without.

    Args:
        folder: its path; an empty one is the present folder.

    Raises:
        OSError: the system refuses.
    """
    try:
        descriptor = os.open(folder or os.curdir, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise


def sync_file(path: str) -> None:
    """Bring the bytes of a file to the disk that another library has written and closed.

    Args:
        path: of the file.

    Raises:
        OSError: the system refuses.
    """
    # Windows wants a descriptor for writing; elsewhere one for reading is enough, also for a read-only file
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable_folder(folder: str) -> None:
    """Make a folder, and those above it that are not there; their names are on the disk afterwards.

    Args:
        folder: its path.

    Raises:
        OSError: the system refuses.
    """
    missing, above = [], os.path.abspath(folder)  # noqa: PTH100
    while not os.path.isdir(above) and above != os.path.dirname(above):  # noqa: PTH112, PTH120
        above = os.path.dirname(above)  # noqa: PTH120
        missing.append(above)
    os.makedirs(folder or ".", exist_ok=True)  # noqa: PTH103
    for each in missing:
        sync_folder(each)


def write_and_sync(path: str, content: bytes) -> None:
    """Write a new file, and bring its bytes to the disk; where that fails, nothing is left of it.

    Args:
        path: of the file, which is not there.
        content: its bytes.

    Raises:
        OSError: the system refuses.
    """
    try:
        with open(path, "xb") as stream:  # noqa: PTH123  bytes of names stay
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        raise
    except BaseException:  # whatever it is: nothing may be left over
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        raise


def replace_and_sync(partial: str, path: str) -> None:
    """Give a file that was synced its final name, and bring that name to the disk.

    Args:
        partial: its present path, in the same folder.
        path: its final path; a file that is there is replaced.

    Raises:
        OSError: the system refuses.
    """
    os.replace(partial, path)  # noqa: PTH105
    sync_folder(os.path.dirname(path))  # noqa: PTH120
