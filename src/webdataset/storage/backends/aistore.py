"""AIStore, over its own HTTP interface: reads, uploads and lists objects, and reads many by one request.

The version and the checksum together identify an object: versions count from 1 again when an object is removed and
stored anew. Clusters can be configured to send the checksum of a range with the range; where that may be, a HEAD asks
for that of the whole object before two responses are taken to be about the same bytes.

An upload is one PUT when the stream is closed, which the cluster takes whole or not at all; it is retried, beginning
at a gateway, while that may help. A list comes page by page, in the order of the cluster.

:class:`AistoreBatch` is GetBatch: many objects, or members of archives, as one tar stream in the order of the
request. What does not exist comes as an empty member below ``__404__/``.
"""

import http.client
import json
import os
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.backends import aistore_client
from webdataset.storage.backends.aistore_client import (
    AistoreClient,
    AistoreLocation,
    parse_url,
    translate_refusal,
)
from webdataset.storage.backends.aistore_client import service_id as service_id
from webdataset.storage.backends.aistore_client import split as split
from webdataset.storage.http_client import next_page
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, RetryableError, object_changed_error
from webdataset.storage.open_url import make_opener
from webdataset.storage.resumable_stream import ATTEMPTS
from webdataset.storage.uploads import SinglePutUpload


def list_keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the names in a bucket that begin with a text.

    Args:
        stem: ``ais://bucket/``, as the user writes it.
        prefix: what names begin with.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        NotFound: no such bucket.
        SourceError: the cluster refuses, or does not answer.
        ConfigError: no gateway is known.
    """
    cluster = AistoreClient(storage_options, stem)
    place = parse_url(stem, cluster.provider)
    wanted: dict[str, Any] = {"prefix": prefix, "props": "name", "pagesize": 0, "flags": "0", "uuid": ""}
    wanted["continuation_token"] = ""
    path, query = place.bucket_path(), place.of_bucket()
    while True:
        page = cluster.call("GET", path, query, {"action": "list", "name": "", "value": wanted}) or {}
        for entry in page.get("entries") or ():
            if str(entry["name"]).startswith(prefix):
                yield entry["name"]
        token = next_page(page.get("continuation_token"), wanted["continuation_token"], stem)
        if token is None:
            return
        wanted = {**wanted, "uuid": page.get("uuid", ""), "continuation_token": token}


class AistoreObject:
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
        self.cluster = AistoreClient(storage_options, url)
        self.place = parse_url(url, self.cluster.provider)
        if not self.place.name or self.place.name.endswith("/"):
            raise UsageError(
                "names no object: an AIStore url is ais://bucket/object (wds.expand_urls lists them)", url=url
            )

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return http_client.failures()

    def refresh(self) -> None:
        """Nothing is kept between two requests: the token is looked up for each."""

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Send one GET to a gateway, and follow it; see :class:`~webdataset.storage.object_store.RemoteObject`.

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
        headers = http_client.range_header(offset, size) if self.place.whole() else {}
        reading = known is not None
        try:
            response = self.cluster.ask("GET", self.place.path(), self.place.query(), headers, reading=reading)
        except NotFound as error:
            raise NotFound(f"{error.message}{self.place.hint()}", url=self.url) from None
        answer = self._answer(response)
        if response.status == 206:
            try:
                answer = answer._replace(identity=self._certain(answer.identity, known, offset))
            except (RetryableError, SourceError):
                response.close()
                raise
        return answer

    def _answer(self, response: Any) -> ObjectResponse:
        """Read who the object is from an answer's headers."""
        headers, (start, total, size) = response.headers, http_client.parse_body_range(response)
        if self.place.is_transformed():
            return ObjectResponse(response, start, ObjectVersion(None, None, None, total), size)
        vouched = self.place.whole() and response.status == 200
        return ObjectResponse(
            response, start, self._identity(headers, total), size, digest=_parse_checksum(headers) if vouched else None
        )

    def _identity(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        return _parse_version(headers, length, counted=self.place.provider == "ais")

    def _certain(self, found: ObjectVersion, known: ObjectVersion | None, offset: int) -> ObjectVersion:
        """Return who the object is of which a range came, by the checksum of all of it."""
        if known is not None and found == known:
            return found
        if known is not None and (known.version != found.version or known.length != found.length):
            return found
        response = self.cluster.ask("HEAD", self.place.path(), self.place.query(), {})
        response.close()
        length = http_client.parse_length(response.headers.get("Content-Length", ""))
        whole = self._identity(response.headers, found.length if length is None else length)
        if (whole.version, whole.length) != (found.version, found.length):
            raise (
                object_changed_error(self.url, offset)
                if known is not None
                else RetryableError("the object was replaced just now")
            )
        return whole


def _parse_version(headers: Mapping[str, str], length: int | None, *, counted: bool) -> ObjectVersion:
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
    return ObjectVersion(etag, None if counted and etag is None else version, modified, length)


def _parse_checksum(headers: Mapping[str, str]) -> tuple[str, str] | None:
    kind, sum_ = headers.get("Ais-Checksum-Type"), headers.get("Ais-Checksum-Value")
    return (kind, sum_) if kind and sum_ else None


def remote_object(url: str, storage_options: Any = None) -> AistoreObject:
    """Return the object of a url; see :mod:`webdataset.storage.open_url`."""
    return AistoreObject(url, storage_options)


def create_upload(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.storage.backends.aistore.AistoreUpload`."""
    return AistoreUpload(url, storage_options, **options)


_open_natively = make_opener("aistore", scheme="ais")


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
    if storage_options is None and not AistoreClient(None, url).gateways:
        from webdataset.storage.backends.pipe import gopen_ais_program  # noqa: PLC0415  only where there is no gateway

        return gopen_ais_program(url, mode, bufsize, **options)
    return _open_natively(url, mode, bufsize, storage_options=storage_options, **options)


MISSING = "__404__/"


class BatchEntry(NamedTuple):
    """One object, or one member of an archive.

    Args:
        url: the object, without what is asked of it.
        place: the same, taken apart.
        member: path in the archive; empty for the object itself.
    """

    url: str
    place: AistoreLocation
    member: str

    @property
    def name(self) -> str:
        """What is wanted: the member's path, or the object's name."""
        return self.member or self.place.name


def parse_entry(given: Any, provider: str | None = None) -> BatchEntry:
    """Return the entry that somebody means.

    Args:
        given: ``ais://bucket/object``, ``bucket/object``, either with ``?archpath=member``, or a pair of one of these
            and a member's path. Other schemes name their provider: ``s3://bucket/object``.
        provider: of ``ais:`` urls.

    Raises:
        UsageError: it makes no sense, or cannot be asked for in a batch.
    """
    text, member = (given, "") if isinstance(given, str | os.PathLike) else _split_pair(given)
    url = os.fspath(text) if "://" in os.fspath(text) else f"ais://{os.fspath(text)}"
    place = parse_url(url, provider)
    asked = dict(place.asked)
    member = member or asked.pop("archpath", "")
    if asked or place.namespace or place.original or not place.name or place.name.endswith("/"):
        raise UsageError(
            "a batch has objects, and members by archpath; no namespaces, transformations or web urls", url=url
        )
    return BatchEntry(url.partition("?archpath=")[0], place._replace(asked=()), member)


def _split_pair(given: Any) -> tuple[Any, str]:
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, str) for part in given):
        return given[0], given[1]
    raise UsageError(f"an entry of a batch is a url, or a pair of a url and a member's path, not {given!r}")


class AistoreBatch:
    """Entries that are asked for together.

    Args:
        entries: what is wanted; at least one.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, entries: Sequence[BatchEntry], storage_options: Any = None) -> None:
        self.entries = entries
        self.url = f"ais://{entries[0].place.bucket}/"
        self._cluster = AistoreClient(storage_options, self.url)

    def open_from(self, number: int) -> Any:
        """Ask once for the entries from a number on.

        Args:
            number: of the first entry wanted.

        Returns:
            A tar stream: an object with ``read(size)`` and ``close()``.

        Raises:
            Again: asking again may help.
            SourceError: the cluster refuses.
        """
        wanted = self.entries[number:]
        first = wanted[0].place
        body = {
            "in": [_describe_entry(entry) for entry in wanted],
            "mime": ".tar",
            "coer": True,  # go on after what does not exist
            "onob": False,  # names begin with the bucket
            "strm": True,
        }
        headers, sent = {"Content-Type": "application/json"}, json.dumps(body).encode()
        return self._cluster.ask("GET", first.batch(), first.of_bucket(), headers, sent, reading=number > 0)

    def broken(self, reason: str) -> RetryableError:
        """Return the error of a stream that ended early; another gateway is asked next.

        Args:
            reason: how.
        """
        self._cluster.next_gateway()
        return RetryableError(reason)


def _describe_entry(entry: BatchEntry) -> dict[str, str]:
    named = {"objname": entry.place.name, "bucket": entry.place.bucket, "provider": entry.place.provider}
    return {**named, **({"archpath": entry.member} if entry.member else {})}


class AistoreUpload(SinglePutUpload):
    """A stream to a new object.

    Args:
        url: the object.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.
        attempts: failures in a row after which the upload is given up.

    Raises:
        UsageError: the url names no object that can be written.
        ConfigError: no gateway is known.
    """

    def __init__(self, url: str, storage_options: Any = None, *, attempts: int = ATTEMPTS) -> None:
        self._cluster = AistoreClient(storage_options, url)
        self._cluster.gateway()
        self._place = parse_url(url, self._cluster.provider)
        writable = self._place.name and not self._place.name.endswith("/") and not self._place.asked
        if not writable or self._place.original:
            raise UsageError("names no object that can be written: an AIStore url is ais://bucket/object", url=url)
        super().__init__(url, attempts)

    def _send_object(self) -> None:
        """Send the object once, beginning at a gateway; the next one is asked where that fails."""
        query = urllib.parse.urlencode(self._place.query())
        target = f"{self._cluster.gateway()}{self._place.path()}?{query}"
        try:
            for hop in range(aistore_client.HOPS):
                reply = self._send_to(target, asking=hop == 0)
                if reply.status < 300:
                    return
                if reply.status not in aistore_client.REDIRECTED:
                    raise translate_refusal(reply.status, reply.headers, reply.error_body, self.name)
                target = self._cluster.redirect_target(target, reply.headers.get("Location", ""))
        except RetryableError:
            self._cluster.next_gateway()
            raise
        raise SourceError(f"the cluster redirected the upload more than {aistore_client.HOPS} times", url=self.name)

    def _send_to(self, target: str, *, asking: bool) -> aistore_client.UploadReply:
        headers, tls = self._cluster.authorization(), dict(self._cluster.tls())
        try:
            return aistore_client.put_file(
                target, headers, self._kept, self._size, tls, seconds=http_client.READ_SECONDS, asking=asking
            )
        except (OSError, http.client.HTTPException) as error:
            reason = redact(f"{type(error).__name__}: {error}")
        raise aistore_client.no_answer_error(reason, self.name)
