"""What CPU time does ``import webdataset`` take without torch, interpreter start included, against webdataset 1.0.2?

"with names" imports and then looks up ``webdataset.WebDataset``, which loads what reading needs. torch is hidden from
the interpreter, so that both libraries do without it.
"""

import resource
import statistics
import subprocess
import sys
from pathlib import Path

from harness import ORACLE, ROUNDS, rounded, show

HIDDEN = "import sys; sys.modules['torch'] = None; "
CODES = {
    "import": HIDDEN + "import webdataset",
    "import with names": HIDDEN + "import webdataset; webdataset.WebDataset",
}


def child_cpu(python: Path | str, code: str) -> float:
    """Return the CPU seconds of one interpreter that runs some code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(python), "-W", "ignore", "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(question: str) -> dict[str, object]:
    """Print and return the answer for one kind of import."""
    candidates = [(sys.executable, CODES[question]), (ORACLE, CODES[question]), (sys.executable, "pass")]
    seconds: list[list[float]] = [[] for _ in candidates]
    for turn in range(ROUNDS + 1):
        for taken, (python, code) in zip(seconds, candidates, strict=True):
            used = child_cpu(python, code)
            if turn:
                taken.append(used)
    fast, slow, empty = map(statistics.median, seconds)
    return show(
        question,
        ours_ms=rounded(fast * 1e3),
        theirs_ms=rounded(slow * 1e3),
        python_ms=rounded(empty * 1e3),
        ratio=rounded(slow / fast),
    )


if __name__ == "__main__":
    for name in CODES:
        measure(name)
