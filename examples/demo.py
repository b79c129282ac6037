"""Write shards from real images, stream them into training, and say how well and how fast that went.

Flows in: the handwritten digits and the two photographs that scikit-learn ships. Flows out: shards in ``demo-data/``,
a trained classifier's accuracy on shards it never saw, and samples per second. Nothing is downloaded.

Kill it in the middle, by ``kill -9`` if you like, and run it again: it goes on behind the last checkpoint, to the same
accuracy. The proof is a digest of all keys in the order of training: at the end, the shards are read once more in one
go, and must give the same.

Run it with ``make demo``, or with ``pip install '.[torch,images,fast,demo]'`` and ``python examples/demo.py``.
"""

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn
from tqdm import tqdm

import webdataset as wds

BATCH = 64
SAVE_EVERY = 10  # batches
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
    return find_shards(folder)


def find_shards(folder: Path) -> dict[str, list[str]]:
    """Return the paths of all shards by split."""
    return {split: sorted(str(path) for path in folder.glob(f"{split}-*.tar")) for split in ("train", "test", "photos")}


def training_loader(shards: list[str], workers: int, *, decode: bool = True) -> wds.WebLoader:
    """Return batches of (keys, float32[64, 1, 8, 8], int64[64]): decoded in worker processes, shuffled here once more.

    ``elastic`` gives the loader a state: what training has received, not what the workers have read ahead.

    Args:
        shards: paths.
        workers: number of worker processes; with one thread for the tensors, two keep this machine busy.
        decode: False gives the keys alone, in the same order.
    """
    dataset = wds.WebDataset(shards, shardshuffle=100, seed=0).shuffle(1000)
    if decode:
        dataset = dataset.decode("torchl").to_tuple("__key__", "png", "cls")
        dataset = dataset.map_tuple(None, lambda image: image.reshape(1, 8, 8))
    else:
        dataset = dataset.to_tuple("__key__")
    elastic = dataset.batched(16).elastic(streams=12)
    loader = wds.WebLoader(elastic, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return loader.unbatched().shuffle(256).batched(BATCH)


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


class Training:
    """A training that can be stopped anywhere.

    Args:
        loader: gives one epoch of batches a pass.
        epochs: number of passes.
        checkpoint: where it is saved; what is there already is gone on from.

    Attributes:
        batches: how many were trained on.
        resumed: how many of them before this process.
        digest: of the keys of all samples, in the order of training.
    """

    def __init__(self, loader: wds.WebLoader, epochs: int, checkpoint: Path) -> None:
        self.loader = loader
        self.epochs = epochs
        self.checkpoint = checkpoint
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, max(1, epochs))
        self.epoch = self.batches = self.seen = self.resumed = 0
        self.digest = ""
        if checkpoint.exists():
            self._load(torch.load(checkpoint, weights_only=True))

    def save(self) -> None:
        """Write everything down, or nothing: a checkpoint is complete or the one before."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
            "loader": json.dumps(self.loader.state_dict()),
            "counts": [self.epochs, self.epoch, self.batches, self.seen],
            "digest": self.digest,
        }
        waiting = self.checkpoint.with_suffix(".part")
        torch.save(state, waiting)
        waiting.replace(self.checkpoint)

    def _load(self, state: dict[str, Any]) -> None:
        epochs, self.epoch, self.batches, self.seen = state["counts"]
        if epochs != self.epochs:
            raise SystemExit(f"{self.checkpoint} is of a training of {epochs} epochs: remove it to begin anew")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.loader.load_state_dict(json.loads(state["loader"]))
        self.resumed, self.digest = self.batches, state["digest"]

    def run(self) -> float:
        """Train to the end and return the throughput of this process in samples per second."""
        self.model.train()
        before, start, total = self.seen, time.perf_counter(), self.epochs * (DIGITS - HELD_OUT)
        with tqdm(
            desc="training", total=total, initial=before, unit=" samples", file=sys.stdout, mininterval=0.5
        ) as bar:
            while self.epoch < self.epochs:
                for keys, images, labels in self.loader:
                    loss = self._step(images, labels)
                    self.digest = chained(self.digest, keys)
                    self.batches += 1
                    self.seen += len(images)
                    bar.update(len(images))
                    if self.batches % SAVE_EVERY == 0:
                        self.save()
                        bar.set_postfix(epoch=self.epoch + 1, loss=f"{loss:.4f}", refresh=False)
                self.schedule.step()
                self.epoch += 1
                self.save()
        return (self.seen - before) / (time.perf_counter() - start)

    def _step(self, images: Any, labels: Any) -> float:
        loss = nn.functional.cross_entropy(self.model(images), torch.as_tensor(labels))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def chained(digest: str, keys: Any) -> str:
    """Return the digest of everything so far and of one more batch's keys."""
    return hashlib.sha256("\n".join([digest, *keys]).encode()).hexdigest()


def read_in_one_go(shards: list[str], workers: int, epochs: int) -> str:
    """Return the digest of a training that nobody interrupts: the keys of all epochs, and nothing else."""
    loader, digest = training_loader(shards, workers, decode=False), ""
    for _ in range(epochs):
        for (keys,) in loader:
            digest = chained(digest, keys)
    return digest


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

    checkpoint = options.folder / "checkpoint.pt"
    shards = find_shards(options.folder) if checkpoint.exists() else write_shards(options.folder)
    size = sum(path.stat().st_size for path in options.folder.glob("*.tar"))
    made = "found" if checkpoint.exists() else "wrote"
    print(f"{made} {sum(map(len, shards.values()))} shards, {size / 1e6:.1f} MB, in {options.folder}/")
    print("streamed photographs:")
    show_photos(shards["photos"])

    training = Training(training_loader(shards["train"], options.workers), options.epochs, checkpoint)
    if training.resumed:
        print(f"going on behind batch {training.resumed}, in the middle of epoch {training.epoch + 1}")
    rate = training.run()
    score = accuracy(training.model, shards["test"])
    print(f"accuracy on {HELD_OUT} held-out digits: {score:.2%} (wanted: {WANTED_ACCURACY:.0%} or more)")
    print(f"throughput: {rate:,.0f} samples/s through {options.workers} workers, training included")
    same = prove(training, score, read_in_one_go(shards["train"], options.workers, options.epochs))
    checkpoint.unlink(missing_ok=True)
    return 0 if same and score >= WANTED_ACCURACY else 1


def prove(training: Training, score: float, expected: str) -> bool:
    """Say whether the training was as an uninterrupted one: the same samples in the same order, and the same result.

    Args:
        training: one that has ended.
        score: its accuracy.
        expected: digest of the keys when nobody interrupts.
    """
    parts = b"".join(part.numpy().tobytes() for part in training.model.state_dict().values())
    weights = hashlib.sha256(parts).hexdigest()
    how = f"resumed at batch {training.resumed}" if training.resumed else "not interrupted"
    found = "equals" if training.digest == expected else "DIFFERS FROM"
    print(f"{how}: digest {training.digest[:16]} of {training.seen} samples in order {found} that of reading in one go")
    print(f"weights {weights[:16]}, accuracy {score:.2%}", end="")
    result = {"epochs": training.epochs, "accuracy": score, "weights": weights}
    kept = training.checkpoint.with_name("uninterrupted.json")
    before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if not training.resumed:
        kept.write_text(json.dumps(result), encoding="utf-8")
        print("; kill it the next time, and run it again: they will be the same")
    elif before.get("epochs") == training.epochs:
        print(f"; {'equals' if before == result else 'DIFFERS FROM'} the uninterrupted run of before")
    else:
        print()
    return training.digest == expected


if __name__ == "__main__":
    sys.exit(main())
