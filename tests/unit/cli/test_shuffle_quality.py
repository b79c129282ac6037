"""``wds shuffle-quality``."""

import json

import jsonschema  # type: ignore[import-untyped]
import pytest

import webdataset as wds
from support.command import run_wds
from webdataset.cli.shuffle_quality import SCHEMAS


def measure(*arguments, cwd=None):
    """Return what the command says as JSON, after a look at its schema."""
    found = json.loads(run_wds("shuffle-quality", *arguments, "--json", cwd=cwd).stdout)
    jsonschema.validate(found, SCHEMAS["shuffle-quality"])
    return found


def test_simulations():
    """Numbers in, figures out, as JSON and as text; the figures are those of the function in Python."""
    words = ["--shard-count", "9", "--samples-per-shard", "30", "--batch-size", "20"]
    found = measure(*words, "--shuffle", "50", "--open-shards", "3", "--workers", "2", "--seed", "5")
    expected = wds.simulate_shuffle_quality(9, 30, [wds.shuffle(50)], open_shards=3, batch=20, workers=2, seed=5)
    assert (found["samples"], found["shards"], found["batch"]) == (270, 9, 20)
    assert found["same_shard"] == expected.same_shard
    assert found["distance"] == expected.distance
    assert measure(*words, "--in-order")["correlation"] > 0.99
    text = run_wds("shuffle-quality", *words, "--block-shuffle", "50").stdout.decode()
    assert text.startswith("270 samples of 9 shards in batches of 20\n")


def test_shards_are_read(tmp_path):
    """Shards in place of numbers, by braces."""
    for shard in range(2):
        with wds.TarWriter(str(tmp_path / f"s-{shard}.tar")) as sink:
            for index in range(10):
                sink.write({"__key__": f"{shard}{index}", "cls": index})
    found = measure("s-{0..1}.tar", "--in-order", "--batch-size", "5", "--limit", "18", cwd=tmp_path)
    assert (found["samples"], found["shards"]) == (18, 2)
    assert found["correlation"] > 0.99
    shuffled = measure("s-{0..1}.tar", "--shuffle", "20", "--open-shards", "2", "--batch-size", "5", cwd=tmp_path)
    assert shuffled["samples"] == 20
    assert abs(shuffled["correlation"]) < 0.8


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--shard-count", "1", "--samples-per-shard", "1"], 2, b"sample"),
        (["--limit", "5"], 2, b"--limit needs SHARDS"),
        (["--workers", "2", "none.tar"], 2, b"--workers cannot be given with SHARDS"),
        (["none.tar"], 3, b"none.tar"),
    ],
)
def test_failures_have_a_status(tmp_path, arguments, status, message):
    """2 for a command line that means nothing, 3 for shards that cannot be read."""
    assert message in run_wds("shuffle-quality", *arguments, status=status, cwd=tmp_path).stderr
