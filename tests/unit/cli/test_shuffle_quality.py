"""python -m webdataset.cli.shuffle_quality."""

import json
import subprocess
import sys

import webdataset as wds
from webdataset.cli.shuffle_quality import run


def test_simulations(capsys):
    """Numbers in, figures out, as text and as JSON."""
    assert run(["--shards", "9", "--samples", "30", "--buffer", "50", "--open", "3", "--batch", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["shards"], found["batch"]) == (270, 9, 20)
    assert run(["--shards", "9", "--samples", "30", "--block", "50", "--workers", "3"]) == 0
    assert capsys.readouterr().out.startswith("270 samples of 9 shards")


def test_shards_are_read(tmp_path, capsys):
    """Urls in place of numbers."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for index in range(10):
            sink.write({"__key__": str(index), "cls": index})
    assert run([str(tmp_path / "a.tar"), "--in-order", "--batch", "5", "--limit", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 8
    assert found["correlation"] > 0.99


def test_failures_have_a_status(tmp_path, capsys):
    """2 for a command line that means nothing, 1 for shards that cannot be read."""
    assert run(["--shards", "1", "--samples", "1"]) == 2
    assert run([str(tmp_path / "none.tar")]) == 1
    assert "none.tar" in capsys.readouterr().err


def test_it_is_a_program():
    """Started as a module."""
    words = [sys.executable, "-m", "webdataset.cli.shuffle_quality", "--shards", "4", "--samples", "9", "--batch", "6"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("36 samples of 4 shards")
