"""S3 and compatible services: reads, uploads and lists objects.

A url is ``s3://bucket/key``, with a profile in front of it or found by a route
(:mod:`webdataset.storage.profile_selection`), and optionally ``?versionId=...`` after it. Every response must prove
that it is about the same bytes: ``If-Match`` is sent, and ETag, total length and offset are compared, since there are
services that ignore the condition.

An upload is one request, or parts of a multipart upload, a few at a time. Each part is retried until the service has
it, so that an upload is as patient as a reader; the object is not visible before it is complete. A list has a
thousand keys a request, in the order of the service.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from webdataset.core.errors import SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.backends import s3_client
from webdataset.storage.backends.s3_client import (
    S3Client,
    doubts_credentials,
    escape_key,
    parse_key,
    parse_url,
    response_status,
    translate_error,
)
from webdataset.storage.http_client import next_page
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, RetryableError, parse_crc32, parse_digest
from webdataset.storage.open_url import make_opener
from webdataset.storage.profile_selection import service_id as service_id
from webdataset.storage.uploads import MultipartUpload


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.storage.open_url`.

    A route may put folders before what the url says: they belong to the stem.
    """
    place = parse_url(url)
    if place.version:
        raise UsageError("a list of objects has no versionId", url=url)
    key = escape_key(place.key)
    start = max(len(url) - len(key), url.index("://") + 3)
    while start < len(url) and not (key.endswith(url[start:]) and url[start - 1] == "/"):
        start += 1
    return url[:start], url[start:]


def list_keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the keys in a bucket that begin with a text.

    Args:
        stem: ``s3://bucket/``, as the user writes it.
        prefix: what keys begin with.
        storage_options: fields of the profile, or the name of one.

    Raises:
        NotFound: no such bucket.
        SourceError: the service refuses, or does not answer.
        MissingExtra: botocore is not installed.
    """
    place = parse_url(f"{stem}x", storage_options)
    folder = place.key[:-1]  # a route's
    calls = S3Client(place.profile, stem)
    arguments = {**place.request_arguments(), "Prefix": folder + parse_key(prefix)}
    del arguments["Key"]
    token = None
    while True:
        answer = calls.call("list_objects_v2", **arguments)
        for found in answer.get("Contents", ()):
            if found["Key"].startswith(folder):
                yield escape_key(found["Key"][len(folder) :])
        if not answer.get("IsTruncated"):
            return
        token = next_page(answer.get("NextContinuationToken"), token, stem)
        if token is None:
            raise SourceError("the service says that its list goes on, and not where", url=stem)
        arguments["ContinuationToken"] = token


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
        self.place = parse_url(url, storage_options)
        self.requests = 0
        if not self.place.key or self.place.key.endswith("/"):
            raise UsageError("names no object: an S3 url is s3://bucket/key (wds.expand_urls lists a folder)", url=url)
        self._failures = s3_client.failures()
        self._unversioned = False

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return (*http_client.failures(), *self._failures)

    def refresh(self) -> None:
        """Look for credentials anew."""
        s3_client.forget_client(self.place.profile)

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Send one GetObject; see :class:`~webdataset.storage.object_store.RemoteObject`.

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
        wanted: dict[str, str] = {**self.place.request_arguments(), "ChecksumMode": "ENABLED"}
        if known is not None and known.etag:
            wanted["IfMatch"] = known.etag
        if offset or size is not None:
            wanted["Range"] = f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"
        version = self.place.version or (None if known is None or self._unversioned else known.version)
        if version is None:
            return self._request(wanted, known, offset)
        try:
            return self._request({**wanted, "VersionId": version}, known, offset)
        except _Forbidden as error:
            refusal = error.failure
        if self.place.version or "IfMatch" not in wanted:
            raise refusal
        # GetObjectVersion is a right of its own: the condition alone tells a replaced object, too
        answer = self._request(wanted, known, offset)
        self._unversioned = True
        return answer

    def _request(self, wanted: Mapping[str, str], known: ObjectVersion | None, offset: int) -> ObjectResponse:
        """Send one request.

        Raises:
            _Forbidden: status 403 for a request that names a version.
        """
        client = s3_client.client_for(self.place.profile, self.url)
        self.requests += 1
        try:
            return _parse_answer(client.get_object(**wanted))
        except self._failures as error:
            failure: Exception = translate_error(error, self.url, offset=offset, profile=self.place.profile)
            if doubts_credentials(error):
                s3_client.forget_client(self.place.profile)  # the next request looks for credentials anew
                failure = (
                    RetryableError(str(failure)) if known is not None else failure
                )  # keys that were good until now
            if "VersionId" in wanted and response_status(error) == 403:
                failure = _Forbidden(failure)
        raise failure  # here, so that the original error, which quotes the request, is not its context


def _parse_answer(response: Mapping[str, Any]) -> ObjectResponse:
    """Read who the object is from an answer's headers."""
    facts = response["ResponseMetadata"]
    headers = facts["HTTPHeaders"]
    body = response["Body"]
    body = getattr(body, "_raw_stream", body)  # below botocore's wrapper: half the work, and urllib3's own errors
    length, etag = http_client.parse_length(headers.get("content-length", "")), headers.get("etag")
    whole = facts["HTTPStatusCode"] == 200
    start, total = (0, length) if whole else http_client.parse_content_range(headers.get("content-range", ""))
    version = headers.get("x-amz-version-id")
    identity = ObjectVersion(
        None if etag is None or etag.startswith("W/") else etag,
        None if version == "null" else version,
        headers.get("last-modified"),
        total,
    )
    if not whole or headers.get("x-amz-checksum-type", "").upper() == "COMPOSITE":  # of parts
        return ObjectResponse(body, start, identity, length)
    return ObjectResponse(
        body,
        start,
        identity,
        length,
        crc32=parse_crc32(headers.get("x-amz-checksum-crc32")),
        crc32c=parse_crc32(headers.get("x-amz-checksum-crc32c")),
        crc64nvme=parse_crc32(headers.get("x-amz-checksum-crc64nvme"), 8),
        digest=parse_digest(headers.get("x-amz-checksum-sha256"), "sha256")
        or parse_digest(headers.get("x-amz-checksum-sha1"), "sha1")
        or parse_digest(headers.get("content-md5"), "md5"),
    )


def remote_object(url: str, storage_options: Any = None) -> S3Object:
    """Return the object of a url; see :mod:`webdataset.storage.open_url`."""
    return S3Object(url, storage_options)


def create_upload(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.storage.backends.s3.S3Upload`."""
    return S3Upload(url, storage_options, **options)


gopen_s3 = make_opener("s3")


PART_BYTES = 16 << 20

_MD5 = re.compile(r'"?([0-9a-f]{32})"?$')


class S3Upload(MultipartUpload):
    """A stream to a new object.

    Args:
        url: the object.
        storage_options: fields of the profile that a dataset gives.
        part_bytes: size of a part, at least 5 MiB; an object has at most 10,000 of them, and up to five are in memory.
        attempts: failures in a row after which a request is given up.

    Raises:
        UsageError: the url names no object, or parts are too small.
        MissingExtra: botocore is not installed.
    """

    least_part_bytes = 5 << 20

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        part_bytes: int = PART_BYTES,
        attempts: int | None = None,
    ) -> None:
        self._place = parse_url(url, storage_options)
        if not self._place.key or self._place.key.endswith("/") or self._place.version:
            raise UsageError("names no object that can be written: an S3 url is s3://bucket/key", url=url)
        self._calls = S3Client(self._place.profile, url, attempts)
        self._upload = ""
        super().__init__(url, part_bytes)

    def _begin(self) -> None:
        self._upload = self._calls.call("create_multipart_upload", **self._place.request_arguments())["UploadId"]

    def _send_part(self, number: int, body: bytes) -> str:
        answer = self._calls.call(
            "upload_part", **self._place.request_arguments(), UploadId=self._upload, PartNumber=number, Body=body
        )
        etag: str = answer["ETag"]
        return etag

    def _whole(self, body: bytes) -> None:
        self._calls.call("put_object", **self._place.request_arguments(), Body=body)

    def _join(self, tags: list[str]) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(tags, 1)]
        try:
            self._calls.call(
                "complete_multipart_upload",
                **self._place.request_arguments(),
                UploadId=self._upload,
                MultipartUpload={"Parts": parts},
            )
        except SourceError:
            # an answer may have been lost: the upload is gone then, and the object is there
            if not self._is_there(tags):
                raise

    def _is_there(self, etags: list[str]) -> bool:
        """Tell whether the object is the one made of these parts."""
        try:
            found = self._calls.call("head_object", **self._place.request_arguments())
        except SourceError:
            return False
        sums = [match[1] for match in map(_MD5.match, etags) if match]
        joined = hashlib.md5(bytes.fromhex("".join(sums)), usedforsecurity=False).hexdigest()
        return (found["ContentLength"], found["ETag"].strip('"')) == (self._size, f"{joined}-{len(etags)}")

    def _remove(self) -> None:
        self._calls.call("abort_multipart_upload", **self._place.request_arguments(), UploadId=self._upload)
