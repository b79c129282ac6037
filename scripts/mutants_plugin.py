"""What ``scripts/mutants.py`` adds to pytest: it records what each test covers, or runs chosen tests alone.

Under ``MUTANTS_RECORD`` (a folder) every test's lines are recorded under its name, those of its child processes
included, and its outcome and seconds are written to ``tests.jsonl``. Under ``MUTANTS_CHOSEN`` (a file, one name a line)
only those tests run, in that order, and the names of those that fail are written beside it.
"""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

_told: list[str] = []  # the profiles of Hypothesis that are loaded


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Let Hypothesis draw the same examples each time, and stop at the first that fails, where a file needs it."""
    if _told or b"hypothesis" not in module_path.read_bytes():
        return
    hypothesis = importlib.import_module("hypothesis")
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
    _told.append("mutants")


def chosen() -> list[str]:
    """Return the names of the tests to run; none means all."""
    path = os.environ.get("MUTANTS_CHOSEN")
    return Path(path).read_text(encoding="utf-8").splitlines() if path else []


def written(name: str) -> str:
    """Return a test's name as one line of UTF-8."""
    return name.encode("unicode_escape").decode()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in their order."""
    places = {name: place for place, name in enumerate(chosen())}
    if places:
        kept = [item for item in items if written(item.nodeid) in places]
        config.hook.pytest_deselected(items=[item for item in items if written(item.nodeid) not in places])
        items[:] = sorted(kept, key=lambda item: places[written(item.nodeid)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Record a test's lines under its name."""
    folder = os.environ.get("MUTANTS_RECORD")
    if not folder:
        return (yield)
    coverage = importlib.import_module("coverage").Coverage.current()
    os.environ["MUTANTS_TEST"] = name = written(item.nodeid)
    Path(folder, "present").write_text(name, encoding="utf-8")
    coverage.switch_context(name)
    try:
        return (yield)
    finally:
        coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test's outcome."""
    folder, path = os.environ.get("MUTANTS_RECORD"), os.environ.get("MUTANTS_CHOSEN")
    if folder:
        with Path(folder, "tests.jsonl").open("a", encoding="utf-8") as log:
            line = {"test": written(report.nodeid), "outcome": report.outcome, "seconds": round(report.duration, 4)}
            log.write(json.dumps(line) + "\n")
    if path and report.failed:
        with Path(path + ".failed").open("a", encoding="utf-8") as log:
            log.write(written(report.nodeid) + "\n")
