"""SLURM itself runs what ``wds map --print slurm`` prints: arrays, offsets and steps, tasks that are sent back."""

import os
import shlex
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from support import mapped, slurm_cluster
from support.command import SRC, WDS, run_wds
from support.mapped import make_shards, read_outputs
from support.slurm_cluster import SlurmCluster

missing = slurm_cluster.find_missing_programs()
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"SLURM is not installed ({', '.join(missing)}): see scripts/servers.sh"
)

TESTS = Path(__file__).parents[1]
COUNTS = [14, 0, 18, 9, 11]
TASKS = 3
RULES: Any = {"on_sample_error": "quarantine"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Run a cluster of this machine alone; the path of its sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as text:
        folder = Path(text)
        folder.chmod(0o755)
        with slurm_cluster.run_cluster(folder) as found:
            yield found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the inputs, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("slurm")
    make_shards(folder / "in", COUNTS)
    wds.map_shards(mapped.vary_slowly, f"{folder}/in/*.tar", f"{folder}/out/", **RULES)
    return folder / "in", read_outputs(folder / "out")


@pytest.fixture
def script(reference: tuple[Path, dict[str, Any]], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Return the printed script as a file, and the variables by which its ``wds`` is this checkout's."""
    variables = {"PYTHONPATH": os.pathsep.join([str(SRC), str(TESTS)])}
    words = ["map", "support.mapped:vary_slowly", f"{reference[0]}/*.tar", "-o", f"{tmp_path}/out/"]
    words += ["--on-sample-error", "quarantine", "--print", "slurm", "--of", str(TASKS), "--parallel", "2"]
    text = run_wds(*words, PYTHONPATH=variables["PYTHONPATH"]).stdout.decode()
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "wds"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, WDS))} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = tmp_path / "job.sh"
    path.write_text(text)
    return path, {**variables, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def submit(cluster: SlurmCluster, script: tuple[Path, dict[str, str]], *options: str) -> str:
    """Submit an array; return its number."""
    path, variables = script
    places = {**variables, "PATH": f"{variables['PATH']}{os.pathsep}{cluster.variables['PATH']}"}
    program = shutil.which("sbatch", path=cluster.variables["PATH"])
    assert program is not None
    said = f"--output={path.parent}/said-%a.txt"
    return cluster.call(program, "--parsable", said, "--open-mode=append", *options, str(path), **places).strip()


def wait_for(cluster: SlurmCluster, job: str) -> None:
    """Wait until SLURM has nothing of an array in its queue."""
    until = time.monotonic() + 100
    looks: Counter[str] = Counter()
    while left := cluster.call("squeue", "-h", "-r", "-j", job, "-o", "%i %t").splitlines():
        assert time.monotonic() < until, cluster.read_logs()
        for task, state in (line.split() for line in left):
            looks[task] += state == "PD"
            # what was sent back waits for two minutes; without a pause the node takes it for the run that was ended
            if looks[task] > 15:
                cluster.try_call("scontrol", "update", f"JobId={task}", "StartTime=now")
        time.sleep(0.2)


@pytest.mark.parametrize("array", [None, "5-9:2"])
def test_an_array_makes_what_one_process_makes(
    cluster: SlurmCluster,
    reference: tuple[Path, dict[str, Any]],
    script: tuple[Path, dict[str, str]],
    array: str | None,
) -> None:
    """Three tasks at two at a time, also of an array that begins elsewhere and has a step: equal bytes."""
    wait_for(cluster, submit(cluster, script, *(() if array is None else (f"--array={array}",))))
    said = [path.read_text() for path in sorted(script[0].parent.glob("said-*.txt"))]
    assert len(said) == TASKS
    for number, text in enumerate(said):
        assert f"task {number} of {TASKS}, by SLURM_ARRAY_TASK_ID" in text
    assert read_outputs(script[0].parent / "out") == reference[1]


def test_a_task_that_is_sent_back_ends_with_the_same_bytes(
    cluster: SlurmCluster, reference: tuple[Path, dict[str, Any]], script: tuple[Path, dict[str, str]]
) -> None:
    """SLURM ends a task in its midst and puts it into the queue again (preemption): equal bytes, nothing left over."""
    folder = script[0].parent
    job = submit(cluster, script)
    until = time.monotonic() + 100
    sent_back = 0
    while not sent_back:
        assert time.monotonic() < until, cluster.read_logs()
        time.sleep(0.02)
        if list(folder.glob("out/_wds/*/deaths/*.running")):
            # one that ends meanwhile is none that could be sent back
            for task in cluster.call("squeue", "-h", "-t", "R", "-j", job, "-o", "%i").split():
                sent_back += cluster.try_call("scontrol", "requeue", task).returncode == 0
    wait_for(cluster, job)
    said = {path.name: path.read_text() for path in folder.glob("said-*.txt")}
    assert read_outputs(folder / "out") == reference[1], (said, cluster.read_logs())
    assert not [path for path in folder.rglob("*") if path.name.endswith((".partial", ".running", ".death"))]
