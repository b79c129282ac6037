"""One listing for all processes of a job on one host: shared while they live, and never by a later job."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.bucket_server import BucketServer
from webdataset.shards import shared_listing
from webdataset.shards.expand import expand_urls

KEYS = [f"train/{number:03}.tar" for number in range(20)]
URL = "gs://bucket/train/*.tar"
LISTED = [f"gs://bucket/{key}" for key in KEYS]
PATIENCE_SECONDS = 60


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A service, and a job of its own."""
    for name in ("RANK", "MASTER_PORT", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("WDS_JOB_ID", "job")
    with BucketServer(list(KEYS)) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.root)
        yield server


@pytest.fixture
def folder(tmp_path):
    """Where the files are."""
    return tmp_path / "runtime" / "webdataset"


def start(count=1, url=URL):
    """Start a program whose processes list at once."""
    words = [sys.executable, "-m", "support.fleet", str(count), "support.fleet:expand", url]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers(program):
    """Return what the processes of a program got."""
    out, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert out, errors
    return json.loads(out)


def wait_until(condition):
    """Wait for something that happens in another process."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)


def child_of(program):
    """Return the pid of the only child of a program, once there is one."""
    path = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    wait_until(lambda: path.read_text().split())
    return int(path.read_text())


@pytest.fixture
def holder(bucket):
    """A living process of the job that uses a listing."""
    context = multiprocessing.get_context("fork")
    done, ready = context.Event(), context.Event()

    def hold():
        assert expand_urls(URL) == LISTED
        ready.set()
        done.wait()

    process = context.Process(target=hold)
    process.start()
    assert ready.wait(PATIENCE_SECONDS)
    yield process
    done.set()
    process.join()


def test_64_processes_list_once(bucket):
    """All processes of a job get the list that one of them made."""
    assert answers(start(64)) == [LISTED] * 64
    assert bucket.lists == 1


def test_without_sharing_each_process_lists(bucket, monkeypatch):
    """The setting turns it off: what the test above would count without this module."""
    monkeypatch.setenv("WDS_SHARED_LISTING", "0")
    assert answers(start(8)) == [LISTED] * 8
    assert bucket.lists == 8


def test_outside_of_a_job_each_process_lists(bucket, monkeypatch):
    """A program that no launcher started shares nothing."""
    monkeypatch.delenv("WDS_JOB_ID")
    assert answers(start(3)) == [LISTED] * 3
    assert bucket.lists == 3


def test_a_later_job_lists_anew(bucket):
    """Also one of the same name sees what has changed: the processes that used the list have ended."""
    assert answers(start(4)) == [LISTED] * 4
    bucket.keys.append("train/new.tar")
    assert answers(start(4)) == [[*LISTED, "gs://bucket/train/new.tar"]] * 4
    assert bucket.lists == 2


def test_another_job_at_the_same_time_lists_anew(bucket, holder, monkeypatch):
    """Names of jobs are told apart, and a job that runs keeps its list."""
    bucket.keys.append("train/new.tar")
    monkeypatch.setenv("WDS_JOB_ID", "another")
    assert answers(start())[0] == [*LISTED, "gs://bucket/train/new.tar"]
    monkeypatch.setenv("WDS_JOB_ID", "job")
    assert answers(start())[0] == LISTED
    assert bucket.lists == 2


def test_a_process_that_asks_again_gets_a_new_list(bucket):
    """So a program sees shards that have come meanwhile."""
    assert expand_urls(URL) == LISTED
    bucket.keys.append("train/new.tar")
    assert expand_urls(URL) == [*LISTED, "gs://bucket/train/new.tar"]
    assert bucket.lists == 2


def test_processes_of_multiprocessing_share_without_a_launcher(bucket, monkeypatch):
    """Children of one parent are a job."""
    monkeypatch.delenv("WDS_JOB_ID")
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(4)
    answered = context.SimpleQueue()

    def child():
        answered.put(expand_urls(URL))
        gate.wait()

    children = [context.Process(target=child) for _ in range(4)]
    for each in children:
        each.start()
    assert [answered.get() for _ in children] == [LISTED] * 4
    for each in children:
        each.join()
    assert bucket.lists == 1


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        ({"RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "9"}, ["torch", "", "h", "9"]),
        ({"RANK": "1", "MASTER_PORT": "9", "TORCHELASTIC_RUN_ID": "r"}, ["torch", "r", "", "9"]),
        ({"PMIX_NAMESPACE": "n"}, ["pmix", "n"]),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, ["slurm", "7", "0"]),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967291"}, None),
        ({"SLURM_JOB_ID": "7"}, None),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_jobs_of_launchers(monkeypatch, variables, job):
    """What started the process names the job; the shell of a batch job is none, since many programs run in it."""
    for name in ("WDS_JOB_ID", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    found = shared_listing._find_job()
    assert (found and found[1:]) == job


def test_a_killed_lister_is_replaced(bucket):
    """The system frees its lock, and one of those who wait lists."""
    bucket.free.clear()
    first = start()
    wait_until(lambda: bucket.lists == 1)
    others = start(5)
    os.kill(child_of(first), signal.SIGKILL)
    wait_until(lambda: bucket.lists == 2)
    bucket.free.set()
    assert answers(others) == [LISTED] * 5
    assert answers(first) == [None]
    assert bucket.lists == 2


def test_a_lister_that_fails_holds_nobody_up(bucket):
    """Where there is nothing to list, each process says so, and does not wait for the others' requests in turn."""
    bucket.keys.clear()
    assert answers(start(4)) == [[URL]] * 4


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize(
    "damage", [b"", b"garbage", "cut", b"x\x9c\xabV*K-*\xce\xcc\xcfS\xb22\xd4Q*-\xca)V\xb2\x8a\xae\x05\x00"]
)
def test_damaged_files_are_listed_again(bucket, folder, damage):
    """A list is whole, or it is none."""
    (path,) = (path for path in folder.glob("list-*") if "." not in path.name)
    path.write_bytes(path.read_bytes()[:-20] if damage == "cut" else damage)
    assert answers(start(2)) == [LISTED] * 2
    assert bucket.lists == 2


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("what", ["mode", "owner", "link"])
def test_foreign_files_are_refused(bucket, folder, what, tmp_path):
    """A list that another user could have written is not read."""
    (path,) = (path for path in folder.glob("list-*") if "." not in path.name)
    if what == "mode":
        path.chmod(0o646)
    elif what == "owner":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(path, 12345, -1)
    else:
        shutil.copy(path, tmp_path / "theirs")
        path.unlink()
        path.symlink_to(tmp_path / "theirs")
    assert answers(start())[0] == LISTED
    assert bucket.lists == 2


def test_a_foreign_folder_is_refused(bucket, folder):
    """So is the folder."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert answers(start(2)) == [LISTED] * 2
    assert bucket.lists == 2
    assert not list(folder.iterdir())


def test_a_full_disk_costs_requests_only(bucket, folder):
    """A list that cannot be written is used all the same, and no half of it is left."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        f"from support.fleet import expand; assert len(expand(0, {URL!r})) == 20"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be shared" in done.stderr
    assert not [path for path in folder.glob("list-*") if path.suffix in ("", ".part")]
    assert bucket.lists == 1


def test_lists_of_ended_jobs_are_deleted(bucket, folder, monkeypatch):
    """Nothing stays but what a later job cleans up."""
    for job in "abc":
        monkeypatch.setenv("WDS_JOB_ID", job)
        answers(start())
    assert len([path for path in folder.iterdir() if path.name.startswith("list-")]) == 1
    assert bucket.lists == 3


@pytest.mark.parametrize("options", [{"token": object()}, object()])
@pytest.mark.usefixtures("bucket")
def test_options_that_are_objects_are_not_shared(options):
    """Of objects nothing is known that would tell two of them apart."""
    assert shared_listing._plain_options(options) is None
    assert shared_listing._plain_options({"token": "a"}) != shared_listing._plain_options({"token": "b"})


def test_no_secret_is_in_a_name_or_file(bucket, folder):
    """Options enter by a digest, and urls that hold secrets are not shared."""
    assert expand_urls(URL, storage_options={"token": "canary-f00d"}) == LISTED
    content = [path.name.encode() + path.read_bytes() for path in folder.iterdir()]
    assert len(content) > 0
    assert not any(b"canary" in each for each in content)
    assert shared_listing._find_path("s3://user:canary-f00d@bucket/*.tar", None) is None
