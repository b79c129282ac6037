"""Datasets to look at: shards of images, texts, JSON and classes, with and without indexes."""

import io
import json
import tarfile
from pathlib import Path

import webdataset as wds
from webdataset.samples.sample_reader import Reading
from webdataset.viewer.session import DatasetView
from webdataset.viewer.shard_bytes import BlockCache


def png_bytes(width: int, height: int) -> bytes:
    """Return a small image file."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (width, height), (width % 256, height % 256, 99)).save(out, "PNG")
    return out.getvalue()


def write_shard(path: Path, samples: list[tuple[str, dict[str, bytes]]], *, index: bool = False) -> str:
    """Write samples as a shard, each field a member, and maybe an index beside it."""
    with tarfile.open(path, "w") as archive:
        for key, fields in samples:
            for name, payload in fields.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(payload)
                archive.addfile(member, io.BytesIO(payload))
    if index:
        wds.write_indexes([str(path)], "dali")
    return str(path)


def make_samples(count: int, start: int = 0) -> list[tuple[str, dict[str, bytes]]]:
    """Return samples of four fields; every fifth has no text."""
    found = []
    for number in range(start, start + count):
        value = {"width": number % 7, "tag": "cat" if number % 3 else "dog", "deep": {"x": number / 4}, "gone": None}
        fields = {
            "png": png_bytes(10 + number % 13, 5 + number),
            "json": json.dumps(value).encode(),
            "cls": str(number % 4).encode(),
        }
        if number % 5:
            fields["txt"] = f"Caption Nummer {number} Straße".encode()
        found.append((f"key{number:04d}", fields))
    return found


def make_view(name: str, urls: list[str]) -> DatasetView:
    """Return shards as a side."""
    return DatasetView(name, urls, Reading(), BlockCache())


def read_bytes(view: DatasetView) -> int:
    """Return the bytes read of all shards of a side."""
    return sum(view.shard(number).read_statistics.bytes for number in range(len(view)))


def make_side(folder: Path, *, shards: int = 3, count: int = 20, index: bool = False, name: str = "a") -> DatasetView:
    """Write shards and return them as a side."""
    return make_view(
        name,
        [
            write_shard(folder / f"{name}-{number}.tar", make_samples(count, number * count), index=index)
            for number in range(shards)
        ],
    )
