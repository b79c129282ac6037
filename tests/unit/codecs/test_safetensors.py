"""safetensors fields, as arrays and as tensors."""

import json
import subprocess
import sys

import numpy as np
import pytest

import webdataset as wds
from webdataset.codecs import default_handlers, encode_based_on_extension1
from webdataset.core.errors import DecodingError, EncodingError

pytest.importorskip("safetensors")

KINDS = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"]


def encode(value):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, "safetensors", default_handlers)


def decode(data, *handlers):
    """Decode one field."""
    return wds.Decoder(*handlers, "auto")({"__key__": "k", "safetensors": data})["safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_come_back(kind):
    """Every type, any shape, order and byte order; no dimensions and no elements included."""
    start = np.arange(12).astype(kind)
    values = {
        "plain": start.reshape(3, 4),
        "turned": start.reshape(3, 4).T,
        "thinned": start[::3],
        "scalar": start[5].reshape(()),
        "empty": start[:0].reshape(0, 3),
        "foreign": start.astype(start.dtype.newbyteorder(">")),
    }
    decoded = decode(encode(values))
    assert list(decoded) == sorted(values)
    for name, array in decoded.items():
        assert array.dtype == np.dtype(kind)
        assert array.flags.writeable
        assert array.shape == values[name].shape
        assert np.array_equal(array, values[name])


def test_other_readers_agree():
    """The library's own reader and writer understand ours."""
    from safetensors.numpy import load, save

    values = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([1, 2], np.uint8)}
    theirs = load(encode(values))
    assert all(np.array_equal(theirs[name], values[name]) for name in values)
    assert np.array_equal(decode(save(values))["b"], values["b"])
    assert np.array_equal(decode(encode({"a": [1.5, 2]}))["a"], [1.5, 2])


@pytest.mark.torch
def test_tensors_come_back():
    """torch_safetensors gives tensors, bfloat16 and shared memory included; arrays and tensors mix."""
    torch = pytest.importorskip("torch")
    base = torch.arange(12).reshape(3, 4)
    values = {"a": base, "b": base.T, "c": torch.ones(2, dtype=torch.bfloat16), "d": np.arange(3)}
    values["e"] = torch.nn.Parameter(torch.zeros(()))
    decoded = decode(encode(values), wds.torch_safetensors)
    assert list(decoded) == list("abcde")
    assert all(torch.equal(decoded[name], torch.as_tensor(values[name])) for name in values)
    with pytest.raises(DecodingError, match=r"'c'.*BF16.*torch_safetensors"):
        decode(encode(values))
    assert np.array_equal(decode(encode({"a": base.T}))["a"], base.T.numpy())
    with pytest.raises(EncodingError):
        encode({"a": base, "b": "text"})


@pytest.mark.parametrize(
    "value", [[np.zeros(2)], {1: np.zeros(2)}, {"a": object()}, {"a": "x"}, {"a": np.zeros(1, "M8[s]")}]
)
def test_what_is_no_dict_of_arrays_is_an_error(value):
    """The error says what is wanted."""
    with pytest.raises(EncodingError, match="safetensors"):
        encode(value)


def header(fields, content=b""):
    """Return a file with a header of one's own."""
    text = json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + content


@pytest.mark.limited
@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(8),
        b"\xff" * 50,
        header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, bytes(4)),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(9)),
        header({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, bytes(8)),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
    ],
    ids=range(8),
)
def test_damaged_files_are_errors(data):
    """Impossible shapes, types and lengths are DecodingErrors that name key and field."""
    with pytest.raises(DecodingError) as failure:
        decode(data)
    assert (failure.value.key, failure.value.field) == ("k", "safetensors")


def test_without_the_package_the_error_names_the_extra(tmp_path):
    """Reading and writing say what to install."""
    program = (
        "import sys; sys.modules['safetensors'] = None; sys.modules['safetensors.numpy'] = None\n"
        "import webdataset as wds\n"
        "from webdataset.codecs import make_encoder\n"
        "from webdataset.core.errors import MissingExtra\n"
        "read, write = wds.Decoder('auto'), make_encoder(True)\n"
        "for run in (lambda: read({'safetensors': b'x'}), lambda: write({'safetensors': {}})):\n"
        "    try:\n"
        "        run()\n"
        "    except MissingExtra as error:\n"
        "        assert '[safetensors]' in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
