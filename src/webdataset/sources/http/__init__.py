"""Objects on web servers: ``http:`` and ``https:`` urls. A store that cannot list; see ``stores``."""

from .objects import (
    ATTEMPTS,
    CONNECT_SECONDS,
    READ_SECONDS,
    HttpObject,
    HttpStream,
    gopen_http,
    object_of,
    service_of,
    upload_to,
)

__all__ = [
    "ATTEMPTS",
    "CONNECT_SECONDS",
    "READ_SECONDS",
    "HttpObject",
    "HttpStream",
    "gopen_http",
    "object_of",
    "service_of",
    "upload_to",
]
