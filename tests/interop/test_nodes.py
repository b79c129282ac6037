"""An elastic dataset as the source of torchdata's graphs of nodes."""

import itertools
import json

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError

nodes = pytest.importorskip("torchdata.nodes")


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Three shards of unequal size."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(3):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(9 + 4 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    return str(folder / "s-{0..2}.tar")


def dataset(urls):
    """Return a shuffled elastic dataset of keys."""
    return wds.WebDataset(urls, shardshuffle=10, seed=2).shuffle(24).map(lambda sample: sample["__key__"]).elastic(6)


def graphs(urls):
    """Makers of graphs over the dataset."""
    return {
        "alone": lambda: wds.DatasetNode(dataset(urls)),
        "batches": lambda: nodes.Batcher(wds.DatasetNode(dataset(urls)), 4, drop_last=False),
        "threads": lambda: nodes.ParallelMapper(wds.DatasetNode(dataset(urls)), str.upper, num_workers=2),
        "ahead": lambda: nodes.Prefetcher(wds.DatasetNode(dataset(urls)), 3),
    }


@pytest.mark.parametrize("name", ["alone", "batches", "threads", "ahead"])
def test_each_graph_continues(urls, name):
    """Stopped at each step, a graph goes on exactly; the next epoch is another one."""
    make = graphs(urls)[name]
    first = nodes.Loader(make())
    seen, states = [], []
    for batch in first:
        seen.append(batch)
        states.append(json.loads(json.dumps(first.state_dict())))
    following = list(first)
    assert sorted(map(str, following)) != sorted(map(str, seen)) or following != seen
    for step in range(1, len(seen), 3):
        again = nodes.Loader(make())
        again.load_state_dict(states[step - 1])
        assert list(again) == seen[step:], step
        assert list(again) == following


def test_graph_gives_each_sample(urls):
    """The dataset's own order, and nothing else."""
    node = wds.DatasetNode(dataset(urls))
    node.reset()
    assert list(itertools.islice(node, 1000)) == list(dataset(urls))


def test_only_elastic(urls):
    """Another dataset has no state to give."""
    with pytest.raises(UsageError, match=r"elastic"):
        wds.DatasetNode(wds.WebDataset(urls, shardshuffle=False))  # type: ignore[arg-type]
