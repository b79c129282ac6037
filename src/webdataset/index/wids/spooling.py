"""Shards that can be read front to back only, made readable anywhere.

Flows in: a url. Flows out: a temporary file with the plain tar in it, which goes away with its owner. Whether it is all
of the shard is told by its end mark, when it is indexed.
"""

import contextlib
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

from webdataset.ground.errors import SourceError, WebDatasetError
from webdataset.samples.endings import warn_trailing
from webdataset.sources.open import open_stream
from webdataset.tar.compression import Decompressor, compression_of

_PIECE = 1 << 20


class Spooled:
    """A shard in a temporary file.

    Args:
        url: the shard, compressed or not.
        trust: a trust level that a dataset names.
        stream: the shard, open; it is closed. By default the url is opened.

    Attributes:
        path: the file.

    Raises:
        SourceError: the shard cannot be read, or the file not be written.
        BadCompression: it does not decompress.
    """

    def __init__(self, url: str, *, trust: str | None = None, stream: Any = None) -> None:
        if stream is None:
            stream = open_stream(url, level=trust)
        try:
            descriptor, self.path = tempfile.mkstemp(prefix="wids-", suffix=".tar")
            self._finalizer = weakref.finalize(self, _removed, self.path, os.getpid())
            with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
                _copied(stream, file, url)
        except BaseException as error:  # whatever happens, the file is removed
            self.close()
            if isinstance(error, WebDatasetError):
                error.locate(url=url)
            raise
        finally:
            stream.close()

    def unname(self) -> None:
        """Remove the name of the file, which stays for those who have it open: nothing is left when they end, however.

        Does nothing where the system keeps files that are open.
        """
        if os.name == "posix":
            self.close()

    def close(self) -> None:
        """Remove the file."""
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None:
            finalizer()


def _copied(stream: Any, file: Any, url: str) -> None:
    start = b""
    while len(start) < 512 and (piece := stream.read(_PIECE)):
        start += piece
    kind = compression_of(start)
    decompressor = Decompressor(kind, ignore_trailing=True) if kind is not None else None
    piece = start
    while piece:
        for part in decompressor.feed(piece) if decompressor is not None else (piece,):
            try:
                file.write(part)
            except OSError as error:
                raise SourceError(
                    f"cannot write a temporary file: {error.strerror or error}. Pass cache_dir=, or set TMPDIR to a "
                    "folder with more room",
                    url=url,
                ) from error
        piece = stream.read(_PIECE)
    if decompressor is not None:
        decompressor.finish()
        warn_trailing(url, decompressor)


def _removed(path: str, owner: int) -> None:
    """Remove a file, in the process that made it: forked children read on."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            Path(path).unlink()
