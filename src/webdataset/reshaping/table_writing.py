"""Writes samples to Parquet and Arrow files, and to folders that Hugging Face's ``load_from_disk`` reads.

Rows are gathered up to a number and an amount of bytes, and written as a row group or record batch. A file appears
under its name when it is complete, a folder too.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from webdataset.core.durable_files import make_durable_folder, sync_folder, write_and_sync
from webdataset.core.errors import AlreadyExists, SampleError, SourceError, UsageError, WebDatasetError
from webdataset.core.tracebacks import warn_user
from webdataset.reshaping.field_values import Failed
from webdataset.reshaping.folders import FolderTaken, is_free, name_staging, publish_folder
from webdataset.reshaping.raw_writer import name_numbered
from webdataset.reshaping.table_columns import TableColumn, choose_columns, is_table_text, make_schema
from webdataset.reshaping.table_reading import load_arrow
from webdataset.samples.raw_samples import RawSample
from webdataset.writing.local_file import make_child_error
from webdataset.writing.outputs import open_output

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_BYTES: Final = 64 << 20
_GROUP_ROWS: Final = 10_000
_FILE_BYTES: Final = 500_000_000
INFER_SAMPLES: Final = 1000
"""How many of the first samples choose the columns, by default."""


class _OutputFile:
    """A file object over an output, for pyarrow.

    Args:
        target: a path or url.
    """

    def __init__(self, target: str) -> None:
        self._output = open_output(target)
        self.position = 0
        self.closed = False
        self._dropped = False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def write(self, content: bytes) -> int:
        piece = bytes(content)
        if not self._dropped:
            self._output.write((piece,), len(piece))
        self.position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Do nothing: the output keeps nothing back."""

    def close(self) -> None:
        """Do nothing: whether the file is complete, is said by ``finish`` and ``drop``."""

    def finish(self) -> None:
        self.closed = True
        self._output.commit()

    def drop(self) -> None:
        self._dropped = True
        self._output.abort()


class TableWriter:
    """A writer of one table, or of numbered ones.

    Args:
        target: a path or url, or a pattern with one ``%d``.
        kind: ``parquet``, ``arrow`` (the file format) or ``stream``.
        columns: of the table.
        max_samples: rows of a numbered file.
        max_bytes: about how many bytes of values a numbered file gets.
        check: called with the name of each file before it is opened.
        failed: called with the key of a sample that does not fit, and why; None lets the error pass.
        dry_run: write nothing, but count as if.

    Attributes:
        files: the names of the files that are complete, and their rows.

    Raises:
        UsageError: bounds without a pattern.
    """

    def __init__(
        self,
        target: str,
        kind: str,
        columns: list[TableColumn],
        *,
        max_samples: int | None = None,
        max_bytes: int | None = None,
        check: Callable[[str], None] = lambda _: None,
        failed: Failed | None = None,
        dry_run: bool = False,
    ) -> None:
        self.files: list[tuple[str, int]] = []
        self.columns = columns
        self._target, self._kind = target, kind
        self._schema = make_schema(columns, sized_lists=kind != "parquet")
        self._numbered = name_numbered(target, 0) is not None
        if (max_samples or max_bytes) and not self._numbered:
            raise UsageError(f"several files need a pattern such as out-%05d.{kind} for their names, not {target!r}")
        self._most, self._most_bytes = max_samples, max_bytes
        self._check, self._failed, self._dry_run = check, failed, dry_run
        self._known = {field for column in columns for field in column.fields}
        self._file: _OutputFile | None = None
        self._writer: pa.ParquetWriter | None = None
        self._rows: list[list[object]] = []
        self._gathered = self._count = self._written = 0
        check(self._name())

    def _name(self) -> str:
        return name_numbered(self._target, len(self.files)) or self._target

    def _find_problem(self, sample: RawSample) -> str | None:
        """Return why no row can have the names of a sample, and what to do; None where one can."""
        for name in (sample.key, *sample.fields):
            if not is_table_text(name):
                return (
                    f"{name[:200]!r} is not UTF-8, as texts in tables are: give new keys with 'wds select --rekey', "
                    "and fields new names with 'wds select --rename'"
                )
        for field in sample.fields:
            if field not in self._known:
                return (
                    f"the first samples have no field {field!r}, so the table has no column for it: look at more of "
                    "them with --infer N, or leave the field out with 'wds select --drop'"
                )
        return None

    def write(self, sample: RawSample) -> None:
        """Write a sample as a row.

        Args:
            sample: as it stands.

        Raises:
            SampleError: it does not fit the columns, where there is no ``failed``.
            SourceError: the output failed.
        """
        try:
            problem = self._find_problem(sample)
            if problem is not None:
                raise SampleError(problem, key=sample.key, url=sample.url)
            row = [sample.key, *(column.read(sample) for column in self.columns)]
        except WebDatasetError as error:
            if self._failed is None:
                raise
            self._failed(sample.key, error)
            return
        full = self._count == self._most or (
            self._most_bytes and self._count and self._written + sample.size_bytes > self._most_bytes
        )
        if full:
            self.end_file()
        if self._file is None and not self._dry_run:
            self._open()
        self._rows.append(row)
        self._count += 1
        self._gathered += sample.size_bytes
        self._written += sample.size_bytes
        if self._gathered >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _open(self) -> None:
        name = self._name()
        if self.files:
            self._check(name)
        self._file = _OutputFile(name)
        sink = load_arrow().PythonFile(self._file, mode="w")
        if self._kind == "parquet":
            self._writer = load_arrow("pyarrow.parquet").ParquetWriter(sink, self._schema)
        else:
            ipc = load_arrow("pyarrow.ipc")
            self._writer = (ipc.new_file if self._kind == "arrow" else ipc.new_stream)(sink, self._schema)

    def _flush(self) -> None:
        rows, self._rows, self._gathered = self._rows, [], 0
        if not rows or self._writer is None:
            return
        pa = load_arrow()
        arrays = [
            pa.array(list(values), field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def end_file(self) -> None:
        """Complete the present file; the next sample begins another."""
        if self._file is not None and self._writer is not None:
            self._flush()
            self._writer.close()
            self._file.finish()
        self.files.append((self._name(), self._count))
        self._file = self._writer = None
        self._rows, self._count, self._written = [], 0, 0

    def close(self) -> None:
        """Complete the last file; an empty one where no sample came and the target is no pattern."""
        if self._count or not (self.files or self._numbered):
            if self._file is None and not self._dry_run:
                self._open()
            self.end_file()

    def abort(self) -> None:
        """Give up the present file; those that are complete stay."""
        if self._file is not None:
            self._file.drop()
            with contextlib.suppress(load_arrow().ArrowException, OSError, ValueError):
                if self._writer is not None:
                    # else it is closed when it is forgotten, and complains
                    self._writer.close()
            self._file = self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the last file, or give it up if an exception passes."""
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:  # whatever it is: nothing may be left over
            self.abort()
            raise


def infer_columns(
    samples: Iterable[RawSample], count: int = INFER_SAMPLES, *, raw: bool = False
) -> tuple[list[TableColumn], Iterator[RawSample]]:
    """Choose columns by the first samples; return them and all samples.

    Args:
        samples: as they stand.
        count: how many to look at; fewer where they have more than 64 MiB.
        raw: keep the bytes of all fields.
    """
    iterator = iter(samples)
    first: list[RawSample] = []
    size = 0
    for sample in itertools.islice(iterator, count):
        first.append(sample)
        size += sample.size_bytes
        if size >= _GROUP_BYTES:
            break
    return choose_columns(first, raw=raw), itertools.chain(first, iterator)


def write_hf_folder(
    samples: Iterable[RawSample],
    columns: list[TableColumn],
    folder: str,
    *,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    failed: Failed | None = None,
    force: bool = False,
) -> int:
    """Write samples to a folder that Hugging Face's ``load_from_disk`` reads; return how many rows it has.

    Args:
        samples: as they stand.
        columns: of the dataset.
        folder: its folder, which appears when it is complete.
        max_samples: rows of one of its Arrow files.
        max_bytes: about how many bytes one gets; 500 MB by default.
        failed: as for :class:`TableWriter`.
        force: replace a dataset of this kind that is there.

    Raises:
        AlreadyExists: something is there, and is no such dataset or may not be replaced; or another writer made the
            folder meanwhile.
        SampleError: a sample does not fit the columns.
        SourceError: the system refuses.
    """
    place = Path(folder)
    check_hf_folder(folder, force=force)
    free, process = is_free(place), os.getpid()
    staging = name_staging(place) if free else place.with_name(name_staging(place).name)
    try:
        make_durable_folder(str(staging.parent))
        staging.mkdir()
        pattern, size = str(staging / "data-%05d.arrow"), max_bytes or _FILE_BYTES
        with TableWriter(pattern, "stream", columns, max_samples=max_samples, max_bytes=size, failed=failed) as writer:
            for sample in samples:
                writer.write(sample)
        if os.getpid() != process:
            raise make_child_error(folder)  # noqa: TRY301  as any other failure
        names = []
        for number, (file, _) in enumerate(writer.files):
            names.append(f"data-{number:05}-of-{len(writer.files):05}.arrow")
            Path(file).rename(staging / names[-1])
        if not names:  # load_from_disk wants a table, be it empty
            names = ["data-00000-of-00001.arrow"]
            with TableWriter(str(staging / names[0]), "stream", columns):
                pass
        _write_documents(staging, columns, names)
        sync_folder(str(staging))
        publish_folder(staging, place) if free else _replace_folder(staging, place)
    except FolderTaken:
        raise
    except BaseException as error:  # whatever it is: nothing may be left over
        if os.getpid() == process:
            shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, WebDatasetError):
            raise SourceError(f"cannot write: {error.strerror or error}", url=folder) from error
        raise
    return sum(count for _, count in writer.files)


def _replace_folder(staging: Path, place: Path) -> None:
    """Put a complete folder in the place of another, which is there until then, and again where that fails."""
    before = staging.with_name(f"{staging.name}.old")
    try:
        place.rename(before)
        staging.rename(place)
        # else a power failure might leave the old one its name, and not all of its files
        sync_folder(str(place.parent))
    except BaseException:  # after either step: the old folder is not lost, or the new one is there
        if before.exists() and not place.exists():
            before.rename(place)
        shutil.rmtree(before, ignore_errors=True)
        raise
    shutil.rmtree(before, ignore_errors=True)
    if before.exists():
        warn_user(f"{before}, a folder that was replaced, cannot be removed: remove it once no process reads it")


def check_hf_folder(folder: str, *, force: bool) -> None:
    """Refuse a folder in whose place no dataset may be written.

    Args:
        folder: of the dataset.
        force: replace a dataset that is there.

    Raises:
        AlreadyExists: something is there, and is no such dataset or may not be replaced.
        UsageError: it is a url.
    """
    if "://" in folder:
        raise UsageError("a Hugging Face dataset is written to a local folder; upload it from there", url=folder)
    place = Path(folder)
    if is_free(place):
        return
    if not force:
        raise AlreadyExists("this is there already: give another name, or --force to replace it", url=folder)
    if place.is_symlink() or not (place / "state.json").is_file():
        raise AlreadyExists("this is no Hugging Face dataset, so it is not replaced: give another name", url=folder)


def _write_documents(folder: Path, columns: list[TableColumn], names: list[str]) -> None:
    features = json.loads(make_schema(columns).metadata[b"huggingface"])["info"]["features"]
    digest = hashlib.sha256()
    for name in names:
        with (folder / name).open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    state: dict[str, object] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    for name, document in (("state.json", state), ("dataset_info.json", info)):
        write_and_sync(str(folder / name), json.dumps(document, indent=2).encode())
