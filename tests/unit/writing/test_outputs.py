"""Targets of archives: paths, urls, standard output, devices and file objects."""

import errno
import io
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from webdataset import gopen
from webdataset.core.errors import AlreadyExists, CommandFailed, NotFound, SourceError, UsageError
from webdataset.storage.open_url import local_path
from webdataset.writing.local_file import is_special
from webdataset.writing.outputs import BorrowedOutput, OwnedOutput
from webdataset.writing.tar_writer import TarWriter

SAMPLE = {"__key__": "a", "x": b"1"}


def names(path):
    """Return the names in an archive."""
    with tarfile.open(path) as opened:
        return opened.getnames()


def write_one(target, **options):
    """Write an archive of one sample."""
    with TarWriter(target, encoder=False, **options) as writer:
        writer.write(SAMPLE)


@pytest.mark.parametrize("name", ["a.tar", "with space.tar", "a#b?c;d.tar", "x:y.tar", "ü.tar", "n" * 250 + ".tar"])
@pytest.mark.parametrize("kind", [str, Path])
def test_local_names(tmp_path, name, kind):
    """Any file name works, as text and as Path."""
    path = tmp_path / name
    write_one(kind(path))
    assert names(path) == ["a.x"]
    assert list(tmp_path.iterdir()) == [path]


def test_relative_names(tmp_path, monkeypatch):
    """A relative name is resolved when the writer is made."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    writer = TarWriter("x:y.tar", encoder=False)
    monkeypatch.chdir(tmp_path / "sub")
    writer.write(SAMPLE)
    writer.close()
    assert names(tmp_path / "x:y.tar") == ["a.x"]


def test_file_urls(tmp_path):
    """file: urls are local files, too."""
    write_one(f"file:{tmp_path}/a b.tar")
    write_one(f"file://{tmp_path}/c%20d.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b.tar", "c d.tar"]


def test_permissions_follow_the_umask(tmp_path):
    """The file has the permissions that open() would give it."""
    before = os.umask(0o027)
    try:
        write_one(tmp_path / "a.tar")
    finally:
        os.umask(before)
    assert (tmp_path / "a.tar").stat().st_mode & 0o777 == 0o640


def test_symbolic_links_stay(tmp_path):
    """Writing to a link replaces what it points to, not the link."""
    (tmp_path / "link.tar").symlink_to(tmp_path / "real.tar")
    write_one(tmp_path / "link.tar")
    assert (tmp_path / "link.tar").is_symlink()
    assert names(tmp_path / "real.tar") == ["a.x"]


def test_symbolic_links_without_an_end(tmp_path):
    """They are refused before anything is written, and not when all of it is."""
    (tmp_path / "a.tar").symlink_to(tmp_path / "b.tar")
    (tmp_path / "b.tar").symlink_to(tmp_path / "a.tar")
    with pytest.raises(SourceError, match="symbolic links"):
        TarWriter(str(tmp_path / "a.tar"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]


def test_missing_folder(tmp_path):
    """A folder that does not exist is a FileNotFoundError that names the file."""
    with pytest.raises(NotFound, match=r"no/a\.tar") as caught:
        TarWriter(tmp_path / "no" / "a.tar", encoder=False)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.errno == 2


def test_a_folder_is_no_file(tmp_path):
    """Writing to a folder is an error."""
    with pytest.raises(SourceError, match="cannot open"):
        TarWriter(tmp_path, encoder=False)


def test_devices_are_written_to_not_replaced():
    """/dev/null stays a device; /dev/full reports a full disk."""
    write_one("/dev/null")
    assert not Path("/dev/null").is_file()
    with pytest.raises(OSError, match="No space"):
        write_one("/dev/full")


def test_named_pipes(tmp_path):
    """A named pipe is written to while somebody reads it."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    write_one(path)
    reader.join()
    with tarfile.open(fileobj=io.BytesIO(received[0])) as opened:
        assert opened.getnames() == ["a.x"]


def test_pipe_urls(tmp_path):
    """A pipe: url sends the archive to a command; the command's failure is an error."""
    write_one(f"pipe:cat > '{tmp_path}/a.tar'")
    assert names(tmp_path / "a.tar") == ["a.x"]
    with pytest.raises(CommandFailed, match="exit status 3"):
        write_one("pipe:cat > /dev/null; exit 3")


def test_an_exception_does_not_look_like_success_to_a_command(tmp_path):
    """When `with` is left by an exception the command is ended before it can complete its work."""
    with pytest.raises(ZeroDivisionError), TarWriter(f"pipe:cat > /dev/null && touch '{tmp_path}/done'", encoder=False):
        1 / 0
    assert list(tmp_path.iterdir()) == []


def test_registered_schemes(tmp_path, monkeypatch):
    """A scheme that user code registers is honoured when the writer is made."""
    asked = []

    def opener(url, mode="rb", bufsize=8192, **options):
        asked.append((url, mode))
        return open(tmp_path / "a.tar", mode)

    monkeypatch.setitem(gopen.gopen_schemes, "store", opener)
    write_one("store:bucket/a.tar")
    assert asked == [("store:bucket/a.tar", "wb")]
    assert names(tmp_path / "a.tar") == ["a.x"]


def test_replaced_gopen(tmp_path, monkeypatch):
    """So is a gopen that user code replaces."""
    monkeypatch.setattr(gopen, "gopen", lambda url, mode: open(tmp_path / "a.tar", mode))
    write_one("https://host/a.tar")
    assert names(tmp_path / "a.tar") == ["a.x"]


def test_unknown_schemes():
    """A url that is not served is an error that names the scheme."""
    with pytest.raises(UsageError, match="'nosuch'"):
        write_one("nosuch://bucket/a.tar")


def test_rewriting(tmp_path, monkeypatch):
    """GOPEN_REWRITE applies to what is written."""
    monkeypatch.setenv("GOPEN_REWRITE", f"/there/={tmp_path}/")
    write_one("/there/a.tar")
    assert names(tmp_path / "a.tar") == ["a.x"]


def test_standard_output():
    """- is standard output, which stays open."""
    program = (
        "import sys; from webdataset.writing.tar_writer import TarWriter\n"
        "with TarWriter('-', encoder=False) as w: w.write({'__key__': 'a', 'x': b'1'})\n"
        "sys.stdout.buffer.write(b'more')"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert output.endswith(bytes(1024) + b"more")
    assert len(output) == 2048 + 4


def test_file_objects_stay_open(tmp_path):
    """An open file is written to and left open; each sample arrives with its write()."""
    with open(tmp_path / "a.tar", "wb", buffering=0) as stream:
        writer = TarWriter(stream, encoder=False)
        writer.write(SAMPLE)
        assert stream.tell() == 1024
        writer.close()
        assert not stream.closed
    assert names(tmp_path / "a.tar") == ["a.x"]


def test_short_writes_are_continued():
    """A raw file that takes a few bytes at a time gets them all."""

    class Slow(io.RawIOBase):
        taken = b""

        def writable(self):
            return True

        def write(self, piece):
            self.taken += bytes(piece[:100])
            return min(len(piece), 100)

    stream = Slow()
    write_one(stream)
    with tarfile.open(fileobj=io.BytesIO(stream.taken)) as opened:
        assert opened.getnames() == ["a.x"]


def test_raw_files_that_take_nothing():
    """A raw file that would block is an error, not an endless loop."""

    class Stuck(io.RawIOBase):
        def writable(self):
            return True

        def write(self, piece):
            return None

    with pytest.raises(SourceError, match="takes no more bytes"):
        write_one(Stuck())


def test_write_may_return_anything():
    """Objects that are no raw files, such as those of remote stores, may return what they like."""

    class Store:
        def __init__(self):
            self.taken = []

        def write(self, piece):
            self.taken.append(piece)
            return "ok"

    store = Store()
    write_one(store)
    assert len(b"".join(store.taken)) == 2048


def test_large_payloads_are_not_joined():
    """A large payload reaches the file object as it is; only small pieces are joined."""
    large = bytes(1 << 20)
    given = []

    class Store:
        write = given.append

    with TarWriter(Store(), encoder=False) as writer:
        writer.write({"__key__": "a", "a": b"1", "b": large, "c": b"3"})
    assert any(piece is large for piece in given)
    with tarfile.open(fileobj=io.BytesIO(b"".join(given))) as opened:
        assert opened.getnames() == ["a.a", "a.b", "a.c"]


def test_what_is_no_target():
    """An object without write() is an error that says what to pass."""
    with pytest.raises(UsageError, match="with write"):
        TarWriter(5)


def test_overwrite_false_needs_a_local_file():
    """Where existence cannot be checked, overwrite=False is refused rather than ignored."""
    for target in (io.BytesIO(), "pipe:cat", "-"):
        with pytest.raises(UsageError, match="local files only"):
            TarWriter(target, encoder=False, overwrite=False)


def test_owned_streams_are_closed_or_aborted():
    """A stream that was opened for the archive is closed at the end, and aborted (or else closed) on failure."""

    class Remote(io.BytesIO):
        def abort(self):
            self.aborted = True

    stream = Remote()
    OwnedOutput(stream).abort()
    assert stream.aborted
    assert not stream.closed
    plain = io.BytesIO()
    OwnedOutput(plain).abort()
    assert plain.closed
    OwnedOutput(stream).commit()
    assert stream.closed


def test_forgotten_pipes_are_closed(tmp_path):
    """The command of a writer that was never closed sees the end of its input, as in the published versions."""
    writer = TarWriter(f"pipe:cat > '{tmp_path}/a.tar' && touch '{tmp_path}/done'", encoder=False)
    writer.write(SAMPLE)
    with pytest.warns(ResourceWarning, match="completed with its 1 samples"):
        writer.__del__()
    assert writer.stream.closed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "done"]


def test_forgotten_pipes_of_a_program_that_fails(tmp_path):
    """Where an error ends the program, the command is stopped; it does not complete its work with half an archive."""
    writer = TarWriter(f"pipe:cat > /dev/null && touch '{tmp_path}/done'", encoder=False)
    writer.write(SAMPLE)
    with pytest.warns(ResourceWarning, match="its shard is incomplete"):
        writer.abandon()
    assert writer.stream.closed
    assert list(tmp_path.iterdir()) == []


def test_descriptors_are_written_to(tmp_path):
    """Names of open descriptors are written to in place, whatever they stand for."""
    assert is_special("/dev/stdout")
    descriptor = os.open(tmp_path / "a.tar", os.O_CREAT | os.O_RDWR)
    write_one(f"/dev/fd/{descriptor}")
    assert os.lseek(descriptor, 0, os.SEEK_END) == 2048
    os.close(descriptor)


@pytest.mark.parametrize("appears", [False, True])
def test_file_systems_without_hard_links(tmp_path, monkeypatch, appears):
    """With overwrite=False a file system without hard links is served by a check and a rename."""

    def link(_source, _target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "a.tar"
    writer = TarWriter(path, encoder=False, overwrite=False)
    writer.write(SAMPLE)
    if appears:
        path.write_bytes(b"theirs")
        with pytest.raises(AlreadyExists):
            writer.close()
        assert path.read_bytes() == b"theirs"
    else:
        writer.close()
        assert names(path) == ["a.x"]
        assert list(tmp_path.iterdir()) == [path]


def test_outputs_are_targets():
    """An output may be given in place of a file object."""
    stream = io.BytesIO()
    write_one(BorrowedOutput(stream))
    assert len(stream.getvalue()) == 2048


def test_local_paths():
    """Only what somebody serves is a url."""
    assert local_path("a:b.tar") == "a:b.tar"
    assert local_path(Path("pipe:cat")) == "pipe:cat"
    assert local_path("-") is None
    assert local_path("pipe:cat") is None
    assert local_path("file:/a") == "/a"


def test_failed_local_writes_name_the_file(tmp_path):
    """When the system refuses to write, the error says which file and nothing stays behind."""
    writer = TarWriter(tmp_path / "a.tar", encoder=False)
    os.close(writer.stream.fileno())
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        if descriptor != writer.stream.fileno():
            os.dup2(descriptor, writer.stream.fileno())
            os.close(descriptor)
        with pytest.raises(SourceError, match=r"cannot write: No space left.*a\.tar") as caught:
            writer.write({"__key__": "a", "x": bytes(1 << 20)})
        assert caught.value.errno == 28
    finally:
        writer.abort()
    assert list(tmp_path.iterdir()) == []
