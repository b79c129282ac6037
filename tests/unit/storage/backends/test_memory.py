"""Objects in memory: published on close, listed, read whole and anywhere, gone with the process."""

import os
import sys

import pytest

import webdataset as wds
from webdataset.core.errors import ConfigError, NotFound, ShardChanged, UsageError
from webdataset.storage.backends import memory
from webdataset.storage.random_access import open_ranges

BODY = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def _clear():
    """Nothing is there before, and nothing after."""
    memory.clear()
    yield
    memory.clear()


def put(url, content=BODY):
    """Write an object."""
    with wds.gopen(url, "wb") as stream:
        stream.write(content)


def test_what_was_written_is_read():
    """Whole, in pieces, and anywhere."""
    put("memory://demo/a/x.tar")
    with wds.gopen("memory://demo/a/x.tar") as stream:
        assert stream.length == len(BODY)
        assert b"".join(iter(lambda: stream.read(999), b"")) == BODY
    with open_ranges("memory://demo/a/x.tar") as ranges:
        assert ranges.read_at(100_000, 10) == BODY[100_000:100_010]
        assert ranges.read_at(len(BODY) - 3, 10) == BODY[-3:]
    put("memory://demo/empty", b"")
    with wds.gopen("MEMORY://demo/empty") as stream, open_ranges("memory://demo/empty") as ranges:
        assert stream.read() == ranges.read_at(0, 10) == b""


def test_publication_is_at_the_end():
    """Nothing before close, the old object after an exception or a forgotten stream."""
    stream = wds.gopen("memory://demo/x", "wb")
    stream.write(b"half")
    with pytest.raises(NotFound, match="process"):
        wds.gopen("memory://demo/x")
    del stream
    put("memory://demo/x", b"old")
    with pytest.raises(ZeroDivisionError), wds.gopen("memory://demo/x", "wb") as stream:
        stream.write(bytes([1 // (stream.write(b"half") - 4)]))
    with wds.gopen("memory://demo/x") as stream:
        assert stream.read() == b"old"


def test_a_replaced_object_is_noticed():
    """Positioned reads are of one generation; a stream goes on with the one that it began."""
    put("memory://demo/x")
    with wds.gopen("memory://demo/x") as stream, open_ranges("memory://demo/x") as ranges:
        put("memory://demo/x", BODY[::-1])
        assert stream.read() == BODY
        with pytest.raises(ShardChanged):
            ranges.read_at(200_000, 10)


def test_shards_are_listed():
    """Folders and wildcards, as in every store; names are apart."""
    with wds.ShardWriter("memory://demo/train/%02d.tar", maxcount=4) as sink:
        for number in range(10):
            sink.write({"__key__": f"{number:03}", "txt": f"caption {number}"})
    put("memory://other/train/99.tar")
    names = [f"memory://demo/train/{number:02}.tar" for number in range(3)]
    assert wds.expand_urls("memory://demo/train/") == wds.expand_urls("memory://demo/**/*.tar") == names
    dataset = wds.WebDataset("memory://demo/train/*.tar", shardshuffle=False).decode()
    assert [sample["txt"] for sample in dataset] == [f"caption {number}" for number in range(10)]
    memory.clear("demo")
    with pytest.raises(NotFound):
        wds.expand_urls("memory://demo/train/")
    assert wds.expand_urls("memory://other/train/") == ["memory://other/train/99.tar"]


@pytest.mark.parametrize("url", ["memory://demo", "memory://", "memory:///x", "memory://demo/", "memory://demo/a/"])
def test_urls_that_name_nothing(url):
    """A name and a key are needed."""
    for mode in ("rb", "wb"):
        with pytest.raises(UsageError, match="memory://name/key"):
            wds.gopen(url, mode)


def test_no_options_apply():
    """Memory has no credentials."""
    with pytest.raises(ConfigError):
        wds.gopen("memory://demo/x", storage_options={"token": "x"})


def test_a_child_begins_with_a_copy():
    """After a fork, both see what was there; neither sees what the other writes."""
    put("memory://demo/x")
    child = os.fork()
    if child == 0:
        try:
            put("memory://demo/y")
            with wds.gopen("memory://demo/x") as stream:
                os._exit(0 if stream.read() == BODY else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(NotFound):
        wds.gopen("memory://demo/y")


def test_nothing_is_imported_for_it():
    """Neither fsspec nor urllib3."""
    import subprocess

    code = (
        "import sys, webdataset as wds\nwith wds.gopen('memory://a/b', 'wb') as f: f.write(b'x')\n"
        "assert wds.gopen('memory://a/b').read() == b'x'\n"
        "print([m for m in ('urllib3', 'fsspec', 'asyncssh') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
