"""Kill a training at every step and go on from its last state: is it still the same sequence?

For each pipeline, number of workers and kind of worker, one uninterrupted run says what the sequence is. Then a child
process trains: it takes a batch, writes the batch and the state after it to a pipe, takes the next. After some steps
(one, by default) it is killed with SIGKILL, wherever it is by then; the next child goes on from the state that arrived
last. In the end both sequences have to be equal, nothing lost, nothing twice, and no process left. One JSON line each.

    python scripts/kill_harness.py                      # every step: an hour or so
    python scripts/kill_harness.py --stride 100         # a kill after every hundredth step
"""

import argparse
import hashlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import webdataset as wds

SAMPLES = 1200
LENGTHS = (150, 61, 140, 99, 37, 150, 103, 120, 84, 77, 129, 50)
PATIENCE_SECONDS = 60

Maker = Callable[[], Any]


def shards(folder: Path) -> None:
    """Write twelve unequal shards with 1,200 samples in all."""
    assert sum(LENGTHS) == SAMPLES
    for number, length in enumerate(LENGTHS):
        with wds.TarWriter(str(folder / f"{number:02}.tar")) as sink:
            for index in range(length):
                body = hashlib.shake_256(f"{number}-{index}".encode()).digest(index % 7 * 150)
                sink.write({"__key__": f"{number:02}-{index:03}", "bin": body, "cls": index % 10})


def key_of(sample: dict[str, Any]) -> str:
    """Return what a sample is known by: its key and what is in it."""
    return f"{sample['__key__']}:{hashlib.sha256(sample['bin']).hexdigest()[:8]}:{sample['cls']}"


def kept(sample: dict[str, Any]) -> bool:
    """Leave some samples out."""
    return sum(map(ord, sample["__key__"])) % 3 > 0


def source(folder: Path, numbers: Iterable[int], **options: Any) -> Any:
    """Return a dataset over some of the shards."""
    urls = [str(folder / f"{number:02}.tar") for number in numbers]
    options = {"shardshuffle": 20, "seed": 7, "empty_check": False, **options}
    return wds.WebDataset(urls, **options)


def mixed(folder: Path) -> Any:
    """Return two sources mixed by weight."""
    parts = [source(folder, range(0, 12, 2)), source(folder, range(1, 12, 2), seed=8)]
    mix = wds.DataPipeline(wds.RandomMix(parts, probs=[0.7, 0.3], longest=True), wds.shuffle(100), wds.decode())
    mix.seed = 7  # without it each training draws its own
    return mix


EVERY = range(len(LENGTHS))
PIPELINES: dict[str, Callable[[Path], Any]] = {
    "plain": lambda folder: source(folder, EVERY, shardshuffle=False).decode(),
    "shuffled": lambda folder: source(folder, EVERY).shuffle(200).decode(),
    "batched": lambda folder: source(folder, EVERY).shuffle(200).decode().batched(3, collation_fn=list, partial=True),
    "mixed": mixed,
    "filtered": lambda folder: source(folder, EVERY).select(kept).shuffle(200).decode(),
    "resampled": lambda folder: source(folder, EVERY, resampled=True).shuffle(200).decode().with_epoch(SAMPLES),
    "with_epoch": lambda folder: source(folder, EVERY).shuffle(200).decode().with_epoch(SAMPLES + 333),
}


def loader(folder: Path, pipeline: str, workers: int, mode: str) -> Any:
    """Return the loader of one training."""
    dataset = PIPELINES[pipeline](folder)
    elastic = (dataset if hasattr(dataset, "elastic") else wds.DataPipeline(dataset)).elastic(12)
    return wds.Loader(elastic, workers=workers, mode=mode, start_method="fork" if mode == "processes" else None)


def flat(batch: Any) -> list[str]:
    """Return what a step delivered, as texts."""
    return [key_of(sample) for sample in (batch if isinstance(batch, list) else [batch])]


def uninterrupted(make: Maker) -> list[list[str]]:
    """Return all steps of a run that nobody kills."""
    with make() as running:
        return [flat(batch) for batch in running]


def train(make: Maker, state: Any, pipe: int) -> None:
    """Be the training: one line a step, with the state after it."""
    running = make()
    if state is not None:
        running.load_state_dict(state)
    with os.fdopen(pipe, "wb", buffering=0) as out:
        for batch in running:
            out.write(json.dumps({"step": flat(batch), "state": running.state_dict()}).encode() + b"\n")
        out.write(b"{}\n")
        running.close()


def child(make: Maker, state: Any) -> tuple[int, int]:
    """Start the training in a process of its own group; return its number and the end of its pipe."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            os.close(receiving)
            train(make, state, sending)
            status = 0
        finally:
            os._exit(status)
    os.close(sending)
    return pid, receiving


def lines(pipe: int) -> Iterator[Any]:
    """Give the lines of a pipe, the next only when it is asked for."""
    rest = b""
    while True:
        line, found, tail = rest.partition(b"\n")
        if found:
            rest = tail
            yield json.loads(line)
            continue
        if not select.select([pipe], [], [], PATIENCE_SECONDS)[0]:
            raise TimeoutError(f"no step for {PATIENCE_SECONDS} s")
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return
        rest += piece


def killed(make: Maker, total: int, stride: int, seed: str) -> tuple[list[list[str]], int, int]:
    """Return the steps of a run that is killed after every ``stride`` steps, the number of kills, the largest state."""
    rng = random.Random(seed)
    steps, state, kills, largest = [], None, 0, 0
    wanted = rng.randint(1, stride)
    while True:
        pid, pipe = child(make, state)
        over = False
        for line in lines(pipe):
            if not line:
                over = True
                break
            steps.append(line["step"])
            state = line["state"]
            largest = max(largest, len(json.dumps(state)))
            if len(steps) >= wanted:
                break
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(pipe)
        if over or len(steps) > total + 1:
            return steps, kills, largest
        if not (os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0):
            raise RuntimeError(f"the training failed with status {status}")
        kills += 1
        wanted = len(steps) + stride


def descendants() -> list[int]:
    """Return the processes that name this one as their parent, or that belong to a group we made."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if words[0] != "Z" and int(words[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def checked(folder: Path, pipeline: str, workers: int, mode: str, stride: int) -> dict[str, Any]:
    """Compare one combination; return its row."""

    def make() -> Any:
        return loader(folder, pipeline, workers, mode)

    began = time.monotonic()
    whole = uninterrupted(make)
    steps, kills, largest = killed(make, len(whole), stride, f"{pipeline} {workers} {mode}")
    wanted, got = (Counter(key for step in run for key in step) for run in (whole, steps))
    return {
        "pipeline": pipeline,
        "workers": workers,
        "mode": mode,
        "steps": len(whole),
        "kills": kills,
        "identical": steps == whole,
        "lost": (wanted - got).total(),
        "surplus": (got - wanted).total(),
        "largest_state_bytes": largest,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """Run the combinations that the words ask for."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--stride", type=int, default=1, help="steps between two kills")
    words.add_argument("--pipelines", nargs="*", default=sorted(PIPELINES), choices=sorted(PIPELINES))
    words.add_argument("--workers", nargs="*", type=int, default=[0, 1, 2, 4])
    words.add_argument("--modes", nargs="*", default=["threads", "processes"], choices=["threads", "processes"])
    chosen = words.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        shards(Path(folder))
        for pipeline in chosen.pipelines:
            for workers in chosen.workers:
                for mode in chosen.modes if workers else ["threads"]:
                    row = checked(Path(folder), pipeline, workers, mode, chosen.stride)
                    bad += not row["identical"]
                    sys.stdout.write(json.dumps(row) + "\n")
                    sys.stdout.flush()
    time.sleep(0.5)
    if descendants():
        sys.stdout.write(f"left behind: {descendants()}\n")
        bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
