"""The bytes of specifications and of the small files beside them.

Flows in: a path or url. Flows out: its bytes, up to a bound. Decides nothing about who may name it.
"""

import os
from typing import Any

from webdataset.sources.open import open_stream
from webdataset.sources.stream import Stream

from .trees import refused

MAX_BYTES = 64 << 20


def text_of(url: Any) -> bytes:
    """Return the bytes of a file.

    Args:
        url: its path or url.

    Raises:
        NotFound: no such file.
        SourceError: it cannot be read.
        SpecError: more than 64 MiB.
    """
    stream: Stream = open_stream(url)
    pieces, size = [], 0
    try:
        while piece := stream.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                name = os.fsdecode(url)
                raise refused([f"{name}:1:1: a specification of more than {MAX_BYTES >> 20} MiB is not read"])
    finally:
        stream.close()
    return b"".join(pieces)
