"""What does one more map stage cost, against a bare generator that does the same?"""

from harness import in_turns, libraries, rounded, show

COUNT = 300_000
SHALLOW, DEEP = 1, 6


def measure() -> dict[str, object]:
    """Print and return the answer: the slope between pipelines of 1 and of 6 stages."""
    with libraries() as (ours, theirs):
        jobs = [
            (library, {"job": job, "count": COUNT, "depth": depth})
            for library, job in ((ours, "mapped"), (ours, "bare"), (theirs, "mapped"))
            for depth in (SHALLOW, DEEP)
        ]
        times = in_turns(*jobs)
        slopes = [(times[deep] - times[deep - 1]) / (DEEP - SHALLOW) / COUNT for deep in (1, 3, 5)]
        mine, bare, yours = slopes
        return show(
            "stage",
            ours_ns=rounded(mine * 1e9),
            bare_ns=rounded(bare * 1e9),
            theirs_ns=rounded(yours * 1e9),
            ratio=rounded(mine / bare),
        )


if __name__ == "__main__":
    measure()
