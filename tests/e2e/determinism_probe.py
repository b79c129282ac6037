"""Prints digests of the orders that a dataset gives, for test_determinism.py: run by any interpreter, anyhow started.

python determinism_probe.py URLS [START_METHOD WORKERS]
"""

import hashlib
import json
import sys
from typing import Any

import webdataset as wds


def key(sample):
    """Its key."""
    return sample["__key__"]


def drawn(sample, generator):
    """Key and draws."""
    return f"{sample['__key__']} {generator.random():.17f} {generator.randrange(10**6)}"


def numpy_drawn(sample, generator):
    """Key and raw bits."""
    return f"{sample['__key__']} {generator.bit_generator.random_raw()}"


def datasets(urls):
    """Return the datasets of the matrix, by name."""
    plain: dict[str, Any] = {"seed": 42, "shardshuffle": 100}
    return {
        "shards": wds.WebDataset(urls, **plain).map(key),
        "shuffled": wds.WebDataset(urls, **plain).shuffle(30).map(key),
        "detshuffle": wds.WebDataset(urls, shardshuffle=10, detshuffle=True, seed=42)
        .compose(wds.detshuffle(20, seed=5))
        .map(key),
        "blocks": wds.WebDataset(urls, **plain).block_shuffle(16).map(key),
        "bytes": wds.WebDataset(urls, **plain).shuffle(50, initial=5, max_bytes=300).map(key),
        "open": wds.WebDataset(urls, open_shards=3, **plain).shuffle(10).map(key),
        "sampled": wds.WebDataset(urls, **plain).rsample(0.5).map(key),
        "resampled": wds.WebDataset(urls, resampled=True, seed=42).shuffle(10).map(key).with_epoch(60),
        "drawn": wds.WebDataset(urls, **plain).shuffle(20).map(drawn, rng=True),
        "numpy": wds.WebDataset(urls, **plain).map(numpy_drawn, rng="numpy"),
        "mixed": wds.DataPipeline(
            wds.RandomMix([wds.WebDataset(urls, **plain), wds.WebDataset(urls, shardshuffle=5)], [2, 1], longest=True),
            wds.shuffle(10),
            wds.map(key),
        ),
    }


def digest(order):
    """Return the digest of a sequence of texts."""
    return hashlib.sha256("\n".join(order).encode()).hexdigest()[:16]


def seeded(dataset):
    """Give a plain pipeline the seed."""
    if dataset.seed is None:
        dataset.seed = 42
    return dataset


def orders(dataset, method=None, workers=0):
    """Return the digests of three epochs."""
    if method is None:
        return [digest(dataset) for _ in range(3)]
    options = {"num_workers": workers, "multiprocessing_context": method, "persistent_workers": True}
    loader = wds.WebLoader(dataset, batch_size=None, **options)
    return [digest(loader) for _ in range(3)]


def main(urls, method=None, workers="0"):
    """Print one JSON object: name to digests."""
    names = ("drawn",) if method else datasets(urls)  # starting a worker takes a second or two
    found = {name: orders(seeded(datasets(urls)[name]), method, int(workers)) for name in names}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
