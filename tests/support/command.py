"""Runs the command ``wds`` as its users do: as a program of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WDS = [sys.executable, "-m", "webdataset"]
SRC = Path(__file__).resolve().parents[2] / "src"


def command_environment(**changes: str) -> dict[str, str]:
    """Return the environment to run it in: this package first, and no colours."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1", **changes}
    if "WDS_FULL_TRACEBACKS" not in changes:  # the suite sets it for itself
        environment.pop("WDS_FULL_TRACEBACKS", None)
    return environment


def start_wds(
    *arguments: str | os.PathLike[str],
    stdin: int = subprocess.PIPE,
    stdout: int | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start ``wds``, with Ctrl-C as a terminal leaves it: a program in the background is started without it."""
    return subprocess.Popen(
        [*WDS, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=command_environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  the suite has no threads here
    )


def run_wds(
    *arguments: str | os.PathLike[str],
    stdin: bytes = b"",
    status: int = 0,
    cwd: str | os.PathLike[str] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``wds``; fail where its exit status is another than ``status``."""
    done = subprocess.run(
        [*WDS, *(os.fspath(argument) for argument in arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=command_environment(**environment),
        timeout=120,
        check=False,
    )
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr.decode()[-2000:])
    return done


def json_lines(done: subprocess.CompletedProcess[bytes]) -> list[Any]:
    """Return what each line of the output says."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def wait_for_read(pid: int) -> None:
    """Wait until a process waits for standard input; where the system does not tell, for a second."""
    while True:
        try:
            call = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
        except OSError:
            time.sleep(1)
            return
        if len(call) > 1 and int(call[1], 16) == 0 and call[0] in ("0", "63"):  # read, on x86 and on arm
            return
        time.sleep(0.01)


def shell(script: str, cwd: str | os.PathLike[str], **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script of bash in which ``wds`` is the command."""
    define = f'wds() {{ "{sys.executable}" -m webdataset "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", define + script],
        capture_output=True,
        cwd=cwd,
        env=command_environment(**environment),
        timeout=120,
        check=False,
    )
