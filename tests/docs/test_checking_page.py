"""The pages about checks show the table of the kinds of findings, and the profiles, as they are."""

import re
from pathlib import Path

from webdataset.inspection.finding_kinds import KINDS, SEVERITIES
from webdataset.inspection.reader_profiles import ProfileSet
from webdataset.inspection.repair import REPAIRED

PAGES = Path(__file__).resolve().parents[2] / "docs"
KINDS_PAGE = (PAGES / "check-findings.md").read_text(encoding="utf-8")
PAGE = (PAGES / "checking.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_code():
    """Every kind in its order, with severity, meaning and remedy, and nothing else."""
    table = KINDS_PAGE.partition("| code | severity |")[2].splitlines()[2:]
    assert table == [f"| `{kind.code}` | {kind.severity} | {kind.meaning} | {kind.remedy} |" for kind in KINDS.values()]


def test_kinds_are_whole():
    """A severity that is known, a meaning and a remedy that are sentences; what is repaired is a kind."""
    for kind in KINDS.values():
        assert kind.severity in SEVERITIES
        assert kind.meaning.endswith(".")
        assert kind.remedy.endswith(".")
    assert set(KINDS) >= REPAIRED


def test_profiles_are_named():
    """Every profile has its row."""
    rows = re.findall(r"^\| `(\w+)` \| [A-Z]", PAGE, re.MULTILINE)
    assert [profile.name for profile in ProfileSet(rows).profiles] == rows
    assert {f"refused-{name}" for name in rows} == {code for code in KINDS if code.startswith("refused-")}
