"""Compresses and decompresses fields: whole bytes in, whole bytes out, never more than a limit.

Streams of several members or frames are read to their end; a stream that is cut short is an error. Decompression
stops as soon as a limit is passed, so that a small field cannot fill the memory: a field may grow to
``WDS_MAX_FIELD_BYTES``, and beyond 128 MiB only as long as it has grown less than a hundredfold. Compression gives
the same bytes every time.
"""

import copy
import functools
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.core import errors, settings
from webdataset.core.errors import MissingExtra
from webdataset.core.optional_imports import import_if_available, require
from webdataset.tar.compression import Decompressor, detect_compression

# what any field may grow to
FREE_BYTES = 128 << 20
# times, beyond that; gzip reaches 1032 on zeros, bz2 and zst far more
MOST_GROWTH = 100
_SMALL = 1 << 16
# its engine bounds no output, so it gets little at a time
_PORTIONS = {"zst": 512}
# even less, where that grows much
_LEAST = 64
_MUCH = 1 << 20


@functools.cache
def _make_decompressor(kind: str) -> Decompressor:
    return Decompressor(kind)


def decompress(data: bytes, kind: str, limit_bytes: int | None = None) -> bytes:
    """Decompress one field.

    Args:
        data: the compressed bytes.
        kind: gz, bz2, xz or zst.
        limit_bytes: largest size allowed, in bytes; None means ``WDS_MAX_FIELD_BYTES``.

    Returns:
        The bytes of all members of the stream, one after the other.

    Raises:
        BadCompression: damaged, cut short, empty, or larger than a limit.
        MissingExtra: zst without a zstd library.
    """
    if not data:
        raise errors.BadCompression(f"a {kind} field is empty")
    limit = settings.MAX_FIELD_BYTES.get() if limit_bytes is None else limit_bytes
    if kind == "gz" and len(data) < _SMALL:
        whole = _decompress_small_gzip(data, limit)
        if whole is not None:
            return whole
    elif kind == "zst":
        whole = _decompress_sized_zst(data, limit)
        if whole is not None:
            return whole
    return _join_pieces(_decompress_pieces(data, kind, limit))


def _decompress_pieces(data: bytes, kind: str, limit: int | None) -> Iterator[bytes]:
    """Yield the pieces of a whole stream; without a limit, however many there are."""
    # making one asks which libraries there are; a copy does not
    stream = copy.copy(_make_decompressor(kind))
    portion = _PORTIONS.get(kind, _SMALL)
    size = end = 0
    while end < len(data):
        start, before = end, size
        end = min(start + portion, len(data))
        for piece in stream.feed(data[start:end]):
            size += len(piece)
            if limit is not None:
                _check_growth(size, end, len(data), kind, limit)
            yield piece
        if kind in _PORTIONS:
            portion = _LEAST if size - before > _MUCH else _PORTIONS[kind]
    stream.finish()


def _join_pieces(pieces: Iterator[bytes]) -> bytes:
    """Join without having everything twice."""
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None:
        return first
    whole = io.BytesIO()
    whole.write(first)
    whole.write(second)
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()


def _check_growth(size: int, taken: int, length: int, kind: str, limit: int) -> None:
    if size > limit:
        raise errors.BadCompression(
            f"a {kind} field of {length} bytes grows beyond the limit of {limit} bytes (WDS_MAX_FIELD_BYTES)"
        )
    if size > FREE_BYTES and size > taken * MOST_GROWTH:
        raise errors.BadCompression(
            f"a {kind} field of {length} bytes is a bomb: its first {taken} bytes grow to more than {FREE_BYTES} bytes"
        )


def _decompress_small_gzip(data: bytes, limit: int) -> bytes | None:
    """Decompress one ordinary gzip member, ten times sooner than a general decompressor is made; else None."""
    engine = zlib.decompressobj(31)
    try:
        content = engine.decompress(data, limit + 1)
    except zlib.error:
        return None
    return content if engine.eof and not engine.unused_data and len(content) <= limit else None


def _decompress_sized_zst(data: bytes, limit: int) -> bytes | None:
    """Decompress one zst frame that tells its size, in one step; else None."""
    library = import_if_available("zstandard")
    if library is None:
        return None
    try:
        size = library.frame_content_size(data)
        if size <= 0:
            return None
        _check_growth(size, len(data), len(data), "zst", limit)
        content: bytes = library.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except library.ZstdError:  # damaged, or several frames: told by the general way
        return None
    return content


def compress_gzip(data: bytes) -> bytes:
    """Compress bytes with gzip, the same way every time (no time stamp)."""
    import gzip  # noqa: PLC0415  only where fields are compressed, as below

    return gzip.compress(data, compresslevel=6, mtime=0)


def _compress_bz2(data: bytes) -> bytes:
    import bz2  # noqa: PLC0415

    return bz2.compress(data)


def _compress_xz(data: bytes) -> bytes:
    import lzma  # noqa: PLC0415

    return lzma.compress(data)


def _compress_zst(data: bytes) -> bytes:
    standard: Any = import_if_available("compression.zstd")
    if standard is not None:
        checked = {standard.CompressionParameter.checksum_flag: 1}
        return standard.compress(data, options=checked)  # type: ignore[no-any-return]
    package = require("zstandard", extra="fast", purpose="writing zst fields")
    return package.ZstdCompressor(write_checksum=True).compress(data)  # type: ignore[no-any-return]


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": compress_gzip,
    "bz2": _compress_bz2,
    "xz": _compress_xz,
    "zst": _compress_zst,
}


def compress_field(data: bytes, kind: str) -> bytes:
    """Compress one field.

    Args:
        data: any bytes.
        kind: gz, bz2, xz or zst.

    Raises:
        MissingExtra: zst without a zstd library.
    """
    return COMPRESSORS[kind](data)


def is_compressed(data: bytes, kind: str) -> bool:
    """Tell whether bytes are a whole stream of this kind already, so that they need not be compressed again.

    Args:
        data: any bytes.
        kind: gz, bz2, xz or zst.
    """
    if detect_compression(data) != kind:
        return False
    try:
        for _ in _decompress_pieces(data, kind, None):
            pass
    except errors.BadCompression:
        return False
    except MissingExtra:  # then its first bytes have to do
        return True
    return True
