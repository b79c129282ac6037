"""Makes tar archives to order: by GNU tar, bsdtar and Python's ``tarfile``, or block by block.

Block by block, a test decides every byte and makes archives that no program writes. Nothing here uses the readers or
writers of this library. Sources: POSIX.1-2017 ``pax`` and the GNU tar manual.
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

from webdataset.core.optional_imports import require
from webdataset.core.seeds import make_rng

BLOCK = 512
END = bytes(2 * BLOCK)
USTAR = b"ustar\x0000"
GNU = b"ustar  \x00"
V7 = bytes(8)

Segments = Sequence[tuple[int, int]]


def number(value: int, width: int, *, binary: bool = False) -> bytes:
    """Return a header's number field.

    Args:
        value: the number; negative ones need base-256.
        width: bytes of the field.
        binary: write base-256 even where octal digits would do.

    Returns:
        Octal digits and a NUL where they fit, else GNU's base-256 form.
    """
    if 0 <= value < 8 ** (width - 1) and not binary:
        return b"%0*o\x00" % (width - 1, value)
    field = bytearray((value % 256**width).to_bytes(width, "big"))
    field[0] = 0xFF if value < 0 else field[0] | 0x80
    return bytes(field)


def header(
    name: bytes,
    size: int = 0,
    *,
    kind: bytes = b"0",
    linkname: bytes = b"",
    magic: bytes = USTAR,
    prefix: bytes = b"",
    tail: bytes | None = None,
    binary: bool = False,
    signed: bool = False,
) -> bytes:
    """Return one header block, 512 bytes, with a right checksum.

    Args:
        name: at most 100 bytes.
        size: bytes of payload that the header claims.
        kind: type flag, one byte.
        linkname: at most 100 bytes.
        magic: ``USTAR``, ``GNU`` or ``V7``.
        prefix: at most 155 bytes (ustar only).
        tail: the 167 bytes from offset 345 on, in place of the prefix (old GNU sparse maps).
        binary: write the size in base-256.
        signed: sum the bytes as signed numbers, as some old programs did.

    Raises:
        ValueError: a name, prefix or tail that does not fit.
    """
    after = prefix.ljust(155, b"\0").ljust(167, b"\0") if tail is None else tail
    if len(name) > 100 or len(linkname) > 100 or len(after) != 167:
        raise ValueError("a name, prefix or tail does not fit into a header")
    before = b"".join((
        name.ljust(100, b"\0"), number(0o644, 8), number(0, 8), number(0, 8), number(size, 12, binary=binary),
        number(0, 12),
    ))  # fmt: skip
    owner = bytes(80) if magic == V7 else b"".join((b"user".ljust(32, b"\0"), b"group".ljust(32, b"\0"), bytes(16)))
    block = before + b" " * 8 + kind + linkname.ljust(100, b"\0") + magic + owner + after
    return with_checksum(block, signed=signed)


def with_checksum(block: bytes, *, signed: bool = False) -> bytes:
    """Return a header block with its checksum made right.

    Args:
        block: 512 bytes.
        signed: sum the bytes as signed numbers.
    """
    total = checksum(block, signed=signed)
    return block[:148] + b"%06o\x00 " % (total & 0o777777) + block[156:]


def checksum(block: bytes, *, signed: bool = False) -> int:
    """Return the sum of a header block with its checksum field taken as blanks.

    Args:
        block: 512 bytes.
        signed: take the bytes as signed numbers.
    """
    rest = block[:148] + block[156:BLOCK]
    return 8 * 32 + sum(rest) - (256 * sum(byte > 127 for byte in rest) if signed else 0)


def padded(payload: bytes) -> bytes:
    """Return a payload with zeros up to the next block.

    Args:
        payload: any bytes.
    """
    return payload + bytes(-len(payload) % BLOCK)


def member(name: bytes, payload: bytes = b"", **fields: object) -> bytes:
    """Return a header and its padded payload.

    Args:
        name: at most 100 bytes.
        payload: the contents.
        **fields: as for :func:`header`.
    """
    return header(name, len(payload), **fields) + padded(payload)  # type: ignore[arg-type]


def prefixed(name: bytes, payload: bytes) -> bytes:
    """Return a ustar member whose name is split into prefix and name at a slash.

    Args:
        name: at most 255 bytes, with a slash that leaves at most 155 bytes before and 100 after.
        payload: the contents.
    """
    cut = name.index(b"/", max(0, len(name) - 101))
    return member(name[cut + 1 :], payload, prefix=name[:cut])


def long_name(name: bytes, payload: bytes, *, linkname: bytes = b"", kind: bytes = b"0") -> bytes:
    """Return a GNU member with an ``L`` record for its name, and a ``K`` record for its link name if there is one.

    Args:
        name: any length.
        payload: the contents.
        linkname: any length.
        kind: type flag of the member itself.
    """
    records = member(b"././@LongLink", linkname + b"\0", kind=b"K", magic=GNU) if linkname else b""
    records += member(b"././@LongLink", name + b"\0", kind=b"L", magic=GNU)
    return records + member(name[:100], payload, kind=kind, linkname=linkname[:100], magic=GNU)


def pax_record(key: bytes, value: bytes) -> bytes:
    """Return one ``length key=value`` record of an extended header.

    Args:
        key: the keyword.
        value: its value.
    """
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while length != len(b"%d" % length) + len(rest):
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def pax_header(records: Iterable[tuple[bytes, bytes]], *, everywhere: bool = False) -> bytes:
    """Return an extended header for the next member, or for all that follow.

    Args:
        records: keywords and values, in order; keywords may repeat.
        everywhere: make it a global header.
    """
    body = b"".join(pax_record(key, value) for key, value in records)
    return member(b"PaxHeaders/0", body, kind=b"g" if everywhere else b"x")


def pax_member(name: bytes, payload: bytes, *, stored_name: bytes = b"pax", **records: bytes) -> bytes:
    """Return a member whose name stands in an extended header.

    Args:
        name: any length.
        payload: the contents.
        stored_name: what stands in the old header.
        **records: further records.
    """
    pairs = [(b"path", name), *((key.encode(), value) for key, value in records.items())]
    return pax_header(pairs) + member(stored_name, payload)


def sized_by_pax(name: bytes, payload: bytes, *, claimed: int = 0) -> bytes:
    """Return a member whose size stands in an extended header, while its own header claims another.

    Args:
        name: at most 100 bytes.
        payload: the contents.
        claimed: the size in the member's own header.
    """
    return pax_header([(b"size", b"%d" % len(payload))]) + header(name, claimed) + padded(payload)


def stored(content: bytes, segments: Segments) -> bytes:
    """Return the bytes of a sparse member that are kept, in order.

    Args:
        content: the whole contents.
        segments: (offset, length) of each kept piece.
    """
    return b"".join(content[start : start + length] for start, length in segments)


def old_gnu_sparse(name: bytes, content: bytes, segments: Segments) -> bytes:
    """Return a sparse member in the old GNU form: four pieces in the header, the rest in extension blocks.

    Args:
        name: at most 100 bytes.
        content: the whole contents.
        segments: (offset, length) of each kept piece.
    """
    entries = [number(start, 12) + number(length, 12) for start, length in segments]
    first, rest = entries[:4], entries[4:]
    tail = bytes(41) + b"".join(first).ljust(96, b"\0") + bytes([bool(rest)]) + number(len(content), 12) + bytes(17)
    kept = stored(content, segments)
    blocks = [header(name, len(kept), kind=b"S", magic=GNU, tail=tail)]
    for start in range(0, len(rest), 21):
        chunk = b"".join(rest[start : start + 21]).ljust(504, b"\0")
        blocks.append(chunk + bytes([start + 21 < len(rest)]) + bytes(7))
    return b"".join(blocks) + padded(kept)


def pax_sparse(name: bytes, content: bytes, segments: Segments, *, version: str) -> bytes:
    """Return a sparse member in one of the three PAX forms.

    Args:
        name: the member's name.
        content: the whole contents.
        segments: (offset, length) of each kept piece.
        version: ``0.0``, ``0.1`` or ``1.0``.

    Raises:
        ValueError: another version.
    """
    kept = stored(content, segments)
    numbers = [number for segment in segments for number in segment]
    size, count = b"%d" % len(content), b"%d" % len(segments)
    if version == "0.0":
        pairs = [(b"GNU.sparse.size", size), (b"GNU.sparse.numblocks", count)]
        for start, length in segments:
            pairs += [(b"GNU.sparse.offset", b"%d" % start), (b"GNU.sparse.numbytes", b"%d" % length)]
        return pax_header(pairs) + member(name, kept)
    if version == "0.1":
        listed = ",".join(map(str, numbers)).encode()
        pairs = [(b"GNU.sparse.size", size), (b"GNU.sparse.numblocks", count), (b"GNU.sparse.map", listed)]
        return pax_header([*pairs, (b"GNU.sparse.name", name)]) + member(b"GNUSparseFile.0/x", kept)
    if version != "1.0":
        raise ValueError(f"there is no sparse version {version!r}")
    table = padded("".join(f"{number}\n" for number in [len(segments), *numbers]).encode())
    pairs = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")]
    pairs += [(b"GNU.sparse.name", name), (b"GNU.sparse.realsize", size)]
    return pax_header(pairs) + member(b"GNUSparseFile.0/x", table + kept)


def archive(*parts: bytes, end: bytes = END) -> bytes:
    """Return members and the end mark, one after the other.

    Args:
        *parts: bytes of members.
        end: what stands at the end; empty for none.
    """
    return b"".join(parts) + end


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
    rng = make_rng("samples", seed)
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
