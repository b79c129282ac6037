"""tenbin: lists of numeric arrays as aligned bytes, read without copying (``.ten``, ``.tb``, ``.tenbin``).

Theory. Each array is two chunks: a header of 64-bit integers (dtype code, info, number of dimensions, dimensions; the
first two are eight characters each) and its numbers in C order. A chunk is the magic ``~TenBin~``, the payload's
length as a 64-bit integer, and the payload, padded with zeros to a multiple of 64 bytes. Little-endian is always
written; both orders are read. A writer on a big-endian machine left the integers big-endian, which shows in the
length: it fits into the available bytes in one order only.

Decoding copies nothing, accepts no length that the bytes do not bear out, and treats a chunk without its padding as
cut short. It never holds objects, and never accepts a header that does not fit its chunk.
"""

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from webdataset.codecs.numpy_arrays import as_plain_array
from webdataset.core.errors import EncodingError, FormatError, Truncated, UsageError
from webdataset.core.optional_imports import loaded_module

if TYPE_CHECKING:
    from webdataset.storage.streams import Stream

magic_str = "~TenBin~"
magic_bytes = b"~TenBin~"
magic = int.from_bytes(magic_bytes, "little")
LITTLE, BIG = "<", ">"
_PADDING = bytes(64)
_PIECE = 1 << 20


class BinaryWriter(Protocol):
    """A stream of bytes that is written."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write all of them."""


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


def bytelen(a: object) -> int:
    """Return the size of an array or buffer in bytes.

    Args:
        a: an array, or bytes.

    Raises:
        UsageError: neither.
    """
    return int(bytedata(a).nbytes)


def bytedata(a: object) -> memoryview:
    """Return the bytes of an array or buffer without copying them, where they lie in one piece.

    Args:
        a: an array, or bytes.

    Raises:
        UsageError: neither.
    """
    try:
        view = memoryview(getattr(a, "data", a) if hasattr(a, "dtype") else a)  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError) as error:
        raise UsageError(f"a tenbin chunk holds bytes or an array, not {type(a).__name__}") from error
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def frame_chunks(chunks: Sequence[object]) -> Iterator[bytes | memoryview]:
    """Yield the pieces that the chunks are written as, payloads uncopied."""
    for chunk in chunks:
        payload = bytedata(chunk)
        yield magic_bytes + struct.pack("<q", payload.nbytes)
        yield payload
        yield _PADDING[: -payload.nbytes % 64]


def encode_chunks(l: Sequence[object]) -> bytearray:  # noqa: E741  upstream's name
    """Frame bytes or arrays as chunks, one after the other.

    Args:
        l: the payloads.
    """
    return bytearray().join(frame_chunks(l))


def split_chunks(buf: bytes | bytearray | memoryview) -> tuple[list[memoryview], str]:
    """Split a buffer into its chunks.

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
        order, length = _parse_frame(view[at : at + 16], end - at - 16, order, at)
        at += 16
        chunks.append(view[at : at + length])
        at += roundup(length)
    return chunks, order or LITTLE


def _parse_frame(frame: memoryview, rest: int, order: str, offset: int) -> tuple[str, int]:
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


def decode_chunks(buf: bytes | bytearray | memoryview) -> list[memoryview]:
    """Split a buffer into its chunks, without copying.

    Args:
        buf: bytes, bytearray, memoryview or the like.

    Raises:
        Truncated: it ends inside a chunk.
        FormatError: there is no chunk where one should be.
    """
    return split_chunks(buf)[0]


def write_chunk(stream: BinaryWriter, buf: object) -> None:
    """Write one chunk.

    Args:
        stream: object with ``write``.
        buf: bytes or an array.
    """
    for piece in frame_chunks([buf]):
        stream.write(piece)


def read_chunk(stream: "Stream") -> bytes | None:
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


def next_chunk(stream: "Stream", order: str) -> tuple[bytes | None, str]:
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
    frame = _read_exactly(stream, 16)
    if not frame:
        return None, order
    if len(frame) == 16 and not order and frame[8] == 0 and frame[15] != 0:
        # a stream of unknown length: nothing has 2**56 bytes
        order = BIG
    order, length = _parse_frame(memoryview(frame), 1 << 55, order, 0)
    payload = _read_exactly(stream, roundup(length))
    if len(payload) < roundup(length):
        raise Truncated(f"a tenbin chunk claims {length} bytes, and {len(payload)} with padding are left")
    return payload[:length], order


def _read_exactly(stream: "Stream", size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end; a claimed length takes no memory before its bytes are there."""
    pieces: list[bytes] = []
    while size:
        piece = stream.read(min(size, _PIECE))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


Infos = bool | str | Sequence[str]

long_to_short = {
    **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)},
    **{f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
}
short_to_long = {short: long for long, short in long_to_short.items()}
_MOST_DIMENSIONS = 9
_NATIVE = LITTLE if sys.byteorder == "little" else ">"
_KINDS = {order: {short: np.dtype(order + short) for short in short_to_long} for order in "<>"}


def check_acceptable_input_type(data: Sequence[np.ndarray], allow64: bool) -> None:  # noqa: FBT001  upstream's signature
    """Check that arrays are of types that tenbin holds.

    Args:
        data: the arrays.
        allow64: whether numbers of 64 bits are welcome.

    Raises:
        EncodingError: they are not.
    """
    for array in data:
        _code(array)
        if not allow64 and array.dtype.name in ("float64", "int64", "uint64"):
            raise EncodingError("64 bit datatypes not allowed unless explicitly enabled")


def _code(array: np.ndarray) -> str:
    name = array.dtype.name
    if name not in long_to_short:
        advice = "; write array.astype('uint8')" if name == "bool" else ""
        raise EncodingError(f"unsupported array type: tenbin holds integers and floats, not {name}{advice}")
    return long_to_short[name]


def check_infos(data: Any, infos: Sequence[str], required_infos: Infos | None = None) -> Any:
    """Return decoded arrays with their infos, or after checking these.

    Args:
        data: the arrays.
        infos: one text each.
        required_infos: False or None returns the arrays alone, True arrays and infos; a list must equal the infos.

    Raises:
        FormatError: other infos were required.
    """
    if required_infos is None or required_infos is False:
        return data
    if required_infos is True:
        return data, list(infos)
    if list(infos) != list(required_infos):
        raise FormatError(f"the arrays have the infos {list(infos)!r:.200}, not {list(required_infos)!r:.200}")
    return data


def encode_header(a: np.ndarray, info: str = "") -> memoryview:
    """Return the header of an array.

    Args:
        a: the array, of at most 9 dimensions.
        info: up to 8 ASCII characters about it.

    Raises:
        EncodingError: a type, number of dimensions or info that tenbin does not hold.
    """
    if a.ndim > _MOST_DIMENSIONS:
        raise EncodingError(f"too many dimensions: tenbin holds arrays of at most 9, not {a.ndim}")
    return memoryview(struct.pack(f"<{3 + a.ndim}q", str64(_code(a)), str64(info), a.ndim, *a.shape))


def decode_header(h: bytes | bytearray | memoryview) -> tuple[tuple[int, ...], np.dtype[np.generic], str]:
    """Read the header of an array.

    Args:
        h: its bytes.

    Returns:
        Shape, dtype and info.

    Raises:
        FormatError: no header.
    """
    shape, kind, info = _header(memoryview(h).cast("B"), LITTLE)
    return shape, kind.newbyteorder("="), info


def _header(header: memoryview, order: str) -> tuple[tuple[int, ...], np.dtype[np.generic], str]:
    count, remainder = divmod(header.nbytes, 8)
    if remainder or not 3 <= count <= 3 + _MOST_DIMENSIONS:
        raise FormatError(f"a tenbin header is 24 to 96 bytes long, not {header.nbytes}")
    dimensions, *shape = struct.unpack(f"{order}{count - 2}q", header[16:])
    # text: in one order everywhere
    code, info = (unstr64(word) for word in struct.unpack("<2q", header[:16]))
    kind = _KINDS[order].get(code)
    if kind is None:
        raise FormatError(f"tenbin has no arrays of type {code!r}")
    if dimensions != len(shape) or min(shape, default=0) < 0:
        raise FormatError(f"a tenbin header names {dimensions} dimensions and gives {tuple(shape)}")
    return tuple(shape), kind, info


def encode_list(l: Sequence[object], infos: Infos | None = None) -> list[memoryview]:  # noqa: E741  upstream's name
    """Return headers and numbers of arrays, as the chunks that they are written in.

    Args:
        l: arrays, torch tensors, numbers, or lists of numbers.
        infos: one text of up to 8 ASCII characters for each.

    Returns:
        Two buffers for each array; numbers are copied only where they are not contiguous and little-endian.

    Raises:
        EncodingError: not a list, or an array or info that tenbin does not hold.
    """
    if not isinstance(l, (list, tuple)):
        raise EncodingError(f"tenbin requires list of arrays, not {type(l).__name__}")
    texts = [""] * len(l) if infos is None or isinstance(infos, bool) else list(infos)
    if len(texts) != len(l):
        raise EncodingError(f"{len(l)} arrays were given with {len(texts)} infos")
    chunks: list[memoryview] = []
    for number, (given, info) in enumerate(zip(l, texts, strict=True)):
        try:
            array = _array(given)
            chunks.append(encode_header(array, info))
        except EncodingError as error:
            error.add_note(f"in array {number} of the list")
            raise
        little = np.ascontiguousarray(array, dtype=_KINDS[LITTLE][_code(array)])
        chunks.append(bytedata(little))
    return chunks


def _array(given: object) -> np.ndarray:
    torch = loaded_module("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        from webdataset.codecs.torch_codecs import as_array  # noqa: PLC0415  torch is loaded already, this module not

        return as_array(given)
    try:
        return as_plain_array(given)
    except ValueError as error:
        raise EncodingError(f"{type(given).__name__} does not become an array: {error}") from error


# upstream's names
def decode_list(
    l: Sequence[bytes | bytearray | memoryview],  # noqa: E741
    infos: Infos = False,  # noqa: FBT002
    *,
    order: str = LITTLE,
) -> Any:
    """Make arrays of the chunks that :func:`encode_list` returns.

    Args:
        l: the chunks.
        infos: True returns the infos too; a list of texts must equal them.
        order: ``<`` or ``>``, the byte order of the chunks.

    Returns:
        The arrays, views of the chunks (of big-endian chunks, copies in this machine's order); with ``infos=True`` a
        tuple of arrays and infos.

    Raises:
        FormatError: chunks that do not fit each other, or other infos.
    """
    if len(l) % 2:
        raise FormatError(f"tenbin data have two chunks for each array; {len(l)} are there")
    arrays: list[np.ndarray] = []
    texts: list[str] = []
    for header, numbers in zip(l[::2], l[1::2], strict=True):
        shape, kind, info = _header(memoryview(header).cast("B"), order)
        size = math.prod(shape) * kind.itemsize
        content = memoryview(numbers)
        if size != content.nbytes:
            raise FormatError(f"an array of shape {shape} and type {kind} has {content.nbytes} bytes, not {size}")
        array = np.frombuffer(content, kind).reshape(shape) if size else np.zeros(shape, kind)
        arrays.append(array if order == _NATIVE else array.astype(kind.newbyteorder("=")))
        texts.append(info)
    return check_infos(arrays, texts, infos)


def encode_buffer(l: Sequence[object], infos: Infos | None = None) -> bytearray:  # noqa: E741  upstream's name
    """Encode a list of arrays.

    Args:
        l: arrays, torch tensors, numbers, or lists of numbers.
        infos: one text of up to 8 ASCII characters for each.

    Raises:
        EncodingError: not a list, or an array or info that tenbin does not hold.
    """
    return bytearray().join(frame_chunks(encode_list(l, infos)))


def decode_buffer(buf: bytes | bytearray | memoryview, infos: Infos = False) -> Any:  # noqa: FBT002  upstream's signature
    """Decode a list of arrays.

    Args:
        buf: what :func:`encode_buffer` returned.
        infos: True returns the infos too; a list of texts must equal them.

    Returns:
        The arrays, as views of ``buf`` (and as writable as it is); with ``infos=True`` a tuple of arrays and infos.

    Raises:
        Truncated: the data end early.
        FormatError: they are no tenbin, or have other infos.
    """
    chunks, order = split_chunks(buf)
    return decode_list(chunks, infos, order=order)


def write(stream: BinaryWriter, l: Sequence[object], infos: Infos | None = None) -> None:  # noqa: E741  upstream's name
    """Write a list of arrays to a stream.

    Args:
        stream: object with ``write``.
        l: the arrays.
        infos: one text for each.

    Raises:
        EncodingError: as for :func:`encode_list`; nothing is written then.
    """
    for piece in frame_chunks(encode_list(l, infos)):
        stream.write(piece)


def read(stream: "Stream", n: int = sys.maxsize, infos: Infos = False) -> Any:  # noqa: FBT002  upstream's signature
    """Read arrays from a stream.

    Args:
        stream: object with ``read(n)``.
        n: how many arrays at most.
        infos: True returns the infos too; a list of texts must equal them.

    Returns:
        As :func:`decode_buffer`; no arrays at the end of the stream.

    Raises:
        Truncated: the stream ends inside an array.
        FormatError: it holds something else.
    """
    chunks: list[bytes] = []
    order = ""
    while len(chunks) < 2 * n:
        chunk, order = next_chunk(stream, order)
        if chunk is None:
            break
        chunks.append(chunk)
    return decode_list(chunks, infos, order=order or LITTLE)


def save(fname: str, *args: object, infos: Infos | None = None, nocheck: bool = False) -> None:
    """Save arrays to a file.

    Args:
        fname: its path; it should end in ``.ten``.
        *args: the arrays.
        infos: one text for each.
        nocheck: take other endings too.

    Raises:
        UsageError: another ending.
        EncodingError: as for :func:`encode_list`.
    """
    _check_name(fname, nocheck=nocheck)
    content = encode_buffer(args, infos)
    with Path(fname).open("wb") as stream:
        stream.write(content)


def load(fname: str, infos: Infos = False, nocheck: bool = False) -> Any:  # noqa: FBT001, FBT002  upstream's signature
    """Load arrays from a file.

    Args:
        fname: its path; it should end in ``.ten``.
        infos: True returns the infos too; a list of texts must equal them.
        nocheck: take other endings too.

    Returns:
        As :func:`decode_buffer`; the arrays are writable.

    Raises:
        UsageError: another ending.
        FormatError: the file holds something else.
    """
    _check_name(fname, nocheck=nocheck)
    with Path(fname).open("rb") as stream:
        return decode_buffer(bytearray(stream.read()), infos)


def _check_name(name: str, *, nocheck: bool) -> None:
    if not nocheck and not str(name).endswith(".ten"):
        raise UsageError(f"file name should end in .ten, and {name!r} does not: pass nocheck=True if it is right")


def tenbin_loads(data: bytes) -> list[np.ndarray]:
    """Decode a tenbin field to a list of read-only arrays that share its memory.

    Raises:
        FormatError: no tenbin, or cut short.
    """
    arrays: list[np.ndarray] = decode_buffer(data)
    return arrays


def tenbin_dumps(x: object) -> bytes:
    """Encode a tenbin field.

    Raises:
        EncodingError: a type that tenbin does not hold.
    """
    return b"".join(frame_chunks(encode_list(x if isinstance(x, (list, tuple)) else [x])))
