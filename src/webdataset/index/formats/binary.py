"""Reads and writes our own index of a shard, ``shard.wdsindex``: numbers as they stand in memory, so that it is mapped.

It holds ``wdsindex``, the length of the head and the CRC-32 of all that follows as uint64, the head in JSON, and then
arrays, each at a multiple of 8 bytes: the ends of the keys, where samples start, the ends of their fields (uint64 a
sample); where payloads start, their sizes (uint64 a field), the kinds of the fields (uint32 a field: places in the
head's list of names); the keys in UTF-8. Numbers are little-endian.

Opening one reads the head alone, whatever the number of samples; the checksum is compared before the first entry is
used. Never believes the arrays: what they lead to is compared with the shard when a sample is read.
"""

import json
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from webdataset.core.errors import BadIndex
from webdataset.index.entries import EntryColumns, SampleEntries, ShardIndex, refuse_unaddressable

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC: Final = b"wdsindex"
_VERSION: Final = 1
_LONGEST_HEAD: Final = 1 << 26
_ALIGNMENT: Final = 8
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class BinaryIndex(NamedTuple):
    """What an index file says.

    Args:
        size_bytes: of the shard, or None.
        end: where its end mark starts.
        entries: its samples.
        sparse: ordinals of samples with a sparse member.
        joins: where further archives start.
        hashes: digests of the shard.
        distinct: whether no key stands twice.
    """

    size_bytes: int | None
    end: int
    entries: SampleEntries
    sparse: frozenset[int]
    joins: tuple[int, ...]
    hashes: dict[str, str]
    distinct: bool


def index_name(url: str) -> str:
    """Return the name of a shard's index: its own with ``.wdsindex`` in place of ``.tar``."""
    return f"{url.removesuffix('.tar')}.wdsindex"


def dumps(index: ShardIndex) -> bytes:
    """Return the index file of a shard.

    Raises:
        NotRepresentable: the shard is compressed.
    """
    if index.compression is not None:
        refuse_unaddressable(index, "a binary index")
    entries = index.entries if isinstance(index.entries, SampleEntries) else SampleEntries(index.entries)
    columns = entries.columns()
    head = {
        "version": _VERSION,
        "size_bytes": index.size_bytes,
        "end": index.end,
        "samples": len(columns.starts),
        "fields": len(columns.kinds),
        "key_bytes": len(columns.keys),
        "names": columns.names,
        "odd": columns.odd,
        "sparse": sorted(index.sparse),
        "joins": index.joins,
        "hashes": index.hashes,
        "distinct": len(set(entries.keys())) == len(entries),
    }
    text = _pad(json.dumps(head, separators=(",", ":")).encode(), b" ")
    wide = (columns.key_ends, columns.starts, columns.field_ends, columns.offsets, columns.sizes)
    arrays = [*(array("Q", column) for column in wide), array("I", columns.kinds)]
    content = b"".join((text, *(_pad(_swap(column).tobytes(), b"\0") for column in arrays), columns.keys))
    return MAGIC + b"".join(number.to_bytes(8, "little") for number in (len(text), crc32(content))) + content


def loads(content: "Buffer", *, url: str | None = None) -> BinaryIndex:
    """Read an index file; its arrays are not copied.

    Args:
        content: the file's bytes, or the file mapped.
        url: of the file, for errors.

    Raises:
        BadIndex: not such a file.
    """
    view = memoryview(content).toreadonly()
    length, expected = (int.from_bytes(view[place : place + 8], "little") for place in (len(MAGIC), len(MAGIC) + 8))
    rest = view[len(MAGIC) + 16 :]
    if bytes(view[: len(MAGIC)]) != MAGIC or length > min(len(rest), _LONGEST_HEAD) or length % _ALIGNMENT:
        raise BadIndex("this is no index of webdataset", url=url)

    def verify() -> None:
        if crc32(rest) != expected:
            raise BadIndex("the index is damaged, by its checksum: write it again", url=url)

    try:
        head = json.loads(bytes(rest[:length]))
        if head["version"] != _VERSION:
            raise BadIndex(f"an index of version {head['version']}, and this library knows {_VERSION}", url=url)
        return _parse(head, rest[length:], verify)
    except _UNREADABLE as error:
        if isinstance(error, BadIndex):
            raise
        raise BadIndex(f"the index is damaged: {error}", url=url) from error


def _parse(head: dict[str, Any], arrays: memoryview, verify: Callable[[], None]) -> BinaryIndex:
    samples, fields, key_bytes = (_count(head[name]) for name in ("samples", "fields", "key_bytes"))
    widths = [8 * samples] * 3 + [8 * fields] * 2 + [4 * fields]
    places = [0]
    for width in widths:
        places.append(places[-1] + width + -width % _ALIGNMENT)
    if places[-1] + key_bytes != len(arrays):
        raise ValueError(f"{places[-1] + key_bytes} bytes of numbers and keys are wanted, and there are {len(arrays)}")
    wide = [_cast(arrays[place : place + width]) for place, width in zip(places[:5], widths[:5], strict=True)]
    kinds = arrays[places[5] : places[5] + widths[5]]
    names = [(str(name), str(rest)) for name, rest in head["names"]]
    odd = {int(row): str(member) for row, member in head["odd"].items()}
    key_ends, starts, field_ends, offsets, sizes = wide
    keys = arrays[places[-1] :]
    columns = EntryColumns(keys, key_ends, starts, field_ends, offsets, sizes, _cast(kinds, narrow=True), names, odd)
    size_bytes = head["size_bytes"]
    return BinaryIndex(
        size_bytes if size_bytes is None else _count(size_bytes),
        _count(head["end"]),
        SampleEntries.from_columns(columns, verify),
        frozenset(map(_count, head["sparse"])),
        tuple(map(_count, head["joins"])),
        {str(name): str(digits) for name, digits in head["hashes"].items()},
        head["distinct"] is True,
    )


def _count(number: object) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f"{number!r} is no number of bytes or samples")
    return number


def _pad(content: bytes, filling: bytes) -> bytes:
    return content + filling * (-len(content) % _ALIGNMENT)


def _cast(content: memoryview, *, narrow: bool = False) -> Sequence[int]:
    """Return the numbers in some bytes: uint64, or uint32."""
    if sys.byteorder == "little":
        return content.cast("I") if narrow else content.cast("Q")
    return _swap(array("I" if narrow else "Q", content.tobytes()))


def _swap(numbers: "array[int]") -> "array[int]":
    """Return numbers in the other order of bytes where this machine is big-endian."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
