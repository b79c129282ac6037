"""When do workers make batches, and when does training wait for one? ``loader_timeline.py [FILE]`` writes it as JSON.

Batches of 32 JPEGs of 512 x 512 are decoded by no, one and two threads of ``wds.Loader``; a step of training is a
sleep, as a GPU's step is for the host. FILE (default: docs/pictures/loader-timeline.json) holds, for each number of
workers, the trainer's steps ``[begin, end]`` and the parts of batches ``[batch, worker, begin, end]``, in milliseconds,
of a stretch in the middle of the run; ``scripts/docs_pictures.py`` draws it. Run it on a machine that does nothing
else.
"""

import io
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import webdataset as wds

TARGET = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "loader-timeline.json"
BATCH = 32
WARM_STEPS = 6
STEPS = 8


def write_shards(folder: str) -> str:
    """Write 8 shards of 64 JPEGs; return their urls."""
    coarse = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((512, 512)).save(stream, "JPEG", quality=90)
    for shard in range(8):
        with wds.TarWriter(f"{folder}/s-{shard}.tar") as sink:
            for number in range(64):
                sink.write({"__key__": f"{shard}-{number:03d}", "jpg": stream.getvalue()})
    return f"{folder}/s-{{0..7}}.tar"


def begin(sample: dict[str, Any]) -> dict[str, Any]:
    """Note when and by whom a sample is begun."""
    return {**sample, "begun": time.monotonic(), "worker": threading.get_ident()}


def end(sample: dict[str, Any]) -> dict[str, Any]:
    """Note when a sample is done."""
    return {**sample, "done": time.monotonic()}


def record(urls: str, workers: int, step_seconds: float) -> dict[str, Any]:
    """Return the steps and batches of a run, in milliseconds."""
    noted = wds.WebDataset(urls, shardshuffle=False, seed=1).map(begin).decode("rgb8", only="jpg").map(end)
    dataset = noted.to_tuple("jpg", "begun", "done", "worker").elastic(streams=4).repeat(4)
    steps, batches = [], []
    with wds.Loader(dataset, batch_size=BATCH, workers=workers, prefetch=2) as loader:
        for place, (_, begun, done, worker) in enumerate(loader):
            started = time.monotonic()
            time.sleep(step_seconds)
            steps.append((started, time.monotonic()))
            for name in np.unique(worker):  # each worker decodes some rows of a batch
                rows = worker == name
                batches.append((place, int(name), float(begun[rows].min()), float(done[rows].max())))
            if place == WARM_STEPS + STEPS + 4:
                break
    first, last = steps[WARM_STEPS][0], steps[WARM_STEPS + STEPS][0]
    names = {name: number for number, name in enumerate(dict.fromkeys(name for _, name, *_ in batches))}
    origin = min(place for place, _, begun, done in batches if done > first)

    def place_in(moment: float) -> float:
        return round(1000 * (min(max(moment, first), last) - first), 1)

    return {
        "workers": workers,
        "milliseconds": place_in(last),
        "steps": [[place_in(a), place_in(b)] for a, b in steps if b > first and a < last],
        "batches": [
            [place - origin, names[name], place_in(begun), place_in(done)]
            for place, name, begun, done in batches
            if done > first and begun < last
        ],
    }


def main() -> None:
    """Find how long a batch takes, choose a step two thirds as long, and record three runs."""
    target = Path(sys.argv[1]) if sys.argv[1:] else TARGET
    with tempfile.TemporaryDirectory() as folder:
        urls = write_shards(folder)
        alone = record(urls, 0, 0.0)
        batch_seconds = alone["milliseconds"] / STEPS / 1000
        step_seconds = batch_seconds * 2 / 3
        runs = [record(urls, workers, step_seconds) for workers in (0, 1, 2)]
    found = {"batch_ms": round(1000 * batch_seconds, 1), "step_ms": round(1000 * step_seconds, 1), "runs": runs}
    target.write_text(json.dumps(found) + "\n", encoding="utf-8")
    for run in runs:
        trained = sum(b - a for a, b in run["steps"]) / run["milliseconds"]
        print(f"{run['workers']} workers: {run['milliseconds'] / STEPS:.1f} ms a step, {1 - trained:.0%} waiting")


if __name__ == "__main__":
    main()
