"""One object of Google Cloud Storage, as the resuming reader asks for it.

Flows in: ``gs://bucket/key``. Flows out: answers: bytes as they are stored, the generation they are of, and the CRC32C
of the whole. Objects that are stored compressed are not decompressed on the way. Every later request names the
generation of the first, so that a bucket that keeps old generations gives it to its end.
"""

from typing import Any

from webdataset.ground.errors import NotFound, SourceError, UsageError
from webdataset.sources import connections
from webdataset.sources.objects import Answer, Identity, changed, crc32_of, digest_of
from webdataset.sources.rest import placed, range_header

from .calls import GsCalls
from .places import place_of


class GsObject:
    """One object.

    Args:
        url: the url as the user wrote it.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: the url names no object.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.place = place_of(url, storage_options)
        if not self.place.key or self.place.key.endswith("/"):
            raise UsageError(
                "names no object: a url of Google Cloud Storage is gs://bucket/key (wds.expand_urls lists a folder)",
                url=url,
            )
        self._calls = GsCalls(self.place, url)

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self._calls.requests

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return connections.failures()

    def refresh(self) -> None:
        """Look for credentials anew."""
        self._calls.refresh()

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Send one request for the object's content; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        generation = self.place.generation or (known.version if known else None)
        address = self.place.address(alt="media", generation=generation)
        # "gzip" asks for the bytes as they are stored; with "identity" the service would decompress, and lose ranges
        headers = {"Accept-Encoding": "gzip", **range_header(offset, size)}
        try:
            response = self._calls.ask("GET", address, headers, streamed=True, offset=offset)
        except NotFound:
            if known is None or self.place.generation or not self._is_there():
                raise
        else:
            return self._answer(response)
        raise changed(self.url, offset)

    def _is_there(self) -> bool:
        """Tell whether another generation has taken the place of the one that is gone."""
        try:
            self._calls.ask("GET", self.place.address(fields="generation"))
        except NotFound:
            return False
        return True

    def _answer(self, response: Any) -> Answer:
        headers = response.headers
        encoding = headers.get("Content-Encoding", "identity")
        stored = headers.get("X-Goog-Stored-Content-Encoding", encoding)
        if stored != encoding:
            response.close()
            raise SourceError(
                f"what is stored as {stored} came as {encoding}: something on the way changes it, so that ranges fit "
                "nothing",
                url=self.url,
            )
        start, total, size = placed(response)
        version = headers.get("X-Goog-Generation")
        identity = Identity(None if version else headers.get("ETag"), version, headers.get("Last-Modified"), total)
        sums = dict(text.strip().partition("=")[::2] for text in headers.get("X-Goog-Hash", "").split(","))
        return Answer(
            response,
            start,
            identity,
            size,
            crc32c=crc32_of(sums.get("crc32c")),
            digest=digest_of(sums.get("md5"), "md5"),
        )


def object_of(url: str, storage_options: Any = None) -> GsObject:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return GsObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.sources.gs.upload.GsUpload`."""
    from .upload import GsUpload  # noqa: PLC0415  only for uploads

    return GsUpload(url, storage_options, **options)
