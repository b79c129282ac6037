"""Ray Data: it reads our shards, and we read the shards that it writes."""

import json
import logging

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

import webdataset as wds  # noqa: E402


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A Ray of one process."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=80_000_000,
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def test_it_reads_our_shards(running, shards):
    """The same keys, fields and bytes, in order, of every shard that our writer writes."""
    made = [shard for name, shard in shards.items() if not name.startswith("zoo")]
    found = ray.data.read_webdataset([str(shard.path) for shard in made], decoder=None, override_num_blocks=1)
    rows = [
        (row["__key__"], {name: value for name, value in row.items() if not name.startswith("__")})
        for row in found.take_all()
    ]
    wanted = [sample for shard in made for sample in shard.samples]
    assert sorted(rows, key=repr) == sorted(wanted, key=repr)


def test_we_read_its_shards(running, tmp_path):
    """Texts, numbers, JSON and bytes."""
    values = [
        {"__key__": f"r{index}", "txt": f"t{index}", "json": {"a": index}, "cls": index, "bin": b"x" * index}
        for index in range(5)
    ]
    ray.data.from_items(values).write_webdataset(str(tmp_path / "out"))
    urls = sorted((tmp_path / "out").glob("*.tar"))
    found = list(wds.WebDataset(urls, shardshuffle=False).decode())
    for sample in found:
        del sample["__url__"]
    assert json.loads(json.dumps(sorted(sample["__key__"] for sample in found))) == [f"r{index}" for index in range(5)]
    assert sorted(found, key=lambda sample: sample["__key__"]) == values
