"""The list ``dataset.pipeline``, which programs slice and look into, against the published versions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds

pytestmark = pytest.mark.oracle

ORACLES = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}

CODE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import webdataset as wds

ROLES = {"single_node_only": "node", "split_by_node": "node", "split_by_worker": "worker", "check_empty": "check"}
OURS = {"Shuffle": "shuffle", "DetShuffle": "shuffle", "detshuffle": "shuffle", "TarSamples": "read"}

def role(stage):
    name = getattr(stage, "__name__", type(stage).__name__)
    if name in ("StreamingOpen", "FileCache"):
        return "open"
    for part, known in (("tar_file_expander", "members"), ("group_by_keys", "group"), ("tarfile", "read"),
                        ("shuffle", "shuffle")):
        if part in repr(stage):
            return known
    return ROLES.get(name) or OURS.get(name) or ("list" if name.endswith(("List", "Shards")) else name)

def roles(given):
    options = {name: getattr(wds, value) if isinstance(value, str) else value for name, value in given.items()}
    try:
        return [role(stage) for stage in wds.WebDataset("s-{0..3}.tar", **options).pipeline]
    except TypeError:
        return None

def added(name, arguments, options):
    dataset = wds.WebDataset("s-{0..3}.tar")
    return len(getattr(dataset, name)(*arguments, **options).pipeline) - len(dataset.pipeline)

cases, stages = json.loads(sys.argv[1])
def by_hand():
    objects = wds.WebDataset(wds.SimpleShardList("s.tar")).pipeline
    return [role(stage) for stage in objects]
try:
    given = by_hand()
except AssertionError:
    given = None
print(json.dumps([[roles(case) for case in cases], [added(*stage) for stage in stages], given]))
"""

CASES = [
    {**shuffle, **resampled, **node, **detshuffle}
    for shuffle in ({}, *({"shardshuffle": size} for size in (False, 0, True, 10)))
    for resampled in ({}, {"resampled": True})
    for node in ({}, {"nodesplitter": "split_by_node"}, {"nodesplitter": None})
    for detshuffle in ({}, {"detshuffle": True})
]
STAGES = [
    ("shuffle", [3], {}), ("shuffle", [0], {}), ("decode", [], {}), ("batched", [2], {}), ("unbatched", [], {}),
    ("to_tuple", ["txt"], {}), ("slice", [3], {}), ("rename", [], {"a": "txt"}), ("rsample", [0.5], {}),
    ("rename_keys", [], {"a": "txt"}), ("extract_keys", ["*.txt"], {}), ("xdecode", [], {}), ("mcached", [], {}),
    ("log_keys", [], {}), ("with_epoch", [3], {}), ("repeat", [2], {}), ("with_length", [3], {}), ("unlisted", [], {}),
]  # fmt: skip
READS = ["open", "members", "group", "check"]


def asked(interpreter):
    """What one interpreter says."""
    command = [interpreter, "-c", CODE, json.dumps([CASES, STAGES])]
    paths = {"PYTHONPATH": str(Path(wds.__file__).parents[1])} if interpreter == sys.executable else {}
    environment = {"PATH": os.environ["PATH"], **paths}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, env=environment)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ours():
    """The lists of this library."""
    return asked(sys.executable)


@pytest.fixture(scope="module", params=ORACLES)
def published(request):
    """A published version and its lists."""
    interpreter = os.environ.get(ORACLES[request.param])
    if not interpreter:
        pytest.skip(f"{ORACLES[request.param]} names no interpreter with webdataset {request.param}")
    return request.param, asked(interpreter)


def test_the_stages_of_a_dataset(ours, published):
    """Those of 0.2.86, in number and kind; of 1.0.2, where its four stages that read are the reader.

    A splitter that is None leaves no stage, as in 1.0.2. Resampled shards are neither split nor shuffled, as in 0.2.86.
    """
    version, (theirs, added, of_object) = published
    for case, mine, other in zip(CASES, ours[0], theirs, strict=True):
        if version == "0.2.86":
            expected = [name for name in other if name != "NoneType"]
        else:
            expected = [*other[: other.index("open")], "read"]
            if case.get("resampled"):
                expected = ["list", "read"]
        assert mine == expected, case
        assert version == "0.2.86" or other[other.index("open") :] == READS
    assert ours[1] == added
    assert of_object in (ours[2], None)
