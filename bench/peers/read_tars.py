"""webdataset, this library or 1.0.2: tar shards as they are, undecoded."""

from reader import Reader

import webdataset as wds


def plain(shards, _folder):
    """Return the samples in order."""
    return wds.WebDataset(shards, shardshuffle=False)


def elastic(shards, _folder):
    """Return the samples such that reading can be resumed anywhere, with other workers and ranks."""
    return wds.WebDataset(shards, shardshuffle=False).elastic()


def mapped(shards, _folder):
    """Return the samples in order, as memoryviews of the mapped shards."""
    return wds.WebDataset(shards, shardshuffle=False, memory_map=True)


def samples(sample):
    """Yield the sample."""
    yield sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")}


READERS = {name: Reader(function, None, samples) for name, function in {"plain": plain, "elastic": elastic}.items()}
READERS["mapped"] = Reader(mapped, None, samples)
