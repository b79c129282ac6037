"""The mutants script finds what a small package's tests do not notice, in every kind of process, and goes on."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("coverage", reason="the dependency group mutants is not installed")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from mutants_making import mutants_of, sampled  # noqa: E402

PACKAGE = '''"""A package."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT: int = 7 + 1
log = logging.getLogger(__name__)


def larger(one: int, other: int) -> int:
    """Return the larger number."""
    log.info("asked for %d", 1 + one)
    if one < other:
        return other
    return one


def doubled(number: int) -> int:
    """Return twice a number."""
    return number * 2


def alone() -> int:
    """Nobody calls this."""
    return 40 + 2
'''

TESTS = """
import multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import pytest
import fake

def test_larger():
    assert fake.larger(1, 2) == 2
    assert fake.larger(3, 2) == 3

@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_doubled_by_a_worker(method):
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert pool.submit(fake.doubled, 5).result() == 10

def test_doubled_in_a_program():
    program = [sys.executable, "-c", "import fake; print(fake.doubled(5))"]
    assert subprocess.run(program, capture_output=True, text=True).stdout == "10\\n"
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of one module and its tests, and what these cover."""
    root = tmp_path_factory.mktemp("repository")
    for name, text in {"src/fake/__init__.py": PACKAGE, "tests/test_fake.py": TESTS}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    recorded = mutants(root, "--tests", "tests")
    assert "tests: 5 tests" in recorded
    assert not mutants(root, "--tests", "tests")  # nothing changed: nothing is recorded
    return root


def mutants(root, *arguments):
    """Run the script; return what it prints."""
    command = [sys.executable, SCRIPTS / "mutants.py", "--repository", root, "--map", root / "map", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def of_line(root, line, *more, results="results.jsonl"):
    """Run all mutants of the line that begins with these words; return (kind, outcome) of each, and the output."""
    number = next(n for n, text in enumerate(PACKAGE.splitlines(), 1) if text.strip().startswith(line))
    place = f"src/fake/__init__.py:{number}"
    printed = mutants(root, place, "--results", root / results, *more)
    rows = [json.loads(row) for row in (root / results).read_text().splitlines()]
    return {(row["before"], row["after"]): row["status"] for row in rows if row.get("root") == place}, printed


def test_survivor(repository):
    """A change that no test notices survives; those that one notices are killed."""
    found, printed = of_line(repository, "if one < other")
    assert found[("one < other", "(one >= other)")] == "killed"
    assert found[("one < other", "(one <= other)")] == "survived"
    assert printed.splitlines()[-1].split() == ["all", "2", "1", "1", "0", "0", "0", "50.0"]


def test_uncovered(repository):
    """A line that no test runs is uncovered, not killed."""
    assert set(of_line(repository, "return 40 + 2")[0].values()) == {"uncovered"}


def test_children(repository):
    """Workers and programs that a test starts run the mutant, and what they run counts as the test's lines."""
    found, _ = of_line(repository, "return number * 2")
    assert set(found.values()) == {"killed"}
    (piece,) = (repository / "map").glob("*.json.gz")
    assert piece.name == "tests.json.gz"
    rows = [json.loads(row) for row in (repository / "results.jsonl").read_text().splitlines()]
    assert {row["tests"] for row in rows if row.get("root", "").endswith(":21")} == {4}


def test_goes_on(repository):
    """What has a result is not run again, unless one asks for it."""
    of_line(repository, "return one", results="more.jsonl")
    lines = (repository / "more.jsonl").read_text().splitlines()
    found, printed = of_line(repository, "return one", results="more.jsonl")
    assert (repository / "more.jsonl").read_text().splitlines() == lines
    assert printed.startswith("root")
    assert set(found.values()) == {"killed"}
    of_line(repository, "return one", "--again", "killed", results="more.jsonl")
    assert len((repository / "more.jsonl").read_text().splitlines()) == len(lines) + 1


def test_flaky_killer(repository):
    """What is killed by a test that fails without the mutant, too, is run again without that test."""
    flaky = "tests/test_flaky.py"
    text = "import os, fake\ndef test_fails_later():\n    assert fake.larger(1, 1) == 1\n"
    (repository / flaky).write_text(text)
    mutants(repository, "--tests", flaky)
    (repository / flaky).write_text(text + "    assert not fake\n")
    found, _ = of_line(repository, "if one < other", results="flaky.jsonl")
    assert found[("one < other", "(one <= other)")] == "survived"
    rows = [json.loads(row) for row in (repository / "flaky.jsonl").read_text().splitlines()]
    assert [f"{flaky}::test_fails_later"] in [row["unreliable"] for row in rows if "unreliable" in row]
    (repository / flaky).unlink()


def test_changed_source(repository):
    """What was recorded of another version of a file is not used."""
    source = repository / "src/fake/__init__.py"
    source.write_text(PACKAGE + "\n")
    arguments = ["src/fake", "--map", repository / "map", "--repository", repository, "--results", repository / "r"]
    run = subprocess.run([sys.executable, SCRIPTS / "mutants.py", *arguments], capture_output=True, text=True)
    source.write_text(PACKAGE)
    assert run.returncode == 1
    assert "record them again: src/fake/__init__.py" in run.stderr


def test_what_is_left_alone(repository):
    """Annotations, docstrings, log messages and TYPE_CHECKING blocks have no mutants; each line gives one at most."""
    found = mutants_of(repository / "src/fake/__init__.py", repository)
    lines = PACKAGE.splitlines()
    assert {lines[mutant.line - 1].strip() for mutant in found} == {
        "if one < other:",
        "return other",
        "return one",
        "return number * 2",
        "return 40 + 2",
    }
    few = sampled(repository, "src/fake", 100, 1)
    assert len({mutant.line for mutant in few}) == len(few) == 5
    assert few == sampled(repository, "src/fake", 100, 1)


KINDS = {
    "a <= b": {"a < b", "a > b"},
    "a and not b": {"a or not b", "b"},
    "a + 1": {"a - 1", "2", "0"},
    "a & b": {"a | b"},
    "f(a, b, c)": {"f(b, a, c)", "pass"},
    "f('word')": {"'xwordx'", "pass"},
    "f('two words')": {"pass"},
    "log.info('word')": set(),
    "x[1] = True": {"pass", "2", "0", "False"},
    "return f(a)": {"return None"},
    "del a.b": {"pass"},
    "raise E('of a kind', 1)": {"pass"},
    "try:\n    a\nexcept E:\n    b": {"()"},
    "while a:\n    break": {"continue"},
    "while a:\n    continue": {"break"},
}


@pytest.mark.parametrize("text", KINDS)
def test_kinds(tmp_path, text):
    """Each kind of change is made, and nothing else."""
    path = tmp_path / "a.py"
    path.write_text("def g(self):\n    " + text.replace("\n", "\n    ") + "\n")
    found = mutants_of(path, tmp_path)
    assert {ast.unparse(ast.parse(mutant.after).body[0]) for mutant in found} == KINDS[text]
    for mutant in found:
        compile(mutant.apply_to(path.read_bytes()), "a.py", "exec")
