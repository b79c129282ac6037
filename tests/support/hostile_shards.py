"""Shards made to do harm: headers that promise what is not there, chains without end, items without measure."""

import bz2
import gzip
import io
import struct
import tarfile
from collections.abc import Iterator

_MEMBER = b"0000"


def _header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")[:512]


def _resized(header: bytes, size: bytes) -> bytes:
    """Return a header with another size field, and its checksum right again."""
    changed = header[:124] + size.ljust(12, b"\0") + header[136:148] + b" " * 8 + header[156:]
    return changed[:148] + b"%06o\0 " % sum(changed) + changed[156:]


def _pax(text: bytes) -> bytes:
    return (
        _header("x", len(text), tarfile.XHDTYPE)
        + text
        + bytes(-len(text) % 512)
        + _header("a.txt", 4)
        + _MEMBER
        + bytes(508)
    )


def hostile_shards(marker: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield shards.

    Args:
        marker: path of the file that names and links in them point to.
    """
    end = bytes(1024)
    yield "huge member", "tar", _resized(_header("a.txt"), b"\x80" + bytes(3) + (1 << 60).to_bytes(8, "big")) + _MEMBER
    yield "negative member", "tar", _resized(_header("a.txt"), b"\xff" * 12) + _MEMBER + bytes(508) + end
    yield "huge member in octal", "tar", _resized(_header("a.txt"), b"77777777777") + _MEMBER
    for name, kind in (("long name", tarfile.GNUTYPE_LONGNAME), ("long link", tarfile.GNUTYPE_LONGLINK)):
        yield name, "tar", _resized(_header("././@LongLink", kind=kind), b"77777777777") + b"a" * (4 << 20)
    yield "long extended header", "tar", _resized(_header("x", kind=tarfile.XHDTYPE), b"77777777777") + b"a" * (4 << 20)
    yield (
        "many long names",
        "tar",
        (_header("././@LongLink", 4, tarfile.GNUTYPE_LONGNAME) + b"abc\0" + bytes(508)) * 20_000,
    )
    yield "many extended headers", "tar", (_header("x", 10, tarfile.XHDTYPE) + b"10 a=bcd.\n" + bytes(502)) * 20_000
    yield "length of a record", "tar", _pax(b"99999999999999999999 path=a\n") + end
    yield "digits of a length", "tar", _pax(b"9" * 500_000) + end
    yield "negative size in a record", "tar", _pax(b"11 size=-1\n") + end
    yield "huge size in a record", "tar", _pax(b"30 size=9999999999999999999999") + end
    yield "many records", "tar", _pax(b"".join(b"%d k%05d=v\n" % (13, n) for n in range(70_000))) + end
    sparse = b"".join(
        b"%d GNU.sparse.%s\n" % (len(text) + 15, text) for text in (b"major=1", b"minor=0", b"realsize=9999999999")
    )
    yield "sparse", "tar", _pax(sparse) + end
    yield (
        "zeros",
        "tar",
        gzip.compress(_header("a.txt", 1 << 30) + bytes(64 << 20)) + gzip.compress(bytes(1 << 20)) * 10,
    )
    yield (
        "names",
        "tar",
        b"".join(
            _header(name, 4) + _MEMBER + bytes(508)
            for name in ("../../a.txt", marker[:90] + ".txt", "a\n\x1b[2J.txt", "__a__/b.txt")
        )
        + end,
    )
    yield (
        "links",
        "tar",
        b"".join(_header(f"{n}.txt", 0, kind) for n, kind in enumerate((b"1", b"2", b"3", b"4", b"6"))) + end,
    )
    yield "long text", "msgpack", b"\xdb\xff\xff\xff\xff" + bytes(4 << 20)
    yield "long array", "msgpack", b"\xdd\xff\xff\xff\xff" + b"\xc0" * (1 << 20)
    yield "arrays", "msgpack", b"\x91" * 1_000_000
    yield "numbers", "msgpack", bytes(1_000_000)
    yield "long map in a map", "msgpack", b"\x81\xa1a\xdf\x00\xff\xff\xff" * 300
    yield "zeros", "msgpack", bz2.compress(b"\x81\xa1a\xc6\x7f\xff\xff\xff" + bytes(64 << 20))
    yield "long bytes", "cbors", b"\x5b\x7f" + b"\xff" * 7 + bytes(4 << 20)
    yield "long text in a map", "cbors", b"\xa1\x61a\x7b" + struct.pack(">Q", 1 << 50) + b"x" * (4 << 20)
    yield "arrays", "cbors", b"\x81" * 1_000_000
    yield "endless array", "cbors", b"\x9f" + b"\x00" * 3_000_000
    yield "zeros", "cbors", gzip.compress(b"\xa1\x61a\x5a\x7f\xff\xff\xff" + bytes(64 << 20))
    stream = io.BytesIO(b"\xa1\x61a\xc4\x82\x0a\xc2\x5a" + struct.pack(">I", 500_000) + b"\xff" * 500_000)
    yield "decimal of a large integer", "cbors", stream.getvalue()
