"""How many bytes does an elastic epoch ask a web server for, beside the bytes of its shards?

Shards of 80 KB samples behind a server that counts, read by ``.elastic(streams=24)`` in one process and in four (each
worker's streams, one worker after the other), without and with an index beside each shard. A shard whose samples are
shared between streams of several workers is read by each of these.
"""

import sys
import tempfile
from pathlib import Path

import webdataset as wds
from harness import SCALE, rounded, show
from webdataset.core.distributed import WorkerContext

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.range_server import RangeServer

SAMPLES = max(int(480 * SCALE), 48)
SHARDS = (3, 6, 25, 48)


def write_shards(folder: Path, shards: int, *, indexed: bool) -> list[str]:
    """Write samples of 80 KB; return the names of the shards."""
    names = [f"{shards}-{number:02d}{'-indexed' if indexed else ''}.tar" for number in range(shards)]
    for number, name in enumerate(names):
        with wds.TarWriter(str(folder / name)) as sink:
            for index in range(number, SAMPLES, shards):
                sink.write({"__key__": f"{index:06d}", "bin": bytes(80_000)})
    if indexed:
        wds.write_indexes([str(folder / name) for name in names], "dali")
    return names


def count_bytes(server: RangeServer, names: list[str], workers: int) -> tuple[int, int]:
    """Read an epoch with some workers; return the bytes that the server sent, and the samples."""
    urls = [f"{server.root}/{name}" for name in names]
    before, samples = server.sent_bytes, 0
    for worker in range(workers):
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(streams=24)
        with dataset.elastic_run(WorkerContext(0, 1, worker, workers)) as run:
            samples += sum(1 for _ in run)
    return server.sent_bytes - before, samples


def main() -> None:
    """Count, and print a line for each number of shards."""
    with tempfile.TemporaryDirectory() as name, RangeServer(Path(name)) as server:
        for shards in SHARDS:
            figures = {}
            for indexed in (False, True):
                names = write_shards(Path(name), shards, indexed=indexed)
                size = sum(Path(name, each).stat().st_size for each in names)
                for workers in (1, 4):
                    sent, samples = count_bytes(server, names, workers)
                    if samples != SAMPLES:
                        raise RuntimeError(f"{samples} of {SAMPLES} samples came")
                    figures[f"{'indexed' if indexed else 'bytes'}_{workers}"] = rounded(sent / size)
            show(f"elastic bytes {shards}", **figures)


if __name__ == "__main__":
    main()
