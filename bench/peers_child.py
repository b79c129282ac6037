"""The libraries that ``make bench-peers`` asks, and a process of each (``peers/reading.py``) that answers."""

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from harness import HERE, ORACLE

ROOT = HERE.parent
DEADLINE_SECONDS = float(os.environ.get("BENCH_DEADLINE", "120"))


class Way(NamedTuple):
    """A library, used in one way.

    Args:
        title: what the tables call it.
        environment: its environment as ``scripts/peers.py`` names it, or "ours" or "1.0.2".
        module: its part of ``peers/``.
        reader: which of the module's readers.
        places: where its own format holds sizes and offsets: bytes from the beginning or the end of a file. Empty if it
            reads tar shards as they are.
        raw: whether it gives the bytes of all fields; if not, it only takes part in damage.
    """

    title: str
    environment: str
    module: str
    reader: str = "plain"
    places: tuple[int, ...] = ()
    raw: bool = True


WAYS = {
    "ours": Way("this library", "ours", "read_tars"),
    "elastic": Way("this library, `elastic()`", "ours", "read_tars", "elastic"),
    "mapped": Way("this library, `memory_map=True`", "ours", "read_tars", "mapped"),
    "1.0.2": Way("webdataset 1.0.2", "1.0.2", "read_tars"),
    "litdata": Way("litdata, views of its mapped file", "litdata", "read_litdata", places=(0, 8, 20, 40)),
    "litdata_bytes": Way("litdata, bytes", "litdata", "read_litdata", "copied", (0, 8, 20, 40)),
    "mosaic": Way("MosaicML Streaming, iterated", "mosaic", "read_mosaic", places=(0, 8, 20, 40)),
    "mosaic_numbers": Way("MosaicML Streaming, by number", "mosaic", "read_mosaic", "by_number", (0, 8, 20, 40)),
    "lance": Way("Lance, samples", "lance", "read_lance", places=(-40, -30, -16, -100)),
    "lance_batches": Way("Lance, Arrow batches", "lance", "read_lance", "batches", (-40, -30, -16, -100)),
    "parquet": Way("HF datasets, Parquet", "datasets", "read_parquet", places=(-8, -40, -120, -300)),
    "hf_tars": Way("HF datasets, tar shards", "datasets", "read_hf_tars"),
    "grain": Way("grain, ArrayRecord", "grain", "read_grain", places=(66, 80, 90, 100)),
    "spdl": Way("SPDL `iter_tarfile`", "spdl", "read_spdl"),
    "dali": Way("DALI, CPU", "dali", "read_dali"),
    "turboloader": Way("TurboLoader", "turboloader", "read_turboloader", raw=False),
}
TRAININGS = {
    "ours": Way("this library", "ours", "read_train", "train"),
    "crop": Way("this library, `random_resized_crop`", "ours", "read_crop", "train"),
    "1.0.2": Way("webdataset 1.0.2", "1.0.2", "read_train", "train"),
    "turboloader": Way("TurboLoader", "turboloader", "read_turboloader", "train"),
}


class RefusedError(Exception):
    """A library raised an error instead of an answer."""


class GoneError(Exception):
    """A library's process died, or did not answer in time."""


def interpreter(environment: str) -> Path:
    """Return the interpreter of an environment.

    Args:
        environment: as in ``Way``.

    Raises:
        GoneError: it is not there, with the reason that ``scripts/peers.py`` has left.
    """
    if environment in ("ours", "1.0.2"):
        python = Path(sys.executable) if environment == "ours" else ORACLE
        if python.exists():
            return python
        raise GoneError(f"there is no {python}")
    found = ROOT / ".venvs" / "peers.json"
    problems = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    if problems.get(environment, "make bench-peers has not made its environment") is None:
        return ROOT / ".venvs" / f"peer-{environment}" / "bin" / "python"
    raise GoneError(str(problems.get(environment, "it has no environment; make bench-peers makes one")))


class Child:
    """A process that reads in one way.

    Args:
        way: the way.
        folder: where it may write.
    """

    def __init__(self, way: Way, folder: Path) -> None:
        self.way, self.home = way, folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        words = [str(interpreter(way.environment)), str(HERE / "peers" / "reading.py"), way.module, way.reader]
        environment = {**os.environ, "HOME": str(self.home), "TMPDIR": str(self.home), "HF_HUB_OFFLINE": "1"}
        environment |= {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "DO_NOT_TRACK": "1"}
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.home,
            )

    def ask(self, job: str, **parameters: Any) -> Any:
        """Let it do one job and return the result.

        Args:
            job: a method of ``peers/reading.py``.
            **parameters: its arguments.

        Raises:
            RefusedError: the library raised an error.
            GoneError: it died or hangs; the process is ended.
        """
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has no pipes")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"job": job, **parameters}).encode() + b"\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.close()
            raise GoneError(f"dies ({self.process.returncode})" if ready else "hangs")
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
