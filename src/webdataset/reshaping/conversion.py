"""Tells what a dataset to convert is, and reads it as samples, whatever its format."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from webdataset.core.errors import NoShards, UsageError
from webdataset.reshaping.field_values import Row, RowConverter
from webdataset.reshaping.folders import read_folder
from webdataset.reshaping.mds import read_mds
from webdataset.reshaping.table_reading import read_hf_dataset, read_table
from webdataset.reshaping.tfrecord import read_tfrecord
from webdataset.samples.raw_samples import RawSample
from webdataset.shards.expand import expand_urls
from webdataset.shards.urls import find_literal, literal_path
from webdataset.storage.local_listing import is_device

SOURCES: Final = ("shards", "parquet", "arrow", "hf", "tfrecord", "mds", "folder")
TARGETS: Final = ("shards", "parquet", "arrow", "hf", "folder")
_COMPRESSED = r"(?:\.(?:gz|bz2|xz|zst|zstd))?"
_NAMES: Final = {
    "shards": re.compile(rf"(?:\.tar{_COMPRESSED}|\.t(?:gz|bz2?|xz|zst))$"),
    "parquet": re.compile(r"\.(?:parquet|pq)$"),
    "arrow": re.compile(r"\.(?:arrow|feather|ipc)$"),
    "tfrecord": re.compile(rf"\.tfrec(?:ords?)?(?:-\d+-of-\d+)?{_COMPRESSED}$|[.-]tfrecord-\d+-of-\d+{_COMPRESSED}$"),
    "mds": re.compile(r"(?:^|/)index\.json$"),
    "table": re.compile(r"\.(?:csv|tsv|jsonl|ndjson)$"),
}
_DOCUMENTS: Final = {"index.json": "mds", "state.json": "hf", "dataset_dict.json": "hf"}


def choose_kind(name: str) -> str | None:
    """Return what a source or target is by its name: one of :data:`SOURCES`, ``table`` for text tables, or None.

    Args:
        name: a path or url, also a pattern.
    """
    plain = name.split("?", maxsplit=1)[0].lower() if "://" in name else name.lower()
    return "shards" if name == "-" else next((kind for kind, end in _NAMES.items() if end.search(plain)), None)


def choose_source_kind(source: str) -> str:
    """Return what a source is: by the documents and files in it where it is a folder, else by its name.

    Args:
        source: a path or url.

    Raises:
        UsageError: neither tells.
    """
    if _is_folder(source):
        there = {each.name for each in Path(source).iterdir()}
        told = next((kind for document, kind in _DOCUMENTS.items() if document in there), None)
        if told is not None:
            return told
        kinds = {choose_kind(name) or "" for name in there} & {"shards", "parquet", "arrow", "tfrecord"}
        if len(kinds) > 1:
            raise UsageError(f"the folder holds {' and '.join(sorted(kinds))}: say --from", url=source)
        return kinds.pop() if kinds else "folder"
    kind = choose_kind(source)
    if kind == "table":
        raise UsageError("tables of text are for 'wds create', which takes csv, tsv and jsonl", url=source)
    if source.lower().endswith(".mds"):
        raise UsageError("name the folder of an MDS dataset, or its index.json", url=source)
    if kind is None:
        raise UsageError(f"its name does not tell what this is: say --from {'|'.join(SOURCES)}", url=source)
    return kind


def _is_folder(source: str) -> bool:
    return "://" not in source and Path(source).is_dir()


@dataclass
class Conversion:
    """Reads datasets of a kind as samples.

    Args:
        converter: makes samples of rows.
        split: of Hugging Face datasets.
        classes: see :func:`~webdataset.reshaping.folders.read_folder`.
        class_names: give the names of classes in place of their numbers.
        storage_options: what urls are opened with.
    """

    converter: RowConverter
    split: str | None = None
    classes: str | None = None
    class_names: bool = False
    storage_options: object = None

    def read(self, sources: Iterable[str], kind: str | None = None) -> Iterator[RawSample]:
        """Yield the samples of all sources.

        Args:
            sources: paths, folders, urls, and expressions for several.
            kind: of all of them; None finds out for each.

        Raises:
            WebDatasetError: what reading them raises.
        """
        for source in sources:
            found = kind or choose_source_kind(source)
            if found == "folder":
                yield from read_folder(source, self.classes)
            elif found == "hf":
                rows = read_hf_dataset(source, self.split, self.converter, class_names=self.class_names)
                yield from self.converter.convert(rows)
            else:
                for url in self._expand(source, found):
                    yield from self.converter.convert(self._read_rows(url, found))

    def list_files(self, sources: Iterable[str], kind: str | None = None) -> list[str]:
        """Return the files that all sources stand for, and the folders that are read as such.

        Args:
            sources: as for :meth:`read`.
            kind: likewise.

        Raises:
            NoShards: a folder without files of this kind.
        """
        kinds = [(source, kind or choose_source_kind(source)) for source in sources]
        return [
            file
            for source, found in kinds
            for file in ([source] if found in ("folder", "hf") else self._expand(source, found))
        ]

    def _expand(self, source: str, kind: str) -> list[str]:
        """Return the files that a source stands for.

        Raises:
            NoShards: a folder without files of this kind.
        """
        if not _is_folder(source):
            literal = find_literal(source)
            return [literal] if literal else list(expand_urls(source, storage_options=self.storage_options))
        if kind == "mds":
            return [literal_path(os.path.join(source, "index.json"))]  # noqa: PTH118  bytes of names stay
        files = [str(each) for each in Path(source).iterdir() if choose_kind(each.name) == kind]
        found = sorted(literal_path(path) for path in files if not is_device(path))
        if not found:
            raise NoShards(f"the folder holds no files that are {kind} by their names", url=source)
        return found

    def _read_rows(self, url: str, kind: str) -> Iterator[Row]:
        if kind == "tfrecord":
            return read_tfrecord(url, self.storage_options)
        if kind == "mds":
            return read_mds(url, self.converter, self.storage_options)
        return read_table(url, kind, self.converter, self.storage_options, class_names=self.class_names)
