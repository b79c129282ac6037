"""Set-ups that would lose samples, give them twice, or hang: what is said, and that the fix it names is one.

Ranks and workers are simulated by the environment, as a launcher sets it.
"""

import itertools
import logging
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import NoSamples, UsageError
from webdataset.shards import split

GRID = list(itertools.product([1, 2, 3, 4, 5], [1, 2, 4], [1, 2, 3]))  # shards, workers, ranks
SIZES = [5, 3, 8, 1, 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with five shards."""
    found = tmp_path_factory.mktemp("shards")
    for number, size in enumerate(SIZES):
        with wds.TarWriter(str(found / f"s-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index}", "txt": "x"})
    return found


def urls_of(folder, shards):
    """Return the names of some shards."""
    return [str(folder / f"s-{number}.tar") for number in range(shards)]


@pytest.fixture
def everywhere(monkeypatch):
    """Return a function that runs a dataset in each worker of each rank."""

    def run(made, ranks, workers):
        found = []
        for rank, worker in itertools.product(range(ranks), range(workers)):
            places = {"RANK": rank, "WORLD_SIZE": ranks, "WORKER": worker, "NUM_WORKERS": workers}
            for name, number in places.items():
                monkeypatch.setenv(name, str(number))
            made.set_epoch(0)
            found.append([sample["__key__"] for sample in made])
        return found

    return run


def keys_of(shards):
    """Return all keys of some shards."""
    return sorted(f"{number}-{index}" for number in range(shards) for index in range(SIZES[number]))


@pytest.mark.parametrize(("shards", "workers", "ranks"), GRID)
def test_fewer_shards_than_workers(folder, everywhere, shards, workers, ranks):
    """Cut by sample, the workers' samples are those of the dataset, each once, however few the shards."""
    urls = urls_of(folder, shards)
    source = [wds.SimpleShardList(urls), wds.split_by_sample, wds.tarfile_to_samples()]
    for made in (
        wds.WebDataset(urls, nodesplitter=wds.split_by_sample, shardshuffle=10, seed=1, empty_check=False).shuffle(9),
        wds.DataPipeline(*source, wds.shuffle(9)),
        wds.DataPipeline(source[0], wds.shuffle(10), *source[1:]),
    ):
        made.seed = 1
        given = everywhere(made, ranks, workers)
        assert sorted(itertools.chain(*given)) == keys_of(shards)
    if all(SIZES[number] >= ranks * workers for number in range(shards)):
        assert all(given)  # nobody is without samples


@pytest.mark.parametrize(("shards", "workers", "ranks"), GRID)
def test_whole_shards_or_an_error_with_the_numbers(folder, everywhere, shards, workers, ranks):
    """Split by whole shards, samples come once each; where a worker is left without, the error says all numbers."""
    urls = urls_of(folder, shards)
    made = wds.WebDataset(urls, nodesplitter=wds.split_by_node)
    if shards >= ranks * workers:
        assert sorted(itertools.chain(*everywhere(made, ranks, workers))) == keys_of(shards)
        return
    with pytest.raises(NoSamples) as caught:
        everywhere(made, ranks, workers)
    message = str(caught.value)
    there = "is 1 shard" if shards == 1 else f"are {shards} shards"
    assert f"there {there}, fewer than the {ranks * workers} workers in all" in message
    assert f"of {ranks}, worker" in message
    assert f"of {workers}:" in message
    assert "nodesplitter=wds.split_by_sample" in message


@pytest.mark.parametrize(
    ("ranks", "workers", "message"),
    [
        (1, 1, "there is 1 shard for 1 worker;"),
        (1, 2, "are 2 shards for 2 workers in all;"),
        (2, 1, "for 2 workers in all;"),
    ],
)
def test_enough_shards_that_hold_nothing(tmp_path, everywhere, ranks, workers, message):
    """Where there are shards enough, the error says so, and what else may be wrong."""
    urls = [str(tmp_path / f"{number}.tar") for number in range(ranks * workers)]
    for url in urls:
        with wds.TarWriter(url):
            pass
    with pytest.raises(NoSamples, match=message) as caught:
        everywhere(wds.WebDataset(urls, nodesplitter=wds.split_by_node), ranks, workers)
    assert "the shards are empty, were stepped over by the handler" in str(caught.value)


def test_either_splitter_may_cut_samples(folder, everywhere):
    """split_by_sample shares out between ranks and workers, in whichever place it is given, and in both."""
    urls = urls_of(folder, 2)
    choices: list[dict[str, Any]] = [
        {"workersplitter": wds.split_by_sample},
        {"workersplitter": wds.split_by_sample, "nodesplitter": wds.split_by_node},
        {"workersplitter": wds.split_by_sample, "nodesplitter": wds.split_by_sample},
        {"workersplitter": None, "nodesplitter": wds.split_by_sample},
    ]
    for splitters in choices:
        made = wds.WebDataset(urls, empty_check=False, **splitters)
        assert sorted(itertools.chain(*everywhere(made, 3, 2))) == keys_of(2)


def test_specifications_are_cut_by_sample_too(folder, everywhere):
    """In a specification, the splitter means what it means elsewhere."""
    spec = {"version": 1, "mix": "concat", "sources": [{"name": "a", "shards": urls_of(folder, 2)}]}
    made = wds.WebDataset(spec, nodesplitter=wds.split_by_sample, empty_check=False)
    assert sorted(itertools.chain(*everywhere(made, 3, 2))) == keys_of(2)


def test_a_forgotten_nodesplitter(folder, everywhere):
    """The error has the numbers and the one line that mends it."""
    with pytest.raises(UsageError, match=r"rank 0 of 3, .*nodesplitter=wds\.split_by_node.*all 3 ranks"):
        everywhere(wds.WebDataset(urls_of(folder, 3)), 3, 1)
    mended = wds.WebDataset(urls_of(folder, 3), nodesplitter=wds.split_by_node)
    assert sorted(itertools.chain(*everywhere(mended, 3, 1))) == keys_of(3)


def test_a_launcher_alone_only_warns(folder, monkeypatch, caplog):
    """Tasks of srun may each do something else: they read all, as ever, and the log says how to share out."""
    split._warn_once.cache_clear()
    for name, text in {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}.items():
        monkeypatch.setenv(name, text)
    with caplog.at_level(logging.WARNING, "webdataset"):
        made = wds.WebDataset(urls_of(folder, 3))
        assert len(list(made)) == len(list(made)) == len(keys_of(3))
    assert len(caplog.records) == 1
    assert "rank 1 of 3" in caplog.text
    shared = wds.WebDataset(urls_of(folder, 3), nodesplitter=wds.split_by_node)
    assert {sample["__key__"][0] for sample in shared} == {"1"}


def test_unseeded_shuffles_before_a_split_agree(folder, everywhere):
    """Without a seed, ranks still draw one order before they share out."""
    made = wds.DataPipeline(
        wds.SimpleShardList(urls_of(folder, 5)),
        wds.shuffle(10),
        wds.split_by_node,
        wds.tarfile_to_samples(),
    )
    assert sorted(itertools.chain(*everywhere(made, 3, 1))) == keys_of(5)


def test_more_ranks_than_streams(folder, everywhere):
    """Streams that cannot go round are refused with both numbers."""
    with pytest.raises(UsageError, match=r"2 streams cannot be shared out between 3 ranks.*multiple of 3"):
        everywhere(wds.WebDataset(urls_of(folder, 3)).elastic(2), 3, 1)


def test_equal_steps_and_check_ranks_alone(folder):
    """In one process both do nothing; arguments are checked."""
    pytest.importorskip("torch")
    made = wds.WebDataset(urls_of(folder, 2))
    wds.check_ranks(made)
    assert len(list(wds.equal_steps(made, "pad", every=3))) == 8
    with pytest.raises(UsageError, match="'drop' and 'pad'"):
        wds.equal_steps(made, "resample")
    with pytest.raises(UsageError, match="every=0"):
        wds.equal_steps(made, every=0)
