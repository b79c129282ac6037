"""Checks that a download is a whole shard before the cache stores it.

An error page is never stored, nor anything that may have been cut without notice.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from webdataset.caching.locks import CachedFile, TemporaryDownload
from webdataset.core.errors import FormatError, WebDatasetError
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import ShardReader
from webdataset.storage.streams import length_known
from webdataset.tar.compression import detect_compression
from webdataset.tar.header import is_checksum_right

_PIECE = 1 << 20


Validator = Callable[[str], Any]
"""Path to whether the file may be kept."""


def fill_download(download: TemporaryDownload, stream: Any, url: str, validator: Validator | None = None) -> bool:
    """Copy a stream into a download and close the stream.

    Args:
        download: takes the bytes.
        stream: object with ``read(n)``, at its start.
        url: for messages.
        validator: asked instead of looking at the bytes; it answers for the file being what it should and whole.

    Returns:
        Whether the bytes are all of the shard: the source vouches for its length, or they are an archive up to its end
        mark.

    Raises:
        FormatError: they do not begin as a shard does, or the validator refuses them.
        SourceError: the source failed or ended early.
        Unwritable: the cache directory cannot take them.
    """
    try:
        known = length_known(stream)
        start = b""
        while len(start) < 512 and (piece := stream.read(_PIECE)):
            start += piece
        if validator is None and not is_shard(start):
            raise FormatError(f"not a tar archive, so it is not cached; it begins with {start[:60]!r}", url=url)
        download.write(start)
        while piece := stream.read(_PIECE):
            download.write(piece)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    if validator is None:
        return known or is_whole(download.partial)
    if not validator(download.partial):
        raise FormatError(f"{getattr(validator, '__name__', 'the validator')} refuses it, so it is not cached", url=url)
    return True


def is_shard(start: bytes) -> bool:
    """Tell whether bytes begin a tar archive (an empty one is zeros), plain or compressed.

    Args:
        start: its first 512 bytes or more.
    """
    block = start[:512]
    return detect_compression(start) is not None or (len(block) == 512 and (not any(block) or is_checksum_right(block)))


def check_tar_format(fname: str | os.PathLike[str]) -> bool:
    """Tell whether a file begins as a tar archive does, plain or compressed.

    Args:
        fname: its path; one that cannot be read is none.
    """
    try:
        with Path(fname).open("rb") as stream:
            return is_shard(stream.read(512))
    except OSError:
        return False


def get_filetype(fname: str | os.PathLike[str]) -> str:
    """Return a file's path and what its first bytes say that it is, for messages.

    Args:
        fname: its path.

    Raises:
        OSError: it cannot be read.
    """
    with Path(fname).open("rb") as stream:
        start = stream.read(512)
    packed = detect_compression(start)
    kind = f"{packed} compressed" if packed else "POSIX tar archive" if is_shard(start) else "data"
    return f"{os.fspath(fname)}: {kind if start else 'empty'}"


def checksum_file(descriptor: int) -> int:
    """Return the checksum of an open file; 0.3 s a GiB, beside reading it.

    Args:
        descriptor: the file, open for reading.

    Raises:
        OSError: it cannot be read.
    """
    found = offset = 0
    while piece := os.pread(descriptor, _PIECE, offset):
        found, offset = zlib.crc32(piece, found), offset + len(piece)
    return found


def is_whole(path: str) -> bool:
    """Tell whether a file is an archive up to its end mark.

    Args:
        path: the file.
    """
    reader = ShardReader({"url": path, "stream": CachedFile(path)}, Reading(missing_end="error"))
    try:
        for _ in reader.member_lists():
            pass
    except WebDatasetError:  # reading the source itself gives the error, or a warning, as without a cache
        return False
    finally:
        reader.close()
    return True
