"""Reads datasets of MosaicML Streaming (MDS, version 2) as rows.

``index.json`` lists the shards, their columns and encodings. A shard is a count, the offsets of its samples (32 bits
each), its configuration, and the samples: the sizes of the columns of variable size, then the bytes of all columns. One
shard is in memory at a time. Sizes and hashes that the index records are verified. Nothing is unpickled: a pickled
column stays bytes under ``.pkl``.
"""

import functools
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, cast

from webdataset.core.errors import FormatError, MissingExtra, SampleError, Truncated, WebDatasetError
from webdataset.core.optional_imports import import_if_available, install_command, require
from webdataset.reshaping.field_values import Content, Row, RowConverter, guess_extension, last_extension
from webdataset.shards.urls import check_document_url, join_url, parent_folder
from webdataset.storage.open_url import open_stream
from webdataset.tar.compression import Decompressor

_NUMBERS: Final = {
    "int": "q", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
_DTYPES: Final = {
    0x08: "uint8", 0x09: "int8", 0x10: "uint16", 0x11: "int16", 0x20: "uint32", 0x21: "int32", 0x40: "uint64",
    0x41: "int64", 0x12: "float16", 0x22: "float32", 0x42: "float64",
}  # fmt: skip
_LENGTHS: Final = ("B", "H", "I", "Q")
_IMAGES: Final = {"jpeg": "jpg", "png": "png"}
_PLAIN: Final = ("json", "pkl")
_PIXEL_BITS: Final = {"1": 1, "L": 8, "LA": 16, "RGB": 24, "RGBA": 32, "I;16": 16}
_PIECE = 256 * 1024


class MdsShard(NamedTuple):
    """One shard of an index.

    Args:
        url: of the file.
        compression: ``zstd``, ``gz``, ``bz2``, ``br`` or None.
        stored: bytes and hashes of the file, as the index has them.
        plain: those of what it decompresses to.
        samples: how many it holds.
        columns: name, encoding and size in bytes of each column; None where the size varies.
    """

    url: str
    compression: str | None
    stored: Mapping[str, object]
    plain: Mapping[str, object]
    samples: int
    columns: tuple[tuple[str, str, int | None], ...]


def read_index(url: str, storage_options: object = None) -> list[MdsShard]:
    """Return the shards of a dataset.

    Args:
        url: ``index.json``.
        storage_options: what it is opened with.

    Raises:
        FormatError: it is no index of MDS version 2, or names files elsewhere.
    """
    try:
        document = json.loads(_read_all(url, storage_options))
        if document["version"] != 2:
            raise FormatError(f"an MDS index of version {document['version']}: version 2 is read", url=url)
        return [_parse_shard(entry, url) for entry in document["shards"]]
    except WebDatasetError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"this is no index of an MDS dataset: {type(error).__name__}: {error}", url=url) from error


def _check_size(value: object) -> int:
    """Return a number of bytes of an index. Raises ValueError: it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.50} is no number of bytes")
    return value


def _check_names(value: object) -> list[str]:
    """Return a list of names of an index. Raises ValueError: it is none."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{value!r:.50} is no list of names")
    return value


def _parse_shard(entry: "dict[str, object]", url: str) -> MdsShard:
    if entry["format"] != "mds":
        raise FormatError(
            f"a shard of the format {entry['format']!r}: mds is read; csv and jsonl are for wds create", url=url
        )
    plain = cast("dict[str, object]", entry["raw_data"])
    zipped = cast("dict[str, object] | None", entry.get("zip_data"))
    compression = str(entry["compression"]).partition(":")[0] if zipped else None
    stored = zipped or plain
    name = str(stored["basename"])
    parts = name.replace("\\", "/").split("/")
    if "://" in name or ".." in parts or "" in parts or ":" in parts[0] or name == "-":
        raise FormatError(f"the index names a file outside of its folder: {name[:200]!r}", url=url)
    columns = zip(
        _check_names(entry["column_names"]),
        _check_names(entry["column_encodings"]),
        [None if size is None else _check_size(size) for size in cast("list[object]", entry["column_sizes"])],
        strict=True,
    )
    _check_size(plain["bytes"])
    place = check_document_url(join_url(parent_folder(url), name), url)
    return MdsShard(place, compression, stored, plain, int(cast("int", entry["samples"])), tuple(columns))


def _read_all(url: str, storage_options: object) -> bytes:
    stream = open_stream(url, storage_options=storage_options)
    try:
        return b"".join(iter(functools.partial(stream.read, _PIECE), b""))
    finally:
        stream.close()


def read_mds(url: str, converter: RowConverter, storage_options: object = None) -> Iterator[Row]:
    """Yield the samples of a dataset as rows.

    Args:
        url: its ``index.json``.
        converter: says which columns are needed.
        storage_options: what files are opened with.

    Raises:
        FormatError: a file that is damaged, or not what the index says.
        Truncated: one that is too short.
        SampleError: a column that no field can hold.
        MissingExtra: a package that decompresses or decodes is not installed.
    """
    for shard in read_index(url, storage_options):
        converter.check_columns((name for name, _, _ in shard.columns), shard.url)
        wanted = {name for name, _, _ in shard.columns if converter.wants(name)}
        decoders = {name: _find_decoder(name, kind, shard.url) for name, kind, _ in shard.columns if name in wanted}
        names = {name: _keep_extension(name, "pkl") for name, kind, _ in shard.columns if kind == "pkl"}
        content = _load_shard(shard, storage_options)
        for number, pieces in enumerate(_cut_shard(shard, content)):
            values: dict[str, object] = {}
            for name, piece in pieces.items():
                if name in wanted:
                    try:
                        values[name] = decoders[name](piece)
                    except (ValueError, IndexError, struct.error, WebDatasetError, OSError) as error:
                        values[name] = FormatError(f"the column {name!r} cannot be decoded: {error}")
            yield Row(shard.url, f"sample {number}", values, names)


def _keep_extension(name: str, extension: str) -> str:
    return name if last_extension(name) == extension else f"{name}.{extension}"


def _load_shard(shard: MdsShard, storage_options: object) -> bytes:
    content = _read_all(shard.url, storage_options)
    _verify(content, shard.stored, shard.url)
    if shard.compression is None:
        return content
    size = int(cast("int", shard.plain["bytes"]))
    plain = _decompress(content, shard.compression, size, shard.url)
    _verify(plain, shard.plain, shard.url)
    return plain


def _decompress(content: bytes, compression: str, size: int, url: str) -> bytes:
    """Decompress a file; what gives more than the index says is refused before it is kept."""
    if compression == "br":
        return _decompress_brotli(content, size, url)
    kind = {"zstd": "zst"}.get(compression, compression)
    if kind not in ("zst", "gz", "bz2"):
        raise FormatError(f"MDS shards compressed by {compression!r} are not read: zstd, gz, bz2 and br are", url=url)
    engine, pieces, got = Decompressor(kind), [], 0
    try:
        for start in range(0, len(content), _PIECE):
            for piece in engine.feed(content[start : start + _PIECE]):
                got += len(piece)
                if got > size:
                    raise FormatError(f"the file decompresses to more than the {size} bytes of the index", url=url)
                pieces.append(piece)
        engine.finish()
    except WebDatasetError as error:
        error.locate(url=url)
        raise
    return b"".join(pieces)


def _decompress_brotli(content: bytes, size: int, url: str) -> bytes:
    library = require("brotli", extra="mds", purpose="reading MDS shards compressed by Brotli")
    engine, plain = library.Decompressor(), bytearray()
    if not hasattr(engine, "can_accept_more_data"):
        raise MissingExtra(f"MDS shards compressed by Brotli need brotli 1.2 or later: {install_command('mds')}")
    try:
        piece = engine.process(content, output_buffer_limit=_PIECE)
        while piece:
            plain += piece
            if len(plain) > size:
                raise FormatError(f"the file decompresses to more than the {size} bytes of the index", url=url)
            piece = b"" if engine.is_finished() else engine.process(b"", output_buffer_limit=_PIECE)
    except library.error as error:
        raise FormatError(f"the file does not decompress: {error}", url=url) from error
    if not engine.is_finished():
        raise Truncated("the file ends inside of what was compressed", url=url)
    return bytes(plain)


def _verify(content: bytes, told: Mapping[str, object], url: str) -> None:
    """Compare bytes with the size and hashes of the index; a hash that nothing here computes counts nothing."""
    size = told.get("bytes")
    if isinstance(size, int) and len(content) != size:
        kind = Truncated if len(content) < size else FormatError
        raise kind(f"the file has {len(content)} bytes, and the index says {size}", url=url)
    hashes = told.get("hashes")
    for name, expected in hashes.items() if isinstance(hashes, dict) else ():
        found = _hash_content(str(name), content)
        if found is not None and found != expected:
            raise FormatError(f"the file is damaged: its {name} is {found}, and the index says {expected}", url=url)


def _hash_content(name: str, content: bytes) -> str | None:
    """Return the digest of bytes; None where nothing here computes it, or it has no length of its own (shake)."""
    if name in hashlib.algorithms_available:
        digest = hashlib.new(name, content, usedforsecurity=False)
        return digest.hexdigest() if digest.digest_size else None
    library = import_if_available("xxhash")
    known = library is not None and name in library.algorithms_available
    return str(getattr(library, name)(content).hexdigest()) if known else None


def _cut_shard(shard: MdsShard, content: bytes) -> Iterator[dict[str, bytes]]:
    """Yield the columns of each sample, as bytes.

    Raises:
        FormatError: numbers in the file that contradict it or the index.
    """
    count = int.from_bytes(content[:4], "little")
    if count != shard.samples or len(content) < 8 + 4 * count:
        raise FormatError(f"the file holds {count} samples, and the index says {shard.samples}", url=shard.url)
    offsets = struct.unpack_from(f"<{count + 1}I", content, 4)
    if list(offsets) != sorted(offsets) or offsets[0] < 8 + 4 * count or offsets[-1] != len(content):
        raise FormatError("the offsets of the samples make no sense", url=shard.url, offset=4)
    varying = sum(size is None for _, _, size in shard.columns)
    for start, stop in pairwise(offsets):
        if stop - start < 4 * varying:
            raise FormatError("a sample is too short for its columns", url=shard.url, offset=start)
        sizes = iter(struct.unpack_from(f"<{varying}I", content, start))
        place, pieces = start + 4 * varying, {}
        for name, _, fixed in shard.columns:
            size = next(sizes) if fixed is None else fixed
            pieces[name] = content[place : place + size]
            place += size
        if place != stop:
            raise FormatError("the columns of a sample do not fill it", url=shard.url, offset=start)
        yield pieces


def _find_decoder(name: str, encoding: str, url: str) -> Callable[[bytes], object]:
    """Return what makes the value of a column's bytes.

    Raises:
        SampleError: an encoding that is not read.
    """
    kind, _, rest = encoding.partition(":")
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind in _NUMBERS:
        # the whole piece must be one number
        return lambda piece: struct.unpack("<" + _NUMBERS[kind], piece)[0]
    if kind in _IMAGES:
        # the writer takes the bytes of any file for an image
        return lambda piece: Content.make(piece, guess_extension(piece) or _IMAGES[kind])
    if kind in _PLAIN:
        return lambda piece: Content.make(piece, kind)
    if kind == "ndarray" and re.fullmatch(r"(?:\w+(?::\d+(?:,\d+)*)?)?", rest, re.ASCII):
        dtype, _, shape = rest.partition(":")
        return functools.partial(_decode_array, dtype, tuple(map(int, shape.split(","))) if shape else None)
    raise SampleError(
        f"the column {name!r} has the encoding {encoding!r}, which is not read: name the other columns with --columns",
        url=url,
    )


def _decode_array(dtype: str, shape: tuple[int, ...] | None, piece: bytes) -> object:
    import numpy as np  # noqa: PLC0415  for arrays alone

    if not dtype:
        if not piece or piece[0] not in _DTYPES:
            raise ValueError("an unknown type of array")
        dtype, piece = _DTYPES[piece[0]], piece[1:]
    elif dtype not in _DTYPES.values():
        raise ValueError(f"an unknown type of array: {dtype}")
    if shape is None:
        # the number of dimensions, and in the last two bits the width of their lengths
        width, count = _LENGTHS[piece[0] & 3], piece[0] >> 2
        size = struct.calcsize(f"<{count}{width}")
        shape, piece = struct.unpack(f"<{count}{width}", piece[1 : 1 + size]), piece[1 + size :]
    return np.frombuffer(piece, np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)


def _decode_image(piece: bytes) -> Content:
    """Return the PNG of an image that is stored as width, height, mode and pixels."""
    import io  # noqa: PLC0415  for such images alone

    width, height, length = struct.unpack_from("<3I", piece)
    mode = piece[12 : 12 + length].decode("ascii")
    if mode not in _PIXEL_BITS:
        raise ValueError(f"PNG has no images of the mode {mode!r}")
    pixels = piece[12 + length :]
    # Pillow reserves the memory before it counts the bytes
    if not pixels or len(pixels) != (width * _PIXEL_BITS[mode] + 7) // 8 * height:
        raise ValueError(f"{len(pixels)} bytes are no image {mode} of {width} x {height} pixels")
    images = require("PIL.Image", extra="images", purpose="reading the encoding 'pil' of MDS")
    file = io.BytesIO()
    images.frombytes(mode, (width, height), pixels).save(file, "PNG")
    return Content.make(file.getvalue(), "png")


_SIMPLE: Final[Mapping[str, Callable[[bytes], object]]] = {
    "bytes": bytes,
    "str": lambda piece: piece.decode("utf-8"),
    "str_int": int,
    "str_float": float,
    "str_decimal": lambda piece: piece.decode("ascii"),
    "pil": _decode_image,
}
