"""Compressed streams are told by their bytes, read to their end, and checked."""

import io

import pytest

from webdataset.ground.errors import BadCompression
from webdataset.tar.compression import PIECE, Decompressor, compression_of
from webdataset.testing.archives import COMPRESSIONS, compressed

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
    assert compression_of(data) == kind
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


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_streams(kind):
    """A changed byte is an error (zst carries no checksum unless its writer asked for one)."""
    data = bytearray(compressed(DATA, kind))
    data[len(data) // 2] ^= 0x55
    with pytest.raises(BadCompression):
        through(kind, bytes(data), 5000)


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_what_follows(kind):
    """Zero padding behind the last member is stepped over, other bytes are an error."""
    data = compressed(DATA, kind)
    assert b"".join(through(kind, data + bytes(1000), 4096)) == DATA
    with pytest.raises(BadCompression, match="other bytes"):
        through(kind, data + b"something else", 4096)


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
    assert compression_of(bytes(block)) is None


def test_without_isal(monkeypatch):
    """The standard library reads gz where isal is not installed."""
    from webdataset.tar import compression

    monkeypatch.setattr(compression, "available", lambda _: None)
    assert b"".join(through("gz", compressed(DATA, "gz", pieces=2), 3000)) == DATA
