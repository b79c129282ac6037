"""Encoded images of many kinds."""

import io

import numpy as np
import pytest
from PIL import Image


def encoded(image, kind, **options):
    """Return an image file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photograph(width=61, height=47, mode="RGB", seed=0):
    """Return a picture with smooth and noisy parts."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).integers(0, 60, (height, width, 3))
    planes = np.stack([x * 255 // width, y * 255 // height, (x + y) * 2 % 256], axis=-1) * 3 // 4 + noise
    return Image.fromarray(planes.clip(0, 255).astype(np.uint8)).convert(mode)


def _pictures():
    colour, grey = photograph(), photograph(mode="L")
    alpha = colour.convert("RGBA")
    alpha.putalpha(photograph(mode="L", seed=1))
    deep = Image.fromarray(np.arange(0, 65536, 97, dtype=np.uint16)[:600].reshape(20, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    jpegs = {
        f"jpg {name}": encoded(colour, "JPEG", quality=quality, subsampling=subsampling, **more)
        for name, quality, subsampling, more in (
            ("444", 95, 0, {}),
            ("422", 75, 1, {}),
            ("420", 50, 2, {}),
            ("progressive", 85, 2, {"progressive": True}),
            ("optimised", 100, 0, {"optimize": True}),
            ("exif", 90, 2, {"exif": exif}),
            ("restarts", 90, 2, {"restart_marker_blocks": 2}),
            ("keep rgb", 90, 0, {"keep_rgb": True}),
        )
    }
    return {
        **jpegs,
        "jpg grey": encoded(grey, "JPEG"),
        "jpg grey progressive": encoded(grey, "JPEG", progressive=True),
        "jpg cmyk": encoded(colour.convert("CMYK"), "JPEG"),
        "jpg tiny": encoded(photograph(1, 1), "JPEG"),
        "jpg trailing": jpegs["jpg 420"] + b"more bytes",
        "png": encoded(colour, "PNG"),
        "png grey": encoded(grey, "PNG"),
        "png alpha": encoded(alpha, "PNG"),
        "png palette": encoded(colour.convert("P"), "PNG"),
        "png 16 bit": encoded(deep, "PNG"),
        "png 1 bit": encoded(grey.convert("1"), "PNG"),
        "png grey alpha": encoded(alpha.convert("LA"), "PNG"),
        "gif": encoded(colour, "GIF"),
        "bmp": encoded(colour, "BMP"),
        "ppm": encoded(colour, "PPM"),
        "pgm": encoded(grey, "PPM"),
        "tiff": encoded(colour, "TIFF"),
        "webp": encoded(alpha, "WEBP"),
    }


PICTURES = _pictures()


@pytest.fixture(params=list(PICTURES))
def picture(request):
    """One image file of each kind."""
    return PICTURES[request.param]


@pytest.fixture
def pictures():
    """All image files, name to bytes."""
    return PICTURES


@pytest.fixture
def photo():
    """The maker of pictures."""
    return photograph
