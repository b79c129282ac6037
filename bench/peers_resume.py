"""What does each library lose, give twice or refuse when a training is killed and goes on, and what does that read?

The same 1 200 samples of 10 KB for all: 12 unequal tar shards, which some convert into a format of their own first. A
run is killed after a batch (as ``kill -9`` does) and goes on in a new process from the state it wrote, with as many
workers or others, on as many ranks or others; where ranks change, the global batch stays 24. Our library runs in this
interpreter, the others in those that these variables name; who is not named is left out, and the first line says so:
``WDS_PEER_TORCHDATA`` (webdataset 1.0.2, torchdata), ``WDS_PEER_LITDATA``, ``WDS_PEER_MOSAIC``.

Prints one JSON line a library and case, then a table. ``peers_resume.py ours litdata`` asks these alone.
``bytes_read`` is what was read of the shards (or of what they were converted to) when the first batch had come and the
workers had read ahead as far as they do: as strace counts it, with the touched pages of files that are mapped. Without
strace it is null.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from harness import HERE, rounded, show
from peers_table import EARLY, LATE, STEP, table
from shards import workspace, write_tar

SIZES = (40, 160, 75, 125, 100, 100, 55, 145, 90, 110, 130, 70)  # samples of each shard
COUNT = sum(SIZES)
PAYLOAD = 10_000
BUFFER = 200
BATCH, GLOBAL_BATCH = 8, 24
DEADLINE_SECONDS = float(os.environ.get("BENCH_DEADLINE", "60"))


class Peer(NamedTuple):
    """A library.

    Args:
        title: what the table calls it.
        module: its part of ``peers/``.
        python: the interpreter that has it; None if nobody said.
        packages: the distributions whose versions are told.
        converts: True if it reads a format of its own.
        variant: which way of using it.
    """

    title: str
    module: str
    python: str | None
    packages: tuple[str, ...]
    converts: bool = False
    variant: str = ""


class World(NamedTuple):
    """One run of one or several ranks.

    Args:
        batches: keys, by rank and batch.
        first: the line of rank 0's first batch.
        trouble: the error it ended with, or that it hung; None if it came to its end or its stop.
        states: where the states of the ranks are.
    """

    batches: list[list[list[str]]]
    first: dict[str, Any]
    trouble: str | None
    states: list[str]

    @property
    def keys(self) -> list[str]:
        """Return all keys."""
        return [key for rank in self.batches for batch in rank for key in batch]

    def steps(self) -> list[list[str]]:
        """Return the global batches, each sorted."""
        longest = max(map(len, self.batches))
        return [
            sorted(key for rank in self.batches for key in (rank[step : step + 1] or [[]])[0])
            for step in range(longest)
        ]


def peers() -> dict[str, Peer]:
    """Return the libraries by the name they are asked for with."""
    torchdata = os.environ.get("WDS_PEER_TORCHDATA")
    tars = ("webdataset", "torchdata", "torch")
    return {
        "ours": Peer("this library", "with_ours", sys.executable, ("webdataset", "torch")),
        "torchdata": Peer("webdataset 1.0.2 `detshuffle`, StatefulDataLoader", "with_torchdata", torchdata, tars),
        "plain": Peer(
            "webdataset 1.0.2 `shuffle`, StatefulDataLoader", "with_torchdata", torchdata, tars, variant="plain"
        ),
        "litdata": Peer(
            "litdata", "with_litdata", os.environ.get("WDS_PEER_LITDATA"), ("litdata", "torch"), converts=True
        ),
        "mosaic": Peer(
            "MosaicML Streaming",
            "with_mosaic",
            os.environ.get("WDS_PEER_MOSAIC"),
            ("mosaicml-streaming", "torch"),
            converts=True,
        ),
    }


def write_shards(folder: Path) -> list[str]:
    """Write the shards and return their paths."""
    folder.mkdir()
    draws = random.Random(1)
    paths, index = [], 0
    for number, size in enumerate(SIZES):
        path = folder / f"shard-{number:02d}.tar"
        part = [(f"{key:05d}", {"bin": draws.randbytes(PAYLOAD)}) for key in range(index, index + size)]
        write_tar(path, part)
        paths.append(str(path))
        index += size
    return paths


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def traced_bytes(trace: Path, folder: str) -> int:
    """Return the bytes that were read of files in a folder, as strace has noted them."""
    total, waiting = 0, set()
    for line in trace.read_text(errors="replace").splitlines():
        process = line.partition(" ")[0]
        if " resumed>" in line:
            known = process in waiting
            waiting.discard(process)
        else:
            path = re.search(r"\(\d+<([^>]*)>", line)
            known = path is not None and path[1].startswith(folder)
            if known and line.endswith("<unfinished ...>"):
                waiting.add(process)
        count = re.search(r"= (\d+)$", line) if known else None
        total += int(count[1]) if count else 0
    return total


def sweep(folder: Path) -> None:
    """Remove what killed runs of MosaicML Streaming over a folder have left in shared memory."""
    for path in Path("/dev/shm").glob("[0-9]*_locals"):
        if str(folder).encode() in path.read_bytes():
            for left in path.parent.glob(path.name.removesuffix("locals") + "*"):
                left.unlink(missing_ok=True)


class Bench:
    """One library and its folder.

    Args:
        peer: the library.
        shards: the tar shards.
        folder: where it may write.
    """

    def __init__(self, peer: Peer, shards: list[str], folder: Path) -> None:
        self.peer, self.shards, self.folder = peer, shards, folder
        self.home, self.own = folder / "home", folder / "own"
        self.home.mkdir(parents=True)
        self.runs = 0

    def child(self, job, rank=0, ranks=1, port=0, trace: Path | None = None) -> subprocess.Popen[Any]:
        """Start one process, in a session of its own so that its workers end with it."""
        environment = {**os.environ, "HOME": str(self.home), "TMPDIR": str(self.home), "PYTHONWARNINGS": "ignore"}
        if ranks > 1:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
            environment |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        job = {**job, "library": self.peer.module, "variant": self.peer.variant, "shards": self.shards}
        job |= {"folder": str(self.own), "rank": rank, "ranks": ranks, "buffer": BUFFER}
        job |= {"workspace": str(self.folder.parent), "traced": trace is not None}
        command = [str(self.peer.python), str(HERE / "peers" / "child.py"), json.dumps(job)]
        if trace is not None:
            words = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "0", "-o", str(trace)]
            command = [*words, "-e", "trace=read,pread64,readv,preadv", *command]
        with open(self.folder / "errors", "a") as errors:
            return subprocess.Popen(
                command, env=environment, cwd=self.home, stdout=errors, stderr=errors, start_new_session=True
            )

    def alone(self, do: str) -> None:
        """Do one thing in a process of its own.

        Raises:
            RuntimeError: it failed.
        """
        child = self.child({"do": do})
        if self.ended([child]) or child.returncode:
            raise RuntimeError(f"{self.peer.title}: {do} failed\n{(self.folder / 'errors').read_text()[-2000:]}")

    def ended(self, children: list[subprocess.Popen[Any]]) -> bool:
        """Wait until all have ended, end them all if one failed or time is up; True if time was up."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while any(child.poll() is None for child in children) and time.monotonic() < deadline:
            if any(child.poll() not in (None, 0, -signal.SIGKILL) for child in children):
                time.sleep(2)  # the others may have something to say too
                break
            time.sleep(0.05)
        late = any(child.poll() is None for child in children) and time.monotonic() >= deadline
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the workers too, whose parent is gone
            child.wait()
        return late

    def world(self, *, ranks=1, workers=2, batch=BATCH, stop=None, states=(), trace=None) -> World:
        """Run so many ranks to their end or to a stop, from the beginning or from states."""
        self.runs += 1
        outs = [self.folder / f"{self.runs}-{rank}.jsonl" for rank in range(ranks)]
        saved = [str(self.folder / f"{self.runs}-{rank}.state") for rank in range(ranks)]
        port = free_port()
        children = []
        for rank in range(ranks):
            job = {"do": "run", "workers": workers, "batch": batch, "stop": stop, "states": list(states)}
            job |= {"out": str(outs[rank]), "save": saved[rank]}
            children.append(self.child(job, rank, ranks, port, trace))
        late = self.ended(children)
        lines = [[json.loads(line) for line in out.read_text().splitlines()] if out.exists() else [] for out in outs]
        told = [line["refused"] for each in lines for line in each if "refused" in line]
        ended = all(len(each) == stop or (each and "end" in each[-1]) for each in lines)
        trouble = told[0] if told else "hangs" if late else None if ended else "dies"
        batches = [[line["keys"] for line in each if "keys" in line] for each in lines]
        sweep(self.own)
        return World(batches, next((line for line in lines[0] if "keys" in line), {}), trouble, saved)

    def bytes_read(self, states=()) -> int | None:
        """Return the bytes read up to the first batch; None without strace or without a batch."""
        if shutil.which("strace") is None:
            return None
        trace = self.folder / "trace"
        run = self.world(stop=1, states=states, trace=trace)
        if "bytes_mapped" not in run.first:
            return None
        source = self.own if self.peer.converts else Path(self.shards[0]).parent
        return int(run.first["bytes_mapped"]) + traced_bytes(trace, f"{source}/")


def state_size(path: str) -> dict[str, Any]:
    """Return the bytes of a state, and what it is written as."""
    for kind in ("json", "pickle"):
        with contextlib.suppress(FileNotFoundError):
            return {"state_bytes": Path(f"{path}.{kind}").stat().st_size, "written_as": kind}
    return {"state_bytes": None, "written_as": None}


def unstopped(whole: World) -> dict[str, Any]:
    """Return what a run that was not stopped lost or gave twice."""
    counts = Counter(whole.keys)
    return {"lost": COUNT - len(counts), "twice": counts.total() - len(counts), "refused": whole.trouble}


def judged(whole: World, stopped: World, again: World) -> dict[str, Any]:
    """Compare a run that was killed and went on with one that was not."""
    if stopped.trouble or again.trouble:
        return {"refused": stopped.trouble or again.trouble}
    counts = Counter(stopped.keys + again.keys)
    steps, after = whole.steps(), stopped.steps() + again.steps()
    same = len(whole.batches) == len(again.batches)
    return {
        "lost": COUNT - len(counts),
        "twice": counts.total() - len(counts),
        "same_sequence": same and [a + b for a, b in zip(stopped.batches, again.batches, strict=True)] == whole.batches,
        "same_global_batches": sum(a == b for a, b in zip(steps, after, strict=False)),
        "global_batches": len(steps),
    }


def seconds(world: World) -> dict[str, Any]:
    """Return what the first batch took."""
    return {"seconds": rounded(world.first["seconds"]) if world.first else None}


def one_rank(bench: Bench, say) -> None:
    """Ask about one rank."""
    whole = bench.world()
    say("not stopped", **unstopped(whole), **seconds(whole), bytes_read=bench.bytes_read())
    for title, stop, numbers in (("2 workers", EARLY, (2, 3, 1)), ("2 workers, late", LATE, (2,))):
        stopped = bench.world(stop=stop)
        say(f"state after batch {stop}", **state_size(stopped.states[0]), refused=stopped.trouble)
        for workers in numbers:
            again = bench.world(workers=workers, states=stopped.states)
            figures = {**judged(whole, stopped, again), **seconds(again)}
            if workers == 2:
                figures["bytes_read"] = bench.bytes_read(stopped.states)
            say(title if workers == 2 else f"2 to {workers} workers", **figures)


def several_ranks(bench: Bench, say) -> None:
    """Ask about two ranks that become two, one and three."""
    batch = GLOBAL_BATCH // 2
    whole = bench.world(ranks=2, batch=batch)
    say("2 ranks, not stopped", **unstopped(whole))
    stopped = bench.world(ranks=2, batch=batch, stop=STEP)
    for ranks in (2, 1, 3):
        again = bench.world(ranks=ranks, batch=GLOBAL_BATCH // ranks, states=stopped.states)
        say(f"2 to {ranks} ranks", **judged(whole, stopped, again))
    for ranks in (1, 3):
        again = bench.world(ranks=ranks, batch=batch, states=stopped.states)
        found = judged(whole, stopped, again)  # with another global batch, there is no order to keep
        say(
            f"2 to {ranks} ranks, same batch",
            **{key: found[key] for key in ("lost", "twice", "refused") if key in found},
        )


def versions(peer: Peer) -> dict[str, str]:
    """Ask an interpreter for the versions of its packages."""
    program = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    words = [str(peer.python), "-c", program, *peer.packages]
    found: dict[str, str] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def asked(name: str, peer: Peer, shards: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Ask one library everything; print and return its answers by case."""
    answers: dict[str, dict[str, Any]] = {}

    def say(case: str, **figures: Any) -> None:
        answers[case] = show("peers_resume", library=name, case=case, **figures)

    bench = Bench(peer, shards, folder)
    say("versions", **versions(peer))
    if peer.converts:
        bench.alone("prepare")
        files = [path.stat().st_size for path in bench.own.rglob("*") if path.is_file()]
        say("prepare", bytes_written=sum(files))
    one_rank(bench, say)
    several_ranks(bench, say)
    return answers


def measure(names: list[str]) -> None:
    """Ask the libraries and print their answers and the table."""
    known = peers()
    chosen = {name: known[name] for name in names or known}
    missing = [name for name, peer in chosen.items() if not peer.python]
    show("peers_resume", left_out=missing)
    everyone = {}
    with workspace() as folder:
        shards = write_shards(folder / "shards")
        for name, peer in chosen.items():
            if peer.python:
                everyone[name] = asked(name, peer, shards, folder / name)
    print(table(everyone, {name: peer.title for name, peer in chosen.items()}))


if __name__ == "__main__":
    measure(sys.argv[1:])
