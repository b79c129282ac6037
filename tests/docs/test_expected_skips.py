"""Under ``WDS_STRICT=1`` a test that is skipped for a reason that nobody expects fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SUITE = """
import pytest

@pytest.mark.parametrize("reason", {reasons!r})
def test_something(reason):
    pytest.skip(reason)

def test_passes():
    pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
@pytest.mark.parametrize(
    ("reasons", "strict", "status"),
    [(["no GPU"], "1", 0), (["no GPU", "weed is not installed"], "1", 1), (["weed is not installed"], "", 0)],
)
def test_what_is_skipped_must_be_expected(tmp_path, reasons, strict, status, workers):
    """Alone and over workers; the reason is shown."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "expected_skips.txt").write_text("# a comment\nno GPU\n", encoding="utf-8")
    (tmp_path / "test_suite.py").write_text(SUITE.format(reasons=reasons), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *workers]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "WDS_STRICT": strict},
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert ("weed is not installed" in done.stderr) is bool(status)
