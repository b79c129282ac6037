"""Trainers of data servers receive exactly what a run without faults gives, whatever is killed, stopped or cut off."""

import re
import subprocess
import sys
from pathlib import Path

from support import serving_trials


def test_histories(tmp_path: Path) -> None:
    """Two servers and two trainers under faults at random times; more trials: ``python serving_trials.py``."""
    program = [sys.executable, serving_trials.__file__, str(tmp_path), "1", "4"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = re.search(r"4 trials exact, (\d+) second lanes, \d+ of them faster, (\d+) faults", done.stdout)
    assert told is not None
    assert int(told[1]) > 0
    assert int(told[2]) > 4
