"""What does a loader cost beside its dataset, and what of it does the consumer pay?

``loader cost W2``: what ``Loader(dataset, 64)`` adds to ``dataset.batched(64)`` a sample, for undecoded samples
(``raw``), decoded ones (``dict``) and tuples of two decoded fields (``tuple``), with no workers, two threads and two
processes; where ``WDS_BEFORE`` names the sources of an earlier version (``git archive 0582e76 src | tar x -C DIR``,
then ``WDS_BEFORE=DIR/src``), both in turns, and ``ratio`` is ours to that. ``loader consumer``: the CPU time of the
consumer's process alone, a batch of 64 undecoded samples from two processes, divided by that of torch's DataLoader,
with two workers that make the batches (``batched(64)``, ``batch_size=None``) or collate for it (``batch_size=64``).
``loader bytes``: undecoded payloads of 80 KB through two processes, divided by reading the same payloads with
``os.pread`` at known offsets; ``plain`` is iterating over the dataset, and ``mapped`` the same with
``memory_map=True``, of which nothing is read until it is used.

CPU time is that of all processes, but for the consumer's. Workers stay from epoch to epoch; minima of rounds, since
other programs only add.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import ROUNDS, SCALE, rounded, show
from shards import workspace, write

KINDS = ("raw", "dict", "tuple")
WAYS = {"none": (0, "threads"), "threads": (2, "threads"), "processes": (2, "processes")}
Ask = dict[str, Any]


def cpu_seconds(*, everyone: bool = True) -> float:
    """Return the CPU seconds of this process, and of its living children."""
    total = time.process_time()
    for child in multiprocessing.active_children() if everyone else ():
        # the clock of another process, as clock_getcpuclockid(3) names it
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~(child.pid or 0) << 3) | 2)
    return total


class Candidates:
    """What can be measured in one process; each keeps its workers."""

    def __init__(self) -> None:
        self.made: dict[str, Iterable[object]] = {}
        self.places: list[tuple[str, list[tuple[int, int]]]] = []

    def dataset(self, urls: list[str], kind: str) -> Any:
        """Return samples of one kind."""
        import webdataset as wds

        if kind.startswith("jpg"):
            # an earlier version does not know the word
            how: dict[str, Any] = {"memory_map": True} if kind == "jpg mapped" else {}
            return wds.WebDataset(urls, shardshuffle=False, **how).to_tuple("jpg")
        dataset = wds.WebDataset(urls, shardshuffle=False)
        if kind != "raw":
            dataset = dataset.decode()
        return dataset.to_tuple("cls", "json") if kind == "tuple" else dataset

    def make(self, urls: list[str], kind: str, way: str, size: int) -> Iterable[object]:
        """Return what is to be iterated."""
        import webdataset as wds

        dataset = self.dataset(urls, kind)
        if way == "plain":
            return dataset  # type: ignore[no-any-return]
        if way == "batched":
            return dataset.batched(size)  # type: ignore[no-any-return]
        if way.startswith("torch"):
            from torch.utils.data import DataLoader

            options: Any = {"num_workers": 2, "persistent_workers": True}
            if way == "torch":
                return DataLoader(dataset.batched(size), batch_size=None, **options)
            return DataLoader(dataset, batch_size=size, **options)
        workers, mode = WAYS[way]
        return wds.Loader(dataset, size, workers=workers, mode=mode)

    def read(self, urls: list[str]) -> int:
        """Read payloads at known offsets."""
        if not self.places:
            for url in urls:
                with tarfile.open(url) as shard:
                    self.places.append((url, [(m.size, m.offset_data) for m in shard if m.name.endswith("jpg")]))
        count = 0
        for url, members in self.places:
            descriptor = os.open(url, os.O_RDONLY)
            for size, offset in members:
                count += len(os.pread(descriptor, size, offset)) > 0
            os.close(descriptor)
        return count

    def run(self, urls: list[str], kind: str, way: str, size: int) -> int:
        """Run one epoch; return the number of items."""
        if way == "read":
            return self.read(urls)
        name = f"{kind} {way}"
        if name not in self.made:
            self.made[name] = self.make(urls, kind, way, size)
        return sum(1 for _ in self.made[name])


def serve() -> None:
    """Answer jobs."""
    candidates = Candidates()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        gc.collect()
        before, own = cpu_seconds(), cpu_seconds(everyone=False)
        count = candidates.run(**job)
        answer = {"cpu": cpu_seconds() - before, "own": cpu_seconds(everyone=False) - own, "count": count}
        replies.write(json.dumps(answer) + "\n")


class Served:
    """A version of the library in its own process.

    Args:
        source: folder of its sources; None for this version.
    """

    def __init__(self, source: str | None = None) -> None:
        here = str(Path(__file__).resolve().parent.parent / "src")
        self.child = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source or here},
        )

    def ask(self, **job: Any) -> dict[str, Any]:
        """Run one epoch there."""
        if self.child.stdin is None or self.child.stdout is None:
            raise RuntimeError("the worker has no pipes")
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        answer: dict[str, Any] = json.loads(self.child.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self.child.communicate()


def least(jobs: dict[str, tuple[Served, Ask]], clock: str, by: Callable[[dict[str, Any]], float]) -> dict[str, float]:
    """Return the least microseconds of each job for each of what is counted, measured in turns after a warm-up."""
    for served, job in jobs.values():
        served.ask(**job)
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, (served, job) in jobs.items():
            answer = served.ask(**job)
            found[name].append(answer[clock] / by(answer) * 1e6)
    return {name: min(each) for name, each in found.items()}


def ask_cost(ours: Served, was: Served | None, urls: list[str], count: int) -> None:
    """Say what a loader adds to batching."""
    versions = {"now": ours} | ({} if was is None else {"was": was})
    for kind in KINDS:
        jobs = {
            f"{version} {way}": (served, {"urls": urls, "kind": kind, "way": way, "size": 64})
            for way in ("batched", *WAYS)
            for version, served in versions.items()
        }
        found = least(jobs, "cpu", lambda _: count)
        adds = {
            version: {way: round(found[f"{version} {way}"] - found[f"{version} batched"], 2) for way in WAYS}
            for version in versions
        }
        ratios = {f"ratio_{way}": rounded(adds["now"][way] / adds["was"][way]) for way in WAYS} if was else {}
        load = round(os.getloadavg()[0], 1)
        show(f"loader cost W2 {kind}", adds_us=adds["now"], before_us=adds.get("was"), **ratios, load=load)


def ask_consumer(ours: Served, urls: list[str]) -> None:
    """Compare the consumer's CPU time with that of torch's loader."""
    ways = ("processes", "torch", "torch collating")
    jobs = {way: (ours, {"urls": urls, "kind": "raw", "way": way, "size": 64}) for way in ways}
    found = least(jobs, "own", lambda answer: answer["count"])
    show(
        "loader consumer",
        batch_us={way: round(each, 1) for way, each in found.items()},
        ratio=rounded(found["processes"] / found["torch"]),
        to_collating=rounded(found["processes"] / found["torch collating"]),
        load=round(os.getloadavg()[0], 1),
    )


def ask_bytes(ours: Served, was: Served | None, urls: list[str], count: int) -> None:
    """Compare payloads through processes with reading them."""
    jobs = {
        way: (ours, {"urls": urls, "kind": "jpg", "way": way, "size": 32}) for way in ("read", "plain", "processes")
    }
    for way in ("plain", "processes"):
        jobs[f"{way} mapped"] = ours, {"urls": urls, "kind": "jpg mapped", "way": way, "size": 32}
    if was is not None:
        jobs["was"] = was, {"urls": urls, "kind": "jpg", "way": "processes", "size": 32}
    found = least(jobs, "cpu", lambda _: count)
    show(
        "loader bytes",
        sample_us={way: round(each, 1) for way, each in found.items()},
        ratio=rounded(found["processes"] / found["read"]),
        to_plain=rounded(found["processes"] / found["plain"]),
        ratio_mapped=rounded(found["processes mapped"] / found["read"]),
        plain_mapped=rounded(found["plain mapped"] / found["read"]),
        load=round(os.getloadavg()[0], 1),
    )


def measure() -> None:
    """Ask all three."""
    ours = Served()
    was = Served(os.environ["WDS_BEFORE"]) if "WDS_BEFORE" in os.environ else None
    with workspace() as folder:
        small, large = write("W2", folder, scale=SCALE), write("W1", folder, scale=SCALE)
        ask_cost(ours, was, small, ours.ask(urls=small, kind="raw", way="plain", size=0)["count"])
        ask_consumer(ours, small)
        ask_bytes(ours, was, large, ours.ask(urls=large, kind="jpg", way="plain", size=0)["count"])
        for served in (ours, was):
            if served is not None:
                served.close()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else measure()
