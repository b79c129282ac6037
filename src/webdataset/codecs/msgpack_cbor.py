"""msgpack and CBOR fields, through any installed library, with arrays in safe and published forms.

Decoding calls nothing that the bytes name, and bounds what small inputs may ask for: CBOR tags whose reading takes
unbounded time or memory (shared references, regular expressions, huge decimals and fractions) are refused or left as
tags. Arrays, and numpy and torch numbers, are stored as:

* CBOR: the typed arrays of RFC 8746: tags 64 to 87 for one dimension, tag 40 around them for others (row-major; 1040,
  column-major, is read too), tag 41 for arrays of booleans;
* msgpack: extension type 78 ("N"), whose payload is the array in the format of ``.npy`` files.

They are read back as writable arrays in this machine's byte order. No form can name a class or a function.
"""

import decimal
import fractions
import functools
import importlib.metadata
import io
import math
from collections.abc import Callable, Iterator, Sized, ValuesView
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, NoReturn

import numpy as np

from webdataset.codecs.numpy_arrays import as_plain_array, npy_dumps, npy_loads
from webdataset.core.errors import DecodingError, EncodingError, MissingExtra, WebDatasetError
from webdataset.core.optional_imports import import_if_available, install_command, loaded_module, require

NPY_EXTENSION = 78
_KINDS = {
    f"{order}{kind}{1 << length}": tag
    for kind, first, smallest in (("u", 64, 0), ("i", 72, 0), ("f", 80, -1))
    for order, step in ((">", 0), ("<", 4))
    for length, tag in ((n, first + step + n + smallest) for n in range(4))
    if (kind != "f" and (length or order == ">")) or (kind == "f" and length)
}
_TAGS = {tag: np.dtype(kind) for kind, tag in _KINDS.items()} | {68: np.dtype("u1")}
_ROWS, _COLUMNS, _HOMOGENEOUS = 40, 1040, 41


def as_array(value: object) -> np.ndarray | np.generic | None:
    """Return a numpy array or number for a numpy or torch one, or None for anything else."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    torch = loaded_module("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    from webdataset.codecs.torch_codecs import as_array as of_tensor  # noqa: PLC0415  torch is loaded already, this module not

    return of_tensor(value)


def encode_msgpack_extension(value: object, extension: Callable[[int, bytes], object]) -> object:
    """Return what msgpack writes for an array or number.

    Raises:
        EncodingError: no array of numbers, text or times.
    """
    array = as_array(value)
    if type(value) is int:
        raise EncodingError(f"msgpack has integers of 64 bits, not of {value.bit_length()}")
    if array is None:
        raise EncodingError(f"msgpack has no values of type {type(value).__name__}")
    if isinstance(array, np.generic):
        return _to_plain_number(array, "msgpack")
    return extension(NPY_EXTENSION, npy_dumps(array))


def decode_msgpack_extension(code: int, payload: bytes, extension: Callable[[int, bytes], object]) -> object:
    """Return the value of an extension: an array where it is one of ours, else the extension itself.

    Raises:
        ValueError: no whole ``.npy``, or one of pickled objects.
    """
    return npy_loads(bytes(payload)) if code == NPY_EXTENSION else extension(code, payload)


def encode_cbor_tag(value: object, tag: Callable[[int, object], object]) -> object:
    """Return what CBOR writes for an array or number.

    Raises:
        EncodingError: no array of booleans, integers or floats.
    """
    array = as_array(value)
    if array is None:
        raise EncodingError(f"CBOR has no values of type {type(value).__name__}")
    if isinstance(array, np.generic):
        return _to_plain_number(array, "CBOR")
    array = as_plain_array(array)
    if array.dtype == np.bool_:
        flat = tag(_HOMOGENEOUS, array.reshape(-1).tolist())
    else:
        kind = array.dtype.newbyteorder("<" if array.dtype.itemsize > 1 else ">")
        number = _KINDS.get(f"{'<' if kind.itemsize > 1 else '>'}{kind.kind}{kind.itemsize}")
        if number is None or array.dtype.names is not None:
            raise EncodingError(f"CBOR has arrays of booleans, integers and floats, not of {array.dtype}")
        flat = tag(number, array.astype(kind, copy=False).tobytes())
    return flat if array.ndim == 1 else tag(_ROWS, [list(array.shape), flat])


def _to_plain_number(number: np.generic, format_name: str) -> object:
    plain = number.item()
    if type(plain) not in (bool, int, float, str, bytes):
        raise EncodingError(f"{format_name} has no numbers of type {number.dtype}")
    return plain


def cbor_array_decoders() -> dict[int, Callable[[object, bool], object]]:
    """Return the decoders of the tags of RFC 8746, by tag."""
    return {
        **{tag: _make_array_decoder(kind) for tag, kind in _TAGS.items()},
        _ROWS: lambda value, _: _reshape_array(value, "C"),
        _COLUMNS: lambda value, _: _reshape_array(value, "F"),
        _HOMOGENEOUS: lambda value, _: _decode_homogeneous(value),
    }


def _make_array_decoder(kind: np.dtype[np.generic]) -> Callable[[object, bool], object]:
    native = kind.newbyteorder("=")

    def decode(content: object, immutable: bool) -> np.ndarray:  # noqa: ARG001, FBT001  cbor2's signature
        if type(content) is not bytes or len(content) % kind.itemsize:
            length = len(content) if isinstance(content, Sized) else "no"
            raise DecodingError(f"a typed array of {kind} is {length} bytes long, or not made of bytes")
        return np.frombuffer(content, kind).astype(native)

    return decode


def _reshape_array(value: object, order: Literal["C", "F"]) -> np.ndarray:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise DecodingError("an array with dimensions is made of two parts")
    shape, flat = value
    array = flat if isinstance(flat, np.ndarray) else _array_from_list(flat)
    sizes = shape.tolist() if isinstance(shape, np.ndarray) else list(shape)
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(sizes) != array.size:
        raise DecodingError(f"{array.size} numbers do not make an array of the shape {sizes!r:.80}")
    return array.reshape(sizes, order=order)


def _decode_homogeneous(values: object) -> np.ndarray:
    # an empty list tells no type, and arrays of numbers are written with tags of their own
    empty = isinstance(values, (list, tuple)) and not values
    return np.zeros(0, np.bool_) if empty else _array_from_list(values)


def _array_from_list(values: object) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    kinds = set(map(type, values)) if isinstance(values, (list, tuple)) else {object}
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if not kinds <= {int, float}:
        raise DecodingError("a homogeneous array holds numbers or booleans")
    array = np.array(values)
    if array.dtype.hasobject:
        raise DecodingError("a homogeneous array holds a number beyond 64 bits")
    return array


_MOST_BITS = 1 << 14
_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))
# before, the reading of tags could not be bounded
_FIRST_CBOR2 = (6, 2)


def msgpack_loads(data: bytes) -> Any:
    """Decode msgpack.

    Args:
        data: one msgpack value.

    Returns:
        The value; extensions of type 78 as arrays, others as the library's own extension values.

    Raises:
        MissingExtra: neither msgpack nor msgspec is installed.
        DecodingError: lists and maps in one another, deeper than msgpack reads; or not msgpack.
        ValueError: not msgpack.
    """
    library = import_if_available("msgpack")
    if library is None:
        spec = _msgspec()
        return spec.decode(data, ext_hook=functools.partial(decode_msgpack_extension, extension=spec.Ext))
    try:
        return library.unpackb(data, strict_map_key=False, ext_hook=msgpack_extensions())
    except library.StackError as error:
        raise DecodingError("lists and maps stand in one another deeper than msgpack reads") from error
    except library.FormatError as error:
        raise DecodingError("no msgpack: a byte that begins no value") from error
    except TypeError as error:
        raise DecodingError(describe_list_key(error)) from error


def describe_list_key(error: TypeError) -> str:
    """Return what is wrong with msgpack whose maps could not be made: a TypeError of the unpacker."""
    return (
        f"a map has a list or a map as key, which no dictionary of Python can have ({error}): write a list of pairs, "
        "keys that are texts, or CBOR"
    )


@functools.cache
def msgpack_extensions() -> Callable[[int, bytes], object]:
    """Return the hook that the msgpack package calls for extensions."""
    library = require("msgpack", extra="records", purpose="reading msgpack")
    return functools.partial(decode_msgpack_extension, extension=library.ExtType)


def msgpack_dumps(value: object) -> bytes:
    """Encode as msgpack.

    Raises:
        MissingExtra: neither msgpack nor msgspec is installed.
        EncodingError: a value that msgpack does not have, such as an integer beyond 64 bits, or that would not be read
            back: a tuple as a key.
        OverflowError: such an integer, where msgspec takes the place of msgpack.
    """
    library = import_if_available("msgpack")
    if library is None:
        spec = _msgspec()
        packed: bytes = spec.encode(value, enc_hook=functools.partial(encode_msgpack_extension, extension=spec.Ext))
    else:
        packed = library.packb(value, default=functools.partial(encode_msgpack_extension, extension=library.ExtType))
    # after the packing, which refuses what contains itself
    _refuse_tuple_keys(value)
    return packed


def _refuse_tuple_keys(value: object) -> None:
    """Raise for a dictionary with a tuple as key: msgpack writes it as a list, which no dictionary can be read with.

    Raises:
        EncodingError: there is one.
    """
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if not _PLAIN.issuperset(map(type, part)) and any(isinstance(key, tuple) for key in part):
                raise EncodingError(
                    "msgpack has no tuples as keys of a dictionary: they would be read as lists, which cannot be keys; "
                    "write a list of pairs, keys that are texts, or CBOR"
                )
            part = part.values()
        # long lists are of numbers, mostly
        if isinstance(part, list | tuple | ValuesView) and not _PLAIN.issuperset(map(type, part)):
            left += [inner for inner in part if isinstance(inner, (dict, list, tuple))]


def _msgspec() -> ModuleType:
    library = import_if_available("msgspec.msgpack")
    if library is None:
        raise MissingExtra(f"msgpack fields need msgpack: {install_command('records')}")
    return library


def cbor_loads(data: bytes) -> Any:
    """Decode CBOR.

    Args:
        data: one CBOR value, and nothing after it.

    Returns:
        The value; typed arrays as numpy arrays. Regular expressions, MIME messages and unknown tags are left as
        ``cbor2.CBORTag``.

    Raises:
        MissingExtra: cbor2 is not installed.
        DecodingError: something that cannot be read within bounds, or bytes after the value.
        ValueError: not CBOR.
    """
    with translate_cbor_errors() as library:
        stream = io.BytesIO(data)
        value = library.CBORDecoder(stream, semantic_decoders=cbor_tag_decoders()).decode()
        if stream.tell() != len(data):
            raise DecodingError(f"after the CBOR value come {len(data) - stream.tell()} other bytes")
    return value


@contextmanager
def translate_cbor_errors() -> Iterator[ModuleType]:
    """Give cbor2; turn its errors into ours where we caused them, and into ValueError."""
    library = cbor2()
    try:
        yield library
    except library.CBORDecodeEOF as error:
        raise DecodingError(f"the CBOR value is cut short: {error}") from error
    except library.CBORDecodeError as error:
        cause = error.__cause__
        if isinstance(cause, WebDatasetError):
            raise cause from None
        raise DecodingError(f"no CBOR: {error}" + (f" ({cause})" if cause is not None else "")) from error


@functools.cache
def cbor2() -> ModuleType:
    """Return cbor2.

    Raises:
        MissingExtra: it is not installed, or too old to be bounded.
    """
    library = require("cbor2", extra="records", purpose="reading and writing CBOR")
    release = tuple(int(part) for part in importlib.metadata.version("cbor2").split(".")[:2])
    if release < _FIRST_CBOR2:
        raise MissingExtra(f"CBOR needs cbor2 6.2 or later: {install_command('records')}")
    return library


def cbor_dumps(value: object) -> bytes:
    """Encode as CBOR.

    Args:
        value: numbers, text, bytes, times, arrays, lists and dicts of these.

    Raises:
        MissingExtra: cbor2 is not installed.
        EncodingError: a value that CBOR does not have.
    """
    library = cbor2()
    try:
        encoded: bytes = library.dumps(value, default=_cbor_default)
    except library.CBOREncodeError as error:
        cause = error.__cause__
        if isinstance(cause, EncodingError):
            raise cause from None
        raise EncodingError(f"CBOR cannot hold this: {error}") from error
    return encoded


def _cbor_default(encoder: Any, value: object) -> None:
    encoder.encode(encode_cbor_tag(value, cbor2().CBORTag))


@functools.cache
def cbor_tag_decoders() -> dict[int, Callable[[object, bool], object]]:
    """Return the decoders of all tags that are not read as cbor2 reads them."""
    tag = cbor2().CBORTag
    return {
        **cbor_array_decoders(),
        4: _decode_decimal_fraction,
        5: _decode_bigfloat,
        28: _refuse_shared_reference,
        29: _refuse_shared_reference,
        30: _decode_rational,
        # patterns are not compiled
        35: lambda value, _: tag(35, value),
        # messages are not parsed
        36: lambda value, _: tag(36, value),
    }


def _refuse_shared_reference(value: object, immutable: bool) -> NoReturn:  # noqa: ARG001, FBT001  cbor2's signature
    raise DecodingError("CBOR with shared references (tags 28, 29) is not read: a few bytes may stand for any size")


def _check_numbers(value: object, what: str) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(part) is int for part in value):
        raise DecodingError(f"a {what} is made of two integers")
    if max(part.bit_length() for part in value) > _MOST_BITS:
        raise DecodingError(f"a {what} has more than {_MOST_BITS} bits, which is not read")
    return value[0], value[1]


def _decode_decimal_fraction(value: object, immutable: bool) -> decimal.Decimal:  # noqa: ARG001, FBT001  cbor2's signature
    exponent, mantissa = _check_numbers(value, "decimal fraction")
    sign, digits, _ = decimal.Decimal(mantissa).as_tuple()
    try:
        return decimal.Decimal((sign, digits, exponent))
    except (decimal.InvalidOperation, OverflowError) as error:
        raise DecodingError("the exponent of a decimal fraction is out of range") from error


def _decode_bigfloat(value: object, immutable: bool) -> decimal.Decimal:  # noqa: ARG001, FBT001  cbor2's signature
    exponent, mantissa = _check_numbers(value, "bigfloat")
    try:
        return decimal.Decimal(mantissa) * (2 ** decimal.Decimal(exponent))
    except (decimal.DecimalException, OverflowError) as error:
        raise DecodingError("the exponent of a bigfloat is out of range") from error


def _decode_rational(value: object, immutable: bool) -> fractions.Fraction:  # noqa: ARG001, FBT001  cbor2's signature
    numerator, denominator = _check_numbers(value, "rational number")
    if denominator < 1:
        raise DecodingError("the denominator of a rational number is not positive")
    return fractions.Fraction(numerator, denominator)
