"""What CPU time does ``import webdataset`` take without torch, interpreter start included, against webdataset 1.0.2?

"with names" imports and then looks up ``webdataset.WebDataset``, which loads what reading needs; "and read" reads the
first sample of a local shard with it; "and write" writes one. torch is hidden from the interpreter, so that both
libraries do without it. Beside the times stand the numbers of modules that are loaded at the end.
"""

import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from harness import ORACLE, ROUNDS, rounded, show

HIDDEN = "import sys; sys.modules['torch'] = None; "
CODES = {
    "import": HIDDEN + "import webdataset",
    "import with names": HIDDEN + "import webdataset; webdataset.WebDataset",
    "import and read": HIDDEN + "import webdataset; next(iter(webdataset.WebDataset(sys.argv[1], shardshuffle=False)))",
    "import and write": HIDDEN
    + "import webdataset; sink = webdataset.TarWriter(sys.argv[1] + '.new')"
    + "; sink.write({'__key__': 'a', 'txt': 'b'}); sink.close()",
}
COUNT = "; print(len(sys.modules))"


def child_cpu(python: Path | str, code: str, path: Path) -> float:
    """Return the CPU seconds of one interpreter that runs some code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(python), "-W", "ignore", "-c", code, str(path)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def modules(python: Path | str, code: str, path: Path) -> int:
    """Return how many modules are loaded behind some code."""
    command = [str(python), "-W", "ignore", "-c", code + COUNT, str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure(question: str, path: Path) -> dict[str, object]:
    """Print and return the answer for one kind of import.

    Args:
        question: one of ``CODES``.
        path: a shard to be read.
    """
    code = CODES[question]
    candidates: list[tuple[str | Path, str]] = [(sys.executable, code), (ORACLE, code), (sys.executable, "pass")]
    seconds: list[list[float]] = [[] for _ in candidates]
    for turn in range(ROUNDS + 1):
        for taken, (python, each) in zip(seconds, candidates, strict=True):
            used = child_cpu(python, each, path)
            if turn:
                taken.append(used)
    fast, slow, empty = map(statistics.median, seconds)
    return show(
        question,
        ours_ms=rounded(fast * 1e3),
        theirs_ms=rounded(slow * 1e3),
        python_ms=rounded(empty * 1e3),
        ratio=rounded(slow / fast),
        ours_least_ms=rounded(min(seconds[0]) * 1e3),
        modules=modules(sys.executable, code, path),
        their_modules=modules(ORACLE, code, path),
    )


def write_shard(path: Path) -> None:
    """Write a shard of one sample."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "a.tar"
        write_shard(shard)
        for name in CODES:
            measure(name, shard)
