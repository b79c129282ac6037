"""The loader's benchmark measures what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "loader.py"


def test_it_prints_one_line_with_its_ratios(tmp_path):
    """On a little data every candidate delivers all samples, and each has its figures."""
    pytest.importorskip("simplejpeg")
    pytest.importorskip("PIL.Image")
    environment = {**os.environ, "BENCH_ROUNDS": "1", "BENCH_SCALE": "0.01", "TMPDIR": str(tmp_path)}
    environment = {name: text for name, text in environment.items() if not name.startswith("WDS_ORACLE")}
    command = [sys.executable, str(BENCH)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    (line,) = map(json.loads, result.stdout.splitlines())
    assert line["question"] == "loader JPEG 512"
    for clock in ("wall", "cpu"):
        assert set(line[f"{clock}_us"]) == {"bare", "bare_reading", "bare_two", "none", "threads", "processes"}
        assert all(speed > 0 for speed in line[f"{clock}_speed"].values())
    assert line["ratio"] == line["cpu_speed"]["none"]
