"""What the quick start lists is all there is."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_extra_is_listed():
    """The table under Extras names the extras of pyproject.toml, no more and no fewer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    rows = page.split("| extra | for |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(project["optional-dependencies"])
