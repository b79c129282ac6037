"""How many bytes does ``where=`` ask a web server for, with a columns file beside each shard and without?

Two shards behind a server that counts, of samples of 2, 20 and 200 KB, of which one in a hundred matches. Columns files
count. ``requests`` are those with columns; ``columns_bytes`` is the size of a columns file for each sample.
"""

import random
import sys
import tempfile
from pathlib import Path

import webdataset as wds
from harness import SCALE, rounded, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.range_server import RangeServer

SIZES = {2_000: 20_000, 20_000: 5_000, 200_000: 1_000}
WHERE = "json.score < 0.01"


def write_shards(folder: Path, size: int, samples: int) -> list[Path]:
    """Write two shards of samples of some bytes."""
    draws = random.Random(size)
    found = [folder / f"{size}-{number}.tar" for number in range(2)]
    for number, path in enumerate(found):
        with wds.TarWriter(str(path)) as sink:
            for index in range(samples // 2):
                row = {"score": draws.random(), "lang": draws.choice(["de", "en", None])}
                key = f"{number}{index:08d}"
                # two headers, and the padding of the JSON
                sink.write({"__key__": key, "json": row, "bin": draws.randbytes(size - 3 * 512)})
    return found


def count(server: RangeServer, shards: list[Path]) -> tuple[int, int, list[str]]:
    """Read what matches; return bytes, requests and the keys."""
    before, requests = server.sent_bytes, len(server.requests)
    urls = [f"{server.root}/{path.name}" for path in shards]
    keys = [sample["__key__"] for sample in wds.WebDataset(urls, where=WHERE, shardshuffle=False)]
    return server.sent_bytes - before, len(server.requests) - requests, keys


def main() -> None:
    """Count, and print a line for each size."""
    with tempfile.TemporaryDirectory() as name, RangeServer(Path(name)) as server:
        for size, samples in SIZES.items():
            shards = write_shards(Path(name), size, max(int(samples * SCALE), 400))
            stored = sum(path.stat().st_size for path in shards)
            scanned, _, expected = count(server, shards)
            files = wds.write_columns([str(path) for path in shards], "json.score, json.lang")
            selected, requests, keys = count(server, shards)
            if keys != expected:
                raise RuntimeError(f"{len(keys)} samples came, and {len(expected)} match")
            columns = sum(file.size_bytes for file in files) / sum(file.samples for file in files)
            show(
                f"where {size // 1000} KB",
                scanned=rounded(scanned / stored),
                selected=rounded(selected / stored),
                requests=requests,
                samples=len(keys),
                columns_bytes=rounded(columns),
            )


if __name__ == "__main__":
    main()
