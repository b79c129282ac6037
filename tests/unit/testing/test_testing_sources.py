"""The stream that misbehaves, and the small server."""

import io
import urllib.error
import urllib.request

import pytest

from webdataset.testing.sources import FaultyStream, served


def test_short_reads_give_everything_in_the_end():
    """Reads of odd sizes lose nothing, and the same seed gives the same sizes."""
    payload = bytes(range(256)) * 40
    stream, again = FaultyStream(payload, seed=1), FaultyStream(payload, seed=1)
    pieces = list(iter(lambda: stream.read(4096), b""))
    assert b"".join(pieces) == payload
    assert len(pieces) > 10
    assert again.read() == payload
    assert (stream.given, stream.reads) == (len(payload), len(pieces) + 1)


def test_it_works_under_a_buffered_reader():
    """The raw stream serves Python's own buffering."""
    assert io.BufferedReader(FaultyStream(b"abc" * 1000, seed=2), 100).read(2500) == (b"abc" * 1000)[:2500]


def test_it_ends_early():
    """As if there were no more."""
    assert FaultyStream(b"abcdef", ends_at=4).read() == b"abcd"


def test_it_fails_at_the_read_asked_for():
    """The n-th read raises, and the one after it goes on."""
    stream = FaultyStream(b"abcdef", fails_at=1, error=TimeoutError("late"))
    assert stream.read(2) == b"ab"
    with pytest.raises(TimeoutError, match="late"):
        stream.read(2)
    assert stream.read(2) == b"cd"
    with pytest.raises(OSError, match="told to"):
        FaultyStream(b"", fails_at=0).read(1)


def test_it_hides_its_length():
    """It can be neither sought nor measured."""
    stream = FaultyStream(b"abc")
    assert not stream.seekable()
    with pytest.raises(OSError):
        stream.tell()
    with pytest.raises(OSError):
        stream.fileno()


def test_served_pages():
    """Bytes under a path, 404 for the others, nothing left afterwards."""
    with served({"/a b.tar".replace(" ", "%20"): b"payload"}) as root:
        with urllib.request.urlopen(f"{root}/a%20b.tar") as answer:
            assert answer.read() == b"payload"
            assert answer.headers["Content-Length"] == "7"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{root}/none")
        caught.value.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{root}/a%20b.tar")
