"""Shards read ahead and over several connections, while answers break: equal samples, or typed errors."""

import gc
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import webdataset as wds
from support.proxy import FaultyProxy, seeded
from webdataset.core.errors import WebDatasetError
from webdataset.core.seeds import make_rng
from webdataset.storage import parallel_ranges, prefetch_worker, retries
from webdataset.storage.prefetch_worker import prefetch_budget
from webdataset.testing.archives import archive, member
from webdataset.testing.sources import RangeServer

KINDS = ("reset", "cut", "busy", "rangeless", "misplaced")


def shard(number):
    """A shard of 400 KB."""
    rng = make_rng("prefetch", number)
    return archive(*[member(f"{number}-{index:03d}.bin".encode(), rng.randbytes(10_000)) for index in range(40)])


PAGES = {f"/{number}.tar": shard(number) for number in range(5)}


@pytest.fixture(autouse=True)
def hungry(monkeypatch):
    """Every reader is taken for a starving one far away; nothing is left behind."""
    monkeypatch.setattr(parallel_ranges, "ALIGNMENT_BYTES", 32 * 1024)
    monkeypatch.setattr(prefetch_worker, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(prefetch_worker, "WINDOW_BYTES", 1)
    monkeypatch.setattr(prefetch_worker, "FAR_SECONDS", -1.0)
    monkeypatch.setattr(prefetch_worker, "FAST_BYTES_PER_SECOND", float("inf"))
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(parallel_ranges, "_refusal_times", {})
    yield
    gc.collect()
    for _ in range(1500):
        if not ahead_threads() and (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0):
            break
        time.sleep(0.01)
    assert not ahead_threads()
    assert (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0)


def ahead_threads():
    """The threads that read ahead."""
    return [thread for thread in threading.enumerate() if thread.name == "webdataset-ahead"]


def digests(samples):
    """Key and digest of each sample."""
    return [(sample["__key__"], hashlib.sha256(sample["bin"]).hexdigest()) for sample in samples]


def dataset(root, **options):
    """A dataset of the shards of a server."""
    return wds.WebDataset([root + page for page in PAGES], shardshuffle=False, **options)


@pytest.mark.parametrize("seed", range(16))
def test_seeded_faults(seed):
    """Whatever breaks, each shard's samples are those of the shard, in order, and what is missing was told."""
    with RangeServer(dict(PAGES)) as server:
        whole = digests(dataset(server.root, prefetch=0))
        address = server.root.removeprefix("http://")
        plan = seeded(seed, KINDS, size=400_000, rate=0.4, most=12)
        with FaultyProxy(address, plan) as proxy:
            heard = []
            found = digests(dataset(proxy.url, handler=lambda error: heard.append(error) or True))
        assert all(isinstance(error, WebDatasetError) for error in heard)
        assert len({error.url for error in heard}) == len(heard)
        if not heard:
            assert found == whole
        places = [whole.index(sample) for sample in found]
        assert places == sorted(set(places))
        lost = {key.partition("-")[0] for key, _ in set(whole) - set(found)}
        assert lost <= {Path(error.url).stem for error in heard}


def test_a_replaced_shard_is_never_mixed():
    """A shard that changes while it is read gives samples of one version only, or an error."""
    with RangeServer(dict(PAGES)) as server:
        flow = iter(dataset(server.root))
        found = [next(flow) for _ in range(3)]
        for page in list(server.pages):
            server.pages[page] = shard(int(page[1]) + 100)
        failed = []
        try:
            found.extend(flow)
        except WebDatasetError as error:  # where not all of the first one's bytes were on their way by then
            failed.append(Path(str(error.url)).stem)
        del flow
    versions = {}
    for sample in found:
        versions.setdefault(sample["__url__"], []).append(sample["__key__"].partition("-"))
    for url, names in versions.items():
        assert len({version for version, _, _ in names}) == 1
        assert [int(number) for _, _, number in names] == list(range(len(names)))
        assert len(names) == 40 or Path(url).stem in failed
    assert failed or len(versions) == len(PAGES)


_LEAVES = """
import sys, itertools
import webdataset as wds
from webdataset.storage import prefetch_worker
prefetch_worker.FAR_SECONDS = -1.0
flow = iter(wds.WebDataset(sys.argv[1:], shardshuffle=False))
for sample in itertools.islice(flow, 20):
    pass
print(sample["__key__"])
"""


@pytest.mark.parametrize("kind", ["http", "pipe"])
def test_the_interpreter_ends(tmp_path, kind):
    """A program that ends in the middle of a pass ends at once, with nothing on its stderr and no command left."""
    (tmp_path / "x.tar").write_bytes(PAGES["/0.tar"])
    with RangeServer(dict(PAGES)) as server:
        urls = [server.root + page for page in PAGES]
        if kind == "pipe":
            urls = [f"pipe:echo $$ >> {tmp_path}/pids; cat {tmp_path}/x.tar; sleep 600"] * 4
        ended = subprocess.run([sys.executable, "-c", _LEAVES, *urls], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "0-019\n")
    if kind == "pipe":
        for pid in (tmp_path / "pids").read_text().split():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers(method):
    """A parent that reads ahead starts workers that read ahead; everybody's samples are whole."""
    torch_data = pytest.importorskip("torch.utils.data")
    with RangeServer(dict(PAGES)) as server:
        flow = iter(dataset(server.root))
        before = [next(flow)["__key__"] for _ in range(10)]
        loader = torch_data.DataLoader(
            dataset(server.root), num_workers=2, batch_size=None, multiprocessing_context=method
        )
        found = sorted(digests(loader))
        assert found == sorted(digests(dataset(server.root, prefetch=0)))
        rest = [sample["__key__"] for sample in flow]
    assert before + rest == [key for key, _ in found]
