"""Compressed streams are told by their bytes, read to their end, and checked."""

import io
import random
import subprocess

import pytest

from webdataset.core.errors import BadCompression
from webdataset.tar.compression import PIECE, Decompressor, detect_compression
from webdataset.testing.archives import COMPRESSIONS, compressed, has

DATA = b"".join(b"%d " % n for n in range(120_000))


def through(kind, data, chunk):
    """Decompress ``data`` in chunks."""
    decompressor = Decompressor(kind)
    stream = io.BytesIO(data)
    pieces = []
    while piece := stream.read(chunk):
        pieces += decompressor.feed(piece)
    decompressor.finish()
    return pieces


@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("chunk", [777, 1 << 20])
def test_whole_streams(kind, pieces, chunk):
    """One or several concatenated members come out whole, in bounded pieces."""
    data = compressed(DATA, kind, pieces=pieces)
    assert detect_compression(data) == kind
    found = through(kind, data, chunk)
    assert b"".join(found) == DATA
    assert max(map(len, found)) <= PIECE


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_cut_streams(kind):
    """A stream that stops early is an error, wherever it stops."""
    data = compressed(DATA, kind)
    for keep in (8, len(data) // 2, len(data) - 1):
        with pytest.raises(BadCompression):
            through(kind, data[:keep], 1000)


@pytest.mark.limited
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_streams(kind):
    """A changed byte is an error (zst carries no checksum unless its writer asked for one)."""
    data = bytearray(compressed(DATA, kind))
    data[len(data) // 2] ^= 0x55
    with pytest.raises(BadCompression):
        through(kind, bytes(data), 5000)


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_what_follows(kind):
    """Zero padding after the last member is stepped over, other bytes are an error."""
    data = compressed(DATA, kind)
    assert b"".join(through(kind, data + bytes(1000), 4096)) == DATA
    with pytest.raises(BadCompression, match="other bytes"):
        through(kind, data + b"something else", 4096)


@pytest.mark.limited
def test_bombs_come_in_pieces():
    """Highly compressible bytes are given piece by piece, never all at once."""
    data = compressed(bytes(50_000_000), "gz")
    sizes = [len(piece) for piece in Decompressor("gz").feed(data)]
    assert max(sizes) <= PIECE
    assert sum(sizes) == 50_000_000


def test_plain_tar_is_not_compressed():
    """A member whose name looks like a magic number does not make the archive compressed."""
    block = bytearray(512)
    block[:3] = b"BZh"
    block[257:262] = b"ustar"
    assert detect_compression(bytes(block)) is None


def test_without_isal(monkeypatch):
    """The standard library reads gz where isal is not installed."""
    from webdataset.tar import compression

    monkeypatch.setattr(compression, "import_if_available", lambda _: None)
    assert b"".join(through("gz", compressed(DATA, "gz", pieces=2), 3000)) == DATA


def skippable(content, kind=0x50):
    """Return a zstd frame that holds no data."""
    return bytes([kind]) + b"\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


@pytest.mark.parametrize("chunk", [1, 2, 5, 777, 1 << 20])
@pytest.mark.parametrize("layout", ["s.", ".s", "s.s.s", "ss..ss", ".s0s.", "S.S.", "e.e"])
def test_skippable_frames_are_stepped_over(layout, chunk):
    """At the start, between frames and at the end, empty and large ones, in any chunking; as pzstd writes them."""
    parts = {"s": skippable(b"index"), "S": skippable(bytes(3000), 0x5F), "e": skippable(b""), "0": bytes(7)}
    frame = compressed(DATA[:5000], "zst")
    data = b"".join(parts.get(part, frame) for part in layout)
    assert detect_compression(data) == "zst"
    assert b"".join(through("zst", data, chunk)) == DATA[:5000] * layout.count(".")


def test_a_cut_skippable_frame_is_an_error():
    """Wherever it stops: in its header, or in what it holds."""
    frame = compressed(b"data", "zst")
    for stop in range(1, 13):
        with pytest.raises(BadCompression, match="ends early"):
            through("zst", frame + skippable(b"index")[:stop], 777)


def test_pzstd(tmp_path):
    """Frames of several threads, each behind a skippable one."""
    if not has("pzstd"):
        pytest.skip("pzstd is not installed")
    noise = random.Random(1).randbytes(3_000_000)
    packed = subprocess.run(["pzstd", "-q", "-p", "4", "-1", "-c"], input=noise, capture_output=True, check=True).stdout
    assert packed[:4] == b"P\x2a\x4d\x18"
    assert b"".join(through("zst", packed, 4096)) == noise


@pytest.mark.parametrize("tail", [b"x", b"garbage" * 100, b"\x1f", b"BZ", b"\0\0garbage", b"\x1f\x8bgarbage"])
@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_other_bytes_after_the_stream(kind, tail, chunk):
    """Ignored on request behind gz and bz2, as their own programs do, and counted; else an error. In any chunking."""
    data = compressed(b"data", kind)
    for ignore in (False, True):
        decompressor = Decompressor(kind, ignore_trailing=ignore)
        found = []

        def feed(decompressor=decompressor, found=found):
            for start in range(0, len(data + tail), chunk):
                found.extend(decompressor.feed((data + tail)[start : start + chunk]))
            decompressor.finish()

        if ignore and kind in ("gz", "bz2"):
            feed()
            assert decompressor.trailing == len(data) + len(tail) - len(tail.lstrip(b"\0"))
        else:
            with pytest.raises(BadCompression):
                feed()
        assert b"".join(found) == b"data"


def test_a_stream_that_begins_with_a_skippable_frame():
    """It is zstd for each of the sixteen kinds; no other byte begins one, and none is told from less than a header."""
    for kind in range(0x50, 0x60):
        assert detect_compression(skippable(b"index", kind)) == "zst"
    assert detect_compression(skippable(b"index", 0x60)) is None
    assert detect_compression(skippable(b"index", 0x4F)) is None
    assert detect_compression(skippable(b"index")[:7]) is None
    assert detect_compression(b"\x50" + bytes(600)) is None


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_appetite_is_bounded(kind):
    """However little a chunk gives, the next one that is asked for gives about a piece at most; zeros give more."""
    noise = random.Random(1).randbytes(1 << 20)
    decompressor = Decompressor(kind)
    data = compressed(noise, kind)
    for start in range(5000):
        list(decompressor.feed(data[start : start + 1]))
        assert 4096 <= decompressor.appetite <= PIECE
    zeros, stream = Decompressor(kind), io.BytesIO(compressed(bytes(64 << 20), kind))
    before = zeros.appetite
    while piece := stream.read(zeros.appetite):
        list(zeros.feed(piece))
    assert 2048 < zeros.appetite < before
