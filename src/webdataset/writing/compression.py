"""Compression of archives: which kind to write, and an output that compresses on its way to another.

The same bytes in give the same bytes out: no times, no names are stored. Decompression is chosen by magic bytes
elsewhere; names matter only here.
"""

import importlib
import re
import sys
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from webdataset.core import optional_imports
from webdataset.core.errors import UsageError
from webdataset.writing.local_file import Buffer

_SPELLINGS = {"gzip": "gz", "bzip2": "bz2", "zstd": "zst"}
_KINDS = ("gz", "bz2", "xz", "zst")
# .tgz, .tbz2, .txz and .tzst end so, too
_ENDINGS = {"gz": "gz", "bz2": "bz2", "xz": "xz", "zst": "zst", "tbz": "bz2"}
_COMMANDS = re.compile(r"\b(gzip|pigz|bgzip|bzip2|pbzip2|lbzip2|xz|pixz|zstd|zstdmt)\b")
_MAX_JOINED = 1 << 20


class Compressor(Protocol):
    """What zlib, bz2, lzma and zstandard have in common."""

    def compress(self, data: Any, /) -> bytes:
        """Take bytes, give what is ready."""

    def flush(self) -> bytes:
        """Give the rest."""


class ArchiveOutput(Protocol):
    """Where bytes of one archive go.

    Attributes:
        stream: the file object that receives them.
    """

    stream: Any

    def write(self, pieces: Sequence[Buffer], size: int) -> None:
        """Write pieces whose lengths sum to ``size`` bytes."""

    def commit(self) -> None:
        """Complete the archive."""

    def abort(self) -> None:
        """Give up: nothing that looks complete is left."""

    def abandon(self) -> str | None:
        """Let go of an archive that was not closed; return the name under which it stays, if any."""


def choose_compression(compress: bool | str | None, url: str | None) -> str | None:  # noqa: FBT001  upstream's argument
    """Return the compression to write: ``gz``, ``bz2``, ``xz``, ``zst``, or None.

    Args:
        compress: False is none, True is gz, text names a kind, None goes by the end of ``url``.
        url: the target as text, or None for a file object. A ``pipe:`` command that compresses by itself counts as
            uncompressed.

    Raises:
        UsageError: an unknown kind.
    """
    if compress is None:
        return _choose_by_name(url) if url is not None else None
    if not compress:
        return None
    if compress is True:
        return "gz"
    kind = _SPELLINGS.get(str(compress), str(compress))
    if kind not in _KINDS:
        raise UsageError(
            f"compress={compress!r} is not a compression: pass False, True, {', '.join(map(repr, _KINDS))}"
        )
    return kind


def _choose_by_name(url: str) -> str | None:
    if url.startswith("pipe:"):
        if _COMMANDS.search(url):
            return None
    elif "://" in url:
        url = re.split(r"[?#]", url, maxsplit=1)[0]
    return next((kind for ending, kind in _ENDINGS.items() if url.lower().endswith(ending)), None)


def make_compressor(kind: str, level: int | None = None) -> Compressor:
    """Return a fresh compressor.

    Args:
        kind: ``gz``, ``bz2``, ``xz`` or ``zst``.
        level: its level; None is a good compromise (6, 9, 6 and 3).

    Raises:
        MissingExtra: ``zst`` without a library for it.
        UsageError: the library refuses the level.
    """
    import lzma  # noqa: PLC0415  only where shards are compressed, as below

    try:
        return _MAKERS[kind](level)
    except (ValueError, OverflowError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"level={level!r} is not a level of {kind}: {error}") from error


def _make_gz(level: int | None) -> Compressor:
    # zlib even where isal is installed: igzip's best makes shards a third larger, and bytes must not depend on extras
    return zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)


def _make_bz2(level: int | None) -> Compressor:
    import bz2  # noqa: PLC0415

    return bz2.BZ2Compressor(9 if level is None else level)


def _make_xz(level: int | None) -> Compressor:
    import lzma  # noqa: PLC0415

    return lzma.LZMACompressor(preset=6 if level is None else level)


def _make_zst(level: int | None) -> Compressor:
    if sys.version_info >= (3, 14):
        standard: Any = importlib.import_module("compression.zstd")
        options = {
            standard.CompressionParameter.checksum_flag: 1,
            standard.CompressionParameter.compression_level: level or 3,
        }
        return standard.ZstdCompressor(options=options)  # type: ignore[no-any-return]
    package: Any = optional_imports.require("zstandard", extra="fast", purpose="writing zst shards")
    return package.ZstdCompressor(level=level or 3, write_checksum=True).compressobj()  # type: ignore[no-any-return]


_MAKERS = {"gz": _make_gz, "bz2": _make_bz2, "xz": _make_xz, "zst": _make_zst}


class CompressedOutput:
    """An output that compresses, then hands on."""

    def __init__(self, inner: ArchiveOutput, engine: Compressor) -> None:
        self.inner = inner
        self.stream = inner.stream
        self._engine = engine

    def write(self, pieces: Sequence[Buffer], size: int) -> None:
        """Compress pieces; small ones together.

        Args:
            pieces: what to write, in order.
            size: sum of their lengths in bytes.
        """
        for piece in pieces if size > _MAX_JOINED else (b"".join(pieces),):
            self._hand_on(self._engine.compress(piece))

    def _hand_on(self, ready: bytes) -> None:
        if ready:
            self.inner.write((ready,), len(ready))

    def commit(self) -> None:
        """End the compressed stream and complete the archive."""
        self._hand_on(self._engine.flush())
        self.inner.commit()

    def abort(self) -> None:
        """Give up; the compressed stream is left without its end."""
        self.inner.abort()

    def abandon(self) -> str | None:
        """Let go; what the compressor holds is still written."""
        self._hand_on(self._engine.flush())
        return self.inner.abandon()
