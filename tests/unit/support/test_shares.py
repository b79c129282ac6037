"""Tests for the share of the cases that a run on a second Python takes; garbage waits until tests are collected."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
SUITE = """
import gc
from pathlib import Path
import pytest

COLLECTS = gc.isenabled()

def note(word):
    with Path(__file__).with_name("ran").open("a") as file:
        file.write(f"{word} ")

@pytest.mark.parametrize("case", range(10))
def test_cases(case):
    note(case)

@pytest.mark.repeats
@pytest.mark.parametrize("case", "abcdefg")
def test_repeats(case):
    note(case)

def test_garbage():
    note(f"{COLLECTS}-{gc.isenabled()}")
"""


def run(folder, **shares):
    """Run the suite under the project's hooks; return what ran."""
    (folder / "test_some.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = repeats\n")
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "WDS_TEST_SHARE": "1", "WDS_TEST_CASES": "1", **shares}
    environment["PYTEST_ADDOPTS"] = "-p conftest -p no:cacheprovider"
    command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={folder}", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "ran").read_text().split()


def test_a_share_keeps_every_test(tmp_path):
    """One in so many of the cases of a test, and of what repeats, beginning with the first; nothing collects early."""
    shared = run(tmp_path, WDS_TEST_SHARE="3", WDS_TEST_CASES="4")
    assert shared == [*"048", *"adg", "False-True"]


def test_without_a_share_everything_runs(tmp_path):
    """No case is left out."""
    assert run(tmp_path) == [*"0123456789", *"abcdefg", "False-True"]
