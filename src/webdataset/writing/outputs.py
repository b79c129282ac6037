"""Where an archive goes: a local file, a url, standard output, or a file object that the caller lends.

Flows in: the target as the user names it. Flows out: an output with ``write``, ``commit`` and ``abort``. A local file
is renamed into place (``localfile``); urls go through ``webdataset.gopen``, looked up when it is called, so that a
scheme which user code registers or a ``gopen`` that it replaces is honoured. A replaced ``writer.gopen`` opens both.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.extras import loaded
from webdataset.sources.files import path_of
from webdataset.sources.open import opener_of
from webdataset.sources.rewrite import rewritten

from .compressors import Output
from .localfile import Buffer, LocalFile, failed, is_special

_LARGE = 1 << 16


class Lent:
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
            self._put(b"".join(pieces))
            return
        small: list[Buffer] = []
        for piece in pieces:
            if len(piece) <= _LARGE:
                small.append(piece)
                continue
            self._put(b"".join(small))
            self._put(piece)
            small = []
        self._put(b"".join(small))

    def _put(self, piece: Buffer) -> None:
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


class Owned(Lent):
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


def open_output(target: Any, *, overwrite: bool = True) -> Output:
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
    if isinstance(target, Lent):
        return target
    if not isinstance(target, (str, os.PathLike)):
        if not callable(getattr(target, "write", None)):
            raise UsageError(f"cannot write an archive to {target!r}: pass a path, a url or a file object with write()")
        _unchecked(overwrite, "a file object")
        return Lent(target)
    mine, path = _replaced_gopen(), local_path(target)
    if mine is not None or path is None:
        _unchecked(overwrite, "a url" if mine is None else "opened by a gopen of the program's own")
        if mine is None and target == "-":
            return Lent(sys.stdout.buffer, flush=True)
        return Owned((mine or _door().gopen)(os.fspath(target), "wb"))
    if not is_special(path):
        return LocalFile(path, overwrite=overwrite)
    try:
        return Owned(io.FileIO(path, "wb"))  # a device or a named pipe is written to, not replaced
    except OSError as error:
        raise failed(error, path, "open") from error


def _unchecked(overwrite: bool, kind: str) -> None:  # noqa: FBT001
    if not overwrite:
        raise UsageError(f"overwrite=False is kept for local files only, and this is {kind}")


def local_path(target: str | os.PathLike[Any]) -> str | None:
    """Return the local path that a target means, or None where it is a url.

    Args:
        target: a ``Path`` is always local; text is rewritten by ``WDS_REWRITE`` and ``GOPEN_REWRITE`` first, and
            is local unless something opens its scheme (see ``gopen_schemes``), or it is ``-``.
    """
    if not isinstance(target, str):
        return os.fsdecode(target)
    url = rewritten(target)
    if url == "-" or opener_of(url) is not None:
        return None
    return path_of(url) if url[:5].lower() == "file:" else url


def _replaced_gopen() -> Any:
    """Return what a program has put in the place of ``writer.gopen``; None where it is still ours."""
    opener = getattr(loaded("webdataset.writer"), "gopen", None)
    return None if opener is None or opener is vars(_door())["_gopen"] else opener


def _door() -> Any:
    return importlib.import_module("webdataset.gopen")
