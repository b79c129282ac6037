"""msgpack and CBOR fields, through whichever library is installed; arrays in them as ``record_arrays`` describes.

Flows in: bytes. Flows out: plain values and arrays; and back. Decoding calls nothing that the bytes name, and bounds
what small inputs may ask for: containers are as long as their bytes at most, and the CBOR tags whose reading takes
unbounded time or memory (shared references, regular expressions, huge decimals and fractions) are refused or left as
tags.
"""

import decimal
import fractions
import functools
import importlib.metadata
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from webdataset.ground.errors import DecodingError, EncodingError, MissingExtra, WebDatasetError
from webdataset.ground.extras import available, require

from .record_arrays import cbor_arrays, cbor_tags, msgpack_array, msgpack_extension

_MOST_BITS = 1 << 14
_FIRST_CBOR2 = (6, 2)  # before, the reading of tags could not be bounded


def msgpack_loads(data: bytes) -> Any:
    """Decode msgpack.

    Args:
        data: one msgpack value.

    Returns:
        The value; extensions of type 78 as arrays, others as the library's own extension values.

    Raises:
        MissingExtra: neither msgpack nor msgspec is installed.
        ValueError: not msgpack.
    """
    library = available("msgpack")
    if library is None:
        spec = _msgspec()
        return spec.decode(data, ext_hook=functools.partial(msgpack_array, extension=spec.Ext))
    return library.unpackb(data, strict_map_key=False, ext_hook=msgpack_extensions())


@functools.cache
def msgpack_extensions() -> Callable[[int, bytes], Any]:
    """Return the hook that the msgpack package calls for extensions."""
    library = require("msgpack", extra="records", purpose="reading msgpack")
    return functools.partial(msgpack_array, extension=library.ExtType)


def msgpack_dumps(value: Any) -> bytes:
    """Encode as msgpack.

    Args:
        value: numbers, text, bytes, arrays, lists and dicts of these.

    Raises:
        MissingExtra: neither msgpack nor msgspec is installed.
        EncodingError: a value that msgpack does not have.
        OverflowError: an integer beyond 64 bits.
    """
    library = available("msgpack")
    if library is None:
        spec = _msgspec()
        packed: bytes = spec.encode(value, enc_hook=functools.partial(msgpack_extension, extension=spec.Ext))
    else:
        packed = library.packb(value, default=functools.partial(msgpack_extension, extension=library.ExtType))
    return packed


def _msgspec() -> Any:
    library = available("msgspec.msgpack")
    if library is None:
        raise MissingExtra("msgpack fields need msgpack: pip install 'webdataset[records]'")
    return library


def cbor_loads(data: bytes) -> Any:
    """Decode CBOR.

    Args:
        data: one CBOR value, and nothing behind it.

    Returns:
        The value; typed arrays as numpy arrays. Regular expressions, MIME messages and unknown tags are left as
        ``cbor2.CBORTag``.

    Raises:
        MissingExtra: cbor2 is not installed.
        DecodingError: something that cannot be read within bounds, or bytes behind the value.
        ValueError: not CBOR.
    """
    with cbor_failures() as library:
        stream = io.BytesIO(data)
        value = library.CBORDecoder(stream, semantic_decoders=cbor_semantics()).decode()
        if stream.tell() != len(data):
            raise DecodingError(f"behind the CBOR value come {len(data) - stream.tell()} other bytes")
    return value


@contextmanager
def cbor_failures() -> Iterator[ModuleType]:
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
        raise MissingExtra("CBOR needs cbor2 6.2 or later: pip install -U 'webdataset[records]'")
    return library


def cbor_dumps(value: Any) -> bytes:
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


def _cbor_default(encoder: Any, value: Any) -> None:
    encoder.encode(cbor_tags(value, cbor2().CBORTag))


@functools.cache
def cbor_semantics() -> dict[int, Callable[[Any, bool], Any]]:
    """Return the decoders of all tags that are not read as cbor2 reads them."""
    tag = cbor2().CBORTag
    return {
        **cbor_arrays(),
        4: _decimal_fraction,
        5: _bigfloat,
        28: _shared,
        29: _shared,
        30: _rational,
        35: lambda value, _: tag(35, value),  # patterns are not compiled
        36: lambda value, _: tag(36, value),  # messages are not parsed
    }


def _shared(value: Any, immutable: bool) -> Any:  # noqa: ARG001, FBT001  cbor2's signature
    raise DecodingError("CBOR with shared references (tags 28, 29) is not read: a few bytes may stand for any size")


def _numbers(value: Any, what: str) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(part) is int for part in value):
        raise DecodingError(f"a {what} is made of two integers")
    if max(part.bit_length() for part in value) > _MOST_BITS:
        raise DecodingError(f"a {what} has more than {_MOST_BITS} bits, which is not read")
    return value[0], value[1]


def _decimal_fraction(value: Any, immutable: bool) -> decimal.Decimal:  # noqa: ARG001, FBT001  cbor2's signature
    exponent, mantissa = _numbers(value, "decimal fraction")
    sign, digits, _ = decimal.Decimal(mantissa).as_tuple()
    try:
        return decimal.Decimal((sign, digits, exponent))
    except (decimal.InvalidOperation, OverflowError) as error:
        raise DecodingError("the exponent of a decimal fraction is out of range") from error


def _bigfloat(value: Any, immutable: bool) -> decimal.Decimal:  # noqa: ARG001, FBT001  cbor2's signature
    exponent, mantissa = _numbers(value, "bigfloat")
    try:
        return decimal.Decimal(mantissa) * (2 ** decimal.Decimal(exponent))
    except (decimal.DecimalException, OverflowError) as error:
        raise DecodingError("the exponent of a bigfloat is out of range") from error


def _rational(value: Any, immutable: bool) -> fractions.Fraction:  # noqa: ARG001, FBT001  cbor2's signature
    numerator, denominator = _numbers(value, "rational number")
    if denominator < 1:
        raise DecodingError("the denominator of a rational number is not positive")
    return fractions.Fraction(numerator, denominator)
