"""Megatron-Energon's folder about a dataset, ``.nv-meta``, written and read.

``.info.json`` counts the samples of each shard, ``split.yaml`` shares the shards out, ``dataset.yaml`` names the class
that reads them, ``index.sqlite`` says where each sample and each part of it lies, ``index.uuid`` is the folder's
identity. A key may stand once in the whole dataset.

Flows in: shard indexes. Flows out: the folder; or from the folder, shards with their counts.
"""

import contextlib
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from webdataset.ground.errors import BadIndex, NotRepresentable, SourceError, UsageError
from webdataset.shards.expand import braced

from .energon import refuse
from .entries import ShardIndex
from .files_json import Row
from .representing import spelled

FOLDER: Final = ".nv-meta"
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


class EnergonDatasetWriter:
    """Writes ``.nv-meta`` for shards that come one at a time. Nothing is there until :meth:`close`.

    Args:
        root: the folder of the dataset; names of shards are relative to it.
        split_parts: shards by split (``train``, ``val``, ``test``), braces allowed; None puts all into ``train``.
        dataset: what ``dataset.yaml`` says; None is a ``CrudeWebdataset``, unless the file is there already.

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
            NotRepresentable: as for :func:`webdataset.index.energon.refuse`; or a key stands elsewhere, too.
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


def energon_shards(root: str | os.PathLike[str], split: str = "train") -> list[dict[str, Any]]:
    """Return the shards of a dataset that energon has prepared.

    Args:
        root: the folder of the dataset.
        split: which part of it.

    Returns:
        ``{"url", "nsamples"}`` dicts, as :class:`~webdataset.index.IndexedDataset` takes them.

    Raises:
        BadIndex: the folder's files cannot be read, or leave out single samples.
        UsageError: there is no such split.
    """
    import yaml  # noqa: PLC0415

    folder = Path(root) / FOLDER
    try:
        counts = json.loads((folder / ".info.json").read_text(encoding="utf-8"))["shard_counts"]
        parts = yaml.safe_load((folder / "split.yaml").read_text(encoding="utf-8"))
        named = parts["split_parts"]
        left_out = {name for each in parts.get("exclude") or () for name in braced(each)}
        splits = {name: [url for each in urls or () for url in braced(each)] for name, urls in named.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise BadIndex(f"not a folder that energon has prepared: {error}", url=str(folder)) from error
    if split not in splits:
        raise UsageError(f"there is no split {split!r}: there are {', '.join(splits)}", url=str(folder))
    for name in sorted(left_out - set(counts)):
        raise BadIndex(f"split.yaml leaves out the sample {name!r}: only whole shards can be left out here",
                       url=str(folder))  # fmt: skip
    chosen = [name for name in splits[split] if name not in left_out]
    unknown = [name for name in chosen if not isinstance(counts.get(name), int)]
    if unknown:
        raise BadIndex(f"split.yaml names {unknown[0]!r}, and .info.json does not", url=str(folder))
    return [{"url": str(Path(root) / name), "nsamples": counts[name]} for name in chosen]


def energon_rows(root: str | os.PathLike[str], shard: str) -> list[Row]:
    """Return where the parts of a shard's samples lie, as ``index.sqlite`` says.

    Args:
        root: the folder of the dataset.
        shard: its path, relative to the folder.

    Raises:
        BadIndex: the folder has no such shard, or its tables cannot be read.
    """
    folder = Path(root) / FOLDER
    try:
        shards = list(json.loads((folder / ".info.json").read_text(encoding="utf-8"))["shard_counts"])
        address = (folder / "index.sqlite").absolute().as_uri()
        with contextlib.closing(sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)) as tables:
            found = tables.execute(
                "SELECT s.sample_key, p.part_name, p.content_byte_offset, p.content_byte_size FROM samples s "
                "JOIN sample_parts p USING (tar_file_id, sample_index) WHERE tar_file_id = ? "
                "ORDER BY p.content_byte_offset",
                (shards.index(shard),),
            ).fetchall()
    except (OSError, ValueError, KeyError, TypeError, sqlite3.Error) as error:
        raise BadIndex(f"cannot read the dataset's index of {shard!r}: {error}", url=str(folder)) from error
    return [Row(f"{key}.{part}", offset, size) for key, part, offset, size in found]
