"""The shard cache through faults: cut downloads, SIGKILL, many processes, no space, no permission."""

import http.server
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

import webdataset as wds
from webdataset.core.errors import ShortRead, Truncated, WebDatasetError
from webdataset.testing import archives, sources

CHILD = """
import sys, hashlib, warnings
import webdataset as wds
folder, *urls = sys.argv[1:]
for sample in wds.WebDataset(urls, shardshuffle=False, nodesplitter=None, cache_dir=folder):
    print(sample["__key__"], hashlib.sha256(sample["bin"]).hexdigest(), flush=True)
"""


def shard(seed, count=20, size=3000):
    """Return a shard of samples of incompressible bytes."""
    return archives.by_tarfile([(f"{seed}-{index}.bin", bytes([seed, index]) * (size // 2)) for index in range(count)])


LARGE = shard(9, size=200_000)


@pytest.fixture
def near(tmp_path):
    """An empty cache directory."""
    folder = tmp_path / "near"
    folder.mkdir()
    return folder


def keys(urls, folder, **options):
    """Return the keys of a dataset behind a cache."""
    return [sample["__key__"] for sample in wds.WebDataset(urls, shardshuffle=False, cache_dir=folder, **options)]


def visible(folder):
    """Return the files under final names."""
    return [path for path in everything(folder) if path.parent.name != ".wds"]


def everything(folder):
    """Return all files, hidden ones included."""
    return [path for path in folder.rglob("*") if path.is_file()]


class Cut(http.server.BaseHTTPRequestHandler):
    """Serves ``/HOW/N``: the first N bytes of the body (all for 0), ``sized`` or ``unsized``; or ``large``, slowly."""

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """Answer."""
        how, count = self.path.strip("/").split("/")[:2]
        body = LARGE if how == "large" else self.server.body
        self.server.count += 1
        self.send_response(200)
        if how != "unsized":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            if how != "large":
                self.wfile.write(body[: int(count) or len(body)])
                return
            for start in range(0, len(body), 1 << 18):
                self.wfile.write(body[start : start + (1 << 18)])
                # however late the test comes on a busy machine, the download has not ended
                self.server.released.wait(self.server.pause * (1 if start < 3 << 18 else 100))
        except ConnectionError:
            self.close_connection = True


@pytest.fixture
def cut():
    """Run the server: ``url(how, count)``, ``body``, ``count`` of requests, ``pause`` in the large body."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cut)
    server.daemon_threads = True
    server.handle_error = lambda *_: None
    server.body, server.count, server.released = shard(1), 0, threading.Event()
    server.pause = 0.1
    server.url = lambda how, count=0: f"http://127.0.0.1:{server.server_port}/{how}/{count}/x.tar"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("count", [1, 511, 512, 600, 20000, 3584 * 5, 3584 * 20])
def test_cut_download_with_a_length(near, cut, count):
    """A body shorter than its length is an error, and nothing is kept; not even where whole members came."""
    with pytest.raises(ShortRead):
        keys(cut.url("sized", count), near)
    assert everything(near) == []


@pytest.mark.parametrize("count", [512, 600, 20000, 3584 * 5, 3584 * 20])
def test_cut_download_without_a_length(near, cut, count):
    """Without a length, what lacks its end mark is not kept; the error is as without a cache."""
    assert len(cut.body) > 3584 * 20
    with pytest.raises(Truncated):
        keys(cut.url("unsized", count), near)
    assert everything(near) == []
    with pytest.warns(UserWarning, match="end-of-archive") if count % 3584 == 0 else pytest.raises(Truncated):
        assert len(keys(cut.url("unsized", count), near, missing_end="warn")) == count // 3584
    assert everything(near) == []


def test_whole_download_without_a_length(near, cut):
    """What reaches its end mark is kept, whether or not its length was told."""
    for _ in range(3):
        assert len(keys(cut.url("unsized"), near)) == 20
    assert cut.count == 1


def test_failing_command(near, tmp_path):
    """The output of a command that fails at its end is not kept, whole as it may look."""
    (tmp_path / "x.tar").write_bytes(shard(1))
    with pytest.raises(WebDatasetError, match="status 3"):
        keys(f"pipe:cat {tmp_path}/x.tar; exit 3", near)
    assert everything(near) == []


def test_killed_while_downloading(near, cut):
    """SIGKILL leaves no final name; the next run downloads anew and reads all; its leftover is hidden."""
    for killed in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, near, cut.url("large")])
        while sum(path.stat().st_size for path in near.glob(".wds/*.part")) <= killed * 300_000:
            time.sleep(0.01)
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert visible(near) == []
    assert len(list(near.glob(".wds/*.part"))) == 1
    cut.pause = 0
    assert len(keys(cut.url("large"), near)) == 20
    assert [path.read_bytes() for path in visible(near)] == [LARGE]


def test_interrupted_while_downloading(near, cut):
    """Ctrl-C leaves no final name, and nothing that the next start does not remove."""
    # a suite started in the background has inherited SIGINT ignored, and so would the child
    program = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + CHILD
    child = subprocess.Popen([sys.executable, "-c", program, near, cut.url("large")], stderr=subprocess.DEVNULL)
    while not any(path.stat().st_size > 4096 for path in near.glob(".wds/*.part")):
        time.sleep(0.01)
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait() != 0
    assert visible(near) == []
    cut.pause = 0
    assert len(keys(cut.url("large"), near)) == 20
    assert {path.suffix for path in everything(near)} == {".tar", ".json"}


def test_many_processes_on_a_cold_cache(near):
    """Eight processes that start together all read the right bytes, and leave each shard once."""
    bodies = {f"/{folder}/x.tar": shard(folder) for folder in range(6)}
    with sources.served(bodies) as root:
        command = [sys.executable, "-c", CHILD, str(near), *(root + page for page in bodies)]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
        outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * 8
    assert len(outputs[0].splitlines()) == 6 * 20
    assert len(set(outputs)) == 1
    assert sorted(path.read_bytes() for path in visible(near)) == sorted(bodies.values())


def test_processes_that_evict_each_other(near):
    """Where the cache holds one shard, four processes that read six lose nothing to each other's deletions."""
    bodies = {f"/{folder}/x.tar": shard(folder) for folder in range(6)}
    program = CHILD.replace("cache_dir=folder", "cache_dir=folder, cache_size=70_000").replace("urls,", "urls * 3,", 1)
    with sources.served(bodies) as root:
        command = [sys.executable, "-c", program, str(near), *(root + page for page in bodies)]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert len(outputs[0].splitlines()) == 3 * 6 * 20
    assert len(set(outputs)) == 1
    assert {path.read_bytes() for path in visible(near)} <= set(bodies.values())


def _small_files():
    """Limit files to 30,000 bytes, by an error rather than a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))


def test_no_space(near):
    """Where a download cannot grow, one warning is given and all samples come, straight from the server."""
    bodies = {f"/{folder}/x.tar": shard(folder) for folder in range(4)}
    with sources.served(bodies) as root:
        urls = [root + page for page in bodies]
        expected = keys(urls, near.parent)
        result = subprocess.run(
            [sys.executable, "-W", "always", "-c", CHILD, str(near), *urls],
            preexec_fn=_small_files,
            capture_output=True,
            text=True,
            check=True,
        )
    assert [line.split()[0] for line in result.stdout.splitlines()] == expected
    assert result.stderr.count("UserWarning") == 1
    assert "streamed from their sources" in result.stderr
    assert everything(near) == []


def test_failing_source_is_no_full_disk(near, cut, monkeypatch):
    """A source that fails is not mistaken for a full disk."""
    from webdataset import tariterators

    class Failing:
        def read(self, size):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        tariterators, "url_opener", lambda shards, handler: [{**s, "stream": Failing()} for s in shards]
    )
    with pytest.raises(OSError, match="No space left"):
        keys(cut.url("sized"), near)
    assert everything(near) == []


UNPRIVILEGED = """
import os
import webdataset.caching.shard_cache
for _ in wds.WebDataset(urls, shardshuffle=False, nodesplitter=None):
    pass  # everything is imported now: another user may not be able to
if os.geteuid() == 0:
    os.seteuid(65534)
for sample"""


def test_no_permission(memory_folder):
    """A directory that may not be written to, and a file that may not be read, cost one warning."""
    near = memory_folder / "near"
    near.mkdir()
    memory_folder.chmod(0o755)
    bodies = {"/a/x.tar": shard(1), "/a/y.tar": shard(2), "/a/z.tar": shard(3)}
    with sources.served(bodies) as root:
        urls = [root + page for page in bodies]
        expected = keys(urls, memory_folder)
        for url, mode in zip(urls[:2], (0o000, 0o444), strict=True):
            keys(url, near)
            (*_, newest) = sorted(visible(near), key=lambda path: path.name)
            newest.chmod(mode)
        near.chmod(0o555)
        result = subprocess.run(
            [sys.executable, "-W", "always", "-c", CHILD.replace("\nfor sample", UNPRIVILEGED), str(near), *urls],
            capture_output=True,
            text=True,
            check=False,
        )
    near.chmod(0o755)
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == expected
    assert result.stderr.count("UserWarning") == 1
    assert "ermission" in result.stderr
    assert len(visible(near)) == 2
