"""Megatron-Energon: it prepares and reads our shards, and our indexes are byte for byte those that it makes."""

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

energon = pytest.importorskip("megatron.energon")

from webdataset import ShardWriter  # noqa: E402
from webdataset.core.errors import WebDatasetError  # noqa: E402
from webdataset.index.indexed_shard import IndexedShard  # noqa: E402
from webdataset.index.publish import write_indexes  # noqa: E402


@dataclasses.dataclass
class Raw(energon.Sample):
    """A sample as it lies in the shard."""

    fields: dict[str, bytes]


@energon.stateless
def cook(sample):
    """Take a sample as it is."""
    fields = {name: bytes(value) for name, value in sample.items() if not name.startswith("__")}
    return Raw(**energon.basic_sample_keys(sample), fields=fields)


class Plain(energon.DefaultTaskEncoder):
    """Change nothing."""

    decoder = None
    cookers = [energon.Cooker(cook)]


def read(folder, split):
    """What Energon reads of a split, in order: keys and fields."""
    alone = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = energon.get_val_dataset(
        folder, split_part=split, worker_config=alone, batch_size=None, task_encoder=Plain(),
        max_samples_per_sequence=None,
    )  # fmt: skip
    return [(sample.__key__, sample.fields) for sample in energon.get_loader(dataset)]


def prepare(folder, *options):
    """Run ``energon prepare``."""
    tool = Path(sysconfig.get_path("scripts")) / "energon"
    return subprocess.run(
        [tool, "prepare", folder, "--non-interactive", "--num-workers", "1", *options],
        capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip


def rows(folder, table):
    """A table of the folder's database."""
    with contextlib.closing(sqlite3.connect(folder / ".nv-meta" / "index.sqlite")) as database:
        return sorted(database.execute(f"select * from {table}"))


@pytest.fixture(scope="module")
def samples(shards):
    """The samples of all shards that we write, with keys told apart by a number, three for a shard."""
    made = [shard.samples for name, shard in shards.items() if not name.startswith("zoo")]
    return [(f"{number}/{key}", fields) for number, found in enumerate(made) for key, fields in found]


@pytest.fixture(scope="module")
def ours(samples, tmp_path_factory):
    """A dataset that is indexed by our writer while it is written."""
    folder = tmp_path_factory.mktemp("energon")
    options: dict[str, Any] = {"maxcount": 3, "verbose": 0, "check_keys": "ignore", "encoder": False}
    with ShardWriter(str(folder / "shard-%03d.tar"), index="energon", **options) as sink:
        for key, fields in samples:
            sink.write({"__key__": key, **fields})
    return folder


@pytest.fixture(scope="module")
def theirs(ours, tmp_path_factory):
    """The same shards, prepared by Energon's tool."""
    folder = tmp_path_factory.mktemp("prepared")
    for path in ours.glob("*.tar"):
        shutil.copy(path, folder)
    done = prepare(folder, "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_it_prepares_and_reads_what_we_write(theirs, samples):
    """Every key, field and byte, in order."""
    assert len(samples) > 80
    assert read(theirs, "train") == samples


def test_it_reads_what_we_indexed(ours, samples):
    """Its own tool need not run at all: the indexes of our writer are enough."""
    assert read(ours, "train") == samples


def test_our_indexes_are_its_own(ours, theirs):
    """For the same shards, its tool and our writer make the same indexes: bytes, counts, rows."""
    names = sorted(path.name for path in theirs.glob("*.tar.idx"))
    assert names == sorted(path.name for path in ours.glob("*.tar.idx"))
    assert all((theirs / name).read_bytes() == (ours / name).read_bytes() for name in names)
    counts = [
        json.loads((folder / ".nv-meta" / ".info.json").read_bytes())["shard_counts"] for folder in (ours, theirs)
    ]
    assert counts[0] == counts[1]
    assert list(counts[0]) == list(counts[1])
    for table in ("samples", "sample_parts"):
        assert rows(ours, table) == rows(theirs, table)


def test_we_read_by_the_indexes_that_it_makes(theirs, samples):
    """Random access over its indexes gives every sample."""
    found = []
    for path in sorted(theirs.glob("*.tar")):
        with IndexedShard(path, index=f"{path}.idx") as shard:
            found += [shard[ordinal] for ordinal in range(len(shard))]
    bare = [(sample["__key__"], {k: v for k, v in sample.items() if not k.startswith("__")}) for sample in found]
    assert bare == samples


# shards of the zoo that we refuse to index for Energon, and why
REFUSED = {
    "zoo duplicate_member": "twice",
    "zoo split_samples": "parts",
    "zoo sparse": "sparse",
    "zoo joined": "end mark",
    "zoo not_utf8": "utf-8",
}


@pytest.mark.usefixtures("ends_unmarked")
def test_the_zoo_is_read_right_or_refused(exhibit, name, tmp_path):
    """By our index it reads the samples of the stream, or we refuse to write it and say why."""
    shutil.copy(exhibit.path, tmp_path)
    if name in REFUSED:
        with pytest.raises(WebDatasetError, match=REFUSED[name]):
            write_indexes([tmp_path / "shard.tar"], "energon")
        return
    write_indexes([tmp_path / "shard.tar"], "energon")
    found = read(tmp_path, "train")
    assert [(key, {field.lower(): load for field, load in fields.items()}) for key, fields in found] == exhibit.samples
