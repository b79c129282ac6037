"""Which rank a process is, by what its launcher and its libraries say."""

import logging
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import types

import pytest

import webdataset as wds
from webdataset.core import distributed
from webdataset.core.distributed import WorkerContext, detect_context, detect_rank, has_only_launcher, worker_context
from webdataset.core.errors import UsageError

NAMES = [
    "WDS_RANK", "WDS_WORLD_SIZE", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_JOB_ID", "WORKER", "NUM_WORKERS",
]  # fmt: skip
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "6"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "5"}
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Nobody says anything, and nothing has been logged yet."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(distributed, "_logged_conflicts", set())
    monkeypatch.setattr(distributed, "_accepted_claims", [])
    for module in ("torch.distributed", "jax", "jax._src.distributed"):
        monkeypatch.delitem(sys.modules, module, raising=False)


def say(monkeypatch, *settings):
    """Set environment variables."""
    for setting in settings:
        for name, text in setting.items():
            monkeypatch.setenv(name, text)


@pytest.mark.parametrize(
    ("variables", "expected", "launcher"),
    [
        ({}, (0, 1), False),
        ({"WDS_RANK": "5", "WDS_WORLD_SIZE": "6"}, (5, 6), False),
        (TORCHRUN, (2, 8), False),
        (OPEN_MPI, (3, 4), True),
        (MVAPICH, (1, 6), True),
        (MPICH, (1, 5), True),
        (SRUN, (1, 3), True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}, (0, 3), True),
        ({"RANK": "2"}, (0, 1), False),  # half of a pair
        ({"PMI_RANK": "1"}, (0, 1), False),
    ],
)
def test_each_launcher(monkeypatch, variables, expected, launcher):
    """The variables of each launcher are understood."""
    say(monkeypatch, variables)
    assert detect_rank()[1:3] == expected
    assert (worker_context().rank, worker_context().world_size) == expected == detect_context()[:2]
    assert has_only_launcher() is launcher


def test_precedence(monkeypatch):
    """The user, then torchrun, then MPI, then SLURM."""
    said = [SRUN, MPICH, MVAPICH, OPEN_MPI, TORCHRUN, {"WDS_RANK": "0", "WDS_WORLD_SIZE": "9"}]
    expected = [(1, 3), (1, 5), (1, 6), (3, 4), (2, 8), (0, 9)]
    for variables, one in zip(said, expected, strict=True):
        say(monkeypatch, variables)
        assert detect_rank()[1:3] == one


@pytest.mark.parametrize(
    "shell",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script, which is in no step
        {"SLURM_NTASKS": "8"},  # salloc
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"},  # srun -n1
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "4294967290"},  # salloc's interactive step
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "4294967291"},  # the step of a batch script
    ],
)
def test_a_shell_of_slurm_is_one_process(monkeypatch, shell):
    """However many tasks the job was granted, its shell is alone."""
    say(monkeypatch, {"SLURM_JOB_ID": "7"}, shell)
    assert detect_rank()[1:3] == (0, 1)


def test_torch_is_asked_where_it_is_initialised(monkeypatch):
    """torch.distributed goes before MPI and SLURM, and behind RANK; its groups are asked too."""
    distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        group=types.SimpleNamespace(WORLD="world"),
        get_rank=lambda group: 1 if group == "world" else 0,
        get_world_size=lambda group: 4 if group == "world" else 2,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    say(monkeypatch, SRUN, OPEN_MPI)
    assert detect_rank()[:3] == ("torch.distributed", 1, 4)
    assert detect_rank("part")[1:3] == (0, 2)
    assert not has_only_launcher()
    say(monkeypatch, TORCHRUN)
    assert detect_rank()[1:3] == (2, 8)


def jax_of(number, count, client=True):
    """Return the modules of a JAX that is, or is not, initialised; asking it for devices is an error."""
    state = types.SimpleNamespace(process_id=number, num_processes=count, client=object() if client else None)
    distributed = types.SimpleNamespace(is_initialized=lambda: client)
    return {
        "jax": types.SimpleNamespace(distributed=distributed),
        "jax._src.distributed": types.SimpleNamespace(global_state=state),
    }


def test_jax_is_asked_without_starting_a_device(monkeypatch):
    """What jax.distributed was initialised with is read; a JAX that was not says nothing."""
    for name, module in jax_of(2, 4).items():
        monkeypatch.setitem(sys.modules, name, module)
    assert detect_rank()[:3] == ("jax.distributed", 2, 4)
    for name, module in jax_of(0, 1, client=False).items():
        monkeypatch.setitem(sys.modules, name, module)
    say(monkeypatch, SRUN)
    assert detect_rank()[1:3] == (1, 3)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_is_spawned_hears_of_its_rank(monkeypatch, tmp_path, method):
    """What a library told the parent comes to the worker with the dataset; a pickle for nobody carries nothing."""
    for name, module in jax_of(2, 4).items():
        monkeypatch.setitem(sys.modules, name, module)
    seen = tmp_path / "seen"
    note = lambda shards: (seen.open("a").write(shard["url"]) for shard in shards)  # noqa: E731, SIM115  by value
    made = wds.DataPipeline(wds.SimpleShardList(list("abcdefgh")), wds.split_by_node, note)
    worker = multiprocessing.get_context(method).Process(target=list, args=(made,))
    worker.start()
    worker.join(100)
    assert worker.exitcode == 0
    assert seen.read_text() == "cg"
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.delitem(sys.modules, "jax._src.distributed")
    pickle.loads(pickle.dumps(made))
    assert detect_rank()[0] == "none"


LATER = """
import multiprocessing, os, sys
import webdataset as wds

def note(shards):
    for shard in shards:
        print(shard["url"], os.environ.get("WDS_SEED"), os.environ.get("WDS_SECURE"), flush=True)
        yield shard

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    os.environ.update(WDS_SECURE="1", **eval(sys.argv[1]))
    first = context.Process(target=print)
    first.start()
    first.join()
    del os.environ["WDS_SECURE"]
    os.environ.update(RANK="1", WORLD_SIZE="4", WDS_SEED="5")
    made = wds.DataPipeline(wds.SimpleShardList(list("abcdefgh")), wds.split_by_node, note)
    worker = context.Process(target=list, args=(made,))
    worker.start()
    worker.join()
"""


@pytest.mark.parametrize("before", [{}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_a_forkserver_that_began_before_the_rank_was_set(tmp_path, before):
    """Its children read the variables of the process that starts them, not those of the moment when it began."""
    script = tmp_path / "later.py"
    script.write_text(LATER)
    done = subprocess.run(
        [sys.executable, script, repr(before)], check=True, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split("\n")[1:] == ["b 5 None", "f 5 None", ""]


def test_jax_of_other_versions_is_asked_for_its_process(monkeypatch):
    """Where its state cannot be read, jax.process_index is asked, once it is initialised."""
    jax = types.SimpleNamespace(
        distributed=types.SimpleNamespace(is_initialized=lambda: True),
        process_index=lambda: 1,
        process_count=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert detect_rank()[1:3] == (1, 2)


def test_the_real_jax(tmp_path):
    """JAX itself, where it is installed: initialised as one of one."""
    pytest.importorskip("jax")
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    code = (
        "import jax; from webdataset.core.distributed import detect_rank; assert detect_rank()[0] == 'none'\n"
        f"jax.distributed.initialize('localhost:{port}', 1, 0); assert detect_rank()[:3] == ('jax.distributed', 0, 1)"
    )
    on_cpu = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=100, env=on_cpu)


def test_conflicts_are_told_once(monkeypatch, caplog):
    """Two who know better than a launcher, and disagree, are named once; the first one is taken."""
    for name, module in jax_of(0, 2).items():
        monkeypatch.setitem(sys.modules, name, module)
    say(monkeypatch, TORCHRUN)
    with caplog.at_level(logging.WARNING, "webdataset"):
        assert [detect_rank()[1:3] for _ in range(3)] == [(2, 8)] * 3
    assert len(caplog.records) == 1
    assert "RANK and WORLD_SIZE say that this is rank 2 of 8, but jax.distributed says rank 0 of 2" in caplog.text
    assert "WDS_RANK" in caplog.text


def test_a_launcher_around_another_is_no_conflict(monkeypatch, caplog):
    """One torchrun on each node, started by srun: that is usual; what the user says contradicts nobody."""
    say(monkeypatch, SRUN, TORCHRUN)
    assert detect_rank()[1:3] == (2, 8)
    say(monkeypatch, {"WDS_RANK": "0", "WDS_WORLD_SIZE": "1"})
    assert detect_rank()[1:3] == (0, 1)
    assert not caplog.records


def test_launchers_that_disagree(monkeypatch, caplog):
    """MPI within SLURM, with other numbers: both started processes."""
    say(monkeypatch, SRUN, OPEN_MPI)
    assert detect_rank()[1:3] == (3, 4)
    assert "Open MPI's variables say that this is rank 3 of 4, but SLURM's variables says rank 1 of 3" in caplog.text


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WDS_RANK": "1"}, "both WDS_RANK and WDS_WORLD_SIZE"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 of 4; ranks are numbered from 0"),
        ({"WDS_RANK": "-1", "WDS_WORLD_SIZE": "2"}, "rank -1 of 2"),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK='x' cannot be read"),
    ],
)
def test_mistakes(monkeypatch, variables, message):
    """Numbers that cannot be are refused by name."""
    say(monkeypatch, variables)
    with pytest.raises(UsageError, match=message):
        detect_rank()


def test_workers_are_asked_as_before(monkeypatch):
    """The worker comes from WORKER and NUM_WORKERS, whoever says the rank."""
    say(monkeypatch, SRUN, {"WORKER": "1", "NUM_WORKERS": "2"})
    assert worker_context() == WorkerContext(1, 3, 1, 2)
