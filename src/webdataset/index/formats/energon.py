"""Reads and writes Megatron-Energon's indexes: ``shard.tar.idx`` of a shard, ``.nv-meta`` of a dataset.

``shard.tar.idx`` is an array of little-endian uint64 without a header: where each sample's first header starts
(extended headers included), then where the end mark starts. In ``.nv-meta``, ``.info.json`` counts the samples of each
shard, ``split.yaml`` shares the shards out, ``dataset.yaml`` names the class that reads them, ``index.sqlite`` says
where each sample and each part of it lies, ``index.uuid`` identifies the folder. Keys are unique in the whole dataset.

Never trusts the folder: shards are those in it alone, numbers are checked, and a hostile schema runs nothing.
"""

import contextlib
import json
import logging
import os
import sqlite3
import sys
import uuid
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from webdataset.core.durable_files import sync_file, sync_folder, write_and_sync
from webdataset.core.errors import BadIndex, NotRepresentable, SourceError, UsageError
from webdataset.index.entries import SampleEntries, SampleEntry, ShardIndex, refuse_unaddressable, spell_extension
from webdataset.index.formats.files_json import SidecarRow, make_row
from webdataset.shards.expand import expand_braces
from webdataset.storage.open_url import local_path


def index_name(url: str) -> str:
    """Return the name of a shard's index: ``.tar.idx`` in place of its ending."""
    return f"{url.removesuffix('.tar')}.tar.idx"


def dumps(index: ShardIndex) -> bytes:
    """Return the index file of a shard.

    Raises:
        NotRepresentable: the shard is compressed, has sparse members, or is several archives after each other.
    """
    check_representable(index)
    entries = index.entries
    if isinstance(entries, SampleEntries):
        offsets = array("Q", (entries.start(ordinal) for ordinal in range(len(entries))))
    else:
        offsets = array("Q", (entry.offset for entry in entries))
    offsets.append(index.end)
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets.tobytes()


def check_representable(index: ShardIndex) -> None:
    """Raise where energon would not read a shard right.

    Raises:
        NotRepresentable: the shard is compressed, has sparse members, or is several archives after each other.
    """
    refuse_unaddressable(index, "an energon index")
    if index.joins:
        raise NotRepresentable(
            f"an end mark stands inside of the shard, before byte {index.joins[0]}: archives were joined, and energon "
            "takes an end mark for the end; rewrite the shard",
            url=index.url, offset=index.joins[0],
        )  # fmt: skip


def loads(content: bytes, *, url: str | None = None) -> Sequence[int]:
    """Read an index file: where each sample starts, then where the end mark starts.

    Raises:
        BadIndex: not such a file.
    """
    offsets = array("Q")
    if not content or len(content) % offsets.itemsize:
        raise BadIndex(f"an energon index of {len(content)} bytes is none: it holds numbers of 8 bytes", url=url)
    offsets.frombytes(content)
    if sys.byteorder == "big":
        offsets.byteswap()
    place = 0
    for ordinal, offset in enumerate(offsets):
        if offset % 512 or (ordinal and offset <= place):
            raise BadIndex(f"an energon index has byte {offset} for sample {ordinal}, after byte {place}", url=url)
        place = offset
    return offsets


FOLDER: Final = ".nv-meta"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)


def energon_shards(root: str | os.PathLike[str], split: str = "train") -> list[dict[str, Any]]:
    """Return the shards of a dataset that energon has prepared.

    Returns:
        ``{"url", "nsamples"}`` dicts, as :class:`~webdataset.index.IndexedDataset` takes them.

    Raises:
        BadIndex: the folder's files cannot be read, or leave out single samples.
        UsageError: there is no such split.
    """
    folder = Path(root) / FOLDER
    splits, left_out = read_splits(folder)
    counts = read_counts(folder)
    if split not in splits:
        raise UsageError(f"there is no split {split!r}: there are {', '.join(splits)}", url=str(folder))
    for name in sorted(left_out - set(counts)):
        raise BadIndex(f"split.yaml leaves out the sample {name!r}: only whole shards can be left out here",
                       url=str(folder))  # fmt: skip
    chosen = [name for name in splits[split] if name not in left_out]
    for name in chosen:
        if counts.get(name).__class__ is not int or counts[name] < 0:
            raise BadIndex(f"split.yaml names {name!r}, and .info.json has no count for it", url=str(folder))
        if local_path(name) != name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise BadIndex(f"{name!r} is no shard in the folder of this dataset", url=str(folder))
    return [{"url": str(Path(root) / name), "nsamples": counts[name]} for name in chosen]


def read_splits(folder: Path) -> tuple[dict[str, list[str]], set[str]]:
    """Return what ``split.yaml`` says: shards by split, and what it leaves out."""
    import yaml  # noqa: PLC0415

    try:
        parts = yaml.safe_load((folder / "split.yaml").read_text(encoding="utf-8"))
        left_out = {name for each in parts.get("exclude") or () for name in expand_braces(each)}
        named = parts["split_parts"].items()
        return {name: [url for each in urls or () for url in expand_braces(each)] for name, urls in named}, left_out
    except (*UNREADABLE, AttributeError, yaml.YAMLError) as error:
        raise BadIndex(f"not a folder that energon has prepared: {error}", url=str(folder)) from error


def read_counts(folder: Path) -> dict[str, Any]:
    """Return how many samples ``.info.json`` counts in each shard."""
    try:
        counts = json.loads((folder / ".info.json").read_text(encoding="utf-8"))["shard_counts"]
        return dict(counts.items())
    except (*UNREADABLE, AttributeError) as error:
        raise BadIndex(f"not a folder that energon has prepared: {error}", url=str(folder)) from error


def energon_rows(root: str | os.PathLike[str], shard: str) -> list[SidecarRow]:
    """Return where the parts of a shard's samples lie, as ``index.sqlite`` says.

    Raises:
        BadIndex: the folder has no such shard, or its tables cannot be read.
    """
    folder = Path(root) / FOLDER
    try:
        place = list(read_counts(folder)).index(shard)
        address = (folder / "index.sqlite").absolute().as_uri()
        with contextlib.closing(sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)) as tables:
            tables.set_authorizer(_authorize_query)
            keys = dict(tables.execute("SELECT sample_index, sample_key FROM samples WHERE tar_file_id = ?", (place,)))
            parts = tables.execute(
                "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
                "WHERE tar_file_id = ?",
                (place,),
            ).fetchall()
        rows = [make_row(f"{keys[ordinal]}.{part}", offset, size) for ordinal, part, offset, size in parts]
    except (*UNREADABLE, sqlite3.Error) as error:
        raise BadIndex(f"cannot read the dataset's index of {shard!r}: {error}", url=str(folder)) from error
    rows.sort(key=lambda row: row.offset)
    return rows


def _authorize_query(action: int, table: str | None, *_: object) -> int:
    """Allow queries on the two tables alone: a view, a function or a recursion in a hostile schema runs nothing."""
    allowed = action == sqlite3.SQLITE_SELECT or (
        action == sqlite3.SQLITE_READ and table in ("samples", "sample_parts", "sqlite_master")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


VERSION: Final = "7.4.1"
"""The version of energon whose files these are."""

_SCHEMA = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER NOT NULL, sample_index INTEGER NOT NULL, part_name TEXT NOT NULL,
    content_byte_offset INTEGER NOT NULL, content_byte_size INTEGER NOT NULL);
"""
_LOOKUPS = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples (tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts (tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts (tar_file_id, sample_index, part_name, content_byte_offset,
    content_byte_size);
"""


log = logging.getLogger("webdataset")


class EnergonDatasetWriter:
    """Writes ``.nv-meta`` for shards that come one at a time. Nothing is there until :meth:`close`.

    Args:
        root: the folder of the dataset; names of shards are relative to it.
        split_parts: shards by split (``train``, ``val``, ``test``), braces allowed; None puts all into ``train``.
        dataset: what ``dataset.yaml`` says; None is a ``CrudeWebdataset``, unless the file is there already.

    A ``split.yaml`` that shares out just these shards stays, unless ``split_parts`` is given.

    Raises:
        SourceError: the folder cannot be written to.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split_parts: Mapping[str, Sequence[str]] | None = None,
        dataset: Mapping[str, object] | None = None,
    ) -> None:
        self._folder = Path(root) / FOLDER
        self._split_parts, self._dataset = split_parts, dataset
        self._counts: dict[str, int] = {}
        self._process = os.getpid()
        self._partial = self._folder / f".index.{self._process}-{os.urandom(4).hex()}.partial"
        try:
            self._folder.mkdir(exist_ok=True)
            self._tables: sqlite3.Connection | None = sqlite3.connect(self._partial, check_same_thread=False)
            self._tables.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"cannot write the dataset's index: {error}", url=str(self._folder)) from error

    def add(self, name: str, index: ShardIndex) -> None:
        """Add the next shard.

        Raises:
            NotRepresentable: as for :func:`webdataset.index.formats.energon.check_representable`;
                or a key stands elsewhere, too.
        """
        check_representable(index)
        tables, shard = self._open(), len(self._counts)
        try:
            for ordinal, (entry, stop) in enumerate(_pair_with_stops(index)):
                row = shard, entry.key, ordinal, entry.offset, stop - entry.offset
                tables.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
                tables.executemany(
                    "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                    [
                        (shard, ordinal, spell_extension(entry, field), field.offset, field.size)
                        for field in entry.fields
                    ],
                )
        except sqlite3.IntegrityError as error:
            first = tables.execute("SELECT tar_file_id FROM samples WHERE sample_key = ?", (entry.key,)).fetchone()
            other = name if first[0] == shard else list(self._counts)[first[0]]
            raise NotRepresentable(
                f"an energon dataset holds each key once, and this one stands in {other}, too: make keys distinct",
                url=index.url, key=entry.key,
            ) from error  # fmt: skip
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise NotRepresentable(f"cannot be put into the dataset's index: {error}", url=index.url) from error
        self._counts[Path(name).as_posix()] = len(index)

    def _open(self) -> sqlite3.Connection:
        if self._tables is None:
            raise UsageError("this dataset's index is closed", url=str(self._folder))
        return self._tables

    def close(self) -> list[str]:
        """Complete the folder; return the names of the files written.

        Raises:
            SourceError: they cannot be written.
        """
        import yaml  # noqa: PLC0415  only writers of datasets pay for it

        tables, self._tables = self._open(), None
        split = {"train": list(self._counts), "val": [], "test": [], **(self._split_parts or {})}
        description = self._dataset or {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        texts = {
            "split.yaml": yaml.safe_dump({"split_parts": {**split}, "exclude": []}, sort_keys=False),
            "dataset.yaml": yaml.safe_dump(dict(description), sort_keys=False),
            "index.uuid": str(uuid.uuid4()),
            ".info.json": json.dumps({"energon_version": VERSION, "shard_counts": self._counts}, indent=2),
        }
        if self._dataset is None and (self._folder / "dataset.yaml").exists():
            del texts["dataset.yaml"]
        if self._split_parts is None and self._has_same_split():
            del texts["split.yaml"]
        try:
            tables.executescript(_LOOKUPS)
            tables.commit()
            tables.close()
            sync_file(str(self._partial))
            self._partial.replace(self._folder / "index.sqlite")
            for name, text in texts.items():
                partial = self._partial.with_name(self._partial.name + name)
                write_and_sync(str(partial), text.encode())
                partial.replace(self._folder / name)
            for folder in (self._folder, self._folder.parent):
                sync_folder(str(folder))
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"cannot write the dataset's index: {error}", url=str(self._folder)) from error
        return [str(self._folder / name) for name in ("index.sqlite", *texts)]

    def _has_same_split(self) -> bool:
        """Tell whether the folder has a ``split.yaml`` already that shares out just these shards."""
        try:
            splits, left_out = read_splits(self._folder)
        except BadIndex:
            return False
        named = left_out.union(*splits.values())
        if named != set(self._counts) and (self._folder / "split.yaml").exists():
            log.warning("%s shares out other shards: it is replaced", self._folder / "split.yaml")
        return named == set(self._counts)

    def __del__(self) -> None:
        """Give up what was never completed."""
        if "_tables" in self.__dict__:
            self.abort()

    def abort(self) -> None:
        """Give up, unless it is complete: what was there before stays."""
        tables, self._tables = self._tables, None
        # a forked child leaves the file of its parent alone
        if tables is None or os.getpid() != self._process:
            return
        tables.close()
        self._partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            # only if there is nothing else in it
            self._folder.rmdir()


def _pair_with_stops(index: ShardIndex) -> Iterator[tuple[SampleEntry, int]]:
    """Yield each entry with the offset at which the next one starts."""
    before = None
    for entry in index.entries:
        if before is not None:
            yield before, entry.offset
        before = entry
    if before is not None:
        yield before, index.end
