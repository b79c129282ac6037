"""Uploads to S3: one request, or parts of a multipart upload, a few at a time.

Flows in: bytes. Flows out: an object; see :mod:`webdataset.sources.uploading`. Each part is sent again until the
service has it, so that an upload is as patient as a reader.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.sources.uploading import Upload

from .calls import Calls
from .places import place_of

PART_BYTES = 16 << 20

_MD5 = re.compile(r'"?([0-9a-f]{32})"?$')


class S3Upload(Upload):
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
        self._place = place_of(url, storage_options)
        if not self._place.key or self._place.key.endswith("/") or self._place.version:
            raise UsageError("names no object that can be written: an S3 url is s3://bucket/key", url=url)
        self._calls = Calls(self._place.profile, url, attempts)
        self._upload = ""
        super().__init__(url, part_bytes)

    def _begin(self) -> None:
        self._upload = self._calls.call("create_multipart_upload", **self._place.named())["UploadId"]

    def _put(self, number: int, body: bytes) -> str:
        answer = self._calls.call(
            "upload_part", **self._place.named(), UploadId=self._upload, PartNumber=number, Body=body
        )
        etag: str = answer["ETag"]
        return etag

    def _whole(self, body: bytes) -> None:
        self._calls.call("put_object", **self._place.named(), Body=body)

    def _join(self, tags: list[str]) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(tags, 1)]
        try:
            self._calls.call(
                "complete_multipart_upload",
                **self._place.named(),
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
            found = self._calls.call("head_object", **self._place.named())
        except SourceError:
            return False
        sums = [match[1] for match in map(_MD5.match, etags) if match]
        joined = hashlib.md5(bytes.fromhex("".join(sums)), usedforsecurity=False).hexdigest()
        return (found["ContentLength"], found["ETag"].strip('"')) == (self._size, f"{joined}-{len(etags)}")

    def _remove(self) -> None:
        self._calls.call("abort_multipart_upload", **self._place.named(), UploadId=self._upload)
