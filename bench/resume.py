"""What does a state behind every batch of 64 cost, and what does going on from one cost?

Three runs take turns over the same JPEGs of 256x256 pixels: a plain dataset, an elastic one, and an elastic one that
writes its state behind every batch. Then a run with a buffer of 10 000 samples of W2 is resumed in its middle.
"""

import gc
import io
import itertools
import json
import random
import statistics
import time

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from shards import workspace, write

BATCH, BUFFER = 64, 1000


def pictures(folder):
    """Write shards of JPEGs and return their paths."""
    from PIL import Image

    draws = random.Random(1)
    payloads = []
    for _ in range(20):
        stream = io.BytesIO()
        Image.frombytes("RGB", (32, 32), draws.randbytes(3072)).resize((256, 256)).save(stream, "JPEG", quality=90)
        payloads.append(stream.getvalue())
    paths = [str(folder / f"p-{number:02d}.tar") for number in range(24)]
    for number, path in enumerate(paths):
        with wds.TarWriter(path) as sink:
            for index in range(max(int(100 * SCALE), 10)):
                sink.write({"__key__": f"{number}-{index:04d}", "jpg": payloads[index % 20], "cls": index})
    return paths


def dataset(urls):
    """Return a dataset of decoded JPEGs, shuffled."""
    return wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(BUFFER, initial=BUFFER).decode("rgb8")


def seconds(run, state):
    """Return the CPU seconds of a run, its states included."""
    gc.collect()
    begun = time.process_time()
    while list(itertools.islice(run, BATCH)):
        if state:
            run.state_dict()
    return time.process_time() - begun


def costs(urls):
    """Return the median CPU seconds: plain, elastic, elastic with a state behind every batch."""
    candidates = [
        lambda: seconds(iter(dataset(urls)), False),
        lambda: seconds(iter(dataset(urls).elastic(24)), False),
        lambda: seconds(iter(dataset(urls).elastic(24)), True),
    ]
    taken = [[] for _ in candidates]
    for turn in range(ROUNDS + 1):
        for times, candidate in zip(taken, candidates, strict=True):
            spent = candidate()
            if turn:
                times.append(spent)
    return [statistics.median(times) for times in taken]


def resumed(urls, buffer=10_000):
    """Return the size of a state in bytes, and the CPU seconds up to the first sample of each stream behind it."""

    def make():
        return wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(buffer, initial=buffer).elastic(24)

    run = iter(make())
    list(itertools.islice(run, buffer // 2))
    state = json.dumps(run.state_dict())
    gc.collect()
    begun = time.process_time()
    list(itertools.islice(make().elastic_run(state=json.loads(state)), 24))
    return len(state), time.process_time() - begun


def measure() -> dict[str, object]:
    """Print and return the answer."""
    with workspace() as folder:
        plain, elastic, saved = costs(pictures(folder))
        size, again = resumed(write("W2", folder, scale=SCALE))
        return show(
            "resume",
            elastic_ratio=rounded(elastic / plain),
            state_ratio=rounded(saved / elastic),
            state_bytes=size,
            resume_seconds=rounded(again),
        )


if __name__ == "__main__":
    measure()
