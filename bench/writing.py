"""How fast are samples of bytes written as one shard, against webdataset 1.0.2, and how large is it?"""

import sys

from harness import SCALE, in_turns, libraries, rounded, show
from shards import workspace, write


def measure(work: str) -> dict[str, object]:
    """Print and return the answer for one workload."""
    with workspace() as folder, libraries() as (ours, theirs):
        shards = write(work, folder, scale=SCALE)[:1]
        count = ours.ask("load", shards=shards)["result"]
        theirs.ask("load", shards=shards)
        paths = [str(folder / name) for name in ("ours.tar", "theirs.tar")]
        jobs = [{"job": "write", "path": path} for path in paths]
        bound = {"job": "limit", "path": str(folder / "limit.bin")}
        fast, slow, limit = in_turns((ours, jobs[0]), (theirs, jobs[1]), (ours, bound))
        sizes = [ours.ask("size", path=path)["result"] for path in paths]
        return show(
            f"write {work}",
            ours_us=rounded(fast / count * 1e6),
            theirs_us=rounded(slow / count * 1e6),
            ratio=rounded(slow / fast),
            share_of_limit=rounded(limit / fast),
            size=rounded(sizes[0] / sizes[1]),
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("W2", "W1"):
        measure(name)
