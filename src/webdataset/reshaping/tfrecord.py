"""Reads TFRecord files as rows: ``tf.train.Example``, parsed without TensorFlow; checksums are verified.

A record is its length (64 bits), the masked CRC32C of the length, the bytes, and their masked CRC32C. The messages are
declared here so that nothing hides: the features of an Example as a list, where a map would keep the last of two that
have one name, and its three kinds of values beside each other, where a ``oneof`` would keep the last. What is no
Example (a SequenceExample, other bytes) becomes one field ``record``.

A feature with one value is that value; one with none or several is a list. Bytes that are UTF-8 text without control
characters are text: the format does not tell texts from bytes.
"""

import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from webdataset.core.errors import FormatError, Truncated, UsageError
from webdataset.core.optional_imports import require
from webdataset.reshaping.field_values import Content, Row, guess_extension, last_extension
from webdataset.storage.object_store import crc32c_function
from webdataset.storage.open_url import open_stream
from webdataset.tar.compression import Decompressor, detect_compression

if TYPE_CHECKING:
    from google.protobuf.message import Message

_HEAD: Final = struct.Struct("<QI")
_TAIL: Final = struct.Struct("<I")
_PIECE = 256 * 1024
MOST_BYTES: Final = 1 << 31
"""The longest record that is read: protobuf's own limit."""


def mask_crc32c(checksum: int) -> int:
    """Return a CRC32C as TFRecord files store it.

    Args:
        checksum: 32 bits.
    """
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def make_crc32c() -> Callable[[bytes, int], int]:
    """Return what continues a CRC32C.

    Raises:
        MissingExtra: no package here computes it.
    """
    found = crc32c_function()
    if found is not None:
        return found
    library = require("google_crc32c", extra="tfrecord", purpose="verifying the checksums of TFRecord files")
    return lambda piece, before: int(library.extend(before, piece))


class _Bytes:
    """The bytes of a file, decompressed, taken as many at a time as are asked for.

    Args:
        url: the file.
        storage_options: what it is opened with.
    """

    def __init__(self, url: str, storage_options: object) -> None:
        self.offset = 0
        self._rest = bytearray()
        self._stream = open_stream(url, storage_options=storage_options)
        self._pieces = self._read()

    def _read(self) -> Iterator[bytes]:
        first = b""
        while len(first) < _PIECE and (piece := self._stream.read(_PIECE - len(first))):
            first += piece
        # a length of several exabytes would be needed to look like this in a plain file
        kind = detect_compression(first) if _HEAD.size > len(first) or not _is_head(first) else None
        engine = Decompressor(kind) if kind else None
        while first:
            if engine is None:
                yield bytes(first)
            else:
                yield from engine.feed(bytes(first))
            first = self._stream.read(_PIECE)
        if engine is not None:
            engine.finish()

    def take(self, size: int) -> bytes:
        """Return so many bytes; fewer only at the end.

        Args:
            size: how many.
        """
        while len(self._rest) < size and (piece := next(self._pieces, None)) is not None:
            self._rest += piece
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        self.offset += len(taken)
        return taken

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _is_head(start: bytes) -> bool:
    length, checksum = _HEAD.unpack_from(start)
    del length
    return mask_crc32c(make_crc32c()(start[:8], 0)) == int(checksum)


def read_records(url: str, storage_options: object = None) -> Iterator[tuple[int, bytes | FormatError]]:
    """Yield the records of a TFRecord file, each with its offset in bytes (of the decompressed file).

    Args:
        url: the file, plain or compressed.
        storage_options: what it is opened with.

    Yields:
        The offset, and the bytes; an error in place of bytes that fail their checksum, for the next can be read.

    Raises:
        Truncated: the file ends inside a record.
        FormatError: the length of a record fails its checksum: nothing behind it can be found.
        MissingExtra: no package here computes CRC32C.
    """
    crc32c = make_crc32c()
    with closing(_Bytes(url, storage_options)) as source:
        while True:
            offset = source.offset
            head = source.take(_HEAD.size)
            if not head:
                return
            if len(head) < _HEAD.size:
                raise Truncated("the file ends inside the head of a record", url=url, offset=offset)
            length, checksum = _HEAD.unpack(head)
            if mask_crc32c(crc32c(head[:8], 0)) != checksum:
                raise FormatError(
                    "the length of a record fails its checksum: the file is damaged from here on, or no TFRecord file",
                    url=url,
                    offset=offset,
                )
            if length > MOST_BYTES:
                raise FormatError(f"a record of {length} bytes: at most {MOST_BYTES} are read", url=url, offset=offset)
            content = source.take(length)
            tail = source.take(_TAIL.size)
            if len(content) < length or len(tail) < _TAIL.size:
                raise Truncated(f"the file ends inside a record of {length} bytes", url=url, offset=offset)
            if mask_crc32c(crc32c(content, 0)) == _TAIL.unpack(tail)[0]:
                yield offset, content
            else:
                yield offset, FormatError("the bytes of a record fail their checksum", url=url, offset=offset)


_MESSAGES: Final = {
    "BytesList": (("value", 1, "BYTES", True),),
    "FloatList": (("value", 1, "FLOAT", True),),
    "Int64List": (("value", 1, "INT64", True),),
    "Feature": (("bytes_list", 1, "BytesList", False), ("float_list", 2, "FloatList", False),
                ("int64_list", 3, "Int64List", False)),
    "NamedFeature": (("key", 1, "BYTES", False), ("value", 2, "Feature", False)),
    "Features": (("feature", 1, "NamedFeature", True),),
    "Example": (("features", 1, "Features", True),),
}  # fmt: skip


@functools.cache
def _load_message_class() -> "type[Message]":
    """Make the class of Example, in a pool of its own: TensorFlow's is in the common one."""
    parts = [
        require(f"google.protobuf.{name}", extra="tfrecord", purpose="reading TFRecord files")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    ]
    descriptors, pools, factory = parts
    file = descriptors.FileDescriptorProto(name="example.proto", package="wds", syntax="proto2")
    kinds = descriptors.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in _MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".wds.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind}")
    pool = pools.DescriptorPool()
    pool.Add(file)
    made: type[Message] = factory.GetMessageClass(pool.FindMessageTypeByName("wds.Example"))
    return made


def parse_example(content: bytes) -> dict[str, object] | None:
    """Return the features of a ``tf.train.Example``; None where the bytes are something else.

    Args:
        content: of a record.

    Returns:
        Name to value: ``str``, ``bytes``, ``int`` or ``float``, or a list of them; None for a feature without a kind.

    Raises:
        FormatError: two features of one name, one with several kinds of values, or a name that is no UTF-8.
    """
    message = _load_message_class()()
    errors = require("google.protobuf.message", extra="tfrecord", purpose="reading TFRecord files")
    try:
        message.ParseFromString(content)
    except errors.DecodeError:
        return None
    if len(message.features) > 1 or _has_unknown_fields(message) or (content and not message.features):
        return None
    found: dict[str, object] = {}
    for features in message.features:
        for named in features.feature:
            try:
                name = named.key.decode("utf-8")
            except UnicodeDecodeError as error:
                raise FormatError(f"a feature's name is no UTF-8: {named.key[:50]!r}") from error
            if name in found:
                raise FormatError(f"two features of an Example have the name {name!r}")
            found[name] = _read_feature(name, named.value)
    return found


def _has_unknown_fields(message: "Message") -> bool:
    unknown = require("google.protobuf.unknown_fields", extra="tfrecord", purpose="reading TFRecord files")
    if len(unknown.UnknownFieldSet(message)):
        return True
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            parts = [value] if hasattr(value, "ListFields") else value
            if any(map(_has_unknown_fields, parts)):
                return True
    return False


def _read_feature(name: str, feature: "Message") -> object:
    kinds = [(descriptor.name, value) for descriptor, value in feature.ListFields()]
    if len(kinds) > 1:
        raise FormatError(f"the feature {name!r} has values of several kinds")
    if not kinds:
        return None
    kind, content = kinds[0]
    values: list[object] = list(content.value)
    if kind == "bytes_list":
        texts = [_decode_text(value) for value in content.value]
        if all(text is not None for text in texts):
            # a single text may be under a name whose extension says what it is
            values = [Content.make(content.value[0], "txt")] if len(texts) == 1 else list(texts)
    elif kind == "float_list":
        values = [float(value) for value in content.value]
    if last_extension(name) == "npy" and kind != "bytes_list":
        import numpy as np  # noqa: PLC0415  for arrays alone

        return np.asarray(values, np.int64 if kind == "int64_list" else np.float32)
    return values[0] if len(values) == 1 else values


def _decode_text(content: bytes) -> str | None:
    if guess_extension(content) is not None:
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(letter.isprintable() or letter in "\n\r\t" for letter in text) else None


def read_tfrecord(url: str, storage_options: object = None, names: frozenset[str] = frozenset()) -> Iterator[Row]:
    """Yield the records of a TFRecord file as rows.

    Args:
        url: the file.
        storage_options: what it is opened with.
        names: the first row must have these features, for options name them.

    Raises:
        Truncated: as for :func:`read_records`.
        FormatError: likewise.
        UsageError: a name that the first Example does not have.
    """
    first = True
    for offset, content in read_records(url, storage_options):
        place = f"the record at offset {offset}"
        values: dict[str, object] | FormatError
        if isinstance(content, FormatError):
            values = content
        else:
            try:
                found = parse_example(content)
                values = {"record": content} if found is None else found
            except FormatError as error:
                values = error.locate(url=url, offset=offset)
        if first and not isinstance(values, FormatError) and (missing := sorted(names - set(values))):
            shown = ", ".join(list(values)[:20]) or "none"
            raise UsageError(f"an option names the feature {missing[0]!r}; the first record has {shown}", url=url)
        first = False
        yield Row(url, place, values)
