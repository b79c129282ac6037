"""The Python blocks of the page about storage run against a real service."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "storage.md"


@pytest.mark.usefixtures("environment")
def test_the_page_runs():
    """All blocks, one after the other."""
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
