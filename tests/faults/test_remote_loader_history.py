"""Trainers of data servers receive exactly what a run without faults gives, whatever is killed, stopped or cut off."""

import subprocess
import sys
from pathlib import Path

from support import serving_trials


def test_histories(tmp_path: Path) -> None:
    """Two servers and two trainers under faults at random times; more trials: ``python serving_trials.py``."""
    program = [sys.executable, serving_trials.__file__, str(tmp_path), "1", "3"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3 trials exact" in done.stdout
    faults = int(done.stdout.split()[-2])
    assert faults > 3
