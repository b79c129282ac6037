"""TurboLoader: tar shards of JPEGs, which it always decodes; it gives no other field."""

from typing import Any

import turboloader
from reader import Again, Reader

BATCH = 64


def chained(loaders):
    """Yield the batches of one loader after the other."""
    for loader in loaders:
        yield from loader


def plain(shards, _folder):
    """Return lists of decoded samples, one loader a shard."""
    return Again(lambda: chained(turboloader.DataLoader(shard, batch_size=BATCH, num_workers=1) for shard in shards))


def samples(batch):
    """Yield the samples of a list."""
    for sample in batch:
        yield sample["filename"].partition(".")[0], {"jpg": sample["image"].tobytes()}


def train(shards, _folder):
    """Return float32[64, 3, 224, 224] of pictures cropped at random, flipped, resized and normalised."""
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 1, "image_size": 224, "train_aug": True}
    options |= {"output_format": "numpy_chw", "transform": turboloader.ImageNetNormalize()}
    return Again(lambda: chained(turboloader.DataLoader(shard, **options) for shard in shards))


def count(batch):
    """Return the number of pictures of a batch, which must be what was asked for."""
    pictures = batch[0]
    if pictures.shape[1:] != (3, 224, 224) or pictures.dtype != "float32" or pictures.min() >= 0:
        raise ValueError(f"{pictures.dtype}{pictures.shape} from {pictures.min()}")
    return len(pictures)


READERS = {"plain": Reader(plain, len, samples), "train": Reader(train, count, None)}
