"""constraints.txt names the version of all that the tests' environments install; the check says what differs."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "lock.py"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def lock(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("lock")


def check(file):
    """Return what the check of this environment says of a file, by package."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check", "--file", str(file)], capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()
    assert done.returncode == bool(lines), done.stderr
    return {line.partition(" ")[0]: line for line in lines}


def installed():
    """Return name to version of what is here."""
    found = {canonicalize_name(each.name): Version(each.version).public for each in importlib.metadata.distributions()}
    return {name: version for name, version in found.items() if name != "webdataset"}


def test_what_is_not_locked_or_differs_is_named(tmp_path):
    """An environment as the file says passes; a missing line, another version and a line for another Python do not."""
    file, here = tmp_path / "constraints.txt", installed()
    text = "# versions\n" + "".join(f"{name}=={version}\n" for name, version in here.items())
    file.write_text(text)
    assert check(file) == {}
    wrong = text.replace(f"pytest=={here['pytest']}\n", "").replace(f"numpy=={here['numpy']}\n", "numpy==0.1\n")
    wrong = wrong.replace(f"\npillow=={here['pillow']}\n", f'\npillow=={here["pillow"]}; python_version > "{HERE}"\n')
    file.write_text(wrong)
    messages = check(file)
    assert {*messages} == {"pytest", "numpy", "pillow"}
    assert messages["numpy"] == f"numpy {here['numpy']} is installed; constraints.txt has 0.1"
    assert "no version of it" in messages["pytest"]
    assert "no version of it" in messages["pillow"]


def test_versions_that_differ_between_pythons_are_marked(lock, tmp_path):
    """What was resolved for each Python is read back for it."""
    resolved = {"3.11": {"a": "1", "b": "2", "old": "5"}, "3.13": {"a": "1", "b": "3.1", "new": "4"}}
    file = tmp_path / "constraints.txt"
    file.write_text(lock.HEADER + "".join(lock.lines(resolved)))
    assert lock.read(file, "3.11") == {"a": "1", "b": "2", "new": "4", "old": "5"}
    assert lock.read(file, "3.12")["b"] == "2"
    assert lock.read(file, "3.13") == lock.read(file, "3.14") == {"a": "1", "b": "3.1", "new": "4", "old": "5"}


def needed():
    """Return the names of all that the dependency groups need on this Python, and what that needs in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups, extras = project["dependency-groups"], project["project"]["optional-dependencies"]
    waiting = [Requirement(each) for group in groups.values() for each in group if isinstance(each, str)]
    waiting += [Requirement(each) for each in project["project"]["dependencies"]]
    seen, names = set(), set()
    while waiting:
        requirement = waiting.pop()
        asked = {"", *requirement.extras}
        if str(requirement) in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(str(requirement))
        if requirement.name == "webdataset":
            waiting += [Requirement(each) for extra in requirement.extras for each in extras[extra]]
            continue
        names.add(canonicalize_name(requirement.name))
        try:
            behind = [Requirement(each) for each in importlib.metadata.requires(requirement.name) or ()]
        except importlib.metadata.PackageNotFoundError:
            continue
        for each in behind:
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in asked):
                each.marker = None
                waiting.append(each)
    return names


def test_everything_that_the_groups_need_is_locked(lock):
    """Directly or by way of others; torch stays the version that has builds for CPUs alone."""
    locked = lock.read(lock.LOCK, HERE)
    assert sorted(needed() - {*locked}) == []
    assert len(needed()) > 100 or "torch" not in needed()
    assert locked["torch"] == "2.13.0"
    assert "://" not in lock.LOCK.read_text(encoding="utf-8")


def test_the_lowest_versions_are_those_that_the_project_allows(lock):
    """A bound that is changed in pyproject.toml alone would not be tested."""
    locked, bounds = lock.read(lock.LOWEST, "3.11"), lock.lower_bounds()
    assert {name: Version(locked[name]) for name in bounds} == {name: Version(each) for name, each in bounds.items()}
    assert len(bounds) > 30
    assert "torch" not in locked
    assert "://" not in lock.LOWEST.read_text(encoding="utf-8")
