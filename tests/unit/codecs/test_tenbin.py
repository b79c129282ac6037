"""tenbin: every type and shape there and back, both byte orders, and no length believed."""

import io
import struct
from typing import Any

import numpy as np
import pytest

from webdataset import tenbin
from webdataset.autodecode import Decoder
from webdataset.core.errors import EncodingError, FormatError, Truncated, UsageError
from webdataset.writer import tenbin_dumps

KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
SHAPES = [(), (0,), (3,), (2, 0), (2, 3), (1,) * 9, (2, 1, 5)]


def big_endian(arrays, infos=None):
    """Return what a writer on a big-endian machine makes of arrays."""
    out = b""
    for array, info in zip(arrays, infos or [""] * len(arrays)):
        code = tenbin.long_to_short[array.dtype.name].encode()
        header = code.ljust(8, b"\0") + info.encode().ljust(8, b"\0")
        header += struct.pack(f">{1 + array.ndim}q", array.ndim, *array.shape)
        for chunk in (header, array.astype(array.dtype.newbyteorder(">")).tobytes()):
            out += b"~TenBin~" + struct.pack(">q", len(chunk)) + chunk + bytes(-len(chunk) % 64)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", "<>")
def test_arrays_there_and_back(kind, shape, order):
    """Any type, shape and byte order of the array, and of the machine that wrote it."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(order + kind)
    for written in (tenbin.encode_buffer([array]), big_endian([array])):
        (read,) = tenbin.decode_buffer(written)
        assert read.dtype == np.dtype(kind)
        assert read.dtype.isnative
        assert read.shape == shape
        assert np.array_equal(read, array)
    (read,) = tenbin.read(io.BytesIO(big_endian([array])))
    assert np.array_equal(read, array)


def test_layout():
    """Three float32 and an info of two letters take 160 bytes, laid out as published."""
    written = tenbin.encode_buffer([np.arange(3, dtype="f4")], infos=["ab"])
    assert isinstance(written, bytearray)
    header = b"f4".ljust(8, b"\0") + b"ab".ljust(8, b"\0") + struct.pack("<2q", 1, 3)
    numbers = np.arange(3, dtype="<f4").tobytes()
    assert written == b"".join(
        b"~TenBin~" + struct.pack("<q", len(chunk)) + chunk.ljust(64, b"\0") for chunk in (header, numbers)
    )


def test_layouts_in_memory_do_not_matter():
    """Transposed, strided and Fortran arrays, numbers and nested lists are written by value."""
    array = np.arange(24).reshape(2, 3, 4)
    given: list[Any] = [array.T, array[:, ::2], np.asfortranarray(array), np.float32(2), [[1, 2], [3, 4]], 7]
    for read, wanted in zip(tenbin.decode_buffer(tenbin.encode_buffer(given)), given, strict=True):
        assert np.array_equal(read, wanted)


def test_decoding_copies_nothing():
    """Arrays are views of the buffer, writable where it is."""
    written = tenbin.encode_buffer([np.zeros(1000), np.ones(3)])
    first, second = tenbin.decode_buffer(written)
    first[:] = 5
    assert tenbin.decode_buffer(written)[0][7] == 5
    assert np.shares_memory(first, np.frombuffer(written, np.uint8))
    assert second.flags.writeable
    assert not tenbin.decode_buffer(bytes(written))[0].flags.writeable


def test_infos():
    """Infos are returned, or checked, which the published versions never could."""
    arrays = [np.zeros(1), np.ones(2)]
    written = tenbin.encode_buffer(arrays, infos=["a", "image"])
    assert tenbin.decode_buffer(written, infos=True)[1] == ["a", "image"]
    assert len(tenbin.decode_buffer(written, infos=["a", "image"])) == 2
    assert tenbin.check_infos(arrays, ["a"], False) is arrays
    with pytest.raises(FormatError, match="not \\['a', 'x'\\]"):
        tenbin.decode_buffer(written, infos=["a", "x"])
    with pytest.raises(EncodingError, match="2 arrays were given with 1 infos"):
        tenbin.encode_buffer(arrays, infos=["a"])


@pytest.mark.parametrize("info", ["123456789", "é", "a\0b"])
def test_infos_that_do_not_fit(info):
    """Infos are at most eight ASCII characters; others are an error, not a crash."""
    with pytest.raises(EncodingError, match="at most 8 ASCII characters"):
        tenbin.encode_buffer([np.zeros(1)], infos=[info])


@pytest.mark.parametrize(
    "value",
    [np.array([True]), np.array([1j]), np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]"), np.zeros((1,) * 10),
     [[1], [2, 3]]],
    ids=lambda value: str(getattr(value, "dtype", "ragged")),
)  # fmt: skip
def test_arrays_that_tenbin_does_not_hold(value):
    """Other types, ten dimensions and ragged lists are refused; booleans with advice."""
    with pytest.raises(EncodingError, match=r"uint8|holds|become"):
        tenbin.encode_buffer([value])


def test_what_is_no_list_is_refused():
    """An array by itself would be taken apart row by row."""
    with pytest.raises(EncodingError, match="requires list"):
        tenbin.encode_buffer(np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(EncodingError) as failure:
        tenbin.encode_list([np.zeros(1), np.array([True])])
    assert failure.value.__notes__ == ["in array 1 of the list"]


def test_streams_and_files(tmp_path):
    """Arrays are written to and read from streams one by one, and files have their ending."""
    stream = io.BytesIO()
    tenbin.write(stream, [np.arange(3), np.arange(4.0)], infos=["a", "b"])
    stream.seek(0)
    assert tenbin.read(stream, n=1)[0].tolist() == [0, 1, 2]
    assert tenbin.read(stream, infos=True)[1] == ["b"]
    assert tenbin.read(stream) == []
    name = str(tmp_path / "x.ten")
    tenbin.save(name, np.arange(5), np.arange(2), infos=["p", "q"])
    arrays, infos = tenbin.load(name, infos=True)
    assert (len(arrays), infos) == (2, ["p", "q"])
    arrays[0][0] = 9
    for action in (lambda: tenbin.save(str(tmp_path / "x.bin"), np.arange(5)), lambda: tenbin.load("x.bin")):
        with pytest.raises(UsageError, match=r"should end in \.ten"):
            action()
    tenbin.save(str(tmp_path / "x.bin"), np.arange(5), nocheck=True)
    assert tenbin.load(str(tmp_path / "x.bin"), nocheck=True)[0].tolist() == [0, 1, 2, 3, 4]


def test_chunks():
    """Chunks hold any bytes, and the helpers of the module agree with each other."""
    chunks = [b"", b"abc", bytes(64), np.arange(5), bytearray(65)]
    written = tenbin.encode_chunks(chunks)
    assert [bytes(chunk) for chunk in tenbin.decode_chunks(written)] == [bytes(tenbin.bytedata(c)) for c in chunks]
    stream = io.BytesIO()
    for chunk in chunks:
        tenbin.write_chunk(stream, chunk)
    assert stream.getvalue() == written
    stream.seek(0)
    assert [len(tenbin.read_chunk(stream)) for _ in chunks] == [tenbin.bytelen(chunk) for chunk in chunks]
    assert tenbin.read_chunk(stream) is None
    assert [tenbin.roundup(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert tenbin.unstr64(tenbin.str64("f4")) == "f4"
    assert tenbin.magic == tenbin.str64(tenbin.magic_str)
    assert tenbin.decode_header(tenbin.encode_header(np.zeros((2, 3), "i2"), "x")) == ((2, 3), np.dtype("i2"), "x")
    with pytest.raises(UsageError, match="not str"):
        tenbin.bytelen("text")


def test_checking_input_types():
    """64-bit arrays are refused unless allowed, uint32 is not any more."""
    tenbin.check_acceptable_input_type([np.zeros(1, "u4"), np.zeros(1, "f4")], False)
    tenbin.check_acceptable_input_type([np.zeros(1)], True)
    for array in (np.zeros(1), np.zeros(1, bool)):
        with pytest.raises(EncodingError):
            tenbin.check_acceptable_input_type([array], False)


def test_every_cut_is_noticed():
    """Bytes that end early are an error wherever they end, but between arrays."""
    written = bytes(tenbin.encode_buffer([np.arange(3.0), np.arange(70)]))
    whole = len(tenbin.encode_buffer([np.arange(3.0)]))
    for end in range(1, len(written)):
        if end == whole:
            assert len(tenbin.decode_buffer(written[:end])) == 1
            continue
        for read in (tenbin.decode_buffer, lambda cut: tenbin.read(io.BytesIO(cut))):
            with pytest.raises(FormatError):
                read(written[:end])
    with pytest.raises(Truncated):
        tenbin.decode_buffer(written[:-1])


def test_mutations_do_no_harm():
    """Any changed byte gives arrays or an error of ours, in no more memory than there are bytes."""
    written = tenbin.encode_buffer([np.arange(3.0), np.arange(4, dtype="u2")], infos=["a", "b"])
    for position in range(len(written)):
        for value in (0, 1, 127, 255):
            changed = bytearray(written)
            changed[position] = value
            try:
                arrays = tenbin.decode_buffer(changed)
            except FormatError:
                continue
            assert sum(array.nbytes for array in arrays) <= len(written)


def test_fields():
    """The three extensions decode to lists of arrays; an array alone or a list is encoded."""
    array = np.arange(4, dtype="u4")
    for name in ("ten", "tb", "tenbin", "x.ten"):
        for value in (array, [array], (array,)):
            (read,) = Decoder(["auto"])({"__key__": "k", name: tenbin_dumps(value)})[name]
            assert read.dtype == np.uint32
            assert read.tolist() == array.tolist()
    assert isinstance(tenbin_dumps(array), bytes)


@pytest.mark.torch
def test_tensors():
    """Tensors are written as the arrays that they are."""
    torch = pytest.importorskip("torch")
    (read,) = tenbin.decode_buffer(tenbin.encode_buffer([torch.arange(6).reshape(2, 3)]))
    assert read.tolist() == [[0, 1, 2], [3, 4, 5]]
