"""``map_shards`` on executors of Python: the same bytes as serial, whatever dies, and errors that name the way out."""

import concurrent.futures
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from support import mapped
from support.mapped import make_shards, read_outputs
from webdataset.cluster.executor_engines import ExecutorEngine
from webdataset.cluster.receipts import receipt_url
from webdataset.core.errors import JobFailed, MissingExtra, UsageError
from webdataset.writing.local_file import is_alive, name_partial

COUNTS = [30, 12, 0, 41, 25, 9, 17, 3]
RULES: Any = {"on_sample_error": "quarantine"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Inputs, and what one undisturbed process makes of them."""
    folder = tmp_path_factory.mktemp("map")
    make_shards(folder / "in", COUNTS)
    wds.map_shards(mapped.vary_slowly, f"{folder}/in/*.tar", f"{folder}/out/", **RULES)
    return folder / "in", read_outputs(folder / "out")


def spawned_pool():
    """A pool of three processes that import what they need."""
    return concurrent.futures.ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn"))


def test_threads(reference, tmp_path):
    """An executor of threads, which stays open: the bytes of serial; the second run makes nothing."""
    source, expected = reference
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for made in (len(COUNTS), 0):
            report = wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine=pool, **RULES)
            assert len(report.done) == made
            assert read_outputs(tmp_path) == expected
        assert pool.submit(int, "3").result() == 3


class LeavesPartialFiles(concurrent.futures.Executor):
    """An engine that repeats tasks itself: processes died after the folders were listed, and one still writes."""

    def __init__(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        self.pids = [ended.pid, os.getpid()]

    def submit(self, function, /, *arguments, **options):
        job, number, _ = arguments
        done = concurrent.futures.Future()
        done.set_result(function(*arguments, **options))
        output = job.outputs[number].url
        for url in (output, receipt_url(output), f"{job.manifest}/quarantine/{number:06d}.jsonl"):
            for pid in self.pids:
                path = name_partial(url.removeprefix("file:")).replace(f".{os.getpid()}-", f".{pid}-")
                Path(path).parent.mkdir(exist_ok=True)
                Path(path).touch()
        return done


def test_files_of_processes_that_died_late(reference, tmp_path):
    """What they left is gone when the job ends; what another process may still write stays."""
    source, expected = reference
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine=LeavesPartialFiles(), **RULES)
    left = [path.name for path in tmp_path.rglob("*.partial")]
    assert len(left) == 3 * len(COUNTS)
    assert all(f".{os.getpid()}-" in name for name in left)
    for path in tmp_path.rglob("*.partial"):
        path.unlink()
    assert read_outputs(tmp_path) == expected


class CountsCalls:
    """Says whether two threads are in one object at once."""

    def __init__(self):
        self.inside = 0

    def __call__(self, sample):
        self.inside += 1
        assert self.inside == 1
        threading.Event().wait(0.0005)
        self.inside -= 1
        return sample


def test_threads_have_objects_of_their_own(reference, tmp_path):
    """A class is set up once a thread: its object is never in two threads at once."""
    source, _ = reference
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        report = wds.map_shards(CountsCalls, f"{source}/*.tar", f"{tmp_path}/", engine=pool)
    assert report.counts["out"] == sum(COUNTS)


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL")
@pytest.mark.parametrize("seed", range(2))
def test_pools_whose_processes_are_killed(reference, tmp_path, seed):
    """A function that makes pools: each that breaks is replaced, and the bytes are those of serial."""
    source, expected = reference
    rng, over, pools, kills = random.Random(seed), threading.Event(), [], []

    def make():
        pools.append(spawned_pool())
        return pools[-1]

    def kill():
        while not over.wait(rng.uniform(0.3, 0.9)) and len(kills) < 4:
            living = [process.pid for process in list((pools[-1]._processes or {}).values())] if pools else []
            if living:
                kills.append(rng.choice(living))
                os.kill(kills[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine=make, retries=10, **RULES)
    finally:
        over.set()
        killer.join()
    assert read_outputs(tmp_path) == expected
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".partial", ".running", ".death"))]


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL")
def test_a_sample_that_kills_its_process_ends_the_job(tmp_path):
    """No pool survives it: the job ends with an error, and no innocent sample is in the quarantine."""
    make_shards(tmp_path / "in", [30, 30])
    with pytest.raises(JobFailed, match="process of the engine died") as caught:
        wds.map_shards(
            mapped.crash_at_13, f"{tmp_path}/in/*.tar", f"{tmp_path}/out/", engine=spawned_pool, retries=1, **RULES
        )
    # the other output may have been with both pools that died
    assert 0 in [result.number for result in caught.value.report.failed]
    assert not list((tmp_path / "out").rglob("*.death"))


def test_an_executor_that_breaks_is_not_replaced(tmp_path):
    """Given as an object, it is the caller's: what is left fails, with words on what to do."""
    make_shards(tmp_path / "in", [20, *[5] * 20])
    with spawned_pool() as pool, pytest.raises(JobFailed) as caught:
        wds.map_shards(mapped.crash_at_13, f"{tmp_path}/in/*.tar", f"{tmp_path}/out/", engine=pool, retries=0, **RULES)
    reasons = {result.number: result.reason for result in caught.value.report.failed}
    assert "process of the engine died" in reasons[0]
    assert any("the executor broke: run the job again" in reason for reason in reasons.values())


def test_several_outputs_of_several_inputs(reference, tmp_path):
    """N to M on threads equals N to M in one process."""
    source, _ = reference
    places = {}
    for name, engine in (
        ("serial", "serial"),
        ("threads", ExecutorEngine(lambda: concurrent.futures.ThreadPoolExecutor(3))),
    ):
        places[name] = tmp_path / name
        wds.map_shards(mapped.vary, f"{source}/*.tar", f"{places[name]}/x-%03d.tar", output_shards=5, engine=engine)
    assert read_outputs(places["threads"]) == read_outputs(places["serial"])


def test_what_cannot_be_sent_is_told(reference, tmp_path):
    """A function that holds a lock cannot travel: the error says so, and what to do."""
    source, _ = reference
    lock = threading.Lock()
    with pytest.raises((UsageError, JobFailed), match="cannot be sent to another process"):
        wds.map_shards(lambda sample: (lock, sample)[1], f"{source}/*.tar", f"{tmp_path}/", engine=spawned_pool)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_that_was_not_waited_for_is_gone():
    """Its partial files are removed by the next task, though its pid still is one."""
    child = os.fork()
    if not child:
        os._exit(0)
    try:
        while Path(f"/proc/{child}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
            threading.Event().wait(0.01)
        os.kill(child, 0)
        assert not is_alive(child)
        assert is_alive(os.getpid())
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize("engine", [7, "slurm", dict, object()])
def test_what_is_no_engine(reference, tmp_path, engine):
    """The error names what an engine may be."""
    source, _ = reference
    with pytest.raises(UsageError, match="no executor of concurrent.futures"):
        wds.map_shards(mapped.keep, f"{source}/*.tar", f"{tmp_path}/", engine=engine)


@pytest.mark.parametrize(("engine", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_engines_that_are_not_installed(reference, tmp_path, monkeypatch, engine, module):
    """The error names the extra."""
    source, _ = reference
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"\[{engine}\]"):
        wds.map_shards(mapped.keep, f"{source}/*.tar", f"{tmp_path}/", engine=engine)
