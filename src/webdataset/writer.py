"""Compatibility import path of the writers of shards; the code lives in :mod:`webdataset.writing`.

The encoders of fields (:mod:`webdataset.codecs`) are here too. Late-bound: a ``gopen`` that replaces the one in this
module opens what the writers write.
"""

from typing import TYPE_CHECKING, Any

from webdataset.codecs import (
    add_handlers,
    default_handlers,
    encode_based_on_extension,
    encode_based_on_extension1,
    imageencoder,
    make_encoder,
    make_handlers,
    numpy_dumps,
    numpy_npz_dumps,
    torch_dumps,
)
from webdataset.core.lazy_modules import lazy_attributes, lazy_dir
from webdataset.gopen import gopen
from webdataset.writing.tar_writer import TarWriter

if TYPE_CHECKING:
    from webdataset.writing.documents import DocumentWriter
    from webdataset.writing.records import RecordShardWriter, RecordWriter
    from webdataset.writing.shard_writer import ShardWriter

__all__ = [
    "DocumentWriter",
    "RecordShardWriter",
    "RecordWriter",
    "ShardWriter",
    "TarWriter",
    "add_handlers",
    "bytestr",
    "cbor_dumps",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "gopen",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "mp_dumps",
    "numpy_dumps",
    "numpy_npz_dumps",
    "tenbin_dumps",
    "torch_dumps",
]


_LAZY_NAMES = {
    "writing.documents": "DocumentWriter",
    "writing.records": "RecordShardWriter RecordWriter",
    "writing.shard_writer": "ShardWriter",
}

__getattr__ = lazy_attributes(__name__, homes=_LAZY_NAMES)
__dir__ = lazy_dir(__name__, __all__)


def bytestr(data: Any) -> bytes:
    """Return something as bytes: bytes as they are, anything else as UTF-8 of its text.

    Args:
        data: bytes, a text, or anything with a ``str``.
    """
    if isinstance(data, memoryview):
        return bytes(data)
    return data if isinstance(data, bytes) else str(data).encode("utf-8")


def mp_dumps(x: Any) -> bytes:
    """Encode as msgpack.

    Args:
        x: numbers, text, bytes, lists and dicts of these.

    Raises:
        MissingExtra: neither msgspec nor msgpack is installed.
        ValueError: a value that msgpack does not have.
    """
    from webdataset.codecs.msgpack_cbor import msgpack_dumps  # noqa: PLC0415  needs numpy

    return msgpack_dumps(x)


def cbor_dumps(x: Any) -> bytes:
    """Encode as CBOR.

    Args:
        x: numbers, text, bytes, times, lists and dicts of these.

    Raises:
        MissingExtra: cbor2 is not installed.
        ValueError: a value that CBOR does not have.
    """
    from webdataset.codecs.msgpack_cbor import cbor_dumps as dumps  # noqa: PLC0415  needs numpy

    return dumps(x)


def tenbin_dumps(x: Any) -> bytes:
    """Encode as tenbin.

    Args:
        x: an array, or a list of arrays.

    Raises:
        ValueError: a value that tenbin does not have.
    """
    from webdataset.codecs.tenbin import tenbin_dumps as dumps  # noqa: PLC0415  needs numpy

    return dumps(x)
