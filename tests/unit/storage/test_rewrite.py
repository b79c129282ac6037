"""Urls rewritten by the environment."""

import sys
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.storage import random_access
from webdataset.storage.open_url import local_path, open_stream, open_url, rewrite_url


@pytest.mark.parametrize("name", ["WDS_REWRITE", "GOPEN_REWRITE"])
@pytest.mark.parametrize(
    ("rules", "url", "expected"),
    [
        ("aaa=f;bbb/=pipe:cat ", "aaa.bin", "f.bin"),
        ("aaa=f;bbb/=pipe:cat ", "xaaa.bin", "xaaa.bin"),
        ("aaa=f;bbb/=pipe:cat ", "bbb/f.bin", "pipe:cat f.bin"),
        ("aaa=f;bbb/=pipe:cat ", "aaabbb/", "fbbb/"),
        ("a=;(.)b=\\1c", "aab", "ab"),
        ("a=;(.)b=\\1c", "xb", "xc"),
        ("x=y=z", "xx", "y=zx"),
        ("x=y;", "xa", "ya"),
        ("a=a;a=b", "ax", "bx"),
        ("gs://=pipe:ssh proxyhost gsutil cat ", "gs://b/x", "pipe:ssh proxyhost gsutil cat b/x"),
    ],
)
def test_rules(monkeypatch, name, rules, url, expected):
    """A rule matches at the start; the first that changes the url wins; both variables are read."""
    monkeypatch.setenv(name, rules)
    assert rewrite_url(url) == expected


def test_both_variables(monkeypatch):
    """WDS_REWRITE comes first, GOPEN_REWRITE rewrites its result."""
    monkeypatch.setenv("WDS_REWRITE", "a=b")
    monkeypatch.setenv("GOPEN_REWRITE", "b=c")
    assert rewrite_url("ax") == "cx"


@pytest.mark.parametrize(
    ("rules", "reason"), [("a", "regex=replacement"), ("=b", "regex=replacement"), ("(=b", "regular expression")]
)
def test_rules_that_make_no_sense(monkeypatch, rules, reason):
    """A rule that cannot be read is an error naming the variable."""
    monkeypatch.setenv("WDS_REWRITE", rules)
    with pytest.raises(UsageError, match=reason) as caught:
        rewrite_url("x")
    assert "WDS_REWRITE" in str(caught.value)


def test_local_paths_are_rewritten(monkeypatch, tmp_path):
    """Paths without a scheme are rewritten, for the reader and for gopen; also into commands."""
    (tmp_path / "x").write_bytes(b"hello")
    monkeypatch.setenv("WDS_REWRITE", f"/data/={tmp_path}/;remote/=pipe:cat {tmp_path}/")
    for opened in (open_stream, open_url):
        for url in ("/data/x", "remote/x"):
            with opened(url) as stream:
                assert stream.read() == b"hello"


def test_a_path_object_is_rewritten(monkeypatch, tmp_path):
    """Path objects are rewritten too, and may become urls."""
    (tmp_path / "x").write_bytes(b"hello")
    monkeypatch.setenv("WDS_REWRITE", f"/data/=pipe:cat {tmp_path}/")
    from pathlib import Path

    with open_stream(Path("/data/x")) as stream:
        assert stream.read() == b"hello"


def test_one_rule_says_what_is_local(monkeypatch, tmp_path):
    """Reading, writing and the cache ask one function; a Path is written where it is read, rewritten or not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    monkeypatch.setenv("WDS_REWRITE", "named/=real/;far/=memory://far/")
    path = Path("named/x.tar")
    with wds.TarWriter(path) as sink:
        sink.write({"__key__": "a", "txt": "caption"})
    assert (tmp_path / "real/x.tar").exists()
    assert [sample["txt"] for sample in wds.WebDataset(path, shardshuffle=False)] == [b"caption"]
    with random_access.open_ranges(path) as ranges:
        assert ranges.length == (tmp_path / "real/x.tar").stat().st_size
    for named in (path, str(path)):
        assert local_path(named) == "real/x.tar"
    for named in (Path("far/x.tar"), "far/x.tar", "-", sys.stdin, None):
        assert local_path(named) is None
    assert local_path(Path("pipe:cat")) == "pipe:cat"
    with pytest.raises(UsageError, match="trust is strict"):
        local_path(path, level="strict")
