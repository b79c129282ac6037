"""Uploads to S3: an object appears when it is complete, and never before.

Flows in: bytes. Flows out: an object. What fits into one part is sent as one request when the stream is closed; more
goes up in parts while it is being written, a few at a time, and is joined by the last request. Whatever ends the
program before that, the old object (or none) stays; ``abort`` also removes the parts. Each part is sent again until
the service has it, so that an upload is as patient as a reader.
"""

import contextlib
import hashlib
import io
import logging
import os
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, Self

from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.redaction import redacted

from .calls import Calls
from .objects import place_of

PART_BYTES = 16 << 20
LEAST_PART_BYTES = 5 << 20
MOST_PARTS = 10_000
AT_ONCE = 4

_MD5 = re.compile(r'"?([0-9a-f]{32})"?$')

log = logging.getLogger("webdataset")


class S3Upload(io.RawIOBase):
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

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        part_bytes: int = PART_BYTES,
        attempts: int | None = None,
    ) -> None:
        super().__init__()
        self.name = url
        self._place = place_of(url, storage_options)
        if not self._place.key or self._place.key.endswith("/") or self._place.version:
            raise UsageError("names no object that can be written: an S3 url is s3://bucket/key", url=url)
        if part_bytes < LEAST_PART_BYTES:
            raise UsageError(f"part_bytes is at least {LEAST_PART_BYTES}, not {part_bytes}", url=url)
        self._calls = Calls(self._place.profile, url, attempts)
        self._part_bytes = part_bytes
        self._owner = os.getpid()
        self._buffer = bytearray()
        self._size = 0
        self._upload: str | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._parts: list[Future[str]] = []
        self._broken: SourceError | None = None

    def __repr__(self) -> str:
        return f"<S3Upload {redacted(self.name)} at {self._size}>"

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def write(self, content: Any, /) -> int:
        """Take bytes; a full part is sent while the next one fills.

        Raises:
            SourceError: the service refused an earlier part.
            UsageError: more parts than an object may have.
        """
        if self.closed:
            raise ValueError("write to a closed stream")
        if self._broken is not None:
            raise self._broken
        view = memoryview(content).cast("B")
        self._size += len(view)
        offset = 0
        while len(self._buffer) + len(view) - offset >= self._part_bytes:
            space = self._part_bytes - len(self._buffer)
            self._buffer += view[offset : offset + space]
            offset += space
            self._send()
        self._buffer += view[offset:]
        return len(view)

    def _send(self) -> None:
        """Hand the buffer over as one part; wait where enough of them are on their way."""
        body, self._buffer = self._buffer, bytearray()
        if len(self._parts) == MOST_PARTS:
            self._fail(UsageError(f"more than {MOST_PARTS} parts: pass a larger part_bytes", url=self.name))
        try:
            if self._upload is None:
                answer = self._calls.call("create_multipart_upload", **self._place.named())
                self._upload = answer["UploadId"]
                self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webdataset-upload")
            if len(self._parts) >= AT_ONCE:
                self._parts[-AT_ONCE].result()
        except SourceError as error:
            self._fail(error)
        if self._threads is not None:
            self._parts.append(self._threads.submit(self._put, len(self._parts) + 1, bytes(body)))

    def _put(self, number: int, body: bytes) -> str:
        answer = self._calls.call(
            "upload_part", **self._place.named(), UploadId=self._upload, PartNumber=number, Body=body
        )
        etag: str = answer["ETag"]
        return etag

    def _fail(self, error: SourceError | UsageError) -> NoReturn:
        """Keep an error for later writes and for close, which must not publish."""
        self._broken = error if isinstance(error, SourceError) else SourceError(error.message, url=self.name)
        raise error

    def close(self) -> None:
        """Publish the object.

        Raises:
            SourceError: the service refuses, now or earlier; nothing is published.
        """
        if self.closed:
            return
        if self._owner != os.getpid():  # a copy in a forked process: the upload belongs to its parent
            super().close()
            return
        try:
            self._publish()
        except BaseException:  # an interrupt, too, must not leave parts behind
            self.abort()
            raise
        self._end()

    def _publish(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._upload is None:
            self._calls.call("put_object", **self._place.named(), Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send()
        etags = [part.result() for part in self._parts]
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        try:
            self._calls.call(
                "complete_multipart_upload",
                **self._place.named(),
                UploadId=self._upload,
                MultipartUpload={"Parts": parts},
            )
        except SourceError:
            # an answer may have been lost: the upload is gone then, and the object is there
            if not self._is_there(etags):
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

    def abort(self) -> None:
        """Stop the upload; nothing is published, and what was sent is removed."""
        if self.closed:
            return
        if self._owner == os.getpid():
            for part in self._parts:
                part.cancel()
            self._end()
            if self._upload is not None:
                self._remove()
        super().close()

    def _remove(self) -> None:
        try:
            self._calls.call("abort_multipart_upload", **self._place.named(), UploadId=self._upload)
        except SourceError as error:
            log.warning("parts of an upload could not be removed, the bucket's lifecycle rules may: %s", error)

    def _end(self) -> None:
        """Let the threads go, and the memory."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)
        self._buffer = bytearray()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Abort a forgotten upload: it may be half of what was meant."""
        if "_broken" not in self.__dict__ or self.closed:
            return
        if self._owner == os.getpid():
            warnings.warn(
                f"unclosed {self!r}: nothing was published; use 'with', or call close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
        with contextlib.suppress(Exception):  # a finaliser must not raise
            self.abort()
