"""Properties of the codecs: what is written reads back; JSON and arrays equal their reference; damage is an error."""

import gzip
import io
import json
import math
import pickle
import pickletools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from webdataset.autodecode import Decoder
from webdataset.codecs import Encoder
from webdataset.codecs.json_codec import json_dumps, json_loads
from webdataset.codecs.safe_pickle import has_bounded_memo, unpickle_loads
from webdataset.core.errors import CodecError, DecodingError

encode, decode = Encoder(), Decoder("rgb8", "auto")

TEXT = st.text(max_size=40)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=25,
)
STARTS = [b"", b"\x80\x02", b"\x80\x04", b"cnumpy\ndtype\n", b"ccollections\nCounter\n"]
JSON_LIKE = st.text('[]{}",:0.eE+-tfnu\\ 1')
VALUES = st.recursive(
    LEAVES | st.binary(max_size=20) | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
UNICODE = st.text(st.characters(codec="utf-8"), max_size=20)
RECORDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | UNICODE | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(UNICODE, inner, max_size=4),
    max_leaves=20,
)
NUMBERS = arrays.arrays(
    arrays.boolean_dtypes() | arrays.integer_dtypes() | arrays.floating_dtypes() | arrays.complex_number_dtypes(),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
PIXELS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))


def back(field, value):
    """Write a value and read it again."""
    return decode(encode({"__key__": "k", field: value}))[field]


@given(st.integers(), st.sampled_from("cls cls2 class count index inx id cls.gz a.b.cls".split()))
def test_whole_numbers_come_back(value, field):
    """Any integer, under every extension for them."""
    if abs(value) < 10**4000:
        assert back(field, value) == value


@given(
    st.text(st.characters(codec="utf-8")),
    st.sampled_from("txt text transcript html htm txt.gz x.txt txt.gz.gz".split()),
)
def test_text_comes_back(value, field):
    """Any text that UTF-8 has."""
    assert back(field, value) == value


@given(st.binary(), st.sampled_from("bin unknown x.bin".split()))
def test_bytes_come_back(value, field):
    """Any bytes."""
    assert back(field, value) == value


@given(st.binary() | st.binary().map(lambda noise: b"\x1f\x8b\x08" + noise))
def test_compressed_bytes_come_back(value):
    """Any bytes are compressed and come back, and are not compressed again."""
    packed = encode({"bin.gz": value})["bin.gz"]
    assert gzip.decompress(packed) == value
    assert encode({"bin.gz": packed})["bin.gz"] == packed


@settings(max_examples=300)
@given(JSON, st.sampled_from(["json", "jsn", "json.gz"]))
def test_json_comes_back(value, field):
    """Any JSON value; a str that is JSON text itself is written as it is."""
    if isinstance(value, str) and _is_json(value):
        assert back(field, value) == json.loads(value) or math.isnan(json.loads(value))
    else:
        assert back(field, value) == value


def _is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@settings(max_examples=300)
@given(JSON | st.floats())
def test_json_is_written_as_json_writes_it(value):
    """The same value as the standard library's text holds, NaN included."""
    if not isinstance(value, str):
        assert repr(json.loads(json_dumps(value))) == repr(json.loads(json.dumps(value)))


@settings(max_examples=500)
@given(st.binary(max_size=30) | JSON.map(json.dumps).map(str.encode) | JSON_LIKE.map(str.encode), st.data())
def test_json_is_read_as_json_reads_it(data, draw):
    """Same value or an error on both sides, for texts whole and damaged."""
    if data and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw.draw(st.binary(max_size=2)) + data[at + 1 :]
    try:
        expected = repr(json.loads(data))
    except (ValueError, RecursionError):
        with pytest.raises((ValueError, RecursionError)):
            json_loads(data)
    else:
        assert repr(json_loads(data)) == expected


@given(NUMBERS, st.booleans())
def test_arrays_come_back(value, fortran):
    """Any array of numbers, in either order, as numpy reads it."""
    value = np.asfortranarray(value) if fortran else value
    read = back("npy", value)
    stream = io.BytesIO()
    np.save(stream, value)
    expected = np.load(io.BytesIO(stream.getvalue()))
    assert (read.dtype, read.shape, read.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    assert read.strides == expected.strides or read.size < 2
    assert read.flags.writeable


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_characters="\0/\\:"), min_size=1, max_size=9), NUMBERS, max_size=3
    )
)
def test_dicts_of_arrays_come_back(value):
    """Any names, any arrays."""
    names = {name for name in value if not name.endswith(".npy")}
    read = back("npz", {name: value[name] for name in names})
    assert set(read) == names
    assert all(read[name].tobytes() == value[name].tobytes() for name in names)


@pytest.mark.limited
@given(st.binary(max_size=200), st.data())
def test_damaged_arrays_are_errors_or_arrays(noise, draw):
    """Damage gives an array or an error, and takes no time or memory to speak of."""
    stream = io.BytesIO()
    np.save(stream, np.arange(5))
    data = bytearray(stream.getvalue())
    at = draw.draw(st.integers(0, len(data)))
    data[at : at + len(noise)] = noise
    try:
        read = Decoder(["auto"])({"npy": bytes(data)})["npy"]
    except DecodingError:
        return
    assert isinstance(read, np.ndarray)


@given(VALUES, st.integers(0, 5))
def test_pickles_of_plain_values_come_back(value, protocol):
    """Any nesting of plain values, at any protocol, as pickle.loads gives it."""
    data = pickle.dumps(value, protocol)
    assert repr(unpickle_loads(data)) == repr(pickle.loads(data))


@given(VALUES, st.sampled_from(["pyd", "pickle", "pkl"]))
def test_pickled_values_come_back(value, field):
    """Written and read under every extension for pickles; bytes are taken for a pickle already."""
    if not isinstance(value, bytes):
        assert repr(back(field, value)) == repr(value)


@pytest.mark.limited
@settings(max_examples=300)
@given(VALUES | TEXT.map(lambda text: text * 20), st.integers(0, 5), st.binary(max_size=5), st.data())
def test_the_memos_largest_index_is_told_as_pickletools_tells_it(value, protocol, noise, draw):
    """Honest pickles are modest; of damaged ones, none is called modest that stores beyond its length."""
    data = pickle.dumps(value, protocol)
    assert has_bounded_memo(data)
    at = draw.draw(st.integers(0, len(data) - 1))
    data = data[:at] + noise + data[at + len(noise) :]
    try:
        stored = [argument for opcode, argument, _ in pickletools.genops(data) if "PUT" in opcode.name]
    except Exception:  # not a pickle
        return
    if has_bounded_memo(data):
        assert max(stored, default=0) <= max(len(data), 2**24)


@pytest.mark.limited
@settings(max_examples=500)
@given(
    st.binary(max_size=60),
    st.sampled_from(STARTS),
)
def test_no_bytes_make_pickles_misbehave(noise, start):
    """Random opcodes give a value or an error, through either reader."""
    try:
        Decoder(["auto"])({"pyd": start + noise + b"."})
    except CodecError:
        return


@given(RECORDS, st.sampled_from(["mp", "msg", "msgpack", "cbor"]))
def test_records_come_back(value, field):
    """Any value that msgpack and CBOR have; bytes are taken for a record already."""
    pytest.importorskip("cbor2" if field == "cbor" else "msgspec")
    if not isinstance(value, bytes):
        assert back(field, value) == value


@given(PIXELS, st.sampled_from("png ppm tif tiff webp png.gz".split()))
@settings(deadline=None)
def test_pixels_come_back(value, field):
    """Any picture, in every lossless format."""
    assert np.array_equal(back(field, value), value)


@given(st.dictionaries(st.text(max_size=9), st.binary(max_size=30), max_size=5))
def test_decoding_gives_a_sample_of_the_same_names_or_an_error(sample):
    """Whatever the names and bytes are, a decoder gives the same names in order, or a CodecError."""
    try:
        decoded = Decoder(["auto"])(sample)
    except (CodecError, ImportError):
        return
    assert list(decoded) == list(sample)


@given(st.sampled_from(["jpg", "jpeg", "img", "image"]), st.integers(0, 255), st.integers(1, 40), st.integers(1, 40))
@settings(deadline=None)
def test_jpegs_of_one_colour_come_back(field, level, height, width):
    """JPEG keeps an even grey to within one level."""
    value = np.full((height, width, 3), level, np.uint8)
    read = back(field, value)
    assert np.abs(read.astype(int) - value).max() <= 1
