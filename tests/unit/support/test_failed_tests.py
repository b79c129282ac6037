"""Tests for the second run of tests that failed: what it lets pass, and what it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
UNSTEADY = """
from pathlib import Path
def test_unsteady_{0}():
    runs = Path(__file__).with_name("runs-{0}")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) == 2
"""
BROKEN = "\ndef test_broken():\n    raise AssertionError\n"


def run(folder, source, most):
    """Run tests in a folder under the project's hooks; return the exit status and the output."""
    (folder / "test_some.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "WDS_RERUN_FAILED": most}
    environment["PYTEST_ADDOPTS"] = "-p conftest -p no:cacheprovider"
    command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={folder}", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", ["", "-n2"])
def test_an_unsteady_test_passes_with_its_name(tmp_path, monkeypatch, workers):
    """What fails once and passes alone is named; the failure stays in the output."""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {workers}\n")
    status, output = run(tmp_path, UNSTEADY.format("one"), "1")
    assert status == 0, output
    assert "UNSTEADY test_some.py::test_unsteady_one" in output
    assert "1 failed" in output


def test_what_fails_twice_has_failed(tmp_path):
    """A broken test fails the run, also beside an unsteady one, and nothing is called unsteady."""
    status, output = run(tmp_path, UNSTEADY.format("one") + BROKEN, "2")
    assert status == 1, output
    assert (tmp_path / "runs-one").read_text() == "xx"
    assert "UNSTEADY" not in output


@pytest.mark.parametrize("most", ["", "0", "1"])
def test_many_failures_get_no_second_run(tmp_path, most):
    """More failures than are allowed, or no allowance: the run fails at once."""
    status, output = run(tmp_path, UNSTEADY.format("one") + UNSTEADY.format("two"), most)
    assert status == 1, output
    assert (tmp_path / "runs-one").read_text() == "x"


def test_a_file_that_cannot_be_imported_gets_no_second_run(tmp_path):
    """An error of collection stands."""
    (tmp_path / "test_other.py").write_text("raise ImportError\n")
    status, output = run(tmp_path, UNSTEADY.format("one"), "5")
    assert status not in (0, 5), output
    assert "UNSTEADY" not in output
