"""What share of the machine's limit is reached, the limit being to read the same bytes into one reused buffer?"""

import sys

from harness import SCALE, in_turns, libraries, rounded, show
from shards import workspace, write


def measure(work: str) -> dict[str, object]:
    """Print and return the answer for one workload."""
    with workspace() as folder, libraries() as (ours, _):
        shards = write(work, folder, scale=SCALE)
        count = ours.ask("raw", shards=shards)["result"]
        bound, reading = in_turns(
            (ours, {"job": "readinto", "shards": shards}), (ours, {"job": "raw", "shards": shards})
        )
        return show(
            f"limit {work}",
            limit_us=rounded(bound / count * 1e6),
            ours_us=rounded(reading / count * 1e6),
            ratio=rounded(bound / reading),
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("W1", "W3"):
        measure(name)
