"""Type checkers see the names of the package in ``__init__.pyi``, since it looks them up when they are used."""

import ast
import dataclasses
import importlib.util
import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.samples.reading import Reading, ReadingOptions

STUB = Path(wds.__file__).with_suffix(".pyi")
SCRIPT = Path(__file__).parents[2] / "scripts" / "package_stub.py"


def passed_on():
    """Return public name to (module, name there), as the stub says."""
    found = {}
    for statement in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.level:
            for alias in statement.names:
                found[alias.asname] = (statement.module, alias.name)
    return found


def test_stub_names_what_the_package_serves():
    """Each name that the stub passes on is the very thing that the package gives."""
    for public, (home, name) in passed_on().items():
        if public in vars(wds)["_ASKED"] and not importlib.util.find_spec("torchdata"):
            continue
        here = getattr(wds, public)
        if home is None:
            assert isinstance(here, types.ModuleType)
            assert here is importlib.import_module(f"webdataset.{name}")
        else:
            assert here is getattr(importlib.import_module(f"webdataset.{home}"), name), public


def test_stub_leaves_out_nothing():
    """Every public name and module is typed."""
    typed = {*passed_on(), "gopen"}
    assert set(wds.__all__) - {"pytorch_weights_only"} <= typed
    assert vars(wds)["_MODULES"] <= typed
    assert "pytorch_weights_only: bool" in STUB.read_text(encoding="utf-8")


def test_stub_is_as_written():
    """The file is what the script writes."""
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def mypy(tmp_path, text):
    """Return what mypy says of a program that uses the package."""
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        str(tmp_path),
        str(program),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_every_public_name_has_a_type(tmp_path):
    """No name is Any or unknown to mypy, lazily served or not."""
    pytest.importorskip("mypy")
    names = [*wds.__all__, "WebDatasetError"]
    lines = mypy(tmp_path, "import webdataset as wds\n" + "".join(f"reveal_type(wds.{name})\n" for name in names))
    assert len(lines) == len(names), lines
    assert [line for line in lines if 'Revealed type is "Any"' in line or "error" in line.partition(" note:")[0]] == []


def test_misspelt_and_mistyped_arguments_are_type_errors(tmp_path):
    """Of a dataset: also those that it passes on to the rules of reading."""
    pytest.importorskip("mypy")
    calls = ["shardshufle=1", "missing_end='never'", "duplicates=3", "split_samples='warn'", "prefetch=0, lcase=False"]
    text = "import webdataset as wds\n" + "".join(f"wds.WebDataset('x.tar', {call})\n" for call in calls)
    assert [line.partition(": ")[0].rpartition(":")[2] for line in mypy(tmp_path, text) if "error:" in line] == [
        "2",
        "3",
        "4",
    ]


def test_reading_options_are_those_of_reading():
    """What a dataset passes on is what the rules of reading take, but for what it has arguments of its own for."""
    known = {field.name for field in dataclasses.fields(Reading)}
    own = {*inspect.signature(wds.WebDataset.__init__).parameters}
    assert {*ReadingOptions.__annotations__} == known - own - {"cache"}


def test_dir_shows_public_names_alone():
    """And the special names that every module has."""
    shown = [name for name in dir(wds) if not name.startswith("__")]
    assert {*shown} == {*wds.__all__, *vars(wds)["_MODULES"], *vars(wds)["_ASKED"]}
