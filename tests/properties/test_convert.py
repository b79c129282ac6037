"""Round trips of ``wds convert`` with samples of any kind: what comes back is what was there."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from webdataset.codecs.numpy_arrays import npy_dumps
from webdataset.reshaping.creation import make_member
from webdataset.reshaping.field_values import RowConverter, guess_extension
from webdataset.reshaping.folders import FolderWriter, read_folder
from webdataset.reshaping.table_reading import read_hf_dataset, read_table
from webdataset.reshaping.table_writing import TableWriter, infer_columns, write_hf_folder
from webdataset.samples.raw_samples import RawSample

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ARRAYS = [npy_dumps(np.ones(shape, kind)) for shape in ((2,), (1, 3), (), (0, 2)) for kind in ("f4", "u1", "f2", "?")]
CONTENTS = {
    "txt": st.text(st.characters(exclude_categories=["Cs"])).map(str.encode) | st.binary(max_size=5),
    "cls": st.integers().map(lambda number: b"%d" % number) | st.sampled_from([b"007", b"x", b"", b" 1", b"-0"]),
    "json": JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=5),
    "npy": st.sampled_from(ARRAYS),
    "png": st.binary(max_size=5).map(lambda rest: b"\x89PNG\r\n\x1a\n" + rest),
    "foo": st.binary(max_size=5),
    "bin": st.binary(max_size=5),
}
NAMES = st.sampled_from([f"{stem}{extension}" for stem in ("", "a.", "b.", "a.b.") for extension in CONTENTS])
FIELDS = st.lists(NAMES, min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: CONTENTS[name.rpartition(".")[2]] for name in names})
)
SAMPLES = st.lists(FIELDS, max_size=5)


def make(samples):
    """Raw samples of dictionaries."""
    return [
        RawSample(
            f"k{n}",
            tuple(make_member(f"k{n}.{name}", content) for name, content in fields.items()),
            tuple(fields),
            "x",
            n,
        )
        for n, fields in enumerate(samples)
    ]


def normalize(name, content):
    """The bytes of a field, with JSON as its value."""
    if name.endswith("json"):
        try:
            return json.dumps(json.loads(content))
        except ValueError:
            return content
    return content


def outline(samples):
    """Key and fields."""
    return {each.key: {name: normalize(name, content) for name, content in each.payloads().items()} for each in samples}


@settings(max_examples=150, deadline=None)
@given(SAMPLES, st.sampled_from(["parquet", "arrow", "hf"]), st.booleans())
def test_samples_through_tables(samples, kind, raw):
    """Shards to a table and back: the same keys, the same fields, the same values; with --raw the same bytes."""
    raws = make(samples)
    columns, rest = infer_columns(raws, raw=raw)
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "x"))
        rules = RowConverter()
        if kind == "hf":
            write_hf_folder(rest, columns, place)
            found = list(rules.convert(read_hf_dataset(place, None, rules)))
        else:
            with TableWriter(place, kind, columns) as writer:
                for each in rest:
                    writer.write(each)
            found = list(rules.convert(read_table(place, kind, rules)))
    assert outline(found) == outline(raws)
    assert not raw or [each.payloads() for each in found] == samples


@settings(max_examples=50, deadline=None)
@given(SAMPLES)
def test_samples_through_folders(samples):
    """Shards to a folder and back: the same bytes of every field."""
    raws = make(samples)
    with tempfile.TemporaryDirectory() as folder:
        FolderWriter(f"{folder}/x").write_all(raws)
        found = list(read_folder(f"{folder}/x"))
    assert {each.key: each.payloads() for each in found} == {each.key: each.payloads() for each in raws}


VALUES = {
    "s": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float64(), st.floats(allow_nan=False)),
    "y": (pa.bool_(), st.booleans()),
    # a column whose bytes are of several kinds becomes several fields, and so several columns
    "b": (pa.binary(), st.binary(max_size=20).filter(lambda content: guess_extension(content) is None)),
    "l": (pa.list_(pa.int64()), st.lists(st.integers(-5, 5), min_size=1, max_size=3)),
    "t": (pa.struct([("u", pa.string())]), st.fixed_dictionaries({"u": st.text("ab", max_size=3)})),
    "v": (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2)),
}


# pyarrow before 26 reads back no null among lists of one size
WHOLE = () if Version(pa.__version__).major >= 26 else ("v",)
ROWS = {name: kind if name in WHOLE else st.none() | kind for name, (_, kind) in VALUES.items()}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries(ROWS), max_size=6))
def test_tables_through_samples(rows):
    """A table to shards and back: the same rows under the same columns; null is null."""
    rows = [
        {"__key__": f"k{n}", "i": n, **{k: v for k, v in row.items() if v is not None or k != "i"}}
        for n, row in enumerate(rows)
    ]
    schema = pa.schema([("__key__", pa.string()), *((name, kind) for name, (kind, _) in VALUES.items())])
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_pylist(rows, schema), f"{folder}/x")
        rules = RowConverter()
        columns, rest = infer_columns(rules.convert(read_table(f"{folder}/x", "parquet", rules)))
        with TableWriter(f"{folder}/y", "parquet", columns) as writer:
            for each in rest:
                writer.write(each)
        found = pq.read_table(f"{folder}/y").to_pylist()
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    assert [{name: row.get(name) for name in schema.names} for row in found] == full
