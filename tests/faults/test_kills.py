"""A training that is killed goes on with the same sequence; scripts/kill_harness.py does it at every step."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[2] / "scripts" / "kill_harness.py"


@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
@pytest.mark.parametrize(("mode", "workers"), [("threads", 0), ("processes", 2)])
def test_the_sequence_survives_kills(mode, workers):
    """Seven pipelines, in this thread and in processes: what comes is what would have come; nothing is left behind."""
    command = [sys.executable, str(HARNESS), "--stride", "700", "--workers", str(workers), "--modes", mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 7
    for row in rows:
        assert row["identical"], row
        assert (row["lost"], row["surplus"]) == (0, 0), row
        assert row["kills"] >= max(1, row["steps"] // 700), row
        assert row["largest_state_bytes"] < 64 << 10, row
