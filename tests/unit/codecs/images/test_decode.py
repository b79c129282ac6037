"""Image specs: shapes, types, values; JPEGs through either library; what is not an image."""

import importlib.util
import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageFile, UnidentifiedImageError

from webdataset.autodecode import IMAGE_EXTENSIONS, Decoder, ImageHandler, imagehandler, imagespecs
from webdataset.codecs.images import decode
from webdataset.codecs.images.decode import find_scan
from webdataset.core.errors import DecodingError, FieldTooLarge, MissingExtra, UnsafeContent

MODES = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}
NUMPY = [spec for spec, (library, _, _) in imagespecs.items() if library == "numpy"]
TORCH = [spec for spec, (library, _, _) in imagespecs.items() if library == "torch"]
PILLOW = [spec for spec, (library, _, _) in imagespecs.items() if library == "pil"]


def reference(data, spec):
    """Return the pixels that Pillow gives, scaled as upstream scales them."""
    _, depth, mode = imagespecs[spec]
    values = np.asarray(Image.open(io.BytesIO(data)).convert(MODES[mode]))
    return values.astype("f") / 255.0 if depth == "float" else values


@pytest.mark.parametrize("spec", NUMPY)
def test_numpy_specs(spec, picture):
    """Bit for bit what Pillow gives, in the documented shape and type, and writable."""
    expected = reference(picture, spec)
    decoded = imagehandler(spec)(".img.jpg", picture)
    assert decoded.dtype == expected.dtype == (np.uint8 if spec.endswith("8") else np.float32)
    assert decoded.shape == expected.shape
    assert decoded.tobytes() == expected.tobytes()
    assert decoded.flags.writeable
    assert decoded.flags.c_contiguous


@pytest.mark.torch
@pytest.mark.parametrize("spec", TORCH)
def test_torch_specs(spec, picture):
    """The same pixels with channels first, contiguous."""
    torch = pytest.importorskip("torch")
    expected = reference(picture, spec)
    decoded = imagehandler(spec)(".png", picture)
    planes = expected if expected.ndim == 2 else expected.transpose(2, 0, 1)
    assert decoded.dtype == (torch.uint8 if spec.endswith("8") else torch.float32)
    assert decoded.is_contiguous()
    assert decoded.shape == planes.shape
    assert np.array_equal(decoded.numpy(), planes)


@pytest.mark.parametrize("spec", PILLOW)
def test_pillow_specs(spec, picture):
    """A Pillow image of the mode named, loaded."""
    decoded = imagehandler(spec)(".gif", picture)
    assert type(decoded) is Image.Image
    assert decoded.mode == MODES[imagespecs[spec][2]]
    assert decoded.tobytes() == Image.open(io.BytesIO(picture)).convert(decoded.mode).tobytes()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_simplejpeg_agrees_with_pillow(mode, photo):
    """Simplejpeg decodes ordinary JPEGs, and to the bit as Pillow: many sizes, qualities and subsamplings."""
    pytest.importorskip("simplejpeg")
    taken = 0
    for seed, (width, height) in enumerate(
        [(1, 1), (7, 5), (8, 8), (16, 16), (17, 33), (64, 48), (127, 3), (250, 201)]
    ):
        for quality in (5, 50, 90, 100):
            for options in ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}):
                stream = io.BytesIO()
                photo(width, height, mode, seed).save(stream, "JPEG", quality=quality, **options)
                decoded = decode._decode_ordinary_jpeg(stream.getvalue(), mode, None)
                assert np.array_equal(decoded, np.asarray(Image.open(stream).convert(mode)))
                taken += 1
    assert taken == 8 * 4 * 4


def test_unusual_jpegs_are_left_to_pillow(pictures):
    """CMYK, RGB, grey wanted as colour, colour wanted as grey: simplejpeg is not asked."""
    pytest.importorskip("simplejpeg")
    for name, mode in (
        ("jpg cmyk", "RGB"),
        ("jpg grey", "RGB"),
        ("jpg 420", "L"),
        ("jpg 420", "RGBA"),
        ("jpg keep rgb", "RGB"),
    ):
        assert decode._decode_ordinary_jpeg(pictures[name], mode, None) is None
    assert decode._decode_ordinary_jpeg(pictures["jpg 420"], "RGB", None) is not None
    assert decode._decode_ordinary_jpeg(pictures["jpg grey"], "L", None) is not None


@pytest.mark.limited
def test_damaged_jpegs_fail_as_pillow_fails(pictures):
    """A cut, corrupted or empty JPEG is decided by Pillow: an error, or its pixels."""
    whole = pictures["jpg 420"]
    rng = np.random.default_rng(1)
    damaged = [whole[:cut] for cut in range(0, len(whole), 97)] + [whole[:-2], whole[:-1]]
    for _ in range(60):
        changed = bytearray(whole)
        changed[rng.integers(2, len(whole))] = rng.integers(0, 256)
        damaged.append(bytes(changed))
    for data in damaged:
        try:
            expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        except (OSError, SyntaxError, ValueError):
            with pytest.raises(DecodingError):
                Decoder("rgb8")({"jpg": data})
        else:
            assert np.array_equal(Decoder("rgb8")({"jpg": data})["jpg"], expected)


def test_truncated_images_load_where_pillow_is_told_so(pictures, monkeypatch):
    """Pillow's own switch is honoured."""
    cut = pictures["jpg 420"][:-200]
    with pytest.raises(DecodingError, match="truncated"):
        Decoder("rgb8")({"jpg": cut})
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert Decoder("rgb8")({"jpg": cut})["jpg"].shape == (47, 61, 3)


def test_pillows_limit_on_pixels_holds_for_jpegs(pictures, monkeypatch):
    """An image that Pillow refuses for its size is refused, whichever library could decode it."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for name in ("jpg 420", "png"):
        with pytest.raises(FieldTooLarge, match="MAX_IMAGE_PIXELS") as failure:
            Decoder("rgb8")({"__key__": "k", "jpg": pictures[name]})
        assert (failure.value.key, failure.value.field) == ("k", "jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert Decoder("rgb8")({"jpg": pictures["jpg 420"]})["jpg"].shape == (47, 61, 3)


def test_without_simplejpeg_nothing_changes(pictures, monkeypatch):
    """Pillow alone gives the same."""
    with_it = imagehandler("rgb8")(".jpg", pictures["jpg 420"])
    monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    assert np.array_equal(imagehandler("rgb8")(".jpg", pictures["jpg 420"]), with_it)


def test_floats_are_exactly_a_255th():
    """Every level divides as upstream's formula."""
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert decode.scale_to_floats(levels).tobytes() == (levels.astype("f") / 255.0).tobytes()


def test_extensions_tell_which_fields_are_images(pictures):
    """The last component in any case; other fields are not touched; extensions may be chosen."""
    png = pictures["png"]
    handler = imagehandler("rgb8")
    for key in (".png", ".PNG", "png", ".seg.Png", ".jpg"):
        assert handler(key, png) is not None
    for key in (".txt", ".png.txt", ".h5", ".hdf", ".mpg", ".mpeg", "", ".p"):
        assert handler(key, png) is None
    for chosen in (["png", "tif"], "png tif", {"PNG"}):
        assert ImageHandler("rgb8", extensions=chosen)(".png", png) is not None
        assert ImageHandler("rgb8", chosen)(".jpg", png) is None
    decoded = Decoder("pil")({"h5": b"data", "seg.png": png})
    assert decoded["h5"] == b"data"
    assert decoded["seg.png"].mode == "RGB"
    assert {"webp", "jpg", "xpm"} < set(IMAGE_EXTENSIONS)


def test_unknown_specs_are_errors():
    """Specs are exact lower-case names; the error lists them."""
    for spec in ("RGB", "rgb9", "", "png"):
        with pytest.raises(ValueError, match="torchrgb8"):
            imagehandler(spec)


def test_what_is_no_image_is_an_error():
    """The error names field and cause."""
    with pytest.raises(DecodingError, match="UnidentifiedImageError") as failure:
        Decoder("rgb")({"__key__": "k", "jpg": b"no image"})
    assert failure.value.field == "jpg"


def test_handlers_pickle_and_say_what_they_are():
    """An image handler travels to workers."""
    import pickle

    handler = pickle.loads(pickle.dumps(imagehandler("rgb8", extensions=["jpg"])))
    assert repr(handler) == "ImageHandler('rgb8')"
    assert handler.extensions == {"jpg"}


def test_without_pillow_the_error_names_the_extra(tmp_path):
    """Where Pillow is not installed, decoding an image says what to install."""
    program = (
        "import sys; sys.modules['PIL'] = None; sys.modules['PIL.Image'] = None\n"
        "import webdataset as wds\n"
        "from webdataset.core.errors import MissingExtra\n"
        "try:\n"
        "    wds.Decoder('rgb')({'png': b'x'})\n"
        "except MissingExtra as error:\n"
        "    assert '[images]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def header_only(width, height):
    """Return a PNG that claims a size and has hardly any content."""
    import struct
    import zlib

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.limited
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(8193, 6144), (9000, 9999), (12000, 12000), (60000, 60000)], ids=str)
@pytest.mark.parametrize("spec", ["rgb8", "pil"])
def test_images_of_too_many_pixels_are_refused_by_their_headers(size, spec):
    """Beyond 8192 x 6144 pixels an image is refused before it is decoded, with the setting that allows it."""
    with pytest.raises(FieldTooLarge, match="WDS_MAX_IMAGE_PIXELS"):
        Decoder(spec)({"png": header_only(*size)})


def test_pillows_warning_as_an_error_is_the_same_error():
    """Programs that turn warnings into errors get the typed error as well."""
    with pytest.raises(FieldTooLarge, match="WDS_MAX_IMAGE_PIXELS"):
        Decoder("pil")({"png": header_only(10_000, 10_000)})


@pytest.mark.limited
def test_the_limit_on_pixels_is_a_setting(pictures, monkeypatch):
    """61 x 47 pixels pass or not, whichever library decodes; Pillow's own limit holds only where Pillow decodes."""
    simple = importlib.util.find_spec("simplejpeg") is not None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100 if simple else None)
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", str(61 * 47))
    assert Decoder("rgb8")({"jpg": pictures["jpg 420"]})["jpg"].shape == (47, 61, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", str(61 * 47 - 1))
    for name in ("jpg 420", "png"):
        with pytest.raises(FieldTooLarge, match="61 x 47 pixels"):
            Decoder("rgb8")({"jpg": pictures[name]})


@pytest.mark.limited
def test_jpegs_of_very_many_scans_are_refused(pictures, monkeypatch):
    """A progressive JPEG is decoded once per scan: so many scans of so many pixels are a bomb; a few are not."""
    data = pictures["jpg progressive"]
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", "3000")
    start = data.index(b"\xff\xda")
    scan = data[start : data.index(b"\xff", start + 2 + data[start + 3])]
    assert Decoder("rgb8")({"jpg": data})["jpg"].shape == (47, 61, 3)
    with pytest.raises(FieldTooLarge, match="scans"):
        Decoder("rgb8")({"jpg": data[:-2] + scan * 20 + data[-2:]})
    for name in ("jpg 420", "jpg exif", "jpg restarts", "jpg optimised"):
        assert find_scan(pictures[name])[1]
    for broken in (b"\xff\xd8", b"\xff\xd8\xff\xff\xff\xff\xff", b"\xff\xd8abc", data):
        assert find_scan(broken) == (0, False)


def test_eps_is_not_handed_to_ghostscript():
    """An image that another program would have to run is refused, under any extension."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    for field in ("eps", "jpg"):
        with pytest.raises(UnsafeContent, match="Ghostscript"):
            Decoder("rgb")({field: eps})


@pytest.mark.parametrize(("kind", "module", "extra"), [("HEIF", "pillow_heif", "heif"), ("JXL", "pillow_jxl", "jxl")])
def test_heic_and_jxl_decode_with_their_plugins(kind, module, extra, tmp_path):
    """With the plug-in they decode, without its having been imported; without it the error names the extra."""
    pytest.importorskip(module)
    path = tmp_path / "picture"
    write = (
        f"import sys, {module}; from PIL import Image\n"
        f"getattr({module}, 'register_heif_opener', lambda: None)()\n"
        f"Image.new('RGB', (16, 8), (200, 100, 50)).save(sys.argv[1], {kind!r})\n"
    )
    subprocess.run([sys.executable, "-c", write, str(path)], check=True)
    read = (
        "import sys; from pathlib import Path; import webdataset as wds; from webdataset.core.errors import *\n"
        "data = Path(sys.argv[1]).read_bytes()\n"
        f"sys.modules[{module!r}] = None\n"
        "try: wds.Decoder('rgb8 auto')({'heic': data})\n"
        f"except MissingExtra as error: assert '[{extra}]' in str(error), error\n"
        "else: raise SystemExit('no error')\n"
        f"del sys.modules[{module!r}]\n"
        "for field in ('heic', 'jxl', 'jpg'):\n"
        "    decoded = wds.Decoder('rgb8 auto')({field: data})[field]\n"
        "    assert decoded.shape == (8, 16, 3) and abs(decoded.astype(int) - [200, 100, 50]).max() < 10, decoded\n"
    )
    subprocess.run([sys.executable, "-c", read, str(path)], check=True, cwd=tmp_path)


def test_avif_without_a_decoder_says_what_to_install(monkeypatch):
    """Where Pillow was built without AVIF, the error says which Pillow has it."""
    monkeypatch.setattr(Image, "open", lambda stream: (_ for _ in ()).throw(UnidentifiedImageError("unknown")))
    plugin = pytest.importorskip("pillow_heif")
    monkeypatch.delattr(plugin, "register_avif_opener", raising=False)
    with pytest.raises(MissingExtra, match=r"Pillow 11\.3"):
        imagehandler("pil", "avif")(".avif", b"\0\0\0 ftypavif" + bytes(20))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_large_images_are_converted_in_strips(mode, picture, monkeypatch):
    """Piece by piece, an image of any mode gives the same pixels as at once."""
    at_once = np.array(decode.decode_picture(picture, mode))
    monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    monkeypatch.setattr(decode, "_STRIP", 100)
    in_strips = decode.decode_pixels(picture, mode)
    assert np.array_equal(in_strips, at_once)
    assert in_strips.shape == at_once.shape
    assert in_strips.flags.writeable


def test_webp_and_avif_count_twice(monkeypatch):
    """Their decoders keep more copies: they have half the limit, unless a limit is set."""
    decode.check_size(5000, 5000, b"", 2)
    with pytest.raises(FieldTooLarge, match="25165824"):
        decode.check_size(5100, 5000, b"", 2)
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", "50_000_000")
    decode.check_size(5100, 5000, b"", 2)
    assert decode._WEIGHTS == {"WEBP": 2, "AVIF": 2}
