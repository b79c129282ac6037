"""The cache on a failing disk: whichever call fails, and whenever, all samples come and nothing bad stays."""

import contextlib
import errno
import os
import signal
import time
import warnings

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import eviction, metadata, shard_cache
from webdataset.testing import archives

fcntl = pytest.importorskip("fcntl")

CALLS = {
    "open": (os, "open"),
    "read": (os, "pread"),
    "write": (os, "write"),
    "rename": (os, "replace"),
    "fsync": (os, "fsync"),
    "flock": (fcntl, "flock"),
    "unlink": (os, "unlink"),
    "stat": (os, "fstat"),
    "mkdir": (os, "makedirs"),
    "utime": (os, "utime"),
    "list": (os, "listdir"),
}
ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.ESTALE)


def shard(number):
    """Return a shard of two pieces and a bit."""
    return archives.by_tarfile([(f"{number}-{index}.bin", bytes([number, index]) * 35_000) for index in range(3)])


PAGES = {f"/{number}/x.tar": shard(number) for number in range(2)}


class Failing:
    """Lets the n-th call of a function on the cache directory fail.

    Args:
        function: what it does otherwise.
        ordinal: the call that fails.
        code: the error number.
        mine: whether a call counts: Python itself and the network use the same functions.
    """

    def __init__(self, function, ordinal, code, mine):
        self.function, self.ordinal, self.code, self.mine, self.count = function, ordinal, code, mine, 0

    def __call__(self, *arguments, **options):
        """Call it, or fail."""
        if self.mine(arguments[0]):
            self.count += 1
            if self.count == self.ordinal:
                raise OSError(self.code, os.strerror(self.code))
        return self.function(*arguments, **options)


def in_folder(folder):
    """Return what tells whether a path or descriptor lies in a folder."""

    def mine(place):
        if isinstance(place, int):
            with contextlib.suppress(OSError):
                place = os.readlink(f"/proc/self/fd/{place}")
        return isinstance(place, str) and place.startswith(str(folder))

    return mine


def read(server, folder):
    """Read all pages through the cache; return the samples' bytes."""
    urls = [server.root + path for path in server.pages]
    dataset = wds.WebDataset(urls, shardshuffle=False, cache_dir=folder, cache_size=10**9)
    return [sample["bin"] for sample in dataset]


def settled(folder):
    """Return the contents of the final files; a file may get its name a moment after its last reader is through."""
    for _ in range(250):
        found = sorted(path.read_bytes() for path in folder.glob("*.tar"))
        if len(found) == len(PAGES):
            break
        time.sleep(0.02)
    return found


def forget(folder):
    """Let this process believe that it sees the directory for the first time."""
    shard_cache._failed_folders.clear()
    eviction._swept_folders.discard(str(folder))
    metadata._checked_paths.clear()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_every_call_fails_once(memory_folder, monkeypatch, call, warm):
    """The n-th call fails, for all n: all samples, at most one warning, final files whole, and the next start heals."""
    home, name = CALLS[call]
    original = getattr(home, name)
    expected = [bytes([number, index]) * 35_000 for number in range(2) for index in range(3)]
    calls = 0
    with PacedServer(PAGES) as server:
        for ordinal in range(1, 200):
            folder = memory_folder / f"{ordinal}"
            folder.mkdir()
            if warm:
                assert read(server, folder) == expected
            forget(folder)
            failing = Failing(original, ordinal, ERRORS[ordinal % len(ERRORS)], in_folder(folder))
            with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                patch.setattr(home, name, failing)
                assert read(server, folder) == expected
            assert len(caught) <= 1
            for path in folder.glob("*.tar"):
                assert path.read_bytes() in PAGES.values()
            forget(folder)
            assert read(server, folder) == expected  # the next start
            assert settled(folder) == sorted(PAGES.values())
            assert {path.suffix for path in (folder / ".wds").iterdir()} <= {".json"}
            if failing.count < ordinal:
                break
            calls += 1
        else:
            pytest.fail("there is no end to the calls")
    assert (calls > 0) is (call in ("open", "read", "flock", "stat", "utime", "list") if warm else call != "utime")


class Killing(Failing):
    """Kills the process at the n-th call, before it is made."""

    def __call__(self, *arguments, **options):
        """Call it, or end."""
        if self.mine(arguments[0]):
            self.count += 1
            if self.count == self.ordinal:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.function(*arguments, **options)


def killed_at(server, folder, call, ordinal):
    """Let a forked process read, and die at a call; tell whether it came to that."""
    child = os.fork()
    if not child:
        home, name = CALLS[call]
        setattr(home, name, Killing(getattr(home, name), ordinal, 0, in_folder(folder)))
        with contextlib.suppress(BaseException):
            read(server, folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("call", ["open", "write", "rename", "fsync", "flock", "unlink", "stat"])
def test_killed_before_every_call(memory_folder, call):
    """Whatever is killed, and when: final files are whole, and the next start gives all samples and leaves nothing."""
    expected = [bytes([number, index]) * 35_000 for number in range(2) for index in range(3)]
    with PacedServer(PAGES) as server:
        ordinal, resumed = 1, 0
        while True:
            folder = memory_folder / f"{ordinal}"
            folder.mkdir()
            dead = killed_at(server, folder, call, ordinal)
            assert {path.read_bytes() for path in folder.glob("*.tar")} <= set(PAGES.values())
            forget(folder)
            server.asked.clear()
            assert read(server, folder) == expected
            resumed += any(one.start for one in server.asked)
            assert settled(folder) == sorted(PAGES.values())
            assert {path.suffix for path in (folder / ".wds").iterdir()} == {".json"}
            if not dead:
                break
            ordinal += 1
    assert ordinal > 2
    assert resumed or call != "write"
