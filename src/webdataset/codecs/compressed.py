"""Compressed fields: whole bytes in, whole bytes out, never more than a limit.

Streams of several members or frames are read to their end; a stream that is cut short is an error. Decompression stops
as soon as the limit is passed, so a small field cannot fill the memory.
"""

import copy
import functools
import gzip
import zlib

from webdataset.ground.errors import BadCompression
from webdataset.tar.compression import Decompressor

LIMIT_BYTES = 1 << 30
_SMALL = 1 << 16
_PORTION = {"zst": 4096}  # its engine bounds no output, so it gets little at a time


@functools.cache
def _fresh(kind: str) -> Decompressor:
    return Decompressor(kind)


def decompressed(data: bytes, kind: str, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Decompress one field.

    Args:
        data: the compressed bytes.
        kind: gz, bz2, xz or zst.
        limit_bytes: largest size allowed, in bytes.

    Returns:
        The bytes of all members of the stream, one after the other.

    Raises:
        BadCompression: damaged, cut short, empty, or larger than the limit.
        MissingExtra: zst without a zstd library.
    """
    if not data:
        raise BadCompression(f"a {kind} field is empty")
    if kind == "gz" and len(data) < _SMALL:
        whole = _small_gzip(data, limit_bytes)
        if whole is not None:
            return whole
    stream = copy.copy(_fresh(kind))  # making one asks which libraries there are; a copy does not
    portion = _PORTION.get(kind, len(data))
    pieces: list[bytes] = []
    size = 0
    for start in range(0, len(data), portion):
        for piece in stream.feed(data[start : start + portion]):
            size += len(piece)
            if size > limit_bytes:
                raise BadCompression(f"a {kind} field of {len(data)} bytes grows beyond the limit of {limit_bytes}")
            pieces.append(piece)
    stream.finish()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _small_gzip(data: bytes, limit_bytes: int) -> bytes | None:
    """Decompress one ordinary gzip member, ten times sooner than a general decompressor is made; else None."""
    engine = zlib.decompressobj(31)
    try:
        content = engine.decompress(data, limit_bytes + 1)
    except zlib.error:
        return None
    return content if engine.eof and not engine.unused_data and len(content) <= limit_bytes else None


def gzipped(data: bytes) -> bytes:
    """Compress bytes with gzip, the same way every time (no time stamp).

    Args:
        data: any bytes.
    """
    return gzip.compress(data, compresslevel=6, mtime=0)
