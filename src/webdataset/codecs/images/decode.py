"""Decodes images to pixels: Pillow for every format, simplejpeg for the JPEGs on which both agree to the bit.

The results are uint8 arrays or Pillow images. simplejpeg gets ordinary JPEGs only (8 bit YCbCr to RGB, or grey to
grey, usual subsampling). Images of more pixels than the limit are refused by their headers, and formats that start
other programs always.

Theory of the header cache. Size, colours and subsampling of a JPEG follow from the bytes before its first scan. Images
that one program wrote at one size and quality share these bytes (some 600), and comparing them takes a fiftieth of the
time. Headers are cached where two pictures in a row said the same, and ever more seldom where that does not pay. The
cache never guesses: other bytes are parsed anew.
"""

import functools
import io
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from webdataset.codecs.images import output_buffer
from webdataset.core import settings
from webdataset.core.errors import FieldTooLarge, MissingExtra, UnsafeContent
from webdataset.core.optional_imports import import_if_available, loaded_module, require

if TYPE_CHECKING:
    from PIL.Image import Image

_SCAN_MARKER = 0xDA
# frame headers of JPEGs that are decoded in one pass
_BASELINE = frozenset([0xC0, 0xC1])
# what may stand before: tables, metadata
_SEGMENTS = frozenset([0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE])
_NO_CONTENT = frozenset([0x01, 0xFF, *range(0xD0, 0xD8)])
# pictures to let pass where remembering has not paid
_LONGEST = 1024
# no JPEG begins so
_EMPTY_JPEG = b"\xff\xd8\xff\xd8"


class JpegHeader(NamedTuple):
    """What a JPEG says of itself."""

    height: int
    width: int
    colours: str
    subsampling: str
    baseline: bool = False


class JpegLibrary(Protocol):
    """What is asked of simplejpeg."""

    def decode_jpeg_header(self, data: bytes, /) -> tuple[int, int, str, str]:
        """Return height, width, colours and subsampling of a JPEG."""


class JpegHeaderCache:
    """Reads headers, and remembers the one of the last pictures."""

    def __init__(self, library: JpegLibrary) -> None:
        self._read = library.decode_jpeg_header
        # replaced as one: threads share it
        self._known = _EMPTY_JPEG, JpegHeader(0, 0, "", "")
        # how many pictures to let pass next time, and now
        self._pause = self._pass = 0

    def of(self, data: bytes) -> JpegHeader:
        """Return what a JPEG says of itself.

        Raises:
            ValueError: it is damaged, or no JPEG.
        """
        head, known = self._known
        if data.startswith(head):
            if self._pause:
                self._pause = self._pass = 0
            return known
        found = JpegHeader(*self._read(data))
        if found[:4] != known[:4]:
            self._known = _EMPTY_JPEG, found
        elif self._pass > 0:
            self._pass -= 1
        else:
            self._pass = self._pause
            self._pause = min(2 * self._pause + 1, _LONGEST)
            stop, baseline = find_scan(data)
            if stop:
                self._known = data[:stop], found._replace(baseline=baseline)
        return found


def find_scan(data: bytes) -> tuple[int, bool]:
    """Return where the first scan's header ends (0: not found in order), and whether the JPEG is baseline."""
    at, end = 2, len(data) - 4
    baseline = False
    while at < end and data[at] == 0xFF:
        kind = data[at + 1]
        if kind in _NO_CONTENT:
            at += 1 if kind == 0xFF else 2
            continue
        after = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _SCAN_MARKER:
            return (after if after <= len(data) else 0), baseline
        if kind in _BASELINE:
            baseline = True
        elif kind not in _SEGMENTS:
            break
        at = after
    return 0, baseline


# as a limit: what WDS_MAX_IMAGE_PIXELS says now
AS_SET = -1

# What simplejpeg reports for a file, and the mode that it decodes exactly as Pillow does.
_EXACT = {("YCbCr", "RGB"): "RGB", ("Gray", "L"): "GRAY"}
_SUBSAMPLINGS = {"444", "422", "420", "Gray"}
# Pillow's own default
_PILLOW_LIMIT = 89_478_485
# so many pixels take less than 512 MB, copies included
_LIMIT = 8192 * 6144
# their decoders keep more copies
_WEIGHTS = {"WEBP": 2, "AVIF": 2}
_BYTE = np.dtype(np.uint8)
_FLOAT = np.dtype(np.float32)
# pixels of a large image that are converted at once
_STRIP = 1 << 20
# a JPEG of so many pixels may have; progressive ones are decoded once per scan
_MOST_SCANS = 10
_START_OF_SCAN = b"\xff\xda"
# bytes: its marker, length, one component, three parameters
_LEAST_SCAN = 10
# bytes 4 to 12 of files whose formats need a plug-in: module, its function, our extra
_PLUGINS = {
    b"ftypheic": ("pillow_heif", "register_heif_opener", "heif"),
    b"ftypheix": ("pillow_heif", "register_heif_opener", "heif"),
    b"ftypmif1": ("pillow_heif", "register_heif_opener", "heif"),
    # where Pillow was built without AVIF
    b"ftypavif": ("pillow_heif", "register_avif_opener", "heif"),
    b"JXL \r\n\x87\n": ("pillow_jxl", None, "jxl"),
}


@functools.cache
def _simplejpeg() -> ModuleType | None:
    return import_if_available("simplejpeg")


@functools.cache
def _header_cache() -> JpegHeaderCache:
    # asked for where the library is there
    return JpegHeaderCache(cast("JpegLibrary", _simplejpeg()))


@functools.cache
def _pillow() -> ModuleType:
    return require("PIL.Image", extra="images", purpose="decoding images")


def decode_picture(data: bytes, mode: str | None, limit: int | None = AS_SET) -> "Image":
    """Decode an image with Pillow and convert it.

    Args:
        data: the encoded image.
        mode: "L", "RGB" or "RGBA"; None keeps the mode that the file has.
        limit: see :func:`check_size`.

    Returns:
        A ``PIL.Image.Image`` of that mode. EXIF orientation is not applied.

    Raises:
        MissingExtra: Pillow is not installed, or a plug-in that the format needs.
        FieldTooLarge: more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        UnsafeContent: a format that starts another program (EPS).
        OSError: not an image that Pillow knows, or damaged.
    """
    with open_image(data, limit) as image:
        image.load()
        return image if mode is None else image.convert(mode)


def open_image(data: bytes, limit: int | None = AS_SET) -> "Image":
    """Open an image whose size and kind are allowed; its pixels are not decoded yet.

    Args:
        data: the encoded image.
        limit: see :func:`check_size`.

    Raises:
        MissingExtra: Pillow is not installed, or a plug-in that the format needs.
        FieldTooLarge: more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        UnsafeContent: a format that starts another program (EPS).
        OSError: not an image that Pillow knows.
    """
    image = _identify_image(data)
    width, height = image.size
    check_size(width, height, data, _WEIGHTS.get(image.format or "", 1), limit)
    if image.format == "EPS":
        raise UnsafeContent("the image is EPS, which Ghostscript would have to run: convert it to another format")
    return image


def _identify_image(data: bytes) -> "Image":
    pillow = _pillow()
    try:
        return _open(pillow, data)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise FieldTooLarge(
            f"the image is too large: {error} (WDS_MAX_IMAGE_PIXELS, PIL.Image.MAX_IMAGE_PIXELS)"
        ) from error
    except pillow.UnidentifiedImageError:
        if not _load_plugin(data):
            raise
        return _open(pillow, data)


def _open(pillow: ModuleType, data: bytes) -> "Image":
    image: Image = pillow.open(io.BytesIO(data))
    return image


def _load_plugin(data: bytes) -> bool:
    """Load the plug-in for an image that Pillow does not know; tell whether there is one."""
    known = _PLUGINS.get(data[4:12]) or (_PLUGINS[b"JXL \r\n\x87\n"] if data[:2] == b"\xff\x0a" else None)
    if known is None:
        return False
    module, function, extra = known
    plugin = require(module, extra=extra, purpose=f"decoding {data[8:12].decode('ascii', 'replace').strip()!r} images")
    if function is not None:
        register = getattr(plugin, function, None)
        if register is None:
            raise MissingExtra("decoding AVIF images needs Pillow 11.3 or later: pip install -U pillow")
        register()
    return True


def read_image_size(data: bytes, limit: int | None = AS_SET) -> tuple[int, int]:
    """Return height and width of an image; its pixels are not decoded.

    Args:
        data: the encoded image.
        limit: see :func:`check_size`.

    Raises:
        MissingExtra: Pillow is not installed, or a plug-in that the format needs.
        FieldTooLarge: more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        UnsafeContent: a format that starts another program (EPS).
        OSError: not an image that Pillow knows.
    """
    if data[:2] == b"\xff\xd8" and _simplejpeg() is not None:
        try:
            return _header_cache().of(data)[:2]
        except ValueError:  # damaged or unusual: Pillow gives the answer, or the error
            pass
    with open_image(data, limit) as image:
        return image.height, image.width


def decode_pixels(
    data: bytes, mode: str, limit: int | None = AS_SET, least: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8]:
    """Decode an image to an array.

    Args:
        data: the encoded image.
        mode: "L", "RGB" or "RGBA".
        limit: see :func:`check_size`.
        least: height and width that are enough: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, if that is as large.

    Returns:
        A writable uint8[H, W] for L, else uint8[H, W, C].

    Raises:
        MissingExtra: Pillow is not installed, or a plug-in that the format needs.
        FieldTooLarge: more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        UnsafeContent: a format that starts another program (EPS).
        OSError: not an image that Pillow knows, or damaged.
    """
    if data[:2] == b"\xff\xd8":
        decoded = _decode_ordinary_jpeg(data, mode, limit, least)
        if decoded is not None:
            return decoded
    with open_image(data, limit) as image:
        if least is not None and image.format == "JPEG":
            factor, _, _ = _choose_scale(image.height, image.width, least)
            # it rounds down, and then up
            image.draft(None, (image.width // factor, image.height // factor))
        width, height = image.size
        image.load()
        if width * height <= _STRIP:
            return copy_to_output(np.asarray(image.convert(mode)))
        return _convert_in_strips(image, mode)


def copy_to_output(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return a writable copy of pixels, in the batch that is being made where there is one."""
    place = output_buffer.take_buffer(values.shape, values.dtype)
    if place is None:
        return np.array(values, order="C")
    np.copyto(place, values)
    return place


def _convert_in_strips(image: "Image", mode: str) -> npt.NDArray[np.uint8]:
    """Convert a large image piece by piece, so that there is never a third copy of it."""
    width, height = image.size
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    whole = np.empty(shape, np.uint8)
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        whole[top:bottom] = np.asarray(image.crop((0, top, width, bottom)).convert(mode))
    return whole


def _choose_scale(height: int, width: int, least: tuple[int, int]) -> tuple[int, int, int]:
    """Return the largest factor of 1, 2, 4, 8 that leaves a JPEG large enough, and its size then."""
    for factor in (8, 4, 2):
        size = -(-height // factor), -(-width // factor)
        if size[0] >= least[0] and size[1] >= least[1] and min(height, width) >= factor:
            return factor, *size
    return 1, height, width


def _decode_ordinary_jpeg(
    data: bytes, mode: str, limit: int | None, least: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8] | None:
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colours, subsampling, baseline = _header_cache().of(data)
        wanted = _EXACT.get((colours, mode))
        if wanted is None or subsampling not in _SUBSAMPLINGS:
            return None
        check_size(width, height, b"" if baseline else data, 1, limit)
        factor = {}
        if least is not None:
            smaller, height, width = _choose_scale(height, width, least)
            factor = {"min_height": height, "min_width": width, "min_factor": smaller}
        place = output_buffer.take_buffer((height, width, 3), _BYTE) if wanted == "RGB" else None
        decoded: npt.NDArray[np.uint8] = library.decode_jpeg(data, wanted, buffer=place, **factor)
        if place is not None and decoded.shape == place.shape:
            return place
    except FieldTooLarge:
        raise
    except ValueError:  # damaged or unusual: Pillow gives the answer, or the error
        return None
    return decoded[:, :, 0] if wanted == "GRAY" else decoded


def check_size(width: int, height: int, data: bytes = b"", weight: int = 1, limit: int | None = AS_SET) -> None:
    """Refuse an image of too many pixels before they are decoded.

    Args:
        width: pixels.
        height: pixels.
        data: the encoded image; JPEGs are refused for too many scans as well.
        weight: how often a pixel counts, as long as no limit is set.
        limit: what ``WDS_MAX_IMAGE_PIXELS`` says (None: nothing), for those who asked once for many images.

    Raises:
        FieldTooLarge: more than ``WDS_MAX_IMAGE_PIXELS``; else than ``PIL.Image.MAX_IMAGE_PIXELS``, where the program
            has set it; else than 50331648 (half as many for WebP and AVIF).
    """
    if limit == AS_SET:
        limit = settings.MAX_IMAGE_PIXELS.get()
    most = _default_limit(weight) if limit is None else limit
    size = width * height
    if size > most:
        raise FieldTooLarge(
            f"the image has {width} x {height} pixels, more than the limit of {most} (WDS_MAX_IMAGE_PIXELS)"
        )
    # what is too short to hold enough scans need not be looked through
    if len(data) // _LEAST_SCAN * size > _MOST_SCANS * most and data[:2] == b"\xff\xd8" and not find_scan(data)[1]:
        scans = data.count(_START_OF_SCAN)
        if scans > _MOST_SCANS and scans * size > _MOST_SCANS * most:
            raise FieldTooLarge(
                f"the JPEG has {width} x {height} pixels in {scans} scans, more than can be decoded in reasonable time"
            )


def _default_limit(weight: int) -> int:
    pillow = loaded_module("PIL.Image")
    limit = _PILLOW_LIMIT if pillow is None else pillow.MAX_IMAGE_PIXELS
    if limit == _PILLOW_LIMIT:
        return _LIMIT // weight
    return 1 << 62 if limit is None else int(limit)


def scale_to_floats(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return uint8 pixels as float32 of the same shape, each value divided by 255."""
    return np.divide(values, np.float32(255), out=output_buffer.take_buffer(values.shape, _FLOAT), dtype=np.float32)
