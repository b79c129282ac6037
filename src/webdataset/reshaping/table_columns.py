"""Chooses the columns of a table from the fields of samples: names, Arrow types, and what makes values of bytes.

The first samples decide. A field becomes a column named without its extension, where that is unique: ``image.jpg`` is
``image``; the column remembers the field's name, so that converting back gives it again. Each choice is tried on those
samples, and taken only if the value gives back the same; else the field is a column of text or bytes under its full
name, which holds exactly what the field holds. A later sample that does not fit is an error, never a changed value.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from webdataset.core.errors import SampleError, WebDatasetError
from webdataset.reshaping.field_values import IMAGES, JSONS, NUMBERS, SOUNDS, TEXTS, VIDEOS, last_extension
from webdataset.reshaping.table_reading import NUMPY_NAMES, load_arrow
from webdataset.samples.raw_samples import RawSample

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_MOST_BYTES = 2**31 - 1
_FILES: Final = {"Image": IMAGES, "Audio": SOUNDS, "Video": VIDEOS, "Pdf": frozenset(("pdf",))}
_ARRAYS: Final = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)

Decode = Callable[[bytes], object]


class TableColumn(NamedTuple):
    """A column of a table that is written.

    Args:
        name: its name.
        fields: the fields that it holds; of several, a sample has at most one.
        kind: its Arrow type.
        decode: makes a value of a field's bytes.
        hf_type: the Hugging Face feature of files, or None.
    """

    name: str
    fields: tuple[str, ...]
    kind: "pa.DataType"
    decode: Decode
    hf_type: str | None = None

    def read(self, sample: RawSample) -> object:
        """Return the value of a sample; None where it has none of the fields.

        Args:
            sample: as it stands.

        Raises:
            SampleError: what the field holds is no value of this column, or it has two of the fields.
        """
        there = [field for field in self.fields if field in sample.fields]
        if not there:
            return None
        content = cast("bytes", sample.payload(there[0]))
        try:
            _check_content(there, content)
            value = self.decode(content)
        except (ValueError, TypeError, OverflowError, RecursionError, WebDatasetError) as error:
            raise SampleError(
                f"the field does not fit the column {self.name!r} ({str(self.kind)[:100]}), which the first samples "
                f"chose: {str(error)[:200]}; look at more of them with --infer N, or keep all bytes with --raw",
                key=sample.key,
                url=sample.url,
                field=there[0],
            ) from error
        return (
            value if self.hf_type is None else {"bytes": value, "path": f"{sample.key.rpartition('/')[2]}.{there[0]}"}
        )


def _check_content(fields: Sequence[str], content: bytes) -> None:
    if len(fields) > 1:
        raise ValueError(f"the sample has {' and '.join(fields)}, which would be one value")
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has {len(content)} bytes, and a value of a table has at most {_MOST_BYTES}")


def is_table_text(text: str) -> bool:
    """Tell whether a key or the name of a field can stand in a table: names in shards may be no UTF-8.

    Args:
        text: the key or name.
    """
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def choose_columns(samples: Sequence[RawSample], *, raw: bool = False) -> list[TableColumn]:
    """Return the columns for samples like these; none for a field whose name no table can hold.

    Args:
        samples: the first ones.
        raw: make each field a column of bytes, under its full name.
    """
    contents: dict[str, list[bytes]] = defaultdict(list)
    for sample in samples:
        for field, content in sample.payloads().items():
            if is_table_text(field):
                contents[field].append(content)
    if raw:
        return [_keep_bytes(field) for field in contents]
    stems = _group_by_stem(samples, list(contents))
    columns: list[TableColumn] = []
    for stem, fields in stems.items():
        hf_type = _find_file_type(fields)
        if hf_type is not None:
            pa = load_arrow()
            files = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            columns.append(TableColumn(stem, fields, files, bytes, hf_type))
        else:
            columns.append(_choose_column(stem, fields[0], contents[fields[0]]))
    names = [column.name for column in columns]
    # a name without its extension may be the full name of another
    return [
        column._replace(name=column.fields[0]) if names.count(column.name) > 1 else column for column in columns
    ]  # fmt: skip


def _find_file_type(fields: Iterable[str]) -> str | None:
    extensions = {last_extension(field) for field in fields}
    return next((kind for kind, known in _FILES.items() if extensions <= known), None)


def _group_by_stem(samples: Sequence[RawSample], fields: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the fields of each column: several only where they are files of a kind, and no sample has two of them."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for field in fields:
        grouped[field.rpartition(".")[0] or field].append(field)
    found: dict[str, tuple[str, ...]] = {}
    for stem, some in grouped.items():
        together = (
            any(sum(field in sample.fields for field in some) > 1 for sample in samples) if len(some) > 1 else False
        )
        if len(some) == 1 or (_find_file_type(some) is not None and not together):
            found[stem if not stem.startswith("__") else some[0]] = tuple(some)
        else:
            found.update((field, (field,)) for field in some)
    return found


def _keep_bytes(field: str) -> TableColumn:
    return TableColumn(field, (field,), load_arrow().binary(), bytes)


def _decode_text(content: bytes) -> str:
    return content.decode("utf-8")


def _decode_number(content: bytes) -> int:
    number = int(content)
    if b"%d" % number != content:
        raise ValueError(f"{content[:50]!r} is not written as {number} is")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} has more than 64 bits")
    return number


def _choose_column(stem: str, field: str, contents: Sequence[bytes]) -> TableColumn:
    """Return the column of one field: the first choice that holds all of what there is exactly."""
    pa = load_arrow()
    extension = last_extension(field)
    text = TableColumn(field, (field,), pa.string(), _decode_text)
    choices: list[TableColumn] = []
    if extension in NUMBERS:
        choices = [TableColumn(stem, (field,), pa.int64(), _decode_number), text]
    elif extension in JSONS:
        choices = [*_choose_json(stem, field, contents), text]
    elif extension in TEXTS:
        choices = [text._replace(name=stem)]
    elif extension == "bin":
        choices = [_keep_bytes(field)._replace(name=stem)]
    elif extension == "npy":
        choices = _choose_array(stem, field, contents)
    return next((choice for choice in choices if _holds(choice, contents)), _keep_bytes(field))


def _holds(column: TableColumn, contents: Sequence[bytes]) -> bool:
    try:
        for content in contents:
            column.decode(content)
    except (ValueError, TypeError, OverflowError, RecursionError, WebDatasetError):
        return False
    return True


def _choose_json(stem: str, field: str, contents: Sequence[bytes]) -> list[TableColumn]:
    """Return the column of JSON values that have one Arrow type; none where values would change in it."""
    pa = load_arrow()
    try:
        values = [json.loads(content) for content in contents]
        # lists without elements do not tell their type
        kind = pa.infer_type(values)
    except (ValueError, TypeError, RecursionError, pa.ArrowException):
        return []
    # a string would be taken for the JSON text itself
    if _has_null_type(kind) or pa.types.is_string(kind):
        return []
    return [TableColumn(stem, (field,), kind, _ExactJson(kind))]


def _has_null_type(kind: "pa.DataType") -> bool:
    types = load_arrow().types
    if types.is_null(kind) or (types.is_struct(kind) and kind.num_fields == 0):
        return True
    return bool(types.is_nested(kind)) and any(_has_null_type(kind.field(n).type) for n in range(kind.num_fields))


class _ExactJson:
    """Parses JSON, and refuses what an Arrow type would change: missing keys, other numbers, other orders.

    Args:
        kind: the type.
    """

    def __init__(self, kind: "pa.DataType") -> None:
        self._kind = kind

    def __call__(self, content: bytes) -> object:
        """Return the value.

        Raises:
            ValueError: it is no JSON, or null, or another value than the type gives back.
        """
        pa = load_arrow()
        value = json.loads(content.decode("utf-8"))
        if value is None:
            raise ValueError("null would be no value")
        try:
            back = pa.array([value], self._kind)[0].as_py()
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
        if json.dumps(back) != json.dumps(value):
            raise ValueError(f"{json.dumps(value)[:80]} would become {json.dumps(back)[:80]}")
        return value


def _choose_array(stem: str, field: str, contents: Sequence[bytes]) -> list[TableColumn]:
    """Return the column of arrays of one shape and dtype."""
    from webdataset.codecs.numpy_arrays import npy_loads  # noqa: PLC0415  for arrays alone

    try:
        first = npy_loads(contents[0])
    except (ValueError, WebDatasetError):
        return []
    dtype, shape = first.dtype.name, first.shape
    if not shape or 0 in shape or dtype not in _ARRAYS:
        return []
    pa = load_arrow()
    kind = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(first.dtype)
    for length in reversed(shape):
        kind = pa.list_(kind, length)

    def decode(content: bytes) -> object:
        array = npy_loads(content)
        if array.dtype.name != dtype or array.shape != shape or not array.dtype.isnative:
            raise ValueError(f"an array of {array.dtype} {list(array.shape)} among those of {dtype} {list(shape)}")
        return _list_halves(array) if dtype == "float16" else array.tolist()

    return [TableColumn(stem, (field,), kind, decode)]


def _list_halves(array: "npt.NDArray[np.float16]") -> list[object]:
    """Return nested lists of numpy's float16: pyarrow before 21 makes halves of no other numbers."""
    return list(array) if array.ndim == 1 else [_list_halves(each) for each in array]


def make_schema(columns: Iterable[TableColumn], *, sized_lists: bool = True) -> "pa.Schema":
    """Return the schema of a table: ``__key__`` and the columns, with the names of fields and Hugging Face features.

    Args:
        columns: of the table.
        sized_lists: let lists of one size have it in their type, and not in the features alone. Parquet has no such
            type: where one is missing, pyarrow before 26 cannot read the column back.
    """
    pa = load_arrow()
    key = pa.field("__key__", pa.string())
    fields = [key, *(_make_field(column, sized_lists=sized_lists) for column in columns)]
    files = {column.name: column.hf_type for column in columns if column.hf_type is not None}
    kinds = {key.name: key.type, **{column.name: column.kind for column in columns}}
    features = {name: _make_feature(kind, files.get(name)) for name, kind in kinds.items()}
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})


def _make_field(column: TableColumn, *, sized_lists: bool) -> "pa.Field":
    files = {"webdataset_files": json.dumps(column.fields)}
    told = {"webdataset": column.fields[0]} if column.hf_type is None else files
    kind = column.kind if sized_lists else _drop_sizes(column.kind)
    return load_arrow().field(column.name, kind, metadata=told)


def _drop_sizes(kind: "pa.DataType") -> "pa.DataType":
    """Return a type of lists of one size as one of lists of any size; another type as it is."""
    pa = load_arrow()
    return pa.list_(_drop_sizes(kind.value_type)) if pa.types.is_fixed_size_list(kind) else kind


def _make_feature(kind: "pa.DataType", hf_type: str | None = None) -> Mapping[str, object] | list[object]:
    """Return the Hugging Face feature of an Arrow type."""
    types = load_arrow().types
    if hf_type is not None:
        return {"_type": hf_type}
    if types.is_struct(kind):
        return {each.name: _make_feature(each.type) for each in kind}
    if types.is_fixed_size_list(kind):
        return {"feature": _make_feature(kind.value_type), "length": kind.list_size, "_type": "Sequence"}
    if types.is_list(kind) and types.is_struct(kind.value_type):
        # a Sequence of them would be a struct of lists
        return [_make_feature(kind.value_type)]
    if types.is_list(kind):
        # List is the newer name, which datasets before 4 do not know
        return {"feature": _make_feature(kind.value_type), "_type": "Sequence"}
    return {"dtype": NUMPY_NAMES.get(str(kind), str(kind)), "_type": "Value"}
