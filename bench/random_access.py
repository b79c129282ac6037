"""How fast are samples read by number, in order and at random?

Against reading the same stretches of the same files with ``pread``, and against the ``wids`` of webdataset 0.2.111
where ``WDS_ORACLE_111`` names a Python that has it. That one copies out of mapped memory, and so ends the process where
a file is cut meanwhile; ours reads.
"""

import os
import sys
from typing import Any

from harness import SCALE, Library, in_turns, rounded, show
from shards import workspace, write

ORACLE = os.environ.get("WDS_ORACLE_111")


def measure(work: str, order: str) -> dict[str, object]:
    """Print and return the answer for one workload in one order."""
    with workspace() as folder:
        os.environ["WIDS_CACHE"] = str(folder / "cache")
        ours = Library(sys.executable)
        theirs = Library(ORACLE) if ORACLE else None
        try:
            paths = write(work, folder, scale=SCALE if work == "W2" else SCALE / 4)
            counted = [{"url": path, "nsamples": ours.ask("raw", shards=[path])["result"]} for path in paths]
            job: dict[str, Any] = {"job": "indexed", "shards": counted, "order": order}
            reading: dict[str, Any] = {"job": "stretches", "shards": counted, "order": order}
            candidates = [(ours, job), (ours, reading), *([(theirs, job)] if theirs else [])]
            count = ours.ask(**job)["result"]
            fast, bound, *slow = in_turns(*candidates)
        finally:
            for library in (ours, theirs):
                if library is not None:
                    library.close()
    figures = {"ours_us": rounded(fast / count * 1e6), "reads_us": rounded(bound / count * 1e6)}
    figures["share_of_reads"] = rounded(bound / fast)
    if slow:
        figures |= {"theirs_us": rounded(slow[0] / count * 1e6), "ratio": rounded(slow[0] / fast)}
    return show(f"access {work} {order}", **figures)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("W2", "W1"):
        for way in ("in order", "random"):
            measure(name, way)
