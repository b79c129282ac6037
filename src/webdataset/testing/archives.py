"""Tar archives made to order by the programs that people use: GNU tar, bsdtar and Python's ``tarfile``.

Flows in: (name, payload) pairs in order. Flows out: the bytes of an archive, plain or compressed. Nothing here uses
the reader or the writers of this library. See :mod:`webdataset.testing.handmade` for archives no program writes.
"""

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from webdataset.ground.extras import require
from webdataset.ground.seeds import generator

from .handmade import END, member

Members = Iterable[tuple[str, bytes]]
Fields = dict[str, bytes]

GNU_FORMATS = ("v7", "oldgnu", "gnu", "ustar", "posix")
BSD_FORMATS = ("v7", "ustar", "pax", "gnutar")
TARFILE_FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
COMPRESSIONS = ("gz", "bz2", "xz", "zst")


def samples(count: int, *, seed: int = 0, largest: int = 1500) -> list[tuple[str, Fields]]:
    """Make keys and fields that no two samples share.

    Args:
        count: number of samples.
        seed: of the payloads.
        largest: bytes of the largest payload; the smallest has one byte.

    Returns:
        ``(key, {field: payload})`` per sample, in order; two or three fields each, without a zero byte.
    """
    rng = generator("samples", seed)
    made = []
    for index in range(count):
        names = ("cls", "txt", "seg.png")[: rng.choice((2, 2, 3))]
        fields = {name: _payload(rng, index, name, largest) for name in names}
        made.append((f"s{seed:x}/{index:05d}", fields))
    return made


def _payload(rng: random.Random, index: int, field: str, largest: int) -> bytes:
    length = rng.choice((rng.randint(1, 64), rng.randint(1, largest), 512))
    start = f"{index}.{field} ".encode()
    body = bytes(rng.getrandbits(8) | 1 for _ in range(max(0, length - len(start))))
    return (start + body)[: max(length, 1)]


def members_of(samples: Iterable[tuple[str, Fields]]) -> list[tuple[str, bytes]]:
    """Return the members of samples: ``key.field`` and payload, in order.

    Args:
        samples: as :func:`samples` makes them.
    """
    return [(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields.items()]


def of_samples(samples: Iterable[tuple[str, Fields]]) -> bytes:
    """Write a shard with Python's ``tarfile``.

    Args:
        samples: as :func:`samples` makes them.
    """
    return by_tarfile(members_of(samples))


def by_hand(members: Members, *, end: bytes = END) -> bytes:
    """Write a ustar archive block by block; the fastest maker.

    Args:
        members: names of at most 100 bytes, and payloads.
        end: the end mark.
    """
    return b"".join([*(member(os.fsencode(name), payload) for name, payload in members), end])


def by_tarfile(members: Members, *, format: str = "ustar", mtime: float = 0) -> bytes:  # noqa: A002  tarfile's word
    """Write an archive with Python's ``tarfile``.

    Args:
        members: names and payloads.
        format: ``ustar``, ``gnu`` or ``pax``.
        mtime: time of each member in seconds; a fraction makes PAX headers.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=TARFILE_FORMATS[format]) as archive:
        for name, payload in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(payload), mtime
            archive.addfile(entry, io.BytesIO(payload))
    return buffer.getvalue()


def by_gnu_tar(members: Members, folder: Path, *, format: str = "gnu", options: Sequence[str] = ()) -> bytes:  # noqa: A002
    """Write an archive with GNU tar from files in a folder.

    Args:
        members: relative names and payloads; names need not be UTF-8 (surrogate escapes).
        folder: an empty folder for the files.
        format: one of ``GNU_FORMATS``.
        options: further options, like ``("-S", "--sparse-version=1.0")`` or ``("--sort=name",)``.

    Raises:
        FileNotFoundError: there is no GNU tar; see :func:`has`.
        subprocess.CalledProcessError: it refused.
    """
    command = ["tar", "--create", "--file=-", f"--format={format}", "--owner=0", "--group=0", "--mtime=@0", *options]
    return _from_files(command, members, folder, "--null", "--verbatim-files-from", "--no-recursion", "-T", "-")


def by_bsdtar(members: Members, folder: Path, *, format: str = "ustar") -> bytes:  # noqa: A002
    """Write an archive with bsdtar (libarchive) from files in a folder.

    Args:
        members: relative names and payloads.
        folder: an empty folder for the files.
        format: one of ``BSD_FORMATS``.

    Raises:
        FileNotFoundError: there is no bsdtar; see :func:`has`.
        subprocess.CalledProcessError: it refused.
    """
    command = ["bsdtar", "-c", "-f", "-", f"--format={format}"]
    return _from_files(command, members, folder, "--null", "-n", "-T", "-")


def _from_files(command: list[str], members: Members, folder: Path, *names_from_input: str) -> bytes:
    names = []
    for name, payload in members:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sparsely(path, payload)
        names.append(os.fsencode(name))
    environment = {"LC_ALL": "C.UTF-8", "PATH": os.defpath + os.pathsep + "/usr/local/bin"}
    done = subprocess.run(  # noqa: S603  the commands are this module's own
        [*command, *names_from_input],
        cwd=folder, input=b"\0".join(names), capture_output=True, check=True, env=environment,
    )  # fmt: skip
    return done.stdout


def write_sparsely(path: Path, payload: bytes, *, grain: int = 4096) -> None:
    """Write a file, leaving holes for whole grains of zeros.

    Args:
        path: the file.
        payload: its contents.
        grain: bytes of the smallest hole.
    """
    with path.open("wb") as stream:
        for start in range(0, len(payload), grain):
            piece = payload[start : start + grain]
            if piece.strip(b"\0"):
                stream.seek(start)
                stream.write(piece)
        stream.truncate(len(payload))


def has(program: str) -> bool:
    """Return whether a program of this name (and, for ``tar``, of the GNU kind) can be run.

    Args:
        program: ``tar`` or ``bsdtar``.
    """
    path = shutil.which(program)
    if path is None:
        return False
    shown = subprocess.run([path, "--version"], capture_output=True, check=False).stdout  # noqa: S603
    return program != "tar" or b"GNU tar" in shown


def compressed(data: bytes, kind: str, *, pieces: int = 1) -> bytes:
    """Compress an archive.

    Args:
        data: the archive.
        kind: one of ``COMPRESSIONS``.
        pieces: number of compressed streams, one after the other.

    Raises:
        MissingExtra: ``zst`` without a zstandard package.
        ValueError: another kind.
    """
    size = -(-len(data) // pieces) or 1
    chunks = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
    return b"".join(_compressed(chunk, kind) for chunk in chunks)


def _compressed(data: bytes, kind: str) -> bytes:
    if kind == "zst":
        squeezed: bytes = require("zstandard", extra="fast", purpose="zst archives").compress(data)
        return squeezed
    if kind not in COMPRESSIONS:
        raise ValueError(f"there is no compression {kind!r}")
    if kind == "gz":
        return gzip.compress(data, 6, mtime=0)
    return bz2.compress(data) if kind == "bz2" else lzma.compress(data)


def members_by_tarfile(data: bytes) -> list[tuple[str, bytes]]:
    """Read an archive with Python's ``tarfile``, as another party's opinion.

    Args:
        data: a plain or compressed archive (gz, bz2, xz); archives after the first are read too.

    Returns:
        Names and payloads of regular members, in order.
    """
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as archive:
        for entry in archive:
            if entry.isreg():
                stream = archive.extractfile(entry)
                found.append((entry.name, stream.read() if stream is not None else b""))
    return found


def members_by_program(data: bytes, folder: Path, *, program: str = "tar") -> dict[bytes, bytes]:
    """Extract an archive with GNU tar or bsdtar and read the files back.

    Args:
        data: the archive.
        folder: an empty folder.
        program: ``tar`` or ``bsdtar``.

    Returns:
        Payload by relative name (bytes); of equal names the last one wins.

    Raises:
        subprocess.CalledProcessError: the program refused.
    """
    command = [program, "-x", "-f", "-", "--ignore-zeros"]
    subprocess.run(command, cwd=folder, input=data, capture_output=True, check=True)  # noqa: S603
    root = os.fsencode(folder)
    paths = [os.path.join(place, name) for place, _, names in os.walk(root) for name in names]  # noqa: PTH118  bytes
    return {os.path.relpath(path, root): Path(os.fsdecode(path)).read_bytes() for path in paths}
