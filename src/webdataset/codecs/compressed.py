"""Compressed fields: whole bytes in, whole bytes out, never more than a limit.

Streams of several members or frames are read to their end; a stream that is cut short is an error. Decompression stops
as soon as the limit is passed, so a small field cannot fill the memory.
"""

import bz2
import functools
import gzip
import lzma
import zlib
from typing import Any

from webdataset.ground.errors import BadCompression
from webdataset.ground.extras import available, require

LIMIT_BYTES = 1 << 30


def decompressed(data: bytes, kind: str, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Decompress one field.

    Args:
        data: the compressed bytes.
        kind: gz, bz2, xz or zst.
        limit_bytes: largest size allowed, in bytes.

    Returns:
        The bytes of all members of the stream, one after the other.

    Raises:
        BadCompression: damaged, cut short, or larger than the limit.
        MissingExtra: zst without a zstd library.
    """
    parts: list[bytes] = []
    size = 0
    rest = data
    while rest:
        decompressor = _decompressor(kind)
        try:
            part = decompressor.decompress(rest, max(limit_bytes - size, 0) + 1)
        except _failures() as error:
            raise BadCompression(f"a {kind} field does not decompress: {error}") from error
        size += len(part)
        if size > limit_bytes:
            raise BadCompression(f"a {kind} field of {len(data)} bytes grows beyond the limit of {limit_bytes} bytes")
        if not decompressor.eof:
            raise BadCompression(f"a {kind} field of {len(data)} bytes ends inside its compressed stream")
        parts.append(part)
        rest = decompressor.unused_data.lstrip(b"\0") if kind in ("gz", "xz") else decompressor.unused_data
    if not parts:
        raise BadCompression(f"a {kind} field is empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


@functools.cache
def _isal() -> Any:
    return available("isal.isal_zlib")


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    common = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
    return common if _isal() is None else (*common, _isal().error)


def _decompressor(kind: str) -> Any:
    if kind == "gz":
        return (_isal() or zlib).decompressobj(31)
    if kind == "bz2":
        return bz2.BZ2Decompressor()
    if kind == "xz":
        return lzma.LZMADecompressor()
    return _Zstandard()


class _Zstandard:
    """A zstd stream in the shape of the standard library's decompressors."""

    def __init__(self) -> None:
        library = require("zstandard", extra="fast", purpose="decompressing zst fields")
        self._stream = library.ZstdDecompressor()
        self._error: type[Exception] = library.ZstdError
        self.eof = False
        self.unused_data = b""

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Return at most ``limit`` bytes of all frames."""
        try:
            with self._stream.stream_reader(data, read_across_frames=True) as reader:
                part: bytes = reader.read(limit)
        except self._error as error:
            raise ValueError(str(error)) from error
        self.eof = True
        return part


def gzipped(data: bytes) -> bytes:
    """Compress bytes with gzip, the same way every time (no time stamp).

    Args:
        data: any bytes.
    """
    return gzip.compress(data, compresslevel=6, mtime=0)
