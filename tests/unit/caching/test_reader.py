"""Shards that are read while they come: by who downloads them, by others, after kills, forks and changes."""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import types
import zlib

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import download, metadata
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import ShardChanged, ShortRead, WebDatasetError
from webdataset.samples.shard_opener import open_shards
from webdataset.storage.object_store import Checksums, ObjectResponse, ObjectVersion
from webdataset.storage.open_url import make_opener, resolve_url
from webdataset.storage.streams import stream_identity
from webdataset.testing import archives

SIZE = 60_000
COUNT = 8


def shard(letter="a"):
    """Return a shard of eight samples of 60 kB."""
    return archives.by_tarfile([(f"{letter}{index}.bin", os.urandom(SIZE)) for index in range(COUNT)])


HALF = 4 * SIZE + 10_000


@pytest.fixture
def server():
    """A server with one shard."""
    with PacedServer({"/x.tar": shard()}) as running:
        yield running


def opened(server, near, **options):
    """Open the shard through the cache; return its stream."""
    cache = ShardCache(str(near), **options)
    (one,) = cache.open_shards([{"url": f"{server.root}/x.tar"}], open_shards, reraise_exception)
    return one["stream"]


def read(server, near, **options):
    """Read the shard through the cache."""
    with opened(server, near, **options) as stream:
        return stream.read()


def exactly(stream, size):
    """Read so many bytes."""
    pieces = []
    while size:
        pieces.append(stream.read(size))
        size -= len(pieces[-1])
    return b"".join(pieces)


def parts(near):
    """Return the parts."""
    return list(near.glob(".wds/*.part"))


def until(condition, seconds=60):
    """Wait until something is the case."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_first_sample_does_not_wait_for_the_last(server, near):
    """Samples come while the shard does; its path is told, and there at the end."""
    server.hold("/x.tar", HALF)
    samples = iter(wds.WebDataset(f"{server.root}/x.tar", shardshuffle=False, cache_dir=near))
    first = next(samples)
    assert not os.path.exists(first["__local_path__"])
    assert len(parts(near)) == 1
    server.release()
    assert len(list(samples)) == COUNT - 1
    assert os.path.getsize(first["__local_path__"]) == len(server.pages["/x.tar"])
    assert parts(near) == []


def test_others_read_along(server, near):
    """A second reader reads what has come, and the server is asked once."""
    server.hold("/x.tar", HALF)
    streams = [opened(server, near) for _ in range(3)]
    begins = [exactly(stream, 100_000) for stream in streams]
    assert set(begins) == {server.pages["/x.tar"][:100_000]}
    server.release()
    assert {begin + stream.read() for begin, stream in zip(begins, streams, strict=True)} == {server.pages["/x.tar"]}
    assert [stream.length for stream in streams] == [len(server.pages["/x.tar"])] * 3
    assert server.downloads() == 1
    for stream in streams:
        stream.close()


def test_a_reader_that_stands_holds_back_nobody(server, near):
    """Who downloads does not read on; another gets the whole shard all the same."""
    slow = opened(server, near)
    assert len(slow.read(1000)) == 1000
    assert read(server, near) == server.pages["/x.tar"]
    assert server.downloads() == 1
    slow.close()


LEADER = """
import sys, time
import webdataset as wds
samples = iter(wds.WebDataset(sys.argv[2], shardshuffle=False, cache_dir=sys.argv[1]))
next(samples)
time.sleep(60)
"""


def test_a_killed_downloader_is_replaced(server, near):
    """A reader in another process goes on where the file stands, by range and condition, and nothing comes twice."""
    server.hold("/x.tar", HALF)
    child = subprocess.Popen([sys.executable, "-c", LEADER, near, f"{server.root}/x.tar"])
    until(lambda: parts(near) and parts(near)[0].stat().st_size > 130_000)
    stream = opened(server, near)
    begin = stream.read(100)
    child.send_signal(signal.SIGKILL)
    child.wait()
    server.release()
    assert begin + stream.read() == server.pages["/x.tar"]
    stream.close()
    assert server.downloads() == 1
    # at least from what was noted: the last bytes that were written may not be
    assert server.asked[-1].start >= 1 << 16
    assert server.asked[-1].condition
    assert parts(near) == []


def test_early_leavers_leave_a_part(server, near):
    """Who goes before half of it is there leaves a part, which the next reader goes on with."""
    server.hold("/x.tar", 100_000)
    with opened(server, near) as stream:
        stream.read(10)
    server.release()
    until(lambda: not list(near.glob(".wds/*.lock")))
    (part,) = parts(near)
    size = part.stat().st_size
    assert 0 < size < len(server.pages["/x.tar"])
    assert read(server, near) == server.pages["/x.tar"]
    assert [one.start for one in server.asked] == [0, size]


def test_late_leavers_are_finished_for(server, near):
    """Who goes when more than half is there leaves a thread, which finishes."""
    server.hold("/x.tar", 470_000)
    with opened(server, near) as stream:
        until(lambda: stream._downloader.valid > HALF)
    server.release()
    until(lambda: list(near.glob("*.tar")))
    assert next(near.glob("*.tar")).read_bytes() == server.pages["/x.tar"]
    assert server.downloads() == 1


def test_a_changed_object_is_begun_anew(server, near):
    """A part of what the store no longer has is not gone on with; whoever had begun to read it is told."""
    server.hold("/x.tar", 100_000)
    first = opened(server, near)
    second = opened(server, near)
    assert second.read(10) == server.pages["/x.tar"][:10]
    first.close()
    server.pages["/x.tar"] = shard("b")
    server.release()
    with pytest.raises(ShardChanged):
        second.read()
    second.close()
    assert read(server, near) == server.pages["/x.tar"]
    assert parts(near) == []


@pytest.mark.parametrize(
    "change", [{"boot": "another"}, {"inode": 1}, {"etag": None, "modified": None}, {"origin": "x"}]
)
def test_parts_that_cannot_be_relied_on(server, near, change):
    """A part of another boot, file, object, or of nobody knows what, is begun anew."""
    server.hold("/x.tar", 100_000)
    opened(server, near).close()
    server.release()
    until(lambda: not list(near.glob(".wds/*.lock")))
    (record,) = near.glob(".wds/*.json")
    content, *checksums = record.read_text().splitlines(keepends=True)
    record.write_text(json.dumps({**json.loads(content), **change}) + "\n" + "".join(checksums))
    assert read(server, near) == server.pages["/x.tar"]
    assert [one.start for one in server.asked] == [0, 0]


def test_a_finished_part_needs_no_server(server, near):
    """A process that died before the renaming has done all the work."""
    body = read(server, near)
    (final,) = near.glob("*.tar")
    os.rename(final, near / ".wds" / f"{final.name}.part")
    server.pages.clear()
    assert read(server, near) == body
    assert server.downloads() == 1
    assert final.exists()


@pytest.mark.parametrize("etags", [True, False])
def test_a_fork_in_the_middle(near, etags):
    """Parent and child both read on, from where they were; without an ETag the child is told that it cannot."""
    with PacedServer({"/x.tar": shard()}, etags=etags) as server:
        server.hold("/x.tar", HALF)
        stream = opened(server, near)
        begin = stream.read(1000)
        child = os.fork()
        if not child:
            try:
                right = begin + stream.read() == server.pages["/x.tar"]
                stream.close()
            except BaseException:
                os._exit(3)
            os._exit(0 if right else 4)
        server.release()
        assert begin + stream.read() == server.pages["/x.tar"]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in ((0,) if etags else (0, 3))
        stream.close()
        assert server.downloads() == 1


def test_nobody_reads_along_where_nothing_can_be_proven(near):
    """Without ETag and date a second reader waits for the whole, and gets it without a second download."""
    with PacedServer({"/x.tar": shard()}, etags=False) as server:
        server.hold("/x.tar", HALF)
        stream = opened(server, near)
        assert stream.read(10) == server.pages["/x.tar"][:10]
        found = []
        thread = threading.Thread(target=lambda: found.append(read(server, near)))
        thread.start()
        thread.join(0.3)
        assert found == []
        server.release()
        thread.join()
        assert found == [server.pages["/x.tar"]]
        assert server.downloads() == 1
        stream.close()


def test_a_failing_download_fails_its_reader_only(near):
    """A source that ends early is an error after the bytes that came; the next reader asks for itself."""
    with PacedServer({"/x.tar": shard()}, etags=False, lengths=False) as server:
        whole = server.pages["/x.tar"]
        server.pages["/x.tar"] = whole[:100_000]
        with pytest.raises(WebDatasetError):
            list(wds.WebDataset(f"{server.root}/x.tar", shardshuffle=False, cache_dir=near))
        assert list(near.glob("*.tar")) == parts(near) == []
        server.pages["/x.tar"] = whole
        assert read(server, near) == whole


EXIT = """
import sys, threading
import webdataset as wds
print(next(iter(wds.WebDataset(sys.argv[2], shardshuffle=False, cache_dir=sys.argv[1])))["__key__"])
"""


def test_nothing_hangs_at_exit(server, near):
    """A program that ends while a shard comes ends at once, and quietly; what there is goes on next time."""
    server.hold("/x.tar", HALF)
    result = subprocess.run(
        [sys.executable, "-c", EXIT, near, f"{server.root}/x.tar"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (result.stdout, result.stderr) == ("a0\n", "")
    server.release()
    assert read(server, near) == server.pages["/x.tar"]
    assert server.downloads() == 1


def test_complete_first(server, near):
    """Where files are promised, a shard is given when it is there."""
    stream = opened(server, near, complete=True)
    assert os.path.getsize(stream.path) == len(server.pages["/x.tar"])
    assert stream.seekable()
    stream.seek(-10, os.SEEK_END)
    assert stream.read() == server.pages["/x.tar"][-10:]
    with open(stream.fileno(), "rb", closefd=False) as file:
        assert file.read(10) == server.pages["/x.tar"][:10]
    stream.close()


def test_closing_lets_go_of_the_source(server, near, monkeypatch):
    """A stream whose file cannot be read any more goes on from the source, and closes it."""

    def broken(*_):
        raise OSError(5, "Input/output error")

    stream = opened(server, near, complete=True)
    begin = exactly(stream, 1000)
    assert stream.seekable()
    monkeypatch.setattr(os, "pread", broken)
    with pytest.warns(UserWarning, match="cannot be read: Input/output error"):
        rest = stream.read(1000)
    assert server.pages["/x.tar"].startswith(begin + rest)
    assert len(server.asked) == 2  # the download, and the rest; nothing is compared with a checksum yet
    assert not stream.seekable()
    source = stream._direct
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        source.read(1)


def descriptors():
    """Return the open descriptors of this process."""
    return sorted(os.listdir("/proc/self/fd"), key=int)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nobody says which descriptors are open")
@pytest.mark.parametrize("has_space", [True, False])
def test_closing_leaves_no_descriptor(server, near, has_space):
    """Whether the shard is kept, or there is no room for it and it comes from the source."""
    read(server, near / "other")  # what is opened once, for good
    before = descriptors()
    limits, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits if has_space else (30_000, limits[1]))
        with contextlib.nullcontext() if has_space else pytest.warns(UserWarning, match="streamed from their sources"):
            stream = opened(server, near, complete=True)
            assert stream.read() == server.pages["/x.tar"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, action)
    assert bool(list(near.glob("*.tar"))) is has_space
    stream.close()
    until(lambda: len(descriptors()) <= len(before), 10)  # the server's, in this process, too


def test_without_more_threads(server, near, monkeypatch):
    """Where no thread can be started, a shard is fetched before it is read."""

    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    stream = opened(server, near / "other")
    stream.close()
    with monkeypatch.context() as patched:
        patched.setattr(download.Downloader, "start", refuse)
        stream = opened(server, near)
    assert stream.read() == server.pages["/x.tar"]
    assert os.path.getsize(stream.path) == len(server.pages["/x.tar"])
    stream.close()


def test_growing_shards_cannot_be_sought_in(server, near):
    """What comes is a stream; what is there is a file."""
    with opened(server, near) as stream:
        assert not stream.seekable()
        with pytest.raises(OSError, match="sought"):
            stream.seek(0)
        with pytest.raises(OSError, match="no file"):
            stream.fileno()
        space = bytearray(500)
        assert stream.readinto(space) == 500
        assert stream.tell() == 500
        assert bytes(space) == server.pages["/x.tar"][:500]
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


@pytest.fixture
def forgetful():
    """Let this process ask again."""
    metadata._silent_hosts.clear()
    return metadata._checked_paths.clear


@pytest.mark.parametrize(("policy", "asked"), [("never", 0), ("once", 1), ("always", 2), (None, 1)])
def test_revalidation(server, near, forgetful, policy, asked):
    """A shard of before is compared with the store's as often as is wished; the question is one byte long."""
    read(server, near)
    forgetful()
    for _ in range(2):
        assert read(server, near, revalidate=policy) == server.pages["/x.tar"]
    assert len(server.asked) == 1 + asked
    assert not any(one.whole for one in server.asked[1:])


def test_a_changed_object_is_fetched_again(server, near, forgetful, monkeypatch):
    """A later process sees the new contents; its readers never mix them with the old."""
    old = read(server, near)
    server.pages["/x.tar"] = shard("b")
    with opened(server, near) as reader:
        begin = reader.read(10)
        forgetful()
        monkeypatch.setenv("WDS_CACHE_REVALIDATE", "never")
        assert read(server, near) == old
        monkeypatch.setenv("WDS_CACHE_REVALIDATE", "once")
        assert read(server, near) == server.pages["/x.tar"]
        assert begin + reader.read() == old
    assert len(list(near.glob("*.tar"))) == 1
    assert read(server, near, revalidate="always") == server.pages["/x.tar"]
    assert server.downloads() == 2


@pytest.mark.parametrize("how", ["touched", "copied"])
def test_a_copy_with_another_date_is_compared_too(server, near, forgetful, how):
    """A folder of copies that was itself copied still sees that the store has another object, of the same length."""
    read(server, near)
    (copy,) = near.glob("*.tar")
    if how == "touched":
        os.utime(copy, (1, 1))
    else:
        (near / "other").write_bytes(copy.read_bytes())
        (near / "other").rename(copy)
    forgetful()
    assert read(server, near, revalidate="always") == (old := server.pages["/x.tar"])
    new = shard("b")
    assert len(new) == len(old)
    server.pages["/x.tar"] = new
    assert read(server, near, revalidate="always") == new
    assert server.downloads() == 2


def test_an_object_that_only_has_a_length_is_compared_by_it(near, forgetful):
    """A server without validators is asked, and an object of another length is fetched again."""
    with PacedServer({"/x.tar": shard()}, etags=False) as server:
        read(server, near)
        forgetful()
        assert read(server, near, revalidate="always") == server.pages["/x.tar"]
        assert server.downloads() == 1
        server.pages["/x.tar"] = new = shard("b") + shard("c")
        assert read(server, near, revalidate="always") == new
        assert server.downloads() == 2


def test_copies_outlive_their_store(server, near, forgetful):
    """A store that has lost the object, or is not reached, leaves the copy as it is, and is not asked for a while."""
    body = server.pages.pop("/x.tar")
    server.pages["/x.tar"] = body
    read(server, near)
    forgetful()
    server.pages.clear()
    assert read(server, near) == body
    server.__exit__()
    forgetful()
    for _ in range(2):
        assert read(server, near, revalidate="always") == body
    assert len(metadata._silent_hosts) == 1
    server.__enter__()


def test_what_revalidate_may_be(near):
    """A word that is none of the three is refused."""
    with pytest.raises(ValueError, match="revalidate"):
        ShardCache(str(near), revalidate="sometimes")
    with pytest.raises(ValueError, match="revalidate"):
        wds.WebDataset("http://h/x.tar", cache_dir=near, cache_revalidate="sometimes")


def test_datasets_say_when_to_ask(server, near, forgetful, monkeypatch):
    """An argument says it for one dataset, whatever the environment says for the others."""
    monkeypatch.setenv("WDS_CACHE_REVALIDATE", "always")
    for policy, asked in (("never", 1), (None, 3), ("once", 4)):
        forgetful()
        dataset = wds.WebDataset(
            f"{server.root}/x.tar", shardshuffle=False, cache_dir=near, cache_revalidate=policy, prefetch=0
        )
        for _ in range(2):
            assert len(list(dataset)) == COUNT
        assert len(server.asked) == asked


def test_the_record_holds_no_secret(near):
    """Of the url it shows what stands before the question mark; of commands, nothing."""
    with PacedServer({"/x.tar?token=canary": shard(), "/x.tar": shard()}) as server:
        url = f"{server.root}/x.tar?token=canary".replace("://", "://me:canary@")
        urls = [url, f"pipe:curl -s -H 'X: canary' {server.root}/x.tar", "pipe:cat /dev/null; echo canary >&2; exit 1"]
        for one in urls[:2]:
            assert len(list(wds.WebDataset(one, shardshuffle=False, cache_dir=near))) == COUNT
    records = [path.read_text() for path in near.glob(".wds/*.json")]
    assert len(records) == 2
    assert not any("canary" in record for record in records)
    assert any(json.loads(record)["url"].endswith("/x.tar") for record in records)


class Vouching:
    """An object of a store that names a checksum."""

    def __init__(self, url, body, promised):
        self.url, self.body, self.promised, self.asked = url, body, promised, []

    def open_at(self, offset, known, size=None):
        """Answer."""
        self.asked.append(offset)
        end = len(self.body) if size is None else offset + size
        identity = ObjectVersion(etag='"1"', length=len(self.body))
        return ObjectResponse(io.BytesIO(self.body[offset:end]), offset, identity, checksums=Checksums(self.promised))

    def refresh(self):
        """There is nothing to refresh."""

    def failures(self):
        """Nothing fails."""
        return (ConnectionError,)


@pytest.fixture
def vouching(monkeypatch):
    """A store of one object; its checksum may be set to a wrong one."""
    body = shard()
    source = Vouching("vouching://bucket/x.tar", body, zlib.crc32(body))
    monkeypatch.setitem(
        sys.modules,
        "webdataset.storage.backends.vouching",
        types.SimpleNamespace(__name__="vouching", remote_object=lambda url, options: source),
    )
    monkeypatch.setitem(wds.gopen.gopen_schemes, "vouching", make_opener("vouching"))
    return source


def half_done(vouching, near, size, *, damaged=False):
    """Leave a part of so many bytes, as a killed process would; ``damaged``: some came wrong."""
    cache = ShardCache(str(near))
    (one,) = cache.open_shards([{"url": vouching.url}], open_shards, reraise_exception)
    with one["stream"] as stream:
        stream.read()
    (final,) = near.glob("*.tar")
    (record,) = near.glob(".wds/*.json")
    with final.open("rb+") as file:
        file.truncate(size)
        if damaged:
            file.seek(1000)
            file.write(b"damage")
    # the last byte, too, came as a piece
    pieces = [final.read_bytes()[:end] for end in (size - 1, size)]
    lines = [f"{len(piece)} {zlib.crc32(piece)}" for piece in pieces]
    content = json.dumps({**json.loads(record.read_text()), "whole": False, "resumed": True})
    record.write_text("\n".join([content, *lines, ""]))
    part = near / ".wds" / f"{final.name}.part"
    os.rename(final, part)
    vouching.asked.clear()
    return part


@pytest.mark.parametrize("missing", [0, 1, 100_000])
@pytest.mark.parametrize("damaged", [False, True])
def test_checksums_of_resumed_downloads(vouching, near, missing, damaged):
    """What came in several goes is compared with the store's checksum; what came wrong is an error, and removed."""
    size = len(vouching.body)
    half_done(vouching, near, size - missing, damaged=damaged)
    cache = ShardCache(str(near))
    for attempt in range(1 + damaged):
        (one,) = cache.open_shards([{"url": vouching.url}], open_shards, reraise_exception)
        with one["stream"] as stream:
            if damaged and not attempt:
                with pytest.raises(ShortRead, match="checksum"):
                    stream.read()
                assert list(near.glob("*.tar")) == parts(near) == []
            else:
                assert stream.read() == vouching.body
    assert vouching.asked[0] == size - max(1, missing)
    assert json.loads(next(near.glob(".wds/*.json")).read_text())["crc32"] == zlib.crc32(vouching.body)
    assert next(near.glob("*.tar")).read_bytes() == vouching.body


def test_a_wrong_checksum_is_never_kept(vouching, near):
    """Nor is what came in one go."""
    vouching.promised += 1
    cache = ShardCache(str(near))
    (one,) = cache.open_shards([{"url": vouching.url}], open_shards, reraise_exception)
    with one["stream"] as stream, pytest.raises(ShortRead, match="checksum"):
        stream.read()
    assert list(near.glob("*.tar")) == []


def test_the_length_of_a_copy_is_known(tmp_path, near):
    """A source that says no length has one in the cache: that of the file."""
    (tmp_path / "x.tar").write_bytes(shard())
    for _ in range(2):
        cache = ShardCache(str(near))
        (one,) = cache.open_shards(
            [{"url": f"pipe:cat {tmp_path}/x.tar"}], open_shards, reraise_exception, resolve=resolve_url
        )
        with one["stream"] as stream:
            first = stream_identity(stream)
            assert stream.read() == (tmp_path / "x.tar").read_bytes()
    assert first[0] == os.path.getsize(tmp_path / "x.tar")
