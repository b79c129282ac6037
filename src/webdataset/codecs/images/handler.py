"""The handler of image fields, and the specs that name mode, library and depth of its results.

The results are numpy arrays, tensors or Pillow images of the mode that the spec names. The bytes tell the format, not
the extension. The module ``decode``, loaded with the first image, decodes.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from webdataset.codecs.handlers import KeyHandler, stays_bytes
from webdataset.codecs.registry import BytesDecoder
from webdataset.core import settings
from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_EXTENSIONS = """
    blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib png apng jp2 j2k jpc jpf jpx j2c icns
    ico im iim tif tiff jfif jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb vda vst webp
    wmf emf xbm xpm
"""
IMAGE_EXTENSIONS: list[str] = _EXTENSIONS.split()
# No published version of webdataset decodes these: they are images with decode("auto"), or where they are named.
AUTO_IMAGE_EXTENSIONS: list[str] = ["avif", "avifs", "heic", "heif", "hif", "jxl", "img", "image"]

imagespecs: dict[str, tuple[str, str | None, str]] = {
    "l8": ("numpy", "uint8", "l"),
    "rgb8": ("numpy", "uint8", "rgb"),
    "rgba8": ("numpy", "uint8", "rgba"),
    "l": ("numpy", "float", "l"),
    "rgb": ("numpy", "float", "rgb"),
    "rgba": ("numpy", "float", "rgba"),
    "torchl8": ("torch", "uint8", "l"),
    "torchrgb8": ("torch", "uint8", "rgb"),
    "torchrgba8": ("torch", "uint8", "rgba"),
    "torchl": ("torch", "float", "l"),
    "torchrgb": ("torch", "float", "rgb"),
    "torch": ("torch", "float", "rgb"),
    "torchrgba": ("torch", "float", "rgba"),
    "pill": ("pil", None, "l"),
    "pil": ("pil", None, "rgb"),
    "pilrgb": ("pil", None, "rgb"),
    "pilrgba": ("pil", None, "rgba"),
}


class ImageHandler(KeyHandler):
    """Decodes images to the mode, library and depth that a spec names.

    ======================== ======================================================
    spec                     value
    ======================== ======================================================
    l8, rgb8, rgba8          numpy uint8[H, W] or uint8[H, W, C]
    l, rgb, rgba             numpy float32 of the same shapes, in [0, 1]
    torchl8, torchrgb8, …    torch uint8[H, W] or uint8[C, H, W]
    torchl, torchrgb, torch… torch float32 of the same shapes, in [0, 1]
    pill, pil, pilrgb, …     a Pillow image of mode L, RGB or RGBA
    ======================== ======================================================

    Args:
        imagespec: one of ``imagespecs``, in lower case.
        extensions: last components of field names to decode, any case; a list, or a string split at spaces.
        least: height and width in pixels that are enough (one number is both): JPEGs are then decoded at the smallest
            of 1/1, 1/2, 1/4 and 1/8 of their size that is as large, which takes less time; not for Pillow images.

    Raises:
        UsageError: an unknown spec, or a size below 1.
    """

    final = True

    def __init__(
        self,
        imagespec: str,
        extensions: str | Iterable[str] = IMAGE_EXTENSIONS,
        *,
        least: int | tuple[int, int] | None = None,
    ) -> None:
        if imagespec not in imagespecs:
            raise UsageError(f"unknown image spec {imagespec!r}; there are {', '.join(imagespecs)}")
        self.imagespec = imagespec
        chosen = extensions.split() if isinstance(extensions, str) else extensions
        self.extensions = {extension.lower() for extension in chosen}
        self.least = (least, least) if isinstance(least, int) else least
        if self.least is not None and (min(self.least) < 1 or imagespecs[imagespec][0] == "pil"):
            raise UsageError(
                f"least={least!r} with {imagespec!r}: a height and width of at least 1, for arrays and tensors (a "
                "Pillow image can be asked for its draft)"
            )

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:  # noqa: ARG002  images run no code at any level
        """Return the decoding function where the key's last extension is one of these, else None.

        ``WDS_MAX_IMAGE_PIXELS`` is read here, and the decoders are loaded, not for every image.
        """
        if key.rpartition(".")[2].lower() not in self.extensions or stays_bytes(key):
            return None
        return image_decoder(imagespecs[self.imagespec], settings.MAX_IMAGE_PIXELS.get(), self.least)

    def __repr__(self) -> str:
        return f"ImageHandler({self.imagespec!r}{'' if self.least is None else f', least={self.least}'})"


def imagehandler(
    imagespec: str,
    extensions: str | Iterable[str] = IMAGE_EXTENSIONS,
    *,
    least: int | tuple[int, int] | None = None,
) -> ImageHandler:
    """Return a handler that decodes images.

    Args:
        imagespec: one of ``imagespecs`` ("rgb", "torchrgb8", "pil", …).
        extensions: which fields are images.
        least: height and width in pixels that are enough (one number is both): JPEGs are decoded at 1/2, 1/4 or 1/8 of
            their size where that is as large. Resizing to the size that is wanted is left to a map.

    Raises:
        UsageError: an unknown spec, or a size below 1.
    """
    return ImageHandler(imagespec, extensions, least=least)


def image_decoder(
    spec: tuple[str, str | None, str], limit: int | None, least: tuple[int, int] | None = None
) -> BytesDecoder:
    """Return the function that decodes images as a spec says.

    It raises MissingExtra where Pillow or torch is not installed, FieldTooLarge for more pixels than the limit, and
    OSError for what is no image, or damaged.

    Args:
        spec: library ("numpy", "torch", "pil"), depth ("uint8", "float", None for Pillow), mode ("l", "rgb", "rgba").
        limit: pixels that an image may have; None means as many as Pillow is told, or this library's default.
        least: height and width that are enough for a JPEG; None for its full size.
    """
    from webdataset.codecs.images import decode  # noqa: PLC0415  loads numpy, which text needs not

    library, depth, name = spec
    mode = name.upper()
    if library == "pil":
        return partial(decode.decode_picture, mode=mode, limit=limit)
    decoded = partial(decode.decode_pixels, mode=mode, limit=limit, least=least)
    if library == "torch":
        return lambda data: _make_tensor(decoded(data), depth or "uint8")
    return decoded if depth == "uint8" else lambda data: decode.scale_to_floats(decoded(data))


def _make_tensor(decoded: "npt.NDArray[np.uint8]", depth: str) -> object:
    require("torch", extra="torch", purpose="decoding images to tensors")
    from webdataset.codecs.torch_codecs import image_tensor  # noqa: PLC0415  loads torch

    return image_tensor(decoded, depth)
