"""Write shards from real images, stream them into training, and say how well and how fast that went.

Flows in: the handwritten digits and the two photographs that scikit-learn ships. Flows out: shards in ``demo-data/``,
a trained classifier's accuracy on shards it never saw, and samples per second. Nothing is downloaded.

Run it with ``make demo``, or with ``pip install 'webdataset[torch,images,fast,demo]'`` and ``python examples/demo.py``.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn
from tqdm import tqdm

import webdataset as wds

BATCH = 64
DIGITS = 1797
HELD_OUT = 300
WANTED_ACCURACY = 0.97


def digit_samples() -> list[dict[str, object]]:
    """Return the 1797 digits (8 x 8 pixels) as samples of png + cls + json, in a fixed random order."""
    digits = load_digits()
    samples: list[dict[str, object]] = [
        {
            "__key__": f"digit-{index:04d}",
            "png": (image * (255 / 16)).astype(np.uint8),
            "cls": int(label),
            "json": {"source": "sklearn.datasets.load_digits", "index": index, "mean": float(image.mean())},
        }
        for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True))
    ]
    random.Random(0).shuffle(samples)
    return samples


def photo_samples() -> Iterator[dict[str, object]]:
    """Yield the two photographs as samples of jpg + txt."""
    photos = load_sample_images()
    for name, image in zip(photos.filenames, photos.images, strict=True):
        stem = Path(name).stem
        yield {
            "__key__": stem,
            "jpg": image,
            "txt": f"{stem}, a photograph of {image.shape[1]} x {image.shape[0]} pixels",
        }


def write_shards(folder: Path) -> dict[str, list[str]]:
    """Write all shards and return their paths by split.

    Args:
        folder: where they go; made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digits = digit_samples()
    splits = {"train": digits[HELD_OUT:], "test": digits[:HELD_OUT], "photos": photo_samples()}
    for split, samples in splits.items():
        with wds.ShardWriter(str(folder / f"{split}-%04d.tar"), maxcount=250, verbose=0) as sink:
            for sample in samples:
                sink.write(sample)
    return {split: sorted(str(path) for path in folder.glob(f"{split}-*.tar")) for split in splits}


def training_loader(shards: list[str], workers: int) -> wds.WebLoader:
    """Return batches of (float32[64, 1, 8, 8], int64[64]): shuffled, decoded and batched in worker processes."""
    dataset = (
        wds.WebDataset(shards, shardshuffle=100, seed=0)
        .shuffle(1000)
        .decode("torchl")
        .to_tuple("png", "cls")
        .map_tuple(lambda image: image.reshape(1, 8, 8))
        .batched(BATCH)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def network() -> nn.Module:
    """Return a small convolutional classifier of 8 x 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 16, 10),
    )


def train(model: nn.Module, loader: wds.WebLoader, epochs: int, total: int) -> float:
    """Train and return the mean throughput in samples per second.

    Args:
        model: what is trained.
        loader: gives one epoch of batches a pass.
        epochs: number of passes.
        total: number of samples in all passes, for the progress bar.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    seen, start = 0, time.perf_counter()
    with tqdm(desc="training", total=total, unit=" samples", file=sys.stdout, mininterval=0.5) as progress:
        for epoch in range(epochs):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), torch.as_tensor(labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen += len(images)
                progress.update(len(images))
            schedule.step()
            progress.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.4f}")
    return seen / (time.perf_counter() - start)


@torch.no_grad()
def accuracy(model: nn.Module, shards: list[str]) -> float:
    """Return the share of held-out digits that the model names right.

    Raises:
        RuntimeError: the shards did not give every sample that was written to them.
    """
    dataset = wds.WebDataset(shards, shardshuffle=False).decode("torchl").to_tuple("png", "cls").batched(BATCH)
    model.eval()
    right = seen = 0
    for images, labels in dataset:
        found = model(images.reshape(-1, 1, 8, 8)).argmax(1)
        right += int((found == torch.as_tensor(labels)).sum())
        seen += len(images)
    if seen != HELD_OUT:
        raise RuntimeError(f"wrote {HELD_OUT} held-out samples, read {seen}")
    return right / seen


def show_photos(shards: list[str]) -> None:
    """Stream the photographs and print what was decoded."""
    for key, image, text in wds.WebDataset(shards, shardshuffle=False).decode("rgb8").to_tuple("__key__", "jpg", "txt"):
        print(f"  {key}: {image.dtype}{list(image.shape)}, mean {image.mean():.1f}  ({text})")


def main() -> int:
    """Run the demonstration; return 0 if the accuracy is as good as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("demo-data"), help="where the shards are written")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    shards = write_shards(options.folder)
    size = sum(path.stat().st_size for path in options.folder.glob("*.tar"))
    print(f"wrote {sum(map(len, shards.values()))} shards, {size / 1e6:.1f} MB, in {options.folder}/")
    print("streamed photographs:")
    show_photos(shards["photos"])

    model = network()
    rate = train(
        model, training_loader(shards["train"], options.workers), options.epochs, options.epochs * (DIGITS - HELD_OUT)
    )
    score = accuracy(model, shards["test"])
    print(f"accuracy on {HELD_OUT} held-out digits: {score:.2%} (wanted: {WANTED_ACCURACY:.0%} or more)")
    print(f"throughput: {rate:,.0f} samples/s through {options.workers} workers, training included")
    return 0 if score >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
