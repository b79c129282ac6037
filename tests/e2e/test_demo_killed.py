"""The demonstration survives a kill: run again, it ends where an uninterrupted one does."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def result(output):
    """Accuracy, digest, number of samples and weights that a run of the demonstration printed."""
    found = re.search(r"digest (\w+) of (\d+) samples in order equals", output)
    assert found, output
    return (
        re.search(r"held-out digits: ([\d.]+%)", output)[1], found[1], int(found[2]),
        re.search(r"weights (\w+),", output)[1],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.torch
def test_killed_and_run_again(tmp_path):
    """By SIGKILL in the middle of an epoch; samples, their order, weights and accuracy stay the same."""
    for package in ("torch", "sklearn", "tqdm", "PIL"):
        pytest.importorskip(package)
    folders = [tmp_path / "whole", tmp_path / "killed"]
    commands = [[sys.executable, str(DEMO), "--folder", str(folder), "--epochs", "2"] for folder in folders]
    whole = subprocess.run(commands[0], capture_output=True, text=True, check=False).stdout
    checkpoint = folders[1] / "checkpoint.pt"
    killed = subprocess.Popen(commands[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + 120
    while not checkpoint.exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    again = subprocess.run(commands[1], capture_output=True, text=True, check=False).stdout
    assert re.search(r"going on behind batch \d+, in the middle of epoch", again), again
    assert int(re.search(r"resumed at batch (\d+)", again)[1]) >= 10
    assert result(again) == result(whole)
    assert result(again)[2] == 2 * 1497
    assert not checkpoint.exists()
