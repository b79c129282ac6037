"""Play thousands of random pipelines, each stopped and resumed many times, against runs that never stopped.

    python scripts/resume_fuzz.py --seed 17                           # one case, and a smaller one where it fails
    python scripts/resume_fuzz.py --cases 2000 --jobs 2 --log FILE    # all of them; again with the same FILE goes on

The log has one JSON line a case. What fails is printed: the pipeline's code, where it was stopped, on how many ranks
and workers it went on, what was lost and what came twice. The exit status is 1 where any case failed.
"""

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "properties"))

from resume_checks import judged, shrunk
from resume_pipelines import drawn
from resume_report import report

PATIENCE_SECONDS = 300
REFUSED_MOST = 0.15  # of the cases


class TooLong(Exception):
    """A case that does not end."""


def _stop(*_: object) -> None:
    raise TooLong(f"more than {PATIENCE_SECONDS} s of CPU time")


def played(seed: int, cuts: int, *, shrink: bool = False) -> tuple[dict[str, Any], str]:
    """Play one case; return its line for the log, and what to print about it.

    Args:
        seed: of the case.
        cuts: how many places it is stopped at.
        shrink: look for a smaller case where it fails.
    """
    begun = time.process_time()
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_SECONDS)  # of CPU time
    try:
        verdict = judged(drawn(seed), cuts)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    line = {
        "seed": seed,
        "outcome": verdict.outcome,
        "why": verdict.why,
        "items": verdict.items,
        "resumed": verdict.resumed,
        "cpu_s": round(time.process_time() - begun, 2),
    }
    text = report(verdict)
    if shrink and verdict.failed:
        smaller = shrunk(verdict)
        if smaller is not verdict:
            text += f"\n\nA smaller one:\n{report(smaller)}"
    return line, text


def known(path: Path | None) -> dict[int, dict[str, Any]]:
    """Return the lines of a log, by seed.

    Args:
        path: the log, or None.
    """
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {line["seed"]: line for line in lines}


def results(seeds: list[int], cuts: int, jobs: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Play cases in some processes; yield what becomes of them.

    Args:
        seeds: of the cases.
        cuts: how many places each is stopped at.
        jobs: number of processes.
    """
    if jobs == 1:
        yield from (played(seed, cuts) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=100) as pool:
        yield from pool.map(played, seeds, [cuts] * len(seeds))


def summary(lines: dict[int, dict[str, Any]]) -> str:
    """Return what became of all cases, in a few lines."""
    outcomes = Counter(line["outcome"] for line in lines.values())
    resumed = sum(line["resumed"] for line in lines.values())
    items = sum(line["items"] for line in lines.values())
    cpu = sum(line["cpu_s"] for line in lines.values())
    parts = [f"{len(lines)} cases, {items} items, {resumed} runs resumed, {cpu:.0f} s CPU: {dict(outcomes)}"]
    reasons = Counter(line["why"].partition(":")[0] for line in lines.values() if line["outcome"] == "refused")
    parts += [f"  refused {count} times: {reason}" for reason, count in reasons.most_common()]
    failed = [line["seed"] for line in lines.values() if line["outcome"] in {"differs", "broken"}]
    if failed:
        parts.append(f"  failed seeds: {sorted(failed)}")
    if outcomes["refused"] + outcomes["empty"] > REFUSED_MOST * len(lines):
        parts.append(
            f"  more than {REFUSED_MOST:.0%} of the cases were refused or empty: the generator draws what is not legal"
        )
    return "\n".join(parts)


def main() -> int:
    """Play what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="play this case only, and look for a smaller one where it fails")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=5, help="places at which each is stopped")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--log", type=Path, help="file of JSON lines; cases that are in it are not played again")
    given = parser.parse_args()
    if given.seed is not None:
        line, text = played(given.seed, given.cuts, shrink=True)
        print(text)
        return int(line["outcome"] in {"differs", "broken"})
    lines = known(given.log)
    seeds = [seed for seed in range(given.first, given.first + given.cases) if seed not in lines]
    for line, text in results(seeds, given.cuts, given.jobs):
        lines[line["seed"]] = line
        if given.log is not None:
            with given.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        if line["outcome"] in {"differs", "broken"}:
            print(text, "\n", flush=True)
        elif len(lines) % 100 == 0:
            print(summary(lines), flush=True)
    print(summary(lines))
    return int(any(line["outcome"] in {"differs", "broken"} for line in lines.values()))


if __name__ == "__main__":
    sys.exit(main())
