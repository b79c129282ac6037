"""Megatron-Energon's folder about a dataset, ``.nv-meta``, read: shards by split, and the rows of its tables.

Flows in: the folder. Flows out: shards with their counts; members of a shard. Never trusts it: shards are those in the
folder alone, numbers are checked, and a hostile schema runs nothing.
"""

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from webdataset.ground.errors import BadIndex, UsageError
from webdataset.shards.expand import braced
from webdataset.sources.ranges import local_path

from .files_json import Row, row_of

FOLDER: Final = ".nv-meta"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)


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
    folder = Path(root) / FOLDER
    splits, left_out = splits_of(folder)
    counts = counts_of(folder)
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


def splits_of(folder: Path) -> tuple[dict[str, list[str]], set[str]]:
    """Return what ``split.yaml`` says: shards by split, and what it leaves out."""
    import yaml  # noqa: PLC0415

    try:
        parts = yaml.safe_load((folder / "split.yaml").read_text(encoding="utf-8"))
        left_out = {name for each in parts.get("exclude") or () for name in braced(each)}
        named = parts["split_parts"].items()
        return {name: [url for each in urls or () for url in braced(each)] for name, urls in named}, left_out
    except (*UNREADABLE, AttributeError, yaml.YAMLError) as error:
        raise BadIndex(f"not a folder that energon has prepared: {error}", url=str(folder)) from error


def counts_of(folder: Path) -> dict[str, Any]:
    """Return how many samples ``.info.json`` counts in each shard."""
    try:
        counts = json.loads((folder / ".info.json").read_text(encoding="utf-8"))["shard_counts"]
        return dict(counts.items())
    except (*UNREADABLE, AttributeError) as error:
        raise BadIndex(f"not a folder that energon has prepared: {error}", url=str(folder)) from error


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
        place = list(counts_of(folder)).index(shard)
        address = (folder / "index.sqlite").absolute().as_uri()
        with contextlib.closing(sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)) as tables:
            tables.set_authorizer(_only_reading)
            keys = dict(tables.execute("SELECT sample_index, sample_key FROM samples WHERE tar_file_id = ?", (place,)))
            parts = tables.execute(
                "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
                "WHERE tar_file_id = ?",
                (place,),
            ).fetchall()
        rows = [row_of(f"{keys[ordinal]}.{part}", offset, size) for ordinal, part, offset, size in parts]
    except (*UNREADABLE, sqlite3.Error) as error:
        raise BadIndex(f"cannot read the dataset's index of {shard!r}: {error}", url=str(folder)) from error
    rows.sort(key=lambda row: row.offset)
    return rows


def _only_reading(action: int, table: str | None, *_: object) -> int:
    """Allow queries on the two tables alone: a view, a function or a recursion in a hostile schema runs nothing."""
    allowed = action == sqlite3.SQLITE_SELECT or (
        action == sqlite3.SQLITE_READ and table in ("samples", "sample_parts", "sqlite_master")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
