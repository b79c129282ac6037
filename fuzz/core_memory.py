"""What the native core leaves behind, and what it does without memory.

``core_memory.py leaks`` reads many archives in several rounds, and counts the blocks of memory that are left after
each, and the references, where Python was built with ``--with-pydebug``. ``core_memory.py allocations`` does so while
one allocation in each call of the core fails: the first, the second, and so on. A reading then gives all samples, or
some of them and an error, and never less without a word. ``--core`` tests another module than the installed one; the
exit status is 1 where something is wrong.
"""

import argparse
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cores
from support.archive_fuzz import Case, draw_cases, open_case, play
from webdataset.core.errors import WebDatasetError
from webdataset.samples import native_core
from webdataset.samples.sample_reader import Reading, read_samples

ROUNDS = 3
# blocks or references that a round may leave, where others leave none: caches grow
SLACK = 100
# readings in which no allocation failed: no call asks for so many
UNTOUCHED = 20


def read(case: Case) -> tuple[list[Any], str | None]:
    """Read the archive of a case with the core; return its samples, and what ended them, or None."""
    samples: list[Any] = []
    with warnings.catch_warnings(), open_case(case) as stream:
        warnings.simplefilter("ignore")
        try:
            samples.extend(read_samples([{"url": "s.tar", "stream": stream}], Reading(addresses=True)))
        except (WebDatasetError, MemoryError) as error:
            return samples, type(error).__name__
    return samples, None


class FailingTake:
    """Lets an allocation fail in each call of the core.

    Attributes:
        number: of the allocation; -1 for none.
        failed: readings that ended so.
    """

    def __init__(self) -> None:
        import _testcapi  # type: ignore[import-not-found]  # of CPython's own tests

        self.number = -1
        self.failed = 0
        take = native_core.NativeTaker.take
        fail, restore = _testcapi.set_nomemory, _testcapi.remove_mem_hooks

        def take_without(*arguments: object) -> object:
            if self.number < 0:
                return take(*arguments)  # type: ignore[arg-type]  # whatever they are
            fail(self.number, self.number + 1)
            try:
                return take(*arguments)  # type: ignore[arg-type]
            finally:
                restore()

        native_core.NativeTaker.take = take_without  # type: ignore[assignment]  # in this program alone

    def read(self, case: Case) -> int:
        """Read a case, each time without another allocation; return how many readings were wrong."""
        whole, wrong, untouched = read(case), 0, 0
        self.number = 0
        while untouched < UNTOUCHED:
            samples, ended = read(case)
            lacked = ended == "MemoryError"
            self.failed += lacked
            untouched = 0 if lacked else untouched + 1
            if samples != whole[0][: len(samples)] or (not lacked and (samples, ended) != whole):
                wrong += 1
                print(f"{case.seed}: without allocation {self.number}: {len(samples)} samples, {ended}", flush=True)
            self.number += 1
            if lacked and not self.failed % 8:
                # Python keeps 16 such errors; where more are alive it has one for all, which keeps all their frames
                gc.collect()
        self.number = -1
        return wrong


def count_rounds(action: Callable[[], int]) -> dict[str, Any]:
    """Do something several times; return what was left after each round but the first, and what was wrong.

    Args:
        action: returns a number of mistakes.
    """
    total: Callable[[], int] = getattr(sys, "gettotalrefcount", lambda: 0)
    blocks, references, mistakes = [], [], 0
    for _ in range(ROUNDS + 1):
        mistakes += action()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        references.append(total())
    left, kept = ([after - before for before, after in pairwise(counts[1:])] for counts in (blocks, references))
    # what leaks does so in each round
    leaks = min(left) > SLACK or min(kept) > SLACK
    found = {"wrong": mistakes, "blocks left": left, "leaks": leaks}
    return {**found, "references left": kept} if hasattr(sys, "gettotalrefcount") else found


def play_all(seed: str, cases: int) -> int:
    """Read many archives with the core."""
    for case in draw_cases(seed, range(max(1, cases // 40))):
        play(case, native=True)
    return 0


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["leaks", "allocations"])
    parser.add_argument("--cases", type=int, help="in each round; 4000, or 40 for allocations")
    parser.add_argument("--seed", default="0", help="name of the cases (default 0)")
    parser.add_argument("--core", help="path of a compiled module")
    parser.add_argument("--sanitize", action="store_true", help="compile the core anew, with sanitizers")
    options = parser.parse_args()
    if options.sanitize:
        return cores.sanitize(__file__)
    cores.use(options.core)
    cores.require()
    os.environ["WDS_NATIVE"] = "1"
    if options.what == "leaks":
        found = count_rounds(lambda: play_all(options.seed, options.cases or 4000))
    else:
        take = FailingTake()
        cases = list(draw_cases(options.seed, range(options.cases or 40), 1))
        found = count_rounds(lambda: sum(map(take.read, cases)))
        found["readings without memory"] = take.failed
    print(json.dumps({"what": options.what, **found}), flush=True)
    return int(bool(found["wrong"]) or found["leaks"])


if __name__ == "__main__":
    sys.exit(main())
