"""One blob, as the resuming reader asks for it.

Flows in: ``az://container/blob``. Flows out: answers: bytes as they are stored, and which version they are of. Every
later request carries the ETag of the first (``If-Match``).
"""

from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.sources import connections
from webdataset.sources.objects import Answer, Identity, digest_in
from webdataset.sources.rest import placed, range_header

from .calls import AzureCalls
from .places import place_of


class AzureObject:
    """One blob.

    Args:
        url: the url as the user wrote it.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: the url names no blob.
        ConfigError: no account, or options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.place = place_of(url, storage_options)
        if not self.place.key or self.place.key.endswith("/"):
            raise UsageError(
                "names no blob: a url of Azure Storage is az://container/blob (wds.expand_urls lists a folder)", url=url
            )
        self._calls = AzureCalls(self.place, url)

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
        """Send one Get Blob; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the blob was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another blob by now.
            SourceError: the service refuses.
        """
        headers = range_header(offset, size)
        if known is not None and known.etag:
            headers["If-Match"] = known.etag
        response = self._calls.ask("GET", self.place.address(), headers, streamed=True, offset=offset)
        start, total, length = placed(response)
        etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
        digest = digest_in(response.headers, whole=response.status == 200)
        return Answer(response, start, Identity(etag, None, modified, total), length, digest=digest)


def object_of(url: str, storage_options: Any = None) -> AzureObject:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return AzureObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new blob; see :class:`~webdataset.sources.azure.upload.AzureUpload`."""
    from .upload import AzureUpload  # noqa: PLC0415  only for uploads

    return AzureUpload(url, storage_options, **options)
