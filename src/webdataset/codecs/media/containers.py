"""Media files opened with PyAV, so that they can reach nothing but their own bytes.

Flows in: the bytes of one video or audio file. Flows out: an open container. Playlists and session descriptions, which
would make ffmpeg open other files or sockets, find every protocol closed.
"""

import io
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import FieldTooLarge
from webdataset.ground.extras import require

from .whole import check_whole

_CLOSED = {"protocol_whitelist": "none"}


def opened(data: bytes, purpose: str) -> Any:
    """Open a media file for reading.

    Args:
        data: its bytes.
        purpose: what it is opened for, for the message where PyAV is missing.

    Returns:
        A ``av.container.InputContainer``, to be closed by the caller.

    Raises:
        MissingExtra: PyAV is not installed.
        DecodingError: cut short.
        OSError: no media file that ffmpeg knows; PyAV's errors are ``ValueError`` or ``OSError``.
    """
    library = require("av", extra="media", purpose=purpose)
    check_whole(data)
    return library.open(io.BytesIO(data), options=_CLOSED)


def check_total(size_bytes: int) -> None:
    """Refuse what would take more memory than the limit.

    Args:
        size_bytes: bytes of decoded frames or sound so far, or to come.

    Raises:
        FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
    """
    limit = settings.MAX_MEDIA_BYTES.get()
    if size_bytes > limit:
        raise FieldTooLarge(
            f"the field decodes to more than {limit} bytes (WDS_MAX_MEDIA_BYTES); videos can be read piece by piece: "
            "decode with wds.video or wds.video_clips"
        )
