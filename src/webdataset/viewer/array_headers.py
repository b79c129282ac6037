"""Names, shapes and types of the arrays in a field, by its headers: no number is read, nothing is unpickled.

npz: the zip directory at the end and the first bytes of each member, deflated at most. safetensors: its JSON header.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable
from typing import Final

from webdataset.inspection.field_preview import read_npy_header
from webdataset.storage.random_access import RangeFile
from webdataset.viewer.plain_values import JsonObject, bound_json, clean_text, explain_failure

_HEADER_BYTES: Final = 4096
_SAFETENSORS_BYTES: Final = 1 << 20
_MOST_ARRAYS: Final = 64
# a directory of more members is not worth its memory
_MOST_MEMBERS: Final = 10_000
_MOST_DIRECTORY_BYTES: Final = 1 << 20
_PLAIN: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DAMAGE: Final = (
    ValueError, OSError, EOFError, KeyError, TypeError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What readers of zip files and headers raise where these are damaged."""

Read = Callable[[int, int], bytes]


def list_arrays(extension: str, size_bytes: int, read: Read) -> tuple[list[JsonObject], str | None]:
    """Return name, shape and dtype of each array of a field, and what is wrong or left out, or None.

    Args:
        extension: ``npy``, ``npz`` or ``safetensors``; others have no header that tells.
        size_bytes: of the payload.
        read: reads a range of it.
    """
    try:
        if extension == "npz":
            return _list_npz(size_bytes, read)
        if extension == "safetensors":
            return _list_safetensors(size_bytes, read)
    except DAMAGE as error:
        return [], f"its header cannot be read: {explain_failure(error)[:200]}"
    found = read_npy_header(read(0, min(size_bytes, _HEADER_BYTES)))
    return ([_describe("", found[1], found[0])], None) if found is not None else ([], None)


def _describe(name: str, shape: Iterable[object], dtype: str) -> JsonObject:
    return {"name": clean_text(name)[:200], "shape": bound_json(list(shape))[0], "dtype": clean_text(dtype)[:100]}


def check_zip_directory(payload_end: bytes) -> str | None:
    """Return why the directory of a zip file is too large to be read, or None.

    Args:
        payload_end: the last 64 KiB and 22 bytes of the file, or all of it.
    """
    at = payload_end.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(payload_end):
        return None
    members = int.from_bytes(payload_end[at + 10 : at + 12], "little")
    directory_bytes = int.from_bytes(payload_end[at + 12 : at + 16], "little")
    if members > _MOST_MEMBERS or directory_bytes > _MOST_DIRECTORY_BYTES:
        return f"the zip directory has {members} members in {directory_bytes} bytes, too many to show"
    return None


def _list_npz(size_bytes: int, read: Read) -> tuple[list[JsonObject], str | None]:
    refused = check_zip_directory(read(max(0, size_bytes - (64 << 10) - 22), size_bytes))
    if refused is not None:
        return [], refused
    arrays = []
    file = RangeFile(lambda offset, size: read(offset, offset + size), size_bytes)
    with zipfile.ZipFile(io.BufferedReader(file, 64 << 10)) as archive:
        members = archive.infolist()
        for member in members[:_MOST_ARRAYS]:
            if member.compress_type not in _PLAIN:
                arrays.append(_describe(member.filename, (), "compressed in a way that numpy does not write"))
                continue
            with archive.open(member) as stream:
                found = read_npy_header(stream.read(_HEADER_BYTES))
            name = member.filename.removesuffix(".npy")
            arrays.append(
                _describe(name, *((found[1], found[0]) if found else ((member.file_size,), "bytes, no array")))
            )
    left = len(members) - len(arrays)
    return arrays, f"{left} more arrays are not shown" if left else None


def read_safetensors_header(size_bytes: int, read: Read) -> dict[str, JsonObject]:
    """Return what the header of a safetensors file says of each tensor: ``dtype``, ``shape``, ``data_offsets``.

    Args:
        size_bytes: of the payload.
        read: reads a range of it.

    Raises:
        ValueError: not such a file, or a header of more than 1 MiB.
    """
    length = int.from_bytes(read(0, min(8, size_bytes)), "little")
    if size_bytes < 8 or length > size_bytes - 8:
        raise ValueError("no safetensors file: its header would be longer than the file")
    if length > _SAFETENSORS_BYTES:
        raise ValueError(f"the header has {length} bytes, more than {_SAFETENSORS_BYTES} are not shown")
    header = json.loads(read(8, 8 + length))
    if not isinstance(header, dict):
        raise ValueError("no safetensors file: its header is no JSON object")  # noqa: TRY004  as any other damage
    return {name: about for name, about in header.items() if name != "__metadata__" and isinstance(about, dict)}


def _list_safetensors(size_bytes: int, read: Read) -> tuple[list[JsonObject], str | None]:
    header = read_safetensors_header(size_bytes, read)
    names = sorted(header)
    arrays = [
        _describe(name, header[name].get("shape", ()), str(header[name].get("dtype"))) for name in names[:_MOST_ARRAYS]
    ]
    left = len(names) - len(arrays)
    return arrays, f"{left} more arrays are not shown" if left else None
