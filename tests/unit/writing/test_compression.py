"""Compression of shards: which kind is chosen, and that the standard tools can undo it."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import sys
import tarfile

import pytest

from webdataset.core import optional_imports
from webdataset.core.errors import MissingExtra, UsageError
from webdataset.writing import compression
from webdataset.writing.compression import choose_compression
from webdataset.writing.tar_writer import TarWriter

SAMPLES = [{"__key__": f"{index:05d}", "txt": b"text %d " % index * 20} for index in range(300)]


def archive(**options):
    """Return an archive of the samples."""
    stream = io.BytesIO()
    with TarWriter(stream, encoder=False, **options) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    return stream.getvalue()


def unzst(content):
    """Decompress by the command, or by Python's own module."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.decompress(content)
    if shutil.which("zstd") is None:
        pytest.skip("no zstd command")
    return subprocess.run(["zstd", "-dc"], input=content, capture_output=True, check=True).stdout


UNDO = {"gz": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress, "zst": unzst}


@pytest.mark.parametrize(
    ("compress", "kind"),
    [
        (True, "gz"),
        ("gz", "gz"),
        ("gzip", "gz"),
        ("bz2", "bz2"),
        ("bzip2", "bz2"),
        ("xz", "xz"),
        ("zst", "zst"),
        ("zstd", "zst"),
    ],
)
def test_kinds(compress, kind):
    """Each kind is smaller than the plain archive and decompresses to it; runs are byte-identical."""
    plain, packed = archive(), archive(compress=compress)
    assert UNDO[kind](packed) == plain
    assert len(packed) < len(plain) / 4
    assert packed == archive(compress=compress)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("a.tar", None),
        ("a.tar.gz", "gz"),
        ("a.tgz", "gz"),
        ("A.TAR.GZ", "gz"),
        ("a.tar.bz2", "bz2"),
        ("a.tbz", "bz2"),
        ("a.tar.xz", "xz"),
        ("a.txz", "xz"),
        ("a.tar.zst", "zst"),
        ("a.tzst", "zst"),
        ("https://host/a.tar.gz?sig=1#x", "gz"),
        ("https://host/a.tar?name=b.gz", None),
        ("a.tar?name=b.gz", "gz"),
        ("pipe:cat > a.tar.gz", "gz"),
        ("pipe:gzip -c > a.tar.gz", None),
        ("pipe:zstd -o a.tar.zst", None),
        (None, None),
    ],
)
def test_names_choose(url, kind):
    """Without an argument the name decides; a command that compresses by itself gets plain bytes."""
    assert choose_compression(None, url) == kind
    assert choose_compression(False, url) is None
    assert choose_compression("xz", url) == "xz"


@pytest.mark.parametrize("compress", ["rar", "gz2", 7])
def test_unknown_kinds(compress):
    """An unknown kind is an error (upstream wrote plain files silently)."""
    with pytest.raises(UsageError, match="'gz', 'bz2', 'xz', 'zst'"):
        choose_compression(compress, "a.tar")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_levels(kind):
    """A level is the library's own."""
    assert UNDO[kind](archive(compress=kind, compresslevel=1)) == archive()


@pytest.mark.parametrize(("kind", "level"), [("gz", 77), ("bz2", 0), ("xz", 77)])
def test_impossible_levels(kind, level):
    """A level that the library refuses is an error that says so."""
    with pytest.raises(UsageError, match=f"level={level}"):
        compression.make_compressor(kind, level)


def test_gzip_header_has_no_time_and_no_name():
    """The header of a gz shard is constant."""
    header = archive(compress="gz")[:10]
    assert header[:3] == b"\x1f\x8b\x08"
    assert header[3:8] == bytes(5)


def test_bytes_do_not_depend_on_extras(monkeypatch):
    """Where isal is not installed, a gz shard has the same bytes."""
    before = archive(compress="gz")
    monkeypatch.setattr(optional_imports, "import_if_available", lambda _module: None)
    assert archive(compress="gz") == before


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has zstd itself")
def test_zst_without_its_package(monkeypatch):
    """Without zstandard the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"\[fast\]"):
        archive(compress="zst")


def test_large_members_are_compressed_whole():
    """Members beyond the joining limit go through, too."""
    stream = io.BytesIO()
    content = bytes(range(256)) * 12_000
    with TarWriter(stream, encoder=False, compress="gz") as writer:
        writer.write({"__key__": "a", "x": content, "y": b"small"})
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as opened:
        assert opened.extractfile("a.x").read() == content
        assert opened.extractfile("a.y").read() == b"small"


def test_names_choose_for_files(tmp_path):
    """A .tar.gz on disk is gzip, and is renamed into place like any other."""
    with TarWriter(tmp_path / "a.tar.gz", encoder=False) as writer:
        writer.write(SAMPLES[0])
        assert [path.name for path in tmp_path.iterdir()] != ["a.tar.gz"]
    with tarfile.open(tmp_path / "a.tar.gz", "r:gz") as opened:
        assert opened.getnames() == ["00000.txt"]


def test_forgotten_compressed_writer(tmp_path):
    """What the compressor holds of a forgotten archive is kept, too."""
    writer = TarWriter(tmp_path / "a.tar.gz", encoder=False)
    writer.write(SAMPLES[0])
    with pytest.warns(ResourceWarning, match="1 samples"):
        writer.__del__()
    (kept,) = tmp_path.iterdir()
    with tarfile.open(kept) as opened:
        assert opened.getnames() == ["00000.txt"]


def test_aborted_compressed_archive_is_cut():
    """A compressed archive that was given up has no proper end."""
    stream = io.BytesIO()
    with pytest.raises(ZeroDivisionError), TarWriter(stream, encoder=False, compress="gz") as writer:
        1 / (writer.write(SAMPLES[0]) * 0)
    with pytest.raises(EOFError):
        gzip.decompress(stream.getvalue() or b"\x1f\x8b")
