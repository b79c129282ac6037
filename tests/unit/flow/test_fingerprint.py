"""What a state is checked against tells datasets apart by their objects and by the members that they take."""

import functools
import http.server
import io
import json
import os
import subprocess
import sys
import threading

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch
from webdataset.flow.fingerprint import fingerprint
from webdataset.flow.run import Bounds
from webdataset.loading.torch_distributed import compute_rank_fingerprint
from webdataset.samples.sample_reader import Reading
from webdataset.stages.read_shards import ReadShards


def described(urls=("a.tar",), **options):
    """Return the description of a dataset."""
    return fingerprint(wds.WebDataset(list(urls), shardshuffle=False, **options).pipeline, Bounds())


def texts(name):
    """Choose texts."""
    return name.endswith(".txt")


def numbers(name):
    """Choose numbers."""
    return name.endswith(".cls")


def ending(wanted):
    """Return a function that chooses by an extension."""
    return lambda name: name.endswith(wanted)


def chosen(name, wanted=(".txt",)):
    """Choose by extensions."""
    return name.endswith(wanted)


PAIRS = {
    "function": (texts, numbers),
    "none": (texts, None),
    "lambda": (lambda name: name.endswith(".txt"), lambda name: name.endswith(".cls")),
    "method of a lambda": (lambda name: name.islower(), lambda name: name.isupper()),
    "number in a lambda": (lambda name: len(name) > 3, lambda name: len(name) > 4),
    "in": (lambda name: name in {"a", "b"}, lambda name: name in {"a", "c"}),
    "closure": (ending(".txt"), ending(".cls")),
    "partial": (functools.partial(chosen, wanted=(".txt",)), functools.partial(chosen, wanted=(".cls",))),
    "partial of another": (functools.partial(texts), functools.partial(numbers)),
    "held function": (functools.partial(filter, texts), functools.partial(filter, numbers)),
}


@pytest.mark.parametrize("option", ["select_files", "rename_files"])
@pytest.mark.parametrize("pair", PAIRS)
def test_functions_on_members_are_described(option, pair):
    """Another selection or renaming is another dataset, whatever kind of function it is."""
    one, other = PAIRS[pair]
    assert described(**{option: one}) == described(**{option: one})
    assert described(**{option: one}) != described(**{option: other})


class Numbers:
    """A source that is no pipeline."""

    def __iter__(self):
        return iter([{"n": 1}])


def test_what_is_mixed_is_described():
    """The sources of a mix stand behind it, also those that are no pipelines."""
    for source in (Numbers(), wds.SimpleShardList(["a.tar"])):
        mix = wds.DataPipeline(wds.RandomMix([source, source]))
        (alone,) = fingerprint(wds.DataPipeline(source).pipeline, Bounds())["stages"]
        assert fingerprint(mix.pipeline, Bounds())["stages"][1:] == [alone, alone]


def test_the_same_function_written_elsewhere_is_the_same():
    """Neither the line nor the object counts: what is loaded again from a file that was edited is the same."""
    made = [{}, {}]
    exec("f = lambda name: name.endswith('.txt')", made[0])  # noqa: S102  two texts of one function
    exec("\n\n# a remark\nf = lambda name: name.endswith('.txt')", made[1])  # noqa: S102  the same
    assert described(select_files=made[0]["f"]) == described(select_files=made[1]["f"])
    assert described(select_files=ending(".txt")) == described(select_files=ending(".txt"))


@pytest.mark.parametrize("options", [{"select_files": ending("secret-7")}, {"rename_files": lambda name: "secret-7"}])  # noqa: ARG005
def test_what_functions_hold_is_not_shown(options):
    """A description holds no text out of a function."""
    assert "secret-7" not in json.dumps(described(**options))


def test_rules_of_reading_are_described():
    """Extensions and the rule for duplicates decide what a sample is."""
    found = [
        fingerprint([["a"], ReadShards(Reading(**rules))], Bounds())["stages"][1]
        for rules in ({}, {"suffixes": ["txt"]}, {"suffixes": ["cls"]}, {"duplicates": "new"}, {"lcase": False})
    ]
    assert len(set(found)) == len(found)


PROBE = """
import json
from webdataset.flow.fingerprint import identify_function
print(json.dumps([
    identify_function(lambda name: name in {"a", "b", "c"} and len(name) > 3),
    identify_function(lambda name, ends=("x", "y"): any(name.endswith(end) for end in ends)),
]))
"""


def test_functions_are_called_alike_in_other_processes():
    """Names do not depend on the process and its hash seed."""

    def probed(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", PROBE], env=environment, check=True, capture_output=True).stdout  # noqa: S603

    assert probed("1") == probed("2")
    assert probed("1").count(b"#") == 2


@pytest.fixture
def urls(tmp_path):
    """Two shards with two kinds of members."""
    for number in range(2):
        with wds.TarWriter(str(tmp_path / f"{number}.tar")) as sink:
            for index in range(8):
                sink.write({"__key__": f"{number}-{index}", "txt": "x", "cls": 3})
    return str(tmp_path / "{0..1}.tar")


def test_a_state_of_another_selection_is_refused(urls):
    """The message names both functions."""
    make = lambda select: wds.WebDataset(urls, shardshuffle=False, seed=1, select_files=select).elastic(2)
    run = iter(make(texts))
    next(run)
    state = run.state_dict()
    assert len(list(make(texts).elastic_run(state=state))) == 15
    with pytest.raises(StateMismatch, match="select_files='texts'.*here.*select_files='numbers'"):
        make(numbers).load_state_dict(state)


class Versions(http.server.BaseHTTPRequestHandler):
    """One path, and a shard for each ``v`` in the query."""

    def do_GET(self):
        """Answer with the shard of the version."""
        version = self.path.partition("v=")[2][:1]
        stream = io.BytesIO()
        with wds.TarWriter(stream) as sink:
            for index in range(6):
                sink.write({"__key__": f"{version}-{index}", "txt": "x"})
        body = stream.getvalue()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server():
    """A server of versions."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Versions) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/x.tar"
        serving.shutdown()
        thread.join()


def test_versions_of_one_object(server):
    """A state goes on under a new signature, and not with other versions, or the same in another order."""
    make = lambda *queries: (
        wds.WebDataset([f"{server}?{query}" for query in queries], shardshuffle=False, seed=1)
        .map(lambda sample: sample["__key__"])
        .elastic(1)
    )
    run = iter(make("v=1&sig=a", "v=2&sig=a"))
    seen = [next(run) for _ in range(8)]
    state = run.state_dict()
    run.close()
    assert "sig" not in json.dumps(state)
    again = list(make("v=1&sig=b", "v=2&sig=b").elastic_run(state=state))
    assert seen + again == [f"{version}-{index}" for version in (1, 2) for index in range(6)]
    for queries in (("v=2&sig=a", "v=1&sig=a"), ("v=1&sig=a", "v=3&sig=a")):
        with pytest.raises(StateMismatch, match="urls"):
            make(*queries).load_state_dict(state)


def test_shards_that_moved(urls, tmp_path, monkeypatch):
    """A state is not loaded for shards of another place; the message says how it is, and that way works."""
    make = lambda urls: wds.WebDataset(urls, shardshuffle=False, seed=1).map(lambda s: s["__key__"]).elastic(2)
    run = iter(make(urls))
    seen = [next(run) for _ in range(5)]
    state = run.state_dict()
    run.close()
    (tmp_path / "new").mkdir()
    for shard in tmp_path.glob("*.tar"):
        shard.rename(tmp_path / "new" / shard.name)
    with pytest.raises(StateMismatch, match=r"other names or places.*map them with WDS_REWRITE"):
        make(str(tmp_path / "new" / "{0..1}.tar")).load_state_dict(state)
    monkeypatch.setenv("WDS_REWRITE", f"{tmp_path}/={tmp_path}/new/")
    again = make(urls)
    again.load_state_dict(state)
    assert sorted(seen + list(again)) == sorted(f"{number}-{index}" for number in range(2) for index in range(8))


def test_ranks_with_other_versions_differ():
    """What ranks compare tells versions apart, and not signatures."""
    make = lambda *queries: compute_rank_fingerprint(
        wds.WebDataset([f"http://h/x?{query}" for query in queries], seed=1)
    )
    assert make("v=1&sig=a", "v=2") == make("v=1&sig=b", "v=2")
    assert make("v=1", "v=2") != make("v=1", "v=3")


class Growing:
    """A value that adds an attribute to its stage when it is looked at, as another thread may at that moment."""

    def __init__(self, stage):
        self._stage = stage

    def _grow(self):
        setattr(self._stage, f"added_{len(vars(self._stage))}", 1)

    def __getattribute__(self, name):
        """``isinstance`` asks for ``__class__``."""
        if name == "__class__":
            self._grow()
        return super().__getattribute__(name)

    def __repr__(self):
        self._grow()
        return "growing"


@pytest.mark.parametrize("look", ["fingerprint", "explain"])
def test_attributes_that_come_meanwhile(look):
    """Another thread begins a run of the same dataset: its stages get attributes while they are described."""
    dataset = wds.WebDataset("a.tar", shardshuffle=False).shuffle(10)
    stage = dataset.pipeline[-1]
    stage.value = Growing(stage)
    before = len(vars(stage))
    if look == "fingerprint":
        assert fingerprint(dataset.pipeline, Bounds())
    else:
        assert "shuffle" in dataset.explain()
    assert len(vars(stage)) > before
