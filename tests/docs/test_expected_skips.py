"""Under ``WDS_STRICT=1`` a test that is skipped for a reason that nobody expects fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
EXPECTED = f"""# a comment
no GPU
if python_version == "{HERE}": only here
if python_version != "{HERE}": only elsewhere
if extra == "named": only so
if extra == "other": only otherwise
"""
SUITE = """
import pytest

@pytest.mark.parametrize("reason", {reasons!r})
def test_something(reason):
    pytest.skip(reason)

def test_passes():
    pass
"""


@pytest.mark.parametrize(
    ("reasons", "strict", "status", "workers"),
    [
        (["no GPU", "only here"], "1", 0, []),
        (["no GPU", "only here"], "1", 0, ["-n", "1"]),
        (["no GPU", "weed is not installed"], "1", 1, []),
        (["no GPU", "weed is not installed"], "1", 1, ["-n", "1"]),
        (["weed is not installed"], "", 0, []),
        (["weed is not installed: only elsewhere"], "1", 1, []),
        (["only so"], "1", 0, []),
        (["weed is not installed: only otherwise"], "1", 1, []),
    ],
)
def test_what_is_skipped_must_be_expected(tmp_path, reasons, strict, status, workers):
    """Alone and over workers; the reason is shown."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "expected_skips.txt").write_text(EXPECTED, encoding="utf-8")
    (tmp_path / "test_suite.py").write_text(SUITE.format(reasons=reasons), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *workers]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "WDS_STRICT": strict, "WDS_TEST_ENVIRONMENT": "named"},
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert ("weed is not installed" in done.stderr) is bool(status)


@pytest.mark.parametrize(("method", "workers"), [("forkserver", []), ("spawn", ["-n", "1"])])
def test_start_methods_reach_every_process_that_runs_tests(tmp_path, method, workers):
    """Under ``scripts/under.py``, alone and over workers."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_suite.py").write_text(
        f"import multiprocessing\ndef test_it(): assert multiprocessing.get_start_method() == {method!r}\n"
    )
    under = CONFTEST.parents[1] / "scripts" / "under.py"
    words = [sys.executable, str(under), method, "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *workers]
    done = subprocess.run([*words, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
