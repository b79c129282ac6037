"""What a download has to show before it may be kept.

Flows in: a source's stream. Flows out: its bytes in a file, and whether they are known to be all of a shard. An error
page is never kept, and nothing is that may have been cut without anyone noticing.
"""

from typing import Any

from webdataset.ground.errors import FormatError, WebDatasetError
from webdataset.samples.reading import Reading, ShardReader
from webdataset.sources.stream import length_known
from webdataset.tar.compression import compression_of
from webdataset.tar.header import checksum_agrees

from .files import CachedFile, Download

_PIECE = 1 << 20


def filled(download: Download, stream: Any, url: str) -> bool:
    """Copy a stream into a download and close the stream.

    Args:
        download: takes the bytes.
        stream: object with ``read(n)``, at its start.
        url: for messages.

    Returns:
        Whether the bytes are all of the shard: the source vouches for its length, or they are an archive up to its end
        mark.

    Raises:
        FormatError: they do not begin as a shard does.
        SourceError: the source failed or ended early.
        Unwritable: the cache directory cannot take them.
    """
    try:
        known = length_known(stream)
        start = b""
        while len(start) < 512 and (piece := stream.read(_PIECE)):
            start += piece
        if not is_shard(start):
            raise FormatError(f"not a tar archive, so it is not cached; it begins with {start[:60]!r}", url=url)
        download.write(start)
        while piece := stream.read(_PIECE):
            download.write(piece)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    return known or is_whole(download.partial)


def is_shard(start: bytes) -> bool:
    """Tell whether bytes begin a tar archive (an empty one is zeros), plain or compressed.

    Args:
        start: its first 512 bytes or more.
    """
    block = start[:512]
    return compression_of(start) is not None or (len(block) == 512 and (not any(block) or checksum_agrees(block)))


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
