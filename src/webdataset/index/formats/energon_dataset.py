"""Megatron-Energon's folder about a dataset, ``.nv-meta``, written. See ``energon_reading`` for reading it.

``.info.json`` counts the samples of each shard, ``split.yaml`` shares the shards out, ``dataset.yaml`` names the class
that reads them, ``index.sqlite`` says where each sample and each part of it lies, ``index.uuid`` is the folder's
identity. A key may stand once in the whole dataset.

Flows in: shard indexes. Flows out: the folder.
"""

import contextlib
import json
import logging
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from webdataset.ground.errors import BadIndex, NotRepresentable, SourceError, UsageError
from webdataset.index.entries import ShardIndex

from .energon import refuse
from .energon_reading import FOLDER, splits_of
from .representing import spelled

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
        dataset: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(root) / FOLDER
        self._split_parts, self._dataset = split_parts, dataset
        self._counts: dict[str, int] = {}
        self._partial = self._folder / f".index.{os.getpid()}-{os.urandom(4).hex()}.partial"
        try:
            self._folder.mkdir(exist_ok=True)
            self._tables: sqlite3.Connection | None = sqlite3.connect(self._partial, check_same_thread=False)
            self._tables.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"cannot write the dataset's index: {error}", url=str(self._folder)) from error

    def add(self, name: str, index: ShardIndex) -> None:
        """Add the next shard.

        Args:
            name: its path, relative to the dataset's folder.
            index: of the shard.

        Raises:
            NotRepresentable: as for :func:`webdataset.index.formats.energon.refuse`; or a key stands elsewhere, too.
        """
        refuse(index)
        tables, shard = self._open(), len(self._counts)
        try:
            for ordinal, (entry, stop) in enumerate(_with_stops(index)):
                row = shard, entry.key, ordinal, entry.offset, stop - entry.offset
                tables.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
                tables.executemany(
                    "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                    [(shard, ordinal, spelled(entry, field), field.offset, field.size) for field in entry.fields],
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
        """Complete the folder.

        Returns:
            The names of the files written.

        Raises:
            SourceError: they cannot be written.
        """
        import yaml  # noqa: PLC0415  only writers of datasets pay for it

        tables, self._tables = self._open(), None
        split = {"train": list(self._counts), "val": [], "test": [], **(self._split_parts or {})}
        said = self._dataset or {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        texts = {
            "split.yaml": yaml.safe_dump({"split_parts": {**split}, "exclude": []}, sort_keys=False),
            "dataset.yaml": yaml.safe_dump(dict(said), sort_keys=False),
            "index.uuid": str(uuid.uuid4()),
            ".info.json": json.dumps({"energon_version": VERSION, "shard_counts": self._counts}, indent=2),
        }
        if self._dataset is None and (self._folder / "dataset.yaml").exists():
            del texts["dataset.yaml"]
        if self._split_parts is None and self._shared_out():
            del texts["split.yaml"]
        try:
            tables.executescript(_LOOKUPS)
            tables.commit()
            tables.close()
            self._partial.replace(self._folder / "index.sqlite")
            for name, text in texts.items():
                partial = self._partial.with_name(self._partial.name + name)
                partial.write_text(text, encoding="utf-8")
                partial.replace(self._folder / name)
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"cannot write the dataset's index: {error}", url=str(self._folder)) from error
        return [str(self._folder / name) for name in ("index.sqlite", *texts)]

    def _shared_out(self) -> bool:
        """Tell whether the folder has a ``split.yaml`` already that shares out just these shards."""
        try:
            splits, left_out = splits_of(self._folder)
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
        if tables is None:
            return
        tables.close()
        self._partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # only if there is nothing else in it


def _with_stops(index: ShardIndex) -> Iterator[tuple[Any, int]]:
    """Yield each entry with the offset at which the next one starts."""
    before = None
    for entry in index.entries:
        if before is not None:
            yield before, entry.offset
        before = entry
    if before is not None:
        yield before, index.end
