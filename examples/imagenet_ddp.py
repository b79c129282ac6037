"""Train an image classifier on tar shards with several processes: DDP, mixed precision, checkpoint and resume.

    python examples/imagenet_ddp.py                                        # one process, digits of scikit-learn
    torchrun --nproc-per-node 2 examples/imagenet_ddp.py                    # two processes on this machine
    torchrun ... examples/imagenet_ddp.py --shards 's3://me/imagenet-train-{000000..001281}.tar' --classes 1000

Run it again after a kill, with any number of processes: it continues after the last checkpoint, and no sample of the
epoch is left out or seen twice. Samples have `jpg` (or `png`) and `cls`.
"""

import argparse
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import distributed, nn

import webdataset as wds


def write_digits(folder: Path) -> None:
    """Write the 1797 digits of scikit-learn as shards."""
    digits = load_digits()
    with wds.ShardWriter(str(folder / "digits-%02d.tar"), maxcount=150, overwrite=True, verbose=0) as sink:
        for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            pixels = np.repeat((image * (255 / 16)).astype(np.uint8)[..., None], 3, axis=2)
            enlarged = np.kron(pixels, np.ones((4, 4, 1), np.uint8))
            sink.write({"__key__": f"{number:06d}", "png": enlarged, "cls": int(label)})


def augment(sample: dict[str, Any], rng: random.Random) -> tuple[Any, int]:
    """Return uint8[32, 32, 3] of a random part, and the class; `rng` belongs to this sample in this epoch."""
    # for photographs: size 224, scale=(0.08, 1), and flip=0.5, which digits do not bear
    return wds.random_resized_crop(sample["image"], 32, rng, scale=(0.5, 1), flip=0), int(sample["cls"])


def make_loader(urls: str, batch: int, workers: int) -> wds.Loader:
    """Return batches of uint8[batch, 32, 32, 3] and int64[batch], equally many on every rank."""
    dataset = (
        wds.WebDataset(urls, shardshuffle=100, seed=1)
        .shuffle(2000)
        .rename(image="png;jpg;jpeg")
        .map(augment, rng=True)
        .elastic(streams=24)
        .equal_epochs("drop", counts=True)
    )
    return wds.Loader(dataset, batch_size=batch, workers=workers, mode="processes", drop_last=True)


def make_model(classes: int) -> nn.Module:
    """Return a small network; put your own here."""
    blocks = [(nn.LazyConv2d(width, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.MaxPool2d(2)) for width in (32, 64, 128)]
    return nn.Sequential(*(layer for block in blocks for layer in block), nn.Flatten(), nn.LazyLinear(classes))


def save(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: wds.Loader) -> None:
    """Write one checkpoint for all ranks; it appears when it is complete."""
    states: list[object] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, loader.state_dict())
    if distributed.get_rank() == 0:
        parts = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "states": states}
        torch.save(parts, waiting := path.with_suffix(".part"))
        waiting.replace(path)


def main() -> None:
    """Train, and print the loss of each epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", help="urls of shards; digits of scikit-learn by default")
    for name, number in (("classes", 10), ("batch", 64), ("epochs", 3), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--folder", type=Path, default=Path("imagenet-run"))
    options = parser.parse_args()
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, default)
    distributed.init_process_group()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")
    options.folder.mkdir(parents=True, exist_ok=True)
    urls = options.shards or str(options.folder / "digits-{00..11}.tar")
    if not options.shards and distributed.get_rank() == 0 and not (options.folder / "digits-11.tar").exists():
        write_digits(options.folder)
    distributed.barrier()
    model = make_model(options.classes).to(device)
    model(torch.zeros(2, 3, 32, 32, device=device))  # the lazy layers learn their widths
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first, checkpoint = 0, options.folder / "checkpoint.pt"
    with make_loader(urls, options.batch, options.workers) as loader:
        if checkpoint.exists():
            parts = torch.load(checkpoint, map_location=device, weights_only=True)
            first = parts["epoch"]
            model.load_state_dict(parts["model"])
            optimizer.load_state_dict(parts["optimizer"])
            loader.load_state_dict(wds.merge_states(parts["states"]))
        for epoch in range(first, options.epochs):
            losses: list[float] = []
            loader.set_epoch(epoch)  # of a checkpoint's epoch comes the rest, of which nothing may be left
            for images, labels in loader:
                pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 255
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(pixels), torch.as_tensor(labels).to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if len(losses) % 10 == 0:
                    save(checkpoint, epoch, model, optimizer, loader)
            save(checkpoint, epoch + 1, model, optimizer, loader)
            if distributed.get_rank() == 0 and losses:
                print(f"epoch {epoch}: {len(losses)} steps, loss {sum(losses) / len(losses):.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
