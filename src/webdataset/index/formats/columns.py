"""Reads and writes columns files, ``shard.parquet``: what is known of each sample of a shard, to select samples by.

One row a sample, in the order of the shard: ``key``, ``wds_ordinal``, ``wds_offset`` (of its first header, in bytes),
``wds_size`` (up to the next sample's first header), the columns, ``wds_unclear`` (a column could not be made of this
sample), ``wds_fields`` (name, member where it is not the key, a dot and the name, offset and size of each payload). The
metadata ``wds.columns`` say which shard it is about. Every page has a checksum, which is compared.

A column is of a type of Parquet where its values come back as they were; else it is text in JSON. Never believes the
offsets: what they lead to is compared with the shard when a sample is read.
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self
from zlib import crc32

from webdataset.core.errors import BadIndex, NotRepresentable, describe_error
from webdataset.core.json_types import JsonValue, as_int, as_list, as_object
from webdataset.core.optional_imports import require
from webdataset.index.entries import EntryColumns, SampleEntries, ShardIndex, refuse_unaddressable
from webdataset.samples.shard_extents import SampleTable, find_plain_member

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX: Final = ".parquet"
OTHER_SUFFIX: Final = ".wds.parquet"
"""Of a shard beside which a Parquet file of another program lies."""

META_KEY: Final = b"wds.columns"
_VERSION: Final = 1
_ROWS: Final = 1 << 14
_MOST_EXACT: Final = 1 << 53


@dataclass(frozen=True)
class DescribedShard:
    """Which shard a columns file is about.

    Args:
        samples: how many it has.
        size_bytes: of the file, or None.
        end: where its end mark starts.
        rising: number of samples up to which each key is greater than the one before.
        url: a hash of its url.
        validator: of the object at that url; None where a copy has another.
        kinds: how the values of each column stand in the file: ``plain``, ``number`` or ``json``.
        first: name and size of the member that it begins with; None where its first block does not tell them.
    """

    samples: int
    size_bytes: int | None
    end: int
    rising: int
    url: int
    validator: int | None
    kinds: Mapping[str, str]
    first: tuple[str, int] | None


def load_parquet() -> "pa.parquet":
    """Import pyarrow's reader and writer of Parquet.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    return require("pyarrow.parquet", extra="parquet", purpose="reading and writing columns files of shards")


def dumps(
    index: ShardIndex, values: Mapping[str, Sequence[object]], unclear: Sequence[bool], *, url: int,
    validator: int | None,
) -> bytes:  # fmt: skip
    """Return the columns file of a shard.

    Args:
        index: of the shard.
        values: of each column, one a sample.
        unclear: whether a column could not be made of a sample.
        url: a hash of the shard's url.
        validator: of the object there, or None.

    Raises:
        NotRepresentable: the shard is compressed, or its samples do not stand one after another.
    """
    refuse_unaddressable(index, "a columns file")
    table = SampleTable(index.entries, index.end, index.size_bytes)
    if index.joins or not (table.whole or not len(index)):
        raise NotRepresentable(
            "a columns file needs samples that stand one after another, each key once: here are links, several "
            "archives in one file, or members between samples; write the shard again, as with 'wds cat -o'",
            url=index.url,
        )
    pa, parquet = require_arrow(), load_parquet()
    arrays, kinds = [], {}
    for name, column in values.items():
        kinds[name], made = _make_array(pa, column)
        arrays.append(made)
    meta = {
        "version": _VERSION, "samples": len(index), "size_bytes": index.size_bytes, "end": index.end,
        "rising": table.rising, "url": url, "validator": validator, "kinds": kinds,
        "first": find_plain_member(index.entries) if len(index) else None,
    }  # fmt: skip
    first, fields = _make_places(pa, index, table)
    last = {"wds_unclear": pa.array(unclear, pa.bool_()), "wds_fields": fields}
    made = pa.table([*first.values(), *arrays, *last.values()], names=[*first, *values, *last])
    sink = pa.BufferOutputStream()
    # pages have checksums, and metadata have none
    text = json.dumps(meta, separators=(",", ":")).encode()
    with parquet.ParquetWriter(
        sink, made.schema, compression="zstd", write_page_checksum=True, write_page_index=True
    ) as writer:
        writer.write_table(made, row_group_size=_ROWS)
        writer.add_key_value_metadata({META_KEY: b"%08x%b" % (crc32(text), text)})
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _make_places(pa: "pa", index: ShardIndex, table: SampleTable) -> "tuple[dict[str, pa.Array], pa.ListArray]":
    """Return the columns that say where samples stand, and the one of their fields.

    Raises:
        NotRepresentable: a name is not UTF-8.
    """
    entries = index.entries
    offsets = [entry.offset for entry in entries]
    sizes = [stop - start for start, stop in zip(offsets, [*table.starts[1:-1], index.end], strict=False)]
    try:
        places = {
            "key": pa.array([entry.key for entry in entries], pa.string()),
            "wds_ordinal": pa.array(range(len(index)), pa.int32()),
            "wds_offset": pa.array(offsets, pa.int64()),
            "wds_size": pa.array(sizes, pa.int64()),
        }
        return places, _make_fields(pa, index)
    except UnicodeEncodeError:
        raise NotRepresentable("a columns file needs names in UTF-8: rename the members", url=index.url) from None


def require_arrow() -> "pa":
    """Import pyarrow; raises MissingExtra."""
    return require("pyarrow", extra="parquet", purpose="reading and writing columns files of shards")


def _make_fields(pa: "pa", index: ShardIndex) -> "pa.ListArray":
    rows = [(entry.key, field) for entry in index.entries for field in entry.fields]
    ends = accumulate((len(entry.fields) for entry in index.entries), initial=0)
    parts = {
        "name": pa.array([field.name for _, field in rows], pa.string()),
        "member": pa.array(
            [None if field.member == f"{key}.{field.name}" else field.member for key, field in rows], pa.string()
        ),
        "offset": pa.array([field.offset for _, field in rows], pa.int64()),
        "size": pa.array([field.size for _, field in rows], pa.int64()),
    }
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
    )


def _make_array(pa: "pa", values: Sequence[object]) -> "tuple[str, pa.Array]":
    """Return how a column stands in the file, and it."""
    kinds = {type(value) for value in values} - {type(None)}
    whole = [value for value in values if type(value) is int]
    broken = [value for value in values if type(value) is float]
    try:
        if kinds <= {bool} or kinds <= {str} or kinds <= {int} or kinds <= {float}:
            form = {bool: pa.bool_(), str: pa.string(), int: pa.int64(), float: pa.float64()}
            return "plain", pa.array(values, form[kinds.pop()] if kinds else pa.null())
        exact = all(abs(value) <= _MOST_EXACT for value in whole)
        # a whole float could not be told from an int
        if kinds == {int, float} and exact and not any(value.is_integer() for value in broken):
            return "number", pa.array([None if value is None else float(value) for value in values], pa.float64())  # type: ignore[arg-type]
    except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
        pass
    texts = [None if value is None else json.dumps(value) for value in values]
    return "json", pa.array(texts, pa.string())


class ColumnTable:
    """A columns file.

    Args:
        file: as pyarrow opened it.
        shard: which shard it is about.
        url: of the file, for errors.
    """

    def __init__(self, file: "pa.parquet.ParquetFile", shard: DescribedShard, url: str) -> None:
        self.shard = shard
        self._file = file
        self._url = url
        self._entries: SampleEntries | None = None
        self._columns: dict[str, list[object]] = {}

    @classmethod
    def load(cls, source: "pa.NativeFile", url: str) -> Self | None:
        """Return a columns file; None for a Parquet file of another program.

        Args:
            source: the file, as pyarrow reads it.
            url: of the file, for errors.

        Raises:
            BadIndex: it is no Parquet file, or a damaged one.
        """
        parquet = load_parquet()
        with _refusing_damage(url):
            file = parquet.ParquetFile(source, page_checksum_verification=True)
            meta = (file.metadata.metadata or {}).get(META_KEY)
            if meta is None:
                return None
            if int(meta[:8], 16) != crc32(meta[8:]):
                raise BadIndex("the columns file is damaged, by its checksum: write it again", url=url)
            shard = _parse_shard(json.loads(meta[8:]))
            if file.metadata.num_rows != shard.samples:
                raise BadIndex("the columns file has another number of rows than it says", url=url)
        return cls(file, shard, url)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.shard.samples

    def read(self, names: Sequence[str]) -> dict[str, list[object]]:
        """Return the values of some columns, as they were when the file was made.

        Args:
            names: of columns, or of those that every file has.

        Raises:
            BadIndex: the file is damaged.
        """
        kinds, missing = self.shard.kinds, [name for name in names if name not in self._columns]
        if missing:
            with _refusing_damage(self._url):
                found = self._read(missing)
                for name in missing:
                    self._columns[name] = _list_values(found.column(name), kinds.get(name, "plain"))
        return {name: self._columns[name] for name in names}

    def _read(self, names: "list[str]") -> "pa.Table":
        # pyarrow takes a dot for a path into a struct, so that columns go by their numbers
        schema = self._file.schema_arrow
        numbers = [schema.get_field_index(name) for name in names]
        if -1 in numbers:
            raise BadIndex(f"the columns file lacks {names[numbers.index(-1)]!r}", url=self._url)
        leaves = self._file.metadata.schema
        wanted = [leaf for leaf in range(len(leaves)) if _is_part(leaves.column(leaf).path, names)]
        found = self._file.reader.read_all(column_indices=wanted, use_threads=False)
        found.validate()
        return found

    def entries(self) -> SampleEntries:
        """Return where all samples stand.

        Raises:
            BadIndex: the file is damaged.
        """
        if self._entries is None:
            self._entries = self._list_entries()
        return self._entries

    def _list_entries(self) -> SampleEntries:
        with _refusing_damage(self._url):
            found = self._read(["key", "wds_offset", "wds_fields"]).combine_chunks()
            keys = [key.encode() for key in found.column("key").to_pylist()]
            column = found.column("wds_fields")
            ends = list(accumulate(column.combine_chunks().value_lengths().to_pylist()))
            flat = column.combine_chunks().flatten()
            names, members, offsets, sizes = (flat.field(name).to_pylist() for name in _FIELD_PARTS)
            known = {name: number for number, name in enumerate(dict.fromkeys(names))}
            columns = EntryColumns(
                bytearray(b"".join(keys)),
                list(accumulate(map(len, keys))),
                found.column("wds_offset").to_pylist(),
                ends,
                offsets,
                sizes,
                array("I", map(known.__getitem__, names)),
                [(name, f".{name}") for name in known],
                {row: member for row, member in enumerate(members) if member is not None},
            )
        return SampleEntries.from_columns(columns, lambda: None)


_FIELD_PARTS: Final = ("name", "member", "offset", "size")


def _is_part(path: str, names: Sequence[str]) -> bool:
    """Tell whether a leaf of the schema belongs to one of some columns."""
    return path in names or ("wds_fields" in names and path.startswith("wds_fields."))


class _refusing_damage:  # noqa: N801  reads as what it does
    """Turns whatever pyarrow and a damaged file raise within a ``with`` block into BadIndex.

    Args:
        url: of the file.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # pyarrow has errors of its own, which are these builtins
        if isinstance(error, BadIndex) or not isinstance(error, Exception):
            return
        raise BadIndex(
            f"the columns file is damaged ({describe_error(error)[:200]}): write it again", url=self._url
        ) from error


def _parse_shard(meta: Mapping[str, JsonValue]) -> DescribedShard:
    if meta["version"] != _VERSION:
        raise BadIndex(f"a columns file of version {meta['version']}, and this library knows {_VERSION}")
    numbers = [as_int(meta[name]) for name in ("samples", "end", "rising", "url")]
    optional = [None if meta[name] is None else as_int(meta[name]) for name in ("size_bytes", "validator")]
    samples, end, rising, url = numbers
    kinds = {name: str(kind) for name, kind in as_object(meta["kinds"]).items()}
    first = None if meta["first"] is None else as_list(meta["first"])
    member = None if first is None else (str(first[0]), as_int(first[1]))
    return DescribedShard(samples, optional[0], end, rising, url, optional[1], kinds, member)


def _list_values(column: "pa.ChunkedArray", kind: str) -> list[object]:
    values: list[object] = column.to_pylist()
    if kind == "json":
        return [None if value is None else json.loads(str(value)) for value in values]
    if kind == "number":
        return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return values
