"""Does a worker of four wait longer where it asks for its own samples alone, over a slow line?

Shards of 80 KB samples with an index beside each, on a line of 50 ms and 60 MB/s a connection, read by one of four
workers of ``.elastic(streams=24)``: whole, and by ranges of its own samples, in turns; seconds of wall time, and bytes
of the answers ÷ bytes of the shards.
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
LATENCY_SECONDS, BYTES_PER_SECOND = 0.05, 60e6


def read_worker(urls: list[str]) -> int:
    """Read what one of four workers reads; return the number of samples."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(streams=24)
    with dataset.elastic_run(WorkerContext(0, 1, 1, 4)) as run:
        return sum(1 for _ in run)


def main() -> None:
    """Measure, and print a line for each number of shards."""
    finder = ReadShards.table_finder
    with tempfile.TemporaryDirectory() as name, RangeServer(Path(name)) as server:
        port = int(server.root.rpartition(":")[2])
        for shards in SHARDS:
            names = write_shards(Path(name), shards, indexed=True)
            size = sum(Path(name, each).stat().st_size for each in names)
            seconds: dict[str, list[float]] = {"whole": [], "ranges": []}
            sent = {}
            line = slow_line("127.0.0.1", port, latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND)
            with line as root:
                for _ in range(ROUNDS):
                    for kind in ("whole", "ranges"):
                        if kind == "whole":
                            ReadShards.table_finder = lambda *_: None  # type: ignore[method-assign]
                        before, began = server.sent_bytes, time.perf_counter()
                        read_worker([f"{root}/{each}" for each in names])
                        seconds[kind].append(time.perf_counter() - began)
                        sent[kind] = (server.sent_bytes - before) / size
                        ReadShards.table_finder = finder  # type: ignore[method-assign]
            figures = {f"{kind}_seconds": rounded(statistics.median(taken)) for kind, taken in seconds.items()}
            show(f"elastic line {shards}", **figures, **{f"{kind}_bytes": rounded(part) for kind, part in sent.items()})


if __name__ == "__main__":
    main()
