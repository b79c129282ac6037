"""Positioned reads of local files and web servers."""

import io
import os
import threading

import pytest

from webdataset.core.errors import NoRandomAccess, NotFound, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.storage.backends.http import remote_object
from webdataset.storage.open_url import gopen_schemes, local_path
from webdataset.storage.random_access import LocalRanges, ObjectRanges, RangeFile, open_ranges
from webdataset.testing.sources import RangeServer

BODY = bytes(range(256)) * 1000


def test_a_local_file_is_read_anywhere(tmp_path):
    """Bytes from the middle, the end, across the end and behind it."""
    path = tmp_path / "x.tar"
    path.write_bytes(BODY)
    with open_ranges(path) as ranges:
        assert ranges.length == len(BODY)
        assert ranges.read_at(1000, 10) == BODY[1000:1010]
        assert ranges.read_at(len(BODY) - 3, 100) == BODY[-3:]
        assert ranges.read_at(len(BODY) + 3, 100) == b""
        assert ranges.read_at(5, 1 << 60) == BODY[5:]


@pytest.mark.parametrize("name", ["with # and ?.tar", "x:y.tar", "sp ace.tar"])
def test_names_that_look_like_urls_are_files(tmp_path, name, monkeypatch):
    """What opens as a file for the stream reader does so here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"abc")
    with open_ranges(name) as ranges:
        assert ranges.read_at(1, 1) == b"b"
    with open_ranges(f"file:{tmp_path}/{name}") as ranges:
        assert ranges.read_at(1, 1) == b"b"


def test_rewriting_applies(tmp_path, monkeypatch):
    """``WDS_REWRITE`` leads to the other file, as it does for streams."""
    (tmp_path / "x").write_bytes(b"abc")
    monkeypatch.setenv("WDS_REWRITE", f"far://host/={tmp_path}/")
    with open_ranges("far://host/x") as ranges:
        assert ranges.read_at(0, 3) == b"abc"
    assert local_path("far://host/x") == f"{tmp_path}/x"


def test_what_cannot_be_read_anywhere_says_so(tmp_path, monkeypatch):
    """Pipes, named pipes, replaced openers: NoRandomAccess, which is an OSError and an UnsupportedOperation."""
    with pytest.raises(NoRandomAccess, match="front to back"):
        open_ranges("pipe:cat x")
    os.mkfifo(tmp_path / "pipe")
    keeper = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(NoRandomAccess, match="regular"):
        open_ranges(tmp_path / "pipe")
    os.close(keeper)
    monkeypatch.setitem(gopen_schemes, "http", lambda *_, **__: None)
    with pytest.raises(NoRandomAccess):
        open_ranges("http://localhost/x")
    with pytest.raises(NotFound):
        open_ranges(tmp_path / "absent")
    with pytest.raises(SourceError):
        open_ranges(tmp_path)
    with pytest.raises(UsageError):
        open_ranges(3)  # type: ignore[arg-type]


def test_threads_share_a_file(tmp_path):
    """No position is shared: reads from several threads do not disturb each other."""
    path = tmp_path / "x"
    path.write_bytes(BODY)
    wrong = []
    with LocalRanges(str(path)) as ranges:

        def read(seed):
            for step in range(300):
                offset = (seed * 7919 + step * 104729) % (len(BODY) - 50)
                if ranges.read_at(offset, 50) != BODY[offset : offset + 50]:
                    wrong.append(offset)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_child_reads_beside_its_parent(tmp_path):
    """After a fork both read the same file right."""
    path = tmp_path / "x"
    path.write_bytes(BODY)
    with LocalRanges(str(path)) as ranges:
        ranges.read_at(0, 10)
        child = os.fork()
        if child == 0:
            good = all(ranges.read_at(offset, 5) == BODY[offset : offset + 5] for offset in range(0, 9000, 7))
            os._exit(0 if good else 1)
        assert all(ranges.read_at(offset, 5) == BODY[offset : offset + 5] for offset in range(0, 9000, 7))
        assert os.waitpid(child, 0)[1] == 0


def test_a_web_object_is_read_anywhere():
    """Only what is asked for is sent, but for the first bytes, which are kept."""
    with RangeServer({"/x": BODY}) as server, open_ranges(f"{server.root}/x") as ranges:
        assert ranges.length == len(BODY)
        before = server.sent
        assert ranges.read_at(10, 10) == BODY[10:20]
        assert server.sent == before
        assert ranges.read_at(200_000, 10) == BODY[200_000:200_010]
        assert server.sent == before + 10
        assert ranges.read_at(len(BODY) - 3, 100) == BODY[-3:]
        assert ranges.read_at(len(BODY), 100) == b""


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_small_objects(body):
    """An empty object, and one smaller than the first request."""
    with RangeServer({"/x": body}) as server, open_ranges(f"{server.root}/x") as ranges:
        assert ranges.length == len(body)
        assert ranges.read_at(0, 10) == body


def test_a_server_without_ranges_says_so():
    """Status 200 to a range request: NoRandomAccess, without reading the body."""
    with RangeServer({"/x": BODY}, ranges=False) as server, pytest.raises(NoRandomAccess, match="200"):
        open_ranges(f"{server.root}/x")


def test_nothing_there():
    """404 is NotFound."""
    with RangeServer({}) as server, pytest.raises(NotFound):
        open_ranges(f"{server.root}/x")


@pytest.mark.parametrize("etags", [True, False])
def test_an_object_that_is_replaced_is_noticed(etags):
    """By its ETag (412), or by its length where there is none."""
    with RangeServer({"/x": BODY}, etags=etags) as server, open_ranges(f"{server.root}/x") as ranges:
        server.pages["/x"] = BODY + b"more"
        with pytest.raises(ShardChanged, match="replaced"):
            ranges.read_at(100_000, 10)


def test_an_answer_that_breaks_off_is_continued():
    """The rest of a range is asked for again, from where it stopped."""
    with RangeServer({"/x": BODY}, cut=1000, cuts=2) as server:
        ranges = ObjectRanges(remote_object(f"{server.root}/x"), head=3000)
        assert ranges.read_at(0, 3000) == BODY[:3000]
        assert [span for _, span in server.asked] == ["bytes=0-2999", "bytes=1000-2999", "bytes=2000-2999"]


def test_a_server_that_never_gives_the_rest_is_an_error():
    """After a few answers without a byte: ShortRead, with the offset."""
    with RangeServer({"/x": BODY}) as server:
        ranges = ObjectRanges(remote_object(f"{server.root}/x"))
        server.cut, server.cuts = 0, 1000
        with pytest.raises(ShortRead, match="attempts to read a range gave nothing"):
            ranges.read_at(100_000, 10)


@pytest.mark.parametrize(
    "says",
    [
        {"Content-Range": f"bytes */{len(BODY)}"}, {"Content-Range": "bytes 0-9/" + "9" * 5000},
        {"Content-Range": f"bytes 512-1023/{len(BODY)}"}, {"Content-Range": "bytes 0-9/*"},
        {"Content-Encoding": "gzip"},
    ],
    ids=str,
)  # fmt: skip
def test_servers_whose_answers_prove_nothing(says):
    """No place, another place, an endless length, compression on the way: read front to back, never guessed."""
    with RangeServer({"/x": BODY}, says=says) as server, pytest.raises(NoRandomAccess):
        open_ranges(f"{server.root}/x")


def test_a_server_that_gives_more_than_was_asked_for():
    """What is left of one answer is never read as the next one."""
    with RangeServer({"/x": BODY}, greedy=True) as server, open_ranges(f"{server.root}/x") as ranges:
        for offset in range(100_000, 200_000, 10_007):
            assert ranges.read_at(offset, 100) == BODY[offset : offset + 100]


def test_range_file_is_a_file():
    """A file over positioned reads gives what a file gives, and closes what it reads."""
    content, closed = b"0123456789", []
    ours = RangeFile(lambda offset, size: content[offset : offset + size], len(content), lambda: closed.append(1))
    theirs = io.BytesIO(content)
    for place, whence, size in ((3, 0, 2), (-2, 2, 5), (1, 0, -1), (0, 2, 3), (4, 0, None), (2, 1, 1)):
        assert (ours.seek(place, whence), ours.read(size), ours.tell()) == (
            theirs.seek(place, whence),
            theirs.read(size),
            theirs.tell(),
        )
    ours.seek(8)
    buffer = bytearray(4)
    assert ours.readinto(buffer) == 2
    assert buffer == b"89\0\0"
    with pytest.raises(ValueError, match="before the beginning"):
        ours.seek(-11, 2)
    ours.close()
    ours.close()
    assert closed == [1]
