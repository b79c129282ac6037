"""AIStore, over its own HTTP interface: reads, uploads and lists objects, and reads many by one request.

The version and the checksum together identify an object: versions count from 1 again when an object is removed and
stored anew. Clusters can be configured to send the checksum of a range with the range; where that may be, a HEAD
requests that of the whole object before two responses may count as being about the same bytes.

An upload is one PUT when the stream is closed, which the cluster takes whole or not at all.
:class:`AistoreBatch` is GetBatch: many objects, or members of archives, as one tar stream in the order of the
request. What does not exist comes as an empty member below ``__404__/``.
"""

import http.client
import json
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.backends import aistore_client
from webdataset.storage.backends.aistore_client import AistoreClient, AistoreLocation, parse_url, translate_refusal
from webdataset.storage.backends.aistore_client import service_id as service_id
from webdataset.storage.backends.aistore_client import split as split
from webdataset.storage.http_client import HttpResponse, list_pages
from webdataset.storage.http_object import (
    HttpAnswer,
    HttpRemoteObject,
    override_headers,
    parse_content_range,
    parse_length,
    range_header,
)
from webdataset.storage.object_store import Checksums, ObjectVersion, object_changed_error, refuse_folder
from webdataset.storage.open_url import make_opener
from webdataset.storage.retries import ATTEMPTS, RetryableError
from webdataset.storage.uploads import SinglePutUpload


def list_keys(stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
    """Yield the names in a bucket that begin with a prefix, in the order of the cluster."""
    cluster = AistoreClient(storage_options, stem)
    place = parse_url(stem, cluster.provider)
    wanted = {"prefix": prefix, "props": "name", "pagesize": 0, "flags": "0", "uuid": ""}

    def page(token: str | None) -> tuple[Iterable[str], str | None]:
        asked = {"action": "list", "name": "", "value": {**wanted, "continuation_token": token or ""}}
        found = cluster.call("GET", place.bucket_path(), place.of_bucket(), asked)
        # the uuid names the list, of which this was a page
        wanted["uuid"] = found.get("uuid", "")
        names = (str(entry["name"]) for entry in found.get("entries") or ())
        return (name for name in names if name.startswith(prefix)), found.get("continuation_token")

    return list_pages(page, stem)


class AistoreObject(HttpRemoteObject):
    """One object, a member of one, or what a transformation makes of it.

    Args:
        url: the url as the user wrote it.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        UsageError: the url names no object.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        super().__init__(url)
        self.cluster = AistoreClient(storage_options, url)
        self.place = parse_url(url, self.cluster.provider)
        refuse_folder(self.place.name, "an AIStore url is ais://bucket/object", url)

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Send one GET to a gateway, and follow it; the whole object, where it is a member or transformed."""
        headers = range_header(offset, size) if self.place.whole() else {}
        reading = known is not None
        try:
            response = self.cluster.ask("GET", self.place.path(), self.place.query(), headers, reading=reading)
        except NotFound as error:
            raise NotFound(f"{error.message}{self.place.hint()}", url=self.url) from None
        answer = HttpAnswer(response.status, response.headers, response)
        if response.status != 206 or self.place.is_transformed():
            return answer
        try:
            return answer._replace(headers=self._whole_headers(response.headers, known, offset))
        except (RetryableError, SourceError):
            response.close()
            raise

    def _whole_headers(self, headers: Mapping[str, str], known: ObjectVersion | None, offset: int) -> Mapping[str, str]:
        """Return the headers of a range, with the checksum of the whole object."""
        length = parse_content_range(headers.get("Content-Range", ""))[1]
        found = self.version(headers, length)
        if known is not None and (found == known or known.version != found.version or known.length != found.length):
            return headers
        response = self.cluster.ask("HEAD", self.place.path(), self.place.query(), {})
        response.close()
        whole_length = parse_length(response.headers.get("Content-Length", ""))
        whole = self.version(response.headers, length if whole_length is None else whole_length)
        if (whole.version, whole.length) == (found.version, found.length):
            span = {name: headers.get(name) for name in ("Content-Range", "Content-Length")}
            return override_headers(response.headers, span)
        if known is not None:
            raise object_changed_error(self.url, offset)
        raise RetryableError("the object was replaced just now")

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return checksum and version; what a transformation computes has neither."""
        if self.place.is_transformed():
            return ObjectVersion(length=length)
        digest = _parse_checksum(headers)
        etag = headers.get("ETag") if digest is None or digest[0] == "none" else ":".join(digest)
        etag = None if etag is None or etag.startswith("W/") else etag
        # AIStore's own versions begin anew when the object does: without more they prove nothing
        counted = self.place.provider == "ais" and etag is None
        version = None if counted else headers.get("Ais-Version") or None
        return ObjectVersion(etag, version, headers.get("Last-Modified"), length)

    def checksums(self, headers: Mapping[str, str], *, whole: bool) -> Checksums:
        """Return the checksum that comes with a whole object, if the cluster sends it as it is stored."""
        vouched = whole and self.place.whole() and not self.place.is_transformed()
        return Checksums(digest=_parse_checksum(headers) if vouched else None)


def _parse_checksum(headers: Mapping[str, str]) -> tuple[str, str] | None:
    kind, digits = headers.get("Ais-Checksum-Type"), headers.get("Ais-Checksum-Value")
    return (kind, digits) if kind and digits else None


_open_natively = make_opener("aistore", scheme="ais")


def gopen_ais(
    url: str, mode: str = "rb", bufsize: int = 8192, *, storage_options: object = None, **options: object
) -> object:
    """Open a url by AIStore: over HTTP where a gateway is known, else by the program ``ais``, which has settings too.

    Args:
        url: an ``ais:`` url, or one of a store that AIStore reads.
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
        url: the object, without its query.
        place: the same, taken apart.
        member: path in the archive; empty for the object itself.
    """

    url: str
    place: AistoreLocation
    member: str

    @property
    def name(self) -> str:
        """The member's path, or the object's name."""
        return self.member or self.place.name


def parse_entry(given: object, provider: str | None = None) -> BatchEntry:
    """Return an entry, parsed.

    Args:
        given: ``ais://bucket/object``, ``bucket/object``, either with ``?archpath=member``, or a pair of one of these
            and a member's path. Other schemes name their provider: ``s3://bucket/object``.
        provider: of ``ais:`` urls.

    Raises:
        UsageError: it makes no sense, or no batch can hold it.
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


def _split_pair(given: object) -> tuple[str, str]:
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, str) for part in given):
        return given[0], given[1]
    raise UsageError(f"an entry of a batch is a url, or a pair of a url and a member's path, not {given!r}")


class AistoreBatch:
    """Entries of one request.

    Args:
        entries: at least one.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, entries: Sequence[BatchEntry], storage_options: object = None) -> None:
        self.entries = entries
        self.url = f"ais://{entries[0].place.bucket}/"
        self._cluster = AistoreClient(storage_options, self.url)

    def open_from(self, number: int) -> HttpResponse:
        """Request the entries from a number on, once.

        Args:
            number: of the first entry wanted.

        Returns:
            A tar stream.

        Raises:
            RetryableError: a retry may help.
            SourceError: the cluster refuses.
        """
        wanted = self.entries[number:]
        first = wanted[0].place
        body = {
            "in": [_describe_entry(entry) for entry in wanted],
            "mime": ".tar",
            # continue after what does not exist
            "coer": True,
            # names begin with the bucket
            "onob": False,
            "strm": True,
        }
        headers, sent = {"Content-Type": "application/json"}, json.dumps(body).encode()
        return self._cluster.ask("GET", first.batch(), first.of_bucket(), headers, sent, reading=number > 0)

    def broken(self, reason: str) -> RetryableError:
        """Return the error of a stream that ended early; the retry goes to another gateway."""
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
        attempts: failures in a row after which to give up.

    Raises:
        UsageError: the url names no object that can be written.
        ConfigError: no gateway is known.
    """

    def __init__(self, url: str, storage_options: object = None, *, attempts: int = ATTEMPTS) -> None:
        self._cluster = AistoreClient(storage_options, url)
        self._cluster.gateway()
        self._place = parse_url(url, self._cluster.provider)
        writable = self._place.name and not self._place.name.endswith("/") and not self._place.asked
        if not writable or self._place.original:
            raise UsageError("names no object that can be written: an AIStore url is ais://bucket/object", url=url)
        super().__init__(url, attempts)

    def _send_object(self) -> None:
        """Send the object once, beginning at a gateway; the retry after a failure goes to the next one."""
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
        raise aistore_client.too_many_hops_error(self.name)

    def _send_to(self, target: str, *, asking: bool) -> aistore_client.UploadReply:
        headers, tls = self._cluster.authorization(), dict(self._cluster.tls())
        try:
            return aistore_client.put_file(
                target, headers, self._kept, self._size, tls, seconds=http_client.READ_SECONDS, asking=asking
            )
        except (OSError, http.client.HTTPException) as error:
            reason = redact(f"{type(error).__name__}: {error}")
        raise http_client.no_answer_error(reason, self.name, aistore_client.CLUSTER)


remote_object = AistoreObject
create_upload = AistoreUpload
