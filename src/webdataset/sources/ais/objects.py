"""Objects of AIStore, as the resuming reader asks for them, and the opener of ``ais:`` urls.

Flows in: a place in an object, and who the object was. Flows out: one answer. Who an object is tell its version and its
checksum together: versions count from 1 again when an object is removed and put anew. Clusters can be set up to send
the checksum of a range with the range; where that may be, the whole object's is asked for with a HEAD before two
answers are held to be about the same bytes.
"""

from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import NotFound, SourceError, UsageError
from webdataset.sources import connections, rest
from webdataset.sources.objects import Again, Answer, Identity, changed
from webdataset.sources.stores import opener_for

from .cluster import Cluster
from .places import place_of


class AisObject:
    """One object, a member of one, or what a transformation makes of it.

    Args:
        url: the url as the user wrote it.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        UsageError: the url names no object.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.cluster = Cluster(storage_options, url)
        self.place = place_of(url, self.cluster.provider)
        if not self.place.name or self.place.name.endswith("/"):
            raise UsageError(
                "names no object: an AIStore url is ais://bucket/object (wds.expand_urls lists them)", url=url
            )

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return connections.failures()

    def refresh(self) -> None:
        """Nothing is kept between two requests: the token is looked up for each."""

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Send one GET to a gateway, and follow it; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the cluster refuses.
        """
        headers = rest.range_header(offset, size) if self.place.whole() else {}
        reading = known is not None
        try:
            response = self.cluster.ask("GET", self.place.path(), self.place.query(), headers, reading=reading)
        except NotFound as error:
            raise NotFound(f"{error.message}{self.place.hint()}", url=self.url) from None
        answer = self._answer(response)
        if response.status == 206:
            try:
                answer = answer._replace(identity=self._certain(answer.identity, known, offset))
            except (Again, SourceError):
                response.close()
                raise
        return answer

    def _answer(self, response: Any) -> Answer:
        """Read who the object is from an answer's headers."""
        headers, (start, total, size) = response.headers, rest.placed(response)
        if self.place.transformed():
            return Answer(response, start, Identity(None, None, None, total), size)
        vouched = self.place.whole() and response.status == 200
        return Answer(
            response, start, self._identity(headers, total), size, digest=_digest(headers) if vouched else None
        )

    def _identity(self, headers: Mapping[str, str], length: int | None) -> Identity:
        return _identity(headers, length, counted=self.place.provider == "ais")

    def _certain(self, found: Identity, known: Identity | None, offset: int) -> Identity:
        """Return who the object is of which a range came, by the checksum of all of it."""
        if known is not None and found == known:
            return found
        if known is not None and (known.version != found.version or known.length != found.length):
            return found
        response = self.cluster.ask("HEAD", self.place.path(), self.place.query(), {})
        response.close()
        length = rest.length_of(response.headers.get("Content-Length", ""))
        whole = self._identity(response.headers, found.length if length is None else length)
        if (whole.version, whole.length) != (found.version, found.length):
            raise changed(self.url, offset) if known is not None else Again("the object was replaced just now")
        return whole


def _identity(headers: Mapping[str, str], length: int | None, *, counted: bool) -> Identity:
    """Read who an object is.

    Args:
        headers: of an answer.
        length: bytes of the object.
        counted: versions are numbers that begin anew when the object does: without more they prove nothing.
    """
    kind, sum_ = headers.get("Ais-Checksum-Type", "none"), headers.get("Ais-Checksum-Value")
    etag = f"{kind}:{sum_}" if sum_ and kind != "none" else headers.get("ETag")
    etag = None if etag is None or etag.startswith("W/") else etag
    modified, version = headers.get("Last-Modified"), headers.get("Ais-Version") or None
    return Identity(etag, None if counted and etag is None else version, modified, length)


def _digest(headers: Mapping[str, str]) -> tuple[str, str] | None:
    kind, sum_ = headers.get("Ais-Checksum-Type"), headers.get("Ais-Checksum-Value")
    return (kind, sum_) if kind and sum_ else None


def object_of(url: str, storage_options: Any = None) -> AisObject:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return AisObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.sources.ais.upload.AisUpload`."""
    from .upload import AisUpload  # noqa: PLC0415  only for uploads

    return AisUpload(url, storage_options, **options)


_native = opener_for("ais")


def gopen_ais(url: str, mode: str = "rb", bufsize: int = 8192, *, storage_options: Any = None, **options: Any) -> Any:
    """Open a url by AIStore: over HTTP where a gateway is known, else by the program ``ais``, which has settings too.

    Args:
        url: an ``ais:`` url, or one of a store behind AIStore.
        mode: ``rb`` or ``wb``.
        bufsize: bytes; for the program.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.
        **options: further arguments of the reader, the upload, or the pipe.

    Raises:
        NotFound: nothing is there, or neither gateway nor program.
        SourceError: the cluster refuses, or does not answer.
        UsageError: the url names no object.
    """
    if storage_options is None and not Cluster(None, url).gateways:
        from webdataset.sources.commands import gopen_ais_program  # noqa: PLC0415  only where there is no gateway

        return gopen_ais_program(url, mode, bufsize, **options)
    return _native(url, mode, bufsize, storage_options=storage_options, **options)
