"""This library with ``random_resized_crop``, by torch: decode, crop, flip, resize, normalise."""

import numpy as np
import torch
from reader import Reader

import webdataset as wds

BATCH, SIZE = 64, 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
SCALE = 1 / np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def augment(sample, rng):
    """Return float32[3, 224, 224] of a random part, and the class."""
    pixels = wds.random_resized_crop(sample["jpg"], SIZE, rng, scale=(0.25, 1), resizer="torch")
    planes = np.multiply(pixels.transpose(2, 0, 1), SCALE / 255, order="C")
    planes -= MEAN * SCALE
    return planes, int(sample["cls"])


def train(shards, _folder):
    """Return batches of pictures and classes."""
    torch.set_num_threads(1)
    return wds.WebDataset(shards, shardshuffle=False, seed=0).map(augment, rng=True).batched(BATCH)


def count(batch):
    """Return the number of pictures of a batch, which must be what was asked for."""
    pictures = batch[0]
    if pictures.shape[1:] != (3, SIZE, SIZE) or pictures.dtype != "float32" or pictures.min() >= 0:
        raise ValueError(f"{pictures.dtype}{pictures.shape} from {pictures.min()}")
    return len(pictures)


READERS = {"train": Reader(train, count, None)}
