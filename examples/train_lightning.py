"""Train with Lightning: a resumable loader of known length, and exact validation over plain shards.

    python examples/train_lightning.py                              # points drawn by this program
    python examples/train_lightning.py --resume lightning-data/last.ckpt

The Trainer saves the loader's state with its own checkpoints. Needs `pip install lightning`.
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch import nn

import webdataset as wds

BATCH = 32


def write_points(folder: Path) -> None:
    """Write points in the plane with the number of their quadrant: 960 to train on, 130 to validate."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", 960), ("val", 130)):
        with wds.ShardWriter(str(folder / f"{split}-%02d.tar"), maxcount=80, overwrite=True, verbose=0) as sink:
            for number in range(count):
                point = rng.normal(size=2).astype(np.float32)
                label = int(point[0] > 0) + 2 * int(point[1] > 0)
                sink.write({"__key__": f"{split}-{number:05d}", "npy": point, "cls": label})


class Points(lightning.LightningDataModule):  # type: ignore[misc]
    """Loaders for training and validation.

    Args:
        folder: of the shards.
        workers: processes of each loader.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        super().__init__()
        self.folder, self.workers = folder, workers

    def train_dataloader(self) -> wds.WebLoader:
        """Return batches in another order each epoch; their number is known, as Lightning asks for it."""
        dataset = (
            wds.WebDataset(str(self.folder / "train-{00..11}.tar"), shardshuffle=100, seed=1)
            .shuffle(500)
            .decode()
            .to_tuple("npy", "cls")
            .batched(BATCH)
            .elastic(streams=12)
            .with_epoch(960 // BATCH)
        )
        return wds.WebLoader(dataset, batch_size=None, num_workers=self.workers).with_length(960 // BATCH)

    def val_dataloader(self) -> wds.WebLoader:
        """Return every validation sample once, in order: no shuffle, no sample twice, a smaller last batch."""
        dataset = wds.WebDataset(str(self.folder / "val-{00..01}.tar"), shardshuffle=False, nodesplitter=None)
        dataset = dataset.decode().to_tuple("npy", "cls").batched(BATCH)
        return wds.WebLoader(dataset, batch_size=None, num_workers=1)


class Quadrants(lightning.LightningModule):  # type: ignore[misc]
    """A small classifier of points."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
        self.seen = self.right = 0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:  # noqa: ARG002  Lightning's interface
        """Return the loss of a batch."""
        points, labels = batch
        return nn.functional.cross_entropy(self.network(torch.as_tensor(points)), torch.as_tensor(labels))

    def validation_step(self, batch: Any, index: int) -> None:  # noqa: ARG002  as above
        """Count the right answers."""
        points, labels = batch
        found = self.network(torch.as_tensor(points)).argmax(1)
        self.seen += len(found)
        self.right += int((found == torch.as_tensor(labels)).sum())

    def on_validation_epoch_end(self) -> None:
        """Print the accuracy over all of the validation set."""
        print(f"epoch {self.current_epoch}: {self.right} of {self.seen} right", flush=True)
        self.seen = self.right = 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    """Train, from a checkpoint where one is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("lightning-data"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    if not (options.folder / "val-01.tar").exists():
        write_points(options.folder)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    saved = lightning.pytorch.callbacks.ModelCheckpoint(options.folder, save_last=True, every_n_train_steps=20)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=options.epochs, callbacks=[saved], **quiet)
    trainer.fit(Quadrants(), datamodule=Points(options.folder, options.workers), ckpt_path=options.resume)


if __name__ == "__main__":
    main()
