"""Uploads over http: one PUT of known length, when all is there."""

import contextlib
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import SourceError
from webdataset.sources.spooling import SpooledUpload

from .asking import Asking

CONNECT_SECONDS = 10.0
READ_SECONDS = 300.0
ATTEMPTS = 7
SEE_OTHER = 303


class HttpUpload(SpooledUpload):
    """A stream to a new object on a web server.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the answer once all is sent.
        attempts: failures after which the upload is given up.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(
        self,
        url: str,
        storage_options: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        self._asking = Asking(url, storage_options, headers)
        self._timeouts = (connect_seconds, read_seconds)
        super().__init__(url, attempts)

    def _sent(self) -> None:
        self._kept.seek(0)
        body = _Body(self._kept) if self._size else b""
        response = self._asking.ask("PUT", {"Content-Length": str(self._size)}, self._timeouts, body)
        if response.status >= 300:
            raise self._asking.refused(response, upload=True)
        if any(step.status == SEE_OTHER for step in response.retries.history):  # followed by a GET, without the body
            response.close()
            raise SourceError(
                "the server led the upload to another page (status 303), so that nobody knows whether it was taken: "
                "check the url, and the credentials",
                url=self.name,
            )
        with contextlib.suppress(Exception):  # the answer was good; what follows it is of no interest
            response.drain_conn()
        response.release_conn()


class _Body:
    """What urllib3 reads the body from, again from the start where a redirect is followed.

    Before each request it asks where the body begins, but after a redirect it does not go back there: asking does.
    """

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._kept.read(size)
        return content

    def tell(self) -> int:
        return self.seek(0)

    def seek(self, place: int) -> int:
        self._kept.seek(place)
        return place
