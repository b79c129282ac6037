"""Data servers in threads of the test's process, and the shards that they serve."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds
from webdataset.serving.data_server import DataServer
from webdataset.serving.server_lane import LaneSettings
from webdataset.serving.zmq_transport import ZmqListener

INLINE = LaneSettings(workers=0)


def write_served_shards(folder: Path, shards: int = 4, samples: int = 30) -> str:
    """Write shards of different lengths; return their url."""
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"part-{shard:03d}.tar")) as writer:
            for number in range(samples - 4 * shard):
                name = f"{shard}-{number:03d}"
                writer.write({"__key__": name, "npy": np.full((5,), shard * 1000 + number), "txt": f"text {name}"})
    return str(folder / f"part-{{000..{shards - 1:03d}}}.tar")


def make_served_dataset(url: str, streams: int = 6, seed: int = 5) -> Any:
    """Return an elastic dataset of tuples: key, array, text."""
    dataset = wds.WebDataset(url, shardshuffle=10, seed=seed).shuffle(12).decode()
    return dataset.to_tuple("__key__", "npy", "txt").elastic(streams)


@contextmanager
def run_server(dataset: Any, how: LaneSettings = INLINE, **options: Any) -> Iterator[tuple[DataServer, str]]:
    """Serve a dataset in a thread; give the server and its url."""
    listener = ZmqListener("tcp://127.0.0.1:0")
    try:
        server = DataServer(dataset, listener, how, **options)
    except BaseException:
        listener.close()
        raise
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server, listener.url
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
