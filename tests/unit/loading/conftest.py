"""Shards of small arrays for loader tests."""

import numpy as np
import pytest

import webdataset as wds


@pytest.fixture(scope="session")
def numbered(tmp_path_factory):
    """Return the urls of 7 shards of unequal length; sample n has the array ``n`` and the class n."""
    folder = tmp_path_factory.mktemp("numbered")
    urls, number = [], 0
    for shard in range(7):
        urls.append(str(folder / f"shard-{shard}.tar"))
        with wds.TarWriter(urls[-1]) as writer:
            for _ in range(11 + 3 * shard):
                writer.write({"__key__": f"{number:05d}", "npy": np.full((3, 5), number, np.int32), "cls": number})
                number += 1
    return urls


@pytest.fixture
def elastic(numbered):
    """Return an elastic, shuffled dataset of (array, class)."""
    dataset = wds.WebDataset(numbered, shardshuffle=100, seed=7).shuffle(20).decode().to_tuple("npy", "cls")
    return dataset.elastic(streams=12)


@pytest.fixture
def order(elastic):
    """Return the classes in the order of epoch 0."""
    elastic.set_epoch(0)
    return [int(number) for _, number in elastic]
