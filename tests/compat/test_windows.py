"""On Windows shards are read, written and loaded; what does not work there says so. Played on this system.

``support.windows_double`` takes away what Python lacks there, and refuses what Windows refuses.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import windows_double
from support.command import command_environment

PROGRAM = Path(__file__).with_name("windows_cases.py")
CASES = [
    line.split("(")[0].removeprefix("def case_")
    for line in PROGRAM.read_text().splitlines()
    if line.startswith("def case_")
]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the double asks /proc which files are open")


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Return a function that runs a program, on this system or in processes that see Windows."""
    start = tmp_path_factory.mktemp("start")
    windows_double.write_start(start)

    def run(folder, *words, windows=True):
        environment = command_environment(PYTHONWARNINGS="default")
        if windows:
            environment["PYTHONPATH"] = os.pathsep.join([str(start), environment["PYTHONPATH"]])
        command = [sys.executable, *map(str, words)]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    return run


@pytest.fixture(scope="module")
def shards(tmp_path_factory, play):
    """Write the shards as on this system."""
    folder = tmp_path_factory.mktemp("shards")
    ended = play(folder, PROGRAM, "write", windows=False)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.torch if "torch" in case else ()) for case in CASES]
)
def test_on_windows(play, shards, tmp_path, case):
    """Each in a folder of its own."""
    if "torch" in case:
        pytest.importorskip("torch")
    for shard in shards.glob("x-*.tar"):
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    ended = play(tmp_path, PROGRAM, case)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-3000:]


REFUSED = {
    "fork": "import os\nos.fork()",
    "pread": "from os import pread",
    "fcntl": "import fcntl",
    "a map with flags": "import mmap\nmmap.mmap(-1, 10, flags=1)",
    "an open file is renamed": "import os\nwith open('a', 'w'):\n    os.replace('a', 'b')",
    "a mapped file is removed": (
        "import mmap, os\nopen('a', 'w').write('x')\n"
        "file = open('a', 'r+')\nheld = mmap.mmap(file.fileno(), 1)\nfile.close()\nos.unlink('a')"
    ),
    "a rename onto a file": "import os\nopen('a', 'w').close()\nopen('b', 'w').close()\nos.rename('a', 'b')",
    "a text is written": "import os\nos.write(os.open('a', os.O_WRONLY | os.O_CREAT), b'x\\n')",
    "a folder is opened": "import os\nos.open('.', os.O_RDONLY)",
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_double_refuses_what_windows_refuses(play, tmp_path, case):
    """Of the library's modules alone."""
    (tmp_path / "webdataset").mkdir()
    (tmp_path / "webdataset" / "__init__.py").write_text(REFUSED[case])
    (tmp_path / "program.py").write_text("import webdataset")
    ended = play(tmp_path, "program.py")
    assert ended.returncode == 1
    assert "Error" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("case", ["pread", "fcntl", "a text is written", "a folder is opened", "a rename onto a file"])
def test_other_modules_see_this_system(play, tmp_path, case):
    """What others of the process do is as before."""
    (tmp_path / "program.py").write_text(REFUSED[case])
    ended = play(tmp_path, "program.py")
    assert ended.returncode == 0, ended.stderr
