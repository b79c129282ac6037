"""Shapes of shards about which readers differ: what tests of ``check --profile`` compare predictions with."""

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from support import check_payloads
from webdataset.testing import archives
from webdataset.testing.archives import member

Members = list[tuple[str, bytes]]


def rows(count: int, **fields: Any) -> Members:
    """``count`` samples; a field is bytes, or a function of the sample's number that may give None."""
    made = []
    for number in range(count):
        for name, content in fields.items():
            payload = content(number) if callable(content) else content
            if payload is not None:
                made.append((f"{number:04d}.{name.replace('__', '.')}", payload))
    return made


def _good(extension: str) -> bytes:
    return check_payloads.good(extension, random.Random(3))


def _array(number: int) -> bytes:
    made = io.BytesIO()
    np.save(made, np.zeros(3, np.float32 if number % 2 else np.int64))
    return made.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def shapes() -> dict[str, list[bytes | Members]]:
    """Name to shards, each a list of members or the bytes of an archive."""
    jpg, txt = _good("jpg"), b"words"
    made: dict[str, bytes | Members] = {
        "plain": rows(8, jpg=jpg, txt=txt),
        "json": rows(8, jpg=jpg, json=lambda n: _json({"n": n, "s": "x"})),
        "numbers": rows(8, cls=lambda n: b"%d" % n),
        "one sample": rows(1, jpg=jpg, txt=txt),
        "first lacks": rows(8, jpg=jpg, txt=lambda n: txt if n else None),
        "third lacks": rows(8, jpg=jpg, txt=lambda n: txt if n != 2 else None),
        "sixth lacks": rows(8, jpg=jpg, txt=lambda n: txt if n != 5 else None),
        "late field": rows(8, jpg=jpg, txt=lambda n: txt if n > 5 else None),
        "order differs": [
            pair for n in range(6) for pair in [(f"{n}.jpg", jpg), (f"{n}.txt", txt)][:: 1 if n % 2 else -1]
        ],
        "interleaved": [("0.txt", txt), ("1.txt", txt), ("0.cls", b"1"), ("1.cls", b"2")],
        "interleaved late": [
            *rows(6, txt=txt, cls=b"1"),
            ("a.txt", txt),
            ("b.txt", txt),
            ("a.cls", b"1"),
            ("b.cls", b"2"),
        ],
        "duplicate": [("0.txt", txt), ("0.txt", txt)],
        "duplicate late": [*rows(7, txt=txt), ("x.txt", txt), ("x.txt", txt)],
        "upper case": rows(6, JPG=jpg, txt=txt),
        "mixed case": [*rows(6, jpg=jpg), ("z.JPG", jpg)],
        "no dot": [*rows(6, txt=txt), ("README", b"about")],
        "only no dot": [("README", b"about")],
        "hidden": [*rows(6, txt=txt), (".hidden.txt", b"x")],
        "hidden in folder": [("d/.a.txt", b"x"), *rows(6, txt=txt)],
        "metadata": [("__info__.txt", b"x"), *rows(6, txt=txt)],
        "two dots": rows(6, seg__png=_good("png"), txt=txt),
        "dots in folders": [(f"v1.0/{name}", payload) for name, payload in rows(6, txt=txt)],
        "empty extension": [*rows(2, txt=txt), ("0001.", b"x")],
        "bad json": rows(6, json=lambda n: b"{" if n == 1 else b"{}"),
        "bad json late": rows(9, json=lambda n: b"{" if n == 7 else b'{"a": 1}'),
        "bad text": rows(6, txt=b"caf\xe9"),
        "class name": rows(6, cls=b"cat"),
        "class name late": rows(9, cls=lambda n: b"cat" if n == 7 else b"1"),
        "json types": rows(6, json=lambda n: _json({"a": 1 if n % 2 else "x"})),
        "json int and float": rows(6, json=lambda n: _json({"a": 1 if n % 2 else 1.5})),
        "json nulls": rows(6, json=lambda n: _json({"a": None if n % 2 else 1})),
        "json other keys": rows(6, json=lambda n: _json({"a": 1} if n % 2 else {"b": 1})),
        "json late key": rows(9, json=lambda n: _json({"a": 1} if n < 6 else {"a": 1, "b": 2})),
        "json late type": rows(9, json=lambda n: _json({"a": 1} if n < 6 else {"a": "x"})),
        "json late float": rows(9, json=lambda n: _json({"a": 1} if n < 6 else {"a": 1.5})),
        "json late lacks": rows(9, json=lambda n: _json({"a": 1, "b": 2} if n < 6 else {"a": 1})),
        "json kinds": rows(6, json=lambda n: _json([1] if n % 2 else {"a": 1})),
        "json lists": rows(6, json=lambda n: _json({"a": list(range(n))})),
        "json mixed list": rows(6, json=_json({"a": [1, "x"]})),
        "json empty object": rows(6, json=b"{}"),
        "json scalar": rows(6, json=lambda n: _json(n)),
        "json null, then number": rows(9, json=lambda n: _json({"a": None if n < 6 else 3})),
        "json late list": rows(9, json=lambda n: _json({"a": 1} if n < 6 else {"a": [1]})),
        "json number for text": rows(9, json=lambda n: _json({"a": "x"} if n < 6 else {"a": 1})),
        "json late empty": rows(9, json=lambda n: _json({} if n < 6 else {"a": 1})),
        "json large number": rows(6, json=_json({"a": 1 << 70})),
        "json booleans": rows(9, json=lambda n: _json({"a": True if n < 6 else 1})),
        "arrays of other types": rows(6, npy=lambda n: _array(n)),
        "npz": rows(6, npz=_good("npz")),
        "zst": archives.compressed(archives.by_hand(rows(6, txt=txt)), "zst"),
        "bz2": archives.compressed(archives.by_hand(rows(6, txt=txt)), "bz2"),
        "npy": rows(6, npy=_good("npy")),
        "bad npy": rows(6, npy=b"no array"),
        "msgpack": rows(6, mp=_good("msgpack")),
        "pickle": rows(6, pkl=_good("pkl")),
        "gz field": rows(6, json__gz=_good("json.gz")),
        "bad gz field": rows(6, txt__gz=b"no gzip"),
        "broken picture": rows(6, jpg=jpg[:200]),
        "empty text": rows(6, txt=b""),
        "not utf8 name": archives.archive(*(member(b"%d\xe9.txt" % n, txt) for n in range(6))),
        "no end mark": archives.by_hand(rows(6, txt=txt), end=b""),
        "cut": archives.by_hand(rows(6, txt=txt))[: 512 * 7 + 300],
        "cut in payload": archives.by_hand(rows(6, bin=b"x" * 3000))[: 512 * 9],
        "joined": archives.by_hand(rows(3, txt=txt)) + archives.by_hand([("9.txt", txt)]),
        "bad header": _struck(archives.by_hand(rows(6, txt=txt))),
        "hard link": archives.archive(
            *(member(b"%d.txt" % n, txt) for n in range(3)), archives.header(b"4.txt", 0, kind=b"1", linkname=b"0.txt")
        ),  # fmt: skip
        "symbolic link": archives.archive(
            *(member(b"%d.txt" % n, txt) for n in range(3)), archives.header(b"4.txt", 0, kind=b"2", linkname=b"0.txt")
        ),  # fmt: skip
        "sparse": archives.archive(
            *(archives.old_gnu_sparse(b"%d.bin" % n, bytes(2000) + b"x" * 500, [(2000, 500)]) for n in range(6))
        ),  # fmt: skip
        "empty shard": archives.by_hand([]),
        "nothing": b"",
        "gzip": gzip.compress(archives.by_hand(rows(6, txt=txt))),
    }
    lists: dict[str, list[bytes | Members]] = {name: [content] for name, content in made.items()}
    lists["second lacks"] = [rows(6, txt=txt, cls=b"1"), [("b.txt", txt)]]
    lists["second has more"] = [rows(6, txt=txt), [("b.txt", txt), ("b.cls", b"1")]]
    lists["second bad"] = [rows(6, json=b"{}"), [("b.json", b"{")]]
    return lists


def _struck(archive: bytes) -> bytes:
    changed = bytearray(archive)
    changed[512 * 4 + 3] ^= 1
    return bytes(changed)


def write(shards: list[bytes | Members], folder: Path) -> list[Path]:
    """Write the shards of one shape; return their paths."""
    paths = []
    for number, content in enumerate(shards):
        packed = content if isinstance(content, bytes) else archives.by_tarfile(content, format="gnu")
        ending = {b"\x1f\x8b": ".gz", b"BZ": ".bz2", b"\x28\xb5": ".zst"}.get(packed[:2], "")
        paths.append(folder / f"{number}.tar{ending}")
        paths[-1].write_bytes(packed)
    return paths
