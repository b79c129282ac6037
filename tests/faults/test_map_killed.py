"""Jobs whose processes are killed, whose disks are full, whose inputs and receipts change: the outputs are the same."""

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from support import mapped
from support.command import SRC, command_environment
from support.mapped import make_shards, read_outputs
from webdataset.cluster import shard_tasks, stored_files
from webdataset.cluster.map_shards import plan_job
from webdataset.cluster.process_engine import ProcessEngine
from webdataset.cluster.receipts import receipt_url
from webdataset.cluster.shard_tasks import run_task
from webdataset.core.errors import JobFailed
from webdataset.writing import local_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL and /proc")

TESTS = Path(__file__).parents[1]
COUNTS = [30, 12, 0, 41, 25, 9]
# more of them: MAP_KILL_SEEDS=100 pytest tests/faults/test_map_killed.py
SEEDS = int(os.environ.get("MAP_KILL_SEEDS", "3"))
RULES: Any = {"on_sample_error": "quarantine"}
# the process dies at the given call of a function
KILLED = """
import os, signal, sys
from support import mapped
import webdataset as wds
from webdataset.cluster import shard_tasks, stored_files, task_files, sample_errors

module, name, when, call, inputs, output = sys.argv[1:]
owner = eval(module)
real, calls = getattr(owner, name), [0]

def counted(*arguments, **options):
    calls[0] += 1
    if when == "before" and calls[0] == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*arguments, **options)
    if when == "after" and calls[0] == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, counted)
wds.map_shards(mapped.vary_slowly, inputs + "/*.tar", output + "/", on_sample_error="quarantine")
print("done")
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Inputs, and what one undisturbed process makes of them."""
    folder = tmp_path_factory.mktemp("map")
    make_shards(folder / "in", COUNTS)
    wds.map_shards(mapped.vary_slowly, f"{folder}/in/*.tar", f"{folder}/out/", **RULES)
    return folder / "in", read_outputs(folder / "out")


def forget_manifest(found):
    """Return outputs without the folder that is named after the job."""
    return {name.replace("_wds//", "_wds/"): content for name, content in found.items()}


@pytest.mark.parametrize(
    ("place", "when", "call"),
    [
        ("task_files.DigestedOutput write", "before", 1),
        ("task_files.DigestedOutput commit", "before", 2),
        ("task_files.DigestedOutput commit", "after", 4),
        ("shard_tasks write_receipt", "before", 1),
        ("shard_tasks write_receipt", "after", 3),
        ("stored_files.os fsync", "before", 5),
        ("stored_files.os replace", "before", 2),
        ("sample_errors.SampleErrors finish", "before", 1),
        ("sample_errors.SampleErrors finish", "after", 4),
    ],
)
def test_killed_at_each_step(reference, tmp_path, place, when, call):
    """Killed in and between output, quarantine and receipt: the next run ends with the bytes of one without faults."""
    source, expected = reference
    arguments = [*place.split(), when, str(call), str(source), str(tmp_path)]
    environment = command_environment(PYTHONPATH=os.pathsep.join([str(SRC), str(TESTS)]))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], env=environment, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for path in tmp_path.glob("*.receipt.json"):
        assert path.with_name(path.name.removesuffix(".receipt.json")).exists()
    report = wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)
    assert len(report.done) + len(report.skipped) == len(COUNTS)
    assert read_outputs(tmp_path) == expected
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".partial", ".running", ".death"))]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_workers_are_killed(reference, tmp_path, seed):
    """SIGKILL of workers at random moments, starting ones included: equal bytes, equal quarantine, nothing left."""
    source, expected = reference
    engine, rng, over, kills = ProcessEngine(3), random.Random(seed), threading.Event(), []

    def kill():
        pause = rng.uniform(0.05, 0.2)
        while not over.wait(pause) and len(kills) < 8:
            living = [process.pid for process in list(engine._processes) if process.popen.poll() is None]
            # on a busy machine none may have started yet
            pause = rng.uniform(0.05, 0.4) if living else 0.01
            if living:
                kills.append(rng.choice(living))
                os.kill(kills[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", engine=engine, retries=10, **RULES)
    finally:
        over.set()
        killer.join()
    assert kills
    assert read_outputs(tmp_path) == expected
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".partial", ".running", ".death"))]


@pytest.mark.parametrize("seed", range((SEEDS + 2) // 3))
def test_a_process_that_is_killed_and_started_again(reference, tmp_path, seed):
    """One process for all outputs, killed at random moments until it comes through: equal bytes."""
    source, expected = reference
    environment = command_environment(PYTHONPATH=os.pathsep.join([str(SRC), str(TESTS)]))
    arguments = ["shard_tasks", "run_task", "never", "0", str(source), str(tmp_path)]
    rng, kills = random.Random(seed), 0
    while True:
        child = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], env=environment, stdout=subprocess.PIPE)
        # patience grows, so that a slow machine comes through too
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=rng.uniform(0.2, 0.5) + kills / 4)
        child.kill()
        child.communicate()
        if child.returncode == 0:
            break
        kills += 1
    assert kills
    assert read_outputs(tmp_path) == expected


def test_the_driver_is_killed(reference, tmp_path):
    """Workers end with their parent; the next run finishes the job."""
    source, expected = reference
    code = (
        "import sys, webdataset as wds; from support import mapped\n"
        "wds.map_shards(mapped.vary_slowly, sys.argv[1] + '/*.tar', sys.argv[2] + '/', engine='processes', jobs=2, "
        "on_sample_error='quarantine', progress=lambda result: print(result.pid, flush=True))"
    )
    environment = command_environment(PYTHONPATH=os.pathsep.join([str(SRC), str(TESTS)]))
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    worker = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 60
    while local_file.is_alive(worker) and time.monotonic() < deadline:
        if Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not local_file.is_alive(worker)
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)
    assert read_outputs(tmp_path) == expected


def test_an_interrupt_leaves_no_unfinished_file(reference, tmp_path):
    """Processes that are ended in the midst of their outputs, as by Ctrl-C, leave no partial file and no record."""
    source, expected = reference
    unfinished = lambda: [path for path in tmp_path.rglob("*") if path.name.endswith((".partial", ".running"))]  # noqa: E731

    def interrupt(_result):
        deadline = time.monotonic() + 60
        while not any(".tar." in path.name for path in unfinished()):
            assert time.monotonic() < deadline
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wds.map_shards(
            mapped.vary_slowly,
            f"{source}/*.tar",
            f"{tmp_path}/",
            engine="processes",
            jobs=3,
            progress=interrupt,
            **RULES,
        )
    assert not unfinished()
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)
    assert read_outputs(tmp_path) == expected


def start_together(job, tasks):
    """Run several tasks of the first output at once; return their results."""
    results, barrier = [], threading.Barrier(tasks)

    def run():
        barrier.wait()
        results.append(run_task(job, 0))

    threads = [threading.Thread(target=run) for _ in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_tasks_on_one_output(reference, tmp_path):
    """Tasks that make one output at once agree: one file, one receipt, no partial file."""
    source, expected = reference
    job = plan_job(mapped.vary_slowly, [f"{source}/000.tar"], f"{tmp_path}/{{name}}", **RULES)
    results = start_together(job, 3)
    assert {result.state for result in results} <= {"done", "skipped"}, results
    assert (tmp_path / "000.tar").read_bytes() == expected["000.tar"]
    assert not list(tmp_path.glob(".*"))


def test_two_tasks_of_a_function_that_draws(reference, tmp_path):
    """Where the function is not deterministic, the first output stays, and the other task says why it failed."""
    source, _ = reference
    job = plan_job(mapped.draw_unseeded, [f"{source}/005.tar"], f"{tmp_path}/{{name}}")
    results = start_together(job, 2)
    states = sorted(result.state for result in results)
    assert states == ["done", "failed"], results
    told = next(result.reason for result in results if result.state == "failed")
    assert "two tasks made different outputs" in told
    assert not list(tmp_path.glob(".*"))
    # what stayed is what its receipt says
    assert run_task(job, 0).state == "skipped"


@pytest.mark.parametrize("damage", ["truncated", "future", "foreign", "no object", "other output", "empty"])
def test_a_receipt_that_says_something_else(reference, tmp_path, damage):
    """It is never taken for one; the output is made again, of the same bytes."""
    source, expected = reference
    job = lambda: wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)  # noqa: E731
    job()
    path = Path(receipt_url(f"{tmp_path}/001.tar"))
    receipt = json.loads(path.read_bytes())
    other = Path(receipt_url(f"{tmp_path}/003.tar")).read_bytes()
    path.write_bytes({
        "truncated": path.read_bytes()[:100],
        "future": json.dumps({**receipt, "version": 2}).encode(),
        "foreign": json.dumps({**receipt, "seen": ["x"], "kind": "wds-map-receipt"}).encode(),
        "no object": b"[1, 2]",
        "other output": other,
        "empty": b"",
    }[damage])  # fmt: skip
    report = job()
    assert (len(report.done), len(report.skipped)) == (1, 5)
    assert read_outputs(tmp_path) == expected


@pytest.mark.parametrize("damage", ["removed", "cut", "changed"])
def test_an_output_that_changed(reference, tmp_path, damage):
    """A missing, shorter or other output is made again."""
    source, expected = reference
    job = lambda **more: wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES, **more)  # noqa: E731
    job()
    path = tmp_path / "003.tar"
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-512] if damage == "cut" else content.replace(b"second", b"SECOND"))
    assert job().reasons == {"output missing" if damage == "removed" else "output changed": 1}
    assert read_outputs(tmp_path) == expected


def test_verify_finds_what_a_time_hides(reference, tmp_path):
    """An output that changed under its old time and size is found when it is read, and made again."""
    source, expected = reference
    job = lambda **more: wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES, **more)  # noqa: E731
    job()
    path = tmp_path / "003.tar"
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"second", b"SECOND"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(job().skipped) == 6
    assert job(verify=True).reasons == {"output changed": 1}
    assert read_outputs(tmp_path) == expected


def test_an_input_that_is_replaced_meanwhile(tmp_path):
    """It fails its output, whether it changes before or while it is read; the next run takes the new one."""
    source = tmp_path / "in"
    make_shards(source, [5, 5, 5])
    job = plan_job(mapped.keep, f"{source}/*.tar", f"{tmp_path}/out/")
    make_shards(source, [5, 6, 5])
    result = run_task(job, 1)
    assert (result.state, result.again) == ("failed", False)
    assert "replaced after the job was planned" in result.reason

    def replace(sample):
        # by a rename, which the open file does not see
        if sample["__key__"] == "00003":
            make_shards(tmp_path / "new", [7])
            os.replace(tmp_path / "new/000.tar", source / "000.tar")
        return sample

    with pytest.raises(JobFailed, match="replaced after"):
        wds.map_shards(replace, [f"{source}/000.tar"], f"{tmp_path}/two/")
    assert not list((tmp_path / "two").glob("*.receipt.json"))
    assert wds.map_shards(mapped.keep, f"{source}/*.tar", f"{tmp_path}/out/").counts["in"] == 18


def test_a_full_disk(reference, tmp_path, monkeypatch):
    """It fails the output at once, leaves nothing of it, and the next run makes it."""
    source, expected = reference
    real, room = os.writev, [20_000]

    def writev(descriptor, pieces):
        room[0] -= sum(map(len, pieces))
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(local_file.os, "writev", writev)
        with pytest.raises(JobFailed, match="No space left") as failed:
            wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)
    assert all(each.attempt == 1 for each in failed.value.report.failed)
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".partial")]
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)
    assert read_outputs(tmp_path) == expected


def test_a_full_disk_for_the_receipt(reference, tmp_path, monkeypatch):
    """The output is there without a receipt: it is made again, and compared."""
    source, expected = reference

    def fsync(descriptor):
        if "receipt.json" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stored_files.os, "fsync", fsync)
        result = run_task(plan_job(mapped.vary_slowly, [f"{source}/000.tar"], f"{tmp_path}/{{name}}", **RULES), 0)
    assert result.state == "failed"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".partial")]
    wds.map_shards(mapped.vary_slowly, f"{source}/*.tar", f"{tmp_path}/", **RULES)
    assert read_outputs(tmp_path) == expected


def test_errors_of_storage_are_tried_again(reference, tmp_path, monkeypatch):
    """An output is written at the third attempt; after too many it fails."""
    source, expected = reference
    real, failures = shard_tasks.write_receipt, [2]

    def write(output, receipt):
        failures[0] -= 1
        if failures[0] >= 0:
            raise wds.errors.SourceError("try again later", url=output)
        real(output, receipt)

    monkeypatch.setattr(shard_tasks, "write_receipt", write)
    report = wds.map_shards(mapped.vary_slowly, [f"{source}/000.tar"], f"{tmp_path}/{{name}}", **RULES)
    assert [each.attempt for each in report.done] == [3]
    assert (tmp_path / "000.tar").read_bytes() == expected["000.tar"]
    failures[0] = 2
    with pytest.raises(JobFailed, match="try again later"):
        wds.map_shards(mapped.keep, [f"{source}/000.tar"], f"{tmp_path}/{{name}}", retries=1)


def test_partial_files_of_others_stay(reference, tmp_path):
    """Only those of this output are removed, of this host, and of processes that are gone."""
    source, _ = reference
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    tag, gone, here = local_file.host_tag(), int(dead.stdout), os.getpid()
    kept = [
        f".000.tar.{here}-{tag}00000000.partial",
        f".000.tar.{gone}-{'0' * 8}00000000.partial",
        f".001.tar.{gone}-{tag}00000000.partial",
    ]
    removed = f".000.tar.{gone}-{tag}11111111.partial"
    for name in [*kept, removed]:
        (tmp_path / name).touch()
    wds.map_shards(mapped.keep, [f"{source}/000.tar"], f"{tmp_path}/{{name}}")
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(kept)
