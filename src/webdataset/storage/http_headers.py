"""HTTP responses whose connection ended within the headers: errors, not responses.

``http.client`` takes the end of a connection for the end of the headers. What is left then says nothing of the length
of the body, which is empty: it would pass for an empty object, and a header that was cut for another version.
"""

import http.client
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from urllib3 import HTTPConnectionPool

_BLANK = (b"\r\n", b"\n")


class _HeaderLines:
    """The stream of a response while its headers are read; remembers the last line.

    Args:
        stream: of ``http.client``.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.last = b""
        self._stream = stream
        self.close = stream.close

    def readline(self, limit: int = -1) -> bytes:
        """Return the next line."""
        self.last = self._stream.readline(limit)
        return self.last


class CompleteResponse(http.client.HTTPResponse):
    """A response of ``http.client`` that fails where its headers do not end."""

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            http.client.RemoteDisconnected: the connection ended before the blank line.
        """
        state = vars(self)
        # they were read already
        if state["headers"] is not None:
            return
        stream = state["fp"]
        state["fp"] = lines = _HeaderLines(stream)
        try:
            super().begin()
        finally:
            # what fails may have closed it
            if state["fp"] is lines:
                state["fp"] = stream
        if lines.last not in _BLANK:
            raise http.client.RemoteDisconnected("the connection ended within the headers")


def require_complete_headers(pools: "MutableMapping[str, type[HTTPConnectionPool]]") -> None:
    """Let the connections of a pool manager of urllib3 give complete responses only.

    Args:
        pools: scheme to the class of its pools; gets derived classes.
    """
    for scheme, pool in pools.items():
        connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": CompleteResponse})
        derived = type(pool.__name__, (pool,), {"ConnectionCls": connection})
        pools[scheme] = cast("type[HTTPConnectionPool]", derived)
