"""Write datasets with the published mosaicml-streaming, one for each compression; say as JSON what it reads of them.

``mds_probe.py FOLDER``. Its package imports torchvision for readers of pictures that are not used here. The wheel of
torchvision is built for a torch with CUDA, so its operators do not load beside a torch for CPUs: the two that its
import asks for by name are declared, and never called.
"""

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from streaming import MDSWriter, StreamingDataset  # noqa: E402

SAMPLES = 60
COLUMNS = {
    "number": "int", "small": "uint8", "large": "str_int", "words": "str", "noise": "bytes", "real": "float32",
    "exact": "str_decimal", "tree": "json", "grid": "ndarray", "fixed": "ndarray:float32:2,3", "picture": "pil",
    "photo": "jpeg", "drawing": "png",
}  # fmt: skip


def make_sample(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a value for each column."""
    import decimal

    picture = Image.new("RGB", (3 + number % 5, 4), (number, 2, 3))
    photo, drawing = io.BytesIO(), io.BytesIO()
    picture.save(photo, "JPEG")
    picture.save(drawing, "PNG")
    return {
        "number": rng.randrange(-(1 << 63), 1 << 63),
        "small": np.uint8(number),
        "large": rng.randrange(1 << 100),
        "words": "".join(chr(rng.choice([65, 233, 20363, 128512])) for _ in range(rng.randrange(9))),
        "noise": b"\0" + rng.randbytes(rng.randrange(400)),
        "real": np.float32(rng.random()),
        "exact": decimal.Decimal(rng.randrange(10**6)) / 100,
        "tree": {"a": [number, None], "b": {"c": rng.random()}},
        "grid": np.arange(number + 1, dtype="int16").reshape(1, -1),
        "fixed": np.full((2, 3), rng.random(), "float32"),
        "picture": picture,
        "photo": Image.open(photo),
        "drawing": Image.open(drawing),
    }


def say(value: Any) -> Any:
    """Return what JSON can hold of a value: pictures by their pixels, arrays with type and shape."""
    if isinstance(value, Image.Image):
        return [list(value.size), value.convert("RGB").tobytes().hex()]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.ravel().tolist()]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, dict | int | float | str) else str(value)


folder, found = Path(sys.argv[1]), {}
for compression in (None, "gz", "zstd:7", "bz2", "br"):
    place = folder / str(compression).partition(":")[0]
    rng = random.Random(f"{compression}")
    with MDSWriter(
        out=str(place), columns=COLUMNS, compression=compression, hashes=["sha1", "xxh64"], size_limit=1 << 14
    ) as out:
        for number in range(SAMPLES):
            out.write(make_sample(rng, number))
    dataset = StreamingDataset(local=str(place), shuffle=False, batch_size=1)
    found[place.name] = [{name: say(dataset[number][name]) for name in COLUMNS} for number in range(SAMPLES)]
print(json.dumps(found))
