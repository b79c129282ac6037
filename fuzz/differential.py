"""Read random archives, whole and damaged, with the native core and without it: all that is seen must be equal.

``differential.py --cases 1000000`` plays so many cases, ``--seconds 60`` as many as it can; ``--seed`` names others.
Compared are samples with the order of their fields, offsets, errors (type, text, url, key, field, offset), what the
handler was asked, warnings, and the bytes that an observer was shown. Each case that differs is printed; its name plays
it again: ``--case SEED.NUMBER.NUMBER``. ``--sanitize`` compiles the core anew, under AddressSanitizer and
UndefinedBehaviorSanitizer (gcc), and tests that one. The last line sums up; the exit status is 1 where a case differs,
and 2 where a process died.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path

import cores

DAMAGED = 40
# archives that a process is given at once
BATCH = 25
SHOWN = 20


def begin(folder: str, core: str | None) -> None:
    """Prepare a process.

    Args:
        folder: where the process notes the case that it plays, so that one that kills it is known.
        core: path of the compiled module to test; None is the installed one.
    """
    cores.use(core)
    cores.require()
    Notes.descriptor = os.open(Path(folder, str(os.getpid())), os.O_CREAT | os.O_WRONLY, 0o600)


class Notes:
    """The file in which this process notes the case that it plays."""

    descriptor = -1

    @classmethod
    def write(cls, name: str) -> None:
        """Note the name of a case; nothing: none is played."""
        os.pwrite(cls.descriptor, f"{name:<60}".encode(), 0)


def play(seed: str, archives: range) -> tuple[int, int, list[tuple[str, str]]]:
    """Play the cases of some archives.

    Args:
        seed: of all cases.
        archives: their numbers.

    Returns:
        Number of cases, bytes of their archives, and name and difference of those that differ.
    """
    from support.archive_fuzz import draw_cases, find_difference

    cases = size = 0
    differing = []
    for case in draw_cases(seed, archives, DAMAGED):
        Notes.write(case.seed)
        difference = find_difference(case)
        cases, size = cases + 1, size + len(case.content)
        if difference is not None:
            differing.append((case.seed, difference))
    Notes.write("")
    return cases, size, differing


def play_one(name: str) -> str | None:
    """Play one case once more.

    Args:
        name: as it was printed.

    Returns:
        How the two ways differ, or None.
    """
    from support.archive_fuzz import draw_cases, find_difference

    seed, archive, number = name.rsplit(".", 2)
    cases = draw_cases(seed, range(int(archive), int(archive) + 1), DAMAGED)
    return find_difference(next(islice(cases, int(number), None)))


def batches(cases: int | None, seconds: float | None) -> Iterator[range]:
    """Yield numbers of archives, until there are enough cases or the time is over."""
    until = None if seconds is None else time.monotonic() + seconds
    for number in count():
        first = number * BATCH
        if (cases is not None and first * DAMAGED >= cases) or (until is not None and time.monotonic() >= until):
            return
        most = BATCH if cases is None else min(BATCH, -(-cases // DAMAGED) - first)
        yield range(first, first + most)


def run(options: argparse.Namespace, folder: str, core: str | None) -> int:
    """Play many cases in several processes; return the exit status."""
    began = time.monotonic()
    cases = size = 0
    differing: list[tuple[str, str]] = []
    work = batches(options.cases, options.seconds)
    died = False
    with ProcessPoolExecutor(
        options.processes, mp_context=get_context("spawn"), initializer=begin, initargs=(folder, core)
    ) as pool:
        running: set[Future[tuple[int, int, list[tuple[str, str]]]]] = set()
        try:
            while True:
                running |= {
                    pool.submit(play, options.seed, archives)
                    for archives in islice(work, options.processes - len(running))
                }
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    played, read, found = each.result()
                    cases, size = cases + played, size + read
                    for name, difference in found[: max(0, SHOWN - len(differing))]:
                        print(f"{name} differs:\n{difference}", flush=True)
                    differing += found
        except BrokenProcessPool:
            died = True
    if died:
        for path in sorted(Path(folder).iterdir()):
            name = path.read_text().strip()
            if name:
                print(f"a process died, perhaps of {name}", flush=True)
    summary = {"cases": cases, "differing": len(differing), "megabytes": size >> 20, "seed": options.seed}
    print(json.dumps({**summary, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 2 if died else int(bool(differing))


def parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, help="how many; without --seconds 20 000")
    parser.add_argument("--seconds", type=float, help="for how long")
    parser.add_argument("--seed", default="0", help="name of the cases (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each core")
    parser.add_argument("--sanitize", action="store_true", help="compile the core anew, with sanitizers")
    parser.add_argument("--core", help="path of a compiled module to test instead of the installed one")
    parser.add_argument("--case", help="play one case again")
    options = parser.parse_args()
    if options.cases is None and options.seconds is None:
        options.cases = 20_000
    return options


def main() -> int:
    """Run."""
    options = parse()
    if options.sanitize:
        return cores.sanitize(__file__)
    if options.case is not None:
        cores.use(options.core)
        cores.require()
        difference = play_one(options.case)
        print(difference or f"{options.case}: no difference")
        return int(difference is not None)
    with tempfile.TemporaryDirectory() as folder:
        return run(options, folder, options.core)


if __name__ == "__main__":
    sys.exit(main())
