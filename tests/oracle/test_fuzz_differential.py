"""Random shards through random pipelines, under the published versions 0.2.86 and 1.0.2 and here.

Each case is made from a seed and its number (``fuzz/cases.py``) and played in one process for each version
(``fuzz/player.py``): values, types, order, the classes of errors. A difference is a deviation with a name, known by
what it looks like, or it fails. ``make test`` plays a few cases, ``make test-all`` a thousand
(``DIFFERENTIAL_FUZZ_CASES``, ``DIFFERENTIAL_FUZZ_SEED``).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds

from .fuzz import cases
from .fuzz.deviations import DEVIATIONS, SELDOM, agree, explaining

pytestmark = pytest.mark.oracle

ORACLES = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
CASES = int(os.environ.get("DIFFERENTIAL_FUZZ_CASES", "40"))
SEED = os.environ.get("DIFFERENTIAL_FUZZ_SEED", "0")
PLAYER = Path(__file__).parent / "fuzz" / "player.py"
AT_ONCE = 500


def play(interpreter, folder, made, like):
    """Play cases in one interpreter.

    Args:
        interpreter: path of a Python.
        folder: of the shards.
        made: the cases.
        like: the version that ours is compared with.

    Returns:
        What each case gives.
    """
    environment = {"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore", "PYTHONIOENCODING": "utf-8"}
    if interpreter == sys.executable:
        environment["PYTHONPATH"] = str(Path(wds.__file__).parents[1])
    results = []
    for first in range(0, len(made), AT_ONCE):
        given = json.dumps({"folder": str(folder), "cases": made[first : first + AT_ONCE], "like": like})
        done = subprocess.run(
            [interpreter, PLAYER], input=given.encode(), capture_output=True, env=environment, cwd=folder, timeout=900
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        results += json.loads(done.stdout)["results"]
    return results


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the shards, and the cases."""
    folder = tmp_path_factory.mktemp("fuzz")
    return folder, [cases.build_case(SEED, number, folder) for number in range(CASES)]


@pytest.fixture(scope="module", params=ORACLES)
def compared(request, made):
    """A published version, the cases, and what they give here and there."""
    interpreter = os.environ.get(ORACLES[request.param])
    if not interpreter:
        pytest.skip(f"{ORACLES[request.param]} names no interpreter with webdataset {request.param}")
    folder, found = made
    mine, theirs = (play(python, folder, found, request.param) for python in (sys.executable, interpreter))
    return request.param, list(zip(found, mine, theirs, strict=True))


def test_every_difference_is_listed(compared):
    """Equal items in equal order and errors of the same classes, but for deviations that have a name."""
    version, played = compared
    unlisted = [
        f"{cases.described(case)}\n  ours   {json.dumps(mine)[-600:]}\n  theirs {json.dumps(theirs)[-600:]}"
        for case, mine, theirs in played
        if not agree(mine, theirs) and not explaining(version, case, mine, theirs)
    ]
    assert not unlisted, f"{len(unlisted)} of {len(played)} with seed {SEED}:\n" + "\n".join(unlisted[:20])


def test_most_cases_give_something_and_agree(compared):
    """An empty comparison proves nothing, nor one in which everything is excused."""
    _, played = compared
    assert sum(agree(mine, theirs) for _, mine, theirs in played) > len(played) * 0.4
    assert sum(bool(mine and mine[0]) for _, mine, _ in played) > len(played) * 0.4


def test_every_deviation_occurs(compared):
    """In many cases, each deviation that the fuzz knows is met: what is not met may be a difference no more."""
    version, played = compared
    if len(played) < 1000:
        pytest.skip("too few cases")
    met = {
        name
        for case, mine, theirs in played
        if not agree(mine, theirs)
        for name in explaining(version, case, mine, theirs)
    }
    assert met | SELDOM >= {name for name, (versions, _) in DEVIATIONS.items() if version in versions}


def test_every_deviation_is_explained(unexplained):
    """The page for users explains each."""
    assert unexplained(DEVIATIONS) == []
