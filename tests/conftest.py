"""What holds for every test: it leaves no copy of its process behind, and pays for no garbage but its own.

A forked child that outlives its test holds this process's sockets, locks and pipes open: a later test, or the end of
the whole run, then waits for ever. So the test that leaves one fails, and the child is ended.

Ten thousand tests and what they import are half a million objects. Walking them takes more than half a second each time
that a test collects its garbage, and many do; so collections pass over what was there when a file's tests began.
"""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import settings
from packaging.markers import Marker

from support import failed_tests

# where the suite runs again: one of so many cases of tests marked `repeats`, and of examples (scripts/test_all.py)
SHARE = int(os.environ.get("WDS_TEST_SHARE", "1"))
# of every other test one of so many cases, beginning with the first
CASES = int(os.environ.get("WDS_TEST_CASES", "1"))
# how long an example takes decides nothing
settings.register_profile("untimed", settings(), deadline=None, max_examples=100 // SHARE)
settings.load_profile("untimed")
# what fails here is looked at by those who write the library
os.environ.setdefault("WDS_FULL_TRACEBACKS", "1")
# programs that tests start find the package `support` as the tests do
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))

PATIENCE_SECONDS = 10.0
# what processes share is this run's alone: an earlier run's services refused at the same ports
RUNTIME = tempfile.TemporaryDirectory(prefix="wds-tests-")
os.environ["XDG_RUNTIME_DIR"] = RUNTIME.name
OURS = Path("/proc/self/cmdline")


def copies():
    """Return the pids of the living children that were forked and have not become another program."""
    found = []
    for tasks in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(pid) for pid in tasks.read_text().split() if is_copy(int(pid))]
    return found


def is_copy(pid):
    """Tell whether a child runs the words that this process runs; one that has ended runs none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == OURS.read_bytes()
    except OSError:
        return False


def pass_over():
    """Let collections pass over all that there is now."""
    gc.collect()
    gc.freeze()


def pytest_configure():
    """Start processes as ``scripts/under.py`` says, in each process that runs tests."""
    if method := os.environ.get("WDS_TEST_START_METHOD"):
        multiprocessing.set_start_method(method, force=True)
        # children of the server need not import these each
        multiprocessing.set_forkserver_preload(["torch", "webdataset"])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Make no collection of garbage while tests are collected: there is little, and it walks all that was collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out the cases that this run has no share in."""
    seen, kept, left = Counter(), [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        number = seen[name]
        repeats = item.get_closest_marker("repeats") is not None
        stays = number % (SHARE if repeats else CASES) == 0
        (kept if stays else left).append(item)
        seen[name] += 1
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish(session):
    """Begin with the tests themselves; their functions travel by value to processes that cannot import them."""
    if os.environ.get("WDS_TEST_START_METHOD"):
        for module in {item.module for item in session.items if hasattr(item, "module")}:
            cloudpickle.register_pickle_by_value(module)
    pass_over()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Fail the test that leaves a forked child."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        pass_over()
    left = copies() if OURS.exists() else []
    until = time.monotonic() + PATIENCE_SECONDS
    while left and time.monotonic() < until:
        gc.collect()  # a loader in a circle of references ends its workers here
        time.sleep(0.05)
        left = copies()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if left:
        pytest.fail(f"{item.nodeid} leaves {len(left)} forked processes", pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test of hostile inputs in a copy of this process with limits; a copy that ends silently fails the test."""
    marker = pyfuncitem.get_closest_marker("limited")
    if marker is None or not OURS.exists():
        return None
    from support.hostile import call_limited

    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    def skipped():
        try:
            pyfuncitem.obj(**given)
        except pytest.skip.Exception as reason:
            return str(reason)

    reason = call_limited(skipped, **marker.kwargs)
    return True if reason is None else pytest.skip(reason)


@pytest.fixture
def ends_unmarked(monkeypatch):
    """Archives without an end mark are read without a word, as by somebody who set ``WDS_MISSING_END=ignore``."""
    monkeypatch.setenv("WDS_MISSING_END", "ignore")


_skips: set[tuple[str, str]] = set()


def pytest_runtest_logreport(report):
    """Note what failed, and what was skipped, and why."""
    failed_tests.note_report(report)
    if report.skipped and not hasattr(report, "wasxfail"):
        _skips.add((report.nodeid, report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)))


def pytest_collectreport(report):
    """Note what was skipped as a whole."""
    pytest_runtest_logreport(report)


def expected_here(line):
    """Return what a line of expected_skips.txt expects on this Python and in this environment, or nothing."""
    if line.startswith("if "):
        condition, _, line = line.removeprefix("if ").partition(": ")
        environment = {"extra": os.environ.get("WDS_TEST_ENVIRONMENT", "")}
        return line if Marker(condition).evaluate(environment) else ""
    return "" if line.startswith("#") else line


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Run the few that failed again; under ``WDS_STRICT=1``, fail where tests were skipped that CI does not expect."""
    if hasattr(session.config, "workerinput"):
        return
    failed_tests.run_failed_again(session)
    if not _skips or not os.environ.get("WDS_STRICT"):
        return
    lines = Path(__file__).with_name("expected_skips.txt").read_text(encoding="utf-8").splitlines()
    expected = [reason for line in lines if (reason := expected_here(line))]
    surprising = [skip for skip in sorted(_skips) if not any(re.search(reason, skip[1]) for reason in expected)]
    if surprising:
        listed = "".join(f"\n  {nodeid}: {reason}" for nodeid, reason in surprising)
        sys.stderr.write(f"\nskipped, and not in tests/expected_skips.txt:{listed}\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """Name the tests that passed in their second run."""
    failed_tests.name_unsteady(terminalreporter)
