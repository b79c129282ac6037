"""Mixes of raw samples: proportions, ends, and what a specification may ask for."""

import io
import json
from collections import Counter
from itertools import islice

import pytest

import webdataset as wds
from webdataset.cli.main import main
from webdataset.core.errors import MissingField, NoSamples, UsageError
from webdataset.reshaping.mixing import is_endless, mix_samples
from webdataset.samples.raw_samples import read_samples
from webdataset.shards.specs.mix import Mix, Source
from webdataset.testing import archives

CONTENTS = {
    name: archives.by_hand([(f"{name}{number}.{field}", b"x") for number in range(4) for field in ("txt", "cls")])
    for name in "ab"
}
CONTENTS["empty"] = archives.by_hand([])


def read(url):
    """The samples of one of the shards above."""
    return read_samples(io.BytesIO(CONTENTS[url]))


def keys(mix, most=1000, seed=0):
    """The keys that a mix gives."""
    return [sample.key for sample in islice(mix_samples(mix, read, seed), most)]


A, B = Source(name="a", shards=("a",), weight=3), Source(name="b", shards=("b",), weight=1)


def test_proportions_and_seeds():
    """Weights are the shares of the draws; the same seed draws the same."""
    mix = Mix(sources=(A, B))
    assert is_endless(mix)
    found = keys(mix, 4000)
    assert abs(Counter(key[0] for key in found)["a"] - 3000) < 150
    assert found == keys(mix, 4000)
    assert found != keys(mix, 4000, seed=1)
    assert [key for key in found if key[0] == "a"][:5] == ["a0", "a1", "a2", "a3", "a0"]


def test_ends():
    """Sources at their ends: the others go on, or all end, or the next one follows."""
    assert sorted(keys(Mix(sources=(A, B), exhausted="drop"))) == [f"{name}{n}" for name in "ab" for n in range(4)]
    assert keys(Mix(how="roundrobin", sources=(A, B), exhausted="stop")) == [
        "a0",
        "b0",
        "a1",
        "b1",
        "a2",
        "b2",
        "a3",
        "b3",
    ]
    short = Source(name="b", shards=("b",), subsample=0)
    assert keys(Mix(how="roundrobin", sources=(A, short), exhausted="drop")) == ["a0", "a1", "a2", "a3"]
    assert keys(Mix(how="concat", sources=(B, A))) == [f"{name}{n}" for name in "ba" for n in range(4)]
    assert sorted(keys(Mix(how="shards", sources=(A, B)))) == [f"{name}{n}" for name in "ab" for n in range(4)]


def test_sources_that_are_mixes_and_repeat():
    """A source may be a mix, and come several times."""
    inner = Source(name="inner", mix=Mix(how="concat", sources=(A,)), repeat=2)
    assert keys(Mix(how="concat", sources=(inner,))) == ["a0", "a1", "a2", "a3"] * 2
    assert keys(Mix(how="concat", sources=(Source(shards=("a", "b"), repeat=1.5),)))[8:] in (
        ["a0", "a1", "a2", "a3"],
        ["b0", "b1", "b2", "b3"],
    )


def test_fields():
    """Fields are renamed, then kept, as where the specification is read; one field may get several names."""
    source = Source(shards=("a",), keep=("caption", "copy"), rename={"caption": "txt", "copy": "txt"})
    (first, *_) = mix_samples(Mix(how="concat", sources=(source,)), read, 0)
    assert first.payloads() == {"caption": b"x", "copy": b"x"}
    assert [member.name for member in first.members] == ["a0.caption", "a0.copy"]


@pytest.mark.parametrize(
    "options",
    [
        {"rename": {"caption": "txt"}},
        {"rename": {"cls": "txt"}},
        {"rename": {"txt": "cls", "cls": "txt"}},
        {"rename": {"a": "txt", "txt": "txt"}},
        {"keep": ["txt"]},
        {"keep": ["a", "cls"], "rename": {"a": "txt"}},
    ],
)
def test_a_mix_holds_what_reading_gives(tmp_path, options):
    """Written by a mix or read by its specification, samples have the same fields."""
    members = [(f"{key}.{field}", f"{key} {field}".encode()) for key in "ab" for field in ("txt", "cls", "json")]
    (tmp_path / "s.tar").write_bytes(archives.by_hand(members))
    spec = {"version": 1, "splits": {"train": {"mix": "concat", "sources": [{"shards": "s.tar", **options}]}}}
    (tmp_path / "mix.json").write_text(json.dumps(spec))
    assert main(["mix", str(tmp_path / "mix.json"), "-o", str(tmp_path / "o.tar"), "--seed", "1"]) == 0
    read_by = [
        [{name: value for name, value in sample.items() if name[:2] != "__"} for sample in wds.WebDataset(str(url))]
        for url in (tmp_path / "mix.json", tmp_path / "o.tar")
    ]
    assert len(read_by[0]) == 2
    assert read_by[0] == read_by[1]


def test_samples_that_a_source_has_no_field_of(tmp_path, capsys):
    """A field that is to be renamed and is not there is an error, as in reading; what keeps no field is counted."""
    source = Source(name="s", shards=("a", "b"), rename={"x": "png"})
    with pytest.raises(MissingField, match="no field 'png'.*it has txt cls") as caught:
        list(mix_samples(Mix(sources=(source,)), read, 0))
    assert caught.value.key == "a0"
    (tmp_path / "s.tar").write_bytes(CONTENTS["a"])
    spec = {"version": 1, "splits": {"train": {"mix": "concat", "sources": [
        {"name": "s", "shards": "s.tar", "keep": ["png"]}, {"shards": "s.tar", "keep": ["txt"]}]}}}  # fmt: skip
    (tmp_path / "mix.json").write_text(json.dumps(spec))
    assert main(["mix", str(tmp_path / "mix.json"), "-o", str(tmp_path / "o.tar"), "--seed", "1"]) == 0
    told = capsys.readouterr().err
    assert told.count("warning") == 1
    assert "source 's': left out 4 samples without any of the fields that it keeps" in told


def test_what_belongs_to_reading_is_refused():
    """Decoding, transforms and shuffles change samples or need another command."""
    for source in (Source(name="a", shards=("a",), decode=("rgb",)), Source(name="a", shards=("a",), shuffle=5)):
        with pytest.raises(UsageError, match="belongs to reading"):
            mix_samples(Mix(sources=(source,)), read, 0)
    with pytest.raises(UsageError, match="without ';'"):
        mix_samples(Mix(sources=(Source(shards=("a",), rename={"x": "a;b"}),)), read, 0)


def test_empty_source_that_should_begin_again():
    """It is an error, not an endless loop."""
    with pytest.raises(NoSamples):
        keys(Mix(sources=(Source(name="e", shards=("empty",)),)))
