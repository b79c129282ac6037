"""The routes that ask about many samples, by the real server."""

import json
import os
import textwrap
from pathlib import Path

import pytest

import webdataset as wds
from support.view_server import serve_view
from support.view_sides import make_samples, make_view, write_shard
from webdataset.core.errors import UsageError
from webdataset.viewer.query_routes import make_routes
from webdataset.viewer.session import DatasetArguments, Session
from webdataset.viewer.tags import TagFile


def write_shards(folder, shards=3, count=20, *, name="a", index=False):
    """Write shards; return their urls."""
    return [
        write_shard(folder / f"{name}-{number}.tar", make_samples(count, number * count), index=index)
        for number in range(shards)
    ]


def test_search_and_statistics(tmp_path):
    """What a bar's expression finds is as many samples as the bar has."""
    session = Session({"a": make_view("a", write_shards(tmp_path, index=True))})
    with serve_view(session) as client:
        found = client.get("/api/search", q="KEY001", count=3)
        assert [each["key"] for each in found["samples"]] == ["key0010", "key0011", "key0012"]
        assert not found["done"]
        more = client.get("/api/search", q="KEY001", count=50, cursor=found["cursor"])
        assert [each["key"] for each in more["samples"]][-1] == "key0019"
        assert more["done"]
        assert client.get("/api/search", q="KEY002", shard=1)["samples"][0]["shard"] == 1
        statistics = client.get("/api/statistics")
        assert statistics["exact"] is True
        label = next(each for each in statistics["labels"] if each["field"] == "json.tag")
        for value in label["values"]:
            got = client.get("/api/search", where=value["where"], count=200)
            assert len(got["samples"]) == value["count"]


@pytest.mark.parametrize(
    ("path", "parameters", "status", "message"),
    [
        ("/api/search", {"where": "a b"}, 400, "column 3"),
        ("/api/search", {"cursor": "k-0-0-0000000000000000"}, 400, "cursor"),
        ("/api/search", {"side": "x"}, 404, "side"),
        ("/api/search", {"shard": 99}, 404, "shard"),
        ("/api/statistics", {"where": "open('x')"}, 400, "function"),
        ("/api/findings", {"shard": 99}, 404, "shard"),
        ("/api/pipeline", {"ordinal": 0}, 404, "--pipeline"),
        ("/api/pipeline/preview", {"id": "../x"}, 404, "--pipeline"),
        ("/api/compare", {}, 404, "--compare"),
        ("/api/batch", {}, 400, "--dataset"),
        ("/api/tags", {}, 403, "--tags"),
    ],
)
def test_refusals(tmp_path, path, parameters, status, message):
    """What makes no sense, or was not asked for on the command line, is refused with what to do."""
    session = Session({"a": make_view("a", write_shards(tmp_path, 1, 3))})
    with serve_view(session) as client:
        error = client.get(path, status, **parameters)["error"]
        assert message in error["message"]


def test_tags_by_post(tmp_path):
    """Tags are written by POST, shown with samples, and no shard is touched."""
    urls = write_shards(tmp_path, 1, 5)
    before = [(os.stat(url).st_mtime_ns, Path(url).read_bytes()) for url in urls]
    path = tmp_path / "tags.tsv"
    session = Session({"a": make_view("a", urls)}, tags=TagFile(str(path)))
    with serve_view(session) as client:
        assert client.get("/api/tags")["tags"] == {}
        client.post("/api/tags", {"key": "key0001", "tag": "keep", "on": True})
        found = client.post("/api/tags", {"key": "key0003", "tag": "drop", "on": True})
        assert found["tags"] == {"key0001": ["keep"], "key0003": ["drop"]}
        assert [card["tags"] for card in client.get("/api/samples")["samples"]] == [[], ["keep"], [], ["drop"], []]
        client.post("/api/tags", {"key": "key0001", "tag": "keep", "on": False})
        for bad in ({"key": "x", "tag": "a\tb", "on": True}, {"key": 1}, [], {"key": "\ud800", "tag": "a", "on": True}):
            client.post("/api/tags", bad, 400)
    assert path.read_bytes() == b"key0003\tdrop\n"
    assert [(os.stat(url).st_mtime_ns, Path(url).read_bytes()) for url in urls] == before


def test_post_without_tags(tmp_path):
    """Without --tags nothing can be written."""
    session = Session({"a": make_view("a", write_shards(tmp_path, 1, 2))})
    with serve_view(session) as client:
        client.post("/api/tags", {"key": "key0001", "tag": "keep", "on": True}, 403)
        for path in ("/api/search", "/api/statistics", "/api/findings", "/api/batch", "/api/compare"):
            client.post(path, {}, 405)


def test_tags_never_in_a_shard(tmp_path):
    """An empty shard is a file without lines, and still no file of tags."""
    path = tmp_path / "empty.tar"
    path.write_bytes(b"")
    session = Session({"a": make_view("a", [str(path)])}, tags=TagFile(str(path)))
    with pytest.raises(UsageError, match="never written"):
        make_routes(session)


def test_compare(tmp_path):
    """Rows by key say what is changed, removed and added; by position what stands beside what."""
    samples = make_samples(8)
    write_shard(tmp_path / "a.tar", samples)
    changed = [(key, dict(fields)) for key, fields in samples if key != "key0002"]
    changed[0][1]["png"] = bytes(len(samples[0][1]["png"]))
    changed[3][1]["new"] = b"x"
    del changed[4][1]["cls"]
    changed.insert(0, ("zzz", {"txt": b"only in b"}))
    write_shard(tmp_path / "b.tar", changed)
    sides = {"a": make_view("a", [str(tmp_path / "a.tar")]), "b": make_view("b", [str(tmp_path / "b.tar")])}
    with serve_view(Session(sides)) as client:
        found = client.get("/api/compare", shard=0)
        rows = {row["key"]: row for row in found["rows"]}
        assert list(rows) == [*(key for key, _ in samples), "zzz"]
        assert {key: row["differs"] for key, row in rows.items() if row["differs"]} == {
            "key0000": ["png"], "key0002": ["png", "json", "cls", "txt"], "key0004": ["new"], "key0005": ["cls"],
            "zzz": ["txt"],
        }  # fmt: skip
        assert rows["key0002"]["b"] is None
        assert rows["zzz"]["a"] is None
        assert (found["total"], found["end"], found["complete"]) == (9, True, True)
        paged = [
            row["key"] for start in range(0, 9, 2) for row in client.get("/api/compare", start=start, count=2)["rows"]
        ]
        assert paged == list(rows)
        by_place = client.get("/api/compare", by="position")["rows"]
        assert (by_place[0]["a"]["key"], by_place[0]["b"]["key"]) == ("key0000", "zzz")


def test_batch_needs_and_confirm(tmp_path):
    """Without an index the answer says what has to be read; with confirm it reads it."""
    urls = write_shards(tmp_path)

    def load():
        return wds.WebDataset(urls, shardshuffle=False, seed=3).shuffle(10).batched(4, collation_fn=None)

    session = Session({"a": make_view("a", urls)}, dataset_arguments=DatasetArguments(load))
    with serve_view(session) as client:
        needs = client.get("/api/batch", 409, step=2)["needs"]
        assert needs["shards"] == 3
        assert needs["bytes"] == sum(os.path.getsize(url) for url in urls)
        found = client.get("/api/batch", step=2, confirm=1)
        want = [sample["__key__"] for sample in list(load())[2]]
        assert [card["key"] for card in found["samples"]] == found["batch"]["keys"] == want
        assert client.get("/api/batch", 404, step=99, confirm=1)
        client.get("/api/batch", 400, step=0, rank=5, confirm=1)
    wds.write_indexes(urls, "dali")
    session = Session({"a": make_view("a", urls)}, dataset_arguments=DatasetArguments(load))
    with serve_view(session) as client:
        assert client.get("/api/batch", step=2)["batch"]["keys"] == want


def test_secrets_stay(tmp_path):
    """A signed url that fails shows no signature in any of the answers."""
    url = "http://127.0.0.1:9/x.tar?X-Amz-Signature=s3cr3t"
    session = Session({"a": make_view("a", [url])}, dataset_arguments=DatasetArguments(lambda: wds.WebDataset(url)))
    with serve_view(session) as client:
        for path in ("/api/search", "/api/statistics", "/api/findings", "/api/batch", "/api/batch/options"):
            _, content = client.request("GET", path)
            assert b"s3cr3t" not in content
            assert json.loads(content)


def write_module(folder, monkeypatch, text):
    """Write a module of a user's into the working directory."""
    (folder / "mine.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(folder)


def test_pipeline(tmp_path, monkeypatch):
    """Before and after, twice the same for one seed, with pictures; errors have the user's own frames."""
    write_module(
        tmp_path, monkeypatch,
        """
        import io, json, random
        import numpy as np
        from PIL import Image

        def augment(sample):
            if sample["cls"] == b"3":
                return None
            if sample["cls"] == b"2":
                raise ValueError("a mistake of mine")
            image = Image.open(io.BytesIO(sample["png"])).resize((40, 30))
            return {"__key__": sample["__key__"], "image": image, "x": np.zeros((3, 20, 30), np.float32),
                    "r": [random.random(), float(np.random.rand())], "n": 1.5, "t": "text", "cls": sample["cls"]}
        """,
    )  # fmt: skip
    session = Session({"a": make_view("a", write_shards(tmp_path, 1, 5))}, pipeline="mine:augment")
    with serve_view(session) as client:
        found = client.get("/api/pipeline", ordinal=0, seed=7)
        assert found["error"] is None
        fields = {field["name"]: field for field in found["after"][0]["fields"]}
        kinds = {name: field["kind"] for name, field in fields.items()}
        assert kinds == {
            "__key__": "text",
            "image": "image",
            "x": "array",
            "r": "json",
            "n": "number",
            "t": "text",
            "cls": "text",
        }
        assert fields["x"]["array"]["shape"] == [3, 20, 30]
        assert fields["cls"]["unchanged"]
        for name in ("image", "x"):
            status, content = client.request("GET", "/api/pipeline/preview", id=fields[name]["preview"])
            assert status == 200
            assert content.startswith(b"\x89PNG")
        again = client.get("/api/pipeline", ordinal=0, seed=7)["after"][0]["fields"]
        other = client.get("/api/pipeline", ordinal=0, seed=8)["after"][0]["fields"]
        value = {
            name: next(f["json"] for f in each if f["name"] == "r")
            for name, each in (("again", again), ("other", other))
        }
        assert value["again"] == fields["r"]["json"] != value["other"]
        assert client.get("/api/pipeline", ordinal=3)["dropped"] is True
        error = client.get("/api/pipeline", ordinal=2)["error"]
        assert (error["type"], error["message"]) == ("ValueError", "a mistake of mine")
        assert [frame["function"] for frame in error["frames"]] == ["augment"]
        client.get("/api/pipeline/preview", 404, id="../../etc/passwd")
        assert client.get("/api/pipeline", ordinal=0, seed=7)["before"]["key"] == "key0000"
