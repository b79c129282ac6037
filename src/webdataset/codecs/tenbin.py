"""tenbin: lists of numeric arrays as aligned bytes, read without copying (``.ten``, ``.tb``, ``.tenbin``).

Theory. Each array is two chunks (see ``tenbin_chunks``): a header of 64-bit integers (dtype code, info, number of
dimensions, dimensions; the first two are eight characters each) and its numbers in C order. Little-endian is written
always; both orders are read, told by the length of the first header.

Flows in: arrays and short texts about them ("infos"). Flows out: bytes; and back. Never holds objects, and never
believes a header that does not fit its chunk.
"""

import math
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webdataset.ground.errors import EncodingError, FormatError, UsageError
from webdataset.ground.extras import loaded

from .tenbin_chunks import LITTLE, bytedata, framed, next_chunk, split_chunks, str64, unstr64

Infos = bool | str | Sequence[str]

long_to_short = {
    **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)},
    **{f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
}
short_to_long = {short: long for long, short in long_to_short.items()}
_MOST_DIMENSIONS = 9
_NATIVE = LITTLE if sys.byteorder == "little" else ">"
_KINDS = {order: {short: np.dtype(order + short) for short in short_to_long} for order in "<>"}


def check_acceptable_input_type(data: Sequence[Any], allow64: bool) -> None:  # noqa: FBT001  upstream's signature
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


def _code(array: Any) -> str:
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


def encode_header(a: Any, info: str = "") -> memoryview:
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


def decode_header(h: Any) -> tuple[tuple[int, ...], Any, str]:
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


def _header(header: memoryview, order: str) -> tuple[tuple[int, ...], Any, str]:
    count, remainder = divmod(header.nbytes, 8)
    if remainder or not 3 <= count <= 3 + _MOST_DIMENSIONS:
        raise FormatError(f"a tenbin header is 24 to 96 bytes long, not {header.nbytes}")
    dimensions, *shape = struct.unpack(f"{order}{count - 2}q", header[16:])
    code, info = (unstr64(word) for word in struct.unpack("<2q", header[:16]))  # text: in one order everywhere
    kind = _KINDS[order].get(code)
    if kind is None:
        raise FormatError(f"tenbin has no arrays of type {code!r}")
    if dimensions != len(shape) or min(shape, default=0) < 0:
        raise FormatError(f"a tenbin header names {dimensions} dimensions and gives {tuple(shape)}")
    return tuple(shape), kind, info


def encode_list(l: Sequence[Any], infos: Infos | None = None) -> list[memoryview]:  # noqa: E741  upstream's name
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


def _array(given: Any) -> Any:
    torch = loaded("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        from .torch_images import as_array  # noqa: PLC0415  torch is loaded already, this module not

        return as_array(given)
    try:
        return np.asarray(given)
    except ValueError as error:
        raise EncodingError(f"{type(given).__name__} does not become an array: {error}") from error


def decode_list(  # upstream's names
    l: Sequence[Any],  # noqa: E741
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
    arrays: list[Any] = []
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


def encode_buffer(l: Sequence[Any], infos: Infos | None = None) -> bytearray:  # noqa: E741  upstream's name
    """Encode a list of arrays.

    Args:
        l: arrays, torch tensors, numbers, or lists of numbers.
        infos: one text of up to 8 ASCII characters for each.

    Raises:
        EncodingError: not a list, or an array or info that tenbin does not hold.
    """
    return bytearray().join(framed(encode_list(l, infos)))


def decode_buffer(buf: Any, infos: Infos = False) -> Any:  # noqa: FBT002  upstream's signature
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


def write(stream: Any, l: Sequence[Any], infos: Infos | None = None) -> None:  # noqa: E741  upstream's name
    """Write a list of arrays to a stream.

    Args:
        stream: object with ``write``.
        l: the arrays.
        infos: one text for each.

    Raises:
        EncodingError: as for :func:`encode_list`; nothing is written then.
    """
    for piece in framed(encode_list(l, infos)):
        stream.write(piece)


def read(stream: Any, n: int = sys.maxsize, infos: Infos = False) -> Any:  # noqa: FBT002  upstream's signature
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


def save(fname: str, *args: Any, infos: Infos | None = None, nocheck: bool = False) -> None:
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


def tenbin_loads(data: bytes) -> list[Any]:
    """Decode a tenbin field.

    Args:
        data: its bytes.

    Returns:
        A list of read-only arrays that share the field's memory.

    Raises:
        FormatError: no tenbin, or cut short.
    """
    arrays: list[Any] = decode_buffer(data)
    return arrays


def tenbin_dumps(x: Any) -> bytes:
    """Encode a tenbin field.

    Args:
        x: an array, or a list or tuple of arrays.

    Raises:
        EncodingError: a type that tenbin does not hold.
    """
    return b"".join(framed(encode_list(x if isinstance(x, (list, tuple)) else [x])))
