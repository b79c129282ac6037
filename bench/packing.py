"""How much of packed rows is padding, beside Grain's packing?

Four mixes of lengths as training sets have them, packed into rows by ``pack`` with windows of one stream (64 texts, as
in an elastic dataset of 24 streams, 256 and 1 536), by ``how="concat"``, and by Grain's best-fit and first-fit packing
with as many bins as rows of it are open at once; ``unpacked`` has one text a row. Grain runs in its environment of
``make bench-peers``; without it, its columns are left out. The figures follow from the lengths alone and are the same
on every machine; ``us`` is the CPU time of ``pack`` a text.
"""

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds
from harness import show

ROOT = Path(__file__).resolve().parent.parent
COUNT = 20_000
# name: tokens in a row, mean of the logarithm, its deviation
MIXES = {"web": (8192, 600, 1.2), "chat": (4096, 450, 0.9), "long": (8192, 2800, 0.4), "short": (2048, 90, 0.7)}
GRAIN = """
import json, sys
import numpy as np
import grain.python as grain
from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset
job = json.load(sys.stdin)
kinds = {"best": BestFitPackIterDataset, "first": FirstFitPackIterDataset}
texts = [{"tokens": np.ones(length, np.int32)} for length in job["lengths"]]
found = {}
for kind, bins in job["ways"]:
    source = grain.MapDataset.source(texts).to_iter_dataset(grain.ReadOptions(num_threads=0))
    rows = kinds[kind](source, length_struct={"tokens": job["most"]}, num_packing_bins=bins)
    used = [int((row["tokens_segment_ids"] != 0).sum()) for row in rows]
    found[f"{kind} {bins}"] = [len(used), sum(used)]
print(json.dumps(found))
"""


def draw_lengths(most: int, median: float, deviation: float) -> list[int]:
    """Return lengths of texts, of which none is longer than a row."""
    rng = random.Random(5)
    return [min(max(int(rng.lognormvariate(math.log(median), deviation)), 1), most) for _ in range(COUNT)]


def ask_grain(most: int, lengths: list[int], ways: list[tuple[str, int]]) -> dict[str, float]:
    """Return the share of padding by algorithm and bins; nothing where Grain is not installed."""
    python = ROOT / ".venvs" / "peer-grain" / "bin" / "python"
    if not python.exists():
        return {}
    job = json.dumps({"most": most, "lengths": lengths, "ways": ways})
    done = subprocess.run([python, "-c", GRAIN], input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Grain failed: {done.stderr[-2000:]}")
    found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return {name: 1 - used / (rows * most) for name, (rows, used) in found.items()}


def measure(most: int, lengths: list[int], **options: Any) -> tuple[float, float]:
    """Return the share of padding, and the CPU microseconds a text."""

    def texts() -> Iterator[dict[str, Any]]:
        for number, length in enumerate(lengths):
            yield {"__key__": str(number), "input_ids": np.ones(length, np.int32)}

    begun = time.process_time()
    for _ in texts():
        pass
    bare, used, rows = time.process_time() - begun, 0, 0
    begun = time.process_time()
    for row in wds.pack(most, **options)(texts()):
        rows += 1
        used += int(np.count_nonzero(row["segment_ids"]))
    return 1 - used / (rows * most), (time.process_time() - begun - bare) / len(lengths) * 1e6


def main() -> None:
    """Measure all mixes."""
    for name, (most, median, deviation) in MIXES.items():
        lengths = draw_lengths(most, median, deviation)
        ours = {f"window {size}": measure(most, lengths, window=size) for size in (64, 256, 1536)}
        ours["concat"] = measure(most, lengths, how="concat")
        theirs = ask_grain(most, lengths, [("first", 16), ("best", 4), ("best", 16), ("best", 64)])
        show(
            f"packing {name}",
            mean=round(sum(lengths) / COUNT),
            row=most,
            unpacked=round(100 * (1 - sum(lengths) / COUNT / most), 1),
            padding={way: round(100 * share, 2) for way, (share, _) in ours.items()},
            grain={way: round(100 * share, 2) for way, share in theirs.items()},
            us=round(ours["window 64"][1], 1),
        )


if __name__ == "__main__":
    main()
