"""Fields made to do harm, other than pickles: nesting, lengths, repetition, and objects where values belong.

Whatever code they hold creates a marker file and does nothing else; none is ever executed here. Formats of packages
that are not installed are left out.
"""

import bz2
import functools
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

from support.hostile_pickles import call, named, text
from webdataset.core.optional_imports import import_if_available

_DEEP = 300_000
_ZEROS = 1 << 30


def _evil(marker: str) -> bytes:
    return call(named("io", "open"), text(marker), text("w")) + b"."


def text_fields(marker: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield JSON, JSON lines, YAML and number fields."""
    yield "lists", "json", b"[" * _DEEP
    yield "lists, closed", "json", b"[" * _DEEP + b"]" * _DEEP
    yield "dicts", "json", b'{"a":' * _DEEP
    yield "digits", "json", b"1" * 1_000_000
    yield "exponent", "json", b"1e" + b"9" * 100_000
    yield "text", "json", b'"' + b"\\ud800" * 100_000
    yield "lists", "jsonl", b"[" * _DEEP + b"\n1\n"
    yield "digits", "cls", b"9" * 1_000_000
    yield "lists", "yaml", b"[" * _DEEP
    yield "dicts", "yaml", b"{a: " * 50_000
    yield "indentation", "yaml", b"\n".join(b" " * n + b"a:" for n in range(1500))
    aliases = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
    )
    yield "aliases", "yaml", aliases.encode()
    merged = "a: &a {k0: 1}\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{','.join(['*' + chr(97 + n)] * 9)}], k{n + 1}: 1}}\n" for n in range(12)
    )
    yield "merge keys", "yaml", merged.encode()
    yield "itself", "yaml", b"&a [*a, {*a : 1}]"
    yield "digits", "yaml", b"9" * 1_000_000
    yield "sixties", "yaml", b"1" + b":59" * 100_000
    for tag, body in (
        ("object/apply:os.system", f"[\"touch '{marker}'\"]"),
        ("object/apply:builtins.open", f"['{marker}', 'w']"),
        ("object/new:subprocess.Popen", f"[['touch', '{marker}']]"),
        ("object:_io.FileIO", f"['{marker}', 'w']"),
        ("name:os.system", "''"),
        ("module:os", "''"),
    ):
        yield f"!!python/{tag}", "yaml", f"!!python/{tag} {body}".encode()
    yield "tag by its whole name", "yaml", f"!<tag:yaml.org,2002:python/object/apply:os.mkdir> ['{marker}']".encode()


def binary_fields(marker: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield msgpack and CBOR fields."""
    yield "arrays", "msgpack", b"\x91" * _DEEP
    yield "maps", "msgpack", b"\x81\xa1a" * _DEEP
    yield "long arrays", "msgpack", b"\xdd\xff\xff\xff\xff" * 1000
    yield "arrays of its length", "msgpack", (b"\xdd" + struct.pack(">I", 100_000)) * 500 + b"\xc0" * 98_000
    yield "long maps", "msgpack", b"\xdf\xff\xff\xff\xff" * 1000
    yield "long text", "msgpack", b"\xdb\xff\xff\xff\xffx"
    yield "long extension", "msgpack", b"\xc9\xff\xff\xff\xff\x4ex"
    yield "array of objects", "msgpack", _extension(78, _npy("|O", (1,), _evil(marker)))
    yield "huge array", "msgpack", _extension(78, _npy("<f8", (1 << 40,), b""))
    yield "timestamp", "msgpack", _extension(-1, b"\xff" * 12)
    for name, head in (("arrays", b"\x81"), ("maps", b"\xa1\x61a"), ("tags", b"\xc1"), ("endless arrays", b"\x9f")):
        yield name, "cbor", head * _DEEP
    yield "long array", "cbor", b"\x9b\x7f" + b"\xff" * 7
    yield "long arrays", "cbor", b"\x9a\xff\xff\xff\xff" * 399
    yield "long bytes", "cbor", b"\x5b\x7f" + b"\xff" * 7
    yield "long text", "cbor", b"\x7a\xff\xff\xff\xff"
    large = b"\xc2\x5a" + struct.pack(">I", 1_000_000) + b"\xff" * 1_000_000
    yield "large integer", "cbor", large
    yield "decimal of a large integer", "cbor", b"\xc4\x82\x0a" + large
    yield "decimal of a large exponent", "cbor", b"\xc4\x82" + large + b"\x0a"
    yield "bigfloat of a large integer", "cbor", b"\xc5\x82\x0a" + large
    yield "fraction of large integers", "cbor", b"\xd8\x1e\x82" + large + large
    yield "exponent", "cbor", b"\xc5\x82\x1b\x0f" + b"\xff" * 7 + b"\x03"
    yield "pattern", "cbor", _tagged(35, b"\x79\xea\x60" + b"(" * 30_000 + b")" * 30_000)
    yield "message", "cbor", _tagged(36, b"\x79\xea\x60" + b"a:b\n" * 15_000)
    shared = _tagged(28, b"\x80")
    for level in range(60):
        shared = _tagged(28, b"\x82" + shared + _tagged(29, bytes([0x18, 60 - level])))
    yield "shared references as a key", "cbor", b"\xa1" + shared + b"\x01"
    yield "reference to itself", "cbor", _tagged(28, b"\x81" + _tagged(29, b"\x00"))
    yield "time", "cbor", b"\xc1\xfb\x7e\x37\xe4\x3c\x88\x00\x75\x9c"
    yield (
        "array of another size",
        "cbor",
        _tagged(40, b"\x82\x82\x1b\x0f" + b"\xff" * 7 + b"\x02" + _tagged(85, b"\x44abcd")),
    )
    yield "array of no numbers", "cbor", _tagged(41, b"\x81\x61a")


def _tagged(tag: int, body: bytes) -> bytes:
    return (b"\xd8" + bytes([tag])) + body


def _extension(code: int, payload: bytes) -> bytes:
    return b"\xc9" + struct.pack(">Ib", len(payload), code) + payload


def _npy(descr: str, shape: Any, content: bytes, header: str | None = None) -> bytes:
    written = header or repr({"descr": descr, "fortran_order": False, "shape": shape})
    padded = written.encode() + b" " * (-len(written) % 64) + b"\n"
    return b"\x93NUMPY\x02\0" + struct.pack("<I", len(padded)) + padded + content


def array_fields(marker: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield tenbin, npy, npz and safetensors fields."""
    evil = _evil(marker)
    frame = b"~TenBin~"
    header = struct.pack("<8s8sqq", b"f4", b"", 1, 1 << 40)
    padded = frame + struct.pack("<q", len(header)) + header.ljust(64, b"\0")
    yield "length", "ten", frame + struct.pack("<q", 1 << 60) + b"x" * 64
    yield "negative length", "ten", frame + struct.pack("<q", -64) + b"x" * 64
    yield "huge shape", "ten", padded + frame + struct.pack("<q", 4) + bytes(64)
    for name, dims in (("negative dimensions", (-1, -4)), ("overflow", (1 << 62, 4)), ("many dimensions", (1,) * 60)):
        head = struct.pack(f"<8s8sq{len(dims)}q", b"u1", b"", len(dims), *dims)
        whole = frame + struct.pack("<q", len(head)) + head.ljust(-(-len(head) // 64) * 64, b"\0")
        yield name, "ten", whole + frame + struct.pack("<q", 4) + bytes(64)
    yield "many chunks", "ten", (frame + bytes(8)) * 100_001
    yield "objects", "npy", _npy("|O", (1,), evil)
    yield (
        "objects in a structure",
        "npy",
        _npy("", (1,), evil, "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }"),
    )
    yield (
        "expression",
        "npy",
        _npy("", (), b"", f"{{'descr': open({marker!r}, 'w'), 'fortran_order': False, 'shape': ()}}"),
    )
    yield "nested header", "npy", _npy("", (), b"", "(" * 9000)
    yield "long header", "npy", b"\x93NUMPY\x02\0\xff\xff\xff\xff{}"
    yield "huge shape", "npy", _npy("<f8", (1 << 40,), b"")
    yield "huge shape of nothing", "npy", _npy("<f8", (1 << 40, 0), b"")
    yield "huge shape of empty texts", "npy", _npy("|S0", (1 << 40,), b"")
    yield "overflow", "npy", _npy("<f8", (1 << 62, 4), b"")
    yield "huge type", "npy", _npy("|V2147483647", (2,), b"x")
    yield "objects", "npz", _zipped({"a.npy": _npy("|O", (1,), evil)})
    yield "pickle", "npz", _zipped({"a.npy": evil, "b": evil})
    yield "zeros", "npz", _zipped({"a.npy": _npy("|u1", (200 << 20,), bytes(200 << 20))})
    yield "many zeros", "npz", _zipped({f"{n}.npy": bytes(64 << 20) for n in range(4)})
    yield "lying size", "npz", _zipped({"a.npy": bytes(64 << 20)}).replace(struct.pack("<I", 64 << 20), b"\x10\0\0\0")
    for name, body in (("length", b""), ("nested", b'{"a":' * 100_000), ("not JSON", b"{" * 64)):
        yield name, "safetensors", struct.pack("<Q", (1 << 60) if not body else len(body)) + body
    huge = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    yield "huge shape", "safetensors", struct.pack("<Q", len(huge)) + huge
    shared = json.dumps(
        {f"t{n}": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]} for n in range(4000)}
    )
    yield "overlapping tensors", "safetensors", struct.pack("<Q", len(shared)) + shared.encode() + bytes(1 << 20)


def _zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


@functools.cache
def _compressed_zeros(kind: str) -> bytes:
    """Return a gigabyte of zeros, compressed; made of one piece again and again, so that it is made fast."""
    piece = bytes(1 << 22)
    repeats = _ZEROS // len(piece)
    if kind == "gz":
        engine = zlib.compressobj(9, wbits=-15)
        block = engine.compress(piece) + engine.flush(zlib.Z_FULL_FLUSH)
        return b"\x1f\x8b\x08" + bytes(7) + block * repeats + b"\x03\0" + bytes(8)
    if kind == "zst":
        package: Any = import_if_available("zstandard")
        return b"" if package is None else package.ZstdCompressor().compress(piece) * repeats
    compress = bz2.compress if kind == "bz2" else lzma.compress
    return compress(piece) * repeats


def compressed_fields(marker: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield compressed fields that grow a thousandfold, once or several times, or hold what runs code."""
    for kind in ("gz", "bz2", "xz", "zst"):
        zeros = _compressed_zeros(kind)
        if zeros:
            yield "zeros", f"txt.{kind}", zeros
    yield "zeros, twice", "txt.gz.gz", gzip.compress(_compressed_zeros("gz"))
    yield "members", "txt.gz", gzip.compress(bytes(1 << 20)) * 2000
    yield "pickle", "pyd.gz", gzip.compress(_evil(marker))
    yield "cut", "txt.gz", gzip.compress(b"abc" * 1000)[:-9]


def image_fields(marker: str) -> Iterator[tuple[str, str, bytes]]:  # noqa: ARG001  as its neighbours
    """Yield images of huge size in few bytes."""
    yield "PNG header", "png", _png(60_000, 60_000, b"")
    yield "PNG of one colour", "png", _png(30_000, 30_000, zlib.compress(bytes(3_800 * 30_000), 1))
    yield "PNG text", "png", _png(1, 1, zlib.compress(b"\0\0"), b"zTXt", b"a\0\0" + zlib.compress(bytes(80 << 20), 9))
    yield "PNG of 2**31 pixels a side", "png", _png(0x7FFFFFFF, 0x7FFFFFFF, zlib.compress(b"\0"))
    yield "GIF", "gif", b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x4c\x01\0;"
    yield (
        "BMP",
        "bmp",
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
    )
    yield (
        "BMP, run lengths",
        "bmp",
        b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, 60_000, 60_000, 1, 8, 1, 0, 0, 0, 0, 0)
        + b"\xff\0" * 99,
    )
    yield "PPM", "ppm", b"P6 99999 99999 255\n" + b"x" * 99
    yield "PBM", "pbm", b"P1 1000000000 1000000000\n0"
    yield "TIFF", "tiff", _tiff(65_000, 65_000)
    yield (
        "WebP",
        "webp",
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff\x3f\0" * 2 + bytes(8),
    )
    yield (
        "JPEG",
        "jpg",
        b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 17, 8, 65_500, 65_500, 3) + b"\1\x22\0\2\x11\1\3\x11\1\xff\xd9",
    )
    yield "PostScript", "eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%true) (w) file\n%%EOF"
    yield "not an image", "jpg", b"\x89PNG" + bytes(100)


def _png(width: int, height: int, pixels: bytes, kind: bytes = b"", extra: bytes = b"") -> bytes:
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")]
    if kind:
        chunks.insert(1, (kind, extra))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def _tiff(width: int, height: int) -> bytes:
    entries = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 4)]
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + table + bytes(4)


def torch_fields(marker: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield ``.pth`` fields, and pickles that hold one: zip, tar and legacy forms of an archive that runs code."""
    evil = _evil(marker)
    packed = _zipped(
        {"archive/data.pkl": b"\x80\x02" + evil, "archive/version": b"3\n", "archive/byteorder": b"little"}
    )
    legacy = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    yield "zip", "pth", packed
    yield "pickle", "pth", b"\x80\x02" + evil
    yield "legacy", "pth", legacy + b"\x80\x02" + evil
    yield "legacy, evil number", "pth", b"\x80\x02" + evil + legacy
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(evil)
            archive.addfile(member, io.BytesIO(evil))
    yield "tar", "pth", stream.getvalue()
    yield (
        "script",
        "pth",
        _zipped({"a/data.pkl": evil, "a/constants.pkl": evil, "a/code/__torch__.py": b"", "a/version": b"3"}),
    )
    yield (
        "zeros",
        "pth",
        _zipped({"archive/data.pkl": b"\x80\x02N.", "archive/version": b"3\n", "archive/data/0": bytes(200 << 20)}),
    )
    for name, archive_bytes in (("zip", packed), ("legacy", legacy + b"\x80\x02" + evil)):
        inner = pickle.BINBYTES + struct.pack("<I", len(archive_bytes)) + archive_bytes
        yield (
            f"{name} inside of a pickle",
            "pyd",
            b"\x80\x04" + call(named("torch.storage", "_load_from_bytes"), inner) + b".",
        )
