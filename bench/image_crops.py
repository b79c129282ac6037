"""How much less does a random crop cost than decoding the whole picture and resizing a part of it with Pillow?

JPEGs of four sizes, crops of 224 x 224 with a quarter to all of the area, CPU milliseconds a picture, medians, all in
turns in one thread. ``whole`` decodes only, in full; ``pillow`` decodes in full, cuts out and resizes, all with Pillow,
as users' functions do; ``crop`` is ``wds.random_resized_crop``, and ``torch`` the same with ``resizer="torch"``.
"""

import io
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from webdataset.codecs.images.decode import decode_pixels

SIDE = 224
SHARE = (0.25, 1.0)
SIZES = {(375, 500): 100, (512, 512): 100, (1080, 1920): 20, (3000, 4000): 6}


def make_picture(height: int, width: int) -> bytes:
    """Return a JPEG of coarse colours with some noise, of about the size of a photograph's."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = (smooth + rng.integers(-8, 8, smooth.shape, dtype=np.int16)).clip(0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noisy).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def crop_with_pillow(data: bytes, rng: random.Random) -> Any:
    """Return a part of the whole picture, as functions of users make it."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = picture.size
    wide, high = (round(side * rng.uniform(SHARE[0] ** 0.5, 1)) for side in (width, height))
    left, top = rng.randint(0, width - wide), rng.randint(0, height - high)
    part = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + high))
    return np.asarray(part)[:, :: rng.choice((1, -1))].copy()


def measure(function: Callable[[], Any], count: int) -> float:
    """Return CPU milliseconds a picture."""
    began = time.process_time()
    for _ in range(count):
        function()
    return (time.process_time() - began) / count * 1e3


def main() -> None:
    """Measure each size."""
    torch.set_num_threads(1)
    for (height, width), pictures in SIZES.items():
        count = max(1, int(pictures * SCALE))
        data = make_picture(height, width)
        crop = partial(wds.random_resized_crop, data, SIDE, random.Random(0), scale=SHARE)
        candidates: dict[str, Callable[[], Any]] = {
            "whole": partial(decode_pixels, data, "RGB"),
            "pillow": partial(crop_with_pillow, data, random.Random(0)),
            "crop": crop,
            "torch": partial(crop, resizer="torch"),
        }
        found: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(ROUNDS):
            for name, function in candidates.items():
                found[name].append(measure(function, count))
        medians = {name: rounded(statistics.median(times)) for name, times in found.items()}
        show(f"crops of {height} x {width}", kilobytes=len(data) // 1000, milliseconds=medians)


if __name__ == "__main__":
    main()
