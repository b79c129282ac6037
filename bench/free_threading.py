"""How much faster are two threads of a loader than one, where Python has no global lock?

W2 in four shards of 5 000 samples. ``raw`` gives batches of 64 with the fields as bytes; ``decoded`` has shuffle(1000)
and decode() before them; ``raw 256`` and ``decoded 256`` give batches of 256. ``bare`` decodes the same bytes from
memory, all in one thread or half of them in each of two: what this machine and this Python can give. The candidates
take turns, epoch by epoch, with threads that stay; least wall times are compared, since other programs on the machine
only add to them. ``cpu`` is the CPU time of two threads to that of one: above 1 they disturb each other. ``consumer``
is the share of the CPU time of one thread's epoch that is spent in the thread that takes the batches. ``bound`` is how
much faster two threads can be by these CPU times, on two processors that nothing else uses.

``WDS_FREE_THREADED`` names the free-threaded interpreter, which has this package's dependencies.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import shards

ROUNDS = max(1, int(os.environ.get("BENCH_ROUNDS", "15")))
SCALE = float(os.environ.get("BENCH_SCALE", "1"))
BATCHES = (64, 256)
WORKERS = (1, 2)
KINDS = ("raw", "raw 256", "decoded", "decoded 256")


def write(folder: Path) -> tuple[list[str], list[shards.Sample]]:
    """Write the shards; return their paths and the samples' fields."""
    samples = list(shards.samples("W2", max(80, int(20_000 * SCALE))))
    quarter, paths = len(samples) // 4, []
    for number in range(4):
        part = samples[number * quarter : (number + 1) * quarter]
        paths.append(folder / f"{number}.tar")
        shards.write_tar(paths[-1], ((f"{number}{index:06d}", sample) for index, sample in enumerate(part)))
    return [str(path) for path in paths], samples


def decode(samples: list[shards.Sample]) -> None:
    """Decode fields as ``decode()`` does."""
    for sample in samples:
        int(sample["cls"])
        json.loads(sample["json"])


def decode_in_threads(samples: list[shards.Sample], workers: int) -> int:
    """Decode all of them, in so many threads."""
    threads = [threading.Thread(target=decode, args=(samples[number::workers],)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(samples)


def consume(loader: Iterable[Any]) -> int:
    """Take the batches of an epoch; return how many samples came."""
    count = 0
    for batch in loader:
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        count += len(first)
    return count


def candidates(paths: list[str], samples: list[shards.Sample]) -> list[tuple[str, int, Callable[[], int]]]:
    """Return (kind, workers, function) for everything that is measured."""
    import webdataset as wds

    raw = wds.WebDataset(paths, shardshuffle=False)
    decoded = raw.shuffle(1000).decode().to_tuple("cls", "json")
    found: list[tuple[str, int, Callable[[], int]]] = []
    for workers in WORKERS:
        found.append(("bare", workers, partial(decode_in_threads, samples, workers)))
        for kind, dataset in (("raw", raw.to_tuple("cls", "json")), ("decoded", decoded)):
            for size in BATCHES:
                loader = wds.Loader(dataset, size, workers=workers, mode="threads")
                found.append((kind if size == BATCHES[0] else f"{kind} {size}", workers, partial(consume, loader)))
    return found


def serve() -> None:
    """Measure in this process; print seconds by kind and number of threads."""
    from webdataset.samples.native_core import describe_native

    with shards.workspace() as folder:
        paths, samples = write(folder)
        functions = candidates(paths, samples)
        counts = {function() for _, _, function in functions}
        if len(counts) != 1:
            raise SystemExit(f"candidates gave different numbers of samples: {counts}")
        seconds: dict[str, list[list[float]]] = {}
        for _ in range(ROUNDS):
            for kind, workers, function in functions:
                began = time.perf_counter(), time.process_time(), time.thread_time()
                function()
                ended = time.perf_counter(), time.process_time(), time.thread_time()
                taken = [after - before for before, after in zip(began, ended, strict=True)]
                seconds.setdefault(f"{kind} {workers}", []).append(taken)
        locked = getattr(sys, "_is_gil_enabled", lambda: True)()
        least = {name: [min(column) for column in zip(*rows, strict=True)] for name, rows in seconds.items()}
        print(json.dumps({"locked": locked, "native": describe_native(), "samples": counts.pop(), "least": least}))


def main() -> None:
    """Ask the free-threaded interpreter, where one is named."""
    python = os.environ.get("WDS_FREE_THREADED", "").split(os.pathsep)[0]
    if not python:
        for kind in KINDS:
            harness.show(f"free threading {kind}", left_out="WDS_FREE_THREADED names no free-threaded Python")
        return
    source = str(Path(__file__).resolve().parents[1] / "src")
    command = [python, __file__, "--serve"]
    environment = {**os.environ, "PYTHONPATH": source, "BENCH_ROUNDS": str(ROUNDS)}
    found = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    least, samples = found["least"], found["samples"]
    for kind in ("bare", *KINDS):
        one, two = (least[f"{kind} {workers}"] for workers in WORKERS)
        harness.show(
            f"free threading {kind}",
            faster=harness.rounded(one[0] / two[0]),
            cpu=harness.rounded(two[1] / one[1]),
            consumer=harness.rounded(one[2] / one[1]),
            bound=harness.rounded(max(one[2], one[1] - one[2]) / max(two[2], two[1] / 2)),
            microseconds=[harness.rounded(each[0] / samples * 1e6) for each in (one, two)],
            locked=found["locked"],
            native=found["native"],
        )


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
