"""webdataset, this library or 1.0.2: tar shards as they are, undecoded."""

from reader import Reader

import webdataset as wds


def plain(shards, _folder):
    """Return the samples in order."""
    return wds.WebDataset(shards, shardshuffle=False)


def elastic(shards, _folder):
    """Return the samples such that reading can be resumed anywhere, with other workers and ranks."""
    return wds.WebDataset(shards, shardshuffle=False).elastic()


def samples(sample):
    """Yield the sample."""
    yield sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")}


READERS = {"plain": Reader(plain, None, samples), "elastic": Reader(elastic, None, samples)}
