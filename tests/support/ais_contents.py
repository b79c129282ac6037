"""What the stand-in for AIStore does with contents: checksums, members of archives, tars."""

import functools
import hashlib
import io
import tarfile

from webdataset.core.optional_imports import import_if_available


def checksum(content: bytes) -> tuple[str, str]:
    """Return the kind and the text of the checksum that the cluster names for some bytes.

    Args:
        content: the bytes.
    """
    library = import_if_available("xxhash")
    if library is None:
        return "md5", hashlib.md5(content, usedforsecurity=False).hexdigest()
    return "xxhash2", library.xxh64(content).hexdigest()


def member_of(archive: bytes, name: str) -> bytes | None:
    """Return a member of a tar, or None where there is none.

    Args:
        archive: the tar.
        name: the member's.
    """
    return members_of(archive).get(name)


@functools.lru_cache(8)
def members_of(archive: bytes) -> dict[str, bytes]:
    """Return the files in a tar, by name.

    Args:
        archive: the tar.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    """Return a tar of files.

    Args:
        members: names and contents.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
