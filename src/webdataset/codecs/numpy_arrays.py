"""``.npy`` and ``.npz`` fields: numpy arrays without pickled objects.

Decoded arrays are writable, own their memory, and equal what ``numpy.load`` gives. Headers repeat from sample to
sample, so a parsed header is cached under its bytes; ``numpy.load`` decides any doubtful case.
"""

import io
import math
import zipfile
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from webdataset.codecs.compression import FREE_BYTES, MOST_GROWTH
from webdataset.core import settings
from webdataset.core.errors import EncodingError, FieldTooLarge, describe_error
from webdataset.core.optional_imports import loaded_module
from webdataset.core.tracebacks import warn_user

_MAGIC = b"\x93NUMPY"
_MOST_HEADERS = 1024
_Header = tuple[np.dtype[np.generic], tuple[int, ...], bool, int]
_headers: dict[bytes, _Header] = {}


def npy_loads(data: bytes) -> np.ndarray:
    """Decode a ``.npy`` field (format version 1 to 3) to a writable array that owns its memory.

    Raises:
        ValueError: not such a file, cut short, or an array of pickled objects.
    """
    start = _content_start(data)
    if start is None:
        return _load_with_numpy(data)
    header = data[:start]
    known = _headers.get(header)
    if known is None:
        known = _parse_header_once(header)
    kind, shape, fortran, count = known
    if count * kind.itemsize > len(data) - start:
        raise ValueError(f"an array of shape {shape}, dtype {kind} needs more than the {len(data) - start} bytes there")
    if kind.hasobject or count == 0 or kind.itemsize == 0:
        return _load_with_numpy(data)
    flat = np.frombuffer(data, kind, count, start)
    if fortran:
        return flat.reshape(shape[::-1]).T.copy(order="F")
    return flat.reshape(shape).copy()


def _load_with_numpy(data: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _content_start(data: bytes) -> int | None:
    """Return where the numbers start, or None where the header is not whole, or of version 3 (names beyond latin-1)."""
    if data[:6] != _MAGIC or len(data) < 12 or data[7] != 0:
        return None
    if data[6] == 1:
        start = 10 + int.from_bytes(data[8:10], "little")
    elif data[6] == 2:
        start = 12 + int.from_bytes(data[8:12], "little")
    else:
        return None
    return start if start <= len(data) else None


def _parse_header_once(header: bytes) -> _Header:
    try:
        shape, fortran, kind = _parse_header(header)
    except SystemError:
        # numpy parses with ast, which CPython 3.11 can fail in ("recursion depth mismatch") where another thread
        # enters it meanwhile: https://github.com/python/cpython/issues/106905
        shape, fortran, kind = _parse_header(header)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array cannot have the shape {shape}")
    if len(_headers) >= _MOST_HEADERS:
        _headers.clear()
    known = _headers[header] = (kind, shape, fortran, math.prod(shape))
    return known


def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)


class NpzArrays(dict[str, Any]):
    """The arrays of a ``.npz`` field, by name: a dict that can also be used as numpy's ``NpzFile`` is."""

    @property
    def files(self) -> list[str]:
        """The names of the arrays."""
        return list(self)

    def close(self) -> None:
        """Do nothing: all arrays are in memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def npz_loads(data: bytes) -> NpzArrays:
    """Decode a ``.npz`` field to names and arrays (bytes, for other members), with the ``files`` of ``numpy.load``.

    Raises:
        ValueError: pickled objects, or damaged arrays.
        FieldTooLarge: they would take more than ``WDS_MAX_FIELD_BYTES``, or are a bomb.
        zipfile.BadZipFile: not a zip file.
    """
    arrays = NpzArrays()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > max(FREE_BYTES, min(settings.MAX_FIELD_BYTES.get(), len(data) * MOST_GROWTH), len(data)):
            raise FieldTooLarge(
                f"the arrays of an npz field of {len(data)} bytes would take {size} bytes (WDS_MAX_FIELD_BYTES)"
            )
        for name in archive.namelist():
            content = archive.read(name)
            arrays[name.removesuffix(".npy")] = npy_loads(content) if content[:6] == _MAGIC else content
    return arrays


def npy_dumps(data: object) -> bytes:
    """Encode an array, number, torch tensor, or nested lists of numbers as ``.npy``.

    Raises:
        EncodingError: the array would hold objects.
    """
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _as_array(data), allow_pickle=False)
    return stream.getvalue()


def npz_dumps(data: Mapping[str, object]) -> bytes:
    """Encode a dict of names to arrays (or what ``npy_dumps`` takes) as compressed ``.npz``, the same way every time.

    Raises:
        EncodingError: not such a dict, or an array would hold objects.
    """
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise EncodingError(f"npz takes a dict of names to arrays, not {type(data).__name__}")
    cut = next((name for name in data if "\0" in name), None)
    if cut is not None:
        raise EncodingError(f"npz takes names without a NUL, which a zip archive would cut: {cut[:50]!r}")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in data.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, npy_dumps(array))
    return stream.getvalue()


def _as_array(value: object) -> np.ndarray:
    torch = loaded_module("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from webdataset.codecs.torch_codecs import as_array  # noqa: PLC0415  torch is loaded already, this module not

        value = as_array(value)
    try:
        array = as_plain_array(value)
    except ValueError as error:
        raise EncodingError(f"{type(value).__name__} does not become an array: {describe_error(error)}") from error
    if array.dtype.hasobject:
        raise EncodingError(f"an array of objects (from {type(value).__name__}) cannot be written without pickles")
    return array


def as_plain_array(value: object) -> np.ndarray:
    """Return an array as files hold it: without a mask, and with a warning where that hides values.

    Raises:
        ValueError: no array, as numpy says.
    """
    masks = loaded_module("numpy.ma")
    if masks is not None and isinstance(value, masks.MaskedArray) and masks.is_masked(value):
        warn_user(
            "the mask of a masked array is not written, so that its hidden values come back as values: write "
            "array.filled(...), or np.ma.getmaskarray(array) as a field of its own"
        )
    return np.asarray(value)
