"""What ``urls`` is, is decided once: which source each kind of argument gives, and how often anything is asked."""

import collections
import io
import json
import sys
import warnings
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.core.errors import NoShards, UsageError
from webdataset.core.optional_imports import IterableDataset
from webdataset.shards import source as source_module
from webdataset.shards.directory import DirectoryShardList
from webdataset.shards.lists import ResampledShards, SimpleShardList
from webdataset.shards.source import ShardSource, SourceArguments, SpecSource, parse_source
from webdataset.shards.specs import MultiShardSample, load_spec
from webdataset.shards.wids_lists import WidsShardList, load_remote_dsdesc_raw

PACKAGE = Path(wds.__file__).parent
READERS = ("read_spec_bytes", "_read_text", "_load_yaml")  # of specifications and indexes
SPEC = {"version": 1, "sources": ["a-{0..1}.tar"]}
INDEX = {"wids_version": 1, "shardlist": [{"url": f"a-{n}.tar", "nsamples": 2} for n in range(2)]}
SAMPLE = {"datasets": [{"shards": "a-{0..1}.tar", "choose": 1}]}


class Shards(IterableDataset):
    """A program's own dataset of shards."""

    def __init__(self):
        """Have no list."""

    def __iter__(self):
        """Yield two shards."""
        return iter([{"url": "a-0.tar"}, {"url": "a-1.tar"}])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A directory with two shards, a specification, an index and a description of a sample."""
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        with wds.TarWriter(f"a-{number}.tar") as sink:
            for index in range(2):
                sink.write({"__key__": f"{number}{index}", "txt": "x"})
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "spec.yaml").write_text(load_spec(SPEC).dumps())
    (tmp_path / "index.json").write_text(json.dumps(INDEX))
    (tmp_path / "sample.yaml").write_text(json.dumps(SAMPLE))
    return tmp_path


def generate():
    """Yield urls."""
    yield from ("a-0.tar", "a-1.tar")


KINDS = {
    "url": (lambda: "a-0.tar", SimpleShardList),
    "braces": (lambda: "a-{0..1}.tar", SimpleShardList),
    "wildcard": (lambda: "a-*.tar", SimpleShardList),
    "several": (lambda: "a-0.tar::a-1.tar", SimpleShardList),
    "http": (lambda: "http://127.0.0.1:9/a-{0..1}.tar", SimpleShardList),
    "command": (lambda: "pipe:cat a-0.tar # spec.json", SimpleShardList),
    "path": (lambda: Path("a-0.tar"), SimpleShardList),
    "standard input": (lambda: "-", SimpleShardList),
    "list": (lambda: ["a-0.tar", Path("a-1.tar")], SimpleShardList),
    "tuple": (lambda: ("a-0.tar",), SimpleShardList),
    "iterator": (lambda: iter(["a-0.tar"]), SimpleShardList),
    "generator": (generate, SimpleShardList),
    "file": (lambda: io.BytesIO(b""), SimpleShardList),
    "directory": (lambda: "./", DirectoryShardList),
    "list object": (lambda: SimpleShardList("a-{0..1}.tar"), SimpleShardList),
    "resampling object": (lambda: ResampledShards("a-{0..1}.tar"), ResampledShards),
    "program's dataset": (Shards, Shards),
    "JSON specification": (lambda: "spec.json", None),
    "YAML specification": (lambda: Path("spec.yaml"), None),
    "dict": (lambda: SPEC, None),
    "loaded": (lambda: load_spec(SPEC), None),
    "index": (lambda: "index.json", WidsShardList),
    "index as a dict": (lambda: INDEX, WidsShardList),
    "sample of shards": (lambda: "sample.yaml", MultiShardSample),
    "sample as a dict": (lambda: SAMPLE, MultiShardSample),
}


def count_calls(make):
    """Return the result of a function, how often each of our functions was called, and what of whom was asked."""
    calls, questions = collections.Counter(), collections.Counter()

    def note(frame, event, _argument):
        code, caller = frame.f_code, frame.f_back
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        calls[code.co_name] += 1
        if code.co_filename == source_module.__file__:
            questions[code.co_qualname] += 1
        if code.co_name == "is_instance_by_name":
            asked = frame.f_locals
            questions[id(asked["thing"]), asked["module"], asked["kind"]] += 1
        layer = Path(code.co_filename).parent.name, Path(caller.f_code.co_filename).parent.name
        if layer[0] == "fluent" and layer[1] in ("shards", "specs", "storage", "samples", "core"):
            calls["climbs"] += code.co_name != "__init__"  # a decorator of core calls the constructor

    sys.setprofile(note)
    try:
        made = make()
    finally:
        sys.setprofile(None)
    return made, calls, questions


@pytest.mark.filterwarnings("ignore:resampled=True changes nothing")
@pytest.mark.parametrize(
    ("kind", "resampled"),
    [(kind, resampled) for kind in KINDS for resampled in (False, True) if not resampled or kind != "file"],
)
def test_each_question_is_asked_once(kind, resampled):
    """A construction parses its urls once, expands them once, reads each document once, and asks nothing again."""
    make, _ = KINDS[kind]
    urls = make()
    _, calls, questions = count_calls(lambda: wds.WebDataset(urls, resampled=resampled))
    assert questions["parse_source"] == 1
    assert {name: count for name, count in questions.items() if count > 1} == {}
    assert calls["climbs"] == 0
    assert sum(calls[name] for name in READERS) == (kind in ("JSON specification", "YAML specification", "index",
                                                             "sample of shards"))  # fmt: skip
    assert calls["expand_urls"] <= 1
    assert calls["substitute_environment"] <= (2 if kind == "several" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    """Each kind of argument gives its list; an object of the program is taken as it is."""
    make, expected = KINDS[kind]
    urls = make()
    found = parse_source(urls, SourceArguments())
    if expected is None:
        assert isinstance(found, SpecSource)
        assert len(found.mix.sources[0].urls()) == 2
        return
    assert isinstance(found, ShardSource)
    assert type(found.shards) is expected
    assert found.given is (found.shards is urls)
    assert found.drawn is (expected is ResampledShards)
    assert found.can_split is (expected not in (ResampledShards, DirectoryShardList))
    assert found.foreign is (expected is Shards)
    assert found.can_assign is (kind == "list object")


@pytest.mark.parametrize("arguments", [SourceArguments(resampled=True), SourceArguments(mode="resampled")])
def test_draws(arguments):
    """What is listed here is drawn from; a directory, a sample and an object of the program keep their own order."""
    for kind in ("url", "list", "generator", "index"):
        found = parse_source(KINDS[kind][0](), arguments)
        assert type(found.shards) is ResampledShards
        assert found.drawn
    assert type(parse_source(KINDS["directory"][0](), arguments).shards) is KINDS["directory"][1]
    for kind in ("sample of shards", "list object"):
        with pytest.warns(UserWarning, match=r"resampled=True changes nothing for a .*wds\.ResampledShards\(urls\)"):
            assert type(parse_source(KINDS[kind][0](), arguments).shards) is KINDS[kind][1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_source(ResampledShards("a-0.tar"), arguments).drawn


@pytest.mark.parametrize("mode", ["resample", "unlink", "train", True])
@pytest.mark.parametrize("kind", ["url", "list", "generator", "index", "list object"])
def test_the_mode_of_a_directory(kind, mode):
    """It says nothing to a list: it is refused, and not left out without a word."""
    with pytest.raises(UsageError, match=r"belongs to a directory of shards.*resampled=True"):
        parse_source(KINDS[kind][0](), SourceArguments(mode=mode))
    assert parse_source(KINDS["directory"][0](), SourceArguments(mode="unlink")).shards.mode == "unlink"


def test_folders_and_wildcards_of_stores():
    """They are listed, also beside other urls."""
    with wds.gopen.gopen("memory://source-test/x-0.tar", "wb") as sink:
        sink.write(b"")
    found = parse_source("a-0.tar::memory://source-test/*.tar", SourceArguments(storage_options={}))
    assert found.shards.urls == ["a-0.tar", "memory://source-test/x-0.tar"]
    assert parse_source("memory://source-test/", SourceArguments()).shards.urls == ["memory://source-test/x-0.tar"]
    assert parse_source("memory://source-test/", SourceArguments(resampled=True)).drawn


def test_an_index_that_knows_its_place(folder):
    """The raw index of another directory finds its shards there, as the index itself does."""
    (folder / "sub").mkdir()
    (folder / "sub" / "index.json").write_text(json.dumps(INDEX))
    raw = load_remote_dsdesc_raw("sub/index.json")
    assert parse_source(raw, SourceArguments()).shards.urls == ["sub/a-0.tar", "sub/a-1.tar"]
    assert parse_source("sub/index.json", SourceArguments()).shards.urls == ["sub/a-0.tar", "sub/a-1.tar"]


@pytest.mark.parametrize("urls", [7, None, len, b"a.tar"])
def test_what_cannot_be_read(urls):
    """A number, nothing, a function and bytes are refused by kind."""
    with pytest.raises(UsageError, match="urls"):
        parse_source(urls, SourceArguments())


def test_refusals():
    """Only specifications have splits, and a list has shards."""
    with pytest.raises(UsageError, match="part of a dataset specification"):
        parse_source("a-0.tar", SourceArguments(split="train"))
    with pytest.raises(UsageError, match="no split 'val'"):
        parse_source("spec.json", SourceArguments(split="val"))
    with pytest.raises(NoShards):
        parse_source([], SourceArguments())
