"""Encoded images to pixels: Pillow for everything, simplejpeg for the JPEGs on which both agree to the bit.

Flows in: the bytes of one image file. Flows out: uint8 arrays or Pillow images. simplejpeg gets ordinary JPEGs only
(8 bit YCbCr to RGB, or grey to grey, usual subsampling); for all else, and whatever it objects to, Pillow decides.
"""

import functools
import io
from typing import Any

import numpy as np

from webdataset.ground.extras import available, loaded, require

# What simplejpeg reports for a file, and the mode that it decodes exactly as Pillow does.
_EXACT = {("YCbCr", "RGB"): "RGB", ("Gray", "L"): "GRAY"}
_SUBSAMPLINGS = {"444", "422", "420", "Gray"}
_PILLOW_LIMIT = 89_478_485  # pixels; Pillow's own default, above which it warns


@functools.cache
def _simplejpeg() -> Any:
    return available("simplejpeg")


@functools.cache
def _pillow() -> Any:
    return require("PIL.Image", extra="images", purpose="decoding images")


def picture(data: bytes, mode: str) -> Any:
    """Decode an image with Pillow and convert it.

    Args:
        data: the encoded image.
        mode: "L", "RGB" or "RGBA".

    Returns:
        A ``PIL.Image.Image`` of that mode. EXIF orientation is not applied.

    Raises:
        MissingExtra: Pillow is not installed.
        OSError: not an image that Pillow knows, or damaged.
    """
    with _pillow().open(io.BytesIO(data)) as image:
        image.load()
        return image.convert(mode)


def pixels(data: bytes, mode: str) -> Any:
    """Decode an image to an array.

    Args:
        data: the encoded image.
        mode: "L", "RGB" or "RGBA".

    Returns:
        A writable uint8[H, W] for L, else uint8[H, W, C].

    Raises:
        MissingExtra: Pillow is not installed.
        OSError: not an image that Pillow knows, or damaged.
    """
    if data[:2] == b"\xff\xd8":
        decoded = _ordinary_jpeg(data, mode)
        if decoded is not None:
            return decoded
    return np.array(picture(data, mode))


def _ordinary_jpeg(data: bytes, mode: str) -> Any:
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colours, subsampling = library.decode_jpeg_header(data)
        wanted = _EXACT.get((colours, mode))
        if wanted is None or subsampling not in _SUBSAMPLINGS or height * width > _limit():
            return None
        decoded = library.decode_jpeg(data, wanted)
    except ValueError:  # damaged or unusual: Pillow gives the answer, or the error
        return None
    return decoded[:, :, 0] if wanted == "GRAY" else decoded


def _limit() -> int:
    pillow = loaded("PIL.Image")
    limit = _PILLOW_LIMIT if pillow is None else pillow.MAX_IMAGE_PIXELS
    return 1 << 62 if limit is None else int(limit)


def as_floats(values: Any) -> Any:
    """Scale pixels to [0, 1].

    Args:
        values: a uint8 array.

    Returns:
        A float32 array of the same shape: each value divided by 255.
    """
    return np.divide(values, np.float32(255), dtype=np.float32)
