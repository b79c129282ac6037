"""The native format: what a specification becomes."""

import json
from typing import Any

import pytest

from webdataset.core.errors import UsageError
from webdataset.shards.specs import DatasetSpec, Mix, Source, load_spec
from webdataset.shards.specs.schema import SCHEMA_FILE, format_schema, make_schema

FULL = """
version: 1
defaults: {shuffle: 100, tags: {from: web, lang: en}}
splits:
  train:
    mix: interleave
    exhausted: drop
    weights_are: shards
    temperature: 0.5
    sources:
    - name: one
      shards: ['a/x-{0..3}.tar', /abs/y.tar]
      weight: 2
      repeat: 1.5
      subset: [0%, 50%]
      subsample: 0.5
      rename: {image: jpg;png}
      keep: [image, cls]
      extensions: image
      tags: {lang: de}
      decode: pil
      transforms: [gray, scale: [0.5, 2], slice: 3]
      preshuffle: 5
      shuffle: 6
      shardshuffle: true
      cache: /tmp
      nsamples: 400
      nbytes: 1000
    - https://h/z.tar::b.tar
  val:
    mix: concat
    sources:
    - spec: {mix: roundrobin, sources: [c.tar, d.tar]}
      weight: 3
"""


@pytest.fixture
def full(tmp_path):
    """The specification above, as a file."""
    (tmp_path / "full.yaml").write_text(FULL)
    return tmp_path / "full.yaml"


def test_everything(full, tmp_path):
    """Every key becomes what it says; relative urls are relative to the file; defaults fill in what is not said."""
    spec = load_spec(full)
    train = spec.splits["train"]
    assert (train.how, train.exhausted, train.weights_are, train.temperature) == ("interleave", "drop", "shards", 0.5)
    one, two = train.sources
    assert one == Source(
        name="one",
        shards=(f"{tmp_path}/a/x-{{0..3}}.tar", "/abs/y.tar"),
        weight=2,
        repeat=1.5,
        subset=(0, 0.5),
        subsample=0.5,
        rename={"image": "jpg;png"},
        keep=("image", "cls"),
        extensions=("image",),
        tags={"from": "web", "lang": "de"},
        decode=("pil",),
        transforms=(("gray", None), ("scale", [0.5, 2]), ("slice", 3)),
        preshuffle=5,
        shuffle=6,
        shardshuffle=True,
        cache="/tmp",
        nsamples=400,
        nbytes=1000,
    )
    assert two == Source(
        "source-1", ("https://h/z.tar", f"{tmp_path}/b.tar"), shuffle=100, tags={"from": "web", "lang": "en"}
    )
    nested = spec.split("val").sources[0]
    assert nested.mix == Mix(
        "roundrobin",
        tuple(
            Source(f"source-{n}", (f"{tmp_path}/{x}.tar",), shuffle=100, tags={"from": "web", "lang": "en"})
            for n, x in enumerate("cd")
        ),
        "drop",
    )
    assert nested.weight == 3


def test_writing_it_down(full, tmp_path):
    """A specification written in the native format reads as the same, as YAML, as JSON and as a dictionary."""
    spec = load_spec(full)
    assert load_spec(spec.dump()) == spec
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.yaml").write_text(spec.dumps())
    (tmp_path / "sub" / "a.json").write_text(json.dumps(spec.dump()))
    assert load_spec(tmp_path / "sub" / "a.yaml") == load_spec(str(tmp_path / "sub" / "a.json")) == spec
    assert load_spec(spec) is spec
    with pytest.raises(UsageError, match="Python function"):
        load_spec({"version": 1, "sources": [{"shards": "a", "transforms": [len]}]}).dump()


def test_which_split(full):
    """The only split needs no name, train is the default, and others are named where they are missed."""
    spec = load_spec(full)
    assert spec.split() is spec.splits["train"]
    with pytest.raises(UsageError, match="no split 'test'.* has train, val; pass split="):
        spec.split("test")
    assert load_spec({"version": 1, "splits": {"x": {"sources": ["a"]}}}).split().sources[0].shards == ("a",)


def test_kinds_of_mixes():
    """What a source does at its end follows from the mix, unless it is said."""
    found = {
        how: (mix.how, mix.exhausted)
        for how in ("interleave", "exhaust", "roundrobin", "concat", "shards")
        for mix in [load_spec({"version": 1, "mix": how, "sources": ["a"]}).split()]
    }
    assert found == {
        "interleave": ("interleave", "restart"),
        "exhaust": ("interleave", "drop"),
        "roundrobin": ("roundrobin", "drop"),
        "concat": ("concat", "drop"),
        "shards": ("shards", "drop"),
    }
    assert load_spec({"version": 1, "exhausted": "stop", "sources": ["a"]}).split().exhausted == "stop"


def test_environment(tmp_path, monkeypatch):
    """``${NAME}``, ``${NAME:-default}`` and ``$$``, in values of any kind; WDS_NAME serves where NAME does not."""
    monkeypatch.setenv("HERE", "x-{0..1}")
    monkeypatch.setenv("WDS_ONLY", "y")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("WEIGHT", "2.5")
    monkeypatch.delenv("NOWHERE", raising=False)
    (tmp_path / "s.yaml").write_text(
        "version: 1\nsources:\n- shards: ['${HERE}', '${ONLY}', '${NOWHERE:-z}', '${EMPTY:-w}', "
        "'a${EMPTY}b', '$$c', $d]"
        "\n"
        "  weight: ${WEIGHT}\n  choose: ${NOWHERE:-2}\n"
    )
    source = load_spec(tmp_path / "s.yaml").split().sources[0]
    assert [url.removeprefix(f"{tmp_path}/") for url in source.urls()] == [
        "x-0",
        "x-1",
        "y",
        "z",
        "w",
        "ab",
        "$c",
        "$d",
    ]
    assert (source.weight, source.choose) == (2.5, 2)
    assert load_spec(load_spec(tmp_path / "s.yaml").dump()) == load_spec(tmp_path / "s.yaml")


def test_relative_to_what(tmp_path, monkeypatch):
    """Names are relative to the file that holds them, ~ is the home directory, and urls stay as they are."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s.yaml").write_text(
        "version: 1\nsources: [{shards: [a, ../b, ~/c, 'file:d', 'pipe:cat e', 'a:b.tar', '{x,/y}', '{~/p,q}', -]}]\n"
    )
    urls = load_spec("sub/s.yaml").split().sources[0].urls()
    assert urls == [
        "sub/a",
        "b",
        "/home/me/c",
        "file:d",
        "pipe:cat e",
        "sub/a:b.tar",
        "sub/x",
        "/y",
        "/home/me/p",
        "sub/q",
        "-",
    ]


def test_braces_are_kept_and_odd_names_survive(tmp_path):
    """An expression is not expanded before it is asked for; a backslash takes a brace literally."""
    spec = load_spec({"version": 1, "sources": [{"shards": ["a-{0..9}.tar", "b\\{x\\}.tar"]}]})
    assert spec.split().sources[0].shards == ("a-{0..9}.tar", "b\\{x\\}.tar")
    assert spec.split().sources[0].urls()[-2:] == ["a-9.tar", "b{x}.tar"]


def test_wildcards(tmp_path):
    """Local wildcards match files, in order."""
    for name in ("b.tar", "a.tar"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "s.yaml").write_text("version: 1\nsources: ['*.tar']\n")
    assert load_spec(tmp_path / "s.yaml").split().sources[0].urls() == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]


def test_subsets_part_the_shards():
    """Adjacent subsets share no shard and lose none."""

    def part(low, high):
        document = {"version": 1, "sources": [{"shards": "s{0..12}", "subset": [low, high]}]}
        return load_spec(document).split().sources[0].urls()

    assert part(0, "30%") + part(0.3, "77%") + part("77%", 1) == [f"s{n}" for n in range(13)]


def test_nested_files_and_includes(tmp_path):
    """A source may be another specification, of any dialect, and splits may be taken over from other files."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.yaml").write_text(
        "version: 1\nsplits: {train: {sources: [a]}, val: {sources: [b]}, test: {sources: [c]}}\n"
    )
    (tmp_path / "d" / "old.yaml").write_text("dataset: [{shards: o, probability: 3}]\n")
    (tmp_path / "s.yaml").write_text(
        "version: 1\ninclude: d/a.yaml\nsplits:\n  val:\n    sources:\n"
        "    - {spec: d/a.yaml, split: test, tags: {x: 1}}\n"
        "    - spec: d/old.yaml\n    - spec: {dataset: [p]}\n"
    )
    spec = load_spec(tmp_path / "s.yaml")
    assert list(spec.splits) == ["train", "val", "test"]
    shards = [source.mix.sources[0].shards[0] for source in spec.splits["val"].sources]
    assert shards == [f"{tmp_path}/{x}" for x in ("d/c", "d/o", "p")]
    assert spec.splits["train"].sources[0].shards == (f"{tmp_path}/d/a",)


def test_shares():
    """Weights count samples, shards or bytes; temperature makes them more alike; without weights sizes may decide."""

    def shares(sources, **mix):
        return load_spec({"version": 1, **mix, "sources": sources}).split().shares()

    sizes = [
        {"shards": "a{0..9}", "weight": 1, "nsamples": 1000, "nbytes": 4000},
        {"shards": "b", "weight": 1, "nsamples": 100, "nbytes": 100},
    ]
    assert shares(sizes) == [0.5, 0.5]
    assert shares(sizes, weights_are="shards") == [0.5, 0.5]  # 100 samples in each shard
    assert shares(sizes, weights_are="bytes") == pytest.approx([0.2, 0.8])  # 4 bytes a sample against 1
    assert shares([{"shards": "a", "weight": 9}, {"shards": "b"}], temperature=0.5) == pytest.approx([0.75, 0.25])
    assert shares([{"shards": "a", "weight": 9}, {"shards": "b", "weight": 0}], temperature=0) == [1, 0]
    unweighted = [{"shards": "a", "nsamples": 30}, {"shards": "b", "nsamples": 5, "repeat": 2}]
    assert shares(unweighted, mix="exhaust") == [0.75, 0.25]
    assert shares(unweighted) == [0.5, 0.5]
    for unit in ("shards", "bytes"):
        with pytest.raises(UsageError, match=f"weights_are: {unit} needs the size of every source: give 'source-1'"):
            shares([sizes[0], {"shards": "b"}], weights_are=unit)


def test_plan():
    """A plan says what each list of shards contributes, nested ones by their share of a share."""
    spec = load_spec(
        {
            "version": 1,
            "sources": [
                {"name": "a", "shards": "a{0..9}", "weight": 3, "nsamples": 50},
                {
                    "name": "n",
                    "weight": 1,
                    "spec": {"mix": "roundrobin", "exhausted": "restart", "sources": ["b", "c"]},
                },
            ],
        }
    )
    plan = spec.plan(samples=8000)
    assert [(line.name, line.shards, line.share, line.samples) for line in plan] == [
        ("a", 10, 0.75, 6000),
        ("n/source-0", 1, 0.125, 1000),
        ("n/source-1", 1, 0.125, 1000),
    ]
    assert (plan[0].nsamples, plan[0].urls) == (50, ("a0", "a9"))


def test_plan_of_epochs_that_end():
    """Where every sample comes once, the sizes decide, and are not guessed."""
    document: dict[str, Any] = {
        "version": 1,
        "mix": "concat",
        "sources": [{"shards": "a", "nsamples": 30, "repeat": 2}, {"shards": "b"}],
    }
    assert [line.share for line in load_spec(document).plan()] == [None, None]
    document["sources"][1]["nsamples"] = 20
    assert [line.share for line in load_spec(document).plan()] == [0.75, 0.25]
    spec = load_spec({"version": 1, "mix": "concat", "sources": ["a"]})
    assert [line.share for line in spec.plan()] == [1]
    with pytest.raises(UsageError, match="samples=-1 is below 0"):
        spec.plan(samples=-1)


def test_yaml_merges_and_anchors(tmp_path):
    """YAML's own abbreviations work, the nearest key first."""
    (tmp_path / "s.yaml").write_text(
        "version: 1\nsources:\n- &a {name: a, shards: x, weight: 2}\n"
        "- {<<: *a, name: b}\n- {<<: [{weight: 5}, *a], name: c}\n"
    )
    sources = load_spec(tmp_path / "s.yaml").split().sources
    assert [(each.name, each.weight) for each in sources] == [("a", 2), ("b", 2), ("c", 5)]


def test_schema_is_up_to_date():
    """The schema that is shipped says what the parser reads."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == format_schema()


def test_schema_and_parser_agree(full):
    """What the parser takes, the schema takes; what the schema refuses, the parser refuses."""
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    validator = jsonschema.Draft202012Validator(make_schema())
    jsonschema.Draft202012Validator.check_schema(make_schema())
    good = yaml.safe_load(FULL)
    assert validator.is_valid(good)
    assert validator.is_valid(load_spec(full).dump())
    for change in BAD:
        document = json.loads(json.dumps(good))
        change(document)
        assert not validator.is_valid(document), document
        with pytest.raises(UsageError):
            load_spec(document)


def _set(path, value):
    def change(document):
        place = document
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


FIRST = ("splits", "train", "sources", 0)
BAD = [
    _set(("version",), 2),
    _set(("splits", "train", "mix"), "blend"),
    _set(("splits", "train", "temperature"), -1),
    _set(("splits", "train", "sources"), []),
    _set(("splits", "train", "x"), 1),
    _set(("x",), 1),
    _set(("defaults", "name"), "x"),
    _set((*FIRST, "wids"), "a.json"),
    _set((*FIRST, "weight"), "2"),
    _set((*FIRST, "weight"), True),
    _set((*FIRST, "repeat"), 0),
    _set((*FIRST, "subset"), [0.1]),
    _set((*FIRST, "subset"), [0.1, 2]),
    _set((*FIRST, "shards"), [3]),
    _set((*FIRST, "shards"), ""),
    _set((*FIRST, "rename"), {"a": 3}),
    _set((*FIRST, "transforms"), [{"a": 1, "b": 2}]),
    _set((*FIRST, "tags"), ["x"]),
    _set((*FIRST, "shuffle"), -1),
    _set((*FIRST, "shuffle"), 1.5),
    _set((*FIRST, "shardshuffle"), 1),
    _set((*FIRST, "cache"), 3),
]


def test_descriptions_are_frozen(full):
    """A specification cannot be changed by accident."""
    spec = load_spec(full)
    with pytest.raises(AttributeError):
        spec.splits["train"].sources[0].weight = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        spec.splits = {}  # type: ignore[misc]
    assert isinstance(spec, DatasetSpec)
