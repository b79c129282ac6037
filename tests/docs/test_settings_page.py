"""The settings page lists what the library reads, by subject."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from webdataset.core import settings

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "settings_page.py"
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def test_settings_page_is_up_to_date():
    """Each declared environment variable stands in docs/settings.md, with its default and meaning."""
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_each_variable_has_a_row_under_a_subject():
    """Once each, with the kind of its value; those of this library say when one changes them."""
    rows = re.findall(r"^\| `(\w+)`<br>([^;|]+); ([^|]+) \| ([^|]+) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    declared = [each.name for each in vars(settings).values() if isinstance(each, settings.EnvironmentVariable)]
    assert sorted(name for name, *_ in rows) == sorted(declared)
    assert not [name for name, *_, when in rows if name.startswith(("WDS_", "WIDS_")) and not when.strip()]
    assert PAGE.count("\n## ") >= 10


def test_a_variable_without_a_subject_is_refused(monkeypatch):
    """A new variable has to be given one before the page can be written; so has one that is gone."""
    page = runpy.run_path(str(SCRIPT))["page"]
    monkeypatch.setattr(settings, "NEW", settings.EnvironmentVariable("WDS_NEW", 0, int, "something"), raising=False)
    with pytest.raises(SystemExit, match="each variable needs one subject in scripts/settings_page.py: WDS_NEW"):
        page()
    monkeypatch.delattr(settings, "NEW")
    monkeypatch.delattr(settings, "SEED")
    with pytest.raises(SystemExit, match="WDS_SEED"):
        page()
