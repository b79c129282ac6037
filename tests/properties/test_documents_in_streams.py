"""Documents whose members are samples of their own, in elastic datasets: each comes once, and whole."""

import functools
import io
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.distributed import WorkerContext

MOST = 5


def name_pictures(number, index):
    """Return the names of the pictures of a document."""
    return [f"{number}-{index}-{place}" for place in range((number + index) % 4)]


@functools.cache
def shard(number, length):
    """Return a shard of documents, each with its pictures beside it, in any order."""
    stream, chosen = io.BytesIO(), random.Random(number)
    with wds.TarWriter(stream) as sink:
        for index in range(length):
            pictures = name_pictures(number, index)
            record = json.dumps({"images": [f"{name}.jpg" for name in pictures]})
            members = [{"__key__": f"{number}-{index}", "json": record}]
            members += [{"__key__": name, "jpg": name.encode()} for name in pictures]
            chosen.shuffle(members)
            for member in members:
                sink.write(member)
    return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards of every length, each under seven names."""
    path = tmp_path_factory.mktemp("documents")
    for number in range(7):
        for length in range(MOST + 1):
            (path / f"{number}-{length}.tar").write_bytes(shard(number, length))
    return path


def describe(sample):
    """Return the key and the fields of a sample."""
    return sample["__key__"], tuple(sorted(name for name in sample if not name.startswith("__")))


def list_documents(lengths):
    """Return what comes of shards of some lengths, sorted."""
    found = []
    for number, length in enumerate(lengths):
        for index in range(length):
            front = f"{number}-{index}-"
            names = [f"{name.removeprefix(front)}.jpg" for name in name_pictures(number, index)]
            found.append((f"{number}-{index}", tuple(sorted(["json", *names]))))
    return sorted(found)


def read_part(dataset, ranks, workers, state=None, steps=None):
    """Return what workers give, in their turns, and the state after ``steps`` items of each (None: all)."""
    state = state or dataset.begin_state()
    runs = [
        dataset.elastic_run(WorkerContext(rank, ranks, worker, workers), state)
        for rank in range(ranks)
        for worker in range(workers)
    ]
    found = []
    for run in runs:
        for given_items, item in enumerate(run, 1):
            found.append(item)
            if given_items == steps:
                break
    merged = wds.merge_states([run.state_dict() for run in runs])
    for run in runs:
        run.close()
    return found, merged


TOPOLOGY = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, MOST), min_size=1, max_size=7).filter(any),
    streams=st.sampled_from([3, 4, 9]),
    shuffled=st.sampled_from([False, 10]),
    topologies=st.lists(TOPOLOGY, min_size=1, max_size=4),
    steps=st.integers(1, 4),
    kind=st.sampled_from(["plain", "composed", "shuffled", "tail"]),
)
def test_documents_come_once_and_whole(folder, lengths, streams, shuffled, topologies, steps, kind):
    """On any ranks and workers, and resumed on others at any place: each document once, with all its pictures."""
    urls = [str(folder / f"{number}-{length}.tar") for number, length in enumerate(lengths)]
    dataset = wds.WebDataset(urls, shardshuffle=shuffled, seed=3, empty_check=False)
    if kind == "composed":
        dataset = dataset.compose(wds.compose(wds.map(dict), wds.sibling_fields()))
    else:
        dataset = dataset.sibling_fields(adjacent=kind != "tail")
    dataset = dataset.map(describe)
    if kind == "shuffled":
        dataset = dataset.shuffle(5)
    dataset = dataset.elastic(streams)
    found, state = [], None
    for ranks, workers in topologies[:-1]:
        part, state = read_part(dataset, ranks, workers, state, steps)
        found += part
    ranks, workers = topologies[-1]
    part, _ = read_part(dataset, ranks, workers, state)
    assert sorted(found + part) == list_documents(lengths)
