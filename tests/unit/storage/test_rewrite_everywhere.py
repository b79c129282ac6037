"""Rewriting on every scheme: streams, positioned reads, lists, caches and uploads lead to the same place."""

import io
import re
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.storage.backends import memory
from webdataset.storage.random_access import open_ranges
from webdataset.testing.sources import RangeServer

SCHEMES = [
    "s3://bucket/", "s3+ceph://bucket/", "gs://bucket/", "az://account/box/", "abfs://box@account/", "hf://datasets/a/b/",
    "ais://bucket/", "http://nowhere.invalid/", "https://nowhere.invalid/", "ssh://host/", "sftp://me@host/", "scp://host/",
    "ftp://host/", "memory://far/", "oci://bucket@ns/", "hdfs://host/", "unknown://host/", "pipe:cat /nowhere/",
    "file:/nowhere/", "/nowhere/", "nowhere/",
]  # fmt: skip
PLACES = ["memory", "http", "file", "path"]


def shard(first):
    """Return a shard of three samples."""
    buffer = io.BytesIO()
    with wds.TarWriter(buffer) as sink:
        for number in range(first, first + 3):
            sink.write({"__key__": f"{number:03}", "txt": f"caption {number}"})
    return buffer.getvalue()


@pytest.fixture(params=PLACES)
def place(request, tmp_path, monkeypatch):
    """Somewhere that holds two shards in ``train``; gives its root, and what reads a file there."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    shards = {f"train/{number}.tar": shard(3 * number) for number in range(2)}
    if request.param == "memory":
        memory.clear()
        for name, content in shards.items():
            with wds.gopen(f"memory://near/{name}", "wb") as stream:
                stream.write(content)
        yield "memory://near/"
        memory.clear()
    elif request.param == "http":
        with RangeServer({f"/{name}": content for name, content in shards.items()}) as server:
            yield f"{server.root}/"
    else:
        (tmp_path / "train").mkdir()
        for name, content in shards.items():
            (tmp_path / name).write_bytes(content)
        yield f"file:{tmp_path}/" if request.param == "file" else f"{tmp_path}/"


@pytest.mark.parametrize("stem", SCHEMES)
def test_every_scheme_is_rewritten(place, stem, monkeypatch, tmp_path):
    """Read whole, anywhere, as a data set, through a cache; written and listed, where that is possible there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    variable = "WDS_REWRITE" if SCHEMES.index(stem) % 2 else "GOPEN_REWRITE"
    monkeypatch.setenv(variable, f"{re.escape(stem)}={place}")
    url = f"{stem}train/0.tar"
    with wds.gopen(url) as stream:
        assert stream.read() == shard(0)
    with open_ranges(url) as ranges:
        assert ranges.read_at(512, 100) == shard(0)[512:612]
    captions = [f"caption {number}" for number in range(6)]
    both = [url, f"{stem}train/1.tar"]
    cached: dict[str, Any] = {"cache_dir": str(tmp_path / "cache")}
    for options in ({}, cached, cached):
        samples = list(wds.WebDataset(both, shardshuffle=False, **options).decode())
        assert [sample["txt"] for sample in samples] == captions
        assert {sample["__url__"] for sample in samples} == set(both)
    if place.startswith("http"):
        return
    assert wds.expand_urls(f"{stem}train/*.tar") == both
    assert wds.expand_urls(f"{stem}train/{{0..1}}.tar") == both
    assert wds.expand_urls(f"{stem}train/none-*.tar") == [f"{stem}train/none-*.tar"]
    with wds.ShardWriter(f"{stem}train/new-%d.tar", maxcount=3) as sink:
        for number in range(6):
            sink.write({"__key__": f"{number:03}", "txt": f"caption {number}"})
    assert wds.expand_urls(f"{stem}train/new-*.tar") == [f"{stem}train/new-{number}.tar" for number in range(2)]
    with wds.gopen(f"{place}train/new-0.tar") as stream:
        assert b"caption 2" in stream.read()


def test_folders_of_stores(monkeypatch):
    """A slash at the end lists what is there in place of the folder, by the names that lead to it."""
    memory.clear()
    with wds.gopen("memory://near/a/b.tar", "wb") as stream:
        stream.write(b"x")
    monkeypatch.setenv("WDS_REWRITE", "gs://bucket/=memory://near/")
    assert wds.expand_urls("gs://bucket/a/") == ["gs://bucket/a/b.tar"]
    memory.clear()


def test_lists_whose_names_are_rewritten_differently(monkeypatch, tmp_path):
    """Rules that make something else of each name: what was found is named where that leads to itself; else refused."""
    for name in ("one.tar", "two.tar"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.setenv("WDS_REWRITE", rf"all/\*={tmp_path}/*.tar")
    assert wds.expand_urls("all/*") == [f"{tmp_path}/one.tar", f"{tmp_path}/two.tar"]
    monkeypatch.setenv("WDS_REWRITE", rf"all/\*={tmp_path}/*.tar;{tmp_path}/o=/elsewhere/")
    with pytest.raises(UsageError, match="WDS_REWRITE"):
        wds.expand_urls("all/*")


def test_rules_that_match_their_own_results(monkeypatch, tmp_path):
    """A list is rewritten once, as a single url is."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.tar").write_bytes(b"x")
    monkeypatch.setenv("WDS_REWRITE", f"{tmp_path}/={tmp_path}/deep/")
    assert wds.expand_urls(f"{tmp_path}/*.tar") == [f"{tmp_path}/one.tar"]
    with wds.gopen(f"{tmp_path}/one.tar") as stream:
        assert stream.read() == b"x"


def test_commands_stand_for_themselves(monkeypatch):
    """A pattern that becomes a command is no list."""
    monkeypatch.setenv("WDS_REWRITE", "gs://=pipe:cat /nowhere/")
    assert wds.expand_urls("gs://bucket/*.tar") == ["gs://bucket/*.tar"]
