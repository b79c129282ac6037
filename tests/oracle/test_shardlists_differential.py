"""Shard lists against the published versions 0.2.86 and 1.0.2, each run in an interpreter of its own."""

import json
import os
import subprocess
from itertools import islice

import pytest

from webdataset import shardlists, utils

pytestmark = pytest.mark.oracle

VERSIONS = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
SEEDS = [None, 0, 1, 17, -1, 2**40, 3.5, "text"]
EXPRESSIONS = [
    "a",
    "a::b",
    "a-{0..2}.tar",
    "a-{000..012}.tar::b",
    "${FOO}.tar",
    "${A}::${FOO}",
    "pipe:cat {1..2} | x",
    "a{}",
    "pipe:awk {print}",
    "",
    " a :: b ",
    "a::",
    "{a,b}::c",
    "a,b",
    "http://h/a?x={1,2}",
    "x{1..3..2}",
    "x{a..c}",
    "a{1..2}{3,4}",
    'pipe:python -c "print({1:2})"',
]
PLACES = [(0, 1, 0, 1), (0, 2, 0, 1), (1, 2, 1, 3), (3, 5, 2, 7)]
MIXTURES = [
    {"datasets": [{"shards": "a{0..9}"}]},
    {"prefix": "p/", "datasets": [{"shards": "a{0..9}", "choose": 4}, {"shards": ["b{0..1}", "c"], "resample": 6}]},
    {"buckets": ["gs://b"], "datasets": [{"shards": "a{0..3}", "buckets": ["/x/"]}, {"shards": "k", "choose": 1}]},
]
ENVIRONMENT = {"WDS_FOO": "bar-{0..1}", "WDS_A": "${B}", "WDS_B": "x", "ALLOW_OBSOLETE": "1"}

# Runs in the oracle and here: what each version says about the same questions, as JSON.
QUESTIONS = """
def answers(shardlists, utils, islice, os, case):
    def order(shards, count=None):
        return [shard["url"] for shard in islice(shards, count)]

    def mixture(spec, seed):
        shards = shardlists.MultiShardSample(spec)
        shards.set_epoch(seed)
        return [order(shards) for _ in range(3)]

    def split(name, place):
        os.environ.update(zip(("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"), map(str, place)))
        found = list(getattr(shardlists, name)(iter(range(40))))
        found += [list(utils.pytorch_worker_info()), utils.pytorch_worker_seed()]
        for variable in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
            del os.environ[variable]
        return found

    def draws(place, arguments):
        shards = shardlists.ResampledShards("s-{0..9}", deterministic=True, **arguments)
        return [order(shards, 30) for _ in range(passes)]

    passes = case["passes"]
    return {
        "expand": [shardlists.expand_urls(text) for text in case["expressions"]],
        "simple": [order(shardlists.SimpleShardList("s-{0..19}", seed=seed)) for seed in case["seeds"]],
        "resampled": draws(None, {}),
        "positional": [order(shardlists.ResampledShards(*arguments)) for arguments in case["positional"]],
        "split": [split(name, place) for name in ("split_by_node", "split_by_worker") for place in case["places"]],
        "mixtures": [mixture(spec, seed) for spec in case["mixtures"] for seed in (0, 7)],
        "make_seed": [utils.make_seed(*parts) for parts in case["parts"]],
        "repeatedly": [list(utils.repeatedly([1, 2, 3], **limits)) for limits in ({"nepochs": 2}, {"nbatches": 5})],
    }
"""
ASKED = """
import contextlib, io, json, os, sys
from itertools import islice
case = json.loads(sys.argv[1])
if case["positional"] == "seeded":
    case["positional"] = [("s-{0..9}", 20, 3, lambda: 5, True)]
else:
    case["positional"] = [("s-{0..9}", 20, lambda: 5, True), ("s-{0..9}", 20, None, True)]
with contextlib.redirect_stderr(io.StringIO()):
    from webdataset import shardlists, utils
    found = answers(shardlists, utils, islice, os, case)
print(json.dumps(found))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_agree(version, monkeypatch):
    """Expansion, seeded orders, draws, splits, mixtures and seeds are those of the published version."""
    python = os.environ.get(VERSIONS[version])
    if not python:
        pytest.skip(f"{VERSIONS[version]} does not name an interpreter with webdataset {version}")
    newer = version == "1.0.2"
    case = {
        "expressions": EXPRESSIONS,
        "seeds": SEEDS,
        "places": PLACES,
        "mixtures": MIXTURES,
        "positional": "seeded" if newer else "legacy",
        "passes": 3 if newer else 1,
        "parts": [[1, 2], [0], [], [1.5], [17, 3], [2**70], [-5, 7]],
    }
    shown = subprocess.run(
        [python, "-c", QUESTIONS + ASKED, json.dumps(case)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ENVIRONMENT},
    )
    expected = json.loads(shown.stdout)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    seeded = [("s-{0..9}", 20, 3, lambda: 5, True)]
    legacy = [("s-{0..9}", 20, lambda: 5, True), ("s-{0..9}", 20, None, True)]
    space = {}
    exec(QUESTIONS, space)
    found = space["answers"](shardlists, utils, islice, os, {**case, "positional": seeded if newer else legacy})
    assert json.loads(json.dumps(found)) == expected


def test_draws_of_0_2_86_in_later_passes():
    """Leaving the seed out gives the draws of 0.2.86 in every pass, also for keyword arguments."""
    python = os.environ.get(VERSIONS["0.2.86"])
    if not python:
        pytest.skip("WDS_ORACLE_086 does not name an interpreter with webdataset 0.2.86")
    code = (
        "import json\nfrom webdataset.shardlists import ResampledShards\n"
        "s = ResampledShards('s-{0..9}', 20, deterministic=True)\n"
        "print(json.dumps([[x['url'] for x in s] for _ in range(5)]))"
    )
    shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    shards = shardlists.ResampledShards("s-{0..9}", 20, seed=None, deterministic=True)
    assert [[shard["url"] for shard in shards] for _ in range(5)] == json.loads(shown.stdout)
