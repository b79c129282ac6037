"""Streams over http and https, read in this process.

Flows in: a url. Flows out: the body as the server stores it (never decompressed on the way), all of it, by the one
resuming reader: the number of bytes is compared with Content-Length, and a connection that drops is taken up again
where it stopped if the server can prove that the object is still the same.

Waiting is bounded: 10 s to connect, 60 s without a byte, a few quick attempts where a server is busy.
"""

import email.utils
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import NoRandomAccess
from webdataset.sources import connections
from webdataset.sources.objects import Again, Answer, Identity, changed, digest_in
from webdataset.sources.rest import placed, range_header
from webdataset.sources.resuming import ResumingStream

from .asking import Asking, service_of

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
ATTEMPTS = 7

_CHANGED = frozenset((412, 416))


class HttpObject:
    """One object on a web server, as the resuming reader asks for it.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store.
        headers: further request headers.
        timeouts: seconds to connect, seconds without a byte.
    """

    latency_bytes = 64 * 1024
    judges_ranges = True
    """A server that ignores ranges is refused here, by its status; one that gives more than was asked for is not."""

    def __init__(
        self,
        url: str,
        storage_options: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: tuple[float, float] | None = None,
    ) -> None:
        self.url = url
        self._asking = Asking(url, storage_options, headers)
        self._timeouts = timeouts or (CONNECT_SECONDS, READ_SECONDS)

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return connections.failures()

    def refresh(self) -> None:
        """Nothing is kept between two requests."""

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Send one GET; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: status 404 or 410.
            NoRandomAccess: a range was asked for, and the server gives none, or none of the bytes that it stores.
            ShardChanged: the server says that it is another object by now.
            SourceError: another status.
        """
        wanted = range_header(offset, size)
        if known is not None and known.provable():
            wanted.update(_condition(known))
        response = self._asking.ask("GET", wanted, self._timeouts)
        if response.status >= 300:
            refusal = self._asking.refused(response, reading=known is not None)
            raise changed(self.url, offset) if wanted and response.status in _CHANGED else refusal
        if size is not None:
            self._refuse_whole(response, known)
        start, total, length = placed(response)
        etag = response.headers.get("ETag")
        strong = etag if etag and not etag.startswith("W/") else None
        modified = response.headers.get("Last-Modified")
        if known is None and strong is None and _fresh(modified, response.headers.get("Date")):
            modified = None
        digest = digest_in(response.headers, whole=response.status == 200)
        return Answer(response, start, Identity(strong, None, modified, total), length, digest=digest)

    def _refuse_whole(self, response: Any, known: Identity | None) -> None:
        """Raise where the answer to a request for a range is none that can be used."""
        if response.status != 206:
            if response.headers.get("Content-Length") == "0":  # of nothing there is no range
                return
            response.close()
            if known is not None:  # it could before
                raise Again(f"the server answered a range request with status {response.status}")
            raise NoRandomAccess(
                f"the server answers a range request with status {response.status}: it can be read front to back only",
                url=self.url,
            )
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            response.close()
            raise NoRandomAccess(
                f"the server compresses what it sends ({encoding}), so that no range of it is one of the shard: it can "
                "be read front to back only",
                url=self.url,
            )


class HttpStream(ResumingStream):
    """The body of one GET request, unbuffered.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the next byte.
        attempts: failures in a row, without progress between them, after which reading is given up.
        **places: where to begin, as for :class:`ResumingStream`.

    Raises:
        NotFound: status 404 or 410.
        SourceError: another error status, or no connection after a few attempts.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: Any = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
        read_seconds: float | None = None,
        attempts: int = ATTEMPTS,
        **places: Any,
    ) -> None:
        timeouts = (connect_seconds or CONNECT_SECONDS, read_seconds or READ_SECONDS)
        source = HttpObject(url, storage_options, headers=headers, timeouts=timeouts)
        super().__init__(source, attempts=attempts, **places)


def _fresh(modified: str | None, now: str | None) -> bool:
    """Tell whether an object was changed within the second of the answer: its date may soon be another's (RFC 9110)."""
    try:
        changed_at, answered_at = (email.utils.parsedate_to_datetime(text or "") for text in (modified, now))
        return (answered_at - changed_at).total_seconds() < 1
    except (ValueError, TypeError, OverflowError):
        return False


def _condition(identity: Identity) -> dict[str, str]:
    if identity.etag is not None:
        return {"If-Match": identity.etag}
    return {"If-Unmodified-Since": identity.modified or ""}


def object_of(url: str, storage_options: Any = None) -> HttpObject:
    """Return the object of an ``http(s):`` url; see :mod:`webdataset.sources.stores`."""
    return HttpObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.sources.http.upload.HttpUpload`."""
    from .upload import HttpUpload  # noqa: PLC0415  only for uploads

    return HttpUpload(url, storage_options, **options)


def gopen_http(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,  # noqa: ARG001  an opener's signature
    *,
    storage_options: Any = None,
    **options: Any,
) -> Any:
    """Open an ``http:`` or ``https:`` url.

    Args:
        url: the url.
        mode: ``rb`` reads it, ``wb`` uploads it with PUT, both in this process.
        bufsize: of no meaning here.
        storage_options: ``headers``, a mapping; ``token`` for ``Authorization: Bearer``; ``verify``, a file of
            certificates to trust, or False.
        **options: further arguments of :class:`HttpStream` or :class:`~webdataset.sources.http.upload.HttpUpload`.

    Raises:
        NotFound: nothing is there.
        SourceError: the server refuses, or does not answer.
    """
    if mode == "rb":
        return HttpStream(url, storage_options=storage_options, **options)
    return upload_to(url, storage_options, **options)


__all__ = [
    "ATTEMPTS", "CONNECT_SECONDS", "READ_SECONDS", "HttpObject", "HttpStream", "gopen_http", "object_of", "service_of",
    "upload_to",
]  # fmt: skip
