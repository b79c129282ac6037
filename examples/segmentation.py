"""Segment images with random access: a map-style dataset over plain tar shards, for torch's own samplers.

    python examples/segmentation.py                                        # shapes drawn by this program
    python examples/segmentation.py --shards 'https://host/seg-{00..09}.tar'

Samples have `jpg` and `seg.png`, one class a pixel. Each shard may have an index beside it (`wds index`); without
one the headers are read once.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

import webdataset as wds

CLASSES, SIZE = 3, 32


def write_shapes(folder: Path, count: int) -> str:
    """Write pictures of discs and squares with their masks; every tenth has a square. Return the urls of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    with wds.ShardWriter(str(folder / "seg-%02d.tar"), maxcount=50, overwrite=True, verbose=0) as sink:
        for number in range(count):
            top, left = rng.integers(10, SIZE - 10, 2)
            square = number % 10 == 0
            if square:
                inside = (abs(rows - top) < 8) & (abs(columns - left) < 8)
            else:
                inside = (rows - top) ** 2 + (columns - left) ** 2 < 64
            mask = np.where(inside, 2 if square else 1, 0).astype(np.uint8)
            image = np.clip(rng.normal(40, 10, (SIZE, SIZE, 3)) + 150 * inside[..., None], 0, 255).astype(np.uint8)
            sink.write({"__key__": f"{number:05d}", "jpg": image, "seg.png": mask, "json": {"square": square}})
    urls = str(folder / f"seg-{{00..{(count - 1) // 50:02d}}}.tar")
    wds.write_indexes(urls, "dali")
    return urls


class Masks(torch.utils.data.Dataset[Any]):
    """Samples by number: float32[3, H, W] and int64[H, W].

    Args:
        urls: of the shards.
    """

    def __init__(self, urls: str) -> None:
        self.samples = wds.IndexedDataset(urls, decode="rgb8")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        sample = self.samples[number]
        mask = sample["seg.png"] if sample["seg.png"].ndim == 2 else sample["seg.png"][..., 0]
        return torch.from_numpy(sample["jpg"]).permute(2, 0, 1).float() / 255, torch.from_numpy(mask).long()


def weigh(urls: str) -> list[float]:
    """Return a weight for each sample, by number: squares are rare, and drawn as often as discs."""
    dataset = wds.WebDataset(urls, shardshuffle=False, select_files=lambda name: name.endswith(".json")).decode()
    squares = [sample["json"]["square"] for sample in dataset]
    counts = {kind: max(1, squares.count(kind)) for kind in (True, False)}
    return [1 / counts[square] for square in squares]


def make_model() -> nn.Module:
    """Return a small network without pooling; put your own here."""
    layers: list[nn.Module] = []
    for width_in, width in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(width_in, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, CLASSES, 1))


def main() -> None:
    """Train, and print the loss and the share of right pixels of shapes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", help="urls; shapes are drawn by default")
    parser.add_argument("--folder", type=Path, default=Path("segmentation-data"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    urls = options.shards or write_shapes(options.folder, 300)
    sampler = WeightedRandomSampler(weigh(urls), options.steps * 16)
    loader = DataLoader(Masks(urls), batch_size=16, sampler=sampler, num_workers=options.workers)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step, (images, masks) in enumerate(loader):
        found = model(images)
        loss = nn.functional.cross_entropy(found, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            right = (found.argmax(1) == masks)[masks > 0].float().mean().item()
            print(f"step {step + 1}: loss {loss.item():.3f}, shapes {right:.0%}", flush=True)


if __name__ == "__main__":
    main()
