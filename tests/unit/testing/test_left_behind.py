"""What tests/conftest.py says of a test that leaves a copy of its process behind."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import os, time

def test_leaves():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)

def test_waits():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_forked_child_is_told_of_and_ended(tmp_path):
    """The test that leaves it fails, by name; the others do not; and the run ends."""
    (tmp_path / "conftest.py").write_text(
        CONFTEST.read_text().replace("PATIENCE_SECONDS = 10.0", "PATIENCE_SECONDS = 0.1")
    )
    (tmp_path / "test_x.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    assert "test_x.py::test_leaves leaves 1 forked processes" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
