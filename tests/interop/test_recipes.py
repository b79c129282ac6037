"""The recipes that need another project: they run to their end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(script, *words, cwd):
    """Run a recipe to its end; return what it printed."""
    command = [sys.executable, str(EXAMPLES / script), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_lightning_trains_validates_and_resumes(tmp_path):
    """Every validation sample is counted once in each epoch; a checkpoint is resumed."""
    pytest.importorskip("lightning")
    printed = run("train_lightning.py", "--epochs", "1", "--workers", "1", cwd=tmp_path)
    assert "of 130 right" in printed
    words = ("--epochs", "2", "--workers", "1", "--resume", "lightning-data/last.ckpt")
    printed = run("train_lightning.py", *words, cwd=tmp_path)
    assert "epoch 1: " in printed
    assert all("of 130 right" in line for line in printed.splitlines() if line.startswith("epoch"))


def test_a_dataset_of_hugging_face_moves_to_shards(tmp_path):
    """All rows come back, half of them after a resume."""
    pytest.importorskip("datasets")
    printed = run("from_hf_datasets.py", cwd=tmp_path)
    assert "100 samples before the checkpoint, 100 after it, 0 too many" in printed
