"""Reads Parquet and Arrow tables, and Hugging Face datasets, as rows of values.

A batch of rows of about 8 MB is in memory at a time. Each column is read by its Arrow type and, where there is one,
its Hugging Face feature; a type that no field can hold is refused with the column's name before any row is read.
"""

import functools
import io
import itertools
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from webdataset.core.errors import FormatError, NoRandomAccess, SampleError, UsageError, WebDatasetError, describe_error
from webdataset.core.optional_imports import require
from webdataset.core.redaction import redact
from webdataset.core.trust import trust_level
from webdataset.reshaping.field_values import (
    IMAGES,
    SOUNDS,
    VIDEOS,
    Content,
    PackedValue,
    Row,
    RowConverter,
    guess_extension,
    last_extension,
)
from webdataset.shards.urls import check_document_url, is_url, join_url, literal_path, parent_folder
from webdataset.storage.open_url import open_stream, open_url
from webdataset.storage.random_access import RangeFile, open_ranges

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 8 << 20
_MOST_ROWS = 1024
_BUFFER_BYTES = 1 << 20
MEDIA: Final = frozenset(("Image", "Audio", "Video", "Pdf"))
"""The Hugging Face features that are files: a struct of ``bytes`` and ``path``."""
NUMPY_NAMES: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of types that numpy names otherwise."""

Features = Mapping[str, object]
ColumnReader = Callable[["pa.Array"], Iterable[object]]


def load_arrow(module: str = "pyarrow") -> "pa":
    """Import pyarrow, or one of its modules.

    Args:
        module: such as ``pyarrow.parquet``.

    Raises:
        MissingExtra: it is not installed.
    """
    return require(module, extra="parquet", purpose="reading and writing Parquet, Arrow and Hugging Face datasets")


def read_table(
    url: str, kind: str, converter: RowConverter, storage_options: object = None, *, class_names: bool = False,
    features: Features | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of a table.

    Args:
        url: a Parquet file, or an Arrow file or stream (Feather version 2 is an Arrow file).
        kind: ``parquet`` or ``arrow``.
        converter: says which columns are needed.
        storage_options: what it is opened with.
        class_names: give the names of classes in place of their numbers.
        features: the Hugging Face features; by default those that the table's schema has.

    Raises:
        FormatError: it is damaged, or no such table.
        NoRandomAccess: Parquet from where bytes come front to back only.
        SampleError: a column that no field can hold.
    """
    pa = load_arrow()
    try:
        schema, batches = _open_parquet(url, converter, storage_options) if kind == "parquet" else _open_arrow(
            url, storage_options
        )  # fmt: skip
        yield from _read_batches(schema, batches, url, converter, class_names=class_names, features=features)
    except WebDatasetError as error:
        error.locate(url=url)
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"the table cannot be read: {describe_error(error)[:500]}", url=url) from error


def _open_parquet(
    url: str, converter: RowConverter, storage_options: object
) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
    parquet = load_arrow("pyarrow.parquet")
    file = _open_file(url, storage_options)
    table = parquet.ParquetFile(load_arrow().PythonFile(file, mode="r"), buffer_size=_BUFFER_BYTES, pre_buffer=False)
    schema, meta = table.schema_arrow, table.metadata
    names = schema.names
    converter.check_columns(names, url)
    size = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * meta.num_rows // max(size, 1)))
    wanted = [name for name in names if converter.wants(name)]
    # pyarrow takes a dot for a path into a struct
    chosen = None if any("." in name for name in names) else wanted
    batches = table.iter_batches(batch_size=rows, columns=chosen)
    kept = schema if chosen is None else load_arrow().schema([schema.field(n) for n in chosen], schema.metadata)
    return kept, _close_after(batches, file)


def _open_file(url: str, storage_options: object) -> RangeFile:
    ranges = open_ranges(url, storage_options=storage_options)
    return RangeFile(ranges.read_at, ranges.length, ranges.close)


def _open_arrow(url: str, storage_options: object) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
    pa, ipc = load_arrow(), load_arrow("pyarrow.ipc")
    try:
        file: io.RawIOBase = _open_file(url, storage_options)
    except NoRandomAccess:
        stream = open_stream(url, storage_options=storage_options)
        reader = ipc.open_stream(pa.PythonFile(stream, mode="r"))
        return reader.schema, iter(reader)
    magic = file.read(6) or b""
    file.seek(0)
    if magic.startswith(b"FEA1"):
        raise FormatError("this is Feather version 1: write it again as version 2, or as Parquet", url=url)
    if magic != b"ARROW1":
        reader = ipc.open_stream(pa.PythonFile(file, mode="r"))
        return reader.schema, _close_after(iter(reader), file)
    reader = ipc.open_file(pa.PythonFile(file, mode="r"))
    return reader.schema, _close_after(map(reader.get_batch, range(reader.num_record_batches)), file)


def _close_after(batches: "Iterable[pa.RecordBatch]", file: io.RawIOBase) -> "Iterator[pa.RecordBatch]":
    try:
        yield from batches
    finally:
        file.close()


def _read_batches(
    schema: "pa.Schema",
    batches: "Iterable[pa.RecordBatch]",
    url: str,
    converter: RowConverter,
    *,
    class_names: bool,
    features: Features | None,
) -> Iterator[Row]:
    pa, found = load_arrow(), features or _find_features(schema)
    converter.check_columns(schema.names, url)
    readers: list[tuple[int, str, ColumnReader]] = []
    names: dict[str, str] = {}
    for number, column in enumerate(schema):
        if not converter.wants(column.name):
            continue
        feature = found.get(column.name)
        reader = find_reader(column.name, column.type, feature, url, class_names)
        files = (column.metadata or {}).get(b"webdataset_files")
        if files is not None and pa.types.is_struct(column.type):
            reader = functools.partial(_name_files, reader, frozenset(json.loads(files)))
        readers.append((number, column.name, reader))
        told = (column.metadata or {}).get(b"webdataset")
        if told is not None:
            names[column.name] = told.decode("utf-8")
        elif getattr(column.type, "extension_name", "") == "arrow.json":
            names[column.name] = column.name if last_extension(column.name) == "json" else f"{column.name}.json"
    start = 0
    for batch in batches:
        # offsets from a damaged or hostile file would be followed anywhere in memory
        batch.validate(full=True)
        for first in range(0, batch.num_rows, _MOST_ROWS):
            part = batch.slice(first, _MOST_ROWS)
            lists = [reader(part.column(number)) for number, _, reader in readers]
            for index, values in enumerate(zip(*lists, strict=True) if lists else [()] * part.num_rows):
                row = dict(zip((name for _, name, _ in readers), values, strict=True))
                yield Row(url, f"row {start + first + index}", row, names)
        start += batch.num_rows


def _name_files(reader: ColumnReader, fields: frozenset[str], array: "pa.Array") -> Iterator[object]:
    """Yield the files of a column that our writer made, with the fields that their paths name."""
    paths = array.field("path").to_pylist()
    for value, path in zip(reader(array), paths, strict=True):
        field = str(path).partition(".")[2]
        if isinstance(value, Content) and field in fields:
            value.field = field
        yield value


def _find_features(schema: "pa.Schema") -> Features:
    told = (schema.metadata or {}).get(b"huggingface")
    info = json.loads(told).get("info") if told else None
    return cast("Features", (info or {}).get("features") or {})


def find_reader(name: str, kind: "pa.DataType", feature: object, url: str, class_names: bool) -> ColumnReader:  # noqa: FBT001
    """Return what turns an Arrow array into values.

    Args:
        name: of the column.
        kind: its type.
        feature: its Hugging Face feature, or None.
        url: the table.
        class_names: give the names of classes in place of their numbers.

    Raises:
        SampleError: a type that no field can hold.
    """
    told: Mapping[str, object] = feature if isinstance(feature, dict) else {}
    inner = _find_inner_reader(name, kind, told, url, class_names)
    if inner is not None:
        return inner
    types = load_arrow().types
    hint, classes = str(told.get("_type", "")), told.get("names")
    if hint == "ClassLabel" and class_names and types.is_integer(kind) and isinstance(classes, list):
        return functools.partial(_name_classes, classes)
    if types.is_struct(kind) and (hint in MEDIA or _is_file(kind)):
        return lambda array: [None if file is None else _read_file(file, name, url) for file in array.to_pylist()]
    shape = _find_shape(kind, told)
    problem = _find_problem(kind) if shape is None else None
    if problem is not None:
        raise SampleError(
            f"the column {name!r} is {str(kind)[:200]}, and no field holds {problem}: cast it to text or numbers, "
            "or name the other columns with --columns",
            url=url,
        )
    if shape is not None:
        return functools.partial(_read_arrays, name, *shape)
    if types.is_nested(kind) and _has_binary(kind):
        return lambda array: (None if value is None else PackedValue(value) for value in array.to_pylist())
    return _read_texts if _is_text_only(kind) else _read_floats if types.is_floating(kind) else _read_values


def _has_binary(kind: "pa.DataType") -> bool:
    types = load_arrow().types
    if types.is_nested(kind):
        return any(_has_binary(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _has_binary(kind.value_type)
    return bool(types.is_fixed_size_binary(kind)) or any(test(kind) for test in _binary_tests())


def _binary_tests() -> "tuple[Callable[[pa.DataType], bool], ...]":
    types = load_arrow().types
    return types.is_binary, types.is_large_binary, types.is_binary_view


def _is_file(kind: "pa.DataType") -> bool:
    """Tell whether a struct is a file; one of a path and a number of bytes is none."""
    types = load_arrow().types
    tests = {
        "bytes": (*_binary_tests(), types.is_null),
        "path": (types.is_string, types.is_large_string, types.is_string_view, types.is_null),
    }
    return sorted(each.name for each in kind) == [*tests] and all(
        any(test(each.type) for test in tests[each.name]) for each in kind
    )


def _read_values(array: "pa.Array") -> Iterable[object]:
    values: list[object] = array.to_pylist()
    return values


def _read_floats(array: "pa.Array") -> Iterable[object]:
    return (None if value is None else float(value) for value in array.to_pylist())


def _read_texts(array: "pa.Array") -> Iterable[object]:
    values: list[object] = array.cast(load_arrow().string()).to_pylist()
    return values


def _find_inner_reader(
    name: str, kind: "pa.DataType", feature: Mapping[str, object], url: str, class_names: bool  # noqa: FBT001
) -> ColumnReader | None:  # fmt: skip
    """Return the reader of a type around another: an extension, a dictionary, runs; None for other types."""
    pa = load_arrow()
    if isinstance(kind, pa.BaseExtensionType):
        return _find_extension_reader(name, kind, feature, url, class_names)
    if pa.types.is_dictionary(kind):
        inner = find_reader(name, kind.value_type, feature, url, class_names)
        return lambda array: inner(_unpack(lambda packed: packed.dictionary_decode(), array))
    if pa.types.is_run_end_encoded(kind):
        compute = load_arrow("pyarrow.compute")
        inner = find_reader(name, kind.value_type, feature, url, class_names)
        return lambda array: inner(_unpack(compute.run_end_decode, array))
    return None


def _unpack(decode: "Callable[[pa.Array], pa.Array]", array: "pa.Array") -> "pa.Array":
    """Return the values of an array with a dictionary or runs, each as often as it stands there."""
    pa = load_arrow()
    try:
        return decode(array)
    except pa.ArrowNotImplementedError:
        # pyarrow gathers no string_view and binary_view
        return pa.array(array.to_pylist(), array.type.value_type)


def _find_extension_reader(
    name: str, kind: "pa.BaseExtensionType", feature: Mapping[str, object], url: str, class_names: bool  # noqa: FBT001
) -> ColumnReader:  # fmt: skip
    if kind.extension_name == "arrow.fixed_shape_tensor":
        return lambda array: (None if each.as_py() is None else each.to_numpy() for each in array)
    if kind.extension_name == "arrow.uuid":
        return lambda array: (None if value is None else str(value) for value in array.to_pylist())
    inner = find_reader(name, kind.storage_type, feature, url, class_names)
    if kind.extension_name == "arrow.bool8":
        return lambda array: (None if value is None else bool(value) for value in inner(array.storage))
    return lambda array: inner(array.storage)


def _find_problem(kind: "pa.DataType") -> str | None:
    """Return the part of a type that no field can hold, or None."""
    types = load_arrow().types
    if types.is_nested(kind) and not types.is_union(kind):
        parts = [kind.field(number).type for number in range(kind.num_fields)]
        nested = next((found for part in parts if (found := _find_problem(part)) is not None), None)
        return nested or next((f"{part} within a list or struct" for part in parts if _is_text_only(part)), None)
    plain = (
        types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_binary, types.is_large_binary,
        types.is_fixed_size_binary, types.is_binary_view, types.is_string, types.is_large_string, types.is_string_view,
        types.is_decimal, types.is_date, types.is_time, types.is_timestamp, types.is_dictionary,
    )  # fmt: skip
    return None if any(test(kind) for test in plain) else str(kind)


def _is_text_only(kind: "pa.DataType") -> bool:
    types = load_arrow().types
    return bool(types.is_temporal(kind) or types.is_decimal(kind))


def _find_shape(kind: "pa.DataType", feature: Mapping[str, object]) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of a column of arrays, -1 for a length that may vary; None for another column."""
    types = load_arrow().types
    numbers = re.fullmatch(r"bool|u?int\d+|float\d+", str(feature.get("dtype"))) is not None
    is_array = numbers and str(feature.get("_type", "")).startswith("Array")
    if is_array and isinstance(feature.get("shape"), list | tuple):
        lengths = cast("list[int | None]", feature["shape"])
        return str(feature["dtype"]), (-1, *(int(length or 0) for length in lengths[1:]))
    shape: list[int] = []
    inner: object = feature
    while (length := _find_length(kind, inner)) is not None:
        shape.append(length)
        kind = kind.value_type
        inner = inner.get("feature") if isinstance(inner, dict) else None
    if not shape or not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    # to_pandas_dtype() would need pandas in older versions
    return NUMPY_NAMES.get(str(kind), str(kind)), tuple(shape)


def _find_length(kind: "pa.DataType", feature: object) -> int | None:
    """Return the length of lists of one size, which their type or their Hugging Face feature tells; else None."""
    types = load_arrow().types
    if types.is_fixed_size_list(kind):
        return int(kind.list_size)
    told = feature.get("length") if isinstance(feature, dict) and types.is_list(kind) else None
    return told if type(told) is int and told > 0 else None


def _read_arrays(name: str, dtype: str, shape: tuple[int, ...], array: "pa.Array") -> Iterator[object]:
    import numpy as np  # noqa: PLC0415  for arrays alone

    for value in array.to_pylist():
        if value is None:
            yield None
            continue
        try:
            made = np.array(value, dtype=object).reshape(shape) if shape[0] >= 0 else np.array(value, dtype=object)
            holes = sum(part is None for part in made.flat)
            # None in a list of floats would become NaN
            yield (
                SampleError(f"the column {name!r} holds an array with nulls")
                if holes
                else made.astype(dtype).reshape(shape)
            )
        except (TypeError, ValueError) as error:
            yield SampleError(f"the column {name!r} holds no array of {dtype} {list(shape)}: {error}")


def _name_classes(names: list[str], array: "pa.Array") -> Iterator[object]:
    for number in array.to_pylist():
        if number is None or 0 <= number < len(names):
            yield None if number is None else str(names[number])
        else:
            yield SampleError(f"the class {number} has no name: there are {len(names)}")


def _read_file(file: Mapping[str, object], column: str, url: str) -> object:
    """Return the bytes of a Hugging Face file; those that only its path names are read."""
    content, path = file.get("bytes"), file.get("path")
    if content is None and path is None:
        return None
    extension = last_extension(str(path or ""))
    known = extension if extension in IMAGES | SOUNDS | VIDEOS | {"pdf"} else "bin"
    if isinstance(content, bytes):
        return Content.make(content, guess_extension(content) or known)
    try:
        with open_url(_locate_file(str(path), column, url)) as stream:
            content = stream.read()
            return Content.make(content, guess_extension(content) or known)
    except WebDatasetError as error:
        return error


def _locate_file(path: str, column: str, url: str) -> str:
    """Return where the file that a cell names is: in the table's folder or below, unless trust is full.

    Raises:
        SampleError: the cell names something elsewhere.
        UnsafeSpec: a table from the network names what only this machine has.
    """
    if trust_level() != "full":
        parts, plain = path.replace("\\", "/").split("/"), posixpath.normpath(path)
        # a cell is data: its author chooses neither a command nor a file anywhere
        if parts[0] == "" or ".." in parts or plain == "-" or "://" in path or is_url(plain):
            raise SampleError(
                f"the column {column!r} names {redact(path)[:200]!r}, which is no file in the table's folder: embed "
                "the bytes, copy the file beside the table and name it by a relative path, or set WDS_TRUST=full if "
                "you trust the table (those that 'datasets' makes may name files of its cache)"
            )
        path = plain
    return check_document_url(join_url(parent_folder(url), path), url)


def find_folder_files(folder: str, split: str | None) -> tuple[list[str], Features] | None:
    """Return the Arrow files and the features of a dataset that ``save_to_disk`` wrote; None where it is none.

    Args:
        folder: its folder.
        split: of a dataset that has several.

    Raises:
        UsageError: no such split, or several and none named.
        FormatError: its documents make no sense.
    """
    place = Path(folder)
    if (place / "dataset_dict.json").is_file():
        splits = _load_document(place / "dataset_dict.json").get("splits")
        names = [str(name) for name in splits] if isinstance(splits, list) else []
        chosen = split or ("train" if "train" in names else names[0] if len(names) == 1 else None)
        if chosen not in names:
            raise UsageError(f"the dataset has the splits {', '.join(names)}: name one with --split", url=folder)
        if chosen != os.path.basename(chosen or "") or chosen in ("", ".", ".."):  # noqa: PTH119
            raise FormatError(f"dataset_dict.json names no split of this folder: {chosen!r}", url=folder)
        place /= chosen
    elif split is not None and (place / "state.json").is_file():
        raise UsageError("this dataset has no splits: leave out --split", url=folder)
    if not (place / "state.json").is_file():
        return None
    state, info = _load_document(place / "state.json"), _load_document(place / "dataset_info.json")
    files = state.get("_data_files")
    listed = [str(each.get("filename")) for each in files if isinstance(each, dict)] if isinstance(files, list) else []
    bad = next((name for name in listed if name != os.path.basename(name) or name in ("", ".", "..")), None)  # noqa: PTH119
    if bad is not None or not isinstance(files, list):
        raise FormatError(f"state.json names no Arrow files of this folder: {bad or files!r}", url=str(place))
    if state.get("_indices_data_files"):
        raise FormatError("rows are chosen by an indices file: call flatten_indices() and save it again", url=folder)
    features = info.get("features")
    return [literal_path(str(place / name)) for name in listed], features if isinstance(features, dict) else {}


def _load_document(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"the dataset's {path.name} cannot be read: {error}", url=str(path)) from error
    if not isinstance(found, dict):
        raise FormatError(f"the dataset's {path.name} is no JSON object", url=str(path))
    return found


def read_hf_dataset(
    name: str, split: str | None, converter: RowConverter, *, class_names: bool = False
) -> Iterator[Row]:
    """Yield the rows of a Hugging Face dataset: a folder of ``save_to_disk``, or what ``load_dataset`` takes.

    Args:
        name: the folder, or a folder or name for ``load_dataset``, which streams.
        split: the split; needed by ``load_dataset``.
        converter: as for :func:`read_table`.
        class_names: likewise.

    Raises:
        MissingExtra: ``datasets`` is needed and not installed.
        UsageError: a split is needed.
        FormatError: the dataset cannot be read.
    """
    found = find_folder_files(name, split) if Path(name).is_dir() else None
    if found is not None:
        files, features = found
        for file in files:
            yield from read_table(file, "arrow", converter, class_names=class_names, features=features)
        return
    library = require("datasets", extra="hf-datasets", purpose="loading Hugging Face datasets")
    if split is None:
        raise UsageError("load_dataset needs a split: pass --split train", url=name)
    try:
        dataset = library.load_dataset(name, split=split, streaming=True)
        features = dataset.features.to_dict() if dataset.features else {}
        if features:
            # builders that make examples may give each its own order of columns
            dataset = dataset.select_columns(list(features))
            dataset = dataset.decode(False) if hasattr(dataset, "decode") else dataset
        numbers = itertools.count()
        for table in dataset.with_format("arrow").iter(_MOST_ROWS // 16):
            for row in _read_batches(
                table.schema, table.to_batches(), name, converter, class_names=class_names, features=features
            ):
                yield row._replace(place=f"row {next(numbers)}")
    except WebDatasetError:
        raise
    except Exception as error:  # what load_dataset raises has no common class
        raise FormatError(f"the dataset cannot be loaded: {describe_error(error)[:500]}", url=name) from error
