"""Epochs with a state after every batch keep nothing of the epochs before."""

import gc
import itertools
import tracemalloc

import pytest

import webdataset as wds

KEPT_BYTES = 20_000  # in six epochs; the states of one are more


@pytest.fixture
def urls(tmp_path):
    """Shards of small samples."""
    found = []
    for number in range(4):
        found.append(str(tmp_path / f"{number}.tar"))
        with wds.TarWriter(found[-1]) as sink:
            for index in range(40):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x" * index})
    return found


@pytest.mark.parametrize("options", [{}, {"max_bytes": 2000}])
def test_nothing_is_kept_from_epoch_to_epoch(urls, options):
    """Objects and bytes behind the third epoch are those behind the ninth."""
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(60, **options).decode().elastic(4)

    def epoch():
        run = iter(dataset)
        while list(itertools.islice(run, 16)):
            run.state_dict()

    def kept():
        gc.collect()
        return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]

    tracemalloc.start(1)
    try:
        for _ in range(3):
            epoch()
        objects, size = kept()
        for _ in range(6):
            epoch()
        more, grown = kept()
    finally:
        tracemalloc.stop()
    assert more - objects < 50
    assert grown - size < KEPT_BYTES
