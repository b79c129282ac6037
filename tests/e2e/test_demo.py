"""The demonstration, as ``make demo`` runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.torch
def test_demo_trains_to_97_percent(tmp_path):
    """Shards of real images are written, streamed into training by two workers, and the digits are learned."""
    for package in ("torch", "sklearn", "tqdm", "PIL"):
        pytest.importorskip(package)
    command = [sys.executable, DEMO, "--folder", tmp_path / "shards", "--epochs", "12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "china: uint8[427, 640, 3]" in result.stdout
    assert "flower: uint8[427, 640, 3]" in result.stdout
    found = re.search(r"accuracy on 300 held-out digits: ([\d.]+)%", result.stdout)
    assert found, result.stdout
    assert float(found[1]) >= 97
    assert re.search(r"throughput: [\d,]+ samples/s through 2 workers", result.stdout)
    assert len(list((tmp_path / "shards").glob("train-*.tar"))) == 6


@pytest.mark.slow
@pytest.mark.torch
def test_demo_fails_where_nothing_was_learned(tmp_path):
    """A model that was not trained misses the wanted accuracy, and the exit status says so."""
    for package in ("torch", "sklearn", "tqdm", "PIL"):
        pytest.importorskip(package)
    command = [sys.executable, DEMO, "--folder", tmp_path / "shards", "--epochs", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "accuracy on 300 held-out digits" in result.stdout
