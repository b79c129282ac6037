"""Pickles that do no harm load, at every protocol; trust levels; additions to the allow-list."""

import collections
import datetime as dt
import decimal
import fractions
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import uuid

import numpy as np
import pytest

import webdataset as wds
from webdataset.autodecode import Decoder
from webdataset.codecs import safe_pickle
from webdataset.codecs.pickle_allowlist import ADDED
from webdataset.codecs.pickle_allowlist import describe_value as shortened
from webdataset.codecs.safe_pickle import PLAIN, SafeGlobals, add_safe_globals, unpickle_loads
from webdataset.core.errors import DecodingError, UnsafeContent
from webdataset.core.trust import security_override


class Point:
    """A class of a user's own."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x


class Slotted:
    """One with slots and keyword arguments."""

    __slots__ = ("a",)

    def __new__(cls, *, a=0):
        made = super().__new__(cls)
        made.a = a
        return made

    def __getnewargs_ex__(self):
        return (), {"a": self.a}


class Names(list):
    """One that derives from a builtin."""


STRUCTURE = np.dtype([("a", "f4"), ("b", "i8", (2,))])
ALIGNED = np.dtype([("a", "u1"), ("b", "f8")], align=True)

BENIGN = {
    "none": None,
    "numbers": [1, -(2**70), 1.5, True, complex(1, 2)],
    "text": "é\ud800",
    "bytes": [b"", b"abc\xff"],
    "bytearray": bytearray(b"xyz"),
    "empty bytearray": bytearray(),
    "containers": {"a": [1, (2, 3), {4}, frozenset({5})]},
    "range": [range(10), slice(1, 2), range(10**12)],
    "ordered": collections.OrderedDict(a=1, b=2),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "counters": collections.defaultdict(collections.Counter, a=collections.Counter("aab")),
    "deque": collections.deque([1, 2], 5),
    "counter": collections.Counter("hello"),
    "times": [
        dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone.utc),
        dt.date(2024, 1, 2),
        dt.time(1),
        dt.timedelta(1),
        dt.timezone(dt.timedelta(hours=2)),
    ],
    "decimal": decimal.Decimal("1.50"),
    "fraction": fractions.Fraction(-1, 3),
    "uuid": uuid.UUID(int=5),
    "paths": [pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("a/b")],
    "types": {"a": int, "b": np.float32, "c": dict},
    "array": np.arange(6.0).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "strided": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    "empty array": np.zeros((0, 3), np.float16),
    "zero-dimensional": np.array(5),
    "big-endian": np.arange(3, dtype=">i4"),
    "bools": np.array([True, False]),
    "strings": np.array(["a", "bcd"]),
    "byte strings": np.array([b"a", b"bcd"]),
    "dates": np.array(["2024-01-01", "NaT"], "M8[ns]"),
    "durations": np.array([1, 2], "m8[25s]"),
    "structure": np.zeros(3, STRUCTURE),
    "aligned": np.zeros(3, ALIGNED),
    "void": np.zeros(2, "V5"),
    "objects": np.array([{"a": 1}, [2], None], dtype=object),
    "object fields": np.array([(1, [2])], dtype=[("a", "i4"), ("b", "O")]),
    "scalars": [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("é"), np.bytes_(b"x"), np.datetime64(5, "s")],
    "record": np.zeros(1, STRUCTURE)[0],
    "dtypes": [np.dtype("f4"), np.dtype(">u2"), STRUCTURE, ALIGNED, np.dtype("M8[D]"), np.dtype("O")],
    "metadata": np.dtype("f8", metadata={"unit": "m"}),
    "masked": np.ma.array([1.0, 2.0], mask=[False, True], fill_value=9.0),
}


def shown(value):
    """Return a value's repr, deep enough to compare any of the above."""
    if isinstance(value, np.ma.MaskedArray):
        return repr((value, value.fill_value, value.dtype.str))
    if isinstance(value, np.ndarray):
        return repr((value, value.dtype.descr, value.flags.f_contiguous, value.flags.aligned))
    return repr((type(value), value))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", BENIGN)
def test_benign_pickles_load(kind, protocol):
    """Every ordinary kind of object loads under the default trust, as pickle.loads would load it."""
    data = pickle.dumps(BENIGN[kind], protocol)
    loaded = unpickle_loads(data)
    assert shown(loaded) == shown(pickle.loads(data))
    if kind != "big-endian":  # numpy itself brings these to the machine's order
        assert shown(loaded) == shown(BENIGN[kind])
    if isinstance(loaded, np.ndarray):
        assert loaded.flags.writeable == pickle.loads(data).flags.writeable


@pytest.mark.parametrize("protocol", range(6))
def test_pictures_load(protocol):
    """Pillow images inside pickles load."""
    image = pytest.importorskip("PIL.Image").new("RGB", (5, 4), (1, 2, 3))
    palette = image.convert("P")
    for picture in (image, palette):
        loaded = unpickle_loads(pickle.dumps(picture, protocol))
        assert (loaded.mode, loaded.size, loaded.tobytes()) == (picture.mode, picture.size, picture.tobytes())


@pytest.mark.torch
@pytest.mark.parametrize("protocol", range(2, 6))
def test_tensors_load(protocol):
    """Tensors inside pickles load, of every usual type, with their storage shared as it was."""
    torch = pytest.importorskip("torch")
    whole = torch.arange(6.0)
    values = {
        "pair": (whole, whole[2:4]),
        "kinds": [torch.ones(2, 3, dtype=kind) for kind in (torch.uint8, torch.int64, torch.bfloat16, torch.bool)],
        "gradient": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "rest": (torch.float32, torch.Size([1, 2]), torch.device("cpu")),
    }
    loaded = unpickle_loads(pickle.dumps(values, protocol))
    assert torch.equal(loaded["pair"][1], whole[2:4])
    assert [str(tensor.dtype) for tensor in loaded["kinds"]] == [str(tensor.dtype) for tensor in values["kinds"]]
    assert loaded["gradient"].requires_grad
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    assert loaded["rest"] == values["rest"]


def test_globals_without_care_cannot_be_changed():
    """Whatever the C unpickler may name is immutable: no pickle can set an attribute of it."""
    immutable = 1 << 8
    for kind in PLAIN.values():
        assert kind.__flags__ & immutable, kind


def test_plain_pickles_are_read_by_the_c_unpickler(monkeypatch):
    """Containers, numbers and times never reach the slower careful reader."""
    monkeypatch.setattr(safe_pickle.pickle_checks, "CheckedUnpickler", None)
    for kind in ("none", "numbers", "text", "containers", "ordered", "defaultdict", "deque", "times", "decimal"):
        assert unpickle_loads(pickle.dumps(BENIGN[kind])) == BENIGN[kind]


def test_own_classes_are_refused_with_the_ways_out():
    """The error names the class, the place and what to do."""
    sample = {"__key__": "007", "__url__": "s.tar", "x.pyd": pickle.dumps(Point(1))}
    with pytest.raises(UnsafeContent) as failure:
        Decoder([])(sample)
    error = failure.value
    name = f"{Point.__module__}.Point"
    for part in (f"needs {name}", f"wds.add_safe_globals([{name}])", "trust='full'", "WDS_TRUST=full"):
        assert part in str(error)
    assert (error.url, error.key, error.field) == ("s.tar", "007", "x.pyd")
    assert isinstance(error, (ValueError, pickle.UnpicklingError))


@pytest.mark.parametrize("function", [os.system, eval, exec, subprocess.run, shutil.rmtree])
def test_commands_are_not_offered_for_permission(function):
    """What runs code is refused as that; add_safe_globals is not suggested."""
    with pytest.raises(UnsafeContent, match="would run a command") as failure:
        unpickle_loads(pickle.dumps(function))
    assert "add_safe_globals" not in str(failure.value)


@pytest.mark.parametrize("protocol", range(6))
def test_added_classes_load(protocol):
    """add_safe_globals allows classes; as a context manager it takes them back."""
    values = [Point(3), Names(["a"])] + ([Slotted(a=4)] if protocol > 3 else [])
    data = pickle.dumps(values, protocol)
    with add_safe_globals([Point, Names, Slotted]) as added:
        assert isinstance(added, SafeGlobals)
        loaded = unpickle_loads(data)
        assert loaded[:2] == values[:2]
        assert [type(value) for value in loaded] == [type(value) for value in values]
        with add_safe_globals([Point]):
            pass
        assert unpickle_loads(data)[0] == Point(3)
    assert not ADDED
    with pytest.raises(UnsafeContent):
        unpickle_loads(data)


def test_nested_classes_can_be_added():
    """A class inside a class has a dotted name; allowed by itself, it loads."""

    class Local:
        pass

    Local.__qualname__ = "Outer.Local"
    with add_safe_globals([Local]):
        data = b"\x80\x04" + pickle.SHORT_BINUNICODE + bytes([len(__name__)]) + __name__.encode()
        data += pickle.SHORT_BINUNICODE + bytes([11]) + b"Outer.Local" + pickle.STACK_GLOBAL + b")\x81."
        assert type(unpickle_loads(data)) is Local


def test_trust_full_loads_anything(monkeypatch):
    """By argument, by decoder, by environment."""
    data = pickle.dumps(Point(2))
    assert unpickle_loads(data, trust="full") == Point(2)
    assert Decoder([], trust="full")({"pyd": data})["pyd"] == Point(2)
    monkeypatch.setenv("WDS_TRUST", "full")
    assert Decoder([])({"pyd": data})["pyd"] == Point(2)
    with pytest.raises(UnsafeContent):
        Decoder([], trust="safe")({"pyd": data})


@pytest.mark.parametrize("extension", ["pyd", "pkl", "pickle"])
def test_strict_refuses_all_pickles(extension, monkeypatch):
    """WDS_SECURE, the switch and trust='strict' refuse even a number, with a ValueError, at the next sample."""
    decoder = Decoder([])
    sample = {extension: pickle.dumps(1)}
    assert decoder(sample)[extension] == 1
    with pytest.raises(ValueError, match="strict"):
        Decoder([], trust="strict")(sample)
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(ValueError, match="WDS_SECURE"):
        decoder(sample)
    monkeypatch.delenv("WDS_SECURE")
    monkeypatch.setattr(security_override, "replaced", True)
    with pytest.raises(ValueError, match="strict"):
        Decoder([], trust="full")(sample)


def test_an_unknown_level_is_an_error():
    """A misspelt level trusts nothing."""
    with pytest.raises(DecodingError, match="'total'"):
        Decoder([], trust="total")({"pyd": pickle.dumps(1)})


@pytest.mark.limited
@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps([1, 2, 3])[:-3], b"\x80\x04", b"."])
def test_damaged_pickles_are_errors(data):
    """What is no whole pickle is a DecodingError."""
    with pytest.raises(DecodingError):
        Decoder([])({"pyd": data})


def test_out_of_band_and_persistent_objects_are_errors():
    """A pickle cannot refer to objects outside of it."""
    for data in (b"\x80\x05\x97.", b"\x80\x02X\x01\x00\x00\x00aQ.", b"Pa\n."):
        with pytest.raises(DecodingError):
            Decoder([])({"pyd": data})


def test_loading_plain_pickles_imports_neither_numpy_nor_torch(tmp_path):
    """The allow-list names numpy, torch and Pillow without importing them."""
    program = (
        "import pickle, sys\n"
        "from webdataset.autodecode import Decoder\n"
        "import collections\n"
        "Decoder([])({'pyd': pickle.dumps([1, collections.Counter('a')], 0)})\n"
        "print([m for m in ('numpy', 'torch', 'PIL', 'msgspec') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


def test_the_package_offers_add_safe_globals():
    """The name that error messages recommend exists."""
    assert wds.add_safe_globals is add_safe_globals


def test_values_are_shown_shortened():
    """Texts to sixty characters, classes by name, of others the kind alone."""
    assert shortened("x" * 100) == repr("x" * 60)
    assert shortened(b"y" * 61) == repr(b"y" * 60)
    assert shortened(int) == "builtins.int"
    assert shortened([1, 2]) == "a value of type list"
