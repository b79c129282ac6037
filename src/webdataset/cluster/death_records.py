"""Remembers at which sample a process died, so that a sample that kills its process is found out.

Theory. While a task runs, a file of its own holds the ordinal of the sample that it works on, written in place before
each sample. A task that ends, in whatever orderly way, removes it. What is found of a process that is gone is a death
at that sample, and is kept until the output is done. A sample is fatal after two deaths by a fault of the program
itself (SIGSEGV, SIGABRT, an exit), and after three where the cause is unknown or SIGKILL, which a scheduler sends too.

The files stand in the manifest where that is a local folder, else in a temporary folder of this host.
"""

import contextlib
import json
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final, Self

from webdataset.cluster.shard_jobs import ShardJob
from webdataset.storage.open_url import local_path
from webdataset.writing.local_file import host_tag, is_alive

_CRASHES: Final = frozenset(
    -int(getattr(signal, name))
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
    if hasattr(signal, name)
)
_WIDTH = 16
_NEEDED = 6
_CRASH_WEIGHT, _OTHER_WEIGHT = 3, 2
_RUNNING = re.compile(r"(?P<number>\d+)\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.running")
_DEATH = re.compile(r"(?P<number>\d+)\..*\.death")


def deaths_folder(job: ShardJob) -> Path:
    """Return the folder of a job's deaths."""
    path = local_path(job.manifest)
    if path is not None:
        return Path(path) / "deaths"
    user = getattr(os, "getuid", int)()
    return Path(tempfile.gettempdir()) / f"wds-map-{user}-{job.key}"


# of the tasks that run in this process
_running: set[Path] = set()


class DeathRecord:
    """The sample that a task works on; a context manager.

    Args:
        job: of the task.
        number: of its output.

    Attributes:
        fatal: ordinals of samples that killed their processes.
    """

    def __init__(self, job: ShardJob, number: int) -> None:
        self._folder = deaths_folder(job)
        self._number = number
        self._path: Path | None = None
        self._descriptor = -1
        self.fatal: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        collect_deaths(self._folder, self._number)
        self.fatal = _find_fatal_samples(self._folder, self._number)
        name = f"{self._number}.{host_tag()}-{os.getpid()}-{os.urandom(4).hex()}.running"
        self._path = self._folder / name
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _running.add(self._path)
        return self

    def begin(self, ordinal: int) -> None:
        """Say which sample is next.

        Args:
            ordinal: of the sample in the output's inputs.
        """
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, b"%0*d" % (_WIDTH, ordinal))

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if self._path is not None:
            _running.discard(self._path)
            self._path.unlink(missing_ok=True)


def withdraw_deaths() -> None:
    """Remove the files of this process's tasks: it ends, and no sample is to blame."""
    for path in list(_running):
        path.unlink(missing_ok=True)


def withdraw_death(job: ShardJob, number: int, pid: int) -> None:
    """Remove the file of a process that was ended on purpose.

    Args:
        job: the job.
        number: of the output that it worked on.
        pid: of the process, which is gone.
    """
    for path in list(deaths_folder(job).glob(f"{number}.{host_tag()}-{pid}-*.running")):
        path.unlink(missing_ok=True)


def forget_interruptions(job: ShardJob, numbers: Iterable[int]) -> None:
    """Remove the files of tasks whose processes are gone, where it is not known which of them was to blame.

    Args:
        job: the job.
        numbers: of the outputs that they worked on.
    """
    folder = deaths_folder(job)
    for number in numbers:
        for path in list(folder.glob(f"{number}.{host_tag()}-*.running")):
            match = _RUNNING.fullmatch(path.name)
            if match is not None and not is_alive(int(match["pid"])):
                path.unlink(missing_ok=True)


def collect_deaths(folder: Path, number: int, *, pid: int | None = None, exit_code: int | None = None) -> None:
    """Turn what processes that are gone left over into deaths.

    Args:
        folder: of :func:`deaths_folder`.
        number: of the output.
        pid: of a process that is known to be gone; None looks which ones are.
        exit_code: of that process.
    """
    for path in list(folder.glob(f"{number}.*.running")) if folder.is_dir() else []:
        match = _RUNNING.fullmatch(path.name)
        if match is None or match["host"] != host_tag():
            continue
        owner = int(match["pid"])
        if owner == pid or (pid is None and owner != os.getpid() and not is_alive(owner)):
            # one of several tasks that look may rename it
            with contextlib.suppress(OSError, ValueError):
                ordinal = int(path.read_bytes() or b"-1")
                record = {"ordinal": ordinal, "exit_code": exit_code}
                claimed = path.with_suffix(".claimed")
                path.rename(claimed)
                path.with_suffix(".death").write_text(json.dumps(record), encoding="ascii")
                claimed.unlink()


def forget_deaths(job: ShardJob, numbers: Container[int]) -> None:
    """Forget the deaths at outputs that are done, and what processes left that died when these were.

    Args:
        job: the job.
        numbers: of the outputs.
    """
    folder = deaths_folder(job)
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        running, death = _RUNNING.fullmatch(path.name), _DEATH.fullmatch(path.name)
        match = running or death
        if match is None or int(match["number"]) not in numbers:
            continue
        if running is None or (running["host"] == host_tag() and not is_alive(int(running["pid"]))):
            path.unlink(missing_ok=True)


def _find_fatal_samples(folder: Path, number: int) -> frozenset[int]:
    weights: Counter[int] = Counter()
    for path in folder.glob(f"{number}.*.death"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            record = json.loads(path.read_bytes())
            code = record["exit_code"]
            # an exit code of its own is no kill
            crashed = code is not None and (code >= 0 or code in _CRASHES)
            weights[int(record["ordinal"])] += _CRASH_WEIGHT if crashed else _OTHER_WEIGHT
    return frozenset(ordinal for ordinal, weight in weights.items() if weight >= _NEEDED and ordinal >= 0)
