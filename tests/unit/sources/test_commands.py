"""Schemes served by programs: what is started, without a shell and without secrets in the process list."""

import stat

import pytest

from webdataset.ground.errors import CommandFailed, NotFound, UsageError
from webdataset.sources.open import open_url


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program before all others on the path; it shows its arguments, or keeps its input."""

    def make(name, script):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

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
    with pytest.raises(NotFound, match="'ais'"):
        open_url("ais://b/k")


def test_credentials_stay_out_of_the_process_list(program):
    """Curl gets the url over a descriptor: its words do not show it."""
    program("curl", 'echo "words: $*"; for word in "$@"; do last=$word; done; cat "$last"')
    with open_url('sftp://me:secret@host/a"b{1}') as stream:
        words, configuration = stream.read().decode().splitlines()
    assert "secret" not in words
    assert configuration == 'url = "sftp://me:secret@host/a\\"b{1}"'


def test_line_breaks_are_refused():
    """A url cannot smuggle options into curl's configuration."""
    with pytest.raises(UsageError, match="line breaks"):
        open_url("sftp://host/x\noutput = /tmp/x")


def test_curl_reads_what_is_there(tmp_path, web):
    """The real curl is started with options that it knows."""
    from webdataset.sources.commands import gopen_curl

    with gopen_curl(web.url("whole/x")) as stream:
        assert stream.read() == web.body
    with gopen_curl(web.url("absent/x")) as stream, pytest.raises(CommandFailed):
        stream.read()
