"""``map_shards`` on a cluster of Dask and on Ray, both real: the bytes of serial, whatever is killed."""

import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from support import mapped
from support.mapped import make_shards, read_outputs
from webdataset.cluster.executor_engines import DaskEngine, RayEngine
from webdataset.core.errors import JobFailed

COUNTS = [120, 50, 0, 160, 100, 36, 70, 12]
RULES: Any = {"on_sample_error": "quarantine"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Inputs, and what one undisturbed process makes of them."""
    folder = tmp_path_factory.mktemp("map")
    make_shards(folder / "in", COUNTS)
    wds.map_shards(mapped.vary_slowly, f"{folder}/in/*.tar", f"{folder}/out/", **RULES)
    return folder / "in", read_outputs(folder / "out")


@pytest.fixture(scope="module")
def dask_client():
    """A client of a cluster of two processes on this machine, with their pids."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def ray_started():
    """Ray with two processors."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(params=["dask", "ray"])
def engine(request):
    """An engine, and a function that lists the pids of its processes."""
    if request.param == "dask":
        client = request.getfixturevalue("dask_client")
        return client, lambda: [
            worker.process.pid for worker in client.cluster.workers.values() if worker.process and worker.process.pid
        ]
    request.getfixturevalue("ray_started")
    return RayEngine(), list_ray_workers


def list_ray_workers():
    """The processes that run tasks of ours now."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::run_carried_task"):
            found.append(int(place.name))
    return found


@pytest.mark.parametrize("form", ["sample", "stream", "class", "lambda"])
def test_each_form_of_function(engine, reference, tmp_path, form):
    """Functions of samples and of streams, classes and lambdas give what they give in one process."""
    source, _ = reference
    (tmp_path / "notes").mkdir()
    fn: Any = {
        "sample": mapped.vary,
        "stream": mapped.pair_up,
        "class": mapped.Scaler,
        "lambda": lambda sample: {**sample, "n": b"1"},
    }[form]
    params = {"factor": 2, "folder": str(tmp_path / "notes")} if form == "class" else {}
    for place, chosen in (("serial", "serial"), ("engine", engine[0])):
        wds.map_shards(fn, f"{source}/*.tar", f"{tmp_path}/{place}/", engine=chosen, params=params)
    if form == "class":
        shutil.rmtree(tmp_path / "notes")
    assert read_outputs(tmp_path / "engine") == read_outputs(tmp_path / "serial")


def test_the_seeds_example(engine, tmp_path):
    """``augment_wds`` of the seed document, shard by shard: the bytes of one process."""
    generator = np.random.default_rng(0)
    names = [str(tmp_path / f"openimages-{shard:06d}.tar") for shard in range(3)]
    for name in names:
        with wds.TarWriter(name) as writer:
            for number in range(4):
                image = generator.integers(0, 200, (8, 9, 3), dtype=np.uint8)
                writer.write({"__key__": f"{number}", "png": image, "json": {"class": number}})
    found = []
    for place, chosen in (("serial", "serial"), ("engine", engine[0])):
        outputs = [name.replace("openimages", place) for name in names]
        wds.map_shards(mapped.augment_wds, names, outputs, engine=chosen, jobs=2, params={"maxcount": 3})
        found.append([Path(name).read_bytes() for name in outputs])
    assert found[0] == found[1]
    samples = wds.WebDataset(outputs, shardshuffle=False).decode("rgb8").to_tuple("__key__", "cls")
    assert list(samples) == [(str(number), number) for _ in names for number in range(3)]


def test_again_and_changed(engine, reference, tmp_path):
    """A second run makes nothing; a changed input is made again; N to M equals that of one process."""
    source, expected = reference
    for made in (len(COUNTS), 0):
        report = wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/out/", engine=engine[0], **RULES)
        assert len(report.done) == made
        assert read_outputs(tmp_path / "out") == expected
    inputs = make_shards(tmp_path / "in", [5, 5])
    wds.map_shards(mapped.vary, inputs, f"{tmp_path}/more/", engine=engine[0])
    make_shards(tmp_path / "other", [5, 6])
    Path(tmp_path, "other", "001.tar").replace(inputs[1])
    report = wds.map_shards(mapped.vary, inputs, f"{tmp_path}/more/", engine=engine[0])
    assert (len(report.done), len(report.skipped)) == (1, 1)
    for place, chosen in (("one", "serial"), ("many", engine[0])):
        wds.map_shards(mapped.vary, f"{source}/*.tar", f"{tmp_path}/{place}/x-%03d.tar", output_shards=5, engine=chosen)
    assert read_outputs(tmp_path / "many") == read_outputs(tmp_path / "one")


@pytest.mark.parametrize("seed", range(2))
def test_processes_are_killed(engine, reference, tmp_path, seed):
    """SIGKILL at random moments: equal bytes, equal quarantine, nothing left over."""
    source, expected = reference
    chosen, list_processes = engine
    rng, over, kills = random.Random(seed), threading.Event(), []

    def kill():
        while not over.wait(rng.uniform(0.05, 0.2)) and len(kills) < 4:
            living = list_processes()
            if living:
                kills.append(rng.choice(living))
                os.kill(kills[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine=chosen, retries=10, **RULES)
    finally:
        over.set()
        killer.join()
    assert kills
    assert read_outputs(tmp_path) == expected
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".partial", ".running", ".death"))]


def test_a_sample_that_fails_fails_its_output_alone(engine, tmp_path):
    """The error names the sample; the other outputs are there."""
    inputs = make_shards(tmp_path / "in", [3, 8, 2])
    with pytest.raises(JobFailed, match="a sample of three") as caught:
        wds.map_shards(mapped.fail_some, inputs, f"{tmp_path}/out/", engine=engine[0])
    assert [result.number for result in caught.value.report.failed] == [1]
    assert len(list((tmp_path / "out").glob("*.tar"))) == 2


def test_names_of_engines(reference, tmp_path):
    """``engine="dask"`` starts processes of its own where there is no client."""
    pytest.importorskip("distributed")
    source, expected = reference
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine="dask", jobs=2, **RULES)
    assert read_outputs(tmp_path) == expected


def test_an_address_is_a_client(dask_client, reference, tmp_path):
    """``DaskEngine`` takes the address of a scheduler."""
    source, expected = reference
    engine = DaskEngine(dask_client.scheduler.address)
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine=engine, **RULES)
    assert read_outputs(tmp_path) == expected
