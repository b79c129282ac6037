"""Finds the columns file beside a shard, and the samples that an expression may want by it.

A columns file is used where it answers the expression, is about the shard that lies there, and excludes half of the
samples or more. What a file says is only believed where it excludes a sample: what may match is read and asked itself.

Theory of requests. Beside a remote shard one file is asked for. Where the first shard of a folder has none, the others
of that folder are not asked about in this pass. A shard of which nothing may match is not opened.

Without pyarrow nothing is asked for. A file that is damaged, or about a shard of another size, costs one warning, and
the shard is read whole.
"""

import os
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from webdataset.core.errors import BadIndex, NotFound, SourceError
from webdataset.core.logs import log
from webdataset.core.optional_imports import import_if_available
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.index.formats.columns import OTHER_SUFFIX, SUFFIX, ColumnTable, DescribedShard, require_arrow
from webdataset.index.formats.table import is_usual
from webdataset.inspection.column_filter import ColumnFilter, RowFields, RowScope
from webdataset.samples.address import Address
from webdataset.samples.grouping import Shard
from webdataset.samples.sample_reader import Reading, hash_url
from webdataset.samples.selected_extents import EmptyReader, SelectedReader, SelectingReader, SelectionTable
from webdataset.samples.shard_extents import WholeReader, is_header
from webdataset.samples.shard_identity import ShardIdentity
from webdataset.storage.extents import open_extents
from webdataset.storage.local_files import open_raw
from webdataset.storage.open_url import open_stream, resolve_url
from webdataset.storage.random_access import RangeFile, open_ranges
from webdataset.storage.streams import read_full
from webdataset.tar.header import BLOCK

if TYPE_CHECKING:
    from webdataset.inspection.expression import Expression

SUFFIXES: Final = (SUFFIX, OTHER_SUFFIX)
_PIECE = 1 << 20
# larger files are read by ranges, so that columns that are not needed are left out
_WHOLE_BYTES: Final = 4 << 20
# above this share of samples that may match, a shard is read whole
_MOST_SHARE: Final = 0.5
_MOST_TABLES: Final = 2
_ANOTHER_SHARD: Final = "it is about another shard, or an earlier version of this one: write it again"


class KnownColumns:
    """What a worker knows of columns files in a pass: the last ones, and where none are asked for.

    Attributes:
        kinds: of each folder at a store, which of :data:`SUFFIXES` files have there; -1 for none.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self._tables: dict[str, ColumnTable | None] = {}
        self._wanted: dict[tuple[str, str], list[int] | None] = {}

    def find(self, url: str, reading: Reading) -> "ColumnTable | None":
        """Return the columns file of a shard; None where there is none of ours.

        Args:
            url: of the shard.
            reading: says how it is opened.

        Raises:
            BadIndex: it is damaged.
        """
        # the streams of a worker that share a shard look at it one after another
        if url not in self._tables:
            self._keep(url, _find_table(url, reading, self.kinds))
        return self._tables[url]

    def list_matches(self, url: str, table: "ColumnTable", where: "Expression") -> list[int] | None:
        """Return the numbers of the samples of a shard that may be wanted; None where the file says too little.

        All streams that share the shard read it in the same way: where it was changed in place after its columns file
        was made, and a handler steps over a sample, those that read ranges and those that read all would count it
        differently, and one sample would come twice and another not at all.

        Args:
            url: of the shard.
            table: its columns file.
            where: the expression.

        Raises:
            BadIndex: the file is damaged.
        """
        place = url, where.normal
        if place not in self._wanted:
            self._wanted[place] = _list_matches(table, where, url)
        return self._wanted[place]

    def refuse(self, url: str) -> None:
        """Use no columns file for a shard: what is wrong with it has been told."""
        self._keep(url, None)

    def _keep(self, url: str, table: ColumnTable | None) -> None:
        while len(self._tables) >= _MOST_TABLES:
            self._tables.pop(next(iter(self._tables)))
        self._tables[url] = table
        self._wanted = {place: wanted for place, wanted in self._wanted.items() if place[0] in self._tables}


class Candidates(NamedTuple):
    """The samples of a share of a shard that may be wanted.

    Args:
        table: the columns file.
        share: numbers of the samples of the share.
        wanted: numbers of those that may be wanted, rising.
    """

    table: ColumnTable
    share: range
    wanted: list[int]


def open_selection(
    shard: Shard, reading: Reading, start: Address | None, known: KnownColumns, open_whole: WholeReader
) -> SelectingReader | None:
    """Return what reads only the samples of a shard that may be wanted; None where all of it is to be read.

    Args:
        shard: with ``url``, and ``share`` or ``part`` where only some of its samples are the stream's.
        reading: the rules of reading, with ``where``.
        start: the address of the sample to begin with, in the share; None is the first.
        known: what is known of columns files; it is added to.
        open_whole: opens the shard to be read whole, from a sample on.
    """
    if reading.cache is not None or reading.observer is not None or not is_usual(reading):
        return None
    url = str(shard["url"])
    if import_if_available("pyarrow") is None:
        return None
    try:
        table = known.find(url, reading)
        found = None if table is None else _list_candidates(table, shard, reading, start, known)
        return None if found is None else _open_reader(found, shard, reading, start, open_whole)
    except BadIndex as error:
        known.refuse(url)
        warn_user(f"{redact(url)}: read whole, since its columns file cannot be used: {error}")
    except OSError as error:  # those of sources among them
        # the shard says itself what is wrong with it
        log.debug("%s: read whole, since a part of it cannot be read: %s", redact(url), error)
    return None


def _list_candidates(
    table: ColumnTable, shard: Shard, reading: Reading, start: Address | None, known: KnownColumns
) -> Candidates | None:
    """Return the samples of a share that may be wanted; None where the file says too little."""
    where: Expression = reading.where  # type: ignore[assignment]  # there are no other filters
    share = _find_share(shard, len(table))
    first = 0 if start is None else start.ordinal
    if share is None or (start is not None and first >= len(share)):
        return None
    every = known.list_matches(str(shard["url"]), table, where)
    if every is None:
        return None
    left = share[first:]
    wanted = [number for number in every if number in left]
    # the sample of a saved state was wanted, and is compared
    if start is not None and wanted[:1] != [left[0]]:
        wanted.insert(0, left[0])
    return Candidates(table, share, wanted)


def _list_matches(table: ColumnTable, where: "Expression", url: str) -> list[int] | None:
    chosen = ColumnFilter(where, table.shard.kinds)
    if not (chosen.used or chosen.reads_fields or "key" in where.normal):
        return None
    wanted = list(_walk_rows(table, chosen, url))
    return None if len(wanted) > _MOST_SHARE * len(table) + 1 else wanted


def _find_share(shard: Shard, count: int) -> range | None:
    """Return the numbers of a stream's samples in a shard; None where other numbers were planned with."""
    if "part" in shard:
        first, stop, planned = shard["part"]
        return range(first, stop) if planned == count and stop <= count else None
    first, step = shard.get("share") or (0, 1)
    return range(first, count, step)


def _walk_rows(table: ColumnTable, chosen: ColumnFilter, url: str) -> Iterable[int]:
    """Yield the numbers of the samples that are not excluded."""
    values = table.read(["key", "wds_unclear", *chosen.used])
    columns = [values[name] for name in chosen.used]
    keys, unclear = list(map(str, values["key"])), values["wds_unclear"]
    entries = table.entries() if chosen.reads_fields else None
    for number in range(len(table)):
        sizes = None if entries is None else {field.name: field.size for field in entries.peek(number).fields}
        row = {name: column[number] for name, column in zip(chosen.used, columns, strict=True)}
        if unclear[number] or not chosen.excludes(RowScope(RowFields(sizes), keys[number], url, row)):
            yield number


def _open_reader(
    found: Candidates, shard: Shard, reading: Reading, start: Address | None, open_whole: WholeReader
) -> SelectingReader | None:
    """Open a shard, if it is the one that the columns file is about."""
    url, described = str(shard["url"]), found.table.shard
    if not found.wanted:
        path = resolve_url(url, level=reading.trust, storage_options=reading.storage_options).path
        # a store would have to be asked
        if path is not None and not _fits_file(path, described):
            raise BadIndex(_ANOTHER_SHARD)
        return EmptyReader(reading, len(found.share))
    extents = open_extents(url, level=reading.trust, storage_options=reading.storage_options)
    if extents is None:
        return None
    reader = None
    try:
        table = _make_table(found.table)
        identity = extents.identity
        validator = None if identity is None else ShardIdentity.of(extents.length, identity.validator()).validator
        replaced = described.url == hash_url(url) and described.validator not in (None, validator)
        if replaced or not (table.fits(extents.length) and table.begins_with(extents.head)):
            raise BadIndex(_ANOTHER_SHARD)
        if start is None or table.find(start.offset) == found.wanted[0]:
            reader = SelectedReader(shard, reading, table, extents, found.share, found.wanted, start, open_whole)
    finally:
        if reader is None:
            extents.close()
    return reader


def _fits_file(path: str, described: DescribedShard) -> bool:
    """Tell whether a local shard has the size and the first header that a columns file says."""
    with open_raw(path) as file:
        head = read_full(file.read, BLOCK)
        size = None if file.identity is None else file.identity.length
    return described.size_bytes in (None, size) and (described.first is None or is_header(head, *described.first))


def _make_table(columns: ColumnTable) -> SelectionTable:
    """Return where samples stand.

    Raises:
        BadIndex: places that no shard has.
    """
    entries, described = columns.entries(), columns.shard
    offsets = [entries.start(number) for number in range(len(entries))]
    table = SelectionTable(entries, offsets, described.end, described.size_bytes, described.rising)
    if offsets[0] < 0 or any(start >= stop for start, stop in pairwise(table.starts)):
        raise BadIndex("the columns file is damaged: its samples do not stand one after another")
    return table


def _find_table(url: str, reading: Reading, known: dict[str, int]) -> ColumnTable | None:
    """Return the columns file beside a shard; None where there is none of ours.

    Raises:
        BadIndex: it is damaged.
    """
    path = resolve_url(url, level=reading.trust, storage_options=reading.storage_options).path
    if path is not None:
        kinds: Iterable[int] = [
            kind for kind, suffix in enumerate(SUFFIXES) if os.path.isfile(path.removesuffix(".tar") + suffix)  # noqa: PTH113  names need not be UTF-8
        ]  # fmt: skip
        return _load_first(url, reading, kinds)[0]
    if "?" in url or url.startswith("pipe:"):
        return None
    folder = url.rpartition("/")[0]
    kinds = range(len(SUFFIXES)) if folder not in known else [known[folder]]
    if known.get(folder) == -1:
        return None
    table, kind = _load_first(url, reading, kinds)
    known.setdefault(folder, kind)
    return table


def _load_first(url: str, reading: Reading, kinds: Iterable[int]) -> tuple[ColumnTable | None, int]:
    """Return the first file that is ours, and which of :data:`SUFFIXES` it has; -1 where there is none.

    Raises:
        BadIndex: the only one is damaged.
    """
    damage: BadIndex | None = None
    for kind in kinds:
        try:
            table = load_columns(url.removesuffix(".tar") + SUFFIXES[kind], reading)
        except BadIndex as error:
            # it may be another program's: ours is then written under the next name
            damage = error
            continue
        except SourceError as error:
            # stores that do not let their objects be listed refuse what is not there
            log.debug("%s: no columns file: %s", redact(url), error)
            continue
        if table is not None:
            return table, kind
    if damage is not None:
        raise damage
    return None, -1


def load_columns(name: str, reading: Reading) -> ColumnTable | None:
    """Return a columns file; None where nothing lies there, or a Parquet file of another program.

    Args:
        name: its url or path.
        reading: says how it is opened.

    Raises:
        BadIndex: it is damaged.
        SourceError: it cannot be read.
    """
    content = b""
    try:
        stream = open_stream(name, level=reading.trust, storage_options=reading.storage_options)
    except NotFound:
        return None
    try:
        while len(content) <= _WHOLE_BYTES and (piece := stream.read(_PIECE)):
            content += piece
    finally:
        stream.close()
    arrow = require_arrow()
    if len(content) <= _WHOLE_BYTES:
        return ColumnTable.load(arrow.BufferReader(content), name)
    ranges = open_ranges(name, level=reading.trust, storage_options=reading.storage_options)
    return ColumnTable.load(arrow.PythonFile(RangeFile(ranges.read_at, ranges.length, ranges.close), mode="r"), name)
