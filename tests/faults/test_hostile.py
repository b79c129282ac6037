"""The hostile corpus, decoded in a child process: nothing runs, and every field ends soon in a value or typed error."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.hostile import GROUPS, Case, LimitedCallFailed, call_limited, cases, measured

MOST_BYTES = 512 << 20

LIMITS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import webdataset as wds
from webdataset.autodecode import Decoder
from support.hostile import cases, limit_process, measured
def limited(corpus):
    for case in corpus:
        limit_process(1 << 30, 30)
        yield case
"""

DECODE = """
marker, images, groups = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
for outcome in measured(limited(cases(marker, groups)), marker, Decoder([images, 'auto'])):
    sys.stdout.write(json.dumps(outcome) + "\\n")
    sys.stdout.flush()
"""

READ = """
marker = sys.argv[1]
STAGES = {"tar": wds.tarfile_to_samples, "cbors": wds.cbors_to_samples, "msgpack": wds.msgpacks_to_samples}
def read(sample):
    field, content = list(sample.items())[1]
    with open("shard." + field, "wb") as stream:
        stream.write(content)
    return sum(1 for _ in wds.DataPipeline(wds.SimpleShardList(["shard." + field]), STAGES[field]()))
for outcome in measured(limited(cases(marker, ["shards"])), marker, read):
    sys.stdout.write(json.dumps(outcome) + "\\n")
    sys.stdout.flush()
"""

LIVE = """
import copyreg, os, pickle, shutil, time
from support.hostile_pickles import executing
marker = sys.argv[1]
folder = os.path.dirname(marker)
copyreg.add_extension("io", "open", 0x70)
dead = []
limit_process(4 << 30, 300)
sys.stdout = open(os.devnull, "w")
for name, data in executing(marker).items():
    if name.startswith("pty."):
        continue
    try:
        pickle.loads(data)
    except BaseException:
        pass
    for _ in range(100 if "Popen" in name or "spawn" in name or "popen" in name else 3):
        if os.listdir(folder):
            break
        time.sleep(0.02)
    else:
        dead.append(name)
    sys.settrace(None)
    for found in os.listdir(folder):
        path = os.path.join(folder, found)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
sys.__stdout__.write("\\n".join(dead))
"""

VALUES = {
    "pyd: tuples doubled, without use",
    "pyd: lists doubled",
    "pyd: lists in lists",
    "pyd: memo index",
    "pyd: memo index as text",
    "pyd: decimal",
    "pyd: huge dtype",
    "json: exponent",
    "cbor: large integer",
    "cbor: pattern",
    "cbor: message",
    "npy: huge shape of nothing",
    "npy: huge shape of empty texts",
    "npz: pickle",
    "pth: zeros",
    "tar: names",
    "tar: links",
}
STOPPED = ("marshal.loads", "webdataset.gopen", "webdataset.add_safe_globals", "numpy.fromfile", "__builtin__.file")
DEAD = {
    *(f"{name} by {form}" for name in (*STOPPED, "torch.jit.CompilationUnit") for form in ("GLOBAL", "STACK_GLOBAL")),
    *("__builtin__.open by STACK_GLOBAL", "PERSID", "BINPERSID", "BUILD a state", "attrgetter", "reconstructor"),
    "numpy reconstruct",
}


def run(program, folder, *arguments):
    """Run a program in a child process; return its lines."""
    (folder / "empty").mkdir(exist_ok=True)
    marker = str(folder / "empty" / "marker")
    child = subprocess.run(
        [sys.executable, "-c", LIMITS + program, marker, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert child.returncode == 0, f"ended with {child.returncode} behind {child.stdout[-300:]}{child.stderr[-3000:]}"
    return child.stdout.splitlines()


def judged(lines, groups):
    """Check that something became of each case, and what; return their names."""
    outcomes = [
        dict(zip(("name", "error", "typed", "seconds", "bytes", "executed"), json.loads(line))) for line in lines
    ]
    assert [o["name"] for o in outcomes] == [case.name for case in cases("marker", groups)]
    assert [o["name"] for o in outcomes if o["executed"]] == []
    assert [o for o in outcomes if o["bytes"] > MOST_BYTES] == []
    assert [o for o in outcomes if o["error"] is not None and not o["typed"]] == []
    assert {o["name"] for o in outcomes if o["error"] is None} <= VALUES
    return [o["name"] for o in outcomes]


def has_torch():
    """Tell whether torch is installed."""
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def test_fields(tmp_path):
    """No field of the corpus runs code, takes 512 MB or 30 s of processor time, or fails but with an error of ours."""
    groups = [group for group in GROUPS if group != "shards" and (group != "torch" or has_torch())]
    names = judged(run(DECODE, tmp_path, "rgb8", ",".join(groups)), groups)
    assert len(names) == len(set(names)) > 250


@pytest.mark.parametrize("images", ["pil", "l", pytest.param("torchrgb", marks=pytest.mark.torch)])
def test_images_under_other_specifications(images, tmp_path):
    """The bounds hold for pictures, for floats and for tensors too."""
    if images == "torchrgb":
        pytest.importorskip("torch")
    assert len(judged(run(DECODE, tmp_path, images, "images"), ["images"])) > 10


def test_shards(tmp_path):
    """Shards of headers without end and items without measure end in errors as well."""
    assert len(judged(run(READ, tmp_path), ["shards"])) > 25


@pytest.mark.torch
def test_the_pickles_are_live(tmp_path):
    """Without care, the pickles do create the marker, but for a few that others stop: so the corpus is not stale."""
    pytest.importorskip("torch")
    assert set(run(LIVE, tmp_path)) <= DEAD


def test_measuring_notices_what_it_shall_notice(tmp_path):
    """A decoder that runs code, fails in a foreign way or takes memory is reported as such."""
    marker = tmp_path / "marker"

    def careless(sample):
        held = b"\1" * (300 << 20)
        marker.touch()
        raise KeyError(len(held))

    (outcome,) = measured([Case("c", "bin", b"")], str(marker), careless)
    assert (outcome.error, outcome.typed, outcome.executed) == ("KeyError", False, True)
    assert outcome.peak_bytes == 0 or outcome.peak_bytes > 300 << 20


def test_cases_have_names_of_their_own():
    """The corpus can be asked for in parts, each named."""
    names = [case.name for case in cases("x", ["text", "binary"])]
    assert len(names) == len(set(names)) > 40


def endless():
    """Take processor time for ever."""
    while True:
        pass


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda: bytearray(64 << 30), "MemoryError"),
        (lambda: [bytearray(1 << 20) for _ in range(2000)], "MemoryError"),
        (endless, "ended by SIGXCPU"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by SIGKILL"),
        (lambda: os._exit(0), "did not say what became of it"),
        (lambda: os._exit(3), "ended with 3"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: {1, 2}, "not JSON serializable"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_limits_bite(harm, message):
    """A call that takes 64 GB or endless time, or ends its process, is an error that says so; this process lives."""
    with pytest.raises(LimitedCallFailed, match=message):
        # a machine that is short of memory spends seconds on a gigabyte
        call_limited(harm, more_bytes=1 << 30, cpu_seconds=3 if harm is endless else 60)


def test_what_a_limited_call_returns():
    """What needs no more than the limits is returned, and this process has none afterwards."""
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_CPU)
    before = [resource.getrlimit(kind) for kind in kinds]
    assert call_limited(lambda: len(bytes(256 << 20)), more_bytes=1 << 30) == 256 << 20
    assert [resource.getrlimit(kind) for kind in kinds] == before


BAD = """
import pytest

pytestmark = pytest.mark.limited(more_bytes=1 << 30, cpu_seconds=20)


def test_greedy(tmp_path):
    bytearray(64 << 30)


def test_ended(tmp_path):
    import os
    os._exit(0)


def test_left_out(tmp_path):
    pytest.skip("for a reason")


def test_wrong():
    left = [1, 2]
    assert left == [1, 3]


@pytest.mark.parametrize("number", range(3))
def test_modest(number, tmp_path):
    (tmp_path / "x").write_text("y")
"""


def test_tests_with_limits_fail_one_by_one(tmp_path):
    """Of a file of tests with limits those fail that reach for too much or end; the others run, and are counted."""
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_bad.py").write_text(BAD)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = limited\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", str(tmp_path)]
    # all its tests, where this run has a share of the cases too
    lenient = {name: text for name, text in os.environ.items() if name not in ("WDS_STRICT", "WDS_TEST_CASES")}
    printed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=lenient).stdout
    assert "3 failed, 3 passed, 1 skipped" in printed, printed
    assert "MemoryError" in printed
    assert "did not say what became of it" in printed
    assert "assert [1, 2] == [1, 3]" in printed
    assert "for a reason" in printed
