"""One url to one file, without a cache directory around it.

Flows in: a url. Flows out: a file that is complete or not there.
"""

import os
from pathlib import Path

from webdataset.ground.errors import SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources.open import open_stream

from .files import Download, Unwritable
from .shards import log


def download(
    url: str,
    dest: str | os.PathLike[str],
    chunk_size: int = 1 << 20,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> None:
    """Copy what a url gives into a file, which gets its name when it is complete.

    Args:
        url: the url.
        dest: the file; one that is there is replaced.
        chunk_size: bytes to read at a time.
        verbose: log the download.

    Raises:
        NotFound: nothing is there.
        SourceError: the source failed, ended early, or the file cannot be written.
    """
    if verbose:
        log.warning("download %s to %s", redacted(str(url)), dest)
    stream = open_stream(url)
    try:
        with Download(Path(dest).absolute()) as target:
            while piece := stream.read(chunk_size):
                target.write(piece)
            target.publish().close()
    except Unwritable as trouble:
        raise SourceError(f"cannot write {os.fspath(dest)!r}: {trouble}", url=str(url)) from trouble
    finally:
        stream.close()
