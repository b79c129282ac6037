"""Every way in which a shard's bytes reach a user, as functions from a target to a digest.

:func:`digests_of` tells what they give when nothing goes wrong, computed from the bytes by the standard library.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import webdataset as wds
from support.schemes import Target
from webdataset.core.seeds import make_rng
from webdataset.index.indexed_shard import IndexedShard
from webdataset.storage import parallel_ranges, prefetch_worker, retries
from webdataset.storage.random_access import open_ranges
from webdataset.testing.archives import archive, member

Setting = Callable[[object, str, object], object]
"""Sets an attribute for the time of a test, as ``monkeypatch.setattr``."""


def shard(seed: int, *, samples: int = 20, size_bytes: int = 19_000) -> bytes:
    """Return a shard; two of them with the same sizes have the same length.

    Args:
        seed: of the contents.
        samples: how many.
        size_bytes: of the larger of the two fields of each.
    """
    rng = make_rng("shard", seed)
    members = []
    for number in range(samples):
        members.append(member(f"{number:04}.bin".encode(), rng.randbytes(size_bytes)))
        members.append(member(f"{number:04}.txt".encode(), rng.randbytes(20).hex().encode()))
    return archive(*members)


def digests_of(content: bytes) -> tuple[str, str]:
    """Return the digest of a shard's bytes, and that of its samples, by the standard library.

    Args:
        content: the shard.
    """
    digest = hashlib.sha256()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for entry in tar:
            extracted = tar.extractfile(entry)
            digest.update(entry.name.encode() + (b"" if extracted is None else extracted.read()))
    return hashlib.sha256(content).hexdigest(), digest.hexdigest()


def starving(patch: Setting) -> None:
    """Take every reader for one that starves far away: it reads ahead, and over several connections.

    Args:
        patch: sets an attribute for the time of a test.
    """
    patch(parallel_ranges, "ALIGNMENT_BYTES", 32 * 1024)
    patch(prefetch_worker, "WINDOW_SECONDS", 0.0)
    patch(prefetch_worker, "WINDOW_BYTES", 1)
    patch(prefetch_worker, "FAR_SECONDS", -1.0)
    patch(prefetch_worker, "FAST_BYTES_PER_SECOND", float("inf"))


def impatient(patch: Setting, read_seconds: float, *, share: float = 0.01) -> list[float]:
    """Let all schemes wait shorter: for a byte, and between attempts.

    Args:
        patch: sets an attribute for the time of a test.
        read_seconds: how long a reader waits for a byte.
        share: of the pauses between attempts.

    Returns:
        The pauses that there would have been, in seconds; grows.
    """
    from webdataset.storage import http_client  # noqa: PLC0415  the modules below are imported with their schemes
    from webdataset.storage.backends import (
        fsspec_store,
        s3_client,  # noqa: PLC0415
        sftp_client,  # noqa: PLC0415
    )
    from webdataset.storage.backends import http as http_objects  # noqa: PLC0415

    patch(fsspec_store, "READ_SECONDS", max(3.0, read_seconds))  # holds for logging in, too
    for module in (http_client, http_objects, s3_client, sftp_client):
        patch(module, "READ_SECONDS", read_seconds)
        patch(module, "CONNECT_SECONDS", max(3.0, read_seconds))
    noted, sleep = [], retries.sleep

    def note(seconds: float) -> None:
        noted.append(seconds)
        sleep(seconds * share)

    patch(retries, "sleep", note)
    return noted


def drained(url: str, **options: Any) -> bytes:
    """Read all bytes at once.

    Args:
        url: of the object.
        **options: for ``gopen``.
    """
    with wds.gopen(url, **options) as stream:
        content: bytes = stream.read()
    return content


def streamed(target: Target, *, size_bytes: int = 50_000) -> str:
    """Read all bytes, front to back.

    Args:
        target: where the shard is.
        size_bytes: of a read.
    """
    digest = hashlib.sha256()
    with wds.gopen(target.url, storage_options=target.options) as stream:
        for piece in iter(lambda: stream.read(size_bytes), b""):
            digest.update(piece)
    return digest.hexdigest()


def ranged(target: Target, *, seed: int = 0, size_bytes: int = 70_000) -> str:
    """Read all bytes by ranges, in an order drawn from a seed.

    Args:
        target: where the shard is.
        seed: of the order.
        size_bytes: of a range.
    """
    with open_ranges(target.url, storage_options=target.options) as ranges:
        starts = list(range(0, ranges.length, size_bytes))
        make_rng("ranges", seed).shuffle(starts)
        found = {start: ranges.read_at(start, size_bytes) for start in starts}
    return hashlib.sha256(b"".join(found[start] for start in sorted(found))).hexdigest()


def sampled(target: Target) -> str:
    """Read all samples, one shard at a time.

    Args:
        target: where the shard is.
    """
    dataset = wds.WebDataset(
        [target.url], shardshuffle=False, workersplitter=None, prefetch=0, storage_options=target.options
    )
    return digest_of(dataset)


def cached(target: Target, folder: Path) -> str:
    """Read all samples through the cache.

    Args:
        target: where the shard is.
        folder: of the cache; made where it is absent.
    """
    folder.mkdir(exist_ok=True)
    dataset = wds.WebDataset(
        [target.url], shardshuffle=False, cache_dir=str(folder), storage_options=target.options, prefetch=0
    )
    return digest_of(dataset)


def indexed(target: Target) -> str:
    """Read all samples by their number.

    Args:
        target: where the shard is.
    """
    with IndexedShard(target.url, storage_options=target.options) as opened:
        return digest_of(opened[number] for number in range(len(opened)))


def digest_of(samples: Iterable[dict[str, object]]) -> str:
    """Return the digest of samples of a :func:`shard`, as :func:`digests_of` computes it from the bytes.

    Args:
        samples: with ``__key__``, ``bin`` and ``txt``.
    """
    digest = hashlib.sha256()
    for sample in samples:
        for name in ("bin", "txt"):
            digest.update(f"{sample['__key__']}.{name}".encode() + bytes(sample[name]))  # type: ignore[call-overload]
    return digest.hexdigest()
