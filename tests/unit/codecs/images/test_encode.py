"""Image encoders: what they take, what they refuse, what comes back."""

import io

import numpy as np
import pytest
from PIL import Image

from webdataset.autodecode import Decoder
from webdataset.codecs import default_handlers, encode_based_on_extension1, imageencoder
from webdataset.core.errors import EncodingError

LOSSLESS = ["png", "ppm", "tif", "tiff", "webp"]
COLOUR = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
GREY = COLOUR[:, :, 0]
ALPHA = np.concatenate([COLOUR, GREY[:, :, None]], axis=2)


def back(data, mode=None):
    """Decode an image file with Pillow."""
    image = Image.open(io.BytesIO(data))
    return np.asarray(image if mode is None else image.convert(mode))


def encode(value, field):
    """Encode one field."""
    return encode_based_on_extension1(value, field, default_handlers)


@pytest.mark.parametrize("field", LOSSLESS)
def test_colour_comes_back_exactly(field):
    """uint8 arrays, floats of them and Pillow images come back to the bit."""
    for value in (COLOUR, COLOUR / 255.0, COLOUR.astype("f") / 255.0, Image.fromarray(COLOUR)):
        assert np.array_equal(back(encode(value, field), "RGB"), COLOUR)
    assert np.array_equal(Decoder("rgb8")({field: encode(COLOUR, field)})[field], COLOUR)


@pytest.mark.parametrize("field", ["png", "tiff", "pgm", "ppm"])
def test_grey_comes_back_exactly(field):
    """[H, W] and [H, W, 1]."""
    for value in (GREY, GREY[:, :, None], GREY / 255.0, Image.fromarray(GREY)):
        assert np.array_equal(back(encode(value, field), "L"), GREY)


@pytest.mark.parametrize("field", ["png", "tiff", "webp"])
def test_transparency_comes_back_exactly(field):
    """[H, W, 4]."""
    for value in (ALPHA, Image.fromarray(ALPHA)):
        assert np.array_equal(back(encode(value, field), "RGBA"), ALPHA)


@pytest.mark.parametrize("field", ["jpg", "jpeg", "img", "image"])
def test_jpegs_are_written_with_quality_100(field):
    """JPEG by all its names, close to the original; JPEG cannot hold transparency or 16 bits."""
    data = encode(COLOUR, field)
    assert Image.open(io.BytesIO(data)).format == "JPEG"
    smooth = np.tile(np.arange(0, 200, 10, dtype=np.uint8)[:, None, None], (1, 30, 3))
    assert np.abs(back(encode(smooth, field)).astype(int) - smooth).max() <= 2
    buffer = io.BytesIO()
    Image.fromarray(COLOUR).save(buffer, "JPEG", quality=100)
    assert data == buffer.getvalue()
    assert back(encode(Image.fromarray(COLOUR).convert("P"), field)).shape == (20, 30, 3)
    for value in (ALPHA, Image.fromarray(ALPHA), np.zeros((4, 4), np.uint16)):
        with pytest.raises(EncodingError, match="cannot be written as JPEG"):
            encode(value, field)


def test_netpbm_formats():
    """Pbm is black and white, pgm grey, ppm colour."""
    assert encode(COLOUR, "pbm")[:2] == b"P4"
    assert encode(COLOUR, "pgm")[:2] == b"P5"
    assert encode(COLOUR, "ppm")[:2] == b"P6"
    assert encode(GREY > 100, "pbm")[:2] == b"P4"
    assert np.array_equal(back(encode(GREY > 100, "pbm")), GREY > 100)


def test_deep_grey_comes_back():
    """uint16 [H, W] in PNG and TIFF."""
    deep = np.arange(600, dtype=np.uint16).reshape(20, 30) * 100
    for field in ("png", "tiff"):
        assert np.array_equal(back(encode(deep, field)), deep)


def test_floats_may_leave_the_range_by_a_thousandth():
    """Beyond that, and for NaN, it is an error that says the range."""
    image = np.linspace(0, 1, 60).reshape(4, 5, 3)
    assert back(encode(image + 0.0009, "png")).max() == 255
    assert back(encode(image - 0.0009, "png")).min() == 0
    for wrong in (image + 0.01, image - 0.01, image * np.nan, image * 255):
        with pytest.raises(EncodingError, match=r"\[0, 1\]"):
            encode(wrong, "png")


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(5, "u1"),
        np.zeros((2, 2, 2), "u1"),
        np.zeros((1, 2, 3, 3), "u1"),
        np.zeros((4, 4, 3), "i8"),
        [1, 2],
        None,
        3,
    ]
    + [np.zeros((4, 4, 3), np.uint16), np.zeros((0, 0, 3), "u1")],
    ids=lambda value: f"{type(value).__name__}{getattr(value, 'shape', '')}{getattr(value, 'dtype', '')}",
)
def test_what_is_no_image_is_an_error(value):
    """Other shapes and types name themselves in the error."""
    with pytest.raises(EncodingError):
        encode(value, "png")


def test_imageencoder_takes_formats_in_any_case():
    """Upstream's function, PNG by default."""
    assert imageencoder(COLOUR)[:4] == b"\x89PNG"
    for name in ("JPEG", "jpg", "JPG"):
        assert imageencoder(COLOUR, name)[:2] == b"\xff\xd8"
    assert imageencoder(COLOUR, format="tiff")[:2] in (b"II", b"MM")
    with pytest.raises(EncodingError, match="NONSENSE"):
        imageencoder(COLOUR, "nonsense")


@pytest.mark.torch
def test_tensors_have_their_channels_first():
    """Tensors as the torch specs give them come back; [H, W, C] is understood where it is unmistakable."""
    torch = pytest.importorskip("torch")
    for spec in ("torchrgb8", "torchrgb"):
        tensor = Decoder(spec)({"png": encode(COLOUR, "png")})["png"]
        assert tensor.shape == (3, 20, 30)
        assert np.array_equal(back(encode(tensor, "png")), COLOUR)
    assert np.array_equal(back(encode(torch.from_numpy(GREY), "png")), GREY)
    assert np.array_equal(back(encode(torch.from_numpy(GREY[None]), "png")), GREY)
    assert np.array_equal(back(encode(torch.from_numpy(COLOUR), "png")), COLOUR)


def test_gif_is_exact_or_an_error():
    """Up to 256 colours come back to the bit, clear pixels stay clear; more colours or half-clear pixels are errors."""
    few = (COLOUR // 64 * 64).astype(np.uint8)
    assert len(np.unique(few.reshape(-1, 3), axis=0)) > 60
    assert np.array_equal(back(encode(few, "gif"), "RGB"), few)
    assert np.array_equal(back(encode(GREY, "gif"), "L"), GREY)
    clear = np.concatenate([few, np.where(GREY > 99, 255, 0).astype(np.uint8)[:, :, None]], axis=2)
    read = back(encode(clear, "gif"), "RGBA")
    assert np.array_equal(read[..., 3], clear[..., 3])
    assert np.array_equal(read[clear[..., 3] > 0], clear[clear[..., 3] > 0])
    with pytest.raises(EncodingError, match=r"256 colours and this picture has \d+.*quantize"):
        encode(COLOUR, "gif")
    assert back(encode(Image.fromarray(COLOUR).quantize(16), "gif"), "RGB").shape == COLOUR.shape
    with pytest.raises(EncodingError, match="partial transparency"):
        encode(ALPHA, "gif")


def test_bmp_refuses_transparency():
    """BMP files with transparency read back without it, so they are not written."""
    for value in (ALPHA, Image.fromarray(ALPHA), Image.fromarray(ALPHA).convert("LA")):
        with pytest.raises(EncodingError, match="BMP has no transparency"):
            encode(value, "bmp")
    assert np.array_equal(back(encode(COLOUR, "bmp"), "RGB"), COLOUR)


def test_avif_is_close_and_keeps_transparency():
    """AVIF of quality 100 is within 4 levels even of noise."""
    assert np.abs(back(encode(COLOUR, "avif"), "RGB").astype(int) - COLOUR).max() <= 4
    assert np.abs(back(encode(ALPHA, "avif"), "RGBA")[..., 3].astype(int) - ALPHA[..., 3]).max() <= 4


def test_a_pillow_without_a_writer_says_what_to_install(monkeypatch):
    """An older Pillow, or one that was built without AVIF."""
    Image.init()
    monkeypatch.delitem(Image.SAVE, "AVIF")
    monkeypatch.delitem(Image.EXTENSION, ".avif")
    with pytest.raises(EncodingError, match=r"writes no AVIF .*pip install -U pillow \(AVIF needs 11.3"):
        encode(COLOUR, "avif")


@pytest.mark.parametrize("field", ["gif", "webp", "avif", "jpg", "bmp", "pgm", "pbm"])
@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_depth_is_not_cut_silently(field, kind):
    """What holds 8 bits of a pixel refuses pictures of more, which Pillow would clip without a word."""
    deep = (np.arange(12).reshape(3, 4) * 5000).astype(kind)
    with pytest.raises(EncodingError, match="8 bits"):
        encode(Image.fromarray(deep), field)
    if kind is np.uint16:
        with pytest.raises(EncodingError, match="8 bits"):
            encode(deep, field)


def test_gif_keeps_the_transparency_of_greys():
    """Grey with alpha becomes a palette like colours; half clear pixels are refused."""
    values = np.array([[[10, 255], [20, 255]], [[0, 0], [30, 255]]], np.uint8)
    picture = Image.fromarray(values)
    assert picture.mode == "LA"
    assert (back(encode(picture, "gif"), "RGBA") == np.asarray(picture.convert("RGBA"))).all()
    with pytest.raises(EncodingError, match="transparency"):
        encode(Image.fromarray(values // 2), "gif")


def test_bmp_refuses_a_clear_colour():
    """A palette with a clear entry is transparency, too."""
    picture = Image.fromarray(GREY).convert("P")
    assert encode(picture, "bmp")
    picture.info["transparency"] = 3
    with pytest.raises(EncodingError, match="transparency"):
        encode(picture, "bmp")
