"""npy and npz fields."""

import io
import pickle
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.autodecode import Decoder
from webdataset.codecs import numpy_arrays
from webdataset.codecs.numpy_arrays import npy_dumps, npy_loads, npz_dumps, npz_loads
from webdataset.codecs.safetensors_codec import safetensors_loads
from webdataset.core.errors import DecodingError, EncodingError

ARRAYS = {
    "float": np.arange(6.0).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4)),
    "big-endian": np.arange(4, dtype=">f4"),
    "zero-dimensional": np.array(3),
    "empty": np.zeros((0, 5), "u1"),
    "strings": np.array(["a", "bcd"]),
    "empty strings": np.array(["", ""]),
    "bytes": np.array([b"ab", b""]),
    "bools": np.array([[True], [False]]),
    "complex": np.array([1 + 2j]),
    "half": np.ones((3,), np.float16),
    "dates": np.array(["2024-01-01"], "M8[D]"),
    "structure": np.zeros(3, [("a", "f4"), ("é", "i8", (2,))]),
    "void": np.zeros(2, "V7"),
    "one column": np.ones((4, 1)),
    "large": np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8),
}


def saved(array, **options):
    """Return what numpy.save writes."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


def same(one, other):
    """Tell whether two arrays are equal in value, type, shape and order."""
    orders = (one.flags.c_contiguous, one.flags.f_contiguous) == (other.flags.c_contiguous, other.flags.f_contiguous)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes() and orders


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_is_read_as_numpy_reads_it(name, version):
    """Equal to numpy.load, writable, owning its memory; again from the remembered header."""
    if name == "structure" and version != (3, 0):
        pytest.skip("numpy writes these names in version 3 only")
    data = saved(ARRAYS[name], version=version)
    expected = np.load(io.BytesIO(data))
    for _ in range(2):
        array = npy_loads(data)
        assert same(array, expected)
        assert array.flags.writeable
        assert array.base is None or array.base.flags.owndata
    assert same(npy_loads(data + b"more"), expected)


def test_decoded_arrays_do_not_share_memory():
    """Writing to one decoded array changes no other."""
    data = saved(np.zeros(3))
    one, other = npy_loads(data), npy_loads(data)
    one[:] = 1
    assert not other.any()
    assert not np.shares_memory(one, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("cut", [0, 5, 7, 9, 50, 127, 128, 130, 151])
def test_npy_cut_short_is_an_error(cut):
    """Cut in the magic, the header or the content."""
    data = saved(np.arange(3.0))
    assert len(data) == 152
    with pytest.raises(DecodingError):
        Decoder([])({"npy": data[:cut]})


def test_headers_are_remembered_and_bounded(monkeypatch):
    """A parsed header is kept, but not without end."""
    monkeypatch.setattr(numpy_arrays, "_MOST_HEADERS", 3)
    numpy_arrays._headers.clear()
    for length in range(1, 10):
        assert npy_loads(saved(np.zeros(length))).shape == (length,)
    assert len(numpy_arrays._headers) <= 3


def test_npz_is_a_dict():
    """Npz fields are dicts as dict(numpy.load(...)), members that are no arrays included."""
    import zipfile

    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3), b=np.asfortranarray(np.ones((2, 2))))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("note.txt", b"hello")
    data = stream.getvalue()
    expected = dict(np.load(io.BytesIO(data)))
    decoded = npz_loads(data)
    assert list(decoded) == list(expected)
    assert all(same(decoded[name], expected[name]) for name in ("a", "b"))
    assert decoded["note.txt"] == expected["note.txt"] == b"hello"
    with pytest.raises(DecodingError):
        Decoder([])({"npz": data[:-30]})


def test_arrays_come_back():
    """What is written reads back, through our reader and numpy's."""
    for array in ARRAYS.values():
        data = npy_dumps(array)
        assert same(npy_loads(data), array)
        assert same(np.load(io.BytesIO(data)), array)
    packed = npz_dumps({"file": np.arange(3), "a/b": np.ones(2), "scalar": 3})
    assert packed == npz_dumps({"file": np.arange(3), "a/b": np.ones(2), "scalar": 3})
    assert {name: array.tolist() for name, array in np.load(io.BytesIO(packed)).items()} == {
        "file": [0, 1, 2],
        "a/b": [1, 1],
        "scalar": 3,
    }


def test_numbers_and_lists_become_arrays():
    """Scalars and nested lists of numbers are written, too."""
    assert npy_loads(npy_dumps(np.float32(1.5))) == np.float32(1.5)
    assert npy_loads(npy_dumps([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "value",
    [None, object(), {"a": 1}, [[1], [2, 3]], np.array([{}], dtype=object)],
    ids=lambda value: type(value).__name__,
)
def test_objects_are_not_written(value):
    """What would need a pickle is an error."""
    with pytest.raises(EncodingError):
        npy_dumps(value)
    for bad in (value, [1, 2], {1: np.ones(2)}):
        with pytest.raises(EncodingError):
            npz_dumps(bad if bad is not value else {"a": value})  # type: ignore[arg-type]


@pytest.mark.torch
def test_tensors_become_arrays():
    """Tensors with gradients are written; types that numpy has not are errors."""
    torch = pytest.importorskip("torch")
    assert npy_loads(npy_dumps(torch.ones(2, 3, requires_grad=True))).tolist() == [[1] * 3] * 2
    assert npz_loads(npz_dumps({"a": torch.arange(2)}))["a"].tolist() == [0, 1]
    with pytest.raises(EncodingError, match="bfloat16"):
        npy_dumps(torch.ones(2, dtype=torch.bfloat16))


def test_a_parser_that_another_thread_disturbed_is_asked_again(monkeypatch):
    """CPython 3.11's ast can fail where two threads use it: that says nothing about the array."""
    payload = npy_dumps(np.arange(77.0).reshape(7, 11))
    read, calls = np.lib.format.read_array_header_1_0, []

    def disturbed(stream):
        calls.append(stream)
        if len(calls) == 1:
            raise SystemError("AST constructor recursion depth mismatch")
        return read(stream)

    monkeypatch.setattr(numpy_arrays, "_headers", {})
    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", disturbed)
    assert np.array_equal(npy_loads(payload), np.arange(77.0).reshape(7, 11))
    assert len(calls) == 2


def test_npz_fields_are_used_as_files_of_numpy():
    """Programs that were written for ``numpy.load`` list the files and use ``with``; others take it for a dict."""
    with npz_loads(npz_dumps({"b": np.arange(2), "a": np.ones(1)})) as arrays:
        assert arrays.files == ["b", "a"]
    arrays.close()
    assert isinstance(arrays, dict)
    again = pickle.loads(pickle.dumps(arrays))
    assert again.files == ["b", "a"]
    assert again["b"].tolist() == [0, 1]


@pytest.mark.parametrize("field", ["npy", "npz", "cbor", "mp", "safetensors", "ten"])
def test_a_mask_that_is_not_written_is_told(field, tmp_path, recwarn):
    """No format has one: hidden values would come back as values without a word. A mask that hides none is none."""
    for mask, told in ((False, 0), ([False, True], 1)):
        array = np.ma.array([1.0, 2.0], mask=mask, dtype=np.float32)
        value = {"npz": {"a": array}, "safetensors": {"a": array}, "ten": [array]}.get(field, array)
        with wds.TarWriter(f"{tmp_path}/a.tar") as writer:
            writer.write({"__key__": "0", field: value})
        assert sum("mask" in str(each.message) for each in recwarn) == told
        (sample,) = wds.WebDataset(f"{tmp_path}/a.tar", shardshuffle=False).decode()
        found: Any = safetensors_loads(sample[field]) if field == "safetensors" else sample[field]
        found = found["a"] if field in ("npz", "safetensors") else found[0] if field == "ten" else found
        assert found.tolist() == [1, 2]
        assert type(found) is np.ndarray
