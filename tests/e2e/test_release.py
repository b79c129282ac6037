"""``make wheels``: the files that are released build twice to the same bytes, and hold what they must."""

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_is_reproducible_and_complete(tmp_path):
    """The script compares two builds; the wheel has code, types and the viewer's page, and no tests; the sums hold."""
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), str(tmp_path)]
    environment = {**os.environ, "WDS_FREE_THREADED": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert len(sums) == 3
    for name, digest in sums.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    (native,) = tmp_path.glob("*-cp311-abi3-*.whl")
    assert "webdataset/_native.abi3.so" in zipfile.ZipFile(native).namelist()
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "webdataset/_native.abi3.so" not in names
    for needed in (
        "webdataset/py.typed",
        "webdataset/__init__.pyi",
        "webdataset/viewer/static/app.js",
        "wids/__init__.py",
    ):
        assert needed in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "support/", "bench/")) for name in names)
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "constraints.txt", "Makefile", "tests/conftest.py"} <= held
    assert not any(name.startswith((".venv", ".oracles", ".servers", "build/")) for name in held)


FREE_THREADED = os.environ.get("WDS_FREE_THREADED", "")


@pytest.mark.skipif(not FREE_THREADED, reason="no free-threaded Python is named by WDS_FREE_THREADED")
def test_a_free_threaded_python_gets_a_wheel(tmp_path):
    """Its wheel has a tag and a module of that version alone, which works there and leaves the lock off."""
    python = FREE_THREADED.split(os.pathsep)[0]
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = tmp_path.glob("*-cp3*t-*.whl")
    (module,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("webdataset/_native.c"))
    assert module.startswith("webdataset/_native.cpython-3")
    assert "webdataset/_native.abi3.so" not in zipfile.ZipFile(wheel).namelist()
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = "import sys, webdataset._native, webdataset; print(webdataset.__native__, sys._is_gil_enabled())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
    assert said.split() == ["yes", "False"]


def build_wheel(folder, **environment):
    """Build a wheel alone; return its name and what was said."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return [path.name for path in folder.glob("*.whl")], done.returncode, done.stdout + done.stderr


def test_without_a_compiler_the_wheel_is_pure(tmp_path):
    """No compiler, or one that fails: a wheel for every machine, and a word about it; ``WDS_NATIVE=1`` is an error."""
    missing = str(tmp_path / "no-compiler")
    names, code, said = build_wheel(tmp_path / "pure", CC=missing)
    assert code == 0, said
    assert names == ["webdataset-2.0.0.dev0-py3-none-any.whl"]
    assert "the native core is left out" in said
    names, code, _ = build_wheel(tmp_path / "wanted", CC=missing, WDS_NATIVE="1")
    assert code != 0
    assert names == []
