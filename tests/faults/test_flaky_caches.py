"""Caches on mounted file systems that fail for a moment: every sample comes, from the copy or from its source."""

import errno
import functools
import http.server
import os
import random
import threading

import pytest

import webdataset as wds
from support.flaky_mount import READING, WRITING, mount_or_skip
from webdataset.caching import download, shard_cache
from webdataset.caching.locks import CachedFile
from webdataset.core.errors import SourceError, UsageError
from webdataset.storage import retries

COUNT, SHARDS = 30, 3
TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Answers without ranges: reading cannot be taken up again."""

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Shards as a web server and a command give them."""
    folder, large = tmp_path_factory.mktemp("sources"), os.urandom(100_000)
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"s-{shard}.tar")) as sink:
            for index in range(COUNT):
                sink.write({"__key__": f"{shard}-{index:03d}", "bin": large[index : index + 9_000 + index * 37]})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = f"s-{{0..{SHARDS - 1}}}.tar"
    yield {"http": f"http://127.0.0.1:{server.server_port}/{names}", "pipe": f"pipe:cat {folder}/{names}"}
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """A mount for caches."""
    with mount_or_skip(tmp_path_factory.mktemp("fuse") / "place") as mount:
        yield mount


@pytest.fixture
def hasty(monkeypatch):
    """No pauses between attempts, and so many of them that chance does not matter."""
    monkeypatch.setenv("WDS_RETRY_SECONDS", "60")
    monkeypatch.setattr(retries, "sleep", lambda _: None)


def read(url, **options):
    """Return all samples."""
    samples = list(wds.WebDataset(url, shardshuffle=False, **options))
    return [{name: value for name, value in sample.items() if name != "__local_path__"} for sample in samples]


@pytest.mark.filterwarnings("ignore::UserWarning")  # the cache says that it leaves a copy
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["http", "pipe"])
def test_whatever_fails_for_a_moment_every_sample_comes(mount, sources, hasty, kind, seed):
    """Any calls, before the cache has copies, while it has, and when nothing fails any more."""
    chosen = random.Random(seed)
    url, cache = sources[kind], str(mount.path / f"{kind}{seed}")
    wanted = read(url)
    mount.heal()
    if seed % 2:
        read(url, cache_dir=cache)
    calls = tuple(chosen.sample(READING + WRITING, chosen.randint(2, 7)))
    mount.plan_failures(*TRANSIENT, calls=calls, share=chosen.choice((0.05, 0.2)), times=10**9, seed=seed)
    for size in (-1, 500_000):
        assert read(url, cache_dir=cache, cache_size=size) == wanted, calls
    mount.heal()
    assert read(url, cache_dir=cache) == wanted


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_copy_that_cannot_be_verified_is_given_and_not_kept(sources, tmp_path, monkeypatch, call):
    """All its bytes have come: a disk that does not give them back for verifying is no error of the source."""

    class Refusing(CachedFile):
        def __init__(self, path):
            if call == "open":
                raise OSError(errno.EINVAL, "refused")
            super().__init__(path)

        def read(self, _size=-1, /):
            raise OSError(errno.EINVAL, "refused")

    url, cache = sources["pipe"].replace("{0..2}", "1"), tmp_path / "cache"
    wanted = read(url)
    monkeypatch.setattr(download, "CachedFile", Refusing)
    with pytest.warns(UserWarning, match="cannot be verified: refused"):
        assert read(url, cache_dir=str(cache)) == wanted
    assert not [path for path in cache.iterdir() if path.is_file()]
    monkeypatch.undo()
    # it would be left alone for ten minutes
    monkeypatch.delitem(shard_cache._failed_folders, str(cache))
    assert read(url, cache_dir=str(cache)) == wanted
    assert [path for path in cache.iterdir() if path.is_file()]


def test_a_cache_that_cannot_be_made(mount, hasty, tmp_path, monkeypatch):
    """A mistake is one of the user; a file system that does not answer is none."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make the cache directory"):
        wds.WebDataset("a.tar", cache_dir=str(tmp_path / "file"))
    mount.plan_failures(errno.EIO, calls=("mkdir",), times=3)
    wds.WebDataset("a.tar", cache_dir=str(mount.path / "made"))
    assert (mount.root / "made").is_dir()
    mount.plan_failures(errno.EIO, calls=("mkdir",), times=10**9)
    monkeypatch.delenv("WDS_RETRY_SECONDS")
    with pytest.raises(SourceError, match="cannot make: Input/output error, 8 attempts"):
        wds.WebDataset("a.tar", cache_dir=str(mount.path / "never"))
    mount.heal()
