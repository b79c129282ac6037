"""The laws script finds each breach it is there for, and nothing in a clean tree."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "laws.py"

CLEAN = '''"""A module."""


def half(number: int) -> float:
    """Return half of a number."""
    return number / 2
'''

BREACHES = {
    "long module": ("stages/a.py", CLEAN + "\n" * 600, "at most 600"),
    "much code": ("stages/a.py", CLEAN + "x = 1\n" * 400, "at most 400"),
    "long function": ("stages/a.py", CLEAN + "    \n" * 60 + "    return 1\n", "at most 60"),
    "assert": ("stages/a.py", CLEAN + "assert half\n", "assert"),
    "print": ("stages/a.py", CLEAN + "print(half)\n", "print outside cli"),
    "environment": ("stages/a.py", CLEAN + "import os\nos.environ['A']\n", "environment read"),
    "environment by name": ("stages/a.py", CLEAN + "from os import getenv\n", "environment read"),
    "bare except": ("stages/a.py", CLEAN + "try:\n    half(1)\nexcept:\n    pass\n", "broad except"),
    "broad except": ("stages/a.py", CLEAN + "try:\n    half(1)\nexcept Exception:\n    pass\n", "broad except"),
    "no module docstring": ("stages/a.py", "x = 1\n", "module without a docstring"),
    "no function docstring": ("stages/a.py", CLEAN + "def third(): ...\n", "third without a docstring"),
    "no method docstring": ("stages/a.py", CLEAN + 'class A:\n    """A."""\n    def b(self): ...\n', "b without"),
    "compatibility module that works": ("handlers.py", CLEAN, "a compatibility module only re-exports"),
    "compatibility module with a lambda": (
        "handlers.py",
        '"""Compatibility module."""\n\nhalf = lambda number: number / 2\n',
        "a compatibility module only re-exports",
    ),
    "torch": ("stages/a.py", CLEAN + "import torch.nn\n", "torch imported"),
    "torch from": ("flow/a.py", CLEAN + "def f():\n    '''F.'''\n    from torch import nn\n", "torch imported"),
}

ALLOWED = {
    "cli prints": ("cli/a.py", CLEAN + "print(half)\n"),
    "settings read": ("core/settings.py", CLEAN + "import os\nos.environ['A']\n"),
    "explained except": (
        "stages/a.py",
        CLEAN + "try:\n    half(1)\nexcept Exception:  # noqa: BLE001  user code may raise anything\n    pass\n",
    ),
    "a late-bound module composes": ("filters.py", CLEAN),
    "compatibility module re-exports": (
        "mix.py",
        '"""Compatibility module."""\n\nfrom .stages import a\n\nb = a.b\nc = a.made(b)\n__all__ = ["a"]\n',
    ),
    "torch at home": ("loading/torch_loader.py", CLEAN + "import torch\n"),
    "overloads": ("stages/a.py", CLEAN + "from typing import overload\n@overload\ndef f(x: int) -> int: ...\n"),
}


def laws(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on a tree."""
    return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)


def plant(root: Path, name: str, text: str) -> Path:
    """Write one source file into a tree."""
    path = root / "src" / "webdataset" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("case", BREACHES)
def test_breach_is_found(tmp_path, case):
    """Each breach fails the run and is named with file and line."""
    name, text, message = BREACHES[case]
    plant(tmp_path, name, text)
    result = laws(tmp_path)
    assert result.returncode == 1
    assert f"src/webdataset/{name}:" in result.stdout
    assert message in result.stdout


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed_code_passes(tmp_path, case):
    """What the laws allow gives no breach."""
    name, text = ALLOWED[case]
    plant(tmp_path, name, text)
    result = laws(tmp_path)
    assert result.returncode == 0, result.stdout


def test_a_folder_whose_head_is_no_index_is_found(tmp_path):
    """Modules and folders that the head does not name; once they are named, the law is content."""
    head = plant(tmp_path, "stages/__init__.py", '"""Stages: ``shuffle``."""\n')
    for name in ("shuffle.py", "batch.py", "more/__init__.py"):
        plant(tmp_path, f"stages/{name}", '"""A module."""\n')
    result = laws(tmp_path)
    assert result.returncode == 1
    assert "src/webdataset/stages/__init__.py:1: the folder's head does not name ``batch``" in result.stdout
    assert "does not name ``more``" in result.stdout
    assert "``shuffle``" not in result.stdout
    head.write_text('"""Stages: ``shuffle``, ``batch``, ``more``."""\n')
    assert laws(tmp_path).returncode == 0


def test_undocumented_test_is_found(tmp_path):
    """A test without a docstring is a breach."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_a(): ...\n")
    result = laws(tmp_path)
    assert result.returncode == 1
    assert "tests/test_a.py:1: test test_a without a docstring" in result.stdout


TIMED = {
    "a subtraction": "began = time.monotonic()\nwork()\nassert time.monotonic() - began < 5",
    "a subtraction that is kept": "began = time.perf_counter()\nwork()\ntook = time.perf_counter() - began",
    "two readings": "a = time.process_time()\nwork()\nb = time.process_time()\nassert b - a < 1",
    "what is told to others": "began = time.time()\nwork()\nresult['seconds'] = time.time() - began",
    "a name of its own": "began = time()\nwork()\nassert time() - began < 5",
    "dates": "began = datetime.now()\nwork()\nassert (datetime.now() - began).seconds < 5",
    "a limit in the future": "until = time.monotonic() + 5\nwork()\nassert time.monotonic() < until",
    "a program in a text": "run('''\nimport time\nbegan = time.monotonic()\nprint(time.monotonic() - began)\n''')",
}
UNTIMED = {
    "waiting": "until = time.monotonic() + 5\nwhile not done():\n    assert time.monotonic() < until",
    "waiting in its condition": "began = time.monotonic()\nwhile time.monotonic() - began < 5:\n    work()",
    "what is left": "until = time.monotonic() + 5\nchild.wait(until - time.monotonic())\nassert child.returncode == 0",
    "a date in the past": "os.utime(path, (time.time() - 86400,) * 2)\nassert path.exists()",
    "a clock of its own": "clock = Clock()\nrun(clock)\nassert clock.now - 3 < 5",
}


def as_test(body: str) -> str:
    """Return a test file with one test."""
    return 'def test_a():\n    """A."""\n    ' + body.replace("\n", "\n    ") + "\n"


@pytest.mark.parametrize("case", [*TIMED, *UNTIMED])
def test_durations_in_tests_are_found(tmp_path, case):
    """A test that measures how long something takes is a breach; one that waits for an event is none."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(as_test({**TIMED, **UNTIMED}[case]))
    result = laws(tmp_path)
    assert ("a duration decides" in result.stdout) is (result.returncode == 1) is (case in TIMED), result.stdout


def test_properties_have_no_deadline():
    """Hypothesis fails no example for the time that it takes."""
    assert settings().deadline is None


@pytest.mark.parametrize(
    ("body", "breach"),
    [
        ("if not given:\n    return\nassert given", True),
        ("assert given is not None\nif not given:\n    return\nassert given.size", False),
        ("for one in given:\n    if one:\n        return\nassert given", True),
        ("if not given:\n    assert empty()\n    return\nassert given", False),
        ("def inner():\n    if given:\n        return\n    work()\nassert inner() is None", False),
    ],
)
def test_tests_that_return_early_are_found(tmp_path, body, breach):
    """A test that may return before it has asserted anything is a breach."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(as_test(body))
    result = laws(tmp_path)
    assert ("returns before it has asserted" in result.stdout) is (result.returncode == 1) is breach, result.stdout


def test_figures_are_printed(tmp_path):
    """The last line says how large modules and functions are."""
    plant(tmp_path, "stages/a.py", CLEAN)
    assert "1 modules: median 6 lines" in laws(tmp_path).stdout


def test_every_file_is_type_checked():
    """Type checkers are given all Python files; those that need no annotations are there."""
    root = SCRIPT.parents[1]
    mypy = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=False).stdout
    assert [
        path for path in listed.splitlines() if not path.startswith(tuple(f"{each}/" for each in mypy["files"]))
    ] == []
    assert "exclude" not in mypy
    assert not any(each.get("ignore_errors") or each.get("follow_imports") for each in mypy["overrides"])
    (relaxed,) = (each["module"] for each in mypy["overrides"] if "loader" in each["module"])
    assert {*relaxed} <= {path.stem for path in (root / "bench").rglob("*.py")}
