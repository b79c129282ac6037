"""Orders that an earlier commit gave are given by every later one: each kind of run, straight and continued."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds

PROBE = Path(__file__).with_name("orders_probe.py")
RECORDED = json.loads(PROBE.with_name("orders_recorded.json").read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the probe prints, in a fresh process."""
    folder = tmp_path_factory.mktemp("orders")
    for number, size in enumerate((12, 9, 15, 4, 11, 1, 8)):
        with wds.TarWriter(str(folder / f"d-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index:02d}", "bin": b"x" * (5 + (index * 7) % 23)})
    source = Path(wds.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    environment.pop("WDS_SEED", None)
    command = [sys.executable, str(PROBE), str(folder / "d-{0..6}.tar")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", RECORDED)
def test_orders_are_the_recorded_ones(found, kind):
    """Digests recorded before the modules were moved."""
    if kind.startswith("torch loader"):
        pytest.importorskip("torch")
    assert found[kind] == RECORDED[kind]


@pytest.mark.parametrize("kind", [kind for kind in RECORDED if kind.startswith(("elastic", "loader"))])
def test_a_continued_run_gives_the_order_of_an_unbroken_one(kind):
    """Two stops, each saved as JSON; the next epoch differs."""
    assert RECORDED[kind]["stopped"] == RECORDED[kind]["straight"] == RECORDED[kind]["epochs"][0]
    assert RECORDED[kind]["epochs"][0] != RECORDED[kind]["epochs"][1]


def test_nothing_else_is_recorded(found):
    """A kind of run that is added to the probe is recorded."""
    assert set(found) <= set(RECORDED)
