"""Runs the tests that failed once more, alone, where ``WDS_RERUN_FAILED`` allows it.

A test that waits for another process can fail on a machine with no time left, and one such test of sixteen thousand
would refuse a change that is right. So CI gives the few that failed a second run, one after the other in a process of
their own, with the machine to themselves. What fails again has failed. What passes is named as unsteady at the end of
the output, with the whole report of its failure above, and is to be mended. More failures than ``WDS_RERUN_FAILED``
get no second run, nor do files that could not be collected.
"""

import os
import subprocess
import sys

import pytest

_failed: dict[str, None] = {}
_unsteady: list[str] = []


def note_report(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Note a test that failed.

    Args:
        report: of a test.
    """
    if report.failed:
        _failed[report.nodeid] = None


def run_failed_again(session: pytest.Session) -> None:
    """Let the session pass if the few tests that failed pass alone.

    Args:
        session: that has ended, in the process that reports.
    """
    most = int(os.environ.get("WDS_RERUN_FAILED") or 0)
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(_failed) <= most:
        return
    # a file that could not be collected counts as a failure too, and cannot be run by itself
    if any("::" not in nodeid for nodeid in _failed):
        return
    command = [sys.executable, "-m", "pytest", "-q", *_failed]
    # all that are named, not a share of them
    environment = {**os.environ, "WDS_RERUN_FAILED": "", "WDS_TEST_SHARE": "1", "WDS_TEST_CASES": "1"}
    done = subprocess.run(command, cwd=session.config.rootpath, env=environment, check=False)
    if done.returncode == 0:
        _unsteady.extend(_failed)
        session.exitstatus = pytest.ExitCode.OK


def name_unsteady(reporter: pytest.TerminalReporter) -> None:
    """Name the tests that failed and then passed alone.

    Args:
        reporter: writes to the terminal.
    """
    if _unsteady:
        reporter.section("unsteady tests: they failed, then passed alone", yellow=True)
        for nodeid in _unsteady:
            reporter.line(f"UNSTEADY {nodeid}")
