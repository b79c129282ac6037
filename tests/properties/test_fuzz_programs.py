"""The programs of fuzz/ play cases, and see a core that differs, breaks memory rules or dies."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from webdataset.samples import native_core

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
pytestmark = pytest.mark.skipif(native_core.load_native()[0] is None, reason="the native core was not compiled")
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def run(program, *words):
    """Run a program; return its exit status and what it printed."""
    command = [sys.executable, str(FUZZ / f"{program}.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def changed_core(tmp_path, monkeypatch):
    """A function that compiles a core with a part of its source replaced."""
    monkeypatch.syspath_prepend(str(FUZZ))
    spec = importlib.util.spec_from_file_location("fuzz_cores", FUZZ / "cores.py")
    cores = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cores)

    def compile_changed(before, after):
        folder = tmp_path / "native"
        shutil.copytree(cores.SOURCE.parent, folder)
        source = (folder / "take_samples.c").read_text()
        assert source.count(before) == 1
        (folder / "take_samples.c").write_text(source.replace(before, after))
        monkeypatch.setattr(cores, "SOURCE", folder / "module.c")
        cores.compile_module(tmp_path / "_native.so", "-O1")
        return tmp_path / "_native.so"

    return compile_changed


def test_cases_are_played():
    """So many as were asked for, in two processes; none differs."""
    status, said = run("differential", "--cases", 400, "--processes", 2, "--seed", "test")
    assert status == 0, said
    found = json.loads(said.splitlines()[-1])
    assert (found["cases"], found["differing"]) == (400, 0)


@needs_compiler
def test_a_core_that_differs_is_seen(changed_core):
    """One that does not verify checksums: the cases are named, and each can be played again."""
    core = changed_core("return read_octal(header + 148, 8) == (long long)sum;", "return sum > 0;")
    status, said = run("differential", "--cases", 400, "--core", core)
    assert status == 1, said
    assert json.loads(said.splitlines()[-1])["differing"] > 0
    name = next(line.split()[0] for line in said.splitlines() if line.endswith("differs:"))
    status, said = run("differential", "--case", name, "--core", core)
    assert status == 1
    assert "Python" in said
    assert "native" in said
    assert run("differential", "--case", name) == (0, f"{name}: no difference\n")


@needs_compiler
def test_a_case_that_kills_is_named(changed_core):
    """The process dies, the program says of what, and its exit status is another one."""
    core = changed_core("    if (pos < 0) {", "    if (source.end > 0) __builtin_trap();\n    if (pos < 0) {")
    status, said = run("differential", "--cases", 400, "--processes", 1, "--core", core)
    assert status == 2, said
    assert "a process died, perhaps of 0.0." in said


def test_without_memory():
    """Where an allocation of the core fails, the reading says so, or nothing is missing."""
    pytest.importorskip("_testcapi")
    status, said = run("core_memory", "allocations", "--cases", 6)
    assert status == 0, said
    assert json.loads(said.splitlines()[-1])["readings without memory"] > 0


@needs_compiler
def test_samples_without_offsets_are_seen(changed_core):
    """A core that leaves a sample without its offset where there is no memory for it: the fuzz found that one."""
    pytest.importorskip("_testcapi")
    core = changed_core("PyList_SetSlice(samples, count, count + 1, NULL);", "")
    status, said = run("core_memory", "allocations", "--cases", 20, "--core", core)
    assert status == 1, said


@needs_compiler
def test_leaks_are_seen(changed_core):
    """A core that does not release the stamp of a shard."""
    core = changed_core("    Py_CLEAR(self->stamp);\n", "")
    status, said = run("core_memory", "leaks", "--cases", 400, "--core", core)
    assert status == 1, said
    assert json.loads(said.splitlines()[-1])["leaks"] is True


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_the_target_of_libfuzzer_runs(tmp_path):
    """It compiles, and plays the inputs that it begins with and some more."""
    status, said = run("coverage", "--corpus", tmp_path / "corpus", "--seconds", 20, "-runs=700")
    assert status == 0, said
    assert "cov: " in said
