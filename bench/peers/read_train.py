"""webdataset, this library or 1.0.2, as trainings on pictures use it: decode, crop, flip, resize, normalise.

The lines of ``augment`` are a user's own; Pillow resizes, with antialiasing.
"""

import random

import numpy as np
from PIL import Image
from reader import Reader

import webdataset as wds

BATCH, SIZE = 64, 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
SCALE = 1 / np.array([0.229, 0.224, 0.225], np.float32)


def augment(picture):
    """Return float32[3, 224, 224] of a random part of uint8[H, W, 3]."""
    height, width = picture.shape[:2]
    high, wide = (random.randint(side // 2, side) for side in (height, width))
    top, left = random.randint(0, height - high), random.randint(0, width - wide)
    part = Image.fromarray(picture).resize(
        (SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + high)
    )
    pixels = np.asarray(part)[:, :: random.choice((1, -1))]
    return ((pixels * np.float32(1 / 255) - MEAN) * SCALE).transpose(2, 0, 1)


def train(shards, _folder):
    """Return batches of pictures and classes."""
    dataset = wds.WebDataset(shards, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls")
    return dataset.map_tuple(augment).batched(BATCH)


def count(batch):
    """Return the number of pictures of a batch, which must be what was asked for."""
    pictures = batch[0]
    if pictures.shape[1:] != (3, SIZE, SIZE) or pictures.dtype != "float32":
        raise ValueError(f"{pictures.dtype}{pictures.shape}")
    return len(pictures)


READERS = {"train": Reader(train, count, None)}
