"""Crops of images at the size that a model takes, as training and evaluation draw them.

Theory. A photograph of 12 megapixels of which a crop of 224 x 224 is made needs no 12 megapixels decoded: a JPEG can be
decoded at 1/2, 1/4 or 1/8 of its size, by leaving out fine coefficients. The part is drawn first, in pixels of the full
image, from its header; then the image is decoded at the least scale at which the part is as large as what is wanted,
and that part is cut out and resized with antialiasing. Where no scale is as large, it is what Pillow makes of the full
image, to the bit. torch resizes faster than Pillow, with values that differ by 2 at most (``bench/image_crops.py``).
"""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from webdataset.codecs.images import decode, output_buffer
from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import require

Size = int | tuple[int, int]
"""Height and width in pixels; one number is both."""

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge in pixels of the full image."""

Resize = Callable[[npt.NDArray[np.uint8], Box, tuple[int, int]], npt.NDArray[np.uint8]]
"""Pixels, a box in them, and the height and width wanted, to that part resized."""

_TRIES = 10
_FILTERS = {
    "pillow": ("bilinear", "bicubic", "nearest", "box", "hamming", "lanczos"),
    "torch": ("bilinear", "bicubic"),
}


class RandomSource(Protocol):
    """A generator of random numbers: ``random.Random``, or ``numpy.random.Generator``."""

    def random(self) -> float:
        """Return a number from 0 up to 1, 1 excluded."""


def random_resized_crop(
    data: bytes,
    size: Size,
    rng: RandomSource,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    resample: str = "bilinear",
    resizer: str = "pillow",
) -> npt.NDArray[np.uint8]:
    """Decode a random part of an image, resized and perhaps mirrored: the usual augmentation of classifiers.

    The part has a share of the image's area that is uniform in ``scale``, and a width to height whose logarithm is
    uniform in that of ``ratio``, at a uniform place. Where ten such parts do not fit, it is the largest one in the
    middle whose ratio is allowed.

    Example::

        def augment(sample, rng):
            return wds.random_resized_crop(sample["jpg"], 224, rng), int(sample["cls"])

        dataset = wds.WebDataset(urls, seed=0).map(augment, rng=True)

    Args:
        data: the encoded image, of any format that Pillow reads.
        size: height and width of the result in pixels (one number is both).
        rng: what is drawn from; ``map(f, rng=True)`` gives one to ``f`` that is the same after a resume.
        scale: least and greatest share of the image's area.
        ratio: least and greatest width to height.
        flip: probability with which left and right are exchanged.
        resample: filter: "bilinear" or "bicubic"; with Pillow also "nearest", "box", "hamming" or "lanczos".
        resizer: "pillow", or "torch" (faster; edges are rounded to whole pixels of what is decoded).

    Returns:
        A uint8[height, width, 3].

    Raises:
        UsageError: an argument that cannot be meant; no generator.
        MissingExtra: Pillow, or torch, is not installed.
        FieldTooLarge: the image has more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        OSError: not an image that Pillow knows, or damaged.
    """
    _check_range("scale", scale, 1.0)
    _check_range("ratio", ratio, math.inf)
    if not callable(getattr(rng, "random", None)):
        raise UsageError(f"rng={rng!r} is no generator: take the one that map(f, rng=True) gives to f(sample, rng)")
    if not 0 <= flip <= 1:
        raise UsageError(f"flip={flip!r} is no probability: write a number from 0 to 1")
    resize = _choose_resize(resizer, resample)
    mirrored = rng.random() < flip
    pixels = _decode(data, size, lambda high, wide: _draw_box(rng, high, wide, scale, ratio), resize)
    return decode.copy_to_output(pixels[:, ::-1] if mirrored else pixels)


def center_crop(
    data: bytes, size: Size, *, resize: int | None = None, resample: str = "bilinear", resizer: str = "pillow"
) -> npt.NDArray[np.uint8]:
    """Decode the middle of an image: the usual preparation for an evaluation.

    Args:
        data: the encoded image, of any format that Pillow reads.
        size: height and width of the result in pixels (one number is both).
        resize: of the whole image's shorter side, in pixels, before the middle is cut out (256 is usual for 224); where
            the middle would be larger than the image then, and by default, it is the largest part of this shape.
        resample: filter: "bilinear" or "bicubic"; with Pillow also "nearest", "box", "hamming" or "lanczos".
        resizer: "pillow", or "torch" (faster; edges are rounded to whole pixels of what is decoded).

    Returns:
        A uint8[height, width, 3].

    Raises:
        UsageError: an argument that cannot be meant.
        MissingExtra: Pillow, or torch, is not installed.
        FieldTooLarge: the image has more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        OSError: not an image that Pillow knows, or damaged.
    """
    wanted = _read_size(size)
    if resize is not None and not (isinstance(resize, int) and resize > 0):
        raise UsageError(f"resize={resize!r} is no length of a side in pixels: write resize=256, or leave it out")
    resizing = _choose_resize(resizer, resample)
    return decode.copy_to_output(
        _decode(data, size, lambda high, wide: _find_middle(high, wide, wanted, resize), resizing)
    )


def decode_crop(
    data: bytes, box: Box, size: Size, *, flip: bool = False, resample: str = "bilinear", resizer: str = "pillow"
) -> npt.NDArray[np.uint8]:
    """Decode one part of an image at one size.

    Args:
        data: the encoded image, of any format that Pillow reads.
        box: left, upper, right and lower edge of the part, in pixels of the full image; fractions are allowed.
        size: height and width of the result in pixels (one number is both).
        flip: exchanges left and right.
        resample: filter: "bilinear" or "bicubic"; with Pillow also "nearest", "box", "hamming" or "lanczos".
        resizer: "pillow", or "torch" (faster; edges are rounded to whole pixels of what is decoded).

    Returns:
        A uint8[height, width, 3].

    Raises:
        UsageError: a box that is empty or reaches out of the image; another argument that cannot be meant.
        MissingExtra: Pillow, or torch, is not installed.
        FieldTooLarge: the image has more pixels than the limit (``WDS_MAX_IMAGE_PIXELS``).
        OSError: not an image that Pillow knows, or damaged.
    """

    def check(high: int, wide: int) -> Box:
        left, upper, right, lower = box
        if not (0 <= left < right <= wide and 0 <= upper < lower <= high):
            raise UsageError(
                f"box={box!r} is no part of an image {wide} wide and {high} high: it is (left, upper, right, lower)"
            )
        return box

    pixels = _decode(data, size, check, _choose_resize(resizer, resample))
    return decode.copy_to_output(pixels[:, ::-1] if flip else pixels)


def _decode(data: object, size: Size, choose: Callable[[int, int], Box], resize: Resize) -> npt.NDArray[np.uint8]:
    """Decode the part that ``choose`` takes of a height and width."""
    wanted = _read_size(size)
    if isinstance(data, memoryview):
        data = bytes(data)
    if not isinstance(data, bytes):
        raise UsageError(
            f"a crop is decoded from the bytes of a field, not from a {type(data).__name__}: write decode() without "
            "'rgb8' or the like, which leaves images as bytes"
        )
    high, wide = decode.read_image_size(data)
    left, upper, right, lower = choose(high, wide)
    factor = _choose_factor((lower - upper, right - left), wanted)
    least = -(-high // factor), -(-wide // factor)
    # the whole image is no row of a batch, even where it has the same shape
    with output_buffer.use_provider(None):
        pixels = decode.decode_pixels(data, "RGB", least=None if factor == 1 else least)
    if pixels.shape[:2] != least:
        # no JPEG
        factor = 1
    # the last row and column of a scaled JPEG stand for pixels beyond the image, too
    return resize(pixels, (left / factor, upper / factor, right / factor, lower / factor), wanted)


def _choose_resize(resizer: str, resample: str) -> Resize:
    """Return what cuts a part out of pixels and resizes it.

    Raises:
        UsageError: there is no such library, or it has no such filter.
    """
    filters = _FILTERS.get(resizer)
    if filters is None:
        raise UsageError(f"resizer={resizer!r}: there are {', '.join(map(repr, _FILTERS))}")
    if resample not in filters:
        raise UsageError(f"resample={resample!r}: {resizer} has {', '.join(map(repr, filters))}")
    return partial(_resize_with_pillow if resizer == "pillow" else _resize_with_torch, resample=resample)


def _resize_with_pillow(
    pixels: npt.NDArray[np.uint8], edges: Box, wanted: tuple[int, int], resample: str
) -> npt.NDArray[np.uint8]:
    """Return a part of an array at the size that is wanted."""
    pillow = require("PIL.Image", extra="images", purpose="resizing images")
    left, upper = int(edges[0]), int(edges[1])
    part = pixels[upper : math.ceil(edges[3]), left : math.ceil(edges[2])]
    box = (edges[0] - left, edges[1] - upper, edges[2] - left, edges[3] - upper)
    if part.shape[:2] == wanted and box == (0.0, 0.0, float(wanted[1]), float(wanted[0])):
        return part
    image = pillow.fromarray(np.ascontiguousarray(part))
    return np.asarray(image.resize(wanted[::-1], pillow.Resampling[resample.upper()], box=box))


def _resize_with_torch(
    pixels: npt.NDArray[np.uint8], edges: Box, wanted: tuple[int, int], resample: str
) -> npt.NDArray[np.uint8]:
    """Return a part of an array, to whole pixels, at the size that is wanted."""
    require("torch", extra="torch", purpose="resizing images with torch")
    from webdataset.codecs.torch_codecs import resize_pixels  # noqa: PLC0415  loads torch

    left, upper = (min(round(edge), side - 1) for edge, side in zip(edges[:2], pixels.shape[1::-1], strict=True))
    part = pixels[upper : max(round(edges[3]), upper + 1), left : max(round(edges[2]), left + 1)]
    return part if part.shape[:2] == wanted else resize_pixels(part, wanted, resample)


def _choose_factor(part: tuple[float, float], wanted: tuple[int, int]) -> int:
    """Return by how much a JPEG may be smaller when it is decoded, so that a part has at least the size wanted."""
    for factor in (8, 4, 2):
        if part[0] >= factor * wanted[0] and part[1] >= factor * wanted[1]:
            return factor
    return 1


def _draw_box(rng: RandomSource, high: int, wide: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """Draw a part of an image of this height and width."""
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = high * wide * (scale[0] + (scale[1] - scale[0]) * rng.random())
        shape = math.exp(logarithms[0] + (logarithms[1] - logarithms[0]) * rng.random())
        width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < width <= wide and 0 < height <= high:
            left = int(rng.random() * (wide - width + 1))
            upper = int(rng.random() * (high - height + 1))
            return left, upper, left + width, upper + height
    shape = min(max(wide / high, ratio[0]), ratio[1])
    return _place_middle(high, wide, min(high, wide / shape), min(wide, high * shape))


def _find_middle(high: int, wide: int, wanted: tuple[int, int], resize: int | None) -> Box:
    """Return the middle of an image that becomes what is wanted."""
    most = min(high / wanted[0], wide / wanted[1])
    factor = most if resize is None else min(most, min(high, wide) / resize)
    return _place_middle(high, wide, wanted[0] * factor, wanted[1] * factor)


def _place_middle(high: int, wide: int, height: float, width: float) -> Box:
    left, upper = max(0.0, (wide - width) / 2), max(0.0, (high - height) / 2)
    return left, upper, min(left + width, wide), min(upper + height, high)


def _read_size(size: Size) -> tuple[int, int]:
    """Return height and width.

    Raises:
        UsageError: no size.
    """
    try:
        height, width = map(operator.index, size if isinstance(size, tuple | list) else (size, size))
        if height > 0 and width > 0:
            return height, width
    except (TypeError, ValueError):
        pass
    raise UsageError(f"size={size!r} is no height and width in pixels: write 224, or (height, width)")


def _check_range(name: str, pair: tuple[float, float], most: float) -> None:
    """Refuse what is no range of numbers above 0.

    Raises:
        UsageError: it is none.
    """
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= most or pair[1] == math.inf:
        bound = "" if most == math.inf else f", at most {most:g}"
        raise UsageError(f"{name}={pair!r}: write two numbers above 0, the smaller first{bound}")
