"""The shards that the questions are asked on. Written with the standard library's tarfile alone, in plain USTAR.

W1 is 80 KB JPEG + txt + json; W2 is cls + about 350 bytes of json, 10 000 samples a shard; W3 is members of 5 MB;
W4 is W2 compressed with gzip. W2p is W2 as webdataset 1.0.2 writes it, with a PAX header per member.
"""

import gzip
import io
import json
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MTIME = 1_700_000_000
SAMPLES = {"W1": 2000, "W2": 20_000, "W2p": 10_000, "W3": 60, "W4": 20_000}
PER_SHARD = {"W1": 500, "W2": 10_000, "W2p": 10_000, "W3": 20, "W4": 10_000}
SPACE = 2_000_000_000

Sample = dict[str, bytes]


def record(rng: random.Random, index: int) -> bytes:
    """Return about 350 bytes of json, as captions and their statistics look."""
    words = " ".join(f"w{rng.randrange(5000)}" for _ in range(24))
    fields = {
        "id": index,
        "caption": words,
        "url": f"shop/{rng.randrange(10**12)}/{index}.jpg",
        "width": rng.randrange(200, 4000),
        "height": rng.randrange(200, 4000),
        "similarity": rng.random(),
        "tags": [f"t{rng.randrange(100)}" for _ in range(5)],
    }
    return json.dumps(fields).encode()


def images(rng: random.Random) -> list[bytes]:
    """Return 200 byte strings of about 80 KB that begin as JPEG files do (raw reading never decodes them)."""
    return [b"\xff\xd8\xff\xe0" + rng.randbytes(rng.randrange(70_000, 90_000)) for _ in range(200)]


def samples(work: str, count: int) -> Iterator[Sample]:
    """Yield the samples of one workload.

    Args:
        work: W1, W2 or W3.
        count: how many.
    """
    rng = random.Random(work)
    pictures = images(rng) if work == "W1" else []
    block = rng.randbytes(5_000_000) if work == "W3" else b""
    for index in range(count):
        if work == "W1":
            text = f"picture {index}".encode()
            yield {"jpg": pictures[index % len(pictures)], "json": record(rng, index), "txt": text}
        elif work == "W2":
            yield {"cls": str(index % 1000).encode(), "json": record(rng, index)}
        else:
            yield {"bin": block}


def write_tar(path: Path, part: Iterable[tuple[str, Sample]]) -> None:
    """Write keyed samples as one plain USTAR archive."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for key, sample in part:
            for field, payload in sample.items():
                member = tarfile.TarInfo(f"{key}.{field}")
                member.size, member.mtime, member.mode = len(payload), MTIME, 0o444
                archive.addfile(member, io.BytesIO(payload))


def write(work: str, folder: Path, *, scale: float = 1.0) -> list[str]:
    """Write one workload's shards and return their paths.

    Args:
        work: W1, W2, W3 or W4.
        folder: where they go.
        scale: part of the full number of samples (tests use little).
    """
    if work == "W4":
        return [compressed(path) for path in write("W2", folder, scale=scale)]
    count, per_shard = max(2, int(SAMPLES[work] * scale)), max(2, int(PER_SHARD[work] * scale))
    keyed = [(f"{index:07d}", sample) for index, sample in enumerate(samples(work, count))]
    paths = []
    for start in range(0, count, per_shard):
        path = folder / f"{work}-{start // per_shard:04d}.tar"
        write_tar(path, keyed[start : start + per_shard])
        paths.append(str(path))
    return paths


def compressed(path: str) -> str:
    """Write a gzip twin of a shard beside it and return its path."""
    with open(path, "rb") as plain, gzip.GzipFile(f"{path}.gz", "wb", 6, mtime=MTIME) as twin:
        shutil.copyfileobj(plain, twin)
    return f"{path}.gz"


@contextmanager
def workspace() -> Iterator[Path]:
    """Give a folder in memory where there is room, else on disk; removed afterwards."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > SPACE
    with tempfile.TemporaryDirectory(prefix="wds-bench-", dir=shared if roomy else None) as folder:
        yield Path(folder)
