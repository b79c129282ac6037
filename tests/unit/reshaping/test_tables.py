"""Parquet and Arrow tables: the types of columns, both ways; what is refused, and by which name."""

import json
import shutil
import struct
import tracemalloc
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.version import Version
from pyarrow import feather

from webdataset.codecs.msgpack_cbor import msgpack_loads
from webdataset.codecs.numpy_arrays import npy_dumps, npy_loads
from webdataset.core.errors import (
    AlreadyExists,
    FormatError,
    NotFound,
    SampleError,
    SourceError,
    UsageError,
    WebDatasetError,
)
from webdataset.reshaping.conversion import Conversion
from webdataset.reshaping.creation import make_member
from webdataset.reshaping.field_values import RowConverter
from webdataset.reshaping.table_reading import read_hf_dataset, read_table
from webdataset.reshaping.table_writing import TableWriter, infer_columns, write_hf_folder
from webdataset.samples.raw_samples import RawSample

ARROW = Version(pa.__version__).major
# what pyarrow itself writes to Parquet and reads back
VIEWS = pytest.mark.skipif(ARROW < 21, reason="pyarrow before 21 writes no views to Parquet")
SIZED_NULLS = ARROW >= 26
PNG = b"\x89PNG\r\n\x1a\n rest"
JPG = b"\xff\xd8\xff rest"


def sample(key, **fields):
    """A sample; two underscores in a name stand for a dot."""
    named = {name.replace("__", "."): content for name, content in fields.items()}
    members = tuple(make_member(f"{key}.{name}", content) for name, content in named.items())
    return RawSample(key, members, tuple(named), "x.tar", 0)


def values_of(row):
    """The values of a row that could be read."""
    assert isinstance(row.values, dict)
    return row.values


def convert(table, tmp_path, class_names=False, **rules):
    """The samples of a table: key and payloads."""
    path = str(tmp_path / "x.parquet")
    pq.write_table(table, path)
    converter = RowConverter(**rules)
    rows = read_table(path, "parquet", converter, class_names=class_names)
    return [(each.key, each.payloads()) for each in converter.convert(rows)]


def column(values, kind, tmp_path, name="x", **options):
    """The only field of each sample of a column, without nulls."""
    return [fields for _, fields in convert(pa.table({name: pa.array(values, kind)}), tmp_path, **options)]


@pytest.mark.parametrize(
    ("kind", "values", "field", "contents"),
    [
        (pa.string(), ["a", "bé", ""], "x.txt", [b"a", "bé".encode(), b""]),
        (pa.large_string(), ["a"], "x.txt", [b"a"]),
        pytest.param(pa.string_view(), ["a"], "x.txt", [b"a"], marks=VIEWS),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], "x.txt", [b"a", b"b", b"a"]),
        (pa.int8(), [-128, 127], "x.cls", [b"-128", b"127"]),
        (pa.uint64(), [2**64 - 1], "x.cls", [b"18446744073709551615"]),
        (pa.float64(), [0.1, 1e300], "x.json", [b"0.1", b"1e300"]),
        (pa.float16(), [np.float16(0.5)], "x.json", [b"0.5"]),
        (pa.bool_(), [True, False], "x.json", [b"true", b"false"]),
        (pa.binary(), [PNG], "x.png", [PNG]),
        (pa.large_binary(), [JPG], "x.jpg", [JPG]),
        pytest.param(pa.binary_view(), [b"RIFF\0\0\0\0WAVEx"], "x.wav", [b"RIFF\0\0\0\0WAVEx"], marks=VIEWS),
        (pa.binary(3), [b"\0\1\2"], "x.bin", [b"\0\1\2"]),
        (pa.list_(pa.int32()), [[1, 2], []], "x.json", [b"[1,2]", b"[]"]),
        (pa.large_list(pa.string()), [["a", None]], "x.json", [b'["a",null]']),
        (
            pa.struct([("a", pa.int8()), ("b", pa.list_(pa.bool_()))]),
            [{"a": 1, "b": [True]}],
            "x.json",
            [b'{"a":1,"b":[true]}'],
        ),
        (pa.map_(pa.string(), pa.int8()), [[("k", 1)]], "x.json", [b'[["k",1]]']),
        (pa.date32(), [0], "x.txt", [b"1970-01-01"]),
        (pa.timestamp("ns"), [1], "x.txt", [b"1970-01-01 00:00:00.000000001"]),
        (pa.timestamp("ms", "UTC"), [1], "x.txt", [b"1970-01-01 00:00:00.001Z"]),
        (pa.time64("us"), [1], "x.txt", [b"00:00:00.000001"]),
        (
            pa.decimal128(38, 2),
            [Decimal("123456789012345678901234567890.10")],
            "x.txt",
            [b"123456789012345678901234567890.10"],
        ),
    ],
)
def test_types(kind, values, field, contents, tmp_path):
    """The type of a column chooses the extension; nothing of the value is lost."""
    assert column(values, kind, tmp_path) == [{field: content} for content in contents]


def test_arrays_keep_shape_and_type(tmp_path):
    """Lists of fixed size, tensors of Arrow and those of Hugging Face are npy."""
    kind = pa.list_(pa.list_(pa.uint8(), 3), 2)
    values = [[[1, 2, 3], [4, 5, 6]], None] if SIZED_NULLS else [[[1, 2, 3], [4, 5, 6]]]
    table = pa.table({"x": pa.array(values, kind), "y": pa.array([1, 2][: len(values)])})
    first, *others = convert(table, tmp_path)
    array = npy_loads(first[1]["x.npy"])
    assert (array.dtype, array.tolist()) == ("uint8", values[0])
    assert [fields for _, fields in others] == [{"y.cls": b"2"}] * (len(values) - 1)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype="float32").reshape(2, 2, 3))
    (_, fields), _ = convert(pa.table({"t": tensors}), tmp_path)
    assert npy_loads(fields["t.npy"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(SampleError, match="'x' holds an array with nulls"):
        column([[1.0, None]], pa.list_(pa.float32(), 2), tmp_path)


def test_bytes_in_lists_are_msgpack(tmp_path):
    """JSON has no bytes: lists with bytes in them are msgpack."""
    (fields,) = column([[b"\xff", b"a"]], pa.list_(pa.binary()), tmp_path)
    assert msgpack_loads(fields["x.mp"]) == [b"\xff", b"a"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("s"),
        pa.list_(pa.timestamp("s")),
        pa.struct([("a", pa.decimal128(5, 2))]),
        pa.list_(pa.duration("s")),
    ],
)
def test_types_that_no_field_holds(kind, tmp_path):
    """They are refused before the first row, by the column's name; --columns leaves them out."""
    table = pa.table({"x": pa.array([None], kind), "y": [1]})
    with pytest.raises(SampleError, match="column 'x' is .*--columns"):
        convert(table, tmp_path)
    assert convert(table, tmp_path, columns=("y",)) == [("000000000", {"y.cls": b"1"})]


def test_null_is_no_field_and_a_row_of_nulls_is_told(tmp_path):
    """Null leaves the field out; a row without any value is an error with its number, or told and left out."""
    table = pa.table({"a": [1, None, None], "b": [None, "x", None]})
    told = []
    found = convert(table, tmp_path, failed=lambda place, error: told.append((place, str(error))))
    assert found == [("000000000", {"a.cls": b"1"}), ("000000001", {"b.txt": b"x"})]
    assert [place for place, _ in told] == ["row 2"]
    with pytest.raises(SampleError, match=r"row 2: it has no value.*x.parquet"):
        convert(table, tmp_path)


@pytest.mark.parametrize("name", ["a/b", "", ".x", "x\n", "../x", "__key"])
def test_odd_names(name, tmp_path):
    """A column that no field can be called after is refused by name; --rename gives it another."""
    table = pa.table({name: ["v"]})
    if name == "__key":
        assert convert(table, tmp_path) == [("000000000", {"__key.txt": b"v"})]
        return
    with pytest.raises(SampleError, match="--rename NEW="):
        convert(table, tmp_path)
    assert convert(table, tmp_path, rename={"ok": name}) == [("000000000", {"ok.txt": b"v"})]


def test_dotted_names_and_extensions(tmp_path):
    """A name that ends with an extension for its type stays; a dot without one gets it."""
    table = pa.table(
        {"a.b": [1], "x.cls": [2], "txt": ["t"], "meta.json": ['{"a": 1}'], "jpg": [JPG], "image": [PNG], "rgb": [JPG]}
    )
    assert convert(table, tmp_path) == [
        (
            "000000000",
            {
                "a.b.cls": b"1",
                "x.cls": b"2",
                "txt": b"t",
                "meta.json": b'{"a": 1}',
                "jpg": JPG,
                "image.png": PNG,
                "rgb.jpg": JPG,
            },
        )
    ]
    with pytest.raises(SampleError, match="'a.json' holds a value that no field can hold"):
        convert(pa.table({"a.json": ["{no"]}), tmp_path)


def test_names_that_differ_by_case(tmp_path):
    """Readers lower extensions, so two columns that differ by case are refused."""
    with pytest.raises(SampleError, match="'A' and 'a' would be one field"):
        convert(pa.table({"A": [1], "a": [2]}), tmp_path)
    assert convert(pa.table({"A": [1]}), tmp_path) == [("000000000", {"a.cls": b"1"})]


def test_keys(tmp_path):
    """``__key__`` or --key give the key; keys that cannot be and those that come twice are errors."""
    table = pa.table({"__key__": ["p/a", "b"], "__url__": ["u", "u"], "n": [1, 2], "s": ["x", "y"]})
    assert [key for key, _ in convert(table, tmp_path)] == ["p/a", "b"]
    assert [key for key, _ in convert(table, tmp_path, key="s")] == ["x", "y"]
    assert [key for key, _ in convert(table, tmp_path, key="{s}-{n}")] == ["x-1", "y-2"]
    assert all("__url__" not in fields for _, fields in convert(table, tmp_path))
    with pytest.raises(UsageError, match="--key names the column 'z'"):
        convert(table, tmp_path, key="z")
    for bad in ("a.b", "", "a/", "x\0", ".a/b.c", "__x__"):
        with pytest.raises(SampleError, match="cannot be a key"):
            convert(pa.table({"__key__": [bad], "a": [1]}), tmp_path)
    with pytest.raises(SampleError, match="comes twice"):
        convert(pa.table({"__key__": ["a", "b", "a"], "n": [1, 2, 3]}), tmp_path)
    with pytest.raises(SampleError, match="null"):
        convert(pa.table({"__key__": pa.array([None], pa.string()), "n": [1]}), tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_empty_tables_and_groups(kind, tmp_path):
    """Tables without rows, and groups without rows, give no samples and no error."""
    table = pa.table({"x": pa.array([], pa.int8())})
    path = str(tmp_path / "x")
    if kind == "parquet":
        with pq.ParquetWriter(path, table.schema) as writer:
            for part in (table, pa.table({"x": pa.array([7], pa.int8())}), table):
                writer.write_table(part)
    else:
        with (pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(path, table.schema) as writer:
            for part in (table, pa.table({"x": pa.array([7], pa.int8())}), table):
                writer.write_table(part)
    rows = list(read_table(path, "parquet" if kind == "parquet" else "arrow", RowConverter()))
    assert [(row.place, row.values) for row in rows] == [("row 0", {"x": 7})]


def test_feather(tmp_path):
    """Feather version 2 is an Arrow file; version 1 is refused with what to do."""
    table = pa.table({"x": [1, 2]})
    feather.write_feather(table, str(tmp_path / "2"), compression="lz4")
    assert [values_of(row)["x"] for row in read_table(str(tmp_path / "2"), "arrow", RowConverter())] == [1, 2]
    (tmp_path / "1").write_bytes(b"FEA1" + bytes(40))
    with pytest.raises(FormatError, match="version 2"):
        list(read_table(str(tmp_path / "1"), "arrow", RowConverter()))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_damage_is_typed(kind, tmp_path):
    """A damaged or cut table is an error of this library that names the file, and never another exception."""
    path = tmp_path / "x"
    with TableWriter(str(path), kind, infer_columns([sample("a", txt=b"t" * 50, cls=b"1")])[0]) as writer:
        for number in range(20):
            writer.write(sample(f"k{number}", txt=b"t" * 50, cls=b"1"))
    whole = path.read_bytes()
    failures = 0
    for place in [*range(0, len(whole), 37), *range(-60, 0)]:
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place:][1:]):
            path.write_bytes(damaged)
            try:
                list(RowConverter().convert(read_table(str(path), kind, RowConverter())))
            except WebDatasetError as error:
                failures += error.url == str(path)
    assert failures > 20
    with pytest.raises(NotFound):
        list(read_table(str(tmp_path / "none"), kind, RowConverter()))


def test_class_labels_and_files(tmp_path):
    """Numbers of classes stay numbers, or become their names; a file without bytes is read beside the table."""
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    files = pa.array(
        [{"bytes": None, "path": "a.png"}, {"bytes": b"odd", "path": "x/y.webp"}],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"label": [1, 0], "image": files}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    (tmp_path / "a.png").write_bytes(PNG)
    assert convert(table, tmp_path) == [
        ("000000000", {"label.cls": b"1", "image.png": PNG}),
        ("000000001", {"label.cls": b"0", "image.webp": b"odd"}),
    ]
    assert [fields["label.txt"] for _, fields in convert(table, tmp_path, class_names=True)] == [b"dog", b"cat"]
    (tmp_path / "a.png").unlink()
    told = []
    assert len(convert(table, tmp_path, failed=lambda place, _: told.append(place))) == 1
    assert told == ["row 0"]


def files_of(*paths):
    """A table whose files have paths and no bytes."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"image": pa.array([{"bytes": None, "path": path} for path in paths], kind)})


@pytest.mark.parametrize(
    "path",
    [
        "pipe:echo made", "./pipe:echo made", ".//pipe:echo made", "PIPE:echo made", "-", "./-", "{there}/secret.png",
        "//{there}/secret.png", "../secret.png", "sub/../../secret.png", "..\\secret.png", "file:{there}/secret.png",
        "file:secret.png", "http://127.0.0.1:9/a.png", "odd://a/b.png", "",
    ],
)  # fmt: skip
def test_cells_name_files_beside_the_table_only(path, tmp_path, monkeypatch):
    """A cell of a table is data: it names neither a command, nor a url, nor a file outside of the table's folder."""
    there, here = tmp_path, tmp_path / "here"
    here.mkdir()
    (there / "secret.png").write_bytes(PNG)
    (here / "secret.png").write_bytes(PNG)
    monkeypatch.chdir(here)
    pq.write_table(files_of(path.format(there=there)), "x.parquet")
    for url in ("x.parquet", str(here / "x.parquet")):
        with pytest.raises(SampleError, match="row 0: the column 'image' names .* WDS_TRUST=full"):
            list(RowConverter().convert(read_table(url, "parquet", RowConverter())))


def test_files_below_the_table_are_read(tmp_path, monkeypatch):
    """Files in folders beside the table are read, also where a name has a colon."""
    (tmp_path / "sub").mkdir()
    for name in ("sub/a.png", "b:1.png"):
        (tmp_path / name).write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    assert len(convert(files_of("sub/a.png", "./sub//a.png", "b:1.png"), tmp_path)) == 3


def test_full_trust_follows_cells_anywhere(tmp_path, monkeypatch):
    """Under full trust a cell names any file and command, as tables of 'datasets' name files of its cache."""
    (tmp_path / "here").mkdir()
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.setenv("WDS_TRUST", "full")
    table = files_of(str(tmp_path / "a.png"), "../a.png", "pipe:echo made")
    found = [fields for _, fields in convert(table, tmp_path / "here")]
    assert found == [{"image.png": PNG}, {"image.png": PNG}, {"image.bin": b"made\n"}]


def write(samples, path, kind="parquet", infer=1000, raw=False, **options):
    """Write samples to a table; return it as pyarrow reads it."""
    columns, rest = infer_columns(samples, infer, raw=raw)
    with TableWriter(str(path), kind, columns, **options) as writer:
        for each in rest:
            writer.write(each)
    return pq.read_table(str(path)) if kind == "parquet" else None


def test_columns_of_fields(tmp_path):
    """Fields become columns of their type, named without their extension; what is missing is null."""
    table = write(
        [
            sample(
                "p/a",
                img__jpg=JPG,
                caption__txt="é".encode(),
                label__cls=b"3",
                meta__json=b'{"a": [1]}',
                e__npy=npy_dumps(np.ones((2, 1), "f4")),
            ),
            sample("b", img__png=PNG, label__cls=b"-4", meta__json=b'{"a": [2, 3]}', odd__foo=b"\xff", blob__bin=b"\0"),
        ],
        tmp_path / "x.parquet",
    )
    assert table.to_pylist() == [
        {
            "__key__": "p/a",
            "img": {"bytes": JPG, "path": "a.img.jpg"},
            "caption": "é",
            "label": 3,
            "meta": {"a": [1]},
            "e": [[1.0], [1.0]],
            "odd.foo": None,
            "blob": None,
        },
        {
            "__key__": "b",
            "img": {"bytes": PNG, "path": "b.img.png"},
            "caption": None,
            "label": -4,
            "meta": {"a": [2, 3]},
            "e": None,
            "odd.foo": b"\xff",
            "blob": b"\0",
        },
    ]
    info = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert info["img"] == {"_type": "Image"}


@pytest.mark.parametrize("dtype", ["f4", "f2", "?"])
def test_arrays_that_are_missing_can_be_read_by_every_pyarrow(dtype, tmp_path):
    """In Parquet the size of lists stands in the features: pyarrow before 26 reads no null among lists of one size."""
    arrays = [npy_dumps(np.ones((2, 3), dtype)), None, npy_dumps(np.zeros((2, 3), dtype))]
    samples = [sample(str(n), y__cls=b"1", **({"x__npy": each} if each else {})) for n, each in enumerate(arrays)]
    table = write(samples, tmp_path / "x.parquet")
    kind = table.schema.field("x").type
    assert pa.types.is_list(kind)
    assert pa.types.is_list(kind.value_type)
    told = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["x"]
    assert (told["length"], told["feature"]["length"]) == (2, 3)
    rows = RowConverter().convert(read_table(str(tmp_path / "x.parquet"), "parquet", RowConverter()))
    assert [each.payloads().get("x.npy") for each in rows] == arrays


def test_features_of_lists_are_those_that_every_version_of_datasets_knows(tmp_path):
    """Sequence, and a list of structs as [struct]: before 4 there is no List, and a Sequence of structs is no list."""
    content = b'{"boxes": [{"x": 1}], "tags": ["a"]}'
    table = write([sample("a", m__json=content, x__npy=npy_dumps(np.ones(2, "f4")))], tmp_path / "x.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    number, text, real = ({"dtype": name, "_type": "Value"} for name in ("int64", "string", "float32"))
    assert features["m"] == {"boxes": [{"x": number}], "tags": {"feature": text, "_type": "Sequence"}}
    assert features["x"] == {"feature": real, "length": 2, "_type": "Sequence"}


@pytest.mark.parametrize(
    ("contents", "name", "kind"),
    [
        ([b'{"a": 1}', b'{"b": 1}'], "x.json", "string"),
        ([b"1", b"1.5"], "x.json", "string"),
        ([b"1", b'"a"'], "x.json", "string"),
        ([b"null"], "x.json", "string"),
        ([b"[]"], "x.json", "string"),
        ([b"{}"], "x.json", "string"),
        ([b"18446744073709551616"], "x.json", "string"),
        ([b"\xff"], "x.json", "binary"),
        ([b"1.5", b"NaN"], "x", "double"),
        ([b"true"], "x", "bool"),
    ],
)
def test_json_is_parsed_where_nothing_changes(contents, name, kind, tmp_path):
    """JSON that one Arrow type gives back as it was is parsed; other JSON stays text, and what is no text bytes."""
    table = write(
        [sample(f"k{n}", **{"x.json": content}) for n, content in enumerate(contents)], tmp_path / "x.parquet"
    )
    assert str(table.schema.field(name).type) == kind


def test_numbers_that_would_change_stay_text(tmp_path):
    """A class of 007 or of 70 bits is kept as it is written."""
    table = write([sample("a", cls=b"007", big__cls=b"9" * 25)], tmp_path / "x.parquet")
    assert table.to_pylist() == [{"__key__": "a", "cls": "007", "big.cls": "9" * 25}]


@pytest.mark.parametrize(
    "later",
    [
        {"cls": b"x"},
        {"new__txt": b"x"},
        {"a__json": b"[1.5]"},
        {"t__txt": b"\xff"},
        {"i__jpg": JPG, "i__png": PNG},
        {"e__npy": npy_dumps(np.ones(3))},
    ],
)
def test_later_samples_that_do_not_fit(later, tmp_path):
    """They are errors with the sample's key and the way out, and nothing is written; or told and left out."""
    first = [
        sample("a", cls=b"1", a__json=b"[1]", t__txt=b"t", i__jpg=JPG, e__npy=npy_dumps(np.ones(2))),
        sample("a2", i__png=PNG),
    ]
    samples = [*first, sample("b", **later), sample("c", cls=b"2")]
    with pytest.raises(SampleError, match=r"--infer N.*key='b'"):
        write(samples, tmp_path / "x.parquet", infer=2)
    assert list(tmp_path.iterdir()) == []
    told = []
    table = write(samples, tmp_path / "x.parquet", infer=2, failed=lambda key, _: told.append(key))
    assert (told, table["__key__"].to_pylist()) == (["b"], ["a", "a2", "c"])


def test_raw_tables_keep_all_bytes(tmp_path):
    """--raw makes each field a column of bytes, and converting back gives every one under its name."""
    fields = {"a.json": b" {} ", "x.foo": b"1", "cls": b"07", "seg.png": PNG, "jpg": b"no image", "rgb": b""}
    write([sample("k", **fields)], tmp_path / "x.parquet", raw=True)
    (found,) = RowConverter().convert(read_table(str(tmp_path / "x.parquet"), "parquet", RowConverter()))
    assert (found.key, found.payloads()) == ("k", fields)


def test_numbered_tables(tmp_path):
    """A pattern begins the next file after so many rows; each is a whole table."""
    samples = [sample(f"k{number}", cls=b"1") for number in range(5)]
    columns, _ = infer_columns(samples)
    with TableWriter(str(tmp_path / "x-%d.parquet"), "parquet", columns, max_samples=2) as writer:
        for each in samples:
            writer.write(each)
    assert [count for _, count in writer.files] == [2, 2, 1]
    assert [pq.read_table(name)["__key__"].to_pylist() for name, _ in writer.files] == [
        ["k0", "k1"],
        ["k2", "k3"],
        ["k4"],
    ]
    with pytest.raises(UsageError, match="%05d"):
        TableWriter(str(tmp_path / "y.parquet"), "parquet", columns, max_samples=2)


def test_hf_folders(tmp_path):
    """A folder for load_from_disk is complete or absent, replaces only its like, and is read back."""
    samples = [sample(f"k{number}", i__jpg=JPG, cls=b"%d" % number) for number in range(5)]
    columns, rest = infer_columns(samples)
    folder = tmp_path / "d"
    assert write_hf_folder(rest, columns, str(folder), max_samples=2) == 5
    assert sorted(each.name for each in folder.iterdir()) == [
        "data-00000-of-00003.arrow",
        "data-00001-of-00003.arrow",
        "data-00002-of-00003.arrow",
        "dataset_info.json",
        "state.json",
    ]
    found = list(RowConverter().convert(read_hf_dataset(str(folder), None, RowConverter())))
    assert [(each.key, each.payloads()) for each in found] == [
        (f"k{number}", {"i.jpg": JPG, "cls": b"%d" % number}) for number in range(5)
    ]
    with pytest.raises(AlreadyExists):
        write_hf_folder(samples, columns, str(folder))

    def broken():
        yield samples[0]
        raise FormatError("no more")

    with pytest.raises(FormatError):
        write_hf_folder(broken(), columns, str(folder), force=True)
    assert len(list(read_hf_dataset(str(folder), None, RowConverter()))) == 5
    assert write_hf_folder([], columns, str(folder), force=True) == 0
    assert list(read_hf_dataset(str(folder), None, RowConverter())) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(AlreadyExists, match="no Hugging Face dataset"):
        write_hf_folder(samples, columns, str(tmp_path / "mine"), force=True)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_hf_splits_and_hostile_documents(tmp_path):
    """A split is chosen by name; a document cannot name files elsewhere."""
    for name in ("train", "test"):
        write_hf_folder([sample(name, cls=b"1")], infer_columns([sample(name, cls=b"1")])[0], str(tmp_path / name))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    keys = [values_of(row)["__key__"] for row in read_hf_dataset(str(tmp_path), "test", RowConverter())]
    assert keys == ["test"]
    with pytest.raises(UsageError, match="train, test"):
        list(read_hf_dataset(str(tmp_path), "dev", RowConverter()))
    for name in ("../test/data-00000-of-00001.arrow", "/etc/passwd", ""):
        (tmp_path / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(FormatError, match="no Arrow files"):
            list(read_hf_dataset(str(tmp_path), None, RowConverter()))


def test_hf_documents_name_no_commands(tmp_path, monkeypatch):
    """Files and splits that the documents of a dataset name are files and folders in it, whatever they are called."""
    monkeypatch.chdir(tmp_path)
    write_hf_folder([sample("k", cls=b"1")], infer_columns([sample("k", cls=b"1")])[0], "d")
    monkeypatch.chdir(tmp_path / "d")
    name = "pipe:touch made; cat data-00000-of-00001.arrow"
    Path("state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(NotFound):
        list(read_hf_dataset(".", None, RowConverter()))
    assert not Path("made").exists()
    Path("data-00000-of-00001.arrow").rename(name)
    assert len(list(read_hf_dataset(".", None, RowConverter()))) == 1
    for split in ("../d", "/d", ".", ""):
        Path("dataset_dict.json").write_text(json.dumps({"splits": [split]}))
        with pytest.raises(FormatError, match="no split of this folder"):
            list(read_hf_dataset(".", None, RowConverter()))


@pytest.mark.parametrize(
    ("kind", "value", "field", "content"),
    [
        (pa.string_view(), "é", "x.txt", "é".encode()),
        (pa.binary_view(), b"\xff", "x.bin", b"\xff"),
        (pa.list_(pa.string_view()), ["a"], "x.json", b'["a"]'),
        (pa.struct([("a", pa.string_view())]), {"a": "b"}, "x.json", b'{"a":"b"}'),
    ],
)
def test_dictionaries_and_runs_of_views(tmp_path, kind, value, field, content):
    """Types whose dictionaries and runs pyarrow does not expand itself are read too."""
    values = pa.array([value, None], kind)
    table = {
        "x": pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, None], pa.int8()), values),
        "y": pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int32()), values),
        "n": [0, 1, 2, 3],
    }
    with pa.ipc.new_file(tmp_path / "x.arrow", pa.table(table).schema) as file:
        file.write_table(pa.table(table))
    converter = RowConverter()
    found = [each.payloads() for each in converter.convert(read_table(str(tmp_path / "x.arrow"), "arrow", converter))]
    assert [each.get(field) for each in found] == [content, content, None, None]
    assert [each.get(field.replace("x", "y", 1)) for each in found] == [content, content, content, None]


def test_a_path_and_a_number_of_bytes_are_no_file(tmp_path):
    """A struct says something of a file where its bytes are a number: nothing is opened."""
    kind = pa.struct([("path", pa.string()), ("bytes", pa.int64())])
    found = column([{"path": "no.png", "bytes": 5}], kind, tmp_path)
    assert json.loads(found[0]["x.json"]) == {"path": "no.png", "bytes": 5}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.binary()), [[b"a"], [], [None]]),
        (pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), [[{"bytes": b"a", "path": "a"}], []]),
        (pa.struct([("a", pa.list_(pa.binary(1)))]), [{"a": [b"x"]}, {"a": None}]),
        (pa.map_(pa.string(), pa.large_binary()), [[("a", b"x")], []]),
    ],
)
def test_a_column_that_can_hold_bytes_is_one_field(tmp_path, kind, values):
    """The type chooses the extension, so a row whose list is empty has the same field as the others."""
    table = pa.table({"x": pa.array([*values, None], kind), "n": range(len(values) + 1)})
    found = [fields for _, fields in convert(table, tmp_path)]
    assert [list(fields) for fields in found] == [*([["x.mp", "n.cls"]] * len(values)), ["n.cls"]]
    assert [msgpack_loads(fields["x.mp"]) for fields in found[:-1]] == [
        [list(part) if isinstance(part, tuple) else part for part in value] if isinstance(value, list) else value
        for value in values
    ]


@pytest.mark.parametrize("target", ["x.parquet", "x.arrow", "hf"])
def test_files_keep_the_names_of_their_fields(tmp_path, target):
    """A field comes back under its own name where its bytes show another format, as files from the web often do."""
    samples = [
        sample("a", image__jpeg=JPG, img=PNG, x__avi=b"RIFF"), sample("b/c", image__jpeg=PNG, img=b"junk"),
        sample("d", image__webp=JPG),
    ]  # fmt: skip
    columns, rest = infer_columns(iter(samples))
    assert [column.hf_type for column in columns] == ["Image", "Image", "Video"]
    place = str(tmp_path / target)
    if target == "hf":
        write_hf_folder(rest, columns, place)
    else:
        with TableWriter(place, "parquet" if "parquet" in target else "arrow", columns) as writer:
            for each in rest:
                writer.write(each)
    found = list(Conversion(RowConverter()).read([place]))
    assert [(each.key, each.payloads()) for each in found] == [(each.key, each.payloads()) for each in samples]
    renamed = Conversion(RowConverter(rename={"picture": "image"})).read([place])
    assert [each.fields[0] for each in renamed] == ["picture.jpg", "picture.png", "picture.jpg"]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("target", ["x.parquet", "x.arrow", "hf"])
def test_names_that_are_not_utf8(tmp_path, target, raw):
    """A key or field whose name no table can hold is an error of its sample; the others are written."""
    samples = [sample("a", txt=b"1"), sample("b\udcff", txt=b"2", jpg=JPG), sample("c", **{"t\udcff": b"3"})]
    samples.append(sample("d", txt=b"4"))
    place, told = str(tmp_path / target), []

    def write(failed):
        columns, rest = infer_columns(iter(samples), raw=raw)
        if target == "hf":
            write_hf_folder(rest, columns, place, failed=failed)
            return
        with TableWriter(place, "parquet" if "parquet" in target else "arrow", columns, failed=failed) as writer:
            for each in rest:
                writer.write(each)

    with pytest.raises(SampleError, match=r"'b\\udcff' is not UTF-8.*--rekey.*--rename"):
        write(None)
    assert not list(tmp_path.iterdir())
    write(lambda key, error: told.append((key, type(error))))
    assert told == [("b\udcff", SampleError), ("c", SampleError)]
    found = Conversion(RowConverter()).read([place])
    assert [(each.key, each.payloads()) for each in found] == [("a", {"txt": b"1"}), ("d", {"txt": b"4"})]


@pytest.mark.parametrize(
    ("dtype", "kind", "values", "field"),
    [
        ("string", pa.string(), [["a", "b"]], "x.json"),
        ("bool", pa.bool_(), [[True, False]], "x.npy"),
        ("float16", pa.float16(), [[np.float16(1.5), np.float16(2)]], "x.npy"),
    ],
)
def test_arrays_of_what_is_no_number(tmp_path, dtype, kind, values, field):
    """A feature Array2D of texts is a list of lists; one of numbers an array."""
    features = {"x": {"shape": [1, 2], "dtype": dtype, "_type": "Array2D"}}
    table = pa.table({"x": pa.array([values], pa.list_(pa.list_(kind)))})
    path = str(tmp_path / "x.parquet")
    pq.write_table(table, path)
    converter = RowConverter()
    found = next(converter.convert(read_table(path, "parquet", converter, features=features))).payloads()
    assert list(found) == [field]
    value = json.loads(found[field]) if field == "x.json" else npy_loads(found[field]).tolist()
    assert value == values


def test_tables_called_like_commands(tmp_path, monkeypatch):
    """A table whose name looks like a command is read as a file, in a folder and where it is named."""
    monkeypatch.chdir(tmp_path)
    name = "pipe:touch made; cat x.parquet"
    pq.write_table(pa.table({"cls": [1]}), tmp_path / name)
    for source in (".", name):
        assert len(list(Conversion(RowConverter()).read([source]))) == 1
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_memory_is_bounded(tmp_path):
    """A table of 200 MB in small groups is read and written with a fraction of it, in Python and in Arrow."""
    payload = bytes(200_000)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    samples = (sample(f"k{number}", **{"x.bin": struct.pack("<I", number) + payload}) for number in range(1000))
    columns, rest = infer_columns(samples, 10)
    with TableWriter(str(tmp_path / "x.parquet"), "parquet", columns) as writer:
        for each in rest:
            writer.write(each)
    count = peak = 0
    for row in read_table(str(tmp_path / "x.parquet"), "parquet", RowConverter()):
        count += isinstance(row.values, dict) and len(row.values["x"]) == 200_004
        peak = max(peak, pa.total_allocated_bytes() - before)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1000
    assert most < 150 << 20
    assert peak < 150 << 20


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupt_while_a_hf_folder_is_replaced(tmp_path, monkeypatch, step):
    """Ctrl-C in either of the two steps leaves the old folder or the new one, and nothing beside it."""
    folder = tmp_path / "d"
    for key in ("old", "new"):
        columns, rest = infer_columns([sample(key, cls=b"1")])
        if key == "old":
            write_hf_folder(rest, columns, str(folder))
    rename, renamed = Path.rename, []

    def interrupt(self, target):
        made = rename(self, target)
        if self.is_dir() or Path(target).is_dir():
            renamed.append(made)
        if len(renamed) == step:
            renamed.append(made)
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_hf_folder(rest, columns, str(folder), force=True)
    rows = RowConverter().convert(read_hf_dataset(str(folder), None, RowConverter()))
    assert [row.key for row in rows] == [["old"], ["new"]][step - 1]
    assert [each.name for each in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("what", ["rename", "rmtree"])
def test_a_hf_folder_that_cannot_be_replaced(tmp_path, monkeypatch, what):
    """Until the new one is in its place the old one is there; what cannot be removed of it is told."""
    columns, rest = infer_columns([sample("old", cls=b"1")])
    folder = tmp_path / "d"
    write_hf_folder(rest, columns, str(folder))

    def keys():
        return [row.key for row in RowConverter().convert(read_hf_dataset(str(folder), None, RowConverter()))]

    assert keys() == ["old"]
    new = [sample("new", cls=b"2")]
    if what == "rename":
        rename = Path.rename

        def refuse(self, target):
            if self.name.endswith(".partial"):
                raise OSError("no")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(OSError, match="no"):
            write_hf_folder(new, columns, str(folder), force=True)
        assert keys() == ["old"]
        assert [each.name for each in tmp_path.iterdir()] == ["d"]
        return
    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **kw: None if str(path).endswith(".old") else rmtree(path, **kw))
    with pytest.warns(UserWarning, match="cannot be removed"):
        write_hf_folder(new, columns, str(folder), force=True)
    assert keys() == ["new"]


@pytest.mark.parametrize("there", [False, True])
def test_two_writers_of_one_hf_folder(tmp_path, there):
    """A dataset that another writer completes meanwhile is not replaced without force; the new one is kept."""
    folder = tmp_path / "d"
    if there:
        folder.mkdir()
    columns, rest = infer_columns([sample("mine", cls=b"1")])

    def keys(place):
        return [row.key for row in RowConverter().convert(read_hf_dataset(str(place), None, RowConverter()))]

    def samples():
        yield from rest
        write_hf_folder([sample("theirs", cls=b"2")], columns, str(folder))

    with pytest.raises(AlreadyExists, match="another writer"):
        write_hf_folder(samples(), columns, str(folder))
    kept = next(each for each in (folder if there else tmp_path).iterdir() if each.name.endswith(".partial"))
    assert (keys(kept), keys(folder)) == (["mine"], ["theirs"])


def test_an_error_of_the_system_names_the_hf_folder(tmp_path):
    """A folder that cannot be made is an error of the library, with its url."""
    (tmp_path / "file").touch()
    columns, rest = infer_columns([sample("k", cls=b"1")])
    with pytest.raises(SourceError, match="cannot write") as caught:
        write_hf_folder(rest, columns, str(tmp_path / "file/d"))
    assert caught.value.url == str(tmp_path / "file/d")
