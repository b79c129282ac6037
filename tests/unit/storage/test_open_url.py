"""Which source serves a url, and what a name is when it is no url."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.storage import open_url as opening
from webdataset.storage.open_url import gopen_schemes, is_local, open_stream, open_url
from webdataset.storage.streams import BorrowedStream, length_known, stream_length


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def schemes():
    """The live table of schemes, restored afterwards."""
    before = dict(gopen_schemes)
    yield gopen_schemes
    gopen_schemes.clear()
    gopen_schemes.update(before)


def content(url, **kw):
    """Read all of a url."""
    with open_url(url, **kw) as stream:
        return stream.read()


@pytest.mark.parametrize(
    "name",
    [
        "a.tar",
        "a#b.tar",
        "a?b.tar",
        "a;b.tar",
        "a b.tar",
        "a:b.tar",
        "a%20b.tar",
        "ä.tar",
        "c:x",
        "a::b",
        "-x",
        "[1].tar",
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_names_are_paths(here, name, raw):
    """A name without a served scheme is a local path, whatever characters it has."""
    (here / name).write_bytes(b"hello")
    assert content(name, raw=raw) == b"hello"
    assert content(here / name, raw=raw) == b"hello"


def test_undecodable_names(here):
    """A Path whose name is not UTF-8 opens."""
    path = os.fsencode(here) + b"/\xff.tar"
    Path(os.fsdecode(path)).write_bytes(b"hello")
    assert content(Path(os.fsdecode(path))) == b"hello"


@pytest.mark.parametrize(
    "form", ["file:a%20b", "file:{0}/a%20b", "file://{0}/a%20b", "FILE:a b", "file://localhost{0}/a%20b"]
)
def test_file_urls(here, form):
    """Relative, absolute and three-slash ``file:`` urls name a file; percent escapes are decoded."""
    (here / "a b").write_bytes(b"hello")
    assert content(form.format(here)) == b"hello"


def test_file_urls_may_be_unescaped(here):
    """A file whose name looks escaped opens where no file has the decoded name."""
    (here / "a%20b").write_bytes(b"raw")
    assert content("file:a%20b") == b"raw"
    (here / "a b").write_bytes(b"decoded")
    assert content("file:a%20b") == b"decoded"


def test_file_urls_with_a_host_are_refused():
    """``file://data/x`` names a host, which is an error that says what to write."""
    with pytest.raises(UsageError, match="file:relative"):
        open_url("file://data/x.tar")


def test_missing_files(here):
    """A missing file is NotFound, with errno and name."""
    with pytest.raises(NotFound) as caught:
        open_stream("none.tar")
    assert isinstance(caught.value, FileNotFoundError)
    assert (caught.value.errno, caught.value.filename, caught.value.url) == (2, "none.tar", "none.tar")
    with pytest.raises(SourceError):
        open_url(here)


@pytest.mark.parametrize("url", ["r2://bucket/key.tar", "nope://x", "r2://b/$(touch owned)"])
def test_unknown_schemes(url, here):
    """An unknown scheme with ``://`` is a ValueError that names the known ones, and the way out for clouds."""
    with pytest.raises(UsageError, match="no gopen handler defined") as caught:
        open_stream(url)
    text = str(caught.value)
    assert "pipe" in text
    assert "https" in text
    if "owned" in url:
        assert "'r2://b/$(touch owned)'" in text
    elif url.startswith("r2"):
        assert "pipe:rclone cat r2://bucket/key.tar" in text


def test_a_registered_scheme_is_used_at_once(here, schemes):
    """Adding and replacing entries takes effect, with upstream's arguments."""
    calls = []

    def opener(url, mode, bufsize, **kw):
        calls.append((url, mode, bufsize, kw))
        return io.BytesIO(b"mine")

    schemes["zz"] = opener
    assert content("zz:x", option=1) == b"mine"
    assert open_stream("zz://y").read() == b"mine"
    schemes["http"] = opener
    assert content("http://x") == b"mine"
    assert calls[0] == ("zz:x", "rb", 8192, {"option": 1})
    schemes["file"] = opener
    assert content("file:x") == b"mine"


def test_a_replaced_default_is_asked(here, schemes):
    """A replaced ``__default__`` gets what no scheme serves, unless a file has that name."""
    schemes["__default__"] = lambda url, *_, **__: io.BytesIO(url.encode())
    assert content("what:ever") == b"what:ever"
    (here / "what:ever").write_bytes(b"file")
    assert content("what:ever") == b"file"


def test_packages_bring_schemes(here, monkeypatch):
    """An installed package's entry point in ``webdataset.storage`` serves its scheme."""
    package = here / "plugged"
    (package / "plugged_source-1.dist-info").mkdir(parents=True)
    (package / "plugged_source-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugged-source\nVersion: 1\n"
    )
    (package / "plugged_source-1.dist-info" / "entry_points.txt").write_text(
        "[webdataset.storage]\nplugged = plugged_source:opener\n"
    )
    (package / "plugged_source.py").write_text(
        "import io\ndef opener(url, mode, bufsize, **kw): return io.BytesIO(url.encode())\n"
    )
    monkeypatch.syspath_prepend(str(package))
    opening._plugin_opener.cache_clear()
    try:
        assert content("plugged://x") == b"plugged://x"
        assert not is_local("plugged:x")
    finally:
        opening._plugin_opener.cache_clear()


def test_local_or_not(here):
    """What is local: paths, unknown short schemes and ``file:``; not ``-`` and not what a scheme serves."""
    assert all(map(is_local, ["a.tar", "a:b", "file:x", "/x", "c:\\x"]))
    assert not any(map(is_local, ["-", "pipe:x", "http://x", "s3://x", "HTTP://x"]))


def test_modes(here):
    """Only rb and wb are modes."""
    with pytest.raises(UsageError, match="mode"):
        open_url("x", "r")
    with open_url("x", "wb") as stream:
        stream.write(b"hello")
    assert content("x") == b"hello"


@pytest.mark.parametrize("url", [None, 3, b"x", ["x"]])
def test_what_is_no_url(url):
    """Anything but texts, paths and open objects is refused."""
    with pytest.raises(UsageError):
        open_url(url)


def test_open_objects_stay_open():
    """An object that is open is read, and stays open when the stream is closed."""
    mine = io.BytesIO(b"hello")
    with open_stream(mine) as stream:
        assert stream.read() == b"hello"
    assert not mine.closed


def test_a_writable_object_is_flushed(tmp_path):
    """Closing a file of the caller flushes it."""
    with (tmp_path / "x").open("wb") as mine:
        open_url(mine, "wb").write(b"hello")
        open_url(mine, "wb").close()
        assert (tmp_path / "x").read_bytes() == b"hello"


def test_stdin_and_stdout_are_never_closed():
    """``-`` reads stdin, writes stdout, and closes neither."""
    code = (
        "import sys\nfrom webdataset.storage.open_url import open_url\n"
        "with open_url('-') as s: data = s.read()\n"
        "with open_url('-', 'wb') as s: s.write(data.upper())\n"
        "print('still', not sys.stdin.closed, flush=True)"
    )
    shown = subprocess.run([sys.executable, "-c", code], input=b"hello", capture_output=True, check=True)
    assert shown.stdout == b"HELLOstill True\n"


def test_lengths(here):
    """Regular files and memory know their length; pipes and foreign objects do not."""
    (here / "x").write_bytes(b"hello")
    with (here / "x").open("rb") as mine:
        for stream in (open_stream("x"), open_url("x"), open_url(mine), BorrowedStream(io.BytesIO(b"hello"))):
            assert stream_length(stream) == 5
            stream.close()
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        assert not length_known(stream)
    assert not length_known(object())


def test_a_decompressor_does_not_tell_its_files_length(here):
    """The size of a compressed file is not the length of what comes out."""
    import gzip

    (here / "x.gz").write_bytes(gzip.compress(b"hello"))
    with gzip.open(here / "x.gz") as stream:
        assert stream_length(stream) is None


def test_readers_get_unbuffered_files(here, monkeypatch):
    """The shard reader gets a raw file; ``gopen`` a buffered one, by GOPEN_BUFFER."""
    (here / "x").write_bytes(b"hello")
    with open_stream("x") as stream:
        assert isinstance(stream, io.FileIO)
    with open_url("x") as stream:
        assert isinstance(stream, io.BufferedReader)
    monkeypatch.setenv("GOPEN_BUFFER", "0")
    with open_url("x") as stream:
        assert isinstance(stream, io.FileIO)


def test_verbose(here, monkeypatch, caplog):
    """GOPEN_VERBOSE logs each url, without its secrets."""
    (here / "x").write_bytes(b"hello")
    content("x")
    assert not caplog.records
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    content("x")
    assert "x" in caplog.text


class TestStrict:
    """Strict trust forbids pipes, rewriting, and local files through gopen."""

    @pytest.fixture(autouse=True)
    def _here(self, here):
        (here / "x").write_bytes(b"hello")

    def test_by_the_environment(self, monkeypatch):
        """WDS_SECURE makes the process strict."""
        monkeypatch.setenv("WDS_SECURE", "1")
        with pytest.raises(ValueError, match="unsafe_gopen is False, cannot open local files"):
            open_url("x")
        with pytest.raises(ValueError, match="unsafe_gopen is False, cannot open pipe URLs"):
            open_stream("pipe:cat x")
        assert content("x", raw=True) == b"hello"

    def test_by_the_dataset(self):
        """A dataset's own level counts."""
        with pytest.raises(ValueError, match="pipe URLs"):
            open_stream("pipe:touch owned", level="strict")
        assert not Path("owned").exists()
        with open_stream("x", level="strict") as stream:
            assert stream.read() == b"hello"

    def test_rewriting(self, monkeypatch):
        """The environment may not rewrite urls then."""
        monkeypatch.setenv("GOPEN_REWRITE", "y=x")
        monkeypatch.setenv("WDS_TRUST", "strict")
        with pytest.raises(ValueError, match="cannot rewrite URLs"):
            open_stream("x")
