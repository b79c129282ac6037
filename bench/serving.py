"""How many bytes a second does a data server bring to trainers on this machine, plain and encrypted?

Batches are one array of 10 MB that is made once, so that only the line is measured: server and trainers are processes
of their own, and talk over the loopback address. ``plain`` and ``curve`` have one trainer, ``curve-4`` has four. Prints
MB/s (medians of rounds), and the CPU seconds of server and trainers together for each GB.
"""

import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds
from webdataset.serving.curve_keys import AllowedKeys, load_key_pair, make_key_files, start_authentication
from webdataset.serving.data_server import DataServer
from webdataset.serving.server_lane import LaneSettings
from webdataset.serving.zmq_transport import ZmqListener

BATCH_BYTES = 10_000_000
BATCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 100
ROUNDS = 3
FORK = multiprocessing.get_context("fork")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(folder: Path, encrypted: bool, said: Connection) -> None:  # noqa: FBT001
    """Serve until told to end; say the address, and the CPU seconds at the end."""
    batch = np.zeros(BATCH_BYTES, np.uint8)
    dataset = wds.WebDataset(str(folder / "a.tar"), seed=1).map(lambda _: (batch,)).elastic(4)
    pair = load_key_pair(folder / "server.secret") if encrypted else None
    authentication = start_authentication(AllowedKeys(folder)) if encrypted else None
    listener = ZmqListener("tcp://127.0.0.1:0", pair)
    server = DataServer(dataset, listener, LaneSettings(workers=0))
    said.send(listener.url)

    def wait() -> None:
        said.recv()
        server.stop()

    import threading

    threading.Thread(target=wait, daemon=True).start()
    server.serve()
    if authentication is not None:
        authentication.stop()
    said.send(cpu_seconds())


def train(url: str, rank: int, ranks: int, keys: dict[str, Any], said: Connection) -> None:
    """Receive batches; say when the first came and the last, how many, and the CPU seconds."""
    os.environ.update(WDS_RANK=str(rank), WDS_WORLD_SIZE=str(ranks))
    count, began = 0, 0.0
    with wds.RemoteLoader(url, prefetch=4, **keys) as loader:
        for batch in loader:
            assert batch[0].nbytes == BATCH_BYTES
            began = began or time.time()
            count += 1
    said.send((began, time.time(), count - 1, cpu_seconds()))


def measure(folder: Path, ranks: int, *, encrypted: bool) -> tuple[float, float]:
    """Return MB/s and CPU seconds for each GB."""
    ours, theirs = FORK.Pipe()
    server = FORK.Process(target=serve, args=(folder, encrypted, theirs))
    server.start()
    url = ours.recv()
    keys = {"key": folder / "trainer.secret", "server_key": folder / "server.public"} if encrypted else {"plain": True}
    lines = [FORK.Pipe() for _ in range(ranks)]
    trainers = [FORK.Process(target=train, args=(url, rank, ranks, keys, lines[rank][1])) for rank in range(ranks)]
    for trainer in trainers:
        trainer.start()
    found = [line.recv() for line, _ in lines]
    for trainer in trainers:
        trainer.join()
    ours.send("end")
    used = ours.recv() + sum(each[3] for each in found)
    server.join()
    seconds = max(each[1] for each in found) - min(each[0] for each in found)
    sent = sum(each[2] for each in found) * BATCH_BYTES
    return sent / seconds / 1e6, used / (sent / 1e9)


def main() -> None:
    """Print a line of JSON for each question."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with wds.TarWriter(str(folder / "a.tar")) as writer:
            for number in range(BATCHES):
                writer.write({"__key__": f"{number:06d}", "txt": "x"})
        for key in ("server", "trainer"):
            make_key_files(folder, key)
        for question, ranks, encrypted in (("plain", 1, False), ("curve", 1, True), ("curve-4", 4, True)):
            rounds = [measure(folder, ranks, encrypted=encrypted) for _ in range(ROUNDS)]
            rate, used = (statistics.median(each) for each in zip(*rounds, strict=True))
            best = max(each[0] for each in rounds)
            figures = {"mb_per_second": round(rate), "best": round(best), "cpu_seconds_per_gb": round(used, 2)}
            print(json.dumps({"question": question, **figures}))


if __name__ == "__main__":
    main()
