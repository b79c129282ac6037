"""What does a state after every batch of 64 cost, and what does going on from one cost?

Costs: the same epoch over JPEGs of 256x256 pixels, decoded and shuffled, is run in five ways: an elastic dataset, a
``Loader`` with two threads, one with two processes, a ``WebLoader`` with two workers that make batches, and one whose
workers send samples. Each way takes turns without an elastic dataset (``plain``), with one, and with a state after
every batch. What is compared is the CPU time of all processes, from making the loader to its end;
``state_ms`` is what one call of ``state_dict()`` takes its thread, which a busy machine disturbs less.

Going on: a run with a shuffle buffer is stopped at 10 %, 50 % and 90 % of its epoch. Measured are the CPU seconds from
the state to the next sample of each stream, and the bytes that were read up to then (Linux counts them), beside those
that the samples of the buffer have.

``resume.py`` asks all; ``resume.py threads going_on`` asks some of it, by name.
"""

import gc
import io
import itertools
import json
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from shards import workspace, write

BATCH, BUFFER, STREAMS = 64, 1000, 24
PLACES = 0.1, 0.5, 0.9
GOING_ON = "going_on"


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


def dataset(urls, *, elastic):
    """Return a dataset of decoded JPEGs, shuffled."""
    made = wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(BUFFER, initial=BUFFER).decode("rgb8")
    made = made.to_tuple("jpg", "cls")
    return made.elastic(STREAMS) if elastic else made


class InThisThread:
    """A dataset by itself, in batches."""

    def __init__(self, dataset):
        self.run = iter(dataset)

    def __iter__(self):
        while batch := list(itertools.islice(self.run, BATCH)):
            yield batch

    def state_dict(self):
        """Return the state of the run."""
        return self.run.state_dict()


def sending(dataset):
    """Return a loader whose workers send samples."""
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


WAYS = {
    "elastic": InThisThread,
    "threads": lambda dataset: wds.Loader(dataset, BATCH, workers=2),
    "processes": lambda dataset: wds.Loader(dataset, BATCH, workers=2, mode="processes"),
    "webloader": lambda dataset: wds.WebLoader(dataset, batch_size=BATCH, num_workers=2),
    "webloader_samples": sending,
}


def spent():
    """Return the CPU seconds of this process, and of its children that have ended."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def seconds(urls, way, *, elastic, states):
    """Return the CPU seconds of one epoch, and the milliseconds that asking for a state takes this thread."""
    gc.collect()
    begun = spent()
    loader = WAYS[way](dataset(urls, elastic=elastic))
    every = BATCH if way == "webloader_samples" else 1
    asking, asked = 0.0, 0
    for number, _ in enumerate(loader, 1):
        if states and number % every == 0:
            before = time.thread_time()
            loader.state_dict()
            asking, asked = asking + time.thread_time() - before, asked + 1
    if hasattr(loader, "close"):
        loader.close()
    del loader
    gc.collect()
    return spent() - begun, 1000 * asking / max(asked, 1)


def costs(urls, ways):
    """Return for each way the ratios of medians and of least times, over the plain run and over the elastic one."""
    found = {}
    for way in ways:
        candidates = {"plain": (False, False), "elastic": (True, False), "states": (True, True)}
        taken: dict[str, list[float]] = {name: [] for name in candidates}
        asking = []
        for turn in range(ROUNDS + 1):
            for name, (elastic, states) in candidates.items():
                took, state_ms = seconds(urls, way, elastic=elastic, states=states)
                if turn:
                    taken[name].append(took)
                    asking += [state_ms] * states
        for label, chosen in (("", statistics.median), ("_least", min)):
            alone, in_streams, asked = (chosen(taken[name]) for name in candidates)
            found[f"{way}_elastic_ratio{label}"] = round(in_streams / alone, 4)
            found[f"{way}_state_ratio{label}"] = round(asked / in_streams, 4)
        found[f"{way}_state_ms"] = rounded(statistics.median(asking))
        found[f"{way}_seconds"] = rounded(statistics.median(taken["elastic"]))
    return found


def read_so_far():
    """Return how many bytes this process has read, as Linux counts them; 0 elsewhere."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except OSError:
        return 0


def going_on(urls, buffer=10_000):
    """Return what going on costs at some places of an epoch; ``buffer`` samples wait then, at most half an epoch."""
    count = sum(1 for _ in wds.WebDataset(urls, shardshuffle=False))
    size = sum(os.path.getsize(url) for url in urls)
    buffer = min(buffer, count // 2)
    found: dict[str, float] = {"buffer_bytes": int(size / count * buffer), "epoch_bytes": size}

    def make():
        return wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(buffer, initial=buffer // 2).elastic(STREAMS)

    run, given = iter(make()), 0
    for place in PLACES:
        target = int(count * place)
        given += sum(1 for _ in itertools.islice(run, target - given))
        state = json.dumps(run.state_dict())
        gc.collect()
        before, begun = read_so_far(), time.process_time()
        for _ in itertools.islice(make().elastic_run(state=json.loads(state)), STREAMS):
            pass
        label = f"at_{round(100 * place)}"
        found[f"{label}_seconds"] = rounded(time.process_time() - begun)
        found[f"{label}_read_bytes"] = read_so_far() - before
        found[f"{label}_state_bytes"] = len(state)
    return found


def measure(asked=(*WAYS, GOING_ON)) -> dict[str, object]:
    """Print and return the answer."""
    figures: dict[str, Any] = {}
    with workspace() as folder:
        if ways := [way for way in WAYS if way in asked]:
            figures |= costs(pictures(folder), ways)
        if GOING_ON in asked:
            figures |= going_on(write("W2", folder, scale=SCALE))
    return show("resume", **figures)


if __name__ == "__main__":
    measure(sys.argv[1:] or (*WAYS, GOING_ON))
