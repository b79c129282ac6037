"""Ask two libraries the same thing in turns, and compare the medians of their CPU times.

Each library lives in one process of its own that is warm when measured. A and B take turns within one run, so that
whatever else the machine does meets both.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ORACLE = Path(os.environ.get("WDS_ORACLE_102") or HERE.parent / ".oracles" / "1.0.2" / "bin" / "python")
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
SCALE = float(os.environ.get("BENCH_SCALE", "1"))


class Library:
    """A library in its own process.

    Args:
        python: the interpreter that has it.
        **settings: variables of its environment beside those of this process.
    """

    def __init__(self, python: Path | str, **settings: str) -> None:
        self.child = subprocess.Popen(
            [str(python), str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        )

    def ask(self, job: str, **parameters: Any) -> dict[str, Any]:
        """Run one job there and return its ``cpu`` and ``wall`` seconds and its ``result``.

        Raises:
            RuntimeError: the process ended instead; its own words are on stderr.
        """
        if self.child.stdin is None or self.child.stdout is None:
            raise RuntimeError("the worker has no pipes")
        self.child.stdin.write(json.dumps({"job": job, **parameters}) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended during {job} {parameters}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        if self.child.stdin is not None and self.child.stdout is not None:
            self.child.stdin.close()
            self.child.stdout.close()
        self.child.wait()


@contextmanager
def libraries(*, native: bool = True) -> Iterator[tuple[Library, Library]]:
    """Give (ours, webdataset 1.0.2); ours without its native core where ``native`` is False."""
    ours, theirs = Library(sys.executable, WDS_NATIVE="1" if native else "0"), Library(ORACLE)
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


def in_turns(*candidates: tuple[Library, dict[str, Any]], rounds: int = ROUNDS) -> list[float]:
    """Return the median CPU seconds of each candidate, measured A B A B after one warm-up of each.

    Args:
        *candidates: a library and the job it is asked.
        rounds: measurements of each.

    Raises:
        RuntimeError: two candidates that run the same job gave different counts.
    """
    results = {library.ask(**job)["result"] for library, job in candidates}
    if len({job["job"] for _, job in candidates}) == 1 and len(results) > 1:
        raise RuntimeError(f"the libraries disagree about {candidates[0][1]}: {results}")
    seconds: list[list[float]] = [[] for _ in candidates]
    for _ in range(rounds):
        for taken, (library, job) in zip(seconds, candidates, strict=True):
            taken.append(library.ask(**job)["cpu"])
    return [statistics.median(taken) for taken in seconds]


def show(question: str, **figures: Any) -> dict[str, Any]:
    """Print one JSON line and return it."""
    line = {"question": question, **figures}
    print(json.dumps(line), flush=True)
    return line


def rounded(number: float) -> float:
    """Return a number with three significant digits."""
    return float(f"{number:.3g}")
