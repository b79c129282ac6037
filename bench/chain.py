"""How fast are shuffled, decoded batches of 64 made from W2, against webdataset 1.0.2, with the native core or not?"""

from harness import SCALE, in_turns, libraries, rounded, show
from shards import workspace, write


def measure(*, native: bool = True) -> dict[str, object]:
    """Print and return the answer."""
    with workspace() as folder, libraries(native=native) as (ours, theirs):
        shards = write("W2", folder, scale=SCALE)
        job = {"job": "chain", "shards": shards}
        count = ours.ask("raw", shards=shards)["result"]
        fast, slow = in_turns((ours, job), (theirs, job))
        return show(
            "chain W2" if native else "chain W2 pure",
            ours_us=rounded(fast / count * 1e6),
            theirs_us=rounded(slow / count * 1e6),
            ratio=rounded(slow / fast),
        )


if __name__ == "__main__":
    measure()
    measure(native=False)
