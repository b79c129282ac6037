"""Files of a cache directory: open ones, downloads on their way to a name, and what dead downloads left behind.

A download is written under a hidden name of its own beside its final place, brought to the disk and renamed, so under a
final name there is a whole file or nothing, whoever else downloads the same, and whatever ends the program.
"""

import contextlib
import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from webdataset.ground.errors import SourceError

_IN_USE: dict[int, str] = {}
_PARTIAL = re.compile(r"\.wds-(\d+)-[0-9a-f]+\.part$")
_STALE_SECONDS = 24 * 3600


class Unwritable(Exception):
    """The cache directory cannot take a file; the system's error is the cause."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Tell errors of the cache directory from those of a source.

    Raises:
        Unwritable: for any error of the system.
    """
    try:
        yield
    except SourceError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from error


def note_use(reader: object, path: str) -> None:
    """Take note that a file is being read.

    Args:
        reader: who reads it.
        path: absolute path.
    """
    _IN_USE[id(reader)] = path


def forget_use(reader: object) -> None:
    """Take note that a reader has done with its file.

    Args:
        reader: who read it.
    """
    _IN_USE.pop(id(reader), None)


def in_use() -> set[str]:
    """Return the absolute paths of the cached files that this process has open."""
    return set(_IN_USE.copy().values())


def busy(path: str) -> bool:
    """Tell whether a file is open in this process, or a download of a process that lives.

    Args:
        path: the file.
    """
    partial = _PARTIAL.fullmatch(os.path.basename(path))  # noqa: PTH119  callers have texts
    return (partial is not None and _alive(int(partial[1]))) or os.path.abspath(path) in in_use()  # noqa: PTH100


class CachedFile(io.FileIO):
    """A file of the cache, open for reading, which this process does not delete.

    Args:
        path: absolute path.
        mode: as for ``io.FileIO``.
    """

    def __init__(self, path: str, mode: str = "rb") -> None:
        super().__init__(path, mode, opener=_open_private)
        self.keep(path)

    def keep(self, path: str) -> None:
        """Take note under which path the file is."""
        self.path = path
        note_use(self, path)

    def close(self) -> None:
        """Close the file; it may be deleted from now on."""
        forget_use(self)
        super().close()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Download:
    """A file on its way into the cache; leaving the ``with`` block before :meth:`publish` deletes it.

    Args:
        final: absolute path that it shall have; folders above it are made.

    Raises:
        Unwritable: the directory cannot take it; so do all methods.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.partial = str(final.parent / f".wds-{os.getpid()}-{os.urandom(6).hex()}.part")
        self._published = False
        with writing():
            final.parent.mkdir(parents=True, exist_ok=True)
            sweep(final.parent)
            self.stream = CachedFile(self.partial, "xb+")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            with contextlib.suppress(OSError):
                self.stream.close()
            with contextlib.suppress(OSError):
                Path(self.partial).unlink()

    def write(self, piece: bytes) -> None:
        """Append bytes."""
        rest = memoryview(piece)
        with writing():
            while rest:
                rest = rest[self.stream.write(rest) :]

    def publish(self) -> CachedFile:
        """Give the file its name.

        Returns:
            The file, open at its start: it can be read even if another process deletes it from the cache.
        """
        with writing():
            os.fsync(self.stream.fileno())
            Path(self.partial).replace(self.final)
        self._published = True
        self.stream.keep(str(self.final))
        self.stream.seek(0)
        return self.stream


def sweep(folder: Path) -> None:
    """Delete downloads that nobody has written to for a day, unless their process lives.

    Args:
        folder: the folder; files in folders below it are left alone.
    """
    oldest = time.time() - _STALE_SECONDS
    with os.scandir(folder) as entries:
        for entry in entries:
            partial = _PARTIAL.fullmatch(entry.name)
            if partial is not None and not _alive(int(partial[1])):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        Path(entry).unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
