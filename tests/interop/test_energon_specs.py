"""Energon metadatasets made of specifications, read by Energon itself."""

import dataclasses
import os
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
import yaml

energon = pytest.importorskip("megatron.energon")

import webdataset as wds  # noqa: E402
from webdataset.shards.specs import load_spec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Energon pins memory, accelerator or not


@dataclasses.dataclass
class Raw(energon.Sample):
    """A sample's text, and what was said of its source."""

    text: bytes


@energon.stateless
def cook(sample):
    """Take the text."""
    return Raw(**energon.basic_sample_keys(sample), text=bytes(sample["txt"]))


class Plain(energon.DefaultTaskEncoder):
    """Change nothing."""

    decoder = None
    cookers = [energon.Cooker(cook)]


@pytest.fixture
def prepared(tmp_path):
    """Two directories of 2 x 10 samples, prepared by Energon."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with wds.ShardWriter(str(tmp_path / name / "s-%d.tar"), maxcount=10, verbose=0) as sink:
            for number in range(20):
                sink.write({"__key__": f"{name}{number:02}", "txt": name})
        tool = Path(sysconfig.get_path("scripts")) / "energon"
        options = ("--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset")
        done = subprocess.run(
            [tool, "prepare", tmp_path / name, "--non-interactive", "--num-workers", "1", *options],
            capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.parametrize("listed", ["energon", "shards"])
@pytest.mark.parametrize("how", ["exhaust", "concat"])
def test_energon_reads_what_we_export(prepared, how, listed, monkeypatch):
    """Each source's samples come as we deliver them, wherever the file lies; its validation reads no repetitions."""
    monkeypatch.chdir(prepared)
    sources = [
        {listed: {"energon": "one", "shards": "one/s-{0..1}.tar"}[listed], "tags": {"kind": "x"}},
        {listed: {"energon": "two", "shards": "two/s-{0..1}.tar"}[listed]},
    ]
    spec = load_spec({"version": 1, "mix": how, "sources": sources})
    (prepared / "elsewhere").mkdir()
    meta = prepared / "elsewhere" / "meta.yaml"
    meta.write_text(yaml.safe_dump(spec.to_energon()))
    alone = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = energon.get_val_dataset(
        meta, split_part="train", worker_config=alone, batch_size=None, task_encoder=Plain(),
        max_samples_per_sequence=None,
    )  # fmt: skip
    samples = list(energon.get_loader(dataset))
    ours = Counter(sample["txt"] for sample in wds.WebDataset(spec))
    assert Counter(sample.text for sample in samples) == ours
    assert {sample.text for sample in samples if (sample.__subflavors__ or {}).get("kind") == "x"} == {b"one"}
