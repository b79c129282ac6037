"""Schemes that fsspec knows: read, written, listed; the rules of precedence and of safety."""

import gc
import io
import os
import pickle
import sys
import threading
import time

import pytest

import webdataset as wds
from support.after_forks import ended, forked
from webdataset.core.errors import ConfigError, MissingExtra, NotFound, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.storage import retries
from webdataset.storage.backends import fsspec_store
from webdataset.storage.open_url import find_opener, gopen_schemes, resolve_url
from webdataset.storage.random_access import open_ranges

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402  after the check that it is there

BODY = bytes(range(256)) * 4000
CANARY = "CANARY-7f3a"


class Shelf(MemoryFileSystem):
    """fsspec's own file system in memory, under a scheme of ours, which fails as it is told."""

    protocol = "wdsshelf"
    store, pseudo_dirs = {}, [""]
    cachable = True
    faults: list = []  # one for each open file: bytes after which it fails
    asked: list = []
    facts: dict = {}

    def __init__(self, *words, **options):
        super().__init__(*words)
        self.asked.append(options)
        if options.get("password") == f"wrong {CANARY}":
            raise OSError(f"nobody gets in with wrong {CANARY}")

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("wdsshelf://", "memory://"))

    def info(self, path, **options):
        return {**super().info(path, **options), **self.facts}

    def _open(self, path, mode="rb", **options):
        stream = super()._open(path, mode, **options)
        return stream if "w" in mode or not self.faults else Failing(stream, self.faults.pop(0))


class Failing:
    """A file that fails after some bytes."""

    def __init__(self, stream, left):
        self.stream, self.left = stream, left

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def read(self, size=-1):
        """Read, until nothing is left."""
        if self.left is None:
            return self.stream.read(size)
        if self.left <= 0:
            raise RuntimeError("the connection is gone")
        content = self.stream.read(min(size, self.left))
        self.left -= len(content)
        return content


@pytest.fixture(autouse=True)
def shelf(monkeypatch):
    """The file system is registered, and empty; waiting is short."""
    sleep = retries.sleep
    monkeypatch.setattr(retries, "sleep", lambda seconds: sleep(seconds / 100))
    fsspec.register_implementation("wdsshelf", Shelf, clobber=True)
    Shelf.clear_instance_cache()
    Shelf.store, Shelf.pseudo_dirs, Shelf.faults, Shelf.asked, Shelf.facts = {}, [""], [], [], {}
    return Shelf


def put(url, content=BODY):
    """Write an object."""
    with wds.gopen(url, "wb") as stream:
        stream.write(content)


def test_what_was_written_is_read():
    """Whole and anywhere."""
    put("wdsshelf://bucket/a/x.tar")
    with wds.gopen("wdsshelf://bucket/a/x.tar") as stream:
        assert b"".join(iter(lambda: stream.read(99_999), b"")) == BODY
    with open_ranges("wdsshelf://bucket/a/x.tar") as ranges:
        assert ranges.length == len(BODY)
        assert ranges.read_at(500_000, 10) == BODY[500_000:500_010]
        assert ranges.read_at(len(BODY) - 3, 10) == BODY[-3:]
    put("wdsshelf://bucket/empty", b"")
    with wds.gopen("wdsshelf://bucket/empty") as stream, open_ranges("wdsshelf://bucket/empty") as ranges:
        assert stream.read() == ranges.read_at(0, 10) == b""


def test_shards_are_written_listed_and_read():
    """ShardWriter, wildcards, folders and WebDataset."""
    with wds.ShardWriter("wdsshelf://bucket/train/%02d.tar", maxcount=4) as sink:
        for number in range(10):
            sink.write({"__key__": f"{number:03}", "txt": f"caption {number}"})
    put("wdsshelf://bucket/train/deep/99.tar")
    names = [f"wdsshelf://bucket/train/{number:02}.tar" for number in range(3)]
    assert wds.expand_urls("wdsshelf://bucket/train/*.tar") == names
    assert wds.expand_urls("wdsshelf://bucket/train/") == [*names, "wdsshelf://bucket/train/deep/99.tar"]
    assert wds.expand_urls("wdsshelf://bucket/**/9*.tar") == ["wdsshelf://bucket/train/deep/99.tar"]
    dataset = wds.WebDataset("wdsshelf://bucket/train/{00..02}.tar", shardshuffle=False).decode()
    assert [sample["txt"] for sample in dataset] == [f"caption {number}" for number in range(10)]
    assert wds.expand_urls("wdsshelf://bucket/none/*.tar") == ["wdsshelf://bucket/none/*.tar"]


def test_drops_are_taken_up_where_the_object_is_known(shelf):
    """What a file system says of an object (here, its time) is enough; its length alone is not."""
    put("wdsshelf://bucket/x")
    shelf.faults = [300_000, 0, 200_000, 0]
    with wds.gopen("wdsshelf://bucket/x") as stream:
        assert stream.read() == BODY
        assert stream.resumes == 4
    shelf.facts = {"created": None}
    shelf.faults = [300_000]
    with wds.gopen("wdsshelf://bucket/x") as stream, pytest.raises(ShortRead, match="ETag or date"):
        stream.read()


@pytest.mark.parametrize("name", ["etag", "generation", "mtime", "md5"])
def test_a_replaced_object_is_an_error(shelf, name):
    """Told by whatever the file system has: while it is read, without any drop, and between two ranges."""
    put("wdsshelf://bucket/x")
    shelf.facts = {"created": None, name: "one"}
    with wds.gopen("wdsshelf://bucket/x") as stream, open_ranges("wdsshelf://bucket/x") as ranges:
        stream.read(10)
        shelf.facts = {"created": None, name: "two"}
        with pytest.raises(ShardChanged):
            stream.read()
        with pytest.raises(ShardChanged):
            ranges.read_at(500_000, 10)


def test_what_is_not_there():
    """No object: NotFound; a folder: SourceError, at once."""
    with pytest.raises(NotFound):
        wds.gopen("wdsshelf://bucket/absent")
    put("wdsshelf://bucket/folder/x")
    with pytest.raises(SourceError, match="folder"):
        wds.gopen("wdsshelf://bucket/folder")
    for mode in ("rb", "wb"):
        with pytest.raises(UsageError, match="slash"):
            wds.gopen("wdsshelf://bucket/folder/", mode)


def test_publication_is_at_the_end():
    """An exception leaves the old object; a forgotten stream sends nothing."""
    put("wdsshelf://bucket/x", b"old")
    with pytest.raises(ZeroDivisionError), wds.gopen("wdsshelf://bucket/x", "wb") as stream:
        stream.write(bytes([1 // (stream.write(b"half") - 4)]))
    stream = wds.gopen("wdsshelf://bucket/x", "wb")
    stream.write(b"half")
    with pytest.warns(ResourceWarning, match="nothing was published"):
        del stream
    with wds.gopen("wdsshelf://bucket/x") as stream:
        assert stream.read() == b"old"


def test_options_reach_the_file_system(shelf, monkeypatch):
    """References are looked up; secrets are judged by their names, and hidden."""
    monkeypatch.setenv("SHELF_PASSWORD", CANARY)
    put("wdsshelf://bucket/x")
    options = {"fsspec": {"host": "name", "password": "env:SHELF_PASSWORD"}}
    with wds.gopen("wdsshelf://bucket/x", storage_options=options):
        pass
    assert shelf.asked[-1] == {"host": "name", "password": CANARY}
    source = fsspec_store.remote_object("wdsshelf://bucket/x", options)
    assert CANARY not in pickle.dumps(source).decode("latin1")
    told = resolve_url(
        "wdsshelf://bucket/x", storage_options={"fsspec": {"host": "name", "password": CANARY}}
    ).service_id()
    assert "name" in told
    assert CANARY not in told


def test_a_password_is_never_shown(shelf, caplog):
    """A file system that quotes it in its error; pickles refuse a secret that was given as text."""
    caplog.set_level("DEBUG")
    options = {"fsspec": {"password": f"wrong {CANARY}"}}
    with pytest.raises(SourceError, match="nobody gets in") as caught:
        wds.gopen("wdsshelf://bucket/x", storage_options=options)
    link, shown = caught.value, []
    while link is not None:
        shown.append(f"{link}{link!r}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    assert CANARY not in "".join(shown) + caplog.text
    with pytest.raises(ConfigError, match="pickle"):
        pickle.dumps(fsspec_store.remote_object("wdsshelf://bucket/x", options))


def test_options_of_others_do_not_apply():
    """``storage_options`` for fsspec stand under their own name, and are a mapping."""
    for options in ({"token": "x"}, {"fsspec": 3}):
        with pytest.raises(ConfigError):
            wds.gopen("wdsshelf://bucket/x", storage_options=options)


def test_users_own_openers_go_first(monkeypatch):
    """``gopen_schemes``, and a ``__default__`` of the user's own."""
    monkeypatch.setitem(gopen_schemes, "wdsshelf", lambda *_, **__: "mine")
    assert wds.gopen("wdsshelf://bucket/x") == "mine"
    monkeypatch.delitem(gopen_schemes, "wdsshelf")
    monkeypatch.setitem(gopen_schemes, "__default__", lambda *_, **__: "mine")
    assert wds.gopen("wdsshelf://bucket/x") == "mine"


@pytest.mark.parametrize(
    "url",
    [
        "zip://a.txt::file:///etc/hostname", "simplecache::https://h/x", "reference://x", "local:///etc/hostname",
        "dir://x::file:///etc", "wdsshelf://a::file:///etc/hostname", "data://x", "git://x", "cached://x",
    ],
)  # fmt: skip
def test_local_file_systems_and_chains_are_not_served(url, tmp_path, monkeypatch):
    """Nothing on this machine is had by a url of fsspec's, whoever wrote it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, NotFound)):
        wds.gopen(url)


def test_what_a_file_system_lacks_is_named():
    """A scheme is known, but its package is not installed: what fsspec says is quoted."""
    if "dropboxdrivefs" in sys.modules:
        pytest.skip("it is installed")
    with pytest.raises(MissingExtra, match="dropbox"):
        wds.gopen("dropbox://folder/x")


def test_without_fsspec_the_scheme_is_unknown(monkeypatch):
    """No scheme is promised that is not served; what is missing is named."""
    monkeypatch.setattr(fsspec_store, "import_if_available", lambda _name: None)
    with pytest.raises(UsageError, match=r"\[fsspec\]"):
        wds.gopen("wdsshelf://bucket/x")


def test_names_with_colons_stay_files(tmp_path, monkeypatch):
    """A local file is one, whatever fsspec knows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wdsshelf:x").write_bytes(b"mine")
    assert find_opener("wdsshelf:x") is None
    with wds.gopen("wdsshelf:x") as stream:
        assert stream.read() == b"mine"


def test_a_fork_makes_its_own():
    """A child makes a file system of its own."""
    put("wdsshelf://bucket/x")
    with wds.gopen("wdsshelf://bucket/x") as stream:
        stream.read(10)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if stream.read() == BODY[10:] else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


class Spoken(Failing):
    """A file whose end is told over its connection, as SFTP's is, also where nobody closes it."""

    def __del__(self):
        with self.left.open("a") as heard:
            heard.write(f"{os.getpid()} ")

    def read(self, size=-1):
        """Read."""
        return self.stream.read(size)


def test_a_fork_says_nothing_over_its_parents_connection(tmp_path, monkeypatch):
    """A child neither closes nor finalises what its parent has opened, and waits for no thread that stayed behind."""
    put("wdsshelf://bucket/x")
    heard = tmp_path / "heard"
    monkeypatch.setattr(Shelf, "_open", lambda *_words, **_options: Spoken(io.BytesIO(BODY), heard))
    streams = [wds.gopen("wdsshelf://bucket/x") for _ in range(2)]
    assert [stream.read(10) for stream in streams] == [BODY[:10]] * 2

    def reads_on():
        streams.pop()
        Shelf.clear_instance_cache()
        gc.collect()
        return streams[0].read(1000) == BODY[10:1010]

    with fsspec_store.filesystem_lock(fsspec.filesystem("wdsshelf")):  # as a thread that reads ahead may hold it
        child = forked(reads_on)
    assert ended(child) == 0
    assert not heard.exists()
    for stream in streams:
        assert stream.read() == BODY[10:]
        stream.close()
    stream = streams.clear()
    gc.collect()
    assert set(heard.read_text().split()) == {str(os.getpid())}


class Narrow(Shelf):
    """A file system over one connection, whose answers get lost where two ask at once."""

    protocol = "wdsnarrow"
    store, pseudo_dirs = {}, [""]
    asking = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("wdsnarrow://", "memory://"))

    def _alone(self, call, *words, **options):
        if not self.asking.acquire(blocking=False):
            raise PermissionError("two have asked at once")
        try:
            time.sleep(0.005)
            return call(*words, **options)
        finally:
            self.asking.release()

    def info(self, path, **options):
        return self._alone(super().info, path, **options)

    def _open(self, path, mode="rb", **options):
        stream = super()._open(path, mode, **options)
        return stream if "w" in mode else Asking(io.BytesIO(stream.getvalue()), self)


class Asking(Failing):
    """A file whose reads go through its file system's connection."""

    def read(self, size=-1):
        """Read, alone."""
        return self.left._alone(self.stream.read, size)


def test_a_file_system_is_asked_by_one_thread_at_a_time(monkeypatch):
    """Streams of several threads over one client, as SFTP's and FTP's are, take turns: no answer goes astray.

    fsspec keeps its file systems by the numbers of threads, which are given out again: so they come to share one.
    """
    fsspec.register_implementation("wdsnarrow", Narrow, clobber=True)
    Narrow.store.clear()
    Narrow.faults, Narrow.facts = [], {}
    shared = Narrow()
    with shared.open("/a.bin", "wb") as stream:
        stream.write(BODY * 4)
    monkeypatch.setattr(fsspec_store.FsspecLocation, "filesystem", lambda place: (shared, "/a.bin"))
    found = []

    def reads():
        with wds.gopen("wdsnarrow://a.bin") as stream:
            content = b""
            while piece := stream.read(100_000):
                content += piece
            found.append(content)

    threads = [threading.Thread(target=reads) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [BODY * 4] * 5
