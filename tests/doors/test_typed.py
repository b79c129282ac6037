"""Type checkers see the names of the package in ``__init__.pyi``, since it looks them up when they are used."""

import ast
import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import webdataset as wds

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
