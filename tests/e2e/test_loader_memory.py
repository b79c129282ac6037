"""Memory over many epochs of a loader."""

import gc
import multiprocessing
import os
import statistics
from pathlib import Path

import numpy as np
import pytest

import webdataset as wds

EPOCHS = 30
ALLOWED_BYTES = 3 << 20  # over fifteen epochs of 25 MB each


def resident():
    """Return the bytes of memory of this process and its children that are no file's."""
    total = 0
    for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        status = Path(f"/proc/{pid}/status").read_text()
        total += sum(
            int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(("RssAnon", "RssShm"))
        )
    return total


@pytest.mark.parametrize(
    ("workers", "mode", "ragged"), [(0, "threads", 0), (2, "threads", 0), (2, "processes", 0), (2, "processes", 1)]
)
def test_memory_does_not_grow_with_epochs(tmp_path, workers, mode, ragged):
    """After some epochs memory stays where it is, in this process and in its workers."""
    urls = []
    for shard in range(4):
        urls.append(str(tmp_path / f"{shard}.tar"))
        with wds.TarWriter(urls[-1]) as writer:
            for n in range(50):
                writer.write(
                    {"__key__": f"{n:03d}", "npy": np.zeros((128, 250 + n % 2 * ragged), np.float32), "cls": n}
                )
    dataset = (
        wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(40).decode().to_tuple("npy", "cls").elastic(streams=4)
    )
    start_method = "fork" if mode == "processes" else None
    sizes = []
    with wds.Loader(dataset, 8, workers=workers, mode=mode, start_method=start_method, prefetch=3) as loader:
        for _ in range(EPOCHS):
            count = 0
            for pixels, _numbers in loader:
                count += len(pixels)
                if count == 104:
                    loader.state_dict()
            assert count == 200
            del pixels, _numbers
            gc.collect()
            sizes.append(resident())
    early, late = statistics.median(sizes[10:16]), statistics.median(sizes[-6:])
    assert late - early < ALLOWED_BYTES
