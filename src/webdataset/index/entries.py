"""The entries of an index: where each sample of a shard lies, and each field of it.

Entries come in the order of the stream reader and are kept in arrays (about 70 bytes a sample of two fields). Offsets
are those of the tar stream, after decompression; extensions are spelled as in the archive.

Holds no payload, reads nothing.
"""

import dataclasses
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple, Self, overload

from webdataset.core.errors import BadIndex, NotRepresentable
from webdataset.core.fork_safety import FREE_THREADED
from webdataset.core.redaction import redact


class FieldEntry(NamedTuple):
    """One field of a sample.

    Args:
        name: the field's name as samples have it: the extension, lower-cased as the reader does ("jpg", "seg.png").
        member: the member's full name.
        offset: where its payload starts, in bytes.
        size: bytes of payload.
    """

    name: str
    member: str
    offset: int
    size: int


class SampleEntry(NamedTuple):
    """One sample.

    Args:
        key: its key.
        offset: where its first header starts, extended headers included, in bytes.
        fields: its fields, in tar order.
    """

    key: str
    offset: int
    fields: tuple[FieldEntry, ...]


class EntryColumns(NamedTuple):
    """The entries of a shard, column by column; each may be an array or a part of a mapped file.

    Args:
        keys: all keys, one after another, in UTF-8.
        key_ends: where each key ends.
        starts: where each sample starts.
        field_ends: number of fields up to the end of each sample.
        offsets: where the payload of each field starts.
        sizes: bytes of each field.
        kinds: place of each field's name in ``names``.
        names: a field, and what follows the key in the member's name.
        odd: members whose names do not start with their key, by the number of the field.
    """

    keys: bytearray | memoryview
    key_ends: Sequence[int]
    starts: Sequence[int]
    field_ends: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]
    kinds: Sequence[int]
    names: list[tuple[str, str]]
    odd: dict[int, str]


# half the time of a call of the class, once a field of a sample that is read
_new = tuple.__new__


class SampleEntries(Sequence[SampleEntry]):
    """Sample entries in arrays; read like a sequence, grown by :meth:`append`."""

    def __init__(self, entries: Iterable[SampleEntry] = ()) -> None:
        self._keys = bytearray()
        self._key_ends = array("Q")
        self._starts = array("Q")
        self._field_ends = array("Q")
        self._kinds = array("I")
        self._offsets = array("Q")
        self._sizes = array("Q")
        # (field, what follows the key in the member's name)
        self._names: list[tuple[str, str]] = []
        self._known: dict[tuple[str, str], int] = {}
        # members whose names do not start with their key
        self._odd: dict[int, str] = {}
        self._unverified: Callable[[], None] | None = None
        for entry in entries:
            self.append(entry)

    @classmethod
    def from_columns(cls, columns: EntryColumns, verify: Callable[[], None]) -> Self:
        """Return entries that stand in columns already, and are not to grow.

        Args:
            columns: the columns.
            verify: called before the first of them is used for more than its length; raises where they are damaged.
        """
        made = cls()
        made._set_columns(columns)
        made._unverified = verify
        return made

    def verify(self) -> None:
        """Compare columns that come from a file with their checksum, once.

        Raises:
            BadIndex: they are damaged.
        """
        # another thread may have done so meanwhile
        verify = self._unverified
        if verify is not None:
            verify()
            if FREE_THREADED and self.is_mapped:
                # such a Python counts the slices of one view wrongly where threads make them at the same time
                self._keys = bytearray(self._keys)
            self._unverified = None

    def columns(self) -> EntryColumns:
        """Return the columns, which grow with the entries; raises as :meth:`verify`."""
        self.verify()
        return EntryColumns(
            self._keys,
            self._key_ends,
            self._starts,
            self._field_ends,
            self._offsets,
            self._sizes,
            self._kinds,
            self._names,
            self._odd,
        )

    def _set_columns(self, columns: EntryColumns) -> None:
        given: Any = columns
        self._keys, self._key_ends, self._starts, self._field_ends, *rest = given
        self._offsets, self._sizes, self._kinds, self._names, self._odd = rest

    @property
    def is_mapped(self) -> bool:
        """Whether these are parts of a file."""
        return isinstance(self._starts, memoryview)

    def __getstate__(self) -> dict[str, Any]:
        """Travel with copies of what is mapped."""
        self.verify()
        state = self.__dict__.copy()
        for name, column in state.items():
            if isinstance(column, memoryview):
                state[name] = bytearray(column) if name == "_keys" else array(column.format, column.tobytes())
        return state

    def append(self, entry: SampleEntry) -> None:
        """Add one entry at the end."""
        key = entry.key
        for name, member, offset, size in entry.fields:
            if member.startswith(key):
                kind = self._kind(name, member[len(key) :])
            else:
                kind = self._kind(name, "")
                self._odd[len(self._kinds)] = member
            self._kinds.append(kind)
            self._offsets.append(offset)
            self._sizes.append(size)
        self._keys += key.encode("utf-8", "surrogateescape")
        self._key_ends.append(len(self._keys))
        self._starts.append(entry.offset)
        self._field_ends.append(len(self._kinds))

    def extend(
        self,
        keys: list[str],
        starts: list[int],
        shapes: list[tuple[str, ...]],
        offsets: list[int],
        sizes: list[int],
        *,
        skip: int,
    ) -> None:
        """Add entries whose members are called by key, dot and field.

        Args:
            keys: of the samples.
            starts: where each begins, in bytes.
            shapes: the names in each.
            offsets: where the payloads start, of all samples one after another.
            sizes: bytes of these payloads.
            skip: names in front of each shape that are no fields.
        """
        rows, end = len(self._kinds), len(self._keys)
        kinds = {shape: array("I", [self._kind(name, f".{name}") for name in shape[skip:]]) for shape in set(shapes)}
        if len(kinds) == 1:
            self._kinds += kinds[shapes[0]] * len(shapes)
        else:
            for shape in shapes:
                self._kinds += kinds[shape]
        self._offsets.extend(offsets)
        self._sizes.extend(sizes)
        joined = "".join(keys)
        raw = joined.encode("utf-8", "surrogateescape")
        plain = len(raw) == len(joined)
        lengths = map(len, keys if plain else [key.encode("utf-8", "surrogateescape") for key in keys])
        self._keys += raw
        self._key_ends.extend(islice(accumulate(lengths, initial=end), 1, None))
        self._starts.extend(starts)
        self._field_ends.extend(islice(accumulate((len(shape) - skip for shape in shapes), initial=rows), 1, None))

    def _kind(self, name: str, rest: str) -> int:
        """Return the number of a field, and of what follows the key in the names of its members."""
        pair = name, rest
        kind = self._known.get(pair)
        if kind is None:
            kind = self._known[pair] = len(self._names)
            self._names.append(pair)
        return kind

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> SampleEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[SampleEntry]: ...

    def __getitem__(self, index: int | slice) -> SampleEntry | list[SampleEntry]:
        """Return one entry, or a list of them."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if self._unverified is not None:
            self.verify()
        return self.peek(index)

    def peek(self, index: int) -> SampleEntry:
        """Return one entry, which may be damaged: its columns are not verified."""
        count = len(self._starts)
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise IndexError(f"there is no entry {index}: the index has {count}")
        ends, key_ends = self._field_ends, self._key_ends
        first, start = (ends[index - 1], key_ends[index - 1]) if index else (0, 0)
        key = str(self._keys[start : key_ends[index]], "utf-8", "surrogateescape")
        names, kinds, offsets, sizes, odd = self._names, self._kinds, self._offsets, self._sizes, self._odd
        fields = []
        try:
            for row in range(first, ends[index]):
                name, rest = names[kinds[row]]
                member = odd[row] if row in odd else key + rest
                fields.append(_new(FieldEntry, (name, member, offsets[row], sizes[row])))
        # a loop over the entries would take it for their end
        except IndexError:
            raise BadIndex(f"the index is damaged: sample {index} leads out of it") from None
        return _new(SampleEntry, (key, self._starts[index], tuple(fields)))

    def key(self, index: int) -> str:
        """Return the key of one sample, from 0 on."""
        self.verify()
        start = self._key_ends[index - 1] if index else 0
        return str(self._keys[start : self._key_ends[index]], "utf-8", "surrogateescape")

    def keys(self) -> Iterator[str]:
        """Yield all keys, in order."""
        self.verify()
        start = 0
        for stop in self._key_ends:
            yield str(self._keys[start:stop], "utf-8", "surrogateescape")
            start = stop

    def start(self, index: int) -> int:
        """Return where one sample's first header starts, in bytes."""
        self.verify()
        return self._starts[index]

    def __eq__(self, other: object) -> bool:
        """Tell whether another sequence holds the same entries."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"


@dataclasses.dataclass(frozen=True)
class ShardIndex:
    """Where the samples of one shard lie.

    Args:
        url: the shard.
        size_bytes: size of the shard as it is stored (compressed, if it is); None where that is not known.
        end: where the end mark starts, or would start: after the last member's padding, in bytes.
        entries: the samples, in the order of the stream.
        compression: ``gz``, ``bz2``, ``xz``, ``zst``; None for plain shards. Offsets into a compressed shard are of the
            decompressed stream: they count, but cannot be read at.
        sparse: ordinals of samples with a sparse member. Its entry says where the stored pieces start and how large the
            whole is; the payload does not lie there as it is.
        joins: where further archives start, if several stand after each other (``cat a.tar b.tar``): between them lie
            end marks.
        hashes: hex digests of the shard as it is stored, by algorithm (``md5``, ``sha1``, ``sha256``), where asked for.
    """

    url: str
    size_bytes: int | None
    end: int
    entries: Sequence[SampleEntry]
    compression: str | None = None
    sparse: frozenset[int] = frozenset()
    joins: tuple[int, ...] = ()
    hashes: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def md5(self) -> str | None:
        """Hex MD5 of the shard as it is stored, or None where it was not asked for."""
        return self.hashes.get("md5")

    @property
    def addressable(self) -> bool:
        """Whether payloads can be read at their offsets."""
        return self.compression is None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<ShardIndex of {redact(self.url)}: {len(self)} samples in {self.size_bytes} bytes>"


def refuse_unaddressable(index: ShardIndex, kind: str) -> None:
    """Raise where payloads do not lie in the shard as they are.

    Raises:
        NotRepresentable: the shard is compressed, or has sparse members.
    """
    if index.compression is not None:
        raise NotRepresentable(
            f"{kind} needs offsets into the file, and this shard is compressed ({index.compression}): decompress it",
            url=index.url,
        )
    if index.sparse:
        ordinal = min(index.sparse)
        raise NotRepresentable(
            f"{kind} cannot describe sparse members, whose bytes do not lie in the shard as they are (sample {ordinal} "
            "has one): rewrite the shard",
            url=index.url, key=index.entries[ordinal].key,
        )  # fmt: skip


def spell_extension(entry: SampleEntry, field: FieldEntry) -> str:
    """Return a field's extension with the capitals that it has in the archive."""
    start = len(entry.key) + 1
    return field.member[start:] if field.member[: start - 1] == entry.key else field.name
