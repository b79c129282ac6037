"""Read image-text pairs as CLIP training does: filter, tokenize, mix two sources, and batch.

    python examples/clip_pairs.py                               # pairs drawn by this program
    python examples/clip_pairs.py --shards 's3://me/laion-{00000..00099}.tar'

Samples have `jpg`, `txt` and `json` with `width` and `height`, as img2dataset writes them.
"""

import argparse
import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds

LENGTH, VOCABULARY = 16, 4096
COLOURS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 200), "grey": (120, 120, 120)}


def write_pairs(folder: Path, name: str, count: int) -> str:
    """Write pictures of one colour with their captions; return the urls of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    with wds.ShardWriter(str(folder / f"{name}-%02d.tar"), maxcount=100, overwrite=True, verbose=0) as sink:
        for number in range(count):
            word, colour = list(COLOURS.items())[number % len(COLOURS)]
            width, height = (int(size) for size in rng.integers(24, 96, 2))
            image = np.clip(rng.normal(colour, 12, (height, width, 3)), 0, 255).astype(np.uint8)
            text = f"a {word} picture of {width} by {height}, {name}"
            size = {"width": width, "height": height}
            sink.write({"__key__": f"{name}-{number:06d}", "jpg": image, "txt": text, "json": size})
    return str(folder / f"{name}-{{00..{(count - 1) // 100:02d}}}.tar")


def large_enough(sample: dict[str, Any]) -> bool:
    """Tell whether the picture has at least 32 pixels on each side; it is not decoded for that."""
    return bool(min(sample["json"]["width"], sample["json"]["height"]) >= 32)


def centre(image: np.ndarray) -> np.ndarray:
    """Return the middle of a picture as float32[3, 32, 32] in -1..1."""
    top, left = ((size - 32) // 2 for size in image.shape[:2])
    return image[top : top + 32, left : left + 32].astype(np.float32).transpose(2, 0, 1) / 127.5 - 1


def tokenize(text: str) -> np.ndarray:
    """Return int64[16]: a hash for each word; put your tokenizer here."""
    words = [zlib.crc32(word.encode()) % (VOCABULARY - 1) + 1 for word in text.lower().split()][:LENGTH]
    return np.array(words + [0] * (LENGTH - len(words)), np.int64)


def make_pairs(urls: str) -> wds.WebDataset:
    """Return tuples of float32[3, 32, 32] and int64[16]."""
    return (
        wds.WebDataset(urls, shardshuffle=100, seed=1, handler=wds.warn_and_continue)
        .shuffle(1000)
        .decode(only="json")  # the filter needs the sizes alone
        .select(large_enough)
        .decode("rgb8", partial=True, handler=wds.warn_and_continue)  # a broken picture is skipped, with a warning
        .to_tuple("jpg;png;webp", "txt")
        .map_tuple(centre, tokenize)
    )


def main() -> None:
    """Print the shape of each of the first batches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", help="urls; two small sources are drawn by default")
    parser.add_argument("--folder", type=Path, default=Path("clip-data"))
    parser.add_argument("--batches", type=int, default=10)
    options = parser.parse_args()
    if options.shards:
        dataset: Any = make_pairs(options.shards)
    else:
        sources = [make_pairs(write_pairs(options.folder, name, 400)) for name in ("web", "photos")]
        dataset = wds.RandomMix(sources, [0.7, 0.3], longest=True)
    with wds.Loader(dataset.elastic(), batch_size=64, workers=2) as loader:
        for images, tokens in itertools.islice(loader, options.batches):
            print(images.shape, images.dtype, tokens.shape, tokens.dtype, flush=True)
        print(loader.stats().report())


if __name__ == "__main__":
    main()
