"""What a specification from the network may never name: commands, local paths, functions, the environment."""

import http.server
import itertools
import json
import threading

import pytest

import webdataset as wds
from webdataset.core.errors import SourceError, SpecError, UnsafeSpec, UsageError
from webdataset.shards.specs import load_spec
from webdataset.shards.specs.mix import SourceShards
from webdataset.testing.sources import served

URL = "https://example.com/sets/spec.yaml?sig=1"
ANYWHERE = [
    "pipe:cat /etc/passwd",
    "PIPE:cat /etc/passwd",
    "/etc/passwd",
    "~/x.tar",
    "~root/x.tar",
    "file:/etc/passwd",
    "FILE:///etc/passwd",
    "file:x.tar",
    "-",
    "\\\\host\\x.tar",
    "https:/etc/passwd",
    "http:x.tar",
    "https://",
    "scp://h/x.tar",
    "ftp://h/x.tar",
    "unknown://h/x.tar",
    "https://h/x\n.tar",
    "${HOME}/x.tar",
    "${HOME:-pipe:x}",
    "x${NOT_SET:-}.tar",
]
SHARDS = [
    *ANYWHERE,
    "a.tar::pipe:cat x",
    "https://h/a.tar::/etc/passwd",
    "a.tar::-",
    "{a.tar,pipe:cat x}",
    "{a.tar,/etc/passwd}",
    "{,/etc/}passwd",
    "{pipe,https}:cat x",
    "p{ipe:cat x,a}",
    "{a,{b,pipe:c}}",
    "{a,~/x}",
    "fi{le:/etc/passwd,x}",
]


def refused(spec, *, trust=None):
    """Assert that a specification from the network is refused, whatever it is trusted with."""
    for level in (trust, "full"):
        with pytest.raises(UnsafeSpec):
            load_spec(spec, url=URL, trust=level)


@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.parametrize("listed", [False, True])
def test_shards(name, listed):
    """No way of writing shards leads out of the network."""
    shards = ["fine.tar", name] if listed else name
    refused({"version": 1, "sources": [{"shards": shards}]})
    refused({"version": 1, "sources": [shards] if not listed else shards})
    refused({"version": 1, "sources": [{"spec": {"sources": [{"shards": shards}]}}]})
    refused({"dataset": [{"shards": shards}]})
    refused({"sources": [{"shards": shards}]})


@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("key", ["wids", "index", "spec", "energon"])
def test_other_files(key, name):
    """Nor does the name of an index, of another specification, or of a directory."""
    refused({"version": 1, "sources": [{key: name}]})


@pytest.mark.parametrize("name", ANYWHERE)
def test_other_places(name):
    """Nor do included files, Energon's paths, or MultiShardSample's prefixes and buckets."""
    refused({"version": 1, "include": name, "sources": ["a"]})
    refused({"__class__": "MetadatasetV2", "splits": {"train": {"path": name}}})
    refused({"datasets": [{"shards": name}]})
    if name not in ("-", "https://"):  # which stand for something else with more behind them
        refused({"__class__": "MetadatasetV2", "splits": {"train": {"blend": [{"path": name + "/x.yaml"}]}}})
        refused({"datasets": [{"shards": "https://h/a.tar"}, {"shards": "x", "buckets": [name]}]})


@pytest.mark.parametrize(
    "spec",
    [
        {"prefix": "pipe:cat ", "datasets": [{"shards": "https://h/x.tar"}]},
        {"prefix": "pi", "buckets": ["pe:cat "], "datasets": [{"shards": "x"}]},
        {"datasets": [{"shards": "a{b,$HOME}"}]},
        {"datasets": [{"shards": "relative.tar"}]},
        {"wids_version": 1, "shardlist": [{"url": "pipe:cat x", "nsamples": 1}]},
        {"wids_version": 1, "base": "file:/etc", "shardlist": [{"url": "passwd", "nsamples": 1}]},
        {"wids_version": 1, "shardlist": [{"url": "file:/etc/passwd", "nsamples": 1}]},
        {"version": 1, "sources": [{"spec": {"wids_version": 1, "shardlist": [{"url": "pipe:x", "nsamples": 1}]}}]},
        {"version": 1, "sources": [{"shards": "a", "cache": "/home"}]},
        {"version": 1, "sources": [{"shards": "a", "transforms": ["os:system"]}]},
        {"version": 1, "sources": [{"shards": "a", "transforms": [{"builtins:exec": {"x": 1}}]}]},
        {"version": 1, "sources": [{"shards": "a", "transforms": "os:system"}]},
        {"version": 1, "defaults": {"transforms": ["os:system"]}, "sources": ["a"]},
        {"version": 1, "defaults": {"cache": "/home"}, "sources": ["a"]},
        {"version": 1, "sources": [{"shards": "a", "tags": {"x": "${HOME}"}}]},
        {"version": 1, "sources": [{"shards": "a", "name": "${HOME}"}]},
    ],
)
def test_what_else_they_may_not_name(spec):
    """Prefixes, bases, caches, functions and the environment are refused."""
    refused(spec)


def test_what_they_may_name():
    """Network urls, and names relative to where the specification came from."""
    spec = load_spec({"version": 1, "sources": ["a-{0..1}.tar", "gs://b/../c.tar", "s3://b/x{1,2}::../d.tar"]}, url=URL)
    urls = [url for source in spec.split().sources for url in source.urls()]
    base = "https://example.com/sets/"
    assert urls == [f"{base}a-0.tar", f"{base}a-1.tar", "gs://b/../c.tar", "s3://b/x1", "s3://b/x2", f"{base}../d.tar"]
    index = {"wids_version": 1, "base": "/d", "shardlist": [{"url": "a.tar", "nsamples": 1}]}
    assert load_spec(index, url=URL).split().sources[0].urls() == ["https://example.com/d/a.tar"]
    assert load_spec({"version": 1, "sources": ["a$$b"]}, url=URL).split().sources[0].shards == (f"{base}a$b",)


@pytest.mark.parametrize("variable", ["WDS_REWRITE", "GOPEN_REWRITE"])
@pytest.mark.parametrize("target", ["/etc/", "pipe:cat ", "file:", "scp://h/"])
def test_rewriting(variable, target, monkeypatch):
    """A url that the environment rewrites to a command or path is refused, on loading and on each pass."""
    document = {"version": 1, "sources": ["passwd"]}
    dataset = wds.WebDataset(load_spec(document, url=URL))
    monkeypatch.setenv(variable, f"https://example.com/sets/={target}")
    refused(document)
    with pytest.raises(UnsafeSpec, match="rewritten by the environment"):
        next(iter(dataset))
    refused({"version": 1, "sources": [{"wids": "index.json"}]})
    refused({"version": 1, "sources": [{"spec": "other.yaml"}]})


def test_rewriting_of_what_stands_within_a_directory(monkeypatch):
    """Nor may the files within an Energon directory be rewritten to local ones."""
    monkeypatch.setenv("WDS_REWRITE", r"https://example.com/sets/d/\.nv-meta=/tmp")
    refused({"version": 1, "sources": [{"energon": "d"}]})


def test_a_rewritten_name_counts_as_the_network(monkeypatch, tmp_path):
    """A specification is the network's if its url is, though the environment keeps a copy of it here."""
    (tmp_path / "spec.yaml").write_text("version: 1\nsources: ['/etc/passwd']\n")
    monkeypatch.setenv("WDS_REWRITE", f"https://h/={tmp_path}/")
    with pytest.raises(UnsafeSpec):
        load_spec("https://h/spec.yaml")


def test_a_command_counts_as_the_network(tmp_path):
    """What a command printed may name network urls only, and whole ones."""
    (tmp_path / "spec.yaml").write_text("version: 1\nsources: ['/etc/passwd']\n")
    with pytest.raises(UnsafeSpec):
        load_spec(f"pipe:cat {tmp_path}/spec.yaml")
    (tmp_path / "spec.yaml").write_text("version: 1\nsources: [a.tar]\n")
    with pytest.raises(SpecError, match="write a whole url"):
        load_spec(f"pipe:cat {tmp_path}/spec.yaml")
    (tmp_path / "spec.yaml").write_text("version: 1\nsources: ['https://h/a.tar']\n")
    assert load_spec(f"pipe:cat {tmp_path}/spec.yaml").split().sources[0].urls() == ["https://h/a.tar"]


LOCAL = b"version: 1\nsources: ['/etc/passwd']\n"
COMMAND = b"version: 1\nsources: ['pipe:touch owned']\n"
INDEX = json.dumps({"wids_version": 1, "shardlist": [{"url": "pipe:touch owned", "nsamples": 1}]}).encode()


@pytest.mark.parametrize(
    "first",
    [
        LOCAL,
        COMMAND,
        b"version: 1\ninclude: local.yaml\n",
        b"version: 1\nsources: [{spec: command.yaml}]\n",
        b"version: 1\nsources: [{spec: deep/nested.yaml}]\n",
        b"version: 1\nsources: [{wids: index.json}]\n",
        b"__class__: MetadatasetV2\nsplits: {train: {path: command.yaml, split_part: train}}\n",
        b"__class__: MetadatasetV2\nsplits: {train: {path: prepared}}\n",
    ],
)
def test_over_http(first, tmp_path, monkeypatch):
    """The same over a real server, and through what it includes and nests; also when a local file names it."""
    monkeypatch.chdir(tmp_path)
    pages = {
        "/s/first.yaml": first,
        "/s/local.yaml": LOCAL,
        "/s/command.yaml": COMMAND,
        "/s/deep/nested.yaml": b"version: 1\nsources: [{spec: ../command.yaml}]\n",
        "/s/deep/../command.yaml": COMMAND,
        "/s/command.yaml#": COMMAND,
        "/s/index.json": INDEX,
        "/s/prepared/.nv-meta/split.yaml": b"split_parts: {train: ['{x.tar,\\ny}']}\n",
    }
    pages["/s/prepared/.nv-meta/split.yaml"] = b'split_parts: {train: ["x\\ny.tar"]}\n'
    with served(pages) as root:
        for spec in (f"{root}/s/first.yaml", {"version": 1, "sources": [{"spec": f"{root}/s/first.yaml"}]}):
            with pytest.raises(UsageError) as caught:
                wds.WebDataset(spec, trust="full")
            assert "network" in str(caught.value) or "control characters" in str(caught.value)
    assert not (tmp_path / "owned").exists()


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Sends every request on to where the server is told to."""

    def do_GET(self):
        """Redirect."""
        self.send_response(302)
        self.send_header("Location", self.server.target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.parametrize("target", ["file:///etc/passwd", "pipe:touch%20owned", "ftp://127.0.0.1:1/x"])
def test_redirects(target, tmp_path, monkeypatch):
    """A server that sends specifications or shards on to something local is not followed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webdataset.storage.retries.FIRST_SECONDS", 0.0)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    server.target = target
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        root = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises((SourceError, UsageError), match="not a url|no answer|not followed"):
            load_spec(f"{root}/spec.yaml")
        with pytest.raises((SourceError, UsageError)):
            next(iter(wds.WebDataset(load_spec({"version": 1, "sources": ["x.tar"]}, url=f"{root}/spec.yaml"))))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not (tmp_path / "owned").exists()


def test_functions_need_full_trust(tmp_path):
    """A local specification names functions under full trust only."""
    (tmp_path / "spec.yaml").write_text("version: 1\nsources: [{shards: a.tar, transforms: ['os:getcwd']}]\n")
    for trust in (None, "safe", "strict"):
        with pytest.raises(UnsafeSpec, match="trust='full'"):
            load_spec(tmp_path / "spec.yaml", trust=trust)
    assert load_spec(tmp_path / "spec.yaml", trust="full").split().sources[0].transforms == (("os:getcwd", None),)


def test_stages_that_could_change_what_is_trusted():
    """No named transform takes a trust level, a handler or a function from a file."""
    for transform in ("decode", "map", "select", "log_keys", "xdecode", "lmdb_cached"):
        spec = load_spec({"version": 1, "sources": [{"shards": "a.tar", "transforms": [transform]}]}, url=URL)
        with pytest.raises(SpecError, match="no transform of this name"):
            wds.WebDataset(spec)


OWNING = 'pipe:touch owned; echo \'{"wids_version": 1, "shardlist": []}\''


@pytest.mark.parametrize("level", ["safe", "full"])
def test_indexes_within_indexes_over_the_network(level, tmp_path, monkeypatch):
    """An index that an index from the network names is no command, in YAML or JSON, whoever trusts it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDS_TRUST", level)
    index = {"wids_version": 1, "datasets": [{"source_url": OWNING}]}
    pages = {
        "/index.yaml": f"wids_version: 1\ndatasets: [{{source_url: {json.dumps(OWNING)}}}]\n".encode(),
        "/index.json": json.dumps(index).encode(),
        "/named.yaml": b"version: 1\nsources: [{wids: index.json}]\n",
        "/within.yaml": json.dumps({"version": 1, "sources": [{"spec": index}]}).encode(),
    }
    with served(pages) as root:
        for page in pages:
            with pytest.raises(UnsafeSpec):
                wds.WebDataset(root + page)
    refused(index, trust=level)
    refused({"version": 1, "sources": [{"spec": index}]}, trust=level)
    assert not (tmp_path / "owned").exists()


def test_an_index_within_an_index_is_not_rewritten_to_a_command(tmp_path, monkeypatch):
    """Nor does the environment make the url of a nested index, or of a shard, into a command or path."""
    monkeypatch.chdir(tmp_path)
    pages = {}
    with served(pages) as root:
        nested = {"wids_version": 1, "datasets": [{"source_url": f"{root}/z/index.json"}]}
        shards = {"wids_version": 1, "shardlist": [{"url": f"{root}/z/a.tar", "nsamples": 1}]}
        pages["/nested.json"], pages["/shards.json"] = json.dumps(nested).encode(), json.dumps(shards).encode()
        pages["/named.yaml"] = b"version: 1\nsources: [{wids: nested.json}]\n"
        monkeypatch.setenv("WDS_REWRITE", f"{root}/z/=pipe:touch owned # ")
        for page in pages:
            with pytest.raises(UnsafeSpec):
                wds.WebDataset(root + page)
    assert not (tmp_path / "owned").exists()


def test_resampled_urls_are_checked_on_each_pass(monkeypatch):
    """Urls that the environment rewrites later are refused where shards are drawn with replacement, too."""
    dataset = wds.WebDataset(load_spec({"version": 1, "sources": ["passwd"]}, url=URL), resampled=True)
    monkeypatch.setenv("WDS_REWRITE", "https://example.com/sets/=/etc/")
    with pytest.raises(UnsafeSpec, match="rewritten by the environment"):
        next(iter(dataset))


@pytest.mark.limited
def test_bombs_of_files(tmp_path):
    """Specifications that name each other many times over are given up after a thousand."""
    for depth in range(4):
        inner = ", ".join([f"{{spec: s{depth + 1}.yaml}}"] * 40)
        (tmp_path / f"s{depth}.yaml").write_text(f"version: 1\nmix: concat\nsources: [{inner}]\n")
    (tmp_path / "s4.yaml").write_text("version: 1\nsources: [a.tar]\n")
    with pytest.raises(SpecError, match="more than 1000 other specifications"):
        load_spec(tmp_path / "s0.yaml")


@pytest.mark.limited
@pytest.mark.parametrize(
    "text",
    ["{a..z}" * 9, "{a,{b,c}}" * 23, "{1..9}" * 20 + "{", "{" * 20_000 + "a" + "}" * 20_000, f"{{0..{'9' * 5000}}}"],
    ids=range(5),
)
def test_bombs_of_braces(text):
    """Braces that stand for more shards than can be meant are refused before any of them is made."""
    with pytest.raises(SpecError, match="stands for more than|nested more than"):
        load_spec({"version": 1, "sources": [text]}, url=URL)


@pytest.mark.limited
@pytest.mark.parametrize("many", [{"repeat": 1e12}, {"repeat": 1e300}, {"resample": 10**13}], ids=str)
@pytest.mark.parametrize("mix", ["interleave", "shards"])
def test_bombs_of_passes(many, mix):
    """More shards in one epoch than can be meant are an error, before a list of them is made."""
    spec = load_spec({"version": 1, "mix": mix, "sources": [{"shards": f"{URL}.tar", **many}]}, url=URL)
    with pytest.raises(UsageError, match="shards in one epoch"):
        next(iter(wds.from_spec(spec)))


@pytest.mark.limited
@pytest.mark.parametrize("many", [{"repeat": 2e8}, {"resample": 200_000_000}], ids=str)
def test_passes_are_drawn_as_they_are_read(many):
    """A source that is repeated very often draws its shards one after the other."""
    spec = load_spec({"version": 1, "sources": [{"shards": ["a", "b"], **many}]})
    shards = SourceShards(spec.split().sources[0], shuffled=True)
    assert {shard["url"] for shard in itertools.islice(shards, 100)} == {"a", "b"}
