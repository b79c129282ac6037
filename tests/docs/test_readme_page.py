"""README claims no more than what the table of figures shows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
TABLE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
CLAIM = re.compile(
    r"small samples are read \*\*([\d.]+) times\*\* cheaper \(([\d.]+) times in pure Python\), JPEGs of 80 KB "
    r"\*\*([\d.]+) times\*\*; small samples are shuffled, decoded and batched \*\*([\d.]+) times\*\* cheaper "
    r"\(([\d.]+)\), and written \*\*([\d.]+) times\*\*"
)
ROWS = (
    "raw iteration W2, small samples",
    "the same without the native core",
    "raw iteration W1, 80 KB JPEGs",
    "W2 shuffle + decode + to_tuple + batched(64)",
    "the same without the native core",
    "writing W2",
)


def reached(name, place):
    """Return the figure that a row of the table has reached; of equal names, that of the given place."""
    figures = re.findall(rf"^\| {re.escape(name)} \|[^|]*\|[^|]*\| ([\d.]+)x \|", TABLE, re.MULTILINE)
    return float(figures[place])


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_figures_are_those_of_the_table(number):
    """Each figure of the sentence is at most, and about, the one that was measured last."""
    claim = CLAIM.search(README)
    assert claim, "the sentence of README has changed: change this test with it"
    name = ROWS[number]
    place = ROWS[:number].count(name)
    assert 0.85 * reached(name, place) <= float(claim[number + 1]) <= reached(name, place)


def test_the_first_screen_has_what_a_newcomer_needs():
    """Within the first 40 lines: how to install it, a program that runs, and the two commands."""
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    for words in ("    pip install '.[", "```python\nimport webdataset as wds\n", "    make demo", "    make test"):
        assert words in screen
