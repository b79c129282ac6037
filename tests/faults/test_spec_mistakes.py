"""Specifications with mistakes: every one is named by file, line and column, and all of them at once."""

import json
import sys
from typing import Any

import pytest

from webdataset.core.errors import NotFound, SpecError, UnsafeSpec, UsageError
from webdataset.shards.specs import load_spec, schema, syntax

HEAD = "version: 1\nsources:\n"

TABLE = [
    ("version: 1\nsources:\n- shards: a\n  weigth: 2\n", "4:3", "unknown key 'weigth', did you mean 'weight'?"),
    ("version: 1\nsources:\n- shards: a\n  frobnicate: 2\n", "4:3", "unknown key 'frobnicate'; known are"),
    ("version: 1\nsourses:\n- a\n", "2:1", "unknown key 'sourses', did you mean 'sources'?"),
    (HEAD + "- urls: a\n", "3:3", "unknown key 'urls', did you mean 'shards'?"),
    (HEAD + "- Path: a\n", "3:3", "unknown key 'Path', did you mean 'shards'?"),
    (HEAD + "- shards: a\n  probability: 2\n", "4:3", "unknown key 'probability', did you mean 'weight'?"),
    (HEAD + "- shards: a\n  shuffle-buffer: 2\n", "4:3", "unknown key 'shuffle-buffer', did you mean 'shuffle'?"),
    (HEAD + "- shards: a\n  map: x\n", "4:3", "unknown key 'map', did you mean 'transforms'?"),
    ("dataset:\n- files: a\n", "2:3", "unknown key 'files', did you mean 'shards'?"),
    ("version: 1\ndatasets:\n- a\n", "2:1", "unknown key 'datasets', did you mean 'sources'?"),
    ("version: 1\ntrain: {sources: [a]}\n", "2:1", "a split stands under 'splits', as splits: {train: {sources: […]}}"),
    ("version: 1\nshards: a\n", "2:1", "'shards' belongs to a source: write sources: [{shards: …}]"),
    ("version: 1\nsplits: {train: {shards: a}}\n", "2:18", "'shards' belongs to a source"),
    (
        "version: 1\nsources: a.tar\n",
        "2:10",
        "expected a list of sources, as [{shards: 'a-{000..099}.tar'}], not 'a.tar'",
    ),
    ("version: 1\nsources: {web: {shards: a}}\n", "2:10", "expected a list of sources"),
    ("version: 1\nsplits: {}\n", "1:1", "without 'splits' and without 'sources': write sources: [a.tar]"),
    ("version: 2\nsources: [a]\n", "1:10", "expected one of 1, not 2"),
    ("mix: concat\nsources: [a]\n", "1:1", "version: 1"),
    ("version: 1\n", "1:1", "without 'splits' and without 'sources'"),
    ("version: 1\nsplits: {train: {mix: concat}}\n", "2:17", "a mix without 'sources'"),
    ("version: 1\nsplits: {train: {sources: []}}\n", "2:27", "a mix without sources"),
    ("version: 1\nsplits: {train: 3}\n", "2:17", "expected a mapping, as {sources: [a.tar]}, not 3"),
    ("version: 1\nsplits: {train: {sources: [a]}}\nsources: [b]\n", "2:9", "either 'splits' or"),
    ("version: 1\nmix: blend\nsources: [a]\n", "2:6", "expected one of interleave, exhaust"),
    ("version: 1\nmix: concat\nexhausted: restart\nsources: [a]\n", "3:12", "continues until all have ended"),
    ("version: 1\ntemperature: -1\nsources: [a]\n", "2:14", "expected a number of at least 0, not -1"),
    ("version: 1\ntemperature: .nan\nsources: [a]\n", "2:14", "expected a number"),
    (HEAD + "- shards: a\n  shards: b\n", "4:3", "duplicate key 'shards': it stands in line 3 already"),
    (HEAD + "- shards: a\n  weight: heavy\n", "4:11", "expected a number of at least 0, not 'heavy'"),
    (HEAD + "- shards: a\n  weight: true\n", "4:11", "expected a number"),
    (HEAD + "- shards: a\n  weight: 0\n", "3:1", "at least one weight must be above 0"),
    (HEAD + "- shards: 2020-01-01\n", "3:11", "in quotes, if one looks like a number or date"),
    (HEAD + "- shards: [a, 3]\n", "3:11", "expected a text or a list of texts"),
    (HEAD + "- shards: 'a{1..2'\n", "3:11", "braces do not close"),
    (HEAD + "- shards: 'a{0..99999999}{0..9}'\n", "3:11", "more than 10000000"),
    (HEAD + "- shards: 'a${NO_SUCH_VARIABLE}'\n", "3:11", "environment variable NO_SUCH_VARIABLE is not set"),
    (HEAD + "- weight: 1\n", "3:3", "a source has one of shards, wids, index, spec, energon, not none"),
    (HEAD + "- shards: a\n  wids: b.json\n", "3:3", "not shards and wids"),
    (HEAD + "- 7\n", "3:3", "a source is a mapping, or the url of its shards"),
    (HEAD + "- {name: x, shards: a}\n- {name: x, shards: b}\n", "4:3", "two sources are called 'x'"),
    (HEAD + "- shards: a\n  choose: 1\n  resample: 2\n", "5:3", "not both"),
    (HEAD + "- shards: a\n  choose: 1.5\n", "4:11", "expected a whole number of at least 1"),
    (HEAD + "- shards: a\n  subset: [0.5, 0.2]\n", "4:11", "expected two bounds in [0, 1]"),
    (HEAD + "- shards: a\n  subset: [0.5]\n", "4:11", "expected two bounds in [0, 1]"),
    (HEAD + "- shards: a\n  subsample: 1.5\n", "4:14", "expected a number above 0, at most 1"),
    (HEAD + "- shards: a\n  resample: 3\n  repeat: 2\n", "5:3", "'resample' says already"),
    (HEAD + "- shards: a\n  split: val\n", "4:3", "'split' goes with 'spec'"),
    (HEAD + "- shards: a\n  tags: [x]\n", "4:9", "expected a mapping, not ['x']"),
    (HEAD + "- shards: a\n  transforms: [{a: 1, b: 2}]\n", "4:15", "expected a list of names"),
    (HEAD + "- shards: a\n  transforms: ['os:system']\n", "4:15", "trust='full'"),
    (HEAD + "- spec: {sources: [a]}\n  choose: 3\n", "4:3", "'choose' belongs to shards"),
    (HEAD + "- spec: {sources: [a]}\n  repeat: 1.5\n", "4:3", "a whole number of times"),
    (HEAD + "- spec: {sources: [{shards: a, wieght: 1}]}\n", "3:32", "did you mean 'weight'"),
    (HEAD + "- spec: [a]\n", "3:9", "the path of a specification, or a mix"),
    (
        HEAD + "- spec: {version: 1, splits: {a: {sources: [x]}, b: {sources: [y]}}}\n",
        "3:9",
        "no split 'train', but a, b",
    ),
    (HEAD + "- spec: missing.yaml\n", "3:9", "missing.yaml"),
    (HEAD + "- wids: missing.json\n", "3:9", "missing.json"),
    (HEAD + "- energon: nowhere\n", "3:12", "energon prepare"),
    ("version: 1\nmix: shards\nsources:\n- {shards: a, rename: {x: y}}\n", "4:23", "mix: shards can keep apart"),
    ("version: 1\ndefaults: {wieght: 1}\nsources: [a]\n", "2:12", "did you mean 'weight'"),
    ("version: 1\ninclude: other.yaml\nsources: [a]\n", "2:10", "other.yaml"),
    (HEAD + "- shards: a\n  weight: !!int ''\n", "4:11", "'' is no value of the tag"),
    (HEAD + "- shards: a\n  weight: !!bool x\n", "4:11", "'x' is no value of the tag"),
    (HEAD + "- shards: a\n  tags: {day: !!timestamp x}\n", "4:15", "'x' is no value of the tag"),
    (HEAD + "- shards: a\n  weight: 2020-99-99\n", "4:11", "month must be in"),
    (HEAD + "- shards: a\n  weight: 0x" + "f" * 900 + "\n", "4:11", "expected a number of at least 0"),
    (HEAD + "- shards: a\n  weight: 1" + ":1" * 200_000 + "\n", "4:11", "a number of 400001 characters is not read"),
    (HEAD + "- shards: a\n  weight: 1" + ":1" * 200_000 + ".5\n", "4:11", "a number of 400003 characters"),
    (HEAD + "- shards: a\n  tags: {n: 0x" + "f" * 5000 + "}\n", "4:13", "a number of 5002 characters is not read"),
    ("a: [1\nb: 2\n", "2:2", "not YAML"),
    ("a: !!python/object/apply:os.system [touch owned]\n", "1:4", "the tag"),
    ("a: !!python/name:os.system ''\n", "1:4", "not YAML: could not determine a constructor"),
    ("a: &x [*x]\n", "1:4", "levels"),
    ("{a: " * 102 + "1" + "}" * 102, "1:405", "levels"),
    ("[" * 102 + "1" + "]" * 102, "1:102", "levels"),
    ("a: &x\n  <<: *x\n", "1:4", "levels"),
    ("? [a]\n: b\n", "1:3", "a key is a text"),
    ("<<: 3\n", "1:5", "'<<' takes a mapping"),
    ("- a\n", "1:1", "not a dataset specification"),
    ("x: 1\ny: 2\n", "1:1", "and this has 'x', 'y'"),
    ("", "1:1", "not a dataset specification"),
    ("dataset:\n- shards: a\n  extension: jpg\n", "3:3", "did you mean 'extensions'"),
    ("dataset:\n- shards: a\n  scale: [2, 1]\n", "3:10", "two numbers above 0"),
    ("dataset:\n- shards: a\n  scaleprob: 2\n", "3:14", "at most 1"),
    ("dataset:\n- probability: 2\n", "2:3", "has 'shards'"),
    ("dataset:\n- shards: a\n  weight: 2\n  probability: 2\n", "3:3", "the same"),
    ("A: x\ndataset: [a]\n", "1:1", "two domains"),
    ("datasets:\n- shards: a\n  perepoch: 3\n", "3:3", "unknown key 'perepoch'"),
    ("datasets:\n- shards: a\n  choose: 2\n", "1:1", "only 1 shards"),
    ("sources:\n- shards: a\n  convert: x\n", "3:3", "'convert' is not read"),
    ("sources:\n- weight: 1\n", "2:3", "has 'shards'"),
    ("sources: [a.tar]\n", "1:1", "without 'version: 1', 'sources' are read as those of tarmix"),
    ("__class__: MetadatasetV2\nsplits: {train: {join: [a]}}\n", "2:18", "'join' is not read"),
    ("__class__: MetadatasetV2\nsplits: {train: {blend: [{path: d, repetitions: 1}]}}\n", "2:36", "means nothing here"),
    ("__class__: MetadatasetV2\nsplits: {train: {blend: [{path: d, subset: {range: [0, 1]}}]}}\n", "2:36", "'subset'"),
    ("__class__: MetadatasetV2\nsplits: {train: {blend: 3}}\n", "2:25", "'blend' is a list"),
]


ONCE = [HEAD + "- urls: a\n", "dataset:\n- urls: a\n", "version: 1\nsources: a.tar\n"]


@pytest.mark.parametrize("text", ONCE)
def test_one_mistake_is_told_once(text, tmp_path):
    """What follows from it is not."""
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "spec.yaml")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("table", [schema.ROOT, schema.MIX, schema.OPTIONS, schema.SOURCE])
def test_a_hint_is_a_key(table):
    """No other name is a key itself where its hint is one, and each hint is known there."""
    for name in [name for others in syntax._OTHER_NAMES.values() for name in others.split()]:
        meant = syntax.meant_name(name, table.kinds)
        assert meant is None or meant in table.kinds
        assert name not in table.kinds or meant == name


@pytest.mark.parametrize(("text", "place", "message"), TABLE, ids=range(len(TABLE)))
def test_mistakes_have_places(text, place, message, tmp_path, monkeypatch):
    """Each mistake is told as file:line:column: message."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec("spec.yaml")
    here = [problem for problem in caught.value.problems if problem.startswith(f"spec.yaml:{place}: ")]
    assert any(message in problem for problem in here), caught.value.problems
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert isinstance(caught.value, UsageError)
    assert not (tmp_path / "owned").exists()


def test_all_at_once(tmp_path):
    """Several mistakes are told together, in one error."""
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + "- {shards: a, wieght: 1}\n- {shards: b, weight: -1, repeat: x}\n- shards: 'c${NOPE}'\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    places = sorted(problem.removeprefix(f"{path}:").partition(": ")[0] for problem in caught.value.problems)
    assert places == ["3:15", "4:23", "4:35", "5:11"]


def test_an_included_file_has_its_own_places(tmp_path):
    """Mistakes in nested specifications name the file that they are in."""
    (tmp_path / "inner.yaml").write_text(HEAD + "- {shards: a, wieght: 1}\n")
    (tmp_path / "outer.yaml").write_text(HEAD + "- spec: inner.yaml\n- {shards: a, reapeat: 1}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "outer.yaml")
    assert {problem.partition(": ")[0] for problem in caught.value.problems} == {
        f"{tmp_path}/inner.yaml:3:15",
        f"{tmp_path}/outer.yaml:4:15",
    }


JSON = [
    ('{"version": 1,\n "sources": [{"shards": "a",\n   "weigth": 2}]}', "3:4", "did you mean 'weight'"),
    ('{"version": 1, "sources": [{"shards": "a", "weight": -1}]}', "1:54", "at least 0"),
    ('{"version": 1,\n "version": 1, "sources": ["a"]}', "2:2", "duplicate key 'version'"),
    ('{"version": 1,\n "sources": ["a",]}', "2:17" if sys.version_info >= (3, 13) else "2:18", "not JSON"),
    ('{"version": 1\n "sources": ["a"]}', "2:2", "Expecting ',' delimiter"),
    ('{"version": NaN}', "1:13", "NaN"),
    ('{"version": 1} x', "1:16", "Extra data"),
    ("{version: 1}", "1:2", "double quotes"),
    ('{"version": 1, "sources": ["a\n"]}', "1:30", "not JSON"),
    ("", "1:1", "not JSON"),
    # since 3.14 it is parsed to its end
    ("[" * 50_000, *(("1:50001", "not JSON") if sys.version_info >= (3, 14) else ("1:1", "levels"))),
    ("[" * 200 + "]" * 200, "1:102", "levels"),
    ('{"version": 1,\n\t"sources": ["a", {"shards": "\\ud83d\\ude00 \\"}{", "weight": -1e0}]}', "2:61", "at least 0"),
    ('{"version": 1, "sources": [{"shards": "a", "weight": 1' + "0" * 400 + "}]}", "1:54", "at least 0"),
    ('{"version": ' + "1" * 9999 + "}", "1:13", "digits"),
    ('{"a": 1}', "1:1", "not a dataset specification"),
    ('{"files": {"a.txt": {"offset": 512, "size": 3}}}', "1:1", "wids_version"),
    ("[1, 2]", "1:1", "not a dataset specification"),
]


@pytest.mark.parametrize(("text", "place", "message"), JSON, ids=range(len(JSON)))
def test_json_mistakes_have_places(text, place, message, tmp_path):
    """JSON files are told with line and column, too."""
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    here = [problem for problem in caught.value.problems if problem.startswith(f"{path}:{place}: ")]
    assert any(message in problem for problem in here), caught.value.problems


def test_json_that_is_not_text(tmp_path):
    """Bytes that are no UTF-8 are refused; a byte order mark is not."""
    (tmp_path / "a.json").write_bytes(b'{"version": "\xff"}')
    with pytest.raises(SpecError, match=r"a\.json:1:1: not JSON"):
        load_spec(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(b'\xef\xbb\xbf{"version": 1, "sources": ["a"]}')
    assert load_spec(tmp_path / "b.json").split().sources[0].shards == (f"{tmp_path}/a",)


def test_python_dictionaries_have_paths():
    """Mistakes in a dictionary are told with the path to them."""
    with pytest.raises(SpecError, match=r"^specification\.splits\.train\.sources\[1\]\.wieght: unknown key 'wieght'"):
        load_spec({"version": 1, "splits": {"train": {"sources": ["a", {"shards": "b", "wieght": 1}]}}})
    loop: dict[str, Any] = {"version": 1}
    loop["sources"] = [loop]
    with pytest.raises(SpecError, match="levels deep"):
        load_spec(loop)


def test_circles(tmp_path):
    """Specifications that name each other, or themselves, are refused."""
    (tmp_path / "a.yaml").write_text(HEAD + "- spec: b.yaml\n")
    (tmp_path / "b.yaml").write_text("version: 1\ninclude: ./a.yaml\n")
    for name in ("a.yaml", "b.yaml"):
        with pytest.raises(SpecError, match="name each other in a circle"):
            load_spec(tmp_path / name)


def test_too_many_levels(tmp_path):
    """A chain of specifications has an end."""
    for number in range(30):
        (tmp_path / f"{number}.yaml").write_text(HEAD + f"- spec: {number + 1}.yaml\n")
    with pytest.raises(SpecError, match="nested more than 20 deep"):
        load_spec(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    "line",
    [
        "&{n} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]",
        "&{n} {{<<: [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]}}",
    ],
)
def test_aliases_that_multiply(line, tmp_path):
    """A few lines of aliases do not become a billion values."""
    first = "l0: &l0 [a, b]\n" if "<<" not in line else "l0: &l0 {a: b}\n"
    lines = [f"l{n}: " + line.format(n=f"l{n}", p=f"l{n - 1}") + "\n" for n in range(1, 12)]
    (tmp_path / "bomb.yaml").write_text(first + "".join(lines))
    with pytest.raises(SpecError, match="more than 300000 values"):
        load_spec(tmp_path / "bomb.yaml")


@pytest.mark.limited
def test_too_large(tmp_path):
    """A file of more than 64 MiB is not read into memory."""
    with (tmp_path / "large.yaml").open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(SpecError, match="64 MiB"):
        load_spec(tmp_path / "large.yaml")


def test_nothing_there(tmp_path):
    """A missing file is a NotFound."""
    with pytest.raises(NotFound):
        load_spec(tmp_path / "none.yaml")


def test_problems_survive_a_pickle(tmp_path):
    """A worker's error keeps its list of mistakes and its class."""
    import pickle

    with pytest.raises(UnsafeSpec) as caught:
        load_spec({"version": 1, "sources": ["pipe:x"]}, url="https://h/x.yaml")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.problems == caught.value.problems
    assert isinstance(copy, UnsafeSpec)
    assert json.dumps(copy.problems)
