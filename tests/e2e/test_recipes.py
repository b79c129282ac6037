"""The recipes of examples/ run to their end, and do what their pages say."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import webdataset as wds

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(script, *words, cwd, before=()):
    """Run a recipe to its end; return what it printed."""
    command = [sys.executable, *before, str(EXAMPLES / script), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_recipe_is_short_and_has_a_page():
    """At most 120 lines, a head that shows the call, and a page that shows the file."""
    recipes = [path for path in EXAMPLES.glob("*.py") if path.name != "demo.py"]
    assert len(recipes) >= 7
    for path in recipes:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 120, path.name
        assert f"python examples/{path.name}" in text
        page = ROOT / "docs" / "recipes" / f"{path.stem.replace('_', '-')}.md"
        assert f'--8<-- "examples/{path.name}"' in page.read_text(encoding="utf-8")


def test_pairs_are_filtered_and_mixed(tmp_path):
    """Batches of CLIP pairs have the shapes that the page says."""
    pytest.importorskip("PIL")
    printed = run("clip_pairs.py", "--batches", 3, cwd=tmp_path)
    assert printed.count("(64, 3, 32, 32) float32 (64, 16) int64") == 3
    assert "skipped 0" in printed


def test_speech_is_padded_in_batches_of_similar_lengths(tmp_path):
    """Little of a batch is padding."""
    pytest.importorskip("soundfile")
    printed = run("speech.py", cwd=tmp_path)
    shares = [int(share) for share in re.findall(r"padding (\d+)%", printed)]
    assert len(shares) == 10
    assert sum(shares) / len(shares) < 20


def test_documents_have_an_image_for_each_mark(tmp_path):
    """The recipe counts them itself."""
    pytest.importorskip("PIL")
    assert run("interleaved.py", cwd=tmp_path).count("places for images") == 5


def test_a_global_shuffle_mixes(tmp_path):
    """Long runs of one class are gone, and the new shards hold the samples of the old ones."""
    printed = run("global_shuffle.py", cwd=tmp_path)
    before, after = map(int, re.findall(r"class: (\d+) before, (\d+) after", printed)[0])
    assert before > 50 > 10 > after
    made = [sample["__key__"] for sample in wds.WebDataset(str(tmp_path / "shuffle-data" / "mixed-{00..09}.tar"))]
    assert sorted(made) == [f"{number:06d}" for number in range(2000)]


@pytest.mark.torch
def test_segmentation_draws_by_number(tmp_path):
    """Sixty steps over samples drawn by weight; the shapes are found."""
    pytest.importorskip("torch")
    printed = run("segmentation.py", "--steps", 20, "--workers", 1, cwd=tmp_path)
    assert re.search(r"step 20: loss 0\.\d+, shapes \d+%", printed)
    assert len(list((tmp_path / "segmentation-data").glob("*.idx"))) == 6


def write_classes(folder):
    """Write 400 small pictures of two classes."""
    import numpy as np

    with wds.ShardWriter(str(folder / "c-%02d.tar"), maxcount=50, verbose=0) as sink:
        for number in range(400):
            pixels = np.full((32, 32, 3), 200 * (number % 2), np.uint8)
            sink.write({"__key__": f"{number:04d}", "png": pixels, "cls": number % 2})
    return str(folder / "c-{00..07}.tar")


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_training_continues_on_another_number_of_ranks(tmp_path):
    """One process is killed within an epoch; two continue its epoch where the checkpoint was."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    words = ["--shards", write_classes(tmp_path), "--classes", "2", "--batch", "4", "--workers", "1"]
    command = [sys.executable, str(EXAMPLES / "imagenet_ddp.py"), *words, "--epochs", "200"]
    (tmp_path / "imagenet-run").mkdir()
    checkpoint = tmp_path / "imagenet-run" / "checkpoint.pt"
    with (tmp_path / "log").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        running = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            while not checkpoint.exists() and running.poll() is None:
                time.sleep(0.05)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert checkpoint.exists(), (tmp_path / "log").read_text()

    import torch

    saved = torch.load(checkpoint, weights_only=True)
    epochs = saved["epoch"] + 2
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    printed = run("imagenet_ddp.py", *words, "--epochs", epochs, cwd=tmp_path, before=launch)
    steps = [int(count) for count in re.findall(r"epoch \d+: (\d+) steps", printed)]
    # a whole epoch on two ranks is 384 samples: 48 steps of 2 x 4
    assert steps[-1] == 48
    assert 0 <= steps[0] <= 48
    assert len(steps) in (1, 2)
