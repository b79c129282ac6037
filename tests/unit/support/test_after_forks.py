"""What children of tests do, and how it is told."""

import io
import os
import signal

import pytest

from support.after_forks import NUMBERED, closed_by_child, ended, forked, read_by_children, read_on_by_both
from webdataset.testing.sources import RangeServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_what_a_child_comes_to(capfd):
    """True, false, an exception, which is shown, and an end that nobody catches."""
    assert ended(forked(lambda: True)) == 0
    assert ended(forked(lambda: False)) == 1
    assert ended(forked(lambda: 1 // 0)) == 2
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert ended(forked(lambda: os.kill(os.getpid(), signal.SIGKILL))) == -signal.SIGKILL


def test_streams():
    """A child's reading and closing are told apart from what it should do."""
    assert read_on_by_both(io.BytesIO(b"rest"), b"rest")
    assert not read_on_by_both(io.BytesIO(b"less"), b"rest")
    stream = io.BytesIO(b"x")
    assert closed_by_child(stream)
    assert not stream.closed
    assert not closed_by_child(None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_read(method):
    """Right bytes are 0; wrong ones, and none, are not."""
    with RangeServer({f"/{name}": content for name, content in NUMBERED.items()}) as server:
        assert read_by_children(f"{server.root}/", method, os.environ) == [0, 0]
        server.pages["/5"] = bytes(100_000)
        assert read_by_children(f"{server.root}/", method, os.environ, count=1) == [3]
        del server.pages["/5"]
        assert read_by_children(f"{server.root}/", method, os.environ, count=1) == [1]
