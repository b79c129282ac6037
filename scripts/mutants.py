"""Change the library in small ways, one at a time, and count the changes that no test notices.

    python scripts/mutants.py --map MAP --tests tests/unit tests/properties           # once: what each test covers
    python scripts/mutants.py --map MAP --results FILE.jsonl --count 300 --seed 7 src/webdataset/tar src/webdataset/flow

Tests are recorded folder by folder (a file given by name alone), so that a run that was cut off goes on where it was;
what has not changed is not recorded again. Mutants are chosen by the seed, the same number of each root, and run in a
private copy of the repository: first the fastest of the tests that cover the line, then the others that fit into the
time. A mutant whose result the file holds is not run again. A root may be a file, or a file and a line (``a.py:17``).

killed: a test failed, which passes without the mutant. timed out: the tests did not end, which end in half of the time
without it; that counts as killed. survived: all tests passed. uncovered: no test is known to run the line, and those of
its file passed (a process that ends hard, as a worker may, leaves no record). doubtful: the tests fail or are slow
without the mutant. Needs the dependency group ``mutants``.
"""

import argparse
import ast
import contextlib
import gzip
import hashlib
import importlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutants_copy import Copy
from mutants_making import Mutant, sampled

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDING_SECONDS = 7200
FIRST_SECONDS = 4.0  # of recorded time, for the tests that are tried first
FIRST_TESTS = 60
START_SECONDS = 15.0
COVERAGE = """
[run]
parallel = true
data_file = {folder}/data
source = {sources}
context = ${{MUTANTS_TEST-}}
concurrency = thread,multiprocessing
disable_warnings = no-data-collected,module-not-imported,module-not-measured,couldnt-parse,module-not-python
"""


def digest_of(paths: Iterable[Path]) -> str:
    """Return a digest of files' bytes."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def pieces_of(root: Path, tests: Iterable[str]) -> dict[str, list[Path]]:
    """Return what is recorded at once: the test files of one folder, or a file that was named."""
    found: dict[str, list[Path]] = {}
    for name in tests:
        place = root / name
        files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        for path in files:
            key = path if place.is_file() else path.parent
            found.setdefault(key.relative_to(root).as_posix(), []).append(path)
    return found


def record(copy: Copy, folder: Path, tests: Iterable[str]) -> None:
    """Record which lines each test covers.

    Args:
        copy: where the tests run.
        folder: what was recorded, one file a piece.
        tests: folders and files.
    """
    for piece, files in pieces_of(copy.root, tests).items():
        recorded = folder / (piece.replace("/", "-") + ".json.gz")
        # of the copy: a test that is edited while it is recorded is another one
        digest = digest_of(copy.tree / path.relative_to(copy.root) for path in files)
        if recorded.exists() and json.loads(gzip.decompress(recorded.read_bytes()))["digest"] == digest:
            continue
        begun = time.monotonic()
        work = copy.place / "recording"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        sources = ",".join(str(copy.tree / name) for name in copy.packages)
        (work / "coverage.ini").write_text(COVERAGE.format(folder=work, sources=sources))
        names = [str(path.relative_to(copy.root)) for path in files]
        measured = {"MUTANTS_RECORD": str(work), "COVERAGE_PROCESS_START": str(work / "coverage.ini")}
        status = copy.pytest(["-o", "addopts=--import-mode=importlib", *names], RECORDING_SECONDS, **measured)
        found = {"digest": digest, **measurements(copy, work)}
        if not found["tests"]:
            print(f"{piece}: nothing recorded, exit status {status}", flush=True)
            print((copy.place / "output.txt").read_text(errors="replace")[-3000:], flush=True)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        waiting = recorded.with_suffix(".part")
        waiting.write_bytes(gzip.compress(json.dumps(found).encode(), 1))
        waiting.replace(recorded)
        print(f"{piece}: {len(found['tests'])} tests in {time.monotonic() - begun:.0f} s, status {status}", flush=True)


def measurements(copy: Copy, work: Path) -> dict[str, Any]:
    """Return the tests that passed with their seconds, and the tests of each line of each file."""
    # whoever records nothing need not have it
    coverage = importlib.import_module("coverage")
    seconds: Counter[str] = Counter()
    bad = set()
    log = work / "tests.jsonl"
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        report = json.loads(line)
        seconds[report["test"]] += report["seconds"]
        if report["outcome"] != "passed":
            bad.add(report["test"])
    tests = {name: number for number, name in enumerate(sorted(seconds.keys() - bad))}
    lines: dict[str, dict[int, set[int]]] = {}
    for part in sorted(work.glob("data*")):
        data = coverage.CoverageData(str(part))
        with contextlib.suppress(Exception):  # the part of a process that was killed as it wrote
            data.read()
            for path in data.measured_files():
                if not Path(path).is_relative_to(copy.tree):
                    continue
                file = lines.setdefault(Path(path).relative_to(copy.tree).as_posix(), {})
                for line, contexts in data.contexts_by_lineno(path).items():
                    numbers = {tests[name] for name in contexts if name in tests}
                    file.setdefault(line, set()).update(numbers)
    return {
        "tests": [[name, round(seconds[name], 3)] for name in tests],
        "sources": {name: digest_of([copy.tree / name]) for name in lines},
        "lines": {name: {line: sorted(found) for line, found in file.items()} for name, file in lines.items()},
    }


def words_of(path: str) -> set[str]:
    """Return the words that a path is made of, but for those that are in all paths."""
    parts = {word for part in Path(path).with_suffix("").parts for word in (part, *part.split("_"))}
    return parts - {"src", "tests", "test", "unit", "__init__"}


def shared_lines(path: Path) -> dict[int, set[int]]:
    """Return which lines of a file run whenever a line does.

    What stands outside of functions ran when the module was imported, before any test: all tests of the module see it.
    The lines of one statement run together, and not all are noted.
    """
    tree = ast.parse(path.read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = {line for node in functions for each in node.body for line in lines_of(each)}
    every = set(range(1, max(inner, default=1) + 1))
    simple = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    found = {line: lines_of(node) for node in simple for line in lines_of(node)}
    return {line: every if line not in inner else found.get(line, {line}) for line in every | found.keys()}


def lines_of(node: ast.stmt) -> set[int]:
    """Return the lines of a statement."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


class Map:
    """Which tests cover a line, as it was recorded.

    Args:
        root: the repository.
        folder: the recorded pieces.
        files: the source files that are asked for.
    """

    def __init__(self, root: Path, folder: Path, files: set[str]) -> None:
        self.seconds: dict[str, float] = {}
        self.lines: dict[tuple[str, int], set[str]] = {}
        self.stale: set[str] = set()
        self.shared = {name: shared_lines(root / name) for name in files}
        present = {name: digest_of([root / name]) for name in files}
        # a file that was recorded alone, later, knows better
        for piece in sorted(folder.glob("*.json.gz"), key=lambda path: path.stat().st_mtime):
            found = json.loads(gzip.decompress(piece.read_bytes()))
            names = [name for name, _ in found["tests"]]
            self.seconds.update(found["tests"])
            for name in files & found["lines"].keys():
                if found["sources"][name] != present[name]:
                    self.stale.add(name)
                for line, numbers in found["lines"][name].items():
                    self.lines.setdefault((name, int(line)), set()).update(names[number] for number in numbers)

    def covering(self, mutant: Mutant) -> set[str]:
        """Return the tests of a mutant's line."""
        own = self.lines.get((mutant.path, mutant.line), set())
        shared = self.shared[mutant.path].get(mutant.line, {mutant.line})
        return own.union(*(self.lines.get((mutant.path, line), set()) for line in shared))

    def of_file(self, path: str) -> set[str]:
        """Return the tests that run any line of a file."""
        return set().union(*(found for (name, _), found in self.lines.items() if name == path))

    def tests(self, mutant: Mutant, seconds: float) -> list[str]:
        """Return the tests of a mutant's line, or else of its file, as many as end in the given time.

        Those in a folder or file of its module's name come first, since what they assert is about it; then the fastest.
        """
        own = words_of(mutant.path)
        ordered = sorted(
            self.covering(mutant) or self.of_file(mutant.path),
            key=lambda name: (-len(own & words_of(name.split("::")[0])), self.seconds[name], name),
        )
        total, kept = 0.0, []
        for name in ordered:
            if total + self.seconds[name] <= seconds:
                total += self.seconds[name]
                kept.append(name)
        return kept


class Runs:
    """The mutants' runs, written down as they end.

    Args:
        copy: where they run.
        results: the file of results.
        seconds: that a mutant's tests may take.
    """

    def __init__(self, copy: Copy, covered: Map, results: Path, seconds: float) -> None:
        self.copy, self.map, self.results, self.seconds = copy, covered, results, seconds
        self.unreliable: set[str] = set()
        self.trusted: set[str] = set()
        self.known: dict[str, dict[str, Any]] = {}
        for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else []:
            self._note(json.loads(line))

    def _note(self, row: dict[str, Any]) -> None:
        self.unreliable.update(row.get("unreliable", ()))
        self.trusted.update(row.get("trusted", ()))
        if "mutant" in row:
            self.known[row["mutant"]] = row

    def write(self, row: dict[str, Any]) -> None:
        """Keep a line of the results."""
        self._note(row)
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def run(self, root: str, mutant: Mutant) -> dict[str, Any]:
        """Run the tests of a mutant; return its line of the results."""
        begun = time.monotonic()
        # half of the time, so that what does not end with the mutant is known to end without it
        tests = [name for name in self.map.tests(mutant, self.seconds / 2) if name not in self.unreliable]
        first = FIRST_TESTS
        while self.recorded(tests[:first]) > FIRST_SECONDS and first > 1:
            first -= 1
        status = "uncovered"
        killers: list[str] = []
        for part in (tests[:first], tests[first:]):
            if part and status in ("uncovered", "survived"):
                # six times what was recorded, with the start of Python
                limit = min(self.seconds - (time.monotonic() - begun), START_SECONDS + 6 * self.recorded(part))
                with self.copy.mutated(mutant):
                    status, killers = self.tested(part, limit)
                if status == "timed out" and self.tested(part, limit / 2)[0] != "survived":
                    status = "doubtful"
        if status == "survived" and not self.map.covering(mutant):
            status = "uncovered"
        row = {"mutant": mutant.name, "root": root, "status": status, "by": killers, "tests": len(tests)}
        row |= {"before": mutant.before, "after": mutant.after, "seconds": round(time.monotonic() - begun, 1)}
        self.write(row)
        return row

    def tested(self, tests: list[str], seconds: float, *more: str) -> tuple[str, list[str]]:
        """Run tests in the copy as it is; return how it went, and which failed."""
        chosen = self.copy.place / "chosen.txt"
        failed = chosen.with_suffix(".txt.failed")
        failed.unlink(missing_ok=True)
        # one module after the other, in the order of their first tests
        order = {name: place for place, name in reversed(list(enumerate(t.split("::")[0] for t in tests)))}
        chosen.write_text("\n".join(sorted(tests, key=lambda t: order[t.split("::")[0]])), encoding="utf-8")
        arguments = [*(more or ("-x",)), *dict.fromkeys(order)]
        code = self.copy.pytest(arguments, max(1.0, seconds), MUTANTS_CHOSEN=str(chosen))
        killers = list(dict.fromkeys(failed.read_text(encoding="utf-8").splitlines())) if failed.exists() else []
        states = {0: "survived", None: "timed out", 5: "doubtful"}
        return states.get(code, "killed"), killers

    def recorded(self, tests: list[str]) -> float:
        """Return the seconds that tests took when they were recorded."""
        return sum(self.map.seconds[name] for name in tests)

    def confirm(self) -> bool:
        """Run the tests that killed once more, without a mutant; tell whether all of them pass.

        What an unreliable test killed is forgotten, and is to be run again.
        """
        killers = {name for row in self.known.values() for name in row["by"]} - self.trusted
        if not killers:
            return True
        ordered = sorted(killers, key=lambda name: (name.split("::")[0], name))
        failed = self.tested(ordered, RECORDING_SECONDS, "--maxfail=0")[1]
        self.write({"unreliable": failed, "trusted": sorted(killers - set(failed))})
        for name, row in list(self.known.items()):
            if set(row["by"]) & set(failed):
                del self.known[name]
        return not failed


def table(rows: Iterable[dict[str, Any]], roots: list[str]) -> str:
    """Return the results as a table, one line a root."""
    kinds = ("killed", "survived", "timed out", "uncovered", "doubtful")
    counts: dict[str, Counter[str]] = {root: Counter() for root in roots}
    for row in rows:
        if row["root"] in counts:
            counts[row["root"]][row["status"]] += 1
    counts["all"] = sum(counts.values(), Counter())
    lines = [f"{'root':<36}{'mutants':>9}" + "".join(f"{kind:>11}" for kind in kinds) + f"{'%':>7}"]
    for root, count in counts.items():
        total = count.total()
        share = 100 * (count["killed"] + count["timed out"]) / total if total else 0
        lines.append(f"{root:<36}{total:>9}" + "".join(f"{count[kind]:>11}" for kind in kinds) + f"{share:>7.1f}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", help="packages to mutate: folders, files, or files with a line")
    parser.add_argument("--map", type=Path, required=True, help="folder of what the tests cover")
    parser.add_argument("--tests", nargs="+", default=[], help="record these folders and files of tests")
    parser.add_argument("--results", type=Path, help="file of results, one line a mutant")
    parser.add_argument("--count", type=int, default=100, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="for one mutant")
    parser.add_argument("--again", action="append", default=[], help="run those of this status again; may be repeated")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--packages", nargs="+", default=["src"], help="folders that hold import packages")
    return parser.parse_args()


def run_all(options: argparse.Namespace, copy: Copy) -> None:
    """Run the sampled mutants that have no result, and print the table."""
    root = options.repository.resolve()
    shares = [
        options.count // len(options.roots) + (n < options.count % len(options.roots))
        for n in range(len(options.roots))
    ]
    plan = [
        (name, m)
        for name, share in zip(options.roots, shares, strict=True)
        for m in sampled(root, name, share, options.seed)
    ]
    covered = Map(root, options.map, {mutant.path for _, mutant in plan})
    if covered.stale:
        sys.exit("changed since the tests were recorded, so record them again: " + ", ".join(sorted(covered.stale)))
    runs = Runs(copy, covered, options.results, options.seconds)
    again = {name for name, row in runs.known.items() if row["status"] in options.again}
    while True:
        for name, mutant in plan:
            if mutant.name in runs.known and mutant.name not in again:
                continue
            again.discard(mutant.name)
            row = runs.run(name, mutant)
            print(f"{row['status']:<10} {row['seconds']:>5} s  {row['mutant']}", flush=True)
            if row["status"] != "killed":
                print(f"    {row['before']}\n →  {row['after']}", flush=True)
        if runs.confirm():
            break
    wanted = [mutant.name for _, mutant in plan]
    print(table([runs.known[name] for name in wanted if name in runs.known], options.roots))


def main() -> None:
    """Record the tests' lines, then run mutants."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGINT):
        # a shell's background jobs ignore the second; the tests that run, and the copy, go with this process
        signal.signal(number, lambda *_: sys.exit("stopped; the same command goes on"))
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Copy(options.repository.resolve(), Path(place), options.packages)
        copy.prove()
        if options.tests:
            record(copy, options.map, options.tests)
        if options.roots:
            if options.results is None:
                sys.exit("--results says where the results go")
            run_all(options, copy)


if __name__ == "__main__":
    main()
