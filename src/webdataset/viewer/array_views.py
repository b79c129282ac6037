"""Shape, dtype, statistics, histogram and first values of the arrays in a field.

Runs in the limited process alone. Arrays of objects are refused, zip members that grow too large are left out, and
statistics are made piece by piece, so that they need little memory beside the array.
"""

import io
import math
import zipfile
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from webdataset.codecs.numpy_arrays import npy_loads
from webdataset.codecs.safetensors_codec import NUMPY_TYPES
from webdataset.viewer.array_headers import DAMAGE, check_zip_directory, read_safetensors_header
from webdataset.viewer.plain_values import JsonObject, bound_json, clean_text, explain_failure
from webdataset.viewer.preview_content import ARRAYS, NoPreview, strip_compression

_MOST_ARRAYS: Final = 32
_MOST_MEMBER_BYTES: Final = 256 << 20
# of all members of a zip file
_MOST_WHOLE_BYTES: Final = 512 << 20
_PIECE: Final = 1 << 20
_BINS: Final = 32
_SHOWN: Final = 8
_PLAIN: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


_LEAST_SIDE: Final = 8


class LoadedArray(NamedTuple):
    """One array of a field.

    Args:
        name: its name; empty for a field of one array.
        values: the array, or None where it cannot be shown.
        problem: why not.
    """

    name: str
    values: np.ndarray | None
    problem: str | None = None


def describe_arrays(name: str, payload: bytes) -> JsonObject:
    """Return ``arrays``: what there is to say about each.

    Args:
        name: the field's name.
        payload: its bytes.

    Raises:
        NoPreview: the field holds no arrays.
        ValueError: damaged, or objects.
    """
    extension, content = strip_compression(name, payload)
    if extension not in ARRAYS and not content.startswith(b"\x93NUMPY"):
        raise NoPreview(f"a field {extension!r} holds no arrays that can be shown")
    arrays: list[JsonObject] = []
    for number, loaded in enumerate(load_arrays(extension, content)):
        if number == _MOST_ARRAYS:
            return {"arrays": arrays, "note": f"only the first {_MOST_ARRAYS} arrays are shown"}
        arrays.append(_describe(loaded))
    return {"arrays": arrays}


def load_arrays(extension: str, content: bytes) -> Iterator[LoadedArray]:
    """Yield the arrays of a field.

    Args:
        extension: its extension, in lower case.
        content: its bytes, compression taken off.

    Raises:
        ValueError: damaged, or objects.
        NoPreview: a zip file of too many members.
    """
    if content.startswith(b"\x93NUMPY") or extension == "npy":
        yield LoadedArray("", npy_loads(content))
    elif extension == "npz":
        yield from _load_npz(content)
    elif extension == "safetensors":
        yield from _load_safetensors(content)
    else:
        from webdataset.codecs.tenbin import tenbin_loads  # noqa: PLC0415  where there is one

        for number, values in enumerate(tenbin_loads(content)):
            yield LoadedArray(str(number), np.asarray(values))


def _load_npz(content: bytes) -> Iterator[LoadedArray]:
    refused = check_zip_directory(content[-(64 << 10) - 22 :])
    if refused is not None:
        raise NoPreview(refused)
    left = _MOST_WHOLE_BYTES
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            name = clean_text(member.filename.removesuffix(".npy"))[:200]
            most = min(_MOST_MEMBER_BYTES, left)
            if member.compress_type not in _PLAIN:
                yield LoadedArray(name, None, "compressed in a way that numpy does not write")
            elif member.file_size > most:
                yield LoadedArray(name, None, f"it would take {member.file_size} bytes, more than {most} are not shown")
            else:
                loaded = _load_member(archive, member, name, most)
                left -= 0 if loaded.values is None else loaded.values.nbytes
                yield loaded


def _load_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, most: int) -> LoadedArray:
    try:
        with archive.open(member) as stream:
            payload = stream.read(most + 1)
        if len(payload) > most:
            return LoadedArray(name, None, f"it grows beyond {most} bytes")
        if not payload.startswith(b"\x93NUMPY"):
            return LoadedArray(name, None, f"{len(payload)} bytes, no array")
        return LoadedArray(name, npy_loads(payload))
    except DAMAGE as error:
        return LoadedArray(name, None, explain_failure(error)[:200])


def _load_safetensors(content: bytes) -> Iterator[LoadedArray]:
    header = read_safetensors_header(len(content), lambda start, stop: content[start:stop])
    start = 8 + int.from_bytes(content[:8], "little")
    for name in sorted(header):
        yield _load_tensor(clean_text(name)[:200], header[name], content, start)


def _load_tensor(name: str, about: JsonObject, content: bytes, start: int) -> LoadedArray:
    kind = about.get("dtype")
    try:
        first, last = (int(each) for each in about["data_offsets"])
        shape = tuple(int(side) for side in about["shape"])
        if not 0 <= first <= last <= len(content) - start or min(shape, default=0) < 0:
            return LoadedArray(name, None, "its place is not within the file")
        if kind == "BF16":
            raw = np.frombuffer(content, "<u2", math.prod(shape), start + first)
            return LoadedArray(name, (raw.astype(np.uint32) << 16).view(np.float32).reshape(shape))
        if kind not in NUMPY_TYPES:
            return LoadedArray(name, None, f"type {clean_text(str(kind))[:40]}, which numpy does not have")
        dtype = NUMPY_TYPES[kind]
        if math.prod(shape) * dtype.itemsize != last - first:
            return LoadedArray(name, None, "its shape does not fit its bytes")
        return LoadedArray(name, np.frombuffer(content, dtype, math.prod(shape), start + first).reshape(shape))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        return LoadedArray(name, None, explain_failure(error)[:200])


def find_picture(values: np.ndarray) -> np.ndarray | None:
    """Return the part of an array that looks like a picture, as [H, W] or [H, W, C], or None.

    Args:
        values: [H, W], [H, W, C], [C, H, W] (C of 1, 3 or 4), or a stack of these: then its first.
    """
    if values.dtype.kind not in "biufc":
        return None
    while values.ndim > 3 and values.shape[0]:
        values = values[0]
    if values.ndim == 3 and values.shape[2] not in (1, 3, 4):
        values = np.moveaxis(values, 0, 2) if values.shape[0] in (1, 3, 4) else values[0] if len(values) else values
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim not in (2, 3) or min(values.shape[:2]) < _LEAST_SIDE:
        return None
    return values


def _describe(loaded: LoadedArray) -> JsonObject:
    values = loaded.values
    if values is None:
        return {"name": loaded.name, "problem": loaded.problem, "thumbnail": False}
    found: JsonObject = {
        "name": loaded.name,
        "shape": list(values.shape),
        "dtype": str(values.dtype)[:200],
        "preview": _preview(values),
        "thumbnail": find_picture(values) is not None,
    }
    if values.dtype.kind in "biuf" and values.size:
        found |= _summarize(values)
    return {name: bound_json(value)[0] for name, value in found.items()}


def _preview(values: np.ndarray) -> object:
    """Return the first values of the first slice, 8 x 8 at most."""
    while values.ndim > 2 and len(values):
        values = values[0]
    corner = values[tuple(slice(_SHOWN) for _ in range(min(values.ndim, 2)))]
    if corner.dtype.kind in "biuf":
        return corner.tolist()
    texts = [str(value)[:100] for value in corner.ravel()[: _SHOWN * _SHOWN].tolist()]
    return texts[0] if values.ndim == 0 and texts else texts


class _Moments:
    """Count, mean and sum of squares of numbers that come in pieces (Chan, Golub and LeVeque, 1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = 0.0
        self.least: Any = None
        self.most: Any = None

    def add(self, piece: np.ndarray) -> None:
        """Add finite numbers."""
        if not piece.size:
            return
        least, most = piece.min().item(), piece.max().item()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        numbers = piece.astype(np.float64)
        mean = float(numbers.mean())
        squares = float(np.square(numbers - mean).sum())
        whole = self.count + numbers.size
        apart = mean - self.mean
        self.squares += squares + apart * apart * self.count * numbers.size / whole
        self.mean += apart * numbers.size / whole
        self.count = whole


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        yield flat[start : start + _PIECE]


def _summarize(values: np.ndarray) -> JsonObject:
    """Return statistics of numbers; those that are not finite are counted and left out."""
    moments = _Moments()
    undefined = infinite = 0
    floats = values.dtype.kind == "f"
    with np.errstate(all="ignore"):
        for piece in _pieces(values):
            finite = piece
            if floats:
                fine = np.isfinite(piece)
                finite = piece[fine]
                nans = int(np.isnan(piece).sum())
                undefined += nans
                infinite += piece.size - finite.size - nans
            moments.add(finite)
        found: JsonObject = {"nan": undefined, "infinite": infinite}
        if moments.count:
            found |= {"minimum": moments.least, "maximum": moments.most, "mean": moments.mean}
            found["std"] = math.sqrt(moments.squares / moments.count) if moments.squares >= 0 else None
            found["histogram"] = _count_values(values, float(moments.least), float(moments.most))
    return found


def _count_values(values: np.ndarray, least: float, most: float) -> JsonObject | None:
    """Return a histogram of 32 bins, or of fewer for few whole numbers; None where their range is no number."""
    if not math.isfinite(most - least):
        return None
    bins = _BINS
    if values.dtype.kind in "biu" and most - least < _BINS:
        bins = int(most - least) + 1
        least, most = least - 0.5, most + 0.5
    elif least == most:
        least, most = least - 0.5, most + 0.5
    edges = np.linspace(least, most, bins + 1)
    if not (np.diff(edges) > 0).all():
        return None
    counts = np.zeros(bins, np.int64)
    for piece in _pieces(values):
        numbers = piece.astype(np.float64)
        counts += np.histogram(numbers[np.isfinite(numbers)], edges)[0]
    return {"edges": edges.tolist(), "counts": counts.tolist()}
