"""The small functions of the compatibility modules: results of the published versions, and what is safer here."""

import itertools
import os
import random
import re

import numpy as np
import pytest

import webdataset as wds
from webdataset import compat, filters, mix, pipeline, shardlists, tariterators, utils, writer
from webdataset.core.errors import NoSamples, NoShards, SampleError, UsageError


def test_weights_of_sources():
    """Number times weight, the largest 1; no sources is an error that says so."""
    assert utils.compute_sample_weights([(10, 1), (20, 1)]).tolist() == [0.5, 1.0]
    assert utils.compute_sample_weights([(10, 2.0), (20, 1), (5, 0.5)]).tolist() == [1.0, 1.0, 0.125]
    with pytest.raises(UsageError, match="no sources"):
        utils.compute_sample_weights([])


def test_patterns_with_braces(tmp_path, monkeypatch):
    """Braces are alternatives, for names and for files."""
    names = ("x.tar", "x.tgz", "x.zip", "tar")
    assert [utils.fnmatch_with_braces(name, "*.{tar,tgz}") for name in names] == [True, True, False, False]
    monkeypatch.chdir(tmp_path)
    for name in ("a1.tar", "a2.tar", "b.tgz", "c.zip"):
        (tmp_path / name).touch()
    assert utils.glob_with_braces("*.{tar,tgz}") == ["a1.tar", "a2.tar", "b.tgz"]
    assert utils.glob_with_braces("a{1..3}.tar") == ["a1.tar", "a2.tar"]


def test_marks_on_functions_and_classes():
    """Calls warn with the published message; what is marked obsolete still works."""

    def old(x):
        return x + 1

    class Old:
        def __init__(self, x):
            self.x = x

    with pytest.warns(DeprecationWarning, match=r"Call to deprecated function old\.$"):
        assert utils.deprecated(old)(1) == 2
    with pytest.warns(DeprecationWarning, match="Reason: use z"):
        assert utils.deprecated("use z")(old)(1) == 2
    with pytest.warns(DeprecationWarning, match="Reason: because"):
        assert utils.obsolete(reason="because")(old)(1) == 2
    with pytest.warns(DeprecationWarning, match="Old"):
        assert utils.obsolete(Old)(3).x == 3
    assert issubclass(utils.ObsoleteException, Exception)


def test_nothing_executes_text(tmp_path):
    """safe_eval refuses, whatever it is given."""
    for text, template in (("3", "{}+1"), ("abc", "{}"), ("1", f"open({str(tmp_path / 'x')!r}, 'w').write(str({{}}))")):
        with pytest.raises(UsageError, match="literal_eval"):
            utils.safe_eval(text, template)
    assert not (tmp_path / "x").exists()


def test_repeated_loaders():
    """repeatedly0 bounds each pass, and ends where a pass is empty."""
    assert list(utils.repeatedly0([1, 2], nepochs=2)) == [1, 2, 1, 2]
    endless = utils.repeatedly0([1, 2, 3, 4], nbatches=3)
    assert list(itertools.islice(endless, 8)) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert list(utils.repeatedly0([])) == []


def test_texts_of_shard_expressions(monkeypatch):
    """Names in braces come from the environment under WDS_, shell names from the environment itself."""
    with pytest.raises(ValueError, match="WDS_X"):
        shardlists.envsubst("a${X}b")
    monkeypatch.setenv("WDS_X", "val")
    assert shardlists.envsubst("a${X}b") == "avalb"
    assert shardlists.envlookup(re.match(r"\$\{(\w+)\}", "${X}")) == "val"
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("X", raising=False)
    assert shardlists.expand("~/a$X${HOME}") == "/home/me/a$X/home/me"


def test_names_of_claimed_files():
    """Which process holds a file, and what it was called."""
    assert [shardlists.get_pid_from_filename(name) for name in ("a.tar._123_", "a.tar")] == [123, None]
    assert shardlists.check_pid_is_running(os.getpid())
    assert not shardlists.check_pid_is_running(99999999)
    assert [shardlists.without_last_extension(name) for name in ("a.tar._123_", "a", "a/b.c", "a.b/c")] == [
        "a.tar", "a", "a/b", "a.b/c"
    ]  # fmt: skip


def test_lists_of_shards_as_a_function():
    """In order, or shuffled (which failed in the published versions); an empty list says so."""
    assert [shard["url"] for shard in tariterators.shardlist("a{0..3}")] == ["a0", "a1", "a2", "a3"]
    shuffled = [shard["url"] for shard in tariterators.shardlist("a{0..30}", shuffle=True)]
    assert sorted(shuffled) == sorted(f"a{n}" for n in range(31)) != shuffled
    with pytest.raises(NoShards):
        tariterators.shardlist([])


def test_dicts_by_place():
    """Each undoes the other; other keys are an error."""
    assert filters.dict2tuple({1: "b", 0: "a"}) == ("a", "b")
    assert filters.tuple2dict([5, 6]) == {0: 5, 1: 6}
    with pytest.raises(SampleError, match="0 to 0"):
        filters.dict2tuple({"0": 1})  # type: ignore[dict-item]


def test_mixes_as_functions():
    """In turn and by chance, of lists and of iterators."""
    sources = [1, 1, 1], [2], [3, 3]
    assert list(mix.round_robin_shortest(*sources)) == [1, 2, 3, 1]
    assert list(mix.round_robin_longest(*map(iter, sources))) == [1, 2, 3, 1, 3, 1]
    random.seed(1)
    assert list(mix.random_samples([[1, 2], [3, 4]], [1, 0])) == [1, 2]
    assert sorted(mix.random_samples([iter([1, 2]), iter([3, 4])], longest=True)) == [1, 2, 3, 4]


def test_invoking_one_stage():
    """A source alone, a stage over a source, a PipelineStage, keyword arguments."""
    made = wds.DataPipeline()

    class Doubled(wds.PipelineStage):
        def run(self, src):
            return (2 * item for item in src)

    assert list(made.invoke([1, 2])) == [1, 2]
    assert list(made.invoke(lambda src: map(str, src), iter([1, 2]))) == ["1", "2"]
    assert list(made.invoke(Doubled(), iter([1, 2]))) == [2, 4]
    assert list(made.invoke(filters._batched, iter([1, 2, 3]), batchsize=2, collation_fn=None)) == [[1, 2], [3]]


def test_adding_a_length():
    """A pipeline with a size gets a len, in place, and keeps its class and pickle."""
    dataset = wds.DataPipeline([1, 2])
    dataset.size = 7
    assert pipeline.add_length_method(dataset) is dataset
    assert len(dataset) == 7
    assert isinstance(dataset, wds.DataPipeline)


def test_checking_for_samples():
    """The stage behind empty_check, as a function."""
    assert list(compat.check_empty(iter([1, 2]))) == [1, 2]
    with pytest.raises(NoSamples, match="fewer shards than workers"):
        list(compat.check_empty(iter([])))


def test_encoders_by_name():
    """Each gives what its decoder takes."""
    assert [writer.bytestr(value) for value in (b"a", "é", 5)] == [b"a", "é".encode(), b"5"]
    assert writer.mp_dumps({"a": 1}) == b"\x81\xa1a\x01"
    pytest.importorskip("cbor2")
    assert writer.cbor_dumps({"a": 1}) == b"\xa1aa\x01"
    stream = writer.tenbin_dumps([np.zeros(3, "f4")])
    assert len(stream) == 160
    assert wds.autodecode.tenbin_loads(stream)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("scheme", ["htgs"])
def test_schemes_without_a_reader(scheme):
    """They stand in the table, as in 1.0.2, and say the way out; they are not among those that are served."""
    assert wds.gopen_schemes[scheme] is getattr(wds.gopen, f"gopen_{scheme}")
    with pytest.raises(UsageError, match="meanwhile write") as caught:
        wds.gopen(f"{scheme}://x/y.tar")
    served = str(caught.value).partition("Served are:")[2].partition(";")[0]
    assert scheme not in served.replace(",", " ").split()
    assert "https" in served
