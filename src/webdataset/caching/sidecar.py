"""What is known of a cached shard: a JSON file in the hidden folder.

Flows in: what an opened stream says of itself. Flows out: the same, later, in another process. It is written under the
shard's lock, before the first byte of the shard, and once more when the shard is whole. It names the file that it is
about (inode, and size and time once whole), so that it is never taken for one about another file under that name. It
holds no secrets: of the url only what stands before the ``?``, of everything else hashes.
"""

import functools
import hashlib
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from webdataset.ground.redaction import redacted
from webdataset.sources.objects import Identity
from webdataset.sources.stream import identity_of, length_of

from .names import canonical, pipe_cleaner, shard_of
from .places import Place

_BOOT = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Record:
    """What is known of one shard.

    Args:
        name: its relative path in the cache.
        url: where it came from, for people: without query, credentials and commands.
        shard: hash of what the url says the shard is called; tells two shards under one chosen name apart.
        origin: hash of the object's own url, or None where it came from something else than a store.
        etag: strong ETag.
        version: version or generation.
        modified: time of the last change, as the server writes it.
        length: bytes of the whole object, or None.
        vouched: whether the store named a checksum.
        resumed: whether it was downloaded in several goes, so that nobody has compared the checksum on the way.
        inode: the file.
        boot: the running kernel that wrote it. A size is a promise about the bytes only as long as that one runs.
        reserved_bytes: space that it may grow to.
        whole: whether all of it is there and verified.
        size_bytes: its size, once whole.
        changed_ns: its modification time, once whole.
        created: seconds since 1970.
        crc32: checksum of all bytes, as they came, once whole; None in records of older versions.
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

    @property
    def identity(self) -> Identity:
        """Who the object is."""
        return Identity(self.etag, self.version, self.modified, self.length)

    def grows(self, status: os.stat_result) -> bool:
        """Tell whether this is about a file that grows, on this running system.

        Args:
            status: the file's.
        """
        ours = self.inode == status.st_ino and self.boot == boot()
        return ours and (not self.whole or self.is_about(status))  # inodes are given out again

    def can_be_resumed(self) -> bool:
        """Tell whether the rest can be asked for, and recognised."""
        return self.origin is not None and self.identity.provable()

    def is_about(self, status: os.stat_result) -> bool:
        """Tell whether this is about a whole file, which nobody has changed.

        Args:
            status: the file's.
        """
        about = (self.whole, self.inode, self.size_bytes, self.changed_ns)
        return about == (True, status.st_ino, status.st_size, status.st_mtime_ns)

    def completed(self, status: os.stat_result, crc32: int | None = None) -> "Record":
        """Return the record of the whole file.

        Args:
            status: the file's.
            crc32: checksum of its bytes.
        """
        size, changed_ns = status.st_size, status.st_mtime_ns
        return replace(self, whole=True, size_bytes=size, reserved_bytes=size, changed_ns=changed_ns, crc32=crc32)

    def write(self, place: Place) -> None:
        """Put it in place, in one step.

        Args:
            place: the shard's.

        Raises:
            OSError: the directory refuses.
        """
        fresh = f"{place.record}.new"  # one name: only the holder of the lock writes it
        content = json.dumps(asdict(self)).encode()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        os.replace(fresh, place.record)  # noqa: PTH105  one call of the system


_FIELDS: dict[str, Any] = {field.name: field.type for field in fields(Record)}


def record_at(path: str) -> Record | None:
    """Return the record in a file, or None where there is none that can be read.

    Args:
        path: the file.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        record = Record(**{name: value for name, value in content.items() if name in _FIELDS})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return record if all(isinstance(getattr(record, name), kind) for name, kind in _FIELDS.items()) else None


def record_of(stream: Any, url: str, name: str, inode: int) -> Record:
    """Return the record of a shard that begins to grow.

    Args:
        stream: the opened source.
        url: as the user wrote it.
        name: the shard's relative path in the cache.
        inode: the file.
    """
    identity = getattr(stream, "identity", None)
    known = isinstance(identity, Identity)
    if not isinstance(identity, Identity):
        # the length is that of the bytes that come: a foreign decompressor's file is shorter
        identity = Identity(modified=identity_of(stream)[1], length=length_of(stream))
    etag, version, modified, length = identity
    return Record(
        name=name,
        url=shown(url),
        shard=digest(shard_of(url)),
        origin=digest(canonical(str(stream.name))) if known else None,
        etag=etag,
        version=version,
        modified=modified,
        length=length,
        vouched=known and getattr(stream, "vouched", (None,))[0] is not None,
        inode=inode,
        boot=boot(),
        created=time.time(),
    )


def shown(url: str) -> str:
    """Return a url as the record shows it.

    Args:
        url: as the user wrote it.
    """
    clean = pipe_cleaner(url)
    if url.startswith("pipe:") and "://" not in clean:
        return "pipe:"
    return redacted(clean.partition("?")[0].partition("#")[0])


def digest(text: str) -> str:
    """Return a hash that tells texts apart and does not show them.

    Args:
        text: the text.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


@functools.cache
def boot() -> str:
    """Return a name of the running kernel; that of the host where there is no better one."""
    try:
        return Path(_BOOT).read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()
