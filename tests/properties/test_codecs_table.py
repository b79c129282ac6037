"""Every extension that the encoders know comes back: one table, which fails when an extension has no law here."""

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import webdataset as wds
from webdataset.codecs import default_handlers, encode_based_on_extension1
from webdataset.codecs.compression import COMPRESSORS
from webdataset.codecs.decoder import Decoder
from webdataset.codecs.encoder import Encoder

UNICODE = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.text(st.characters(codec="ascii", exclude_characters="\0/\\:"), min_size=1, max_size=9).filter(
    lambda name: not name.endswith(".npy") and name != "__metadata__"
)
NUMBERS = arrays.arrays(
    arrays.boolean_dtypes() | arrays.integer_dtypes() | arrays.floating_dtypes(sizes=(16, 32, 64)),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | UNICODE
PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(UNICODE, inner, max_size=4),
    max_leaves=15,
)
LISTS = st.lists(PLAIN, max_size=5)
PRINTABLE = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff"), max_size=20
)
YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | PRINTABLE | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PRINTABLE, inner, max_size=4),
    max_leaves=15,
).map(lambda value: [value])
SIDES = st.integers(1, 12)


@st.composite
def pictures(draw, channels=(None, 1, 3, 4), floats=True, colours=None):
    """Draw an image array; floats are whole steps of a 255th."""
    height, width, depth = draw(SIDES), draw(SIDES), draw(st.sampled_from(channels))
    shape = (height, width) if depth is None else (height, width, depth)
    levels = st.integers(0, 255) if colours is None else st.sampled_from(colours)
    picture = draw(arrays.arrays(np.uint8, shape, elements=levels))
    if floats and draw(st.booleans()):
        return picture / draw(st.sampled_from([np.float32(255), np.float64(255)]))
    return picture


def smooth(channels, height, width, seed):
    """Return a picture without fine detail, which lossy formats keep."""
    y, x = np.mgrid[0:height, 0:width]
    plane = (x * (seed % 5) + y * (seed % 7) + seed % 100) % 256
    return np.stack([np.clip(plane + 20 * c, 0, 255) for c in range(channels)], -1).astype(np.uint8)


SMOOTH = st.builds(smooth, st.just(3), st.integers(16, 40), st.integers(16, 40), st.integers(0, 1000))
EVEN = st.builds(
    lambda height, width, level, channels: np.full((height, width, *channels), level, np.uint8),
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 255), st.sampled_from([(), (1,), (3,)]),
)  # fmt: skip
FILMS = st.builds(
    lambda count, height, width, level: np.stack(
        [np.full((height, width, 3), (level + k) % 200 + 20, np.uint8) for k in range(count)]
    ),
    st.integers(1, 6), st.integers(16, 40), st.integers(16, 40), st.integers(0, 100),
)  # fmt: skip


@st.composite
def sounds(draw, kinds=("f4", "f8", "i2", "i4", "u1")):
    """Draw samples of a kind, and a rate."""
    kind = np.dtype(draw(st.sampled_from(kinds)))
    shape = draw(st.sampled_from([(1, 50), (2, 300), (80,), (6, 20), (1, 1)]))
    if kind.kind == "f":
        elements = st.floats(-1, 1, width=32)
    else:
        elements = st.integers(np.iinfo(kind).min >> 8, np.iinfo(kind).max >> 8).map(lambda step: step * 256)
        elements = st.integers(0, 255) if kind == np.uint8 else elements
    return draw(arrays.arrays(kind, shape, elements=elements)), draw(st.sampled_from([8000, 44100, 48000]))


TONES = st.builds(
    lambda rate, pitch, channels: (
        np.stack([np.sin(np.arange(rate // 4) * (pitch + 40 * c) * 6.283 / rate) * 0.5 for c in range(channels)]),
        rate,
    ),
    st.sampled_from([16000, 48000]), st.integers(200, 1500), st.sampled_from([1, 2]),
)  # fmt: skip


def floats_of(samples):
    """Return samples as float32 [channels, frames]."""
    samples = samples[None] if samples.ndim == 1 else samples
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)


def same(value, read):
    """Equal, and of one type."""
    assert read == value
    assert type(read) is type(value)


def same_array(value, read):
    """The same bits, shape and type."""
    expected = np.asarray(value)
    assert (read.dtype, read.shape, read.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def same_arrays(value, read):
    """The same names and arrays."""
    assert set(read) == set(value)
    for name in value:
        assert read[name].shape == value[name].shape
        assert np.array_equal(read[name], value[name], equal_nan=value[name].dtype.kind == "f")


def as_rgba(value):
    """Return any image array as uint8[H, W, 4]."""
    pixels = np.rint(value * 255).astype(np.uint8) if value.dtype.kind == "f" else value
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    colour = np.broadcast_to(pixels[:, :, :1], (*pixels.shape[:2], 3)) if pixels.shape[2] == 1 else pixels[:, :, :3]
    alpha = pixels[:, :, 3:] if pixels.shape[2] == 4 else np.full((*pixels.shape[:2], 1), 255, np.uint8)
    return np.concatenate([colour, alpha], axis=2)


def same_picture(value, read):
    """The same pixels; those that cannot be seen may differ in formats that say so."""
    assert np.array_equal(read, as_rgba(value))


def same_visible(value, read):
    """The same pixels where they are not transparent, and the same transparency."""
    expected = as_rgba(value)
    assert np.array_equal(read[..., 3], expected[..., 3])
    seen = expected[..., 3] > 0
    assert np.array_equal(read[seen], expected[seen])


def within(levels):
    """Pixels differ by so many levels at most."""

    def check(value, read):
        assert np.abs(read.astype(int) - as_rgba(value)).max() <= levels

    return check


def same_sound(bound):
    """Samples differ by no more than the bound; length and rate are kept."""

    def check(value, read):
        expected = floats_of(value[0])
        assert read[1] == value[1]
        assert read[0].shape == expected.shape
        assert np.abs(read[0] - expected).max() <= bound

    return check


def like_sound(value, read):
    """At least 15 dB of signal to noise once the codec has settled; at most 0.1 s of padding. Opus is 48 kHz always."""
    (samples, rate), (decoded, decoded_rate) = value, read
    step = decoded_rate // rate
    thinned = decoded[:, ::step][:, rate // 20 : rate // 6]
    expected = samples[:, rate // 20 : rate // 6]
    assert -2048 <= decoded.shape[1] - samples.shape[1] * step <= decoded_rate // 10
    noise = ((thinned - expected) ** 2).mean()
    assert noise * 30 < (expected**2).mean()


def like_film(value, read):
    """As many frames, and no pixel more than 6 levels away."""
    assert read.frames.shape == value.shape
    assert np.abs(read.frames.astype(int) - value).max() <= 6


def film(field, data):
    """Decode a video to one clip."""
    return wds.video("." + field, data).clip()


def decoded(*handlers):
    """Return the way to decode one field."""
    decoder = wds.Decoder(*handlers, "auto")
    return lambda field, data: decoder({"__key__": "k", field: data})[field]


def has_clear_alpha(value):
    """Tell whether every pixel is opaque or transparent."""
    return set(np.unique(as_rgba(value)[..., 3])) <= {0, 255}


plain, rgba, tone = decoded(), decoded("rgba8"), decoded(wds.audio)
OPAQUE = pictures(channels=(None, 1, 3))
LAWS = {
    "cls cls2 class count index inx id": (st.integers(-(10**4000), 10**4000), plain, same),
    "txt text transcript html htm": (UNICODE, plain, same),
    "json jsn jsonl ndjson": (LISTS, plain, same),
    "yaml yml": (YAML, plain, same),
    "mp msg msgpack cbor": (LISTS, plain, same),
    "pyd pickle pkl": (LISTS | st.sets(st.integers()) | st.tuples(PLAIN, PLAIN), plain, same),
    "npy": (NUMBERS, plain, same_array),
    "npz": (st.dictionaries(NAMES, NUMBERS, max_size=3), plain, same_arrays),
    "safetensors": (st.dictionaries(NAMES, NUMBERS, max_size=3), plain, same_arrays),
    "pth": (LISTS, plain, same),
    "png tif tiff webp": (pictures(), rgba, same_picture),
    "ppm pnm bmp dib": (OPAQUE, rgba, same_picture),
    "pgm": (pictures(channels=(None, 1)), rgba, same_picture),
    "pbm": (pictures(channels=(None, 1), floats=False, colours=[0, 255]), rgba, same_picture),
    "gif": (pictures(colours=[0, 51, 255]).filter(has_clear_alpha), rgba, same_visible),
    "jpg jpeg jpe jfif img image": (EVEN, rgba, within(2)),
    "avif": (EVEN | SMOOTH, rgba, within(4)),
    "wav": (sounds(), tone, same_sound(0)),
    "flac": (sounds(), tone, same_sound(2**-23)),
    "ogg mp3 m4a": (TONES, tone, like_sound),
    "opus": (TONES, tone, like_sound),
    "mp4 mov mkv webm avi": (FILMS, film, like_film),
}  # fmt: skip
SLOW = {
    "mp4": 4,
    "mov": 3,
    "mkv": 3,
    "webm": 3,
    "avi": 4,
    "ogg": 5,
    "mp3": 5,
    "m4a": 5,
    "opus": 5,
    "avif": 10,
    "pth": 10,
}
NEEDS = {"pth": "torch", "cbor": "cbor2", "mp": "msgpack", "msg": "msgpack", "msgpack": "msgpack"}
NEEDS |= {"safetensors": "safetensors", "ogg": "soundfile"}
NEEDS |= dict.fromkeys("wav flac mp3 m4a opus mp4 mov mkv webm avi".split(), "av")
OWN_FILES = "ten tb tenbin".split()  # tests/properties/test_tenbin.py

LAW = {field: law for fields, law in LAWS.items() for field in fields.split()}


def test_every_extension_has_a_law():
    """An encoder without a law in the table above fails here."""
    assert set(default_handlers) - set(OWN_FILES) == set(LAW)


def encode(value, field):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, field, default_handlers)


@pytest.mark.parametrize("field", LAW)
def test_what_is_written_reads_back(field):
    """Any value that the encoder takes comes back: to the bit, or within the bound that docs/formats.md states."""
    if field in NEEDS:
        pytest.importorskip(NEEDS[field])
    values, read, check = LAW[field]

    @settings(max_examples=SLOW.get(field, 30), deadline=None, suppress_health_check=list(HealthCheck))
    @given(values)
    def law(value):
        check(value, read(field, encode(value, field)))

    law()


@pytest.mark.parametrize(
    "kinds", [*itertools.product(COMPRESSORS), *itertools.product(COMPRESSORS, COMPRESSORS)], ids=".".join
)
def test_wrapped_fields_read_back(kinds):
    """Every compression, and every pair of them, round text, values and arrays."""
    pytest.importorskip("zstandard")
    suffix = ".".join(kinds)

    @settings(max_examples=8, deadline=None)
    @given(st.sampled_from(["txt", "json", "npy", "cls", "png"]), st.data())
    def law(field, draw):
        values, read, check = LAW[field]
        value = draw.draw(values)
        name = f"{field}.{suffix}"
        check(value, read(name, encode(value, name)))

    law()


@pytest.mark.torch
@pytest.mark.parametrize("field", "png tif webp bmp ppm gif".split())
def test_tensors_and_pillow_images_are_written_as_arrays_are(field):
    """A tensor with its channels first, and a Pillow image, give the bytes that the array gives."""
    torch = pytest.importorskip("torch")
    from PIL import Image

    @settings(max_examples=20, deadline=None)
    @given(pictures(channels=(None, 3), floats=False, colours=[0, 51, 255]))
    def law(value):
        planes = value if value.ndim == 2 else value.transpose(2, 0, 1)
        written = encode(value, field)
        assert encode(torch.from_numpy(planes.copy()), field) == written
        assert encode(Image.fromarray(value), field) == written

    law()


@pytest.mark.parametrize("field", LAW)
@settings(max_examples=15)
@given(data=st.data())
def test_memoryviews_decode_as_bytes_do(field, data):
    """A field of a mapped shard decodes to the same value, and one that does not decode fails in the same words."""
    if field in NEEDS:
        pytest.importorskip(NEEDS[field])
    values, _, _ = LAW[field]
    content = Encoder()({"__key__": "k", field: data.draw(values)})[field] if field not in SLOW else b"\0\1damaged"
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for sample in ({field: content}, {f"a.{field}": content, f"{field}.gz": gzip.compress(content)}):
        told = []
        for kind in (bytes, memoryview):
            given = {"__key__": "k", **{name: kind(value) for name, value in sample.items()}}
            try:
                told.append(describe_value(Decoder("auto rgb").decode(given)))
            except wds.errors.WebDatasetError as error:
                told.append((type(error), str(error)))
        assert told[0] == told[1]


def describe_value(value):
    """A decoded value as something that can be compared."""
    if isinstance(value, dict):
        return {name: describe_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [describe_value(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, memoryview):
        return describe_value(bytes(value))
    if hasattr(value, "numpy"):
        return describe_value(value.numpy())
    return repr(value) if type(value).__repr__ is not object.__repr__ else type(value)
