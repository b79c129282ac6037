"""What does a batch of 26 MB cost when several trainers share one loader, and when each has a loader of its own?

A batch is 4 x 6.5 MB: ``copied`` fills it from memory, so that what remains is the cost of passing it on; ``decoded``
decodes four JPEGs. CPU time per batch, of all threads: of the trainer that owns the stream, of one that attached
(median), and of all trainers together; ``own`` is one loader per trainer. Rounds take turns; medians.

``shared_loader.py`` prints a table; ``BENCH_ROUNDS`` sets the rounds.
"""

import io
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
BATCH, SIDE = 4, 2560
# batches of an epoch, and how many of them are not counted: blocks are mapped when they come for the first time
LENGTHS = {"copied": (300, 40), "decoded": (60, 20)}
TRAINERS = (1, 2, 4, 8)


def fill(sample: Any, picture: Any) -> dict[str, Any]:
    """Return an array of 6.5 MB: the given one, or what the sample's JPEG decodes to."""
    import numpy as np
    from PIL import Image

    return {"x": np.asarray(Image.open(io.BytesIO(sample["jpg"]))) if picture is None else picture}


def train(folder: str, count: int, work: str, ended: Barrier, *, shared: bool) -> dict[str, Any]:
    """Receive an epoch; return CPU milliseconds per batch, and whether this trainer owns the stream."""
    import numpy as np

    import webdataset as wds

    batches, warm = LENGTHS[work]
    picture = np.zeros((SIDE, SIDE), np.uint8) if work == "copied" else None
    dataset = wds.WebDataset(f"{folder}/0.tar", shardshuffle=False).map(partial(fill, picture=picture)).elastic()
    loader: Any
    loader = (
        wds.SharedLoader(dataset, f"{folder}/s", batch_size=BATCH, trainers=count)
        if shared
        else wds.Loader(dataset, BATCH)
    )
    began = 0.0
    for number, batch in enumerate(loader):
        if number == warm:
            began = time.process_time()
        del batch
    spent = (time.process_time() - began) / (batches - warm - 1) * 1e3
    owner = not shared or loader.owner
    # an owner that leaves before the others have their last batches makes one of them make these again
    ended.wait()
    loader.close()
    return {"ms": spent, "owner": owner}


def write_shard(folder: str, work: str) -> None:
    """Write the samples of an epoch; those that are decoded share a few JPEGs."""
    import numpy as np
    from PIL import Image

    import webdataset as wds

    rows = np.linspace(0, 255, SIDE, dtype=np.uint8)
    jpegs = []
    for shift in range(4):
        stream = io.BytesIO()
        Image.fromarray(np.add.outer(rows, np.roll(rows, shift * 100))).save(stream, "JPEG", quality=85)
        jpegs.append(stream.getvalue())
    with wds.TarWriter(f"{folder}/0.tar") as writer:
        for number in range(LENGTHS[work][0] * BATCH):
            field = {"cls": number} if work == "copied" else {"jpg": jpegs[number % len(jpegs)]}
            writer.write({"__key__": f"{number:05}", **field})


def measure(count: int, work: str, *, shared: bool) -> tuple[float, float, float]:
    """Return CPU milliseconds per batch: of the owner, of a trainer that attached, of all."""
    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        write_shard(folder, work)
        pipes, ended = [], multiprocessing.get_context("fork").Barrier(count)
        for _ in range(count):
            read, write = os.pipe()
            if not os.fork():
                try:
                    os.write(write, json.dumps(train(folder, count, work, ended, shared=shared)).encode())
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
    print("| a batch is | trainers | owner, ms | attached, ms | all, ms | to one trainer | a loader each: all, ms |")
    print("|---|---|---|---|---|---|---|")
    for work in LENGTHS:
        found: dict[tuple[int, bool], list[tuple[float, float, float]]] = {}
        for _ in range(ROUNDS):
            for count in TRAINERS:
                for shared in (True, False):
                    # a loader each costs what one does, times so many
                    if shared or count == 1:
                        found.setdefault((count, shared), []).append(measure(count, work, shared=shared))
        own = statistics.median(each[2] for each in found[1, False])
        one = statistics.median(each[2] for each in found[1, True])
        for count in TRAINERS:
            owner, attached, total = (statistics.median(column) for column in zip(*found[count, True], strict=True))
            shown = f"{attached:.2f}" if attached else "-"
            print(
                f"| {work} | {count} | {owner:.2f} | {shown} | {total:.2f} | {total / one:.2f} | {own * count:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
