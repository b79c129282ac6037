"""What do the bulk commands cost, against GNU tar and against the same done with webdataset 1.0.2 in Python?

Whole programs in turns; CPU is user and system time of the program and its children, so that starting it counts.
"""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import ORACLE, ROUNDS, SCALE, rounded, show
from shards import workspace, write

WDS = [sys.executable, "-m", "webdataset"]
COPY = """
import sys, webdataset as wds
sink = wds.ShardWriter(sys.argv[1], maxcount=int(sys.argv[2]), verbose=0)
for sample in wds.WebDataset(sys.argv[3:], shardshuffle=False, nodesplitter=wds.split_by_node):
    sink.write({name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")})
sink.close()
"""
COUNT = "import sys, webdataset as wds\nprint(sum(1 for _ in wds.WebDataset(sys.argv[1:], shardshuffle=False)))"


def run(command: list[str], *, status: int = 0) -> tuple[float, float]:
    """Return the CPU and the wall seconds of a program.

    Raises:
        RuntimeError: it ends with another status.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        said = child.communicate()[1]
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode != status:
        raise RuntimeError(f"{command[:4]} ended with {child.returncode}: {said.decode()[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def compare(name: str, size: int, candidates: dict[str, list[str]]) -> dict[str, object]:
    """Run programs in turns, after one warm-up of each; print and return their medians."""
    times: dict[str, list[tuple[float, float]]] = {each: [] for each in candidates}
    for turn in range(ROUNDS + 1):
        for each, command in candidates.items():
            measured = run(command)
            if turn:
                times[each].append(measured)
    answer: dict[str, object] = {}
    ours = 0.0
    for each, measured_times in times.items():
        cpu = statistics.median(seconds for seconds, _ in measured_times)
        wall = statistics.median(seconds for _, seconds in measured_times)
        ours = ours or cpu
        answer[f"{each}_cpu_s"] = rounded(cpu)
        answer[f"{each}_mb_s"] = rounded(size / wall / 1e6)
        if each != "wds":
            answer["ratio" if each == "upstream" else f"{each}_to_wds"] = rounded(cpu / ours)
    return show(name, **answer)


def measure(work: str) -> None:
    """Print the answers for one workload."""
    with workspace() as folder:
        shards = write(work, folder, scale=SCALE)
        size = sum(Path(path).stat().st_size for path in shards)
        out, many = str(folder / "out.tar"), str(folder / "out-%03d.tar")
        python = [str(ORACLE), "-c"]
        joined = f"tar -cf {out} -T /dev/null && tar --concatenate -f {out} {' '.join(shards)}"
        copied = [*python, COPY, many, "1000", *shards]
        compare(
            f"cat {work}",
            size,
            {"wds": [*WDS, "cat", "--force", "-o", out, *shards], "tar": ["sh", "-c", joined], "upstream": copied},
        )
        compare(
            f"reshard {work}",
            size,
            {"wds": [*WDS, "reshard", "--shards", "4", "--force", "-o", many, *shards], "upstream": copied},
        )
        compare(
            f"shuffle {work}",
            size,
            {"wds": [*WDS, "shuffle", "--seed", "1", "--force", "-o", out, *shards], "upstream": copied},
        )
        compare(
            f"check {work}",
            size,
            {
                "wds": [*WDS, "check", "--no-decode", *shards],
                "tar": ["sh", "-c", f"for file in {' '.join(shards)}; do cat $file | tar -tf -; done"],
                "upstream": [*python, COUNT, *shards],
            },
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("W2", "W1"):
        measure(name)
