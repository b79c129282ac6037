"""Specifications written for other programs, read and written."""

import json
from pathlib import Path

import pytest

from webdataset.core.errors import SpecError, UsageError
from webdataset.shards.specs import Mix, Source, from_open_clip, load_spec
from webdataset.shards.specs.origin import expand_names

SEED = """
dataset:
  - shards: gs://b/ia1-{000000..000033}.tar
    scaleprob: 0.3
  - shards: gs://b/cdipsub-{000000..000022}.tar
    scale: [1.0, 3.0]
  - shards: gs://b/bin-gsub-{000000..000167}.tar
    extensions: nrm.jpg
    scale: [0.3, 1.0]
  - shards: gs://b/rendered.tar
    scaleprob: 1.0
"""


def test_the_documented_list(tmp_path):
    """The form that upstream's documentation shows: without probabilities, every sample once; images decoded."""
    (tmp_path / "s.yaml").write_text(SEED)
    spec = load_spec(tmp_path / "s.yaml")
    mix = spec.split()
    assert (spec.dialect, mix.how, mix.exhausted) == ("dataset", "interleave", "drop")
    assert [len(source.urls()) for source in mix.sources] == [34, 23, 168, 1]
    assert [source.transforms for source in mix.sources] == [
        (("scaleprob", 0.3),),
        (("scale", [1.0, 3.0]),),
        (("scale", [0.3, 1.0]),),
        (("scaleprob", 1.0),),
    ]
    assert {source.decode for source in mix.sources} == {("pil",)}
    assert [source.extensions for source in mix.sources] == [(), (), ("nrm.jpg",), ()]


def test_every_key_of_the_list():
    """What else a member of the list may say."""
    member = {
        "shards": "a.tar",
        "extensions": "jpg;png",
        "probability": 2,
        "subsample": 0.5,
        "preshuffle": 9,
        "shuffle": 99,
        "gray": True,
        "rotprob": 0.25,
        "noise": 0.1,
        "patchsize": 64,
        "nsample": 3,
    }
    mix = load_spec({"dataset": ["b.tar", member, {"shards": "c", "weight": 3, "gray": False}], "shuffle": 5}).split()
    assert (mix.how, mix.sources[0].shuffle) == ("concat", 5)
    inner = mix.sources[0].mix
    assert (inner.how, inner.exhausted) == ("interleave", "restart")
    assert inner.sources[1] == Source(
        "source-1",
        ("a.tar",),
        weight=2,
        subsample=0.5,
        preshuffle=9,
        shuffle=99,
        extensions=("jpg", "png"),
        decode=("pil",),
        transforms=(("gray", None), ("rotprob", 0.25), ("noise", 0.1), ("patches", {"size": 64, "count": 3})),
    )
    assert inner.shares() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert load_spec({"dataset": [{"shards": "a", "patchsize": 8}]}).split().sources[0].transforms == (
        ("patches", {"size": 8, "count": 10}),
    )
    assert load_spec({"dataset": ["a"], "mix": "roundrobin"}).split().how == "roundrobin"


def test_lists_of_multi_shard_samples(tmp_path, monkeypatch):
    """The published reader's files: all shards of a pass shuffled together."""
    monkeypatch.setenv("SETS", "/sets")
    (tmp_path / "m.yaml").write_text(
        "prefix: 'p:'\nbuckets: [x]\ndatasets:\n- {name: one, shards: 'a{0..3}.tar', choose: 2}\n"
        "- {shards: [$SETS/b, c], resample: 5, buckets: '$SETS/y'}\n- {name: one, shards: d}\n"
    )
    spec = load_spec(tmp_path / "m.yaml")
    mix = spec.split()
    assert (spec.dialect, mix.how) == ("multishard", "shards")
    assert [(each.name, each.choose, each.resample) for each in mix.sources] == [
        ("one-0", 2, None),
        ("source-1", None, 5),
        ("one-2", None, None),
    ]
    assert [each.urls() for each in mix.sources] == [
        [f"p:x/a{n}.tar" for n in range(4)],
        ["p:/sets/b", "p:/sets/y/c"],
        ["p:x/d"],
    ]
    assert load_spec(spec.dump()) == spec


def test_tarmix():
    """Tarmix's list of sources; what is not known is refused."""
    document = {
        "shuffle": 7,
        "sources": [
            {
                "shards": "a{0..1}",
                "weight": 2,
                "nrepeats": 3,
                "shuffle": 5,
                "rename": {"x": "y"},
                "allow_missing": False,
            },
            {"shards": ["b"], "probability": 1, "nstreams": 1, "convert": None},
        ],
    }
    inner = load_spec(document).split().sources[0].mix
    assert inner == Mix(
        "interleave",
        (
            Source("source-0", ("a{0..1}",), weight=2, repeat=3, shuffle=5, rename={"x": "y"}),
            Source("source-1", ("b",), weight=1),
        ),
        "restart",
    )
    assert load_spec({"sources": [{"shards": "a"}]}).split().exhausted == "drop"
    for name, value in (("allow_missing", True), ("nstreams", 4), ("convert", "x")):
        with pytest.raises(SpecError, match=f"'{name}' is not read"):
            load_spec({"sources": [{"shards": "a", name: value}]})


@pytest.fixture
def indexes(tmp_path):
    """Two wids indexes, and one of both with weights."""

    def index(stem, count, **more):
        shards = [{"url": f"{stem}-{n}.tar", "nsamples": 10 * (n + 1), "filesize": 100} for n in range(count)]
        return {"wids_version": 1, "shardlist": shards, **more}

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.json").write_text(json.dumps(index("a", 2, name="first")))
    (tmp_path / "b.json").write_text(json.dumps(index("b", 3)))
    both = {
        "wids_version": 1,
        "datasets": [{"source_url": "d/a.json", "weight": 3}, {"source_url": "b.json", "weight": 1}],
    }
    (tmp_path / "both.json").write_text(json.dumps(both))
    return tmp_path


def test_wids_indexes(indexes):
    """An index is a list of shards of known size; its datasets are mixed where they have weights."""
    one = load_spec(indexes / "d" / "a.json")
    assert one.split() == Mix(
        "concat",
        (Source("first", (f"{indexes}/d/a-0.tar", f"{indexes}/d/a-1.tar"), nsamples=30, nbytes=200),),
        "drop",
    )
    both = load_spec(indexes / "both.json").split()
    assert (both.how, both.exhausted, both.shares()) == ("interleave", "restart", [0.75, 0.25])
    assert [source.nsamples for source in both.sources] == [30, 60]


def test_wids_sources(indexes):
    """A source may take its shards from an index, by either name, relative to the specification."""
    (indexes / "s.yaml").write_text(
        "version: 1\nweights_are: shards\nsources: [{wids: d/a.json}, {index: b.json, weight: 2}]\n"
    )
    mix = load_spec(indexes / "s.yaml").split()
    assert [source.urls()[0] for source in mix.sources] == [f"{indexes}/d/a-0.tar", f"{indexes}/b-0.tar"]
    assert mix.shares() == pytest.approx([15 / 55, 40 / 55])  # 15 and 20 samples a shard
    assert load_spec(load_spec(indexes / "s.yaml").dump()).split() == mix


def test_wids_within_a_specification(tmp_path):
    """An index may stand within a specification, relative to it."""
    index = '{"wids_version": 1, "base": "d", "shardlist": [{"url": "a.tar", "nsamples": 1}]}'
    (tmp_path / "s.yaml").write_text(f"version: 1\nsources: [{{spec: {index}}}]\n")
    assert load_spec(tmp_path / "s.yaml").split().sources[0].mix.sources[0].urls() == [f"{tmp_path}/d/a.tar"]


@pytest.fixture
def prepared(tmp_path):
    """Two directories as Energon prepares them."""
    for name, shards in (("one", 4), ("two", 2)):
        meta = tmp_path / name / ".nv-meta"
        meta.mkdir(parents=True)
        (meta / "split.yaml").write_text(
            f"split_parts:\n  train: ['s-{{0..{shards - 1}}}.tar']\n  val: [v.tar]\nexclude: [s-1.tar]\n"
        )
        counts = {f"s-{n}.tar": 10 for n in range(shards)} | {"v.tar": 3}
        (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    return tmp_path


META = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
    - {weight: 5, path: ./one, subflavors: {lang: de}}
    - weight: 2
      concat:
      - {path: two}
      - {path: one, split_part: val}
  val:
    path: one
  mixed:
    blend_epochized:
    - {repetitions: 3, path: one, split_part: train}
    - {repetitions: 0.5, path: two, split_part: train}
"""


def test_energon(prepared):
    """Blends, epochized blends, concatenations and single paths, over what the directories list."""
    (prepared / "meta.yaml").write_text(META)
    spec = load_spec(prepared / "meta.yaml")
    train = spec.splits["train"]
    one, two = train.sources
    assert (spec.dialect, train.how, train.exhausted) == ("energon", "interleave", "restart")
    assert train.shares() == pytest.approx([5 / 7, 2 / 7])
    assert [Path(url).name for url in one.urls()] == ["s-0.tar", "s-2.tar", "s-3.tar"]
    assert (one.tags, one.nsamples) == ({"lang": "de"}, 30)
    assert two.mix.how == "concat"
    assert [source.nsamples for source in two.mix.sources] == [10, 3]
    assert spec.splits["val"].sources[0].urls() == [f"{prepared}/one/v.tar"]
    mixed = spec.splits["mixed"]
    assert (mixed.how, mixed.exhausted) == ("interleave", "drop")
    assert mixed.shares() == pytest.approx([90 / 95, 5 / 95])


def test_energon_and_back(prepared):
    """What was read is written as the same, and the native format keeps it, too."""
    import yaml

    (prepared / "meta.yaml").write_text(META)
    spec = load_spec(prepared / "meta.yaml")
    (prepared / "again.yaml").write_text(yaml.safe_dump(spec.to_energon()))
    (prepared / "epochs.yaml").write_text(META.replace("concat:", "blend_epochized:"))  # Energon orders samples itself
    assert load_spec(prepared / "again.yaml") == load_spec(prepared / "epochs.yaml")
    assert load_spec(spec.dump()) == spec


def test_energon_in_other_words(prepared):
    """A metadataset may name another, and the first version's list of datasets is read."""
    (prepared / "meta.yaml").write_text(META)
    (prepared / "outer.yaml").write_text(
        "__class__: Metadataset\nsplits:\n  train:\n    datasets:\n    - {weight: 1, path: meta.yaml, subflavor: x}\n"
        "    - {weight: 3, path: two}\n"
    )
    sources = load_spec(prepared / "outer.yaml").split().sources
    assert sources[0].mix == load_spec(prepared / "meta.yaml").splits["train"]
    assert (sources[0].tags, sources[1].nsamples) == ({"__subflavor__": "x"}, 10)
    (prepared / "s.yaml").write_text("version: 1\nsources: [{energon: one, split_part: val}]\n")
    assert load_spec(prepared / "s.yaml").split().sources[0].urls() == [f"{prepared}/one/v.tar"]


def test_what_energon_directories_lack(prepared):
    """Parts that are not there, and samples that are excluded one by one, are told."""
    for part, message in (("test", "has no part 'test', but train, val"),):
        (prepared / "s.yaml").write_text(f"version: 1\nsources: [{{energon: one, split_part: {part}}}]\n")
        with pytest.raises(SpecError, match=message):
            load_spec(prepared / "s.yaml")
    split = prepared / "one" / ".nv-meta" / "split.yaml"
    split.write_text("split_parts: {train: [s-0.tar]}\nexclude: [s-0.tar/key]\n")
    (prepared / "s.yaml").write_text("version: 1\nsources: [{energon: one}]\n")
    with pytest.raises(SpecError, match="excludes single samples"):
        load_spec(prepared / "s.yaml")
    for part in ("5", "[1]", "null", "{a: 1}"):
        split.write_text(f"split_parts: {{train: {part}}}\n")
        with pytest.raises(SpecError, match="is a list of shards, not"):
            load_spec(prepared / "s.yaml")
    split.write_text("split_parts: {train: [s-0.tar]}\n")
    info = prepared / "one" / ".nv-meta" / ".info.json"
    for text in ("[]", "5", "", '{"shard_counts": [1]}'):
        info.write_text(text)
        with pytest.raises(SpecError, match="expected a mapping"):
            load_spec(prepared / "s.yaml")
    info.write_text('{"shard_counts": {"s-0.tar": -4}}')
    assert load_spec(prepared / "s.yaml").split().sources[0].nsamples is None
    info.unlink()
    split.write_text("split_parts: {train: [s-0.tar]}\n")
    assert load_spec(prepared / "s.yaml").split().sources[0].nsamples is None


def test_shards_as_energon(tmp_path):
    """Plain shards of one directory are a path; with weights of other units, as shares."""
    spec = load_spec(
        {"version": 1, "sources": [{"shards": "/d/a-{0..3}.tar", "weight": 3, "tags": {"x": 1}}, "/e/b.tar"]}
    )
    assert spec.to_energon()["splits"]["train"] == {
        "blend": [{"weight": 0.75, "path": "/d", "subflavors": {"x": 1}}, {"weight": 0.25, "path": "/e"}]
    }


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"choose": 1}, "'choose'"),
        ({"rename": {"a": "b"}}, "'rename'"),
        ({"transforms": ["gray"]}, "'transforms'"),
        ({"subset": [0, 0.5]}, "'subset'"),
        ({"shards": ["/d/a", "/e/a"]}, "2 directories"),
        ({"repeat": 2}, "repeat of sources that restart"),
    ],
)
def test_what_energon_cannot_say(change, what):
    """What would be lost is refused."""
    with pytest.raises(UsageError, match=f"cannot say .*{what}"):
        load_spec({"version": 1, "sources": [{"shards": "/d/a", **change}]}).to_energon()


def test_mixes_that_energon_cannot_say():
    """Nor can it say every mix."""
    for mix in ({"mix": "roundrobin"}, {"exhausted": "stop"}, {"mix": "shards"}):
        with pytest.raises(UsageError, match="cannot say mix"):
            load_spec({"version": 1, **mix, "sources": ["/d/a", "/d/b"]}).to_energon()
    with pytest.raises(UsageError, match="cannot say weights"):
        load_spec({"version": 1, "mix": "exhaust", "sources": [{"shards": "/d/a", "weight": 2}]}).to_energon()
    with pytest.raises(UsageError, match="other shards of one directory"):
        load_spec({"version": 1, "mix": "concat", "sources": ["/d/a", "/d/b"]}).to_energon()


def test_open_clip():
    """Each shard of a source weighs as much as the source's factor, and that is written as it was read."""
    spec = from_open_clip("/d/a-{0..3}.tar::/e/b.tar", "1::8")
    assert spec.split().shares() == pytest.approx([4 / 12, 8 / 12])
    assert spec.to_open_clip() == {"train_data": "/d/a-{0..3}.tar::/e/b.tar", "train_data_upsampling_factors": "1::8"}
    assert from_open_clip("a{0..2}::b").split().shares() == pytest.approx([3 / 4, 1 / 4])
    native = load_spec({"version": 1, "sources": [{"shards": "a{0..9}", "weight": 1}, {"shards": "b", "weight": 1}]})
    written = native.to_open_clip()
    assert written == {"train_data": "a{0..9}::b", "train_data_upsampling_factors": "1::10"}
    again = from_open_clip(written["train_data"], written["train_data_upsampling_factors"])
    assert again.split().shares() == pytest.approx([0.5, 0.5])
    assert len(expand_names(again.split().sources[0].shards[0])) == 10


@pytest.mark.parametrize(
    ("factors", "message"), [("1", "give one for each"), ("1::x", "above 0"), ("1::-1", "above 0")]
)
def test_factors_that_make_no_sense(factors, message):
    """One positive factor for each source."""
    with pytest.raises(UsageError, match=message):
        from_open_clip("a::b", factors)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"mix": "concat"}, "mix: concat"),
        ({"sources": [{"shards": ["a", "b"]}]}, "2 expressions"),
        ({"sources": [{"shards": "a", "tags": {"x": 1}}]}, "'tags'"),
        ({"sources": [{"shards": "a", "weight": 0}, "b"]}, "weight 0"),
        ({"sources": [{"spec": {"sources": ["a"]}}]}, "'mix'"),
    ],
)
def test_what_open_clip_cannot_say(change, what):
    """What would be lost is refused."""
    with pytest.raises(UsageError, match=f"cannot say .*{what}"):
        load_spec({"version": 1, "sources": ["a"], **change}).to_open_clip()
