"""Move from Hugging Face datasets to shards: convert once, then stream with an exact resume.

    python examples/from_hf_datasets.py                    # a dataset made by this program, saved by save_to_disk
    wds convert 'beans' --from hf --split train -o beans-%04d.tar -c 1000          # one from the hub

Needs `pip install datasets '.[parquet]'`.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np

import webdataset as wds


def make_dataset(count: int) -> Any:
    """Return a dataset of pictures, captions and classes."""
    rng = np.random.default_rng(0)
    rows = {
        "image": [rng.integers(0, 255, (16, 16, 3), dtype=np.uint8) for _ in range(count)],
        "caption": [f"picture {number}" for number in range(count)],
        "label": [number % 5 for number in range(count)],
    }
    features = datasets.Features(
        {"image": datasets.Image(), "caption": datasets.Value("string"), "label": datasets.ClassLabel(num_classes=5)}
    )
    return datasets.Dataset.from_dict(rows, features=features)


def main() -> None:
    """Convert a dataset, compare both sides, and resume in the middle of an epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("hf-data"))
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    original = make_dataset(options.count)
    saved, shards = options.folder / "saved", str(options.folder / "train-%02d.tar")
    original.save_to_disk(str(saved))
    command = [sys.executable, "-m", "webdataset", "convert", str(saved), "-o", shards, "-c", "50", "--force"]
    subprocess.run(command, check=True)  # noqa: S603  our own command

    # before: for row in load_dataset(..., streaming=True).shuffle(buffer_size=100): ...
    urls = sorted(str(path) for path in options.folder.glob("train-*.tar"))
    dataset = wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(100).decode("rgb8").elastic(streams=8)
    run = iter(dataset)
    first = [next(run) for _ in range(options.count // 2)]
    state = run.state_dict()  # small JSON; the shuffle buffer is part of it
    dataset.load_state_dict(state)
    rest = list(dataset)

    found = {sample["caption.txt"]: sample for sample in first + rest}
    for row in original:
        sample = found.pop(row["caption"])
        if int(sample["label.cls"]) != row["label"] or not np.array_equal(
            sample["image.png"], np.asarray(row["image"])
        ):
            raise SystemExit(f"{row['caption']!r} differs")
    print(
        f"{len(first)} samples before the checkpoint, {len(rest)} after it, {len(found)} too many: all rows are equal"
    )


if __name__ == "__main__":
    main()
