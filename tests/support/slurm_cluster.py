"""SLURM on this machine: a controller and one node of Debian's packages, as the user who runs the tests.

The daemons stand in the foreground under a folder of their own: nothing of the system's configuration is used, and
nothing is left when the cluster has ended.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol")
_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_READY_SECONDS = 60
_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
MaxArraySize=100
NodeName=localhost CPUs=2 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster(NamedTuple):
    """A cluster that runs.

    Args:
        folder: of its files; shared with its node, as all is.
        variables: of the environment, by which SLURM's commands find it.
    """

    folder: Path
    variables: Mapping[str, str]

    def call(self, *words: str, **more: str) -> str:
        """Run one of SLURM's commands; return what it prints.

        Args:
            words: of the command.
            more: of the environment, beside what the commands need.
        """
        done = self.try_call(*words, **more)
        assert done.returncode == 0, (words, done.stdout, done.stderr, self.read_logs())
        return done.stdout

    def try_call(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run one of SLURM's commands; return what came of it; arguments as for :meth:`call`."""
        environment = {**os.environ, **self.variables, **more}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=240)

    def read_logs(self) -> str:
        """Return the ends of what the daemons wrote."""
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in self.folder.glob("slurm*.log"))


def find_missing_programs() -> list[str]:
    """Return the programs of SLURM and munge that are not installed here."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PLACES) is None]


def find_free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def run_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Run a cluster of one node with two processors.

    Args:
        folder: for its files; its path is short, and all parts of it may be entered by anyone (munge wants that).

    Raises:
        RuntimeError: its node does not become ready.
    """
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    configuration = folder / "slurm.conf"
    ports = {"controller": find_free_port(), "node": find_free_port()}
    configuration.write_text(_CONFIGURATION.format(user=getpass.getuser(), folder=folder, **ports))
    variables = {"SLURM_CONF": str(configuration), "PATH": _PLACES}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands: list[Sequence[str]] = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        ["slurmctld", "-D", "-i", "-f", str(configuration)],
        ["slurmd", "-D", "-N", "localhost", "-f", str(configuration)],
    ]
    started: list[subprocess.Popen[bytes]] = []
    cluster = SlurmCluster(folder, variables)
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as said:
                started.append(
                    subprocess.Popen(command, env={**os.environ, **variables}, stdout=said, stderr=subprocess.STDOUT)
                )
            if command[0] == "munged":
                _await(lambda: (folder / "munge.socket").exists(), cluster)
        _await(lambda: "idle" in _ask_for_nodes(cluster), cluster)
        yield cluster
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ask_for_nodes(cluster: SlurmCluster) -> str:
    environment = {**os.environ, **cluster.variables}
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False)
    return done.stdout


def _await(is_ready: Callable[[], bool], cluster: SlurmCluster) -> None:
    until = time.monotonic() + _READY_SECONDS
    while not is_ready():
        if time.monotonic() > until:
            said = "\n".join(path.read_text(errors="replace")[-1000:] for path in cluster.folder.glob("*.out"))
            raise RuntimeError(f"SLURM does not become ready: {said}\n{cluster.read_logs()}")
        time.sleep(0.1)
