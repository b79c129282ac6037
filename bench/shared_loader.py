"""What does a batch of 26 MB cost when several trainers share one loader, and when each has a loader of its own?

The work is to fill a batch of 4 x 6.5 MB from memory, without decoding: what remains is the cost of passing it on. CPU
time per batch, of all threads: of the trainer that owns the stream, of one that attached (median), and of all trainers
together; ``own`` is one loader per trainer. Rounds take turns; medians.

``shared_loader.py`` prints a table; ``BENCH_ROUNDS`` sets the rounds.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
BATCHES, BATCH, WARM = 60, 4, 10


def train(folder: str, count: int, *, shared: bool) -> dict[str, Any]:
    """Receive an epoch; return CPU milliseconds per batch, and whether this trainer owns the stream."""
    import numpy as np

    import webdataset as wds

    payload = np.zeros((2560, 2560), np.uint8)
    dataset = wds.WebDataset(f"{folder}/0.tar", shardshuffle=False).map(lambda _: {"x": payload}).elastic()
    loader: Any
    loader = (
        wds.SharedLoader(dataset, f"{folder}/s", batch_size=BATCH, trainers=count)
        if shared
        else wds.Loader(dataset, BATCH)
    )
    began = 0.0
    for number, batch in enumerate(loader):
        if number == WARM:
            began = time.process_time()
        del batch
    spent = (time.process_time() - began) / (BATCHES - WARM - 1) * 1e3
    owner = not shared or loader.owner
    loader.close()
    return {"ms": spent, "owner": owner}


def measure(count: int, *, shared: bool) -> tuple[float, float, float]:
    """Return CPU milliseconds per batch: of the owner, of a trainer that attached, of all."""
    import webdataset as wds

    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        with wds.TarWriter(f"{folder}/0.tar") as writer:
            for number in range(BATCHES * BATCH):
                writer.write({"__key__": f"{number:05}", "cls": number})
        pipes = []
        for _ in range(count):
            read, write = os.pipe()
            if not os.fork():
                try:
                    os.write(write, json.dumps(train(folder, count, shared=shared)).encode())
                finally:
                    os._exit(0)
            os.close(write)
            pipes.append(read)
        found = []
        for read in pipes:
            with os.fdopen(read) as file:
                found.append(json.loads(file.read()))
            os.wait()
    attached = [each["ms"] for each in found if not each["owner"]]
    owner = max(each["ms"] for each in found if each["owner"])
    return owner, statistics.median(attached) if attached else 0.0, sum(each["ms"] for each in found)


def main() -> None:
    """Print the table."""
    found: dict[tuple[int, bool], list[tuple[float, float, float]]] = {}
    for _ in range(ROUNDS):
        for count in (1, 2, 4, 8):
            for shared in (True, False):
                found.setdefault((count, shared), []).append(measure(count, shared=shared))
    sys.stdout.write(
        "| trainers | owner, ms | attached, ms | all, ms | a loader each: all, ms |\n|---|---|---|---|---|\n"
    )
    for count in (1, 2, 4, 8):
        owner, attached, total = (statistics.median(column) for column in zip(*found[count, True], strict=True))
        own = statistics.median(each[2] for each in found[count, False])
        shown = f"{attached:.2f}" if attached else "-"
        sys.stdout.write(f"| {count} | {owner:.2f} | {shown} | {total:.2f} | {own:.2f} |\n")


if __name__ == "__main__":
    main()
