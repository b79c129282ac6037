"""S3 and compatible services: reads, uploads and lists objects.

A url is ``s3://bucket/key``, with a profile in front of it or found by a route
(:mod:`webdataset.storage.profile_registry`), and optionally ``?versionId=...`` after it. ``If-Match`` goes with every
request after the first; ETag, length and offset are compared all the same, since there are services that ignore the
condition.

A large upload is the parts of a multipart upload, a few at a time. Each part is retried until the service has it; the
object is never visible before it is complete.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping

from webdataset.core.errors import SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.backends import s3_client
from webdataset.storage.backends.s3_client import (
    S3Client,
    escape_key,
    parse_key,
    parse_url,
)
from webdataset.storage.backends.s3_errors import response_status, translate_error
from webdataset.storage.http_client import list_pages
from webdataset.storage.http_object import (
    HttpAnswer,
    HttpRemoteObject,
    condition_header,
    override_headers,
    range_header,
    strong_etag,
)
from webdataset.storage.object_store import Checksums, ObjectVersion, parse_crc32, parse_digest, refuse_folder
from webdataset.storage.profile_registry import service_id as service_id
from webdataset.storage.retries import RetryableError
from webdataset.storage.uploads import MultipartUpload


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; folders that a route puts before the url's own belong to the stem."""
    place = parse_url(url)
    if place.version:
        raise UsageError("a list of objects has no versionId", url=url)
    key = escape_key(place.key)
    start = max(len(url) - len(key), url.index("://") + 3)
    while start < len(url) and not (key.endswith(url[start:]) and url[start - 1] == "/"):
        start += 1
    return url[:start], url[start:]


def list_keys(stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
    """Yield the keys of a bucket that begin with a prefix, in the order of the service."""
    place = parse_url(f"{stem}x", storage_options)
    # of a route
    folder = place.key[:-1]
    client = S3Client(place.profile, stem)
    arguments = {**place.request_arguments(), "Prefix": folder + parse_key(prefix)}
    del arguments["Key"]

    def page(token: str | None) -> tuple[Iterable[str], str | None]:
        found = client.call("list_objects_v2", **arguments, **({"ContinuationToken": token} if token else {}))
        following = found.get("NextContinuationToken") if found.get("IsTruncated") else None
        if found.get("IsTruncated") and not following:
            raise SourceError("the service says that its list continues, and not where", url=stem)
        keys = (entry["Key"] for entry in found.get("Contents", ()))
        return (escape_key(key[len(folder) :]) for key in keys if key.startswith(folder)), following

    return list_pages(page, stem)


class _Forbidden(Exception):
    """Reading this version is forbidden.

    Args:
        failure: what to raise where a request without the version is no way out.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure


class S3Object(HttpRemoteObject):
    """One object.

    Args:
        url: the url as the user wrote it.
        storage_options: fields of the profile.

    Raises:
        UsageError: the url names no object.
        MissingExtra: botocore is not installed.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        super().__init__(url)
        self.place = parse_url(url, storage_options)
        refuse_folder(self.place.key, "an S3 url is s3://bucket/key", url)
        self._failures = s3_client.failures()
        self._unversioned = False

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return (*http_client.failures(), *self._failures)

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Send one GetObject, for the known version."""
        headers = {**range_header(offset, size), **condition_header(known)}
        named = {name.replace("-", ""): text for name, text in headers.items() if name != "If-Unmodified-Since"}
        wanted = {**self.place.request_arguments(), "ChecksumMode": "ENABLED", **named}
        version = self.place.version or (None if known is None or self._unversioned else known.version)
        if version is None:
            return self._get_object(wanted, known, offset)
        try:
            return self._get_object({**wanted, "VersionId": version}, known, offset)
        except _Forbidden as error:
            refusal = error.failure
        if self.place.version or "IfMatch" not in wanted:
            raise refusal
        # GetObjectVersion is a right of its own: the condition alone tells a replaced object, too
        answer = self._get_object(wanted, known, offset)
        self._unversioned = True
        return answer

    def _get_object(self, wanted: Mapping[str, str], known: ObjectVersion | None, offset: int) -> HttpAnswer:
        """Send one request; ``_Forbidden`` is status 403 for one that names a version."""
        client, used = s3_client.client_for(self.place.profile, self.url), time.monotonic()
        try:
            response = client.get_object(**wanted)
        except self._failures as error:
            failure: Exception = translate_error(error, self.url, offset=offset, profile=self.place.profile)
            # those that were good until now may have been renewed
            if s3_client.judge_refusal(self.place.profile, error, failure, used) and known is not None:
                failure = RetryableError(str(failure))
            if "VersionId" in wanted and response_status(error) == 403:
                failure = _Forbidden(failure)
        else:
            facts = response["ResponseMetadata"]
            # below botocore's wrapper: half the work, and urllib3's own errors
            body = getattr(response["Body"], "_raw_stream", response["Body"])
            return HttpAnswer(facts["HTTPStatusCode"], override_headers(facts["HTTPHeaders"], {}), body)
        # raised outside the handler, so that the original error, which quotes the request, is not its context
        raise failure

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return the ETag, if it is strong, the version, and the date of the last change."""
        version = headers.get("x-amz-version-id")
        version = None if version == "null" else version
        return ObjectVersion(strong_etag(headers), version, headers.get("Last-Modified"), length)

    def checksums(self, headers: Mapping[str, str], *, whole: bool) -> Checksums:
        """Return the checksums of a whole object; those of a range, or of the checksums of parts, are of no use."""
        if not whole or headers.get("x-amz-checksum-type", "").upper() == "COMPOSITE":
            return Checksums()
        return Checksums(
            crc32=parse_crc32(headers.get("x-amz-checksum-crc32")),
            crc32c=parse_crc32(headers.get("x-amz-checksum-crc32c")),
            crc64nvme=parse_crc32(headers.get("x-amz-checksum-crc64nvme"), 8),
            digest=parse_digest(headers.get("x-amz-checksum-sha256"), "sha256")
            or parse_digest(headers.get("x-amz-checksum-sha1"), "sha1")
            or parse_digest(headers.get("content-md5"), "md5"),
        )


PART_BYTES = 16 << 20

_MD5 = re.compile(r'"?([0-9a-f]{32})"?$')


class S3Upload(MultipartUpload):
    """A stream to a new object.

    Args:
        url: the object.
        storage_options: fields of the profile.
        part_bytes: bytes of a part, at least 5 MiB; an object has at most 10,000 of them, and up to five are in memory.
        attempts: failures in a row after which to give up a request.

    Raises:
        UsageError: the url names no object, or parts are too small.
        MissingExtra: botocore is not installed.
    """

    least_part_bytes = 5 << 20

    def __init__(
        self, url: str, storage_options: object = None, *, part_bytes: int = PART_BYTES, attempts: int | None = None
    ) -> None:
        self._place = parse_url(url, storage_options)
        if not self._place.key or self._place.key.endswith("/") or self._place.version:
            raise UsageError("names no object that can be written: an S3 url is s3://bucket/key", url=url)
        self._client = S3Client(self._place.profile, url, attempts)
        self._upload = ""
        super().__init__(url, part_bytes)

    def _begin(self) -> None:
        self._upload = self._client.call("create_multipart_upload", **self._place.request_arguments())["UploadId"]

    def _send_part(self, number: int, body: bytes) -> str:
        answer = self._client.call(
            "upload_part", **self._place.request_arguments(), UploadId=self._upload, PartNumber=number, Body=body
        )
        etag: str = answer["ETag"]
        return etag

    def _whole(self, body: bytes) -> None:
        self._client.call("put_object", **self._place.request_arguments(), Body=body)

    def _join(self, tags: list[str]) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(tags, 1)]
        try:
            self._client.call(
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
            found = self._client.call("head_object", **self._place.request_arguments())
        except SourceError:
            return False
        sums = [match[1] for match in map(_MD5.match, etags) if match]
        joined = hashlib.md5(bytes.fromhex("".join(sums)), usedforsecurity=False).hexdigest()
        return (found["ContentLength"], found["ETag"].strip('"')) == (self._size, f"{joined}-{len(etags)}")

    def _remove(self) -> None:
        self._client.call("abort_multipart_upload", **self._place.request_arguments(), UploadId=self._upload)


remote_object = S3Object
create_upload = S3Upload
