"""Does a worker of four wait longer where it asks for its own samples alone, over a slow line?

Shards of 80 KB samples with an index beside each, on lines of 20 ms and 50 ms with 60 MB/s a connection, read by one of
four workers of ``.elastic(streams=24)``: whole, and by ranges of its own samples where that is estimated to be worth
it, in turns; seconds of wall time, and bytes of the answers ÷ bytes of the shards.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import webdataset as wds
from elastic_bytes import write_shards
from harness import rounded, show
from webdataset.core.distributed import WorkerContext
from webdataset.stages.read_shards import ReadShards

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.range_server import RangeServer
from support.slow_line import slow_line

SHARDS = (1, 3, 6)
ROUNDS = 3
LATENCIES_MS, BYTES_PER_SECOND = (20, 50), 60e6


def read_worker(urls: list[str]) -> int:
    """Read what one of four workers reads; return the number of samples."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(streams=24)
    with dataset.elastic_run(WorkerContext(0, 1, 1, 4)) as run:
        return sum(1 for _ in run)


def measure(root: str, server: RangeServer, names: list[str]) -> dict[str, float]:
    """Read in turns; return the median seconds of each way, and its bytes ÷ those of the shards."""
    finder = ReadShards.table_finder
    size = sum((server.folder / each).stat().st_size for each in names)
    seconds: dict[str, list[float]] = {"whole": [], "ranges": []}
    figures: dict[str, float] = {}
    for _ in range(ROUNDS):
        for kind, taken in seconds.items():
            if kind == "whole":
                ReadShards.table_finder = lambda *_: None  # type: ignore[method-assign]
            before, began = server.sent_bytes, time.perf_counter()
            read_worker([f"{root}/{each}" for each in names])
            taken.append(time.perf_counter() - began)
            figures[f"{kind}_bytes"] = rounded((server.sent_bytes - before) / size)
            ReadShards.table_finder = finder  # type: ignore[method-assign]
    return {f"{kind}_seconds": rounded(statistics.median(taken)) for kind, taken in seconds.items()} | figures


def main() -> None:
    """Measure, and print a line for each number of shards and each line."""
    with tempfile.TemporaryDirectory() as name, RangeServer(Path(name)) as server:
        port = int(server.root.rpartition(":")[2])
        for shards in SHARDS:
            names = write_shards(Path(name), shards, indexed=True)
            for latency in LATENCIES_MS:
                line = slow_line("127.0.0.1", port, latency_seconds=latency / 1e3, bytes_per_second=BYTES_PER_SECOND)
                with line as root:
                    show(f"elastic line {shards}, {latency} ms", **measure(root, server, names))


if __name__ == "__main__":
    main()
