"""On Windows and macOS shards are read, written and loaded; what does not work there says so. Simulated.

``support.other_systems`` takes away what Python lacks there, and refuses what Windows refuses.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import other_systems
from support.command import command_environment

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("system_cases.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the simulation asks /proc which files are open")


CASES = [
    line.split("(")[0].removeprefix("def case_")
    for line in PROGRAM.read_text().splitlines()
    if line.startswith("def case_")
]
OF_WINDOWS = ("paths",)


@pytest.fixture(scope="module")
def run_on(tmp_path_factory):
    """Return a function that runs a program in processes that see a system."""

    def run(system, folder, *words):
        environment = command_environment(PYTHONWARNINGS="default")
        if system != sys.platform:
            start = tmp_path_factory.mktemp("start")
            other_systems.write_start(start, system)
            environment["PYTHONPATH"] = os.pathsep.join([str(start), environment["PYTHONPATH"], str(TESTS)])
        command = [sys.executable, *map(str, words)]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    return run


@pytest.fixture(scope="module")
def shards(tmp_path_factory, run_on):
    """Write the shards as on this system."""
    folder = tmp_path_factory.mktemp("shards")
    ended = run_on(sys.platform, folder, PROGRAM, "write", sys.platform)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.parametrize(
    ("case", "system"),
    [
        pytest.param(case, system, marks=pytest.mark.torch if "torch" in case else ())
        for case in CASES
        for system in other_systems.SYSTEMS
        if system == "win32" or case not in OF_WINDOWS
    ],
)
def test_on_another_system(run_on, shards, tmp_path, case, system):
    """Each in a folder of its own."""
    if "torch" in case:
        pytest.importorskip("torch")
    for shard in shards.glob("x-*.tar"):
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    ended = run_on(system, tmp_path, PROGRAM, case, system)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-3000:]


REFUSED = {
    ("win32", "fork"): "import os\nos.fork()",
    ("win32", "pread"): "from os import pread",
    ("win32", "fcntl"): "import fcntl",
    ("win32", "a map with flags"): "import mmap\nmmap.mmap(-1, 10, flags=34)",
    ("win32", "an open file is renamed"): "import os\nwith open('a', 'w'):\n    os.replace('a', 'b')",
    ("win32", "a mapped file is removed"): (
        "import mmap, os\nopen('a', 'w').write('x')\n"
        "file = open('a', 'r+')\nheld = mmap.mmap(file.fileno(), 1)\nfile.close()\nos.unlink('a')"
    ),
    ("win32", "a rename onto a file"): "import os\nopen('a', 'w').close()\nopen('b', 'w').close()\nos.rename('a', 'b')",
    ("win32", "a text is written"): "import os\nos.write(os.open('a', os.O_WRONLY | os.O_CREAT), b'x\\n')",
    ("win32", "a folder is opened"): "import os\nos.open('.', os.O_RDONLY)",
    ("darwin", "memfd_create"): "from os import memfd_create",
    ("darwin", "seals"): "import fcntl\nfcntl.F_ADD_SEALS",
    ("darwin", "a file of the kernel"): "open('/proc/self/stat')",
    ("darwin", "a path of the kernel"): "from pathlib import Path\nPath('/proc/self/statm').read_text()",
    ("darwin", "a link of the kernel"): "import os\nos.readlink('/proc/self/ns/pid')",
}
OF_FILES = ("an open file is renamed", "a mapped file is removed")


@pytest.mark.parametrize(("system", "case"), REFUSED)
def test_the_simulation_refuses_what_the_system_refuses(run_on, tmp_path, system, case):
    """Of the library's modules alone, but for files in use."""
    (tmp_path / "webdataset").mkdir()
    (tmp_path / "webdataset" / "__init__.py").write_text(REFUSED[system, case])
    (tmp_path / "program.py").write_text("import webdataset")
    ended = run_on(system, tmp_path, "program.py")
    assert ended.returncode == 1
    assert ("PermissionError" if case in OF_FILES else "Error") in ended.stderr.splitlines()[-1]
    (tmp_path / "other.py").write_text(REFUSED[system, case].replace("os.fork()", "os.getpid()"))
    ended = run_on(system, tmp_path, "other.py")
    assert (ended.returncode == 0) == (case not in OF_FILES), ended.stderr
