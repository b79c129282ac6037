"""A plan of reading is what ranks and workers really read."""

from collections import Counter

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext, use_place
from webdataset.core.errors import UsageError
from webdataset.index.lookup import sample_counts
from webdataset.loading.read_plan import plan_reading


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Seven shards of 10 to 22 samples."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(7):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(10 + 2 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "cls": index})
    return [str(folder / f"s-{number}.tar") for number in range(7)]


DATASETS = {
    "shards": lambda urls: wds.WebDataset(
        urls, shardshuffle=9, seed=2, nodesplitter=wds.split_by_node, empty_check=False
    ),
    "samples": lambda urls: wds.WebDataset(
        urls, shardshuffle=9, seed=2, nodesplitter=wds.split_by_sample, workersplitter=None, empty_check=False
    ),
    "elastic": lambda urls: wds.WebDataset(urls, shardshuffle=9, seed=2).elastic(8),
    "equal": lambda urls: wds.WebDataset(urls, shardshuffle=9, seed=2).equal_epochs(counts=True),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2), (3, 1), (4, 3)])
def test_a_plan_is_what_workers_read(urls, name, ranks, workers):
    """Shards and numbers of samples of each worker, against the samples that it gives; in epochs 0 and 1."""
    make = DATASETS[name]
    for epoch in (0, 1):
        plan = plan_reading(make(urls), ranks=ranks, workers=workers, counts=sample_counts(urls, True), epoch=epoch)
        assert plan.samples == sum(10 + 2 * number for number in range(7))
        for worker in plan.workers:
            place = WorkerContext(worker.rank, ranks, worker.worker, max(1, workers))
            with use_place(place):
                dataset = make(urls)
                dataset.set_epoch(epoch)
                given = [sample["__url__"] for sample in dataset]
            assert worker.samples == len(given)
            planned = Counter()
            for shard in worker.shards:
                planned[shard.url] += shard.samples
            assert +planned == Counter(given)
            if name != "elastic":  # whose streams take turns
                assert [shard.url for shard in worker.shards if shard.samples] == list(dict.fromkeys(given))


def test_fewer_shards_than_workers(urls):
    """Workers without a shard are counted and named."""
    plan = plan_reading(DATASETS["shards"](urls), ranks=2, workers=5)
    assert any("3 of 10 workers have nothing" in text for text in plan.warnings)
    assert not plan_reading(DATASETS["samples"](urls), ranks=2, workers=2, counts={}).samples


def test_uneven_ranks(urls):
    """Ranks of different length are warned of, by samples where these are known; equal ones are not."""
    assert "ranks read 3 to 4 shards" in plan_reading(DATASETS["shards"](urls), ranks=2).warnings[0]
    plan = plan_reading(DATASETS["shards"](urls), ranks=2, counts=sample_counts(urls, True))
    assert "samples in an epoch" in plan.warnings[0]
    assert plan_reading(DATASETS["equal"](urls), ranks=2, counts=sample_counts(urls, True)).warnings == []
    assert plan_reading(DATASETS["shards"](urls[:6]), ranks=2).warnings == []


def test_shards_of_very_different_sizes(urls, tmp_path):
    """By samples where they are known, else by bytes of local files."""
    with wds.TarWriter(str(tmp_path / "large.tar")) as sink:
        for index in range(400):
            sink.write({"__key__": f"{index}", "cls": index})
    mixed = [*urls[:3], str(tmp_path / "large.tar")]
    for counts in (None, sample_counts(mixed, True)):
        warnings = plan_reading(DATASETS["shards"](mixed), counts=counts).warnings
        assert len(warnings) == 1
        assert "very different sizes" in warnings[0]
        assert "large.tar" in warnings[0]


def test_shards_listed_twice(urls):
    """A shard that stands twice in the list is read twice."""
    assert "1 shards are listed more than once" in plan_reading(DATASETS["shards"]([*urls, urls[0]])).warnings[0]


def test_resampled_shards(urls):
    """Draws have no plan."""
    plan = plan_reading(wds.WebDataset(urls, resampled=True))
    assert (plan.workers, plan.shards) == ([], 7)
    assert "drawn with replacement" in plan.warnings[0]


def test_what_cannot_be_planned(urls):
    """A mix is planned source by source; fewer streams than ranks are refused."""
    with pytest.raises(UsageError, match="each source of a mix"):
        plan_reading(wds.RandomMix([DATASETS["shards"](urls)]))
    with pytest.raises(UsageError, match="8 streams cannot be shared"):
        plan_reading(DATASETS["elastic"](urls), ranks=9)
