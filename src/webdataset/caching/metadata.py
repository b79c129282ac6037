"""Metadata of a cached shard in a JSON sidecar file, and revalidation of a copy against its store.

The sidecar is written under the lock of the shard, before the first byte of the shard, and again when the shard is
whole. It names the file that it describes (inode, and size and time once whole), so that it is never taken for one
about another file under that name. While the shard grows, a line after the record follows each piece: how many bytes
are there, and the checksum of all of them, so that a part is compared before it is continued. Without an answer of the
store a copy is used: a store that is not reached, refuses, or has lost the object does not invalidate it.

Never holds a secret: of the url only the part before the ``?``, of everything else hashes.
"""

import functools
import hashlib
import io
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from webdataset.caching.names import EntryPaths, canonical_url, object_query, pipe_cleaner, shard_name
from webdataset.core import settings
from webdataset.core.errors import UsageError, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.storage.object_store import ObjectVersion, RemoteObject
from webdataset.storage.open_url import ResolvedUrl
from webdataset.storage.resumable_stream import ResumableStream
from webdataset.storage.retries import RetryableError
from webdataset.storage.streams import Stream, stream_identity, stream_length

_BOOT = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class EntryMetadata:
    """What is known of one shard.

    Args:
        name: its relative path in the cache.
        url: where it came from, for people: without query, credentials and commands.
        shard: hash of what the url says the shard is called; tells two shards under one chosen name apart.
        query: hash of what the url's query says besides; empty in records of older versions.
        origin: hash of the object's own url, or None where it came from something else than a store.
        etag: strong ETag.
        version: version or generation.
        modified: time of the last change, as the server writes it.
        length: bytes of the whole object, or None.
        vouched: whether the store named a checksum.
        resumed: whether it was downloaded in several goes, so that its checksum was not compared on the way.
        inode: the file.
        boot: the running kernel that wrote it. A size is a promise about the bytes only as long as that one runs.
        reserved_bytes: space that it may grow to.
        whole: whether all of it is there and verified.
        size_bytes: its size, once whole.
        changed_ns: its modification time, once whole.
        created: seconds since 1970.
        crc32: checksum of all bytes, as they came, once whole; None in records of older versions.
        part_bytes: bytes that a part had when the record was written.
        part_crc32: checksum of these, as they came.
    """

    name: str
    url: str
    shard: str
    origin: str | None
    etag: str | None
    version: str | None
    modified: str | None
    length: int | None
    vouched: bool
    inode: int
    boot: str
    resumed: bool = False
    reserved_bytes: int = 0
    whole: bool = False
    size_bytes: int = 0
    changed_ns: int = 0
    created: float = 0.0
    crc32: int | None = None
    part_bytes: int = 0
    part_crc32: int = 0
    query: str = ""

    @property
    def identity(self) -> ObjectVersion:
        """The version of the object."""
        return ObjectVersion(self.etag, self.version, self.modified, self.length)

    def is_of(self, url: str) -> bool:
        """Tell whether this is about the shard of a url, as far as it says: host, scheme and signature may change."""
        same_query = self.query in ("", hash_text(object_query(url)))
        return same_query and self.shard == hash_text(shard_name(url))

    def grows(self, status: os.stat_result) -> bool:
        """Tell whether this is about a file that grows, on this running system."""
        ours = self.inode == status.st_ino and self.boot == boot_id()
        # inodes are given out again
        return ours and (not self.whole or self.is_about(status))

    def is_resumable(self) -> bool:
        """Tell whether the rest can be asked for, and recognised."""
        return self.origin is not None and self.identity.provable()

    def is_about(self, status: os.stat_result) -> bool:
        """Tell whether this is about a whole file, which is unchanged."""
        about = (self.whole, self.inode, self.size_bytes, self.changed_ns)
        return about == (True, status.st_ino, status.st_size, status.st_mtime_ns)

    def for_whole_file(self, status: os.stat_result, crc32: int | None = None) -> "EntryMetadata":
        """Return the record of the whole file."""
        size, changed_ns = status.st_size, status.st_mtime_ns
        return replace(self, whole=True, size_bytes=size, reserved_bytes=size, changed_ns=changed_ns, crc32=crc32)

    def write(self, place: EntryPaths) -> None:
        """Replace the record of a shard, in one step; the bytes of that of a whole shard are then on the disk.

        Args:
            place: the shard's.

        Raises:
            OSError: the directory refuses.
        """
        # one name: only the holder of the lock writes it
        fresh = f"{place.record}.new"
        content = json.dumps(asdict(self)).encode() + b"\n"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if self.whole:
                # The rename of the part comes after that of the record, in the same folder. So no power failure leaves
                # a copy without its record, which would be taken for a user's own file.
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, place.record)  # noqa: PTH105  one call of the system


_FIELDS: dict[str, Any] = {field.name: field.type for field in fields(EntryMetadata)}


def read_metadata(path: str) -> EntryMetadata | None:
    """Return the record in a file, or None where there is none that can be read."""
    try:
        with Path(path).open("rb") as stream:
            # the checksums of a part's pieces follow
            content = json.loads(stream.readline())
        record = EntryMetadata(**{name: value for name, value in content.items() if name in _FIELDS})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return record if all(isinstance(getattr(record, name), kind) for name, kind in _FIELDS.items()) else None


def open_checksums(place: EntryPaths) -> int:
    """Open the record of a part, for :func:`append_checksum`. Raises OSError: the directory refuses."""
    return os.open(place.record, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))


def append_checksum(descriptor: int, size_bytes: int, crc32: int) -> None:
    """Add a line after the record of a part.

    Args:
        descriptor: what :func:`open_checksums` gave.
        size_bytes: bytes that the part has.
        crc32: checksum of all of them, as they came.

    Raises:
        OSError: the directory refuses.
    """
    os.write(descriptor, b"%d %d\n" % (size_bytes, crc32))


def read_checksums(path: str, record: EntryMetadata) -> list[tuple[int, int]]:
    """Return what is known of a part's bytes: sizes, which rise, each with the checksum of all bytes before it.

    Args:
        path: the file of the record.
        record: what it begins with.

    Raises:
        OSError: it cannot be read.
    """
    if record.whole and record.crc32 is not None:
        return [(record.size_bytes, record.crc32)]
    found = [(record.part_bytes, record.part_crc32)]
    # what follows the last newline was cut by a kill
    for line in Path(path).read_bytes().split(b"\n")[1:-1]:
        size, _, crc32 = line.partition(b" ")
        if not (size.isdigit() and crc32.isdigit() and int(size) > found[-1][0]):
            break
        found.append((int(size), int(crc32)))
    return found


def make_metadata(stream: Stream, url: str, name: str, inode: int) -> EntryMetadata:
    """Return the record of a shard that begins to grow."""
    identity = getattr(stream, "identity", None)
    known = isinstance(identity, ObjectVersion)
    if not isinstance(identity, ObjectVersion):
        # the length is that of the bytes that come: a foreign decompressor's file is shorter
        identity = ObjectVersion(modified=stream_identity(stream)[1], length=stream_length(stream))
    etag, version, modified, length = identity
    return EntryMetadata(
        name=name,
        url=redact_url(url),
        shard=hash_text(shard_name(url)),
        query=hash_text(object_query(url)),
        origin=hash_text(canonical_url(str(getattr(stream, "name", "")))) if known else None,
        etag=etag,
        version=version,
        modified=modified,
        length=length,
        vouched=known and getattr(stream, "vouched", (None,))[0] is not None,
        inode=inode,
        boot=boot_id(),
        created=time.time(),
    )


def redact_url(url: str) -> str:
    """Return a url without secrets, as the record shows it."""
    clean = pipe_cleaner(url)
    if url.startswith("pipe:") and "://" not in clean:
        return "pipe:"
    return redact(clean.partition("?")[0].partition("#")[0])


def hash_text(text: str) -> str:
    """Return a hash that tells texts apart and does not show them."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


@functools.cache
def boot_id() -> str:
    """Return a name of the running kernel; that of the host where there is no better one."""
    try:
        return Path(_BOOT).read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


POLICIES = ("never", "once", "always")
_SILENCE_SECONDS = 60.0

# paths of copies that were compared with their store in this process
_checked_paths: set[str] = set()
# servers that did not answer, to when they are asked again
_silent_hosts: dict[str, float] = {}


def parse_policy(name: str | None) -> str:
    """Return when copies are compared.

    Args:
        name: ``never``, ``once`` in each process, ``always``, or None for ``WDS_CACHE_REVALIDATE``.

    Raises:
        UsageError: another name.
    """
    chosen = settings.CACHE_REVALIDATE.get() if name is None else name
    if chosen not in POLICIES:
        raise UsageError(f"revalidate={chosen!r} is not one of {', '.join(POLICIES)}")
    return chosen


def mark_current(place: EntryPaths) -> None:
    """Note that a copy is as its store has it."""
    _checked_paths.add(place.final)


def fetch_version(place: EntryPaths, resolved: ResolvedUrl, policy: str) -> ObjectVersion | None:
    """Ask the store for the present version of the object, where the policy (see :func:`parse_policy`) wants it.

    Returns:
        None where it was not asked, or does not say.
    """
    if policy == "never" or (policy == "once" and place.final in _checked_paths):
        return None
    record = read_metadata(place.record)
    host = "/".join(resolved.target.split("/", 3)[:3])
    # an object without a validator is compared by its length
    if (
        record is None
        or not (record.whole and record.origin is not None)
        or record.identity.length is None
        or _silent_hosts.get(host, 0.0) > time.monotonic()
    ):
        return None
    _checked_paths.add(place.final)
    source = _remote_object(record, resolved)
    return None if source is None else _request_version(source, host)


def _request_version(source: RemoteObject, host: str) -> ObjectVersion | None:
    try:
        answer = source.open_at(0, None, 1)
        answer.body.close()
    except RetryableError:
        _silent_hosts[host] = time.monotonic() + _SILENCE_SECONDS
    except WebDatasetError:
        pass
    except source.failures():
        pass
    else:
        return answer.identity
    return None


def open_rest(record: EntryMetadata, resolved: ResolvedUrl, offset: int) -> Stream | None:
    """Open the same object from the middle.

    Returns:
        A stream, or None where the object cannot be taken up again.

    Raises:
        ShardChanged: it is another object by now.
        SourceError: the store refuses, or does not answer.
    """
    source = _remote_object(record, resolved) if record.is_resumable() else None
    if source is None:
        return None
    if offset == record.length:
        return io.BytesIO()
    return ResumableStream(source, start=offset, known=record.identity)


def _remote_object(record: EntryMetadata, resolved: ResolvedUrl) -> RemoteObject | None:
    """Return the object itself, if it is the one that the record is about."""
    try:
        source = resolved.remote_object()
    except WebDatasetError:  # a package or profile that was there is not there now
        return None
    return source if source is not None and hash_text(canonical_url(source.url)) == record.origin else None
