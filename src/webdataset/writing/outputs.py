"""Opens the target of an archive: a local file, a url, standard output, or a file object of the caller's.

An output has ``write``, ``commit`` and ``abort``. A local file is renamed into place
(:mod:`webdataset.writing.local_file`); urls go through ``webdataset.gopen``, looked up when it is called, so that
registered schemes and a replaced ``gopen`` are honoured. A replaced ``writer.gopen`` opens both.

Never closes a file object that the caller lent.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from webdataset.core.errors import SourceError, UsageError
from webdataset.core.optional_imports import loaded_module
from webdataset.storage.open_url import local_path
from webdataset.storage.path_errors import translate_os_error
from webdataset.writing.compression import ArchiveOutput
from webdataset.writing.local_file import Buffer, LocalFileOutput, is_special

_LARGE = 1 << 16


class BorrowedOutput:
    """An output to a file object of the caller's, which is never closed here.

    Args:
        stream: anything with ``write``; short writes of raw (unbuffered) files are continued.
        flush: flush it at the end (standard output).
    """

    def __init__(self, stream: Any, *, flush: bool = False) -> None:
        self.stream = stream
        self._flush = flush
        self._raw = isinstance(stream, io.RawIOBase)

    def write(self, pieces: Sequence[Buffer], size: int) -> None:
        """Write pieces, small ones joined.

        Args:
            pieces: what to write, in order.
            size: sum of their lengths in bytes.

        Raises:
            SourceError: a raw file takes no more bytes.
        """
        if size <= _LARGE:
            self._write_all(b"".join(pieces))
            return
        small: list[Buffer] = []
        for piece in pieces:
            if len(piece) <= _LARGE:
                small.append(piece)
                continue
            self._write_all(b"".join(small))
            self._write_all(piece)
            small = []
        self._write_all(b"".join(small))

    def _write_all(self, piece: Buffer) -> None:
        if not self._raw:
            if piece:
                self.stream.write(piece)
            return
        rest = memoryview(piece)
        while rest:
            count = self.stream.write(rest)
            if not count:
                raise SourceError("a raw file object takes no more bytes (is it non-blocking?)")
            rest = rest[count:]

    def commit(self) -> None:
        """Leave the file object to the caller."""
        if self._flush:
            self.stream.flush()

    def abort(self) -> None:
        """Stop writing; without its end mark the archive does not pass for complete."""

    def abandon(self) -> None:
        """Leave the file object to the caller."""


class OwnedOutput(BorrowedOutput):
    """An output to a stream that was opened for it.

    Args:
        stream: closed on commit; on abort its ``abort()`` is called where it has one (a ``pipe:`` command is then
            stopped and sees no orderly end), else it is closed.
    """

    def commit(self) -> None:
        """Close the stream; its errors are the archive's."""
        self.stream.close()

    def abort(self) -> None:
        """Stop the stream."""
        (getattr(self.stream, "abort", None) or self.stream.close)()

    def abandon(self) -> None:
        """Stop the stream."""
        self.abort()


def open_output(target: object, *, overwrite: bool = True) -> ArchiveOutput:
    """Open the target of an archive.

    Args:
        target: a path or url as text, a ``Path``, ``-`` for standard output, a file object with ``write``, or an
            output.
        overwrite: replace a local file that is there already.

    Raises:
        UsageError: none of these; or ``overwrite=False`` where it cannot be kept.
        AlreadyExists: the file is there, and ``overwrite`` is false.
        SourceError: the target cannot be opened.
    """
    if isinstance(target, BorrowedOutput):
        return target
    if not isinstance(target, (str, os.PathLike)):
        if not callable(getattr(target, "write", None)):
            raise UsageError(f"cannot write an archive to {target!r}: pass a path, a url or a file object with write()")
        _refuse_no_overwrite(overwrite, "a file object")
        return BorrowedOutput(target)
    mine, path = _find_replaced_gopen(), local_path(target)
    if mine is not None or path is None:
        _refuse_no_overwrite(overwrite, "a url" if mine is None else "opened by a gopen of the program's own")
        if mine is None and target == "-":
            return BorrowedOutput(sys.stdout.buffer, flush=True)
        return OwnedOutput((mine or _gopen_module().gopen)(os.fspath(target), "wb"))
    if not is_special(path):
        return LocalFileOutput(path, overwrite=overwrite)
    try:
        # a device or a named pipe is written to, not replaced
        return OwnedOutput(io.FileIO(path, "wb"))
    except OSError as error:
        raise translate_os_error(error, path) from error


def _refuse_no_overwrite(overwrite: bool, kind: str) -> None:  # noqa: FBT001
    if not overwrite:
        raise UsageError(f"overwrite=False is kept for local files only, and this is {kind}")


def _find_replaced_gopen() -> Any:
    """Return what a program has put in the place of ``writer.gopen``; None where it is still ours."""
    opener = getattr(loaded_module("webdataset.writer"), "gopen", None)
    return None if opener is None or opener is vars(_gopen_module())["_gopen"] else opener


def _gopen_module() -> Any:
    return importlib.import_module("webdataset.gopen")
