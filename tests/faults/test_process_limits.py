"""Processes that may have no more files open: the limit is raised where that can be, else no shard is left out."""

import errno
import json
import os
import pickle
import subprocess
import sys
import threading

import pytest

import webdataset as wds
from webdataset.core import process_limits
from webdataset.core.errors import NotFound, SourceError

resource = pytest.importorskip("resource")

SHARDS, SAMPLES = 60, 5

# run with the folder and what to read; prints what came, and the limit afterwards. It imports nothing that the library
# needs when no file can be opened
PROGRAM = """
import json, os, sys, warnings
import webdataset as wds
from webdataset import handlers

warnings.simplefilter("ignore")
folder, kind, handler, free = *sys.argv[1:4], int(sys.argv[4])
url = {"pipe": "pipe:cat ", "file": "", "http": ""}[kind] + folder + "/{00..59}.tar"
# what is imported late is imported now
assert len(list(wds.WebDataset(url, shardshuffle=False).elastic(streams=2))) == 300
held = []
while free >= 0:
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        # of all that it may have, so many are left
        for _ in range(free):
            os.close(held.pop())
        break
dataset = wds.WebDataset(url, shardshuffle=False, handler=getattr(handlers, handler)).elastic(streams=60)
found = {"keys": [], "error": None}
try:
    for sample in dataset:
        found["keys"].append(sample["__key__"])
except wds.WebDatasetError as error:
    found["error"] = [type(error).__name__, error.errno, str(error)]
for descriptor in held:
    os.close(descriptor)
import resource
found["limit"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder of small shards."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"{shard:02d}.tar")) as sink:
            for number in range(SAMPLES):
                sink.write({"__key__": f"{shard:02d}-{number}", "txt": "a"})
    return folder


def read(where, kind, handler, soft, hard, free=-1):
    """Return what a program gets that may have so many files open; ``free`` of them are left."""
    limited = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"'
    command = ["bash", "-c", limited, "bash", sys.executable, "-c", PROGRAM, str(where), kind, handler, str(free)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


KEYS = [f"{shard:02d}-{number}" for shard in range(SHARDS) for number in range(SAMPLES)]


@pytest.mark.parametrize("kind", ["file", "pipe"])
@pytest.mark.parametrize("handler", ["reraise_exception", "ignore_and_continue"])
def test_the_limit_is_raised(shards, kind, handler):
    """Up to the hard limit, when shards cannot be opened without: all samples come."""
    found = read(shards, kind, handler, 40, 4000)
    assert (sorted(found["keys"]), found["error"], found["limit"]) == (KEYS, None, 4000)


def test_a_program_keeps_the_limit_that_it_never_reaches(shards):
    """It is the user's, and other programs start with it."""
    found = read(shards, "file", "reraise_exception", 200, 4000)
    assert (len(found["keys"]), found["limit"]) == (300, 200)


@pytest.mark.parametrize("kind", ["file", "pipe"])
@pytest.mark.parametrize("handler", ["reraise_exception", "ignore_and_continue", "warn_and_stop"])
def test_no_handler_leaves_out_shards(shards, kind, handler):
    """Where the hard limit is too low: the error says so, whatever the handler lets pass."""
    found = read(shards, kind, handler, 40, 40)
    assert found["error"][:2] == ["SourceError", errno.EMFILE]
    assert "ulimit -n" in found["error"][2]
    assert found["limit"] == 40


@pytest.fixture
def address(shards):
    """The same shards on a web server."""
    program = "import http.server as s; h = s.SimpleHTTPRequestHandler; s.test(h, s.ThreadingHTTPServer, port=0)"
    command = [sys.executable, "-u", "-c", program]
    with subprocess.Popen(command, cwd=shards, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        port = server.stdout.readline().partition(" port ")[2].split()[0]
        yield f"http://localhost:{port}"
        server.terminate()


@pytest.mark.parametrize(("hard", "came"), [(4000, True), (64, False)])
def test_sockets(address, hard, came):
    """A connection needs a file, and so does looking up the name of a host, which then says that there is none."""
    found = read(address, "http", "ignore_and_continue", 64, hard, free=0)
    if came:
        assert (sorted(found["keys"]), found["error"], found["limit"]) == (KEYS, None, 4000)
    else:
        assert not found["keys"]
        assert "ulimit -n" in found["error"][2]


def test_what_users_functions_raise_is_for_their_handler(shards):
    """Theirs may open files of which some samples can do without."""

    def fail(sample):
        if sample["__key__"].endswith("1"):
            raise OSError(errno.EMFILE, "Too many open files")
        return sample

    dataset = wds.WebDataset(str(shards / "{00..09}.tar"), shardshuffle=False).map(
        fail, handler=wds.ignore_and_continue
    )
    assert len(list(dataset)) == 40


def test_errors_of_the_system_travel(tmp_path):
    """A worker's error has the number and the file name that the system's has."""
    with pytest.raises(NotFound) as caught:
        list(wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False))
    copied = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, copied):
        assert (error.errno, error.strerror, error.filename) == (
            errno.ENOENT,
            os.strerror(errno.ENOENT),
            str(tmp_path / "x.tar"),
        )
    assert str(copied) == str(caught.value)


def test_no_limit(monkeypatch):
    """Where the system has none, or there is no way to ask for it, nothing is raised."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert process_limits.find_file_limits() == (None, None)
    assert not process_limits.raise_file_limit()
    monkeypatch.setattr(process_limits, "_limits", None)
    assert process_limits.find_file_limits() == (None, None)
    assert not process_limits.raise_file_limit()


@pytest.mark.parametrize(("limits", "wanted"), [((40, 50), (50, 50)), ((40, -1), (65_536, -1)), ((70_000, -1), None)])
def test_how_far_it_is_raised(monkeypatch, limits, wanted):
    """To the hard limit, and to 65 536 at most; a higher one stays."""
    asked = []
    endless = resource.RLIM_INFINITY
    limits = tuple(endless if limit == -1 else limit for limit in limits)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    assert process_limits.raise_file_limit() is (wanted is not None)
    assert asked == ([] if wanted is None else [tuple(endless if limit == -1 else limit for limit in wanted)])


def test_a_system_that_refuses(monkeypatch):
    """Some have a third limit."""

    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 50))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(process_limits, "can_open_files", lambda: False)
    assert not process_limits.raise_file_limit()
    error = OSError(errno.EMFILE, "Too many open files")

    def opener():
        raise error

    with pytest.raises(OSError, match="Too many") as caught:
        process_limits.open_with_raised_limit(opener)
    assert caught.value is error


def test_another_thread_has_raised_it():
    """Or a file was closed in the meantime: there is room now, whatever the limit is."""
    answers = iter([OSError(errno.EMFILE, "Too many open files"), None])

    def opener():
        failed = next(answers)
        if failed is not None:
            raise failed
        return "opened"

    assert process_limits.open_with_raised_limit(opener) == "opened"


NO_THREAD = "can't start new thread"


@pytest.mark.parametrize(
    ("error", "shortage"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        # a file system under load
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), False),
        (RuntimeError(NO_THREAD), True),
        (SourceError(f"no answer after 8 attempts: {NO_THREAD}"), True),
        (ValueError(NO_THREAD), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (SourceError("no such bucket"), False),
        (RuntimeError("of a user's opener"), False),
    ],
)
@pytest.mark.parametrize("streams", [None, 2])
def test_an_opener_of_the_user(shards, monkeypatch, error, shortage, streams):
    """A shortage ends the run, of whatever opener, and what is wrong with one shard is for the handler."""

    def opener(url, *_, **__):
        path = url.removeprefix("mine:")
        if path.endswith("03.tar"):
            raise error
        return open(path, "rb")  # noqa: SIM115, PTH123  the reader closes

    monkeypatch.setitem(wds.gopen_schemes, "mine", opener)
    urls = [f"mine:{shards}/{number:02d}.tar" for number in range(6)]
    dataset = wds.WebDataset(urls, shardshuffle=False, handler=wds.ignore_and_continue)
    dataset = dataset if streams is None else dataset.elastic(streams=streams)
    if shortage:
        with pytest.raises(type(error)) as caught:
            list(dataset)
        assert caught.value is error
    else:
        assert len(list(dataset)) == 5 * SAMPLES


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.EACCES])
def test_commands(shards, monkeypatch, number):
    """A command that there is no process for says nothing about its shard; one that is forbidden does."""
    pytest.importorskip("webdataset.storage.backends.pipe")

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    url = f"pipe:cat {shards}/00.tar"
    dataset = wds.WebDataset([url], shardshuffle=False, handler=wds.ignore_and_continue, empty_check=False)
    if number == errno.EACCES:
        assert not list(dataset)
    else:
        with pytest.raises(SourceError, match="ulimit -") as caught:
            list(dataset)
        assert (caught.value.errno, caught.value.url) == (number, url)


def test_no_thread_for_ssh(monkeypatch):
    """A loop that could not be started is not waited for, and the next one may start."""
    sftp_client = pytest.importorskip("webdataset.storage.backends.sftp_client")
    sftp_client._forget_loop()

    async def answer():
        return 7

    def refuse(_):
        raise RuntimeError(NO_THREAD)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=NO_THREAD):
                sftp_client.run_coroutine(answer(), 1)
    assert sftp_client.run_coroutine(answer(), 20) == 7
