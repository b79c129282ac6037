"""``wds map`` with outputs that make it a job: tasks, status, verify, sweep, quarantine, exit status."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.command import json_lines, run_wds, start_wds
from support.mapped import make_shards, read_outputs
from webdataset.writing.local_file import host_tag

FUNCTIONS = """
import time
def shrink(sample, size=2):
    return {"txt": sample["txt"][:size]}
def fail(sample):
    if sample["txt"].endswith(b"3"):
        raise ValueError("three")
    return sample
def forget(sample):
    sample["cls"] = 1
def wait(sample):
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    """Five shards in ``in``, and a module of functions."""
    make_shards(tmp_path / "in", [4, 3, 6, 2, 5])
    (tmp_path / "fns.py").write_text(FUNCTIONS)
    return tmp_path


def test_tasks_make_the_outputs_of_one(folder):
    """Tasks by number, by SLURM's array with an offset and a step, and by Kubernetes: the outputs of one command."""
    run_wds("map", "fns:shrink", "in", "-o", "one/", "-j", "2", "--param", "size=1", cwd=folder)
    job = ("map", "fns:shrink", "in", "-o", "many/{stem}.tar", "--param", "size=1")
    run_wds(*job, "--task", "1", "--of", "3", cwd=folder)
    assert sorted(path.name for path in (folder / "many").glob("*.tar")) == ["001.tar", "004.tar"]
    array: Any = {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_STEP": "2"}
    told = run_wds(*job, cwd=folder, **array, SLURM_ARRAY_TASK_COUNT="3").stderr.decode()
    assert "task 2 of 3, by SLURM_ARRAY_TASK_ID" in told
    state = run_wds(*job, "--status", "--json", cwd=folder, status=1)
    assert [(line["done"], line["outputs"], line["reasons"]) for line in json_lines(state)] == [
        (3, 5, {"no receipt": 2})
    ]
    run_wds(*job, "--of", "3", cwd=folder, JOB_COMPLETION_INDEX="0")
    assert b"5 of 5 outputs are done" in run_wds(*job, "--status", cwd=folder).stdout
    assert read_outputs(folder / "one") == read_outputs(folder / "many")


def test_the_same_number_of_outputs(folder):
    """``--shards`` cuts all samples equally; a second run makes nothing, ``--force`` all."""
    job = ("map", "fns:shrink", "in", "-o", "new-%02d.tar", "--shards", "3", "--json")
    assert [line["counts"]["out"] for line in json_lines(run_wds(*job, cwd=folder))] == [6, 7, 7]
    assert {line["state"] for line in json_lines(run_wds(*job, cwd=folder))} == {"skipped"}
    assert {line["reason"] for line in json_lines(run_wds(*job, "--force", cwd=folder))} == {"asked for"}


def test_a_function_that_gives_nothing(folder):
    """Outputs without samples are outputs: tasks may rightly drop all of theirs. The report says what it may be."""
    told = run_wds("map", "fns:forget", "in", "-o", "new/", cwd=folder).stderr.decode()
    assert "20 in, 0 out, 20 dropped, 0 errors" in told
    assert "the function gave nothing for any sample, and the outputs are empty: does it lack a return?" in told
    assert "lack a return" not in run_wds("map", "fns:shrink", "in", "-o", "small/", cwd=folder).stderr.decode()


def test_failures_quarantine_and_retry(folder):
    """Status 1 where an output failed; the quarantine keeps samples aside; they can be tried again."""
    job = ("map", "fns:fail", "in", "-o", "new/")
    told = run_wds(*job, cwd=folder, status=1).stderr.decode()
    assert "failed: new/000.tar: SampleError: the function fails: ValueError: three" in told
    state = run_wds(*job, "--status", cwd=folder, status=1).stdout.decode()
    assert "3 of 5 outputs are done" in state
    assert "failed: new/003.tar" in state
    job = (*job, "--on-sample-error", "quarantine")
    assert "20 in, 18 out, 0 dropped, 2 errors" in run_wds(*job, cwd=folder).stderr.decode()
    again = json_lines(run_wds(*job, "--retry-quarantined", "--json", cwd=folder))
    assert sorted(Path(line["shard"]).name for line in again) == ["000.tar", "003.tar"]
    assert {line["state"] for line in again} == {"done"}
    told = run_wds(*job, "--max-errors", "0", cwd=folder, status=1).stderr.decode()
    assert "max_errors=0 allows no more" in told


def test_explain_verify_and_sweep(folder):
    """What would be made is told, and nothing is made; an output that changed unseen is found; partial files go."""
    job = ("map", "fns:shrink", "in", "-o", "new/")
    told = run_wds(*job, "--explain", cwd=folder, status=1).stdout.decode()
    assert "5 to make: no receipt" in told
    assert "function fns:shrink: code " in told
    assert not (folder / "new").exists()
    run_wds(*job, "-n", cwd=folder, status=1)
    run_wds(*job, cwd=folder)
    path = folder / "new/002.tar"
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"000", b"111"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert b"outputs: 0 made" in run_wds(*job, cwd=folder).stderr
    assert b"made because of: output changed (1)" in run_wds(*job, "--verify", cwd=folder).stderr
    orphan = folder / f"new/.002.tar.999999999-{host_tag()}00000000.partial"
    young = folder / "new/.002.tar.1-0000000000000000.partial"
    old = folder / "new/.002.tar.1-1111111100000000.partial"
    for each in (orphan, young, old):
        each.touch()
    os.utime(old, (1, 1))
    assert b"removed 2 partial files" in run_wds(*job, "--sweep", cwd=folder).stderr
    assert young.exists()


def test_sigterm_means_try_again(folder):
    """A scheduler that takes the machine gets status 75; the next run finishes."""
    child = start_wds("map", "fns:wait", "in", "-o", "new/", "-j", "2", cwd=folder)
    deadline = time.monotonic() + 60
    while not list(folder.glob("new/_wds/*/deaths/*.running")) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 75, told
    assert b"run the job again" in told
    assert not list(folder.glob("new/*.tar"))
    # being ended is not held against the samples
    assert not list(folder.glob("new/_wds/*/deaths/*"))
    run_wds("map", "fns:shrink", "in", "-o", "new/", cwd=folder)
    assert not list(folder.glob("new/.*.partial"))


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["-o", "x.tar", "--task", "0", "--of", "2"], {}, "--shards M"),
        (["-o", "x.tar", "--status"], {}, "--shards M"),
        (["-o", "new/", "--task", "2"], {}, "--task I needs --of N"),
        (["-o", "new/", "--of", "2"], {}, "JOB_COMPLETION_INDEX"),
        (["-o", "new/", "--task", "2", "--of", "2"], {}, "makes no sense"),
        (["-o", "new/", "-c", "5"], {}, "--max-count"),
        (["-o", "new/", "--threads"], {}, "--on-sample-error"),
        (["-o", "new/", "--on-error", "keep"], {}, "--on-sample-error"),
        (["-o", "new/", "--param", "size"], {}, "NAME=VALUE"),
        (["-o", "new/", "--param", "password=x"], {}, "like a secret"),
        (["-o", "new/"], {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3"}, "without gaps"),
    ],
)
def test_command_lines_that_make_no_sense(folder, arguments, environment, told):
    """Each is told with status 2, and nothing is written."""
    done = run_wds("map", "fns:shrink", "in", *arguments, cwd=folder, status=2, **environment)
    assert told in done.stderr.decode()
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["fns.py", "in"]


def test_an_array_is_no_obstacle_to_the_whole(folder):
    """``--of 1`` makes everything, though SLURM's variables are there."""
    array: Any = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "3"}
    run_wds("map", "fns:shrink", "in", "-o", "new/", "--of", "1", cwd=folder, **array)
    report = json.loads(next(folder.glob("new/_wds/*/report.json")).read_text())
    assert (report["done"], report["counts"]["in"]) == (5, 20)
