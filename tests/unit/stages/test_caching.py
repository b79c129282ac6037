"""Cached: samples kept in memory after the first complete pass."""

import pickle

import pytest

import webdataset as wds
from webdataset.core.upstream_utils import PipelineStage
from webdataset.stages.sample_cache import Cached


def counted(passes, n=3):
    """A source that counts how often it is read."""
    passes.append(1)
    yield from range(n)


def test_the_source_is_read_once():
    """Later passes do not touch it."""
    passes, stage = [], Cached()
    assert [list(stage.run(counted(passes))) for _ in range(3)] == [[0, 1, 2]] * 3
    assert len(passes) == 1


def test_what_is_kept_stays_as_it_came():
    """Stages that change samples in place do not change the kept ones, neither in the first pass nor later."""
    stage = Cached()
    dataset = wds.DataPipeline([[{"__key__": "a", "n": 1}]], stage, wds.map_dict(n=lambda n: n + 1))
    assert [list(dataset) for _ in range(3)] == [[{"__key__": "a", "n": 2}]] * 3
    for row in stage([]):
        row["n"] = 0
    assert stage.cached == [{"__key__": "a", "n": 1}]


def test_a_broken_off_pass_keeps_nothing():
    """Half a data set is none."""
    passes, stage = [], Cached()
    assert next(stage(counted(passes))) == 0
    assert list(stage(counted(passes))) == [0, 1, 2]
    assert len(passes) == 2


def test_copies_start_empty():
    """Samples do not travel with a pickled pipeline."""
    stage = Cached()
    list(stage(range(3)))
    assert "3 samples" in repr(stage)
    assert pickle.loads(pickle.dumps(stage)).cached is None
    assert isinstance(stage, PipelineStage)


@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_each_worker_keeps_what_it_sees(tmp_path, mode, kind):
    """Threads of one process, children of a fork, other numbers of workers: every sample once in every epoch."""
    urls = [str(tmp_path / f"{number}.tar") for number in range(4)]
    for number, url in enumerate(urls):
        with wds.TarWriter(url) as sink:
            for index in range(5):
                sink.write({"__key__": f"{number}-{index}", "txt": "x"})
    dataset = wds.WebDataset(urls, shardshuffle=False)
    if kind == "lmdb":
        pytest.importorskip("lmdb")
        dataset = dataset.lmdb_cached(tmp_path / "cache", map_size=1e7)
    else:
        dataset = dataset.mcached()
    expected = sorted(f"{number}-{index}" for number in range(4) for index in range(5))
    for workers in (0, 2, 3):
        with wds.Loader(dataset, None, workers=workers, mode=mode) as loader:
            for _ in range(3):
                assert sorted(sample["__key__"] for sample in loader) == expected
    one, other = iter(dataset), iter(dataset)
    both = [(first["__key__"], second["__key__"]) for first, second in zip(one, other, strict=True)]
    assert sorted(first for first, _ in both) == sorted(second for _, second in both) == expected
