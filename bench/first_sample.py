"""How long until the first sample of W2 is there, against webdataset 1.0.2 (warm process, one shard)?"""

from harness import SCALE, in_turns, libraries, rounded, show
from shards import workspace, write


def measure() -> dict[str, object]:
    """Print and return the answer."""
    with workspace() as folder, libraries() as (ours, theirs):
        job = {"job": "first", "shards": write("W2", folder, scale=SCALE)[:1]}
        fast, slow = in_turns((ours, job), (theirs, job), rounds=31)
        return show(
            "first sample W2",
            ours_us=rounded(fast * 1e6),
            theirs_us=rounded(slow * 1e6),
            ratio=rounded(slow / fast),
        )


if __name__ == "__main__":
    measure()
