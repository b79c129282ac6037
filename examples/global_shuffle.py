"""Reshard a dataset with a global shuffle in bounded memory, check it, and measure how well it is mixed.

    python examples/global_shuffle.py                                     # sorted samples made by this program
    python examples/global_shuffle.py --shards 'raw-*.tar' --output 'mixed-%05d.tar' --count 100

The commands are those of a shell; the last step reads both datasets through a small buffer and compares the mixing.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import webdataset as wds


def write_sorted(folder: Path, count: int) -> str:
    """Write samples sorted by class, as a conversion of folders leaves them; return the urls of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(folder / "sorted-%02d.tar"), maxcount=count // 4, overwrite=True, verbose=0) as sink:
        for number in range(count):
            sink.write({"__key__": f"{number:06d}", "cls": number * 10 // count, "txt": f"sample {number}"})
    return str(folder / "sorted-{00..03}.tar")


def run(*words: str) -> None:
    """Run the command wds, and show it."""
    print("$ wds", *words, flush=True)
    subprocess.run([sys.executable, "-m", "webdataset", *words], check=True)  # noqa: S603  our own command


def longest_run(urls: str) -> int:
    """Return how many samples of one class come one after the other, at most, after a buffer of 100."""
    longest, current, before = 0, 0, None
    for (label,) in wds.WebDataset(urls, shardshuffle=100, seed=0).shuffle(100).decode().to_tuple("cls"):
        current = current + 1 if label == before else 1
        longest, before = max(longest, current), label
    return longest


def main() -> None:
    """Reshard, check and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", help="urls; sorted samples are made by default")
    parser.add_argument("--output", help="pattern of the new shards")
    parser.add_argument("--count", type=int, default=10, help="number of new shards")
    parser.add_argument("--folder", type=Path, default=Path("shuffle-data"))
    options = parser.parse_args()
    urls = options.shards or write_sorted(options.folder, 2000)
    output = options.output or str(options.folder / "mixed-%02d.tar")
    run("reshard", "--shards", str(options.count), "--shuffle", "--seed", "1", "--force", "-o", output, urls)
    new = [output % number for number in range(options.count)]
    run("check", *new)
    print(f"longest run of one class: {longest_run(urls)} before, {longest_run('::'.join(new))} after")


if __name__ == "__main__":
    main()
