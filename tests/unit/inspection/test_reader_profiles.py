"""What profiles predict of every shape; ``make interop`` compares it with the readers themselves."""

import numpy as np
import pytest

import webdataset as wds
from support import reader_shapes
from webdataset.core.errors import WebDatasetError
from webdataset.inspection.huggingface_profile import find_loss, find_type, merge_types

SHAPES = reader_shapes.shapes()
# by profile and prediction, the shapes; all others are read as this library reads them
PREDICTED = {
    ("dali", "differs"): """
        interleaved | interleaved late | duplicate | duplicate late | upper case | mixed case | no dot |
        only no dot | empty extension | joined | hard link | sparse | empty shard
    """,
    ("dali", "refused"): """
        zst | bz2 | cut | cut in payload | bad header | nothing | gzip
    """,
    ("energon", "differs"): """
        duplicate | duplicate late | upper case | mixed case | joined | bad header | hard link
    """,
    ("energon", "refused"): """
        interleaved | interleaved late | only no dot | zst | bz2 | not utf8 name | cut | cut in payload |
        empty shard | nothing | gzip
    """,
    ("grain", "refused"): """
        interleaved | interleaved late | duplicate | duplicate late | zst | bz2 | no end mark | cut | cut in
        payload | bad header | nothing | gzip
    """,
    ("hf", "differs"): """
        late field | upper case | mixed case | hidden in folder | metadata | json late key | json late float
        | json number for text | json late empty | joined | bad header | hard link | second has more
    """,
    ("hf", "refused"): """
        first lacks | third lacks | interleaved | duplicate | duplicate late | only no dot | empty extension
        | bad json | bad json late | bad text | class name | class name late | json types | json int and
        float | json late type | json kinds | json mixed list | json null, then number | json late list |
        json large number | arrays of other types | zst | bad npy | bad gz field | not utf8 name | cut | cut
        in payload | empty shard | nothing | second bad
    """,
    ("ray", "differs"): """
        upper case | joined | bad header | hard link
    """,
    ("ray", "refused"): """
        interleaved | interleaved late | duplicate | duplicate late | mixed case | bad json | bad json late
        | bad text | class name | class name late | bad npy | pickle | broken picture | not utf8 name | cut
        | cut in payload | nothing | second bad
    """,
}
PROFILES = ("hf", "ray", "dali", "energon", "grain")


def listed(profile, prediction):
    """The shapes of which something is predicted."""
    names = " ".join(PREDICTED.get((profile, prediction), "").split()).split("|")
    return {name.strip() for name in names if name.strip()}


@pytest.mark.parametrize("shape", SHAPES)
def test_predictions(shape, tmp_path):
    """Each shape is refused, read otherwise, or read alike, by each reader; a finding names the reader."""
    paths = [str(path) for path in reader_shapes.write(SHAPES[shape], tmp_path)]
    report = wds.check_shards(paths, profiles=PROFILES, digests=False)
    for profile in PROFILES:
        refused = bool(report.counts.get(f"refused-{profile}"))
        assert refused is (shape in listed(profile, "refused")), profile
        if not refused:
            assert bool(report.counts.get(f"differs-{profile}")) is (shape in listed(profile, "differs")), profile
    messages = {finding.message.partition(":")[0] for finding in report.findings if "-hf" in finding.code}
    assert messages <= {"Hugging Face datasets"}


@pytest.mark.filterwarnings("ignore:.*members are left out:UserWarning")
@pytest.mark.parametrize("shape", SHAPES)
def test_grain(shape, tmp_path):
    """What is predicted of Grain over an index is what the index does."""
    paths = [str(path) for path in reader_shapes.write(SHAPES[shape], tmp_path)]
    if shape in listed("grain", "refused"):
        with pytest.raises(WebDatasetError):
            len(wds.IndexedDataset(paths))
        return
    with wds.IndexedDataset(paths) as dataset:
        found = [dataset[number] for number in range(len(dataset))]
    wanted = list(wds.WebDataset(paths, shardshuffle=False, empty_check=False))
    assert [sample["__key__"] for sample in found] == [sample["__key__"] for sample in wanted]


def test_every_shape_is_known():
    """No name in the table is mistyped, and there are enough shapes."""
    names = {name for profile in PROFILES for kind in ("refused", "differs") for name in listed(profile, kind)}
    assert names <= set(SHAPES)
    assert len(SHAPES) >= 60


def test_types_of_values():
    """Types are found and merged as Arrow does: numbers of one list go together, those of two samples do not."""
    assert find_type({"a": [1, 2.5], "b": None}) == {"a": ["float"], "b": "null"}
    assert merge_types({"a": "int"}, {"b": ["str"]}) == {"a": "int", "b": ["str"]}
    assert merge_types(["null"], ["int"]) == ["int"]
    for one, other in (("int", "float"), ({"a": "int"}, ["int"]), ("bool", "int")):
        with pytest.raises(Exception, match=" and "):
            merge_types(one, other)


@pytest.mark.parametrize(
    "value",
    ["\ud800", {"\udfff": 1}, ["a\ud800"], 1 << 63]
    + [np.zeros(2, dtype) for dtype in (">i4", ">f8", "c8", "V3", "M8[D]", "M8[h]", "m8[D]", [("a", "i4")])],
)
def test_values_that_arrow_does_not_hold(value):
    """Halves of surrogate pairs, complex numbers, other byte orders, days and records are refused."""
    with pytest.raises(Exception, match=r"cannot be UTF-8|Arrow holds no arrays of|does not fit 64 bits"):
        find_type(value)


def test_arrays_that_arrow_holds():
    """Numbers, texts and times of a resolution that Arrow has; a single number has no byte order."""
    kinds = ["?", "i1", "u8", "f2", "f8", "M8[s]", "m8[ns]", "U3", "S3"]
    assert all(find_type(np.zeros((2, 2), kind)) == [[str(np.dtype(kind))]] for kind in kinds)
    assert find_type(np.zeros((), ">i4")) == "int32"


def test_what_is_lost_of_later_values():
    """New names are dropped, fractions become whole numbers, texts stay; what does not fit raises."""
    assert find_type([float("nan"), float("inf"), 1]) == ["float"]
    assert find_loss("float", find_type(float("nan"))) is None
    assert find_loss("bool", "str") == "str becomes true or false"
    with pytest.raises(Exception, match="not finite where the first samples have int"):
        find_loss("int", find_type(float("nan")))
    assert find_loss({"a": "int"}, {"a": "int"}) is None
    assert find_loss({"a": "int", "b": "str"}, {"a": "null"}) is None
    assert find_loss({"a": "int"}, {"a": "int", "b": "str"}) == "'b' is dropped"
    assert find_loss(["int"], ["float"]) == "a fraction becomes a whole number"
    assert find_loss("str", "int") == "int becomes text"
    for feature, found in (("int", "str"), ("int", ["int"]), ({"a": "int"}, "int"), ("null", "int")):
        with pytest.raises(Exception, match="where the first samples have"):
            find_loss(feature, found)
