"""How well pipelines mix."""

import random
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.flow.shuffle_quality import compute_quality, measure_shuffle_quality, simulate_shuffle_quality

PLACES = [(shard, ordinal) for shard in range(20) for ordinal in range(50)]


def test_a_perfect_shuffle_reaches_the_ideals():
    """All figures are near what they are to be."""
    order = PLACES.copy()
    random.Random(1).shuffle(order)
    found = compute_quality(order, 100)
    assert abs(found.correlation) < 0.1
    assert found.displacement == pytest.approx(1, abs=0.05)
    assert found.distance == pytest.approx(1, abs=0.05)
    assert found.same_shard == pytest.approx(found.same_shard_ideal, abs=0.01)
    assert found.shards_per_batch == pytest.approx(found.shards_per_batch_ideal, abs=0.5)


def test_no_shuffle_is_seen_as_none():
    """Order of storage: correlation 1, no displacement, neighbours next to each other, batches of one shard."""
    found = compute_quality(PLACES, 25)
    assert (found.correlation, found.displacement) == (pytest.approx(1), 0)
    assert found.distance == pytest.approx(3 / 1001)
    assert (found.same_shard, found.shards_per_batch) == (1, 1)
    assert (found.samples, found.shards, found.batch) == (1000, 20, 25)


def test_the_ideals_are_exact():
    """Counted over all pairs and all batches of a small dataset."""
    from itertools import combinations

    places = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    found = compute_quality(places, 3)
    pairs = list(combinations([shard for shard, _ in places], 2))
    assert found.same_shard_ideal == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    batches = list(combinations([shard for shard, _ in places], 3))
    assert found.shards_per_batch_ideal == pytest.approx(sum(len(set(batch)) for batch in batches) / len(batches))


def test_reversed_order_is_told():
    """Correlation -1."""
    assert compute_quality(PLACES[::-1], 10).correlation == pytest.approx(-1)


def test_better_shuffles_have_better_figures():
    """More shards open, larger buffers: more shards in a batch."""
    options: dict[str, Any] = {"shards": 20, "samples": 100, "batch": 50}
    found = [
        simulate_shuffle_quality(**options),
        simulate_shuffle_quality(**options, stages=[wds.shuffle(100)]),
        simulate_shuffle_quality(**options, stages=[wds.shuffle(100)], open_shards=8),
        simulate_shuffle_quality(**options, stages=[wds.shuffle(2000, initial=2000)]),
    ]
    shards = [each.shards_per_batch for each in found]
    assert shards == sorted(shards)
    assert shards[0] < 2 < 4 < shards[2]
    assert shards[3] > 17
    assert all(each.samples == 2000 for each in found)


def test_workers_alternate():
    """Batches come from each worker's own shards, and nothing is left out."""
    found = simulate_shuffle_quality([30, 50, 20, 40], workers=2, shardshuffle=False, batch=10)
    assert (found.samples, found.shards) == (140, 4)
    assert found.shards_per_batch == 1
    assert (
        found.correlation
        < compute_quality([(s, n) for s, size in enumerate((30, 50, 20, 40)) for n in range(size)], 10).correlation
    )


def test_a_simulation_is_reproducible():
    """By its seed."""
    once = lambda seed: simulate_shuffle_quality(9, 40, [wds.shuffle(50)], seed=seed)
    assert once(1) == once(1) != once(2)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Six shards of twenty samples."""
    folder = tmp_path_factory.mktemp("quality")
    for number in range(6):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(20):
                sink.write({"__key__": f"{number}-{index:02d}", "cls": index})
    return str(folder / "s-{0..5}.tar")


def test_real_datasets_are_measured(shards):
    """By the addresses of their samples; the order of storage is that of the urls, however shards are shuffled."""
    in_order = wds.WebDataset(shards, shardshuffle=False)
    assert measure_shuffle_quality(in_order, 20).correlation == pytest.approx(1)
    mixed = wds.WebDataset(shards, shardshuffle=6, seed=1, open_shards=3).shuffle(30)
    found = measure_shuffle_quality(mixed, 20)
    assert (found.samples, found.shards) == (120, 6)
    assert abs(found.correlation) < 0.9
    assert found.shards_per_batch > 3
    assert measure_shuffle_quality(mixed.map(lambda sample: sample["__key__"]), 20, limit=50).samples == 50


def test_simulation_and_reality_agree(shards):
    """The same stages, the same order."""
    real = measure_shuffle_quality(wds.WebDataset(shards, shardshuffle=False).block_shuffle(40), 20)
    simulated = simulate_shuffle_quality(6, 20, [wds.block_shuffle(40)], shardshuffle=False, batch=20)
    assert real.same_shard == pytest.approx(simulated.same_shard, abs=0.1)


def test_batches_cannot_be_measured(shards):
    """They are stored nowhere; the error says what to measure."""
    with pytest.raises(UsageError, match="in front of"):
        measure_shuffle_quality(wds.WebDataset(shards, shardshuffle=False).batched(5))


@pytest.mark.parametrize("places", [[], [(0, 0)]])
def test_nothing_is_not_measured(places):
    """Two samples are needed."""
    with pytest.raises(UsageError, match="at least two"):
        compute_quality(places)


def test_the_report_can_be_read():
    """Each figure beside its ideal."""
    text = str(simulate_shuffle_quality(5, 20, batch=10))
    assert text.splitlines()[0] == "100 samples of 5 shards in batches of 10"
    assert text.count("perfect") == 5
