"""Specification files against the published versions: MultiShardSample's files, and wids indexes."""

import json
import os
import subprocess
from collections import Counter

import pytest

import webdataset as wds

pytestmark = pytest.mark.oracle

VERSIONS = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
FILES = [
    "datasets: [{shards: 'a-{0..3}.tar'}]\n",
    (
        "prefix: $FOLDER/\n"
        "datasets: [{name: x, shards: 'a-{0..3}.tar', choose: 2}, {shards: [b-0.tar, b-1.tar], resample: 5}]\n"
    ),
    (
        "buckets: [$FOLDER/]\ndatasets:\n"
        "- {shards: a-0.tar, buckets: ['$FOLDER']}\n- {shards: 'b-{0..1}.tar', choose: 1}\n"
    ),
    "datasets:\n- shards: ['$FOLDER/a-{0..1}.tar', '${FOLDER}/b-0.tar']\n  resample: 4\n",
    "datasets: [{shards: a-0.tar, perepoch: 2}]\n",
    "datasets: [{shards: 'a-{0..3}.tar', choose: 5}]\n",
    "datasets: [{shards: 'a-{0..3}.tar', choose: 2, resample: 2}]\n",
    "extra: 1\ndatasets: [{shards: a-0.tar}]\n",
]
QUESTION = """
import contextlib, io, json, sys
with contextlib.redirect_stderr(io.StringIO()):
    import webdataset as wds
    from webdataset.shardlists import MultiShardSample
    answers = []
    for name in json.loads(sys.argv[1]):
        try:
            shards = MultiShardSample(name)
        except Exception:
            answers.append(None)
            continue
        shards.set_epoch(5)
        answers.append([[shard["url"] for shard in shards] for _ in range(3)])
print(json.dumps(answers))
"""
INDEX = """
import json, sys, wids
dataset = wids.ShardListDataset(sys.argv[1], keep=True)
print(json.dumps([dataset[n]["__key__"] for n in range(len(dataset))]))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Six small shards, and the files above."""
    for name, count in (("a", 4), ("b", 2)):
        for number in range(count):
            with wds.TarWriter(str(tmp_path / f"{name}-{number}.tar")) as sink:
                for index in range(3):
                    sink.write({"__key__": f"{name}{number}{index}", "txt": "x"})
    for number, text in enumerate(FILES):
        (tmp_path / f"{number}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    return tmp_path


def asked(variable, code, *arguments):
    """Return what a published version prints, as JSON."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} does not name an interpreter with a published version")
    environment = {**os.environ, "ALLOW_OBSOLETE": "1"}
    shown = subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(shown.stdout.splitlines()[-1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.usefixtures("folder")
def test_files_of_multi_shard_sample(version):
    """After set_epoch the same shards in the same order; what a published version refuses is refused."""
    names = [f"{number}.yaml" for number in range(len(FILES))]
    expected = asked(VERSIONS[version], QUESTION, json.dumps(names))
    assert sum(answer is None for answer in expected) == 4
    for name, passes in zip(names, expected, strict=True):
        if passes is None:
            for read in (wds.MultiShardSample, wds.load_spec, wds.WebDataset):
                with pytest.raises(ValueError):
                    read(name)
            continue
        shards = wds.WebDataset(name).pipeline[0]
        shards.set_epoch(5)
        assert [[shard["url"] for shard in shards] for _ in range(3)] == passes
        sources = wds.load_spec(name).split().sources
        known = {url for source in sources for url in source.urls()}
        assert all(url in known for each in passes for url in each)
        lists = wds.from_spec(name).pipeline[0].datasets[0].pipeline[0]
        assert len(lists) == len(passes[0])


@pytest.mark.usefixtures("folder")
def test_files_read_to_the_end():
    """Through WebDataset and through load_spec, each pass reads as many samples of each dataset."""
    for number in range(4):
        counts = [
            Counter(sample["__key__"][0] for sample in dataset)
            for dataset in (wds.WebDataset(f"{number}.yaml"), wds.from_spec(f"{number}.yaml"))
        ]
        assert sum(counts[0].values()) == sum(counts[1].values()) > 0
        if number != 3:  # there, one draw is over shards of both
            assert counts[0] == counts[1]


def test_an_index_in_its_order(folder):
    """A wids index is read in the order in which the published wids numbers its samples."""
    shards = [{"url": f"{folder}/{name}", "nsamples": 3} for name in ("a-0.tar", "a-2.tar", "b-1.tar")]
    (folder / "index.json").write_text(
        json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards})
    )
    expected = asked("WDS_ORACLE_111", INDEX, str(folder / "index.json"))
    assert [sample["__key__"] for sample in wds.WebDataset(str(folder / "index.json"))] == expected
