"""A store that goes away in mid-epoch, and comes back later than the attempts of one read last."""

import collections
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import webdataset as wds
from support.command import SRC
from webdataset.core.errors import SourceError
from webdataset.storage import retries

SERVER = """
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from support import range_server
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), range_server._Files)
server.rules = range_server.RangeServer(Path(sys.argv[2]))
print("ready", flush=True)
server.serve_forever()
"""
SHARDS, SAMPLES = 4, 40


class Store:
    """A web server in a process of its own, always on the same port."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as placeholder:
            placeholder.bind(("127.0.0.1", 0))
            self.port = placeholder.getsockname()[1]
        self.urls = f"http://127.0.0.1:{self.port}/{{0..{SHARDS - 1}}}.tar"
        self.process = None

    def start(self):
        """Begin to answer."""
        tests = Path(__file__).resolve().parents[1]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SRC), str(tests)])}
        command = [sys.executable, "-c", SERVER, str(self.port), str(self.folder)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def kill(self):
        """Cut all connections, and listen no more."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def fail_for(self, seconds):
        """Be away for a while."""
        self.kill()

        def restart():
            time.sleep(seconds)
            self.start()

        thread = threading.Thread(target=restart)
        thread.start()
        return thread


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of shards with samples of 40 KB; the attempts of a read last half a second in all."""
    with wds.ShardWriter(str(tmp_path / "%d.tar"), maxcount=SAMPLES, encoder=False, verbose=0) as sink:
        for number in range(SHARDS * SAMPLES):
            sink.write({"__key__": f"{number:04d}", "bin": number.to_bytes(4, "big") * 10_000})
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.004)
    monkeypatch.setenv("WDS_PREFETCH_BYTES", "0")
    server = Store(tmp_path)
    server.start()
    yield server
    server.kill()


def train(store, workers, mode):
    """Read an epoch, in the midst of which the store is away for some seconds; return how often each sample came."""
    dataset = wds.WebDataset(store.urls, shardshuffle=False).to_tuple("__key__", "bin")
    seen = collections.Counter()
    restart = None
    with wds.Loader(dataset, batch_size=4, workers=workers, mode=mode, prefetch=1) as loader:
        try:
            for number, (keys, contents) in enumerate(loader):
                if number == 5:
                    restart = store.fail_for(3)
                for key, content in zip(keys, contents, strict=True):
                    assert content == int(key).to_bytes(4, "big") * 10_000
                    seen[key] += 1
        finally:
            restart.join()
    return seen


@pytest.mark.parametrize(("workers", "mode"), [(0, "threads"), (2, "threads"), (2, "processes")])
def test_an_outage_costs_time_and_no_sample(store, monkeypatch, workers, mode):
    """Where ``WDS_RETRY_SECONDS`` is longer than the outage."""
    monkeypatch.setenv("WDS_RETRY_SECONDS", "60")
    seen = train(store, workers, mode)
    assert seen == collections.Counter(f"{number:04d}" for number in range(SHARDS * SAMPLES))


def test_without_it_the_error_says_what_to_set(store):
    """The attempts of one read are over before the store is back."""
    with pytest.raises(SourceError, match="WDS_RETRY_SECONDS=600 keeps asking for ten minutes"):
        train(store, 0, "threads")
