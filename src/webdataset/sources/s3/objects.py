"""Streams from and to S3, and to every service that speaks like it.

Flows in: ``s3://bucket/key``, with a profile in front of it or found by a route (``profiles``), and perhaps
``?versionId=…`` behind it. Flows out: the object's bytes, through the one resuming reader; or an upload, which nobody
sees before it is complete. Every answer proves that it is about the same bytes: ``If-Match`` is sent, and ETag, total
length and place are compared, since there are services which ignore the condition.
"""

from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.sources import connections, rest
from webdataset.sources.objects import Again, Answer, Identity, crc32_of, digest_of
from webdataset.sources.stores import opener_for

from . import clients as s3_clients
from .errors import doubts_credentials, status_of, translated
from .places import place_of


class _Forbidden(Exception):
    """Reading this version is forbidden.

    Args:
        failure: what to raise where asking without the version is no way out.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure


class S3Object:
    """One object, as the resuming reader asks for it.

    Args:
        url: the url as the user wrote it.
        storage_options: fields of the profile that a dataset gives.

    Attributes:
        requests: requests sent so far.

    Raises:
        UsageError: the url names no object.
        MissingExtra: botocore is not installed.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = url
        self.place = place_of(url, storage_options)
        self.requests = 0
        if not self.place.key or self.place.key.endswith("/"):
            raise UsageError("names no object: an S3 url is s3://bucket/key (wds.expand_urls lists a folder)", url=url)
        self._failures = s3_clients.failures()
        self._unversioned = False

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return (*connections.failures(), *self._failures)

    def refresh(self) -> None:
        """Look for credentials anew."""
        s3_clients.forget(self.place.profile)

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Send one GetObject; see :class:`~webdataset.sources.objects.ObjectSource`.

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
        wanted: dict[str, str] = {**self.place.named(), "ChecksumMode": "ENABLED"}
        if known is not None and known.etag:
            wanted["IfMatch"] = known.etag
        if offset or size is not None:
            wanted["Range"] = f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"
        version = self.place.version or (None if known is None or self._unversioned else known.version)
        if version is None:
            return self._asked(wanted, known, offset)
        try:
            return self._asked({**wanted, "VersionId": version}, known, offset)
        except _Forbidden as error:
            refusal = error.failure
        if self.place.version or "IfMatch" not in wanted:
            raise refusal
        # GetObjectVersion is a right of its own: the condition alone tells a replaced object, too
        answer = self._asked(wanted, known, offset)
        self._unversioned = True
        return answer

    def _asked(self, wanted: Mapping[str, str], known: Identity | None, offset: int) -> Answer:
        """Send one request.

        Raises:
            _Forbidden: status 403 for a request that names a version.
        """
        client = s3_clients.client_for(self.place.profile, self.url)
        self.requests += 1
        try:
            return _answer(client.get_object(**wanted))
        except self._failures as error:
            failure: Exception = translated(error, self.url, offset=offset, profile=self.place.profile)
            if doubts_credentials(error):
                s3_clients.forget(self.place.profile)  # the next request looks for credentials anew
                failure = Again(str(failure)) if known is not None else failure  # keys that were good until now
            if "VersionId" in wanted and status_of(error) == 403:
                failure = _Forbidden(failure)
        raise failure  # here, so that the original error, which quotes the request, is not its context


def _answer(response: Mapping[str, Any]) -> Answer:
    """Read who the object is from an answer's headers."""
    facts = response["ResponseMetadata"]
    headers = facts["HTTPHeaders"]
    body = response["Body"]
    body = getattr(body, "_raw_stream", body)  # below botocore's wrapper: half the work, and urllib3's own errors
    length, etag = rest.length_of(headers.get("content-length", "")), headers.get("etag")
    whole = facts["HTTPStatusCode"] == 200
    start, total = (0, length) if whole else rest.span_of(headers.get("content-range", ""))
    version = headers.get("x-amz-version-id")
    identity = Identity(
        None if etag is None or etag.startswith("W/") else etag,
        None if version == "null" else version,
        headers.get("last-modified"),
        total,
    )
    if not whole or headers.get("x-amz-checksum-type", "").upper() == "COMPOSITE":  # of parts
        return Answer(body, start, identity, length)
    return Answer(
        body,
        start,
        identity,
        length,
        crc32=crc32_of(headers.get("x-amz-checksum-crc32")),
        crc32c=crc32_of(headers.get("x-amz-checksum-crc32c")),
        crc64nvme=crc32_of(headers.get("x-amz-checksum-crc64nvme"), 8),
        digest=digest_of(headers.get("x-amz-checksum-sha256"), "sha256")
        or digest_of(headers.get("x-amz-checksum-sha1"), "sha1")
        or digest_of(headers.get("content-md5"), "md5"),
    )


def object_of(url: str, storage_options: Any = None) -> S3Object:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return S3Object(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.sources.s3.upload.S3Upload`."""
    from .upload import S3Upload  # noqa: PLC0415  only for uploads

    return S3Upload(url, storage_options, **options)


gopen_s3 = opener_for("s3")
