"""msgpack and CBOR fields, through whichever library is installed.

Flows in: bytes. Flows out: plain values; and back.
"""

from typing import Any

from webdataset.ground.errors import MissingExtra
from webdataset.ground.extras import available, require


def msgpack_loads(data: bytes) -> Any:
    """Decode msgpack.

    Args:
        data: one msgpack value.

    Raises:
        MissingExtra: neither msgpack nor msgspec is installed.
        ValueError: not msgpack.
    """
    library = available("msgpack")
    return _msgspec().decode(data) if library is None else library.unpackb(data)


def msgpack_dumps(value: Any) -> bytes:
    """Encode as msgpack.

    Args:
        value: numbers, text, bytes, lists and dicts of these.

    Raises:
        MissingExtra: neither msgpack nor msgspec is installed.
        TypeError: a value that msgpack does not have.
    """
    library = available("msgpack")
    packed: bytes = _msgspec().encode(value) if library is None else library.packb(value)
    return packed


def _msgspec() -> Any:
    library = available("msgspec.msgpack")
    if library is None:
        raise MissingExtra("msgpack fields need msgpack: pip install 'webdataset[records]'")
    return library


def cbor_loads(data: bytes) -> Any:
    """Decode CBOR.

    Args:
        data: one CBOR value.

    Raises:
        MissingExtra: cbor2 is not installed.
        ValueError: not CBOR.
    """
    return require("cbor2", extra="records", purpose="decoding CBOR fields").loads(data)


def cbor_dumps(value: Any) -> bytes:
    """Encode as CBOR.

    Args:
        value: numbers, text, bytes, times, lists and dicts of these.

    Raises:
        MissingExtra: cbor2 is not installed.
        ValueError: a value that CBOR does not have.
    """
    encoded: bytes = require("cbor2", extra="records", purpose="encoding CBOR fields").dumps(value)
    return encoded
