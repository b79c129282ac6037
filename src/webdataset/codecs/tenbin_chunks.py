"""Chunks of tenbin: bytes in frames that are aligned and can be told from anything else.

Theory. A chunk is the magic ``~TenBin~``, the payload's length as a 64-bit integer, and the payload, padded with zeros
to a multiple of 64 bytes. The integers are little-endian here; a writer on a big-endian machine left them big-endian,
which shows in the length: it fits into what is there in one order only.

Flows in: buffers. Flows out: chunks; and back. Decoding copies nothing, believes no length that the bytes do not bear
out, and takes a chunk without its padding for what it is, cut short.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from webdataset.ground.errors import EncodingError, FormatError, Truncated, UsageError

magic_str = "~TenBin~"
magic_bytes = b"~TenBin~"
magic = int.from_bytes(magic_bytes, "little")
LITTLE, BIG = "<", ">"
_PADDING = bytes(64)
_PIECE = 1 << 20


def roundup(n: int, k: int = 64) -> int:
    """Return the smallest multiple of ``k`` that is not below ``n``.

    Args:
        n: a length in bytes.
        k: the alignment in bytes.
    """
    return -(-n // k) * k


def str64(s: str) -> int:
    """Return up to eight ASCII characters as one signed 64-bit integer.

    Args:
        s: the text.

    Raises:
        EncodingError: more than eight characters, or others than ASCII ones.
    """
    packed = s.encode("ascii", "replace") if s.isascii() else b""
    if len(packed) != len(s) or len(s) > 8 or "\0" in s:
        raise EncodingError(f"tenbin holds infos of at most 8 ASCII characters, and this is {s!r:.80}")
    return int.from_bytes(packed.ljust(8, b"\0"), "little", signed=True)


def unstr64(i: int) -> str:
    """Return the text that :func:`str64` packed.

    Args:
        i: a signed 64-bit integer.

    Raises:
        FormatError: not ASCII.
    """
    packed = int(i).to_bytes(8, "little", signed=True).rstrip(b"\0")
    if not packed.isascii():
        raise FormatError(f"tenbin holds ASCII where these bytes stand: {packed!r}")
    return packed.decode("ascii")


def bytelen(a: Any) -> int:
    """Return the size of an array or buffer in bytes.

    Args:
        a: an array, or bytes.

    Raises:
        UsageError: neither.
    """
    return int(bytedata(a).nbytes)


def bytedata(a: Any) -> memoryview:
    """Return the bytes of an array or buffer without copying them, where they lie in one piece.

    Args:
        a: an array, or bytes.

    Raises:
        UsageError: neither.
    """
    try:
        view = memoryview(a.data if hasattr(a, "dtype") else a)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a tenbin chunk holds bytes or an array, not {type(a).__name__}") from error
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def framed(chunks: Sequence[Any]) -> Iterator[Any]:
    """Yield the pieces that the chunks are written as, payloads uncopied.

    Args:
        chunks: bytes or arrays.
    """
    for chunk in chunks:
        payload = bytedata(chunk)
        yield magic_bytes + struct.pack("<q", payload.nbytes)
        yield payload
        yield _PADDING[: -payload.nbytes % 64]


def encode_chunks(l: Sequence[Any]) -> bytearray:  # noqa: E741  upstream's name
    """Frame bytes or arrays as chunks.

    Args:
        l: the payloads.

    Returns:
        The chunks, one after the other.
    """
    return bytearray().join(framed(l))


def split_chunks(buf: Any) -> tuple[list[memoryview], str]:
    """Split a buffer into its chunks.

    Args:
        buf: bytes, bytearray, memoryview or the like.

    Returns:
        Views of the payloads, and the byte order of the integers: ``<`` or ``>``.

    Raises:
        Truncated: it ends inside a chunk.
        FormatError: there is no chunk where one should be.
    """
    view = memoryview(buf).cast("B")
    end = view.nbytes
    chunks: list[memoryview] = []
    order = ""
    at = 0
    while at < end:
        order, length = _frame(view[at : at + 16], end - at - 16, order, at)
        at += 16
        chunks.append(view[at : at + length])
        at += roundup(length)
    return chunks, order or LITTLE


def _frame(frame: memoryview, rest: int, order: str, offset: int) -> tuple[str, int]:
    """Return the byte order and the payload's length that the frame of a chunk tells."""
    if bytes(frame[:8]) != magic_bytes[: frame.nbytes]:
        raise FormatError("magic bytes mismatch: no tenbin chunk stands there", offset=offset)
    if frame.nbytes < 16:
        raise Truncated("the tenbin data end inside the frame of a chunk", offset=offset)
    for candidate in order or "<>":
        length: int = struct.unpack(candidate + "q", frame[8:])[0]
        if length >= 0 and roundup(length) <= rest:
            return order or (candidate if length else ""), length
    (length,) = struct.unpack((order or LITTLE) + "q", frame[8:])
    if length < 0:
        raise FormatError(f"a tenbin chunk claims a length of {length} bytes", offset=offset)
    raise Truncated(f"a tenbin chunk claims {length} bytes, and {max(rest, 0)} with padding are left", offset=offset)


def decode_chunks(buf: Any) -> list[memoryview]:
    """Split a buffer into its chunks, without copying.

    Args:
        buf: bytes, bytearray, memoryview or the like.

    Raises:
        Truncated: it ends inside a chunk.
        FormatError: there is no chunk where one should be.
    """
    return split_chunks(buf)[0]


def write_chunk(stream: Any, buf: Any) -> None:
    """Write one chunk.

    Args:
        stream: object with ``write``.
        buf: bytes or an array.
    """
    for piece in framed([buf]):
        stream.write(piece)


def read_chunk(stream: Any) -> bytes | None:
    """Read one chunk.

    Args:
        stream: object with ``read(n)``.

    Returns:
        Its payload, or None at the end of the stream.

    Raises:
        Truncated: the stream ends inside the chunk.
        FormatError: there is no chunk.
    """
    return next_chunk(stream, "")[0]


def next_chunk(stream: Any, order: str) -> tuple[bytes | None, str]:
    """Read one chunk and the byte order of its length.

    Args:
        stream: object with ``read(n)``.
        order: ``<`` or ``>`` where it is known already, else empty.

    Returns:
        The payload, or None at the end of the stream; and the order, if it is known now.

    Raises:
        Truncated: the stream ends inside the chunk.
        FormatError: there is no chunk.
    """
    frame = _exactly(stream, 16)
    if not frame:
        return None, order
    if len(frame) == 16 and not order and frame[8] == 0 and frame[15] != 0:
        order = BIG  # a stream of unknown length: nothing has 2**56 bytes
    order, length = _frame(memoryview(frame), 1 << 55, order, 0)
    payload = _exactly(stream, roundup(length))
    if len(payload) < roundup(length):
        raise Truncated(f"a tenbin chunk claims {length} bytes, and {len(payload)} with padding are left")
    return payload[:length], order


def _exactly(stream: Any, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end; a claimed length takes no memory before its bytes are there."""
    pieces: list[bytes] = []
    while size:
        piece = stream.read(min(size, _PIECE))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
