"""The package ``wids`` as the published versions 0.2.86 and 0.2.111 have it, but for the deviations listed.

One script (``wids_probe.py``) asks the same questions of each. What the published versions answered is recorded, since
they need torch to be imported at all; where ``WDS_ORACLE_111`` names a Python that has torch and webdataset 0.2.111,
the record is checked against it. Every difference is matched by a pattern with its reason, and each pattern by one.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle

HERE = Path(__file__).parent
PROBE = HERE / "wids_probe.py"
RECORDED = {version: HERE / "recorded" / f"wids_{version}.json" for version in ("0.2.86", "0.2.111")}

ASSERTIONS = "a typed error (a ValueError), not an AssertionError"
DEVIATIONS = {
    r"negative .*": "negative numbers count from the end of the dataset, not of its last shard",
    r"json": "samples name the dataset of their index; no version fills __dataset__ for an index without datasets",
    r"json version": ASSERTIONS,
    r"check_shards": ASSERTIONS,
    r"splitname x": ASSERTIONS,
    r"splitname a\.b/c": "a dot in a folder's name begins no extension, as in the stream reader",
    r"urldir http://h/p/i\.json\?x=1": "the query of an index's url is no part of its folder",
    r"create": "a common letter of two names is no name of a dataset",
    r"samples, wrong size": ASSERTIONS,
    r"check_keys .*": ASSERTIONS,
    r"distributed (25 over 3|10 over 4|5 over 4|2 over 4), rank \d, .*": "every rank gives len() indices",
}  # fmt: skip
OLDER = {
    r"list \d|no transformations|json|positional": "samples have __index__, as from 0.2.111 on",
    r"positional": "dataset_name is given to samples",
    r"field .* numpy": "0.2.86 fails on images where numpy arrays are asked for",
    r"field (PNG|CLS) .*": "extensions are decoded in any case, as from 0.2.111 on",
}


def asked(python, folder):
    """Return the answers of an interpreter."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "WIDS"))}
    done = subprocess.run(
        [python, "-B", str(PROBE), str(folder)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """What we answer."""
    return asked(sys.executable, tmp_path_factory.mktemp("ours") / "folder")


def agree(theirs, mine):
    """Tell whether two answers are the same: an error is, if ours may be caught as theirs."""
    if isinstance(theirs, str) and theirs.startswith("!") and isinstance(mine, str) and mine.startswith("!"):
        return theirs[1:].split()[0] in mine[1:].split()
    return theirs == mine


@pytest.mark.parametrize("version", RECORDED)
def test_answers_are_those_of_the_published_version(ours, version):
    """Each answer is the published version's, or a listed deviation; and each listed deviation occurs."""
    theirs = json.loads(RECORDED[version].read_text(encoding="utf-8"))
    patterns = {**DEVIATIONS, **(OLDER if version == "0.2.86" else {})}
    different = [question for question, answer in theirs.items() if not agree(answer, ours[question])]
    unlisted = {
        question: (theirs[question], ours[question])
        for question in different
        if not any(re.fullmatch(pattern, question) for pattern in patterns)
    }
    assert unlisted == {}
    asked_here = [pattern for pattern in patterns if any(re.fullmatch(pattern, question) for question in theirs)]
    unused = [pattern for pattern in asked_here if not any(re.fullmatch(pattern, each) for each in different)]
    assert unused == []


def test_record_is_what_the_published_version_says(tmp_path):
    """The recorded answers of 0.2.111 are those of a live one."""
    python = os.environ.get("WDS_ORACLE_111")
    if not python:
        pytest.skip("WDS_ORACLE_111 names no Python with torch and webdataset 0.2.111")
    assert asked(python, tmp_path / "folder") == json.loads(RECORDED["0.2.111"].read_text(encoding="utf-8"))


def test_distributed_ranks_share_out_everything(ours):
    """Together the ranks give every sample, and those that fill up are from the start of the dataset."""
    parts = [ours[f"distributed 25 over 3, rank {rank}, {{'chunksize': 4}}"] for rank in range(3)]
    assert {len(indices) for _, first, second in parts for indices in (first, second)} == {9}
    assert sorted(index for _, first, _ in parts for index in first) == sorted([*range(25), 0, 1])
