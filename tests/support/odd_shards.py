"""Shards of several tar dialects by a seed: long names, PAX times, folders, metadata, links, archives as payloads."""

import io
import random
import tarfile
from pathlib import Path

from webdataset.testing import archives

SIZES = (0, 3, 700, 5_000, 30_000)


def make_payload(rng: random.Random) -> bytes:
    """Bytes of a field; some are archives."""
    if rng.random() < 0.15:
        inner = [(f"{index:03d}.bin", bytes(rng.randrange(900))) for index in range(rng.randrange(1, 4))]
        return archives.by_hand(inner)
    return rng.randbytes(rng.choice(SIZES))


def write_shard(rng: random.Random, path: Path, number: int, samples: int | None = None) -> list[tuple[str, bytes]]:
    """Write one shard of some kind; return the names and payloads of its members."""
    kind = rng.choice(("plain", "pax", "gnu", "times", "folder", "metadata", "link"))
    count = rng.choice((0, 1, 2, 7, 20, 40)) if samples is None else samples
    form = tarfile.PAX_FORMAT if kind in {"pax", "times"} else tarfile.GNU_FORMAT
    stem = "d" * rng.choice((1, 90, 160)) + "/" if kind in {"pax", "gnu"} else ""
    members = []
    with tarfile.open(path, "w", format=form) as archive:
        if kind == "folder":
            folder = tarfile.TarInfo("a")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for index in range(count):
            key = f"{stem}{number}-{index if rng.random() < 0.98 else 900 - index:03d}"
            for field in rng.choice((("bin",), ("bin", "cls"), ("cls", "BIN", "seg.txt"))):
                info = tarfile.TarInfo(f"{key}.{field}")
                if kind == "times":
                    info.mtime = 1.5 + index
                content = make_payload(rng)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                members.append((info.name, content))
            if kind in {"metadata", "link"} and index == count // 2:
                odd = tarfile.TarInfo("__about__" if kind == "metadata" else f"{key}.lnk")
                odd.type = tarfile.REGTYPE if kind == "metadata" else tarfile.SYMTYPE
                odd.linkname = "" if kind == "metadata" else "elsewhere"
                archive.addfile(odd)
    return members
