"""Ranges of own samples while answers break: equal samples, or typed errors; nothing is left behind."""

import gc
import threading

import pytest

import webdataset as wds
from support.proxy import Fault, FaultyProxy, seeded
from support.range_server import RangeServer
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import WebDatasetError
from webdataset.samples.shard_extents import ExtentReader
from webdataset.storage import extents, retries
from webdataset.storage.prefetch_worker import prefetch_budget

SHARDS, SAMPLES = 3, 48


@pytest.fixture(autouse=True)
def near(monkeypatch):
    """Small gaps are left out, pauses are short, and nothing is left behind."""
    monkeypatch.setattr(extents, "REMOTE_GAP_BYTES", 1)
    monkeypatch.setattr(extents, "BYTES_PER_SECOND", 0)
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "webdataset-ahead":
            thread.join(15)
    assert (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of three shards with indexes."""
    folder = tmp_path_factory.mktemp("own")
    for number in range(SHARDS):
        with wds.TarWriter(str(folder / f"{number}.tar")) as sink:
            for index in range(SAMPLES):
                content = (number * SAMPLES + index).to_bytes(2, "big") * 5_000
                sink.write({"__key__": f"{number}-{index:03d}", "bin": content})
    wds.write_indexes([str(folder / f"{number}.tar") for number in range(SHARDS)], ["binary", "dali"])
    with RangeServer(folder) as running:
        yield running


def read_workers(root, handler):
    """Read the epoch as four workers, one after another; return what each gave."""
    found = []
    for worker in range(4):
        dataset = wds.WebDataset(f"{root}/{{0..2}}.tar", shardshuffle=False, seed=1, handler=handler, empty_check=False)
        with dataset.elastic(streams=24).elastic_run(WorkerContext(0, 1, worker, 4)) as run:
            found.append([(sample["__key__"], sample["bin"]) for sample in run])
    return found


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(12))
def test_broken_answers_give_the_same_samples(seed, server, monkeypatch):
    """Resets, cuts, ignored and misplaced ranges: all samples in order, or an error; never another sample."""
    used = []
    plain = ExtentReader.lists
    monkeypatch.setattr(ExtentReader, "lists", lambda self: used.append(self) or plain(self))
    whole = read_workers(server.root, wds.reraise_exception)
    count = len(used)
    assert sum(map(len, whole)) == SHARDS * SAMPLES
    assert count
    errors = []
    kinds = ("reset", "cut", "rangeless", "misplaced")
    plan = seeded(seed, kinds, size=20_000, rate=0.3, most=20)
    with FaultyProxy(server.root.removeprefix("http://"), plan) as proxy:
        given = read_workers(proxy.url, lambda error: errors.append(error) or True)
    assert all(isinstance(error, WebDatasetError) for error in errors)
    for mine, theirs in zip(given, whole, strict=True):
        assert mine == theirs or (errors and set(mine) < set(theirs))


def test_a_server_that_ignores_ranges_is_asked_once(server):
    """Where ranges are ignored the first shard shows it: all are read whole, and no further index is asked for."""

    def ignore_ranges(_method, _path):
        return Fault("rangeless")

    with FaultyProxy(server.root.removeprefix("http://"), ignore_ranges) as proxy:
        dataset = wds.WebDataset(f"{proxy.url}/{{0..2}}.tar", shardshuffle=False, seed=1).elastic(streams=24)
        with dataset.elastic_run(WorkerContext(0, 1, 1, 4)) as run:
            assert len(list(run)) == SHARDS * SAMPLES // 4
        assert sum(request.path.endswith(".wdsindex") for request in proxy.passed) == 1
