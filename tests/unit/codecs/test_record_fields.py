"""msgpack and CBOR fields: published vectors, arrays, and what is refused."""

import datetime as dt
import decimal
import fractions
import json
import math
import uuid
from pathlib import Path

import numpy as np
import pytest

from webdataset.autodecode import Decoder
from webdataset.codecs.encoder import Encoder
from webdataset.core.errors import DecodingError, EncodingError

cbor2 = pytest.importorskip("cbor2")
msgpack = pytest.importorskip("msgpack")

VECTORS = Path(__file__).with_name("vectors")


def vectors(name):
    """Return the vectors of a file as (hexadecimal digits, expression)."""
    return [tuple(row) for row in json.loads((VECTORS / name).read_text("utf-8"))["vectors"]]


def valued(expression):
    """Return the value that an expression of the vectors means."""
    names = {
        "datetime": dt.datetime, "utc": dt.timezone.utc, "undefined": cbor2.undefined, "float": float,
        "tag": cbor2.CBORTag, "simple": cbor2.CBORSimpleValue, "ext": msgpack.ExtType, "time": msgpack.Timestamp,
    }  # fmt: skip
    return eval(expression, names)


def same(left, right):
    """Tell whether two values are equal, NaN and the sign of zero included."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    return type(left) is type(right) and left == right


def decoded(field, data):
    """Decode one field."""
    return Decoder(["auto"])({"__key__": "k", field: data})[field]


def encoded(field, value):
    """Encode one field."""
    return Encoder()({"__key__": "k", field: value})[field]


@pytest.mark.parametrize(("digits", "expression"), vectors("cbor.json"))
def test_cbor_vectors(digits, expression):
    """The examples of RFC 8949 decode to their values, which encode to something that does too."""
    value = decoded("cbor", bytes.fromhex(digits))
    assert same(value, valued(expression))
    if not isinstance(value, bytes):
        assert same(decoded("cbor", encoded("cbor", value)), value)
    assert same(cbor2.loads(bytes.fromhex(digits)), value)


@pytest.mark.parametrize(("digits", "expression"), vectors("msgpack.json"))
def test_msgpack_vectors(digits, expression):
    """Every format of the msgpack specification decodes to its value, or to an error where it is none."""
    data = bytes.fromhex(digits)
    if expression == "ERROR":
        with pytest.raises(DecodingError):
            decoded("mp", data)
        return
    value = decoded("mp", data)
    assert same(value, valued(expression))
    if not isinstance(value, bytes):
        assert same(decoded("mp", encoded("mp", value)), value)


ARRAYS = {
    "u1": np.arange(5, dtype="u1"), "i1": np.arange(-2, 3, dtype="i1"), "u2": np.arange(5, dtype="u2"),
    "i8": np.arange(6).reshape(2, 3), "f2": np.ones((2, 2), "f2"), "f4": np.zeros((0, 3), "f4"),
    "f8": np.array(3.5), "u8": np.array([2**64 - 1], "u8"), "bool": np.array([[True, False], [True, True]]),
    "big-endian": np.arange(4, dtype=">u4"), "transposed": np.arange(6, dtype="i4").reshape(2, 3).T,
    "empty bool": np.zeros((0,), bool), "empty bool rows": np.zeros((0, 3), bool),
}  # fmt: skip


@pytest.mark.parametrize("field", ["cbor", "mp", "msg", "msgpack"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(field, name):
    """Arrays stand in both formats, alone and inside of other values, and come back writable."""
    array = ARRAYS[name]
    read = decoded(field, encoded(field, {"a": [array, 1]}))["a"][0]
    assert read.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert read.shape == array.shape
    assert np.array_equal(read, array)
    assert read.flags.writeable


@pytest.mark.parametrize(
    "value", [np.array(["ab"]), np.array(["2020-01-01"], "M8[D]"), np.array([1j])], ids=lambda v: v.dtype.kind
)
def test_arrays_of_other_types_in_msgpack(value):
    """Text, times and complex numbers are arrays that .npy, and so msgpack, holds; CBOR refuses them."""
    assert np.array_equal(decoded("mp", encoded("mp", value)), value)
    with pytest.raises(EncodingError, match="booleans, integers and floats"):
        encoded("cbor", value)


@pytest.mark.parametrize("field", ["cbor", "mp"])
def test_numpy_numbers_and_objects(field):
    """Numbers become plain numbers; objects, structures and unknown types are refused, with the field's name."""
    values = [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("x")]
    assert decoded(field, encoded(field, values)) == [0.5, 3, True, "x"]
    for value in (np.array([None]), object(), np.complex64(1j), np.zeros(1, [("a", "i4"), ("b", "O")])):
        with pytest.raises(EncodingError) as failure:
            encoded(field, [value])
        assert failure.value.field == field


def test_typed_arrays_of_others():
    """RFC 8746 in both byte orders, clamped, with dimensions in rows and columns, and lists of numbers."""
    tag = cbor2.CBORTag
    for number, kind in (
        (65, ">u2"),
        (69, "<u2"),
        (74, ">i4"),
        (78, "<i4"),
        (82, ">f8"),
        (86, "<f8"),
        (80, ">f2"),
        (68, "u1"),
    ):
        array = np.arange(3).astype(kind)
        read = decoded("cbor", cbor2.dumps(tag(number, array.tobytes())))
        assert read.tolist() == [0, 1, 2]
        assert read.dtype.isnative
        assert read.dtype == np.dtype(kind).newbyteorder("=")
    rows, columns = (decoded("cbor", cbor2.dumps(tag(n, [[2, 3], [1, 2, 3, 4, 5, 6]]))) for n in (40, 1040))
    assert rows.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert columns.tolist() == [[1, 3, 5], [2, 4, 6]]
    assert decoded("cbor", cbor2.dumps(tag(41, [1.5, 2]))).tolist() == [1.5, 2]
    unknown = decoded("cbor", cbor2.dumps(tag(87, bytes(16))))
    assert isinstance(unknown, cbor2.CBORTag)


@pytest.mark.parametrize(
    ("tag", "content", "words"),
    [
        (69, b"abc", "3 bytes long"), (69, "text", "not made of bytes"), (40, [[2, 2], [1, 2, 3]], "do not make"),
        (40, [[-1, 3], [1, 2, 3]], "do not make"), (40, [1], "two parts"), (41, ["a"], "numbers or booleans"),
        (41, [2**70], "beyond 64 bits"), (4, [1, "x"], "two integers"), (4, [1, 2**20000], "more than 16384 bits"),
        (30, [1, 0], "not positive"), (30, [2**20000, 3], "more than"), (5, [2**60, 3], "out of range"),
        (28, [], "shared references"), (29, 0, "shared references"), (4, [2**70, 3], "out of range"),
    ],
)  # fmt: skip
def test_tags_that_are_refused(tag, content, words):
    """Tags whose reading would not be bounded, or that do not fit, are errors that say why."""
    with pytest.raises(DecodingError, match=words):
        decoded("cbor", cbor2.dumps(cbor2.CBORTag(tag, content)))


def test_tags_that_are_left_alone():
    """Patterns are not compiled and messages not parsed; other kinds of values come back as they were."""
    assert decoded("cbor", cbor2.dumps(cbor2.CBORTag(35, "(a"))) == cbor2.CBORTag(35, "(a")
    assert decoded("cbor", cbor2.dumps(cbor2.CBORTag(36, "a: b"))) == cbor2.CBORTag(36, "a: b")
    for value in (decimal.Decimal("-1.50"), fractions.Fraction(-3, 4), uuid.UUID(int=7), {1, 2}, {1: 2, "a": None},
                  dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), -(2**90), decimal.Decimal("1e500")):  # fmt: skip
        assert same(decoded("cbor", encoded("cbor", value)), value)


@pytest.mark.parametrize("field", ["cbor", "mp"])
def test_whole_values_only(field):
    """A value cut anywhere, nothing at all, and bytes behind a value are errors."""
    data = encoded(field, {"a": [1, 2.5, "text", b"bytes"], "b": {"c": None}, 7: 300})
    assert decoded(field, data)[7] == 300
    for end in range(len(data)):
        with pytest.raises(DecodingError):
            decoded(field, data[:end])
    with pytest.raises(DecodingError):
        decoded(field, data + b"\x01")


@pytest.mark.parametrize(
    ("data", "said"), [(b"\x91" * 100_000, "deeper than msgpack reads"), (b"\xc1", "no msgpack: a byte")]
)
def test_what_msgpack_refuses_without_words_is_said(data, said):
    """The package raises errors without a text; ours say what is wrong, and chain them."""
    with pytest.raises(DecodingError, match=said) as caught:
        decoded("msgpack", data)
    assert isinstance(caught.value.__cause__, (msgpack.StackError, msgpack.FormatError))
    assert caught.value.field == "msgpack"


@pytest.mark.parametrize("value", [{(1, 2): 3}, [1.5, {"a": [{"b": {(): 1}, "c": 2}]}], ({(1,): 1},)])
def test_tuples_as_keys_in_msgpack(value):
    """They would be written as lists, which cannot be read as keys: both ways, the error says what to write."""
    with pytest.raises(EncodingError, match="a list of pairs, keys that are texts, or CBOR"):
        encoded("mp", value)
    with pytest.raises(DecodingError, match="a list of pairs, keys that are texts, or CBOR"):
        decoded("mp", msgpack.packb(value))
    others = {"a": {1: (2, 3), None: [{b"x": {1.5: True}}]}}
    assert decoded("mp", encoded("mp", others)) == {"a": {1: [2, 3], None: [{b"x": {1.5: True}}]}}


def test_without_the_msgpack_package(monkeypatch):
    """With msgspec alone the same is read and written, arrays included."""
    pytest.importorskip("msgspec")
    from webdataset.codecs import msgpack_cbor

    value = {"a": np.arange(3), "b": [1, 2.5, b"x"], "c": "y"}
    plain = encoded("mp", value)
    found = msgpack_cbor.import_if_available
    monkeypatch.setattr(msgpack_cbor, "import_if_available", lambda name: None if name == "msgpack" else found(name))
    assert encoded("mp", value) == plain
    read = decoded("mp", plain)
    assert read["a"].tolist() == [0, 1, 2]
    assert read["b"] == [1, 2.5, b"x"]


def test_an_old_cbor2_is_refused(monkeypatch):
    """cbor2 before 6.2 cannot be bounded, and the message says what to install."""
    from webdataset.codecs import msgpack_cbor
    from webdataset.core.errors import MissingExtra

    msgpack_cbor.cbor2.cache_clear()
    monkeypatch.setattr(msgpack_cbor.importlib.metadata, "version", lambda name: "5.6.5")
    with pytest.raises(MissingExtra, match=r"6\.2 or later"):
        decoded("cbor", b"\x01")
    monkeypatch.undo()
    assert decoded("cbor", b"\x01") == 1


@pytest.mark.torch
def test_tensors():
    """Tensors are written as arrays."""
    torch = pytest.importorskip("torch")
    for field in ("cbor", "mp"):
        assert decoded(field, encoded(field, torch.arange(4))).tolist() == [0, 1, 2, 3]
