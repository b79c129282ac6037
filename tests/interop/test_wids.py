"""The published wids: it reads our shards by our indexes, and we read the indexes that its tool makes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import wids
from webdataset import ShardWriter
from webdataset.index.publish import write_indexes

pytestmark = pytest.mark.usefixtures("ends_unmarked")

# what its reader cannot read, whatever the index says: it looks at plain headers only, and at every file
STYLES = ("default", "ustar", "gnu", "pax", "pax-times")
MISREAD = {
    *(f"{kind} in {style}" for kind in ("long", "longest") for style in STYLES),
    *(f"unicode in {style}" for style in ("default", "pax", "pax-times")),
    "zoo gnu_long", "zoo pax_long", "zoo ustar_prefix", "zoo blanks", "zoo unicode", "zoo not_utf8", "zoo dotfile",
    "zoo meta", "zoo no_extension", "zoo large_numbers", "zoo sparse", "zoo joined",
}  # fmt: skip


@pytest.fixture(scope="module")
def python():
    """The interpreter of an environment with the published wids."""
    found = os.environ.get("WDS_INTEROP_WIDS")
    if not found:
        pytest.skip("wids could not be installed")
    return found


@pytest.fixture(scope="module")
def indexed(shards, tmp_path_factory):
    """A folder for each shard, with our index."""
    place = tmp_path_factory.mktemp("wids")
    found = {}
    for name, shard in shards.items():
        if shard.samples:
            folder = place / name.replace(" ", "-")
            folder.mkdir()
            shutil.copy(shard.path, folder)
            write_indexes([folder / "shard.tar"], "wids", missing_end="ignore", split_samples="ignore")
            found[name] = folder / "shardindex.json"
    return found


@pytest.fixture(scope="module")
def read(indexed, python):
    """What the published wids reads by them."""
    return probe(python, {name: str(index) for name, index in indexed.items()})


def probe(python, indexes):
    """What the published wids reads by indexes, by name."""
    command = [python, "-I", Path(__file__).with_name("wids_probe.py")]
    done = subprocess.run(command, input=json.dumps(indexes), capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{") :])


def listed(shard):
    """The samples of a shard as JSON has them."""
    return [[key, {field: payload.hex() for field, payload in fields.items()}] for key, fields in shard.samples]


def test_it_reads_by_our_index(read, readable, name):
    """Every key, field and byte of the shards that its reader can read at all."""
    found = read[name]
    if name in MISREAD:
        assert found != listed(readable)
        return
    assert [[key, {field.lower(): payload for field, payload in fields.items()}] for key, fields in found] == listed(
        readable
    )


def test_we_read_by_the_index_that_its_tool_makes(shards, python, tmp_path):
    """``widsindex create`` counts our shards, and our ``wids`` gives every sample by it."""
    names = [name for name in shards if name not in MISREAD and not name.startswith("zoo")]
    for number, name in enumerate(names):
        shutil.copy(shards[name].path, tmp_path / f"s-{number:02d}.tar")
    tool = Path(python).parent / "widsindex"
    subprocess.run(
        [python, "-I", tool, "create", *(f"s-{number:02d}.tar" for number in range(len(names))), "-o", "index.json"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    with wids.ShardListDataset(str(tmp_path / "index.json"), transformations=[]) as dataset:
        found = [
            [
                sample["__key__"],
                {field[1:]: value.read().hex() for field, value in sample.items() if not field.startswith("__")},
            ]
            for sample in (dataset[ordinal] for ordinal in range(len(dataset)))
        ]
    assert found == [sample for name in names for sample in listed(shards[name])]


def test_what_our_writer_indexes_while_writing(shards, python, tmp_path):
    """An index made while shards are written is the one that is made of them later, and its reader takes it."""
    place = tmp_path / "written"
    place.mkdir()
    samples = shards["folders in default"].samples * 3
    with ShardWriter(str(place / "s-%02d.tar"), maxcount=4, verbose=0, encoder=False, index="wids") as sink:
        for number, (key, fields) in enumerate(samples):
            sink.write({"__key__": f"{number}/{key}", **fields})
    index = place / "shardindex.json"
    at_once = json.loads(index.read_bytes())
    found = probe(python, {"written": str(index)})["written"]
    assert [key for key, _ in found] == [f"{number}/{key}" for number, (key, _) in enumerate(samples)]
    write_indexes(sorted(place.glob("*.tar")), "wids")
    assert json.loads(index.read_bytes()) == at_once
