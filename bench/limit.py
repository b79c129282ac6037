"""What share of the machine's limit is reached, the limit being to read the same bytes into one reused buffer?

That limit stays in the processor's cache. A sample is bytes of its own, so each answer also gives the share of a second
limit: to read the same bytes into new ``bytes`` of the size of the large members.
"""

import sys
from typing import Any

from harness import SCALE, in_turns, libraries, rounded, show
from shards import workspace, write

MEMBER_BYTES = {"W1": 80_384, "W3": 5_000_192}


def measure(work: str) -> dict[str, object]:
    """Print and return the answer for one workload."""
    with workspace() as folder, libraries() as (ours, _):
        shards = write(work, folder, scale=SCALE)
        count = ours.ask("raw", shards=shards)["result"]
        jobs: list[dict[str, Any]] = [
            {"job": "readinto", "shards": shards},
            {"job": "reads", "shards": shards, "size": MEMBER_BYTES[work]},
            {"job": "raw", "shards": shards},
        ]
        bound, fresh, reading = in_turns(*((ours, job) for job in jobs))
        return show(
            f"limit {work}",
            limit_us=rounded(bound / count * 1e6),
            bytes_us=rounded(fresh / count * 1e6),
            ours_us=rounded(reading / count * 1e6),
            ratio=rounded(bound / reading),
            share_of_bytes=rounded(fresh / reading),
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("W1", "W3"):
        measure(name)
