"""The protocol of a remote object: one request, its response, and which version of the object it is about.

A request takes an offset and the first version that was seen; the response holds a body, the offset at which it
begins, the length of the object and its version. A backend opens and reports; it never retries and never waits: the
reader does (:mod:`webdataset.storage.resumable_stream`), in the same way for every scheme.
"""

import base64
import binascii
import functools
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, Self

from webdataset.core.errors import ShardChanged, UsageError
from webdataset.core.optional_imports import import_if_available

_FIRST_STRIDE = 128 << 10
_LONGEST_STRIDE = 1 << 20
_DIGESTS = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}
_DIGITS = re.compile(r"[0-9a-fA-F]{1,256}\Z")

ChecksumFunction = Callable[[bytes, int], int]
"""A piece, and the checksum of what came before it, to the checksum of both."""


class ObjectVersion(NamedTuple):
    """What must not change between two answers about one object.

    Args:
        etag: a strong ETag, as the server writes it.
        version: a version or generation, where the store has them.
        modified: the time of the last change, as the server writes it.
        length: bytes of the whole object.
    """

    etag: str | None = None
    version: str | None = None
    modified: str | None = None
    length: int | None = None

    def validator(self) -> str | None:
        """Return what tells this version of the object from another: its ETag, else its version, else its date."""
        return self.etag or self.version or self.modified

    def provable(self) -> bool:
        """Tell whether a second answer can be recognised as being about the same bytes."""
        return self.length is not None and self.validator() is not None

    def same(self, other: "ObjectVersion") -> bool:
        """Tell whether a later answer is about the same bytes: by ETag, else version, else date; and by length."""
        if not self.provable() or self.length != other.length:
            return False
        if self.etag is not None:
            return self.etag == other.etag and self.version in (None, other.version)
        if self.version is not None:
            return self.version == other.version
        return self.modified == other.modified

    def contradicts(self, other: "ObjectVersion") -> bool:
        """Tell whether another answer is certainly about other bytes; an answer that says less does not contradict."""
        names = ("etag", "version", "length") if self.etag or self.version else ("modified", "length")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)


class ObjectBody(Protocol):
    """The bytes of one response, read front to back.

    It may also have ``read1(size)``, which returns what one system call gives, ``receive_into(view)``, which puts that
    into a buffer and loses no byte where it fails, and ``shutdown()``, which lets a read that waits in another thread
    fail.
    """

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, ``b""`` at the end."""

    def close(self) -> None:
        """Release the connection."""


class Checksums(NamedTuple):
    """Checksums of a whole object that a store vouches for.

    Args:
        crc32: CRC-32.
        crc32c: the same, by Castagnoli's polynomial.
        digest: another one: ``xxhash``, ``md5``, ``sha256`` …, and its hexadecimal digits.
        crc64nvme: CRC-64/NVME.
    """

    crc32: int | None = None
    crc32c: int | None = None
    digest: tuple[str, str] | None = None
    crc64nvme: int | None = None

    def expected_checksum(self) -> "tuple[int | None, ChecksumFunction]":
        """Return the checksum that the whole object must have (None where none can be computed), and its function.

        Each reading needs a function of its own: that of a digest remembers what it was given.
        """
        if self.crc32 is not None:
            return self.crc32, update_crc32
        for expected, library in ((self.crc32c, crc32c_function), (self.crc64nvme, _crc64nvme_function)):
            summing = library() if expected is not None else None
            if summing is not None:
                return expected, summing
        kind, written = self.digest or ("", "")
        summing, digits = _digest_function(kind), _DIGITS.match(written)
        return (None, update_crc32) if summing is None or digits is None else (int(digits[0], 16), summing)


class ObjectResponse(NamedTuple):
    """One response of a store.

    Args:
        body: the bytes.
        start: offset in the object of the first byte of the body.
        identity: the version of the object.
        size: bytes of the body, where they are known.
        checksums: those of the whole object.
    """

    body: ObjectBody
    start: int
    identity: ObjectVersion
    size: int | None = None
    checksums: Checksums = Checksums()

    def expected_checksum(self) -> tuple[int | None, ChecksumFunction]:
        """Return the checksum that the whole object must have, and its function; see :class:`Checksums`."""
        return self.checksums.expected_checksum()


class LosslessBody:
    """A body none of whose bytes are lost where its connection fails.

    ``read(size)`` of urllib3 and of the standard library throws away what came in front of the failure. Here those
    bytes are given first; the next read raises.

    Args:
        body: of an answer. Bodies without ``read1`` are asked by ``read``.
        failures: the errors that reading it raises when its connection fails.
    """

    def __init__(self, body: ObjectBody, failures: tuple[type[Exception], ...]) -> None:
        self._body = body
        self._failures = failures
        self._once: Callable[[int], bytes] | None = getattr(body, "read1", None)
        self._into: Callable[[memoryview], int] | None = getattr(body, "receive_into", None)
        self._room = memoryview(b"")
        self._failure: Exception | None = None
        self._stride = _FIRST_STRIDE
        self.close = body.close
        shutdown = getattr(body, "shutdown", None)
        if shutdown is not None:
            self.shutdown = shutdown

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer where the connection fails or the body ends, ``b""`` at its end.

        Raises:
            Exception: one of the failures, where no byte came in front of it.
        """
        if self._failure is not None:
            raise self._failure
        if self._into is not None and size <= _LONGEST_STRIDE:
            return self._fill(size, self._into)
        once = self._once
        if once is None:
            content: bytes = self._body.read(size)
            return content
        pieces: list[bytes] = []
        got = 0
        while got < size:
            # a read of n bytes allocates n bytes, and TLS gives 16 KiB at most
            wanted = min(size - got, self._stride)
            try:
                piece = once(wanted)
            except self._failures as error:
                if not pieces:
                    raise
                self._failure = error
                break
            if not piece:
                break
            pieces.append(piece)
            got += len(piece)
            if len(piece) == self._stride:
                self._stride = min(2 * self._stride, _LONGEST_STRIDE)
            elif len(piece) < self._stride // 4:
                self._stride //= 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _fill(self, size: int, into: Callable[[memoryview], int]) -> bytes:
        """Read into one buffer, which is used again: nothing is allocated but the result."""
        if len(self._room) < size:
            self._room = memoryview(bytearray(size))
        room, got = self._room, 0
        try:
            while got < size and (count := into(room[got:size])):
                got += count
        except self._failures as error:
            if not got:
                raise
            self._failure = error
        return bytes(room[:got])


class RemoteObject(Protocol):
    """One object of a store.

    It may also have ``latency_bytes`` (how many bytes could be read in the time that one more request takes), and
    ``judges_ranges = True`` where it refuses by itself what is no answer to a request for a range.

    Attributes:
        url: what the user calls it; no secrets.
    """

    url: str

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Ask once for the object from ``offset`` on.

        Args:
            offset: the first byte wanted.
            known: who the object was at the first answer: the request names it (``If-Match``, version).
            size: bytes wanted; None for all to the end.

        Raises:
            RetryableError: asking again may help.
            NotFound: nothing is there.
            ShardChanged: the store says that it is another object by now.
            SourceError: it refuses.
        """

    def refresh(self) -> None:
        """Look for new credentials, and resolve the url anew."""

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises when its connection fails."""


class Upload(Protocol):
    """A stream to a new object, and a context manager: ``close`` publishes the object, ``abort`` does not.

    Leaving the ``with`` block publishes, unless an exception leaves it.
    """

    def write(self, content: bytes, /) -> int:
        """Take bytes, and return how many."""

    def close(self) -> None:
        """Publish the object."""

    def abort(self) -> None:
        """Publish nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...


class Backend(Protocol):
    """A module of :mod:`webdataset.storage.backends`: reads and writes one kind of storage.

    Retries, resuming, positioned reads, several connections, the cache, folders and wildcards are written once, above
    all backends.
    """

    @property
    def remote_object(self) -> Callable[[str, object], RemoteObject]:
        """Make the object of a url, from the url and the storage options; raises ``UsageError`` if it names none."""

    @property
    def create_upload(self) -> Callable[..., Upload]:
        """Make a stream to a new object, from the url, the storage options, and keyword options of this backend."""

    def service_id(self, url: str, storage_options: object = None) -> str:
        """Return which service and account this is, without secrets, for the names of copies.

        Args:
            url: a url of this backend.
            storage_options: what a dataset says about its storage.

        Returns:
            A text; empty where the url determines the service.
        """


class ListableBackend(Backend, Protocol):
    """A backend that can list what it holds."""

    def split(self, url: str) -> tuple[str, str]:
        """Return a url up to the key of its object, and the key, which may be empty.

        Raises:
            UsageError: the url names nothing that can be listed.
        """

    def list_keys(self, stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
        """Yield the keys below ``stem`` that begin with ``prefix``, in any order.

        Args:
            stem: the first part of what ``split`` returns.
            prefix: the beginning of the keys; may be empty.
            storage_options: what a dataset says about its storage.

        Raises:
            NotFound: no such bucket.
            SourceError: the service refuses, or does not answer.
        """


class FolderBackend(ListableBackend, Protocol):
    """A backend that lists by walking through folders."""

    BY_FOLDER: bool
    """True."""

    def list_keys(
        self, stem: str, prefix: str, storage_options: object = None, *, depth: int | None = None
    ) -> Iterator[str]:
        """Yield keys as :class:`ListableBackend` does.

        Args:
            stem: the first part of what ``split`` returns.
            prefix: the beginning of the keys; may be empty.
            storage_options: what a dataset says about its storage.
            depth: slashes that a key may have after the prefix; None for any number.
        """


def refuse_folder(key: str, form: str, url: str, kind: str = "object") -> None:
    """Refuse a url that names no object: its key is empty, or ends with a slash.

    Args:
        key: the key.
        form: what a url of an object looks like.
        url: the url of the user.
        kind: what the service calls an object.

    Raises:
        UsageError: it names none.
    """
    if not key or key.endswith("/"):
        raise UsageError(f"names no {kind}: {form} (wds.expand_urls lists a folder)", url=url)


def object_changed_error(url: str, offset: int) -> ShardChanged:
    """Return the error to raise where an object was replaced while it was being read.

    Args:
        url: the object.
        offset: where in it we were.
    """
    return ShardChanged(
        f"the object was replaced on the server while it was being read (at byte {offset}): open it again, and write "
        "new contents under new names",
        url=url,
    )


def parse_crc32(text: str | None, size_bytes: int = 4) -> int | None:
    """Return the checksum that a header holds, in base64; None for anything else (parts, other kinds)."""
    raw = _decode_base64(text)
    return int.from_bytes(raw, "big") if raw is not None and len(raw) == size_bytes else None


def parse_digest(text: str | None, kind: str) -> tuple[str, str] | None:
    """Return the digest that a header holds, in base64; None for anything else."""
    raw = _decode_base64(text)
    return (kind, raw.hex()) if raw is not None and len(raw) == _DIGESTS[kind] else None


def find_digest(headers: Mapping[str, str], *, whole: bool) -> tuple[str, str] | None:
    """Return the digest of the whole object that a web server names: ``Repr-Digest`` (RFC 9530), ``Content-MD5``.

    Args:
        headers: of an answer.
        whole: whether the whole object comes; ``Content-MD5`` is about what comes.
    """
    named = dict(text.strip().partition("=")[::2] for text in headers.get("Repr-Digest", "").split(","))
    for kind, name in (("sha256", "sha-256"), ("sha512", "sha-512"), ("md5", "md5")):
        found = parse_digest(named.get(name, "").partition(";")[0].strip().strip(":") or None, kind)
        if found is not None:
            return found
    return parse_digest(headers.get("Content-MD5"), "md5") if whole else None


def _decode_base64(text: str | None) -> bytes | None:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return None


def update_crc32(piece: bytes, before: int) -> int:
    """Return the checksum of what came before and a piece."""
    return zlib.crc32(piece, before)


@functools.cache
def crc32c_function() -> ChecksumFunction | None:
    """Return what computes CRC32C, where a package for it is installed: in Python it would take longer than reading."""
    library = import_if_available("google_crc32c")
    if library is None or library.implementation != "c":
        return None
    extend = library.extend
    return lambda piece, before: int(extend(before, bytes(piece)))  # it takes nothing else; bytes are not copied


@functools.cache
def _crc64nvme_function() -> ChecksumFunction | None:
    """Return what computes CRC64NVME, where a package for it is installed."""
    library = import_if_available("awscrt.checksums")
    extend = getattr(library, "crc64nvme", None)
    return None if extend is None else lambda piece, before: int(extend(bytes(piece), before))


def _digest_function(kind: str) -> ChecksumFunction | None:
    """Return what computes a digest, by the name that stores give it; None where nothing here can."""
    if kind in ("xxhash", "xxhash2", "xxh64"):
        library = import_if_available("xxhash")
        hasher = None if library is None else library.xxh64()
    else:
        hasher = getattr(hashlib, kind)(usedforsecurity=False) if kind in _DIGESTS else None
    if hasher is None:
        return None

    def summing(piece: bytes, _before: int) -> int:
        hasher.update(piece)
        return int(hasher.hexdigest(), 16)

    return summing
