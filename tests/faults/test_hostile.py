"""The hostile corpus, decoded in a child process: nothing runs, and every field ends soon in a value or typed error."""

import json
import subprocess
import sys

import pytest

from webdataset.testing.hostile import GROUPS, Case, cases, measured

MOST_BYTES = 512 << 20
MOST_SECONDS = 5

DECODE = """
import json, resource, sys, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_CPU, (200, 200))
from webdataset.autodecode import Decoder
from webdataset.testing.hostile import cases, measured
marker, images, groups = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
for outcome in measured(cases(marker, groups), marker, Decoder([images, 'auto'])):
    sys.stdout.write(json.dumps(outcome) + "\\n")
    sys.stdout.flush()
"""

READ = """
import json, resource, sys, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_CPU, (200, 200))
import webdataset as wds
from webdataset.testing.hostile import cases, measured
marker = sys.argv[1]
STAGES = {"tar": wds.tarfile_to_samples, "cbors": wds.cbors_to_samples, "msgpack": wds.msgpacks_to_samples}
def read(sample):
    field, content = list(sample.items())[1]
    with open("shard." + field, "wb") as stream:
        stream.write(content)
    return sum(1 for _ in wds.DataPipeline(wds.SimpleShardList(["shard." + field]), STAGES[field]()))
for outcome in measured(cases(marker, ["shards"]), marker, read):
    sys.stdout.write(json.dumps(outcome) + "\\n")
"""

LIVE = """
import copyreg, os, pickle, shutil, sys, time, warnings
warnings.simplefilter("ignore")
from webdataset.testing.hostile_pickles import executing
marker = sys.argv[1]
folder = os.path.dirname(marker)
copyreg.add_extension("io", "open", 0x70)
dead = []
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
        [sys.executable, "-c", program, marker, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert child.returncode == 0, child.stdout[-300:] + child.stderr[-3000:]
    return child.stdout.splitlines()


def judged(lines):
    """Check what became of each case; return their names."""
    outcomes = [
        dict(zip(("name", "error", "typed", "seconds", "bytes", "executed"), json.loads(line))) for line in lines
    ]
    assert [o["name"] for o in outcomes if o["executed"]] == []
    assert [o for o in outcomes if o["seconds"] > MOST_SECONDS] == []
    assert [o for o in outcomes if o["bytes"] > MOST_BYTES] == []
    assert [o for o in outcomes if o["error"] is not None and not o["typed"]] == []
    assert {o["name"] for o in outcomes if o["error"] is None} <= VALUES
    return [o["name"] for o in outcomes]


def has_torch():
    """Tell whether torch is installed."""
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def test_fields(tmp_path):
    """No field of the corpus runs code, takes 512 MB or 5 s, or fails with anything but an error of ours."""
    groups = [group for group in GROUPS if group != "shards" and (group != "torch" or has_torch())]
    names = judged(run(DECODE, tmp_path, "rgb8", ",".join(groups)))
    assert len(names) == len(set(names)) > 250


@pytest.mark.parametrize("images", ["pil", "l", pytest.param("torchrgb", marks=pytest.mark.torch)])
def test_images_under_other_specifications(images, tmp_path):
    """The bounds hold for pictures, for floats and for tensors too."""
    if images == "torchrgb":
        pytest.importorskip("torch")
    assert len(judged(run(DECODE, tmp_path, images, "images"))) > 10


def test_shards(tmp_path):
    """Shards of headers without end and items without measure end in errors as well."""
    assert len(judged(run(READ, tmp_path))) > 25


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
