"""Pictures of fields for the page: images, arrays that look like images, the first frame of videos.

Runs in the limited process alone. The number of pixels is checked before they are decoded; JPEGs are decoded at a
fraction of their size; only the first frame of animations is decoded. SVG, HTML and EPS are never rendered.
"""

import io
import re
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from webdataset.codecs.images.decode import check_size, open_image
from webdataset.codecs.media import VIDEO_EXTENSIONS
from webdataset.core import settings
from webdataset.core.optional_imports import require
from webdataset.inspection.image_header import read_image_size
from webdataset.viewer.array_views import find_picture, load_arrays
from webdataset.viewer.preview_content import (
    ARRAYS,
    NoPreview,
    check_pixel_bytes,
    is_video,
    open_media,
    strip_compression,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_PICKLES: Final = frozenset(("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib"))
_NEAREST_MODES: Final = frozenset(("1", "P"))
_PLAIN_MODES: Final = frozenset(("L", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "LAB"))
_LABELS: Final = re.compile(r"(^|[._-])(seg|mask|label|labels|semantic|instance|annotation)", re.IGNORECASE)
_MOST_LABELS: Final = 64
_LOSSY: Final = ("JPEG", "MPO")
_QUALITY: Final = 80
_FAST: Final = 2


class _Notes(list[str]):
    """What is odd about a picture."""


@cache
def _pillow() -> ModuleType:
    pillow = require("PIL.Image", extra="images", purpose="showing images")
    limit = settings.MAX_IMAGE_PIXELS.get()
    if limit is not None:
        # Pillow's own bound would hold, too
        pillow.MAX_IMAGE_PIXELS = limit  # type: ignore[attr-defined]
    return pillow


def make_thumbnail(
    name: str, payload: bytes, *, size: int, page: int | None = None, partial: bool = False
) -> tuple[bytes, str | None, str]:
    """Return an encoded picture, what is odd about it, and its media type.

    Args:
        name: the field's name.
        payload: its bytes.
        size: the longer side, in pixels.
        page: which page of a TIFF file.
        partial: these are only the first bytes of the field.

    Raises:
        NoPreview: nothing that can be seen, or nothing that is shown.
        FieldTooLarge: too many pixels.
        OSError: damaged; decoders raise ``ValueError`` and others, too.
    """
    extension, content = strip_compression(name, payload)
    start = content[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if extension == "svg" or b"<svg" in start:
        raise NoPreview("SVG is never rendered here: its text is shown")
    if start.startswith((b"<!doctype html", b"<html")):
        raise NoPreview("the content is an HTML page, no image: HTML is never rendered here")
    if extension in _PICKLES:
        raise NoPreview("pickles are never loaded here")
    notes = _Notes()
    if extension in ARRAYS or content.startswith(b"\x93NUMPY"):
        image = _draw_first_array(extension, content, size, notes, labels=bool(_LABELS.search(name)))
    elif extension in VIDEO_EXTENSIONS.split() or is_video(content):
        image = _draw_frame(content, size, notes, partial=partial)
    else:
        image = _draw_image(content, size, notes, page=page, labels=bool(_LABELS.search(name)))
    encoded, media_type = _encode(image)
    return encoded, "; ".join(notes) or None, media_type


def _encode(image: "Image") -> tuple[bytes, str]:
    from PIL import features  # noqa: PLC0415  Pillow is there

    out = io.BytesIO()
    if features.check("webp"):
        image.save(out, "WEBP", quality=_QUALITY, method=_FAST)
        return out.getvalue(), "image/webp"
    image.save(out, "PNG")
    return out.getvalue(), "image/png"


def _draw_image(content: bytes, size: int, notes: _Notes, *, page: int | None, labels: bool) -> "Image":
    # formats whose headers are known are refused before a decoder sees them
    sides = read_image_size(content)
    if sides is not None:
        check_size(*sides, content)
    with _open(content) as image:
        if page is not None:
            _turn_page(image, page, content)
        if image.format in ("JPEG", "MPO"):
            image.draft(None, (2 * size, 2 * size))
        check_pixel_bytes(*image.size, max(len(image.getbands()), 4 if image.mode in ("I", "F") else 1))
        _load(image, notes)
        return _orient(_reduce_image(image, size, notes, labels=labels), image)


def _open(content: bytes) -> "Image":
    pillow = _pillow()
    try:
        return open_image(content)
    except pillow.UnidentifiedImageError as error:
        raise NoPreview("its first bytes are those of no image that can be decoded here") from error


def _turn_page(image: "Image", page: int, content: bytes) -> None:
    try:
        image.seek(page)
    except EOFError as error:
        raise NoPreview(f"the file has no page {page}") from error
    check_size(*image.size, content)


def _load(image: "Image", notes: _Notes) -> None:
    """Decode; where the file is cut short, what there is of it."""
    from PIL import ImageFile  # noqa: PLC0415  Pillow is there

    try:
        image.load()
    except OSError as error:
        if getattr(image, "fp", None) is None:
            raise
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            image.load()
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        notes.append(f"only a part decodes: {error}")


def _reduce_image(image: "Image", size: int, notes: _Notes, *, labels: bool) -> "Image":
    """Return a picture of mode L, RGB or RGBA, at most so large."""
    pillow = _pillow()
    most = (size, size)
    if image.mode in _NEAREST_MODES:
        small = image.copy()
        small.thumbnail(most, pillow.Resampling.NEAREST)
        return small.convert("RGBA" if "transparency" in image.info else "RGB")
    # class numbers do not survive a lossy format
    if image.mode == "L" and (labels or image.format not in _LOSSY):
        values = _thin(np.asarray(image), size)
        if values.size and 0 < int(values.max()) < (_MOST_LABELS if labels else _MOST_LABELS // 2):
            notes.append("class numbers, each in a colour")
            return _fit(_colour_labels(values), size)
    if image.mode not in _PLAIN_MODES:
        if image.mode in ("I", "F", "I;16", "I;16B", "I;16L", "I;16N"):
            return _fit(_draw_plane(np.asarray(image), size, notes), size)
        image = image.convert("RGBA" if image.mode in ("PA", "La", "RGBa") else "RGB")
    small = image.copy() if max(image.size) <= size else _shrink(image, size)
    return small.convert("RGBA" if small.mode in ("LA", "RGBA") else "L" if small.mode == "L" else "RGB")


def _shrink(image: "Image", size: int) -> "Image":
    width, height = image.size
    scale = size / max(width, height)
    shape = max(1, round(width * scale)), max(1, round(height * scale))
    resized: Image = image.resize(shape, _pillow().Resampling.BICUBIC, reducing_gap=2.0)
    return resized


def _orient(small: "Image", image: "Image") -> "Image":
    """Turn a picture as its EXIF data say."""
    from PIL import ExifTags  # noqa: PLC0415  Pillow is there

    pillow = _pillow()
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001  damaged EXIF data, whatever they raise: the picture is shown as it lies
        return small
    names = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
             7: "TRANSVERSE", 8: "ROTATE_90"}  # fmt: skip
    turn = names.get(orientation) if isinstance(orientation, int) else None
    return small if turn is None else small.transpose(pillow.Transpose[turn])


def _draw_frame(content: bytes, size: int, notes: _Notes, *, partial: bool) -> "Image":
    with open_media(content, partial=partial) as container:
        if not container.streams.video:
            raise NoPreview("the file has no video track")
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        check_size(stream.width, stream.height)
        for frame in container.decode(stream):
            check_size(frame.width, frame.height)
            image: Image = frame.to_image()  # type: ignore[no-untyped-call]
            turns = getattr(frame, "rotation", 0) or 0
            if turns % 360:
                image = image.rotate(turns, expand=True)
            return _reduce_image(image, size, notes, labels=False)
    raise NoPreview("the video has no frame in what was read of it" if partial else "the video has no frames")


def _draw_first_array(extension: str, content: bytes, size: int, notes: _Notes, *, labels: bool) -> "Image":
    found = "no array"
    for loaded in load_arrays(extension, content):
        if loaded.values is None:
            found = loaded.problem or found
            continue
        picture = find_picture(loaded.values)
        if picture is not None:
            return draw_array(picture, size, notes, labels=labels)
        found = f"an array of shape {list(loaded.values.shape)}, dtype {loaded.values.dtype}"
    raise NoPreview(f"{found}: nothing that looks like a picture")


def draw_array(values: np.ndarray, size: int, notes: _Notes, *, labels: bool = False) -> "Image":
    """Return a picture of an array.

    Args:
        values: [H, W] or [H, W, C] of booleans, integers, floats or complex numbers.
        size: the longer side, in pixels.
        notes: gets what is odd about it.
        labels: small integers are classes, whatever they are.
    """
    small = _thin(values, 2 * size)
    if small.ndim == 2:
        is_few = small.dtype.kind in "iu" and small.size and int(small.min()) >= 0 and int(small.max()) < _MOST_LABELS
        if is_few and (labels or int(small.max()) < _MOST_LABELS // 2):
            notes.append("class numbers, each in a colour")
            return _fit(_colour_labels(_thin(values, size)), size)
        return _fit(_draw_plane(small, size, notes), size)
    return _fit(_from_pixels(_to_bytes(small, notes)), size)


def _thin(values: np.ndarray, size: int) -> np.ndarray:
    """Leave out rows and columns of what is much larger than it is shown."""
    step = max(1, -(-max(values.shape[:2]) // size))
    return values[::step, ::step]


def _draw_plane(values: np.ndarray, size: int, notes: _Notes) -> "Image":
    return _from_pixels(_to_bytes(_thin(values, 2 * size), notes))


def _from_pixels(values: np.ndarray) -> "Image":
    image: Image = _pillow().fromarray(values)
    return image


def _fit(image: "Image", size: int) -> "Image":
    return _shrink(image, size) if max(image.size) > size else image


def _to_bytes(values: np.ndarray, notes: _Notes) -> np.ndarray:
    """Return pixels as uint8: floats of [0, 1], [-1, 1] and [0, 255] by their meaning, others stretched."""
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype.kind == "b":
        return np.ascontiguousarray(values.astype(np.uint8) * 255)
    if values.dtype.kind == "c":
        values = np.abs(values)
        notes.append("absolute values")
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    if not finite.all():
        notes.append("values that are not finite are shown as the least")
    least = float(numbers[finite].min()) if finite.any() else 0.0
    most = float(numbers[finite].max()) if finite.any() else 0.0
    low, high = _choose_range(values.dtype.kind, least, most)
    if (low, high) == (least, most) and least < most:
        notes.append(f"shown from {least:.6g} to {most:.6g}")
    numbers[~finite] = low
    # halves: the difference of the largest floats is no float
    scaled = (numbers / 2 - low / 2) / max(high / 2 - low / 2, np.finfo(np.float64).tiny)
    return np.ascontiguousarray((scaled.clip(0, 1) * 255).astype(np.uint8))


def _choose_range(kind: str, least: float, most: float) -> tuple[float, float]:
    """Return which values are black and white."""
    if kind == "f":
        for low, high in ((0.0, 1.0), (-1.0, 1.0)):
            if low <= least and most <= high and most > low:
                return low, high
    if least >= 0 and 64 < most <= 255:
        return 0.0, 255.0
    return (least, most) if least < most else (least, least + 1)


@cache
def _palette() -> np.ndarray:
    """Return a colour for each class: black, then hues a golden angle apart."""
    import colorsys  # noqa: PLC0415  where there are classes

    colours = [(0.0, 0.0, 0.0)]
    colours += [
        colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.85 - 0.25 * (number % 3 == 2), 1 - 0.3 * (number % 2))
        for number in range(1, _MOST_LABELS)
    ]
    return (np.array(colours) * 255).astype(np.uint8)


def _colour_labels(values: np.ndarray) -> "Image":
    return _from_pixels(_palette()[values.astype(np.intp)])
