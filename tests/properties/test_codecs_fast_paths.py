"""Fast paths give what the plain ways give: isal and zlib, one-step zst, own npy parser, simplejpeg, msgspec."""

import bz2
import gzip
import io
import json
import lzma

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from webdataset.codecs import compression as module
from webdataset.codecs import numpy_arrays as own_arrays
from webdataset.codecs.compression import decompress, is_compressed
from webdataset.codecs.images import decode
from webdataset.codecs.json_codec import json_loads, json_value_dumps
from webdataset.core.errors import BadCompression

CONTENT = st.binary(max_size=400) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 5000)
)
LEVELS = st.integers(0, 9)


def outcome(function, *values):
    """Return what a function gives, or that it fails."""
    try:
        return function(*values)
    except Exception:  # whatever a library raises on damage
        return "an error"


def damaged(draw, data):
    """Draw one change of some bytes: cut, overwritten, extended, or none."""
    at = draw.draw(st.integers(0, len(data)))
    noise = draw.draw(st.binary(max_size=4))
    return draw.draw(st.sampled_from([data, data[:at], data[:at] + noise + data[at + len(noise) :], data + noise]))


def members(draw, contents, compress):
    """Compress each content on its own and join."""
    return b"".join(compress(content) for content in contents)


@settings(max_examples=300, deadline=None)
@given(st.lists(CONTENT, min_size=1, max_size=3), LEVELS, st.data())
def test_gzip_by_isal_is_gzip_by_zlib(contents, level, draw):
    """Members of any content and level, whole or damaged: zlib in one step, isal in pieces and gzip agree."""
    isal = pytest.importorskip("isal.igzip_lib")
    assert module._make_decompressor("gz")._make().__class__ is isal.IgzipDecompressor
    data = damaged(draw, members(draw, contents, lambda content: gzip.compress(content, level)))

    def by_isal(data):
        return module._join_pieces(module._decompress_pieces(data, "gz", 1 << 30)) if data else b""

    expected = outcome(gzip.decompress, data)
    if data and expected != "an error":
        assert outcome(by_isal, data) == expected
        assert outcome(decompress, data, "gz") == expected
        assert is_compressed(data, "gz")
    elif data:
        assert outcome(decompress, data, "gz") == outcome(by_isal, data)


@settings(max_examples=200, deadline=None)
@given(CONTENT, st.integers(1, 6), st.booleans(), st.booleans(), st.data())
def test_zst_in_one_step_is_zst_in_pieces(content, level, sized, checked, draw):
    """Frames that tell their size are read in one step, as in pieces; damage is an error both ways."""
    library = pytest.importorskip("zstandard")
    packer = library.ZstdCompressor(level=level, write_content_size=sized, write_checksum=checked)
    whole = packer.compress(content)
    assert decompress(whole, "zst") == content
    assert (module._decompress_sized_zst(whole, 1 << 30) is not None) == (sized and content != b"")
    assert decompress(whole + whole, "zst") == content * 2
    data = damaged(draw, whole)
    if data:
        pieces = outcome(lambda: module._join_pieces(module._decompress_pieces(data, "zst", 1 << 30)))
        assert outcome(decompress, data, "zst") == pieces


@settings(max_examples=100, deadline=None)
@given(st.lists(CONTENT, min_size=1, max_size=3), st.sampled_from([("bz2", bz2), ("xz", lzma)]), st.data())
def test_bz2_and_xz_are_what_the_standard_library_reads(contents, kind, draw):
    """Several streams, and damage, as the library's own one-step function has it; trailing junk is an error."""
    name, library = kind
    data = members(draw, contents, library.compress)
    assert decompress(data, name) == b"".join(contents)
    cut = data[: draw.draw(st.integers(1, len(data) - 1))]
    if outcome(library.decompress, cut) == "an error":
        with pytest.raises(BadCompression):
            decompress(cut, name)


@settings(max_examples=150, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.dtype(kind) for kind in "u1 <i2 >i2 <f4 >f8 ? c16 U3 S2 M8[s]".split()]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        fill=st.nothing(),
    ),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.data(),
)
def test_npy_is_read_as_numpy_reads_it(array, version, draw):
    """Any type, byte order and version, whole or damaged: the array of numpy, to the bit, or an error as there."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=False)
    data = damaged(draw, stream.getvalue())
    expected = outcome(lambda: np.load(io.BytesIO(data), allow_pickle=False))
    read = outcome(own_arrays.npy_loads, data)
    if isinstance(expected, str) or isinstance(read, str):
        assert isinstance(read, str) == isinstance(expected, str)
    else:
        assert (read.dtype, read.shape, read.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(0, 2**32 - 1),
    st.integers(1, 100),
    st.sampled_from(["RGB", "L", "CMYK", "YCbCr"]),
    st.sampled_from([{}, {"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 1}]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["RGB", "L", "RGBA"]),
    st.data(),
)
def test_jpegs_by_simplejpeg_are_jpegs_by_pillow(height, width, seed, quality, mode, options, sampling, wanted, draw):
    """Any JPEG, grey, colour, CMYK, baseline or progressive, whole or damaged: the pixels of Pillow, or its refusal."""
    pytest.importorskip("simplejpeg")
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, "JPEG", quality=quality, subsampling=sampling, **options)
    data = damaged(draw, stream.getvalue())
    expected, again = (outcome(lambda: np.array(decode.decode_picture(data, wanted))) for _ in range(2))
    assume(np.array_equal(expected, again))  # of some damage libjpeg makes something else every time
    read = outcome(decode.decode_pixels, data, wanted)
    if isinstance(expected, str):
        assert isinstance(read, str)
    else:
        assert np.array_equal(read, expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300)
@given(JSON, st.booleans())
def test_json_by_msgspec_is_json_by_json(value, ascii_only):
    """Integers of any size, NaN, surrogates, repeated keys: read and written as the standard library does."""
    pytest.importorskip("msgspec")
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert repr(json_loads(text)) == repr(json.loads(text))
    twice = b'{"a": 0, "a": ' + text + b"}"
    assert repr(json_loads(twice)) == repr(json.loads(twice))
    assert repr(json.loads(json_value_dumps(value))) == repr(json.loads(json.dumps(value)))
