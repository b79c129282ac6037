"""How fast are undecoded samples read, against webdataset 1.0.2? ``W2 pure`` is W2 without the native core."""

import sys
from pathlib import Path
from typing import Any

from harness import SCALE, Library, in_turns, libraries, rounded, show
from shards import workspace, write


def pax_shards(theirs: Library, folder: Path) -> list[str]:
    """Let webdataset 1.0.2 write W2, with its PAX header per member, as most shards in the world are."""
    path = str(folder / "W2p-0000.tar")
    theirs.ask("load", shards=write("W2", folder, scale=SCALE)[:1])
    theirs.ask("write", path=path)
    return [path]


def measure(work: str) -> dict[str, object]:
    """Print and return the answer for one workload."""
    with workspace() as folder, libraries(native="pure" not in work) as (ours, theirs):
        shards = pax_shards(theirs, folder) if work == "W2p" else write(work.split(maxsplit=1)[0], folder, scale=SCALE)
        job: dict[str, Any] = {"job": "raw", "shards": shards}
        count = ours.ask(**job)["result"]
        fast, slow = in_turns((ours, job), (theirs, job))
        return show(
            f"raw {work}",
            ours_us=rounded(fast / count * 1e6),
            theirs_us=rounded(slow / count * 1e6),
            ratio=rounded(slow / fast),
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("W1", "W2", "W2 pure", "W2p", "W3", "W4"):
        measure(name)
