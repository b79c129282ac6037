"""Write and read interleaved documents: texts and images in their order, as tokens and pixels for a training step.

    python examples/interleaved.py                                   # documents written by this program
    python examples/interleaved.py --shards 's3://me/mmc4-{000..099}.tar'

Any of the layouts is read (MMC4, OBELICS, MINT-1T), whatever the order of the members in the shard.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds

IMAGE_TOKEN, SIZE = 0, 16


def write_documents(folder: Path, count: int) -> str:
    """Write documents of a title, pictures and captions; return the urls of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with wds.DocumentWriter(str(folder / "documents-%02d.tar"), "siblings", maxcount=25, overwrite=True) as sink:
        for number in range(count):
            parts: list[dict[str, Any]] = [{"type": "text", "text": f"Document {number}."}]
            for place in range(int(rng.integers(1, 5))):
                shade = int(rng.integers(0, 255))
                parts.append({"type": "image", "image": np.full((24, 32, 3), shade, np.uint8), "name": f"{place}.png"})
                parts.append({"type": "text", "text": f"Picture {place} has the shade {shade}."})
            sink.write({"__key__": f"{number:05d}", "parts": parts})
    return str(folder / f"documents-{{00..{(count - 1) // 25:02d}}}.tar")


def to_tokens(document: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of a document, with IMAGE_TOKEN where an image stands, and its images as uint8[n, 16, 16, 3].

    Args:
        document: of the stage ``interleaved``; put your tokenizer here.
    """
    tokens: list[int] = []
    for part in document["parts"]:
        tokens += [IMAGE_TOKEN] if part["type"] == "image" else [2 + byte for byte in part["text"].encode()]
    images = [image[:SIZE, :SIZE] for image in document["images"]]
    return {"key": document["__key__"], "tokens": np.array(tokens, np.int64), "images": np.stack(images)}


def join(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch: tokens padded with -1, all images one after the other, and how many each document has."""
    longest = max(len(document["tokens"]) for document in documents)
    tokens = np.full((len(documents), longest), -1, np.int64)
    for row, document in zip(tokens, documents, strict=True):
        row[: len(document["tokens"])] = document["tokens"]
    counts = [len(document["images"]) for document in documents]
    return {
        "tokens": tokens,
        "images": np.concatenate([document["images"] for document in documents]),
        "counts": counts,
    }


def main() -> None:
    """Print what the first batches hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", help="urls; documents are written by default")
    parser.add_argument("--folder", type=Path, default=Path("document-data"))
    parser.add_argument("--batches", type=int, default=5)
    options = parser.parse_args()
    urls = options.shards or write_documents(options.folder, 100)
    dataset = (
        wds.WebDataset(urls, shardshuffle=100, seed=1)
        .interleaved()  # before shuffle: the members of a document stand next to each other in the shard
        .shuffle(200)
        .decode("rgb8")
        .map(to_tokens)
        .batched(8, collation_fn=join)
    )
    for batch in itertools.islice(dataset, options.batches):
        marks = int((batch["tokens"] == IMAGE_TOKEN).sum())
        print(f"tokens {batch['tokens'].shape}, images {batch['images'].shape}, {marks} places for images", flush=True)
        if not marks == len(batch["images"]) == sum(batch["counts"]):
            raise SystemExit("an image is missing")


if __name__ == "__main__":
    main()
