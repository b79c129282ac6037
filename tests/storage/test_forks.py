"""No connection survives a fork: the parent reads first, then workers, however they start; and it reads on."""

import hashlib
import os

import pytest

import webdataset as wds
from support import readings
from support.after_forks import ended, forked
from support.readings import digests_of, shard
from support.scheme_servers import NAMES
from support.worker_reads import ShardReads
from webdataset.storage import prefetch_worker

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SHARDS = [shard(seed, samples=6, size_bytes=40_000) for seed in range(4)]
REMOTE = [name for name in NAMES if name != "memory"]  # what is in memory stays in its process
MEMBERS = 2


@pytest.fixture
def targets(scheme_of, tmp_path):
    """Return a function from a scheme's name to the targets of four shards that are there; secrets are in files."""

    def in_files(options):
        for name, value in (options or {}).items():
            if str(value).startswith("env:"):
                (tmp_path / value[4:]).write_text(os.environ[value[4:]])
                options[name] = f"file:{tmp_path / value[4:]}"
        return options

    def get(name):
        scheme = scheme_of(name)
        for number, content in enumerate(SHARDS):
            scheme.put(f"fork-{number}.tar", content)
        found = [scheme.target(f"fork-{number}.tar") for number in range(len(SHARDS))]
        return [target._replace(options=in_files(target.options)) for target in found]

    return get


def loaded(by_scheme, method):
    """Read all shards in two workers; return the pids, and the urls that came out wrong."""
    data = pytest.importorskip("torch.utils.data")
    wanted = [
        (target, digests_of(content)) for targets in by_scheme for target, content in zip(targets, SHARDS, strict=True)
    ]
    reads = ShardReads(wanted)
    loader = data.DataLoader(reads, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120)
    found = list(loader)
    assert len(found) == len(wanted)
    return {pid for pid, _, _ in found}, [url for _, url, right in found if not right]


def busy_parents(by_scheme):
    """Open a stream of each scheme, half read, one read ahead, and a dataset; each goes on afterwards."""
    streams = [wds.gopen(targets[0].url, storage_options=targets[0].options) for targets in by_scheme]
    begun = [stream.read(70_000) for stream in streams]
    flows = [
        iter(wds.WebDataset([url for url, _ in targets], shardshuffle=False, storage_options=targets[0].options))
        for targets in by_scheme
    ]
    firsts = [[next(flow), next(flow)] for flow in flows]
    return streams, begun, flows, firsts


def read_on(streams, begun, flows, firsts):
    """Read the rest of what was begun; all of it has to be right."""
    for stream, begin in zip(streams, begun, strict=True):
        with stream:
            assert begin + stream.read() == SHARDS[0]
    whole = [digests_of(content)[1] for content in SHARDS]
    for flow, first in zip(flows, firsts, strict=True):
        samples = [*first, *flow]
        assert [readings.digest_of(samples[start : start + 6]) for start in range(0, 24, 6)] == whole


@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_read_after_their_parent(targets, monkeypatch, method):
    """All schemes in one loader; the parent has streams open, one of each being read ahead, and reads them on."""
    pytest.importorskip("torch")
    monkeypatch.setattr(prefetch_worker, "FAR_SECONDS", -1.0)
    by_scheme = [targets(name) for name in REMOTE]
    held = busy_parents(by_scheme)
    pids, wrong = loaded(by_scheme, method)
    assert wrong == []
    assert len(pids) == 2
    assert os.getpid() not in pids
    read_on(*held)


@pytest.mark.parametrize("name", REMOTE)
def test_both_go_on_with_what_was_open(targets, monkeypatch, name):
    """A stream, and a dataset that reads ahead, half read at a fork: parent and children read the rest, all at once."""
    monkeypatch.setattr(prefetch_worker, "FAR_SECONDS", -1.0)
    held = busy_parents([targets(name)])
    children = [forked(lambda: read_on(*held) or True) for _ in range(MEMBERS)]
    read_on(*held)
    assert [ended(child) for child in children] == [0] * MEMBERS
    assert [readings.streamed(target) for target in targets(name)] == [
        hashlib.sha256(content).hexdigest() for content in SHARDS
    ]


@pytest.mark.parametrize("name", ["http", "s3"])
def test_loaders_of_datasets(targets, name):
    """WebDataset itself in workers, after the parent has read: each shard by one worker, every sample once."""
    data = pytest.importorskip("torch.utils.data")
    given = targets(name)
    dataset = wds.WebDataset([url for url, _ in given], shardshuffle=False, storage_options=given[0].options)
    whole = [(sample["__url__"], sample["__key__"], sample["bin"]) for sample in dataset]
    for _ in range(2):
        loader = data.DataLoader(dataset, num_workers=2, batch_size=None, multiprocessing_context="fork", timeout=120)
        found = [(sample["__url__"], sample["__key__"], sample["bin"]) for sample in loader]
        assert sorted(found) == sorted(whole)
    assert [(sample["__url__"], sample["__key__"], sample["bin"]) for sample in dataset] == whole
