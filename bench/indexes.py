"""What does an index of a million tiny samples cost: building it, opening it, ``len``, and a lookup by number?

Beside another version of this library where ``WDS_BEFORE`` names the folder of its sources (``git archive COMMIT
src``), in turns: ``ratio`` is ours to that. What is opened is the index file that is mapped.
"""

import os
import statistics
import sys
from pathlib import Path
from typing import Any

from harness import ROUNDS, SCALE, Library, rounded, show
from shards import workspace, write_tar

COUNT = 1_000_000
LOOKUPS = 20_000
BEFORE = os.environ.get("WDS_BEFORE")


def write_tiny(folder: Path, count: int) -> str:
    """Write one shard of samples with one small field; return its path."""
    path = folder / "tiny.tar"
    write_tar(path, ((f"{number:07d}", {"cls": b"%d" % (number % 1000)}) for number in range(count)))
    return str(path)


def ask_in_turns(candidates: dict[str, Library], rounds: int, **job: Any) -> dict[str, float]:
    """Return the median CPU seconds of one job for each library, in turns, after one warm-up of each."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, library in candidates.items():
            answer = library.ask(**job)
            if number:
                taken[name].append(answer["cpu"])
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def figures(unit: str, factor: float, seconds: dict[str, float]) -> dict[str, float]:
    """Return the figures of a question: ours, and as a share of the version before."""
    found = {f"ours_{unit}": rounded(seconds["ours"] * factor)}
    if "before" in seconds:
        found |= {f"before_{unit}": rounded(seconds["before"] * factor)}
        found["ratio"] = rounded(seconds["ours"] / seconds["before"])
    return found


def measure() -> None:
    """Print the answers."""
    count, rounds = int(COUNT * SCALE), max(1, min(3, ROUNDS))
    with workspace() as folder:
        path = write_tiny(folder, count)
        libraries = {"ours": Library(sys.executable)}
        if BEFORE:
            libraries["before"] = Library(sys.executable, PYTHONPATH=BEFORE)
        try:
            built = ask_in_turns(libraries, rounds, job="index_build", path=path)
            show("index build", samples=count, **figures("us_a_sample", 1e6 / count, built))
            looked = ask_in_turns(libraries, rounds, job="index_lookups", path=path, count=count, lookups=LOOKUPS)
            show("index lookup", samples=count, **figures("us", 1e6 / LOOKUPS, looked))
            # the file is ours alone
            libraries["ours"].ask(job="index_write", path=path)
            alone = {"ours": libraries["ours"]}
            opened = ask_in_turns(alone, rounds, job="index_open", path=path)
            show("index open", samples=count, **figures("ms", 1e3, opened))
            first = ask_in_turns(alone, rounds, job="index_open", path=path, sample=count // 2)
            show("index open and one sample", samples=count, **figures("ms", 1e3, first))
            measured = ask_in_turns(alone, rounds, job="index_len", path=path)
            show("index len", samples=count, **figures("ms", 1e3, measured))
        finally:
            for library in libraries.values():
                library.close()


if __name__ == "__main__":
    measure()
