"""Encodes pixels as images: Pillow images, numpy arrays and torch tensors to the bytes of an image file.

Nothing is dropped silently: a format that cannot hold a picture's transparency, depth or number of colours is an
error (only PPM drops alpha, PGM colour and PBM shades, as Pillow and upstream do).
"""

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from webdataset.core.errors import EncodingError, describe_error
from webdataset.core.optional_imports import loaded_module, require

if TYPE_CHECKING:
    from PIL.Image import Image

# floats may leave [0, 1] by so much
_TOLERANCE = 0.001
_PILLOW_NAMES = {"JPG": "JPEG", "IMG": "JPEG", "IMAGE": "JPEG", "TIF": "TIFF", "PGM": "PPM", "PBM": "PPM"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 100},
    "WEBP": {"lossless": True, "exact": True},
    "AVIF": {"quality": 100, "subsampling": "4:4:4"},
    "GIF": {"optimize": False},
}
_MOST_COLOURS = 256
# Pillow clips for some of them
_OF_8_BITS = frozenset(["JPG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "PGM", "PBM"])


def encode_image(image: object, format: str = "PNG") -> bytes:  # noqa: A002  upstream's name
    """Encode an image.

    Args:
        image: a Pillow image; an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] of uint8, bool, or floats in [0, 1]
            (beyond by at most 0.001; scaled by 255 and cut off to integers), or [H, W] of uint16; or a tensor of these
            kinds, its channels first.
        format: Pillow's name of a format, or "PGM" (grey), "PBM" (black and white); any case. JPEG and AVIF are
            written with quality 100, WebP lossless, GIF exactly, so with 256 colours at most.

    Raises:
        EncodingError: not such an image, or the format cannot hold it.
        MissingExtra: Pillow is not installed.
    """
    pillow = require("PIL.Image", extra="images", purpose="encoding images")
    name = format.upper()
    picture = image if isinstance(image, pillow.Image) else pillow.fromarray(_to_pixels(image))
    picture = _fit_mode(picture, name)
    stream = io.BytesIO()
    kind = _PILLOW_NAMES.get(name, name)
    try:
        picture.save(stream, format=kind, **_OPTIONS.get(kind, {}))
    except KeyError as error:
        raise EncodingError(
            f"this Pillow writes no {name} ({describe_error(error)}): pip install -U pillow (AVIF needs 11.3 or later)"
        ) from error
    except (OSError, ValueError) as error:
        raise EncodingError(
            f"an image of mode {picture.mode} cannot be written as {name}: {describe_error(error)}"
        ) from error
    return stream.getvalue()


def _fit_mode(picture: "Image", name: str) -> "Image":
    if name in _OF_8_BITS and picture.mode.partition(";")[0] in ("I", "F"):
        raise EncodingError(
            f"an image of mode {picture.mode} cannot be written as {_PILLOW_NAMES.get(name, name)}, which holds 8 bits "
            "of a pixel and channel: use PNG or TIFF"
        )
    if name in ("PGM", "PBM"):
        return picture.convert("L" if name == "PGM" else "1")
    if picture.mode == "P" and name in ("JPG", "JPEG", "PPM") and "transparency" not in picture.info:
        return picture.convert("RGB")
    if name == "BMP" and (picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info):
        raise EncodingError("BMP has no transparency that can be read back: use PNG or WebP")
    if name == "GIF" and picture.mode in ("RGB", "RGBA", "LA", "PA"):
        return _add_palette(picture)
    return picture


def _add_palette(picture: "Image") -> "Image":
    """Give a picture a palette of exactly its colours, for GIF; wholly transparent pixels are one of them."""
    values = np.asarray(picture.convert("RGBA")).copy()
    clear = values[..., 3] == 0
    values[clear] = 0
    if not np.isin(values[..., 3], (0, 255)).all():
        raise EncodingError("GIF has no partial transparency: use PNG or WebP")
    colours, places = np.unique(values.reshape(-1, 4).view(np.uint32), return_inverse=True)
    if len(colours) > _MOST_COLOURS:
        raise EncodingError(
            f"GIF holds {_MOST_COLOURS} colours and this picture has {len(colours)}: use PNG or WebP, or quantise it "
            "first (PIL.Image.Image.quantize)"
        )
    exact: Image = require("PIL.Image", extra="images", purpose="encoding images").fromarray(
        places.reshape(values.shape[:2]).astype(np.uint8)
    )
    exact = exact.convert("P")
    table = colours.view(np.uint8).reshape(-1, 4)
    exact.putpalette(table[:, :3].tobytes())
    if clear.any():
        exact.info["transparency"] = int(np.flatnonzero(table[:, 3] == 0)[0])
    return exact


def _to_pixels(image: object) -> np.ndarray:
    torch = loaded_module("torch")
    if torch is not None and isinstance(image, torch.Tensor):
        from webdataset.codecs.torch_codecs import image_pixels  # noqa: PLC0415  torch is loaded already, this module not

        image = image_pixels(image)
    if not isinstance(image, np.ndarray):
        kind = type(image).__name__
        raise EncodingError(f"{kind} is no image: pass a Pillow image, an array, a tensor, or the bytes of a file")
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim != 2 and not (image.ndim == 3 and image.shape[2] in (3, 4)):
        raise EncodingError(f"an array of shape {image.shape} is no image: [H, W] or [H, W, 1, 3 or 4] is")
    if image.dtype.kind == "f":
        return _as_bytes(image)
    if image.dtype != np.uint8 and not (image.ndim == 2 and image.dtype in (np.uint16, np.bool_)):
        raise EncodingError(f"an array of {image.dtype} and shape {image.shape} is no image: uint8 or floats are")
    return np.ascontiguousarray(image)


def _as_bytes(image: np.ndarray) -> npt.NDArray[np.uint8]:
    lowest, highest = (image.min(), image.max()) if image.size else (0, 0)
    # NaN fails, too
    if not (lowest >= -_TOLERANCE and highest <= 1 + _TOLERANCE):
        raise EncodingError(f"float images must lie in [0, 1]; this one in [{lowest}, {highest}]")
    return np.clip(image * 255.0, 0.0, 255.0).astype(np.uint8)


encode_jpeg = partial(encode_image, format="JPEG")
encode_png = partial(encode_image, format="PNG")
encode_pbm = partial(encode_image, format="PBM")
encode_pgm = partial(encode_image, format="PGM")
encode_ppm = partial(encode_image, format="PPM")
encode_tiff = partial(encode_image, format="TIFF")
encode_webp = partial(encode_image, format="WEBP")
encode_avif = partial(encode_image, format="AVIF")
encode_gif = partial(encode_image, format="GIF")
encode_bmp = partial(encode_image, format="BMP")
