"""Schemes served by programs: what is started, without a shell and without secrets in the process list."""

import contextlib
import os
import stat

import pytest

from webdataset.core.errors import CommandFailed, NotFound, SourceError, UsageError
from webdataset.storage.open_url import find_opener, open_url


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program before all others on the path; it shows its arguments, or keeps its input."""

    def make(name, script):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        monkeypatch.setenv("WDS_GOPEN_BACKEND", "cli")

    return make


@pytest.mark.parametrize(
    ("url", "name", "words"),
    [("gs://b/a $(touch x).tar", "gsutil", "cat|gs://b/a $(touch x).tar|"), ("ais://b/k", "ais", "get|ais://b/k|-|")],
)
def test_reading(program, url, name, words):
    """Each word is one argument; nothing is expanded by a shell."""
    program(name, 'for word in "$@"; do printf "%s|" "$word"; done')
    with open_url(url) as stream:
        assert stream.read().decode() == words


def test_writing(program, tmp_path):
    """Written bytes reach the program."""
    program("gsutil", f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/stored')
    with open_url("gs://b/k", "wb") as stream:
        stream.write(b"hello")
    assert (tmp_path / "stored").read_bytes() == b"hello"
    assert (tmp_path / "words").read_text() == "cp - gs://b/k\n"


def test_a_failing_program(program):
    """An exit status is an error that names the url."""
    program("gsutil", "echo something; exit 4")
    with open_url("gs://b/k") as stream, pytest.raises(CommandFailed, match="status 4"):
        stream.read()


def test_a_missing_program(monkeypatch, tmp_path):
    """A program that is not installed is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("WDS_GOPEN_BACKEND", "cli")
    with pytest.raises(NotFound, match="'ais'"):
        open_url("ais://b/k")
    with pytest.raises(NotFound, match="'gsutil'"):
        open_url("gs://b/k")


def test_ais_without_a_gateway_is_its_program(program, monkeypatch):
    """Whoever has set up the program ais, and no AIS_ENDPOINT, goes on using it; with one, the cluster is asked."""
    program("ais", 'echo "$@"')
    monkeypatch.delenv("WDS_GOPEN_BACKEND")
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with open_url("ais://b/k") as stream:
        assert stream.read() == b"get ais://b/k -\n"
    monkeypatch.setenv("AIS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match="no answer"):
        open_url("ais://b/k", attempts=1)


def test_use_ais_for_by_its_program(program, monkeypatch):
    """Other schemes go by the program, too, at once."""
    program("ais", 'echo "$@"')
    monkeypatch.setenv("USE_AIS_FOR", "s3:https")
    for url in ("s3://b/k", "https://host/k"):
        with open_url(url) as stream:
            assert stream.read().decode() == f"get {url} -\n"
    assert find_opener("gs://b/k").__name__ == "gopen_command"


@pytest.mark.parametrize("backend", ["curl", "CLI"])
def test_backends_that_do_not_exist(monkeypatch, backend):
    """They are told, rather than taken for the usual one."""
    monkeypatch.setenv("WDS_GOPEN_BACKEND", backend)
    with pytest.raises(UsageError, match="not native or cli"):
        open_url("gs://b/k")


def test_credentials_stay_out_of_the_process_list(program):
    """Curl gets the url over a descriptor: its words do not show it."""
    program("curl", 'echo "words: $*"; for word in "$@"; do last=$word; done; cat "$last"')
    with open_url('ftps://me:secret@host/a"b{1}') as stream:
        words, configuration = stream.read().decode().splitlines()
    assert "secret" not in words
    assert configuration == 'url = "ftps://me:secret@host/a\\"b{1}"'


def test_line_breaks_are_refused():
    """A url cannot smuggle options into curl's configuration."""
    with pytest.raises(UsageError, match="line breaks"):
        open_url("ftps://host/x\noutput = /tmp/x")


def pipes():
    """Return the pipes that this process has open; the server's sockets come and go."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {name for name in found if name.startswith("pipe:")}


def test_curl_reads_what_is_there(tmp_path, web):
    """The real curl is started with options that it knows."""
    from webdataset.storage.backends.pipe import gopen_curl

    with gopen_curl(web.url("whole/x")) as stream:
        assert stream.read() == web.body
    with gopen_curl(web.url("absent/x")) as stream, pytest.raises(CommandFailed):
        stream.read()
    if os.path.isdir("/proc/self/fd"):
        before = pipes()
        with gopen_curl(web.url("whole/x")) as stream:
            stream.read()
        assert pipes() == before


def test_writing_by_the_program_ais(program, tmp_path, monkeypatch):
    """Its own words for writing, and the bytes on its standard input."""
    program("ais", f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/stored')
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with open_url("ais://b/k", "wb") as stream:
        stream.write(b"body" * 100)
    assert (tmp_path / "words").read_text() == "put - ais://b/k\n"
    assert (tmp_path / "stored").read_bytes() == b"body" * 100
