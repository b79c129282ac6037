"""The Python blocks of the page about storage run against real services."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "storage.md"


def ran(scheme):
    """Run the blocks of one scheme, one after the other; return how many there are."""
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    chosen = [block for block in blocks if f"{scheme}://" in block]
    names = {}
    for block in chosen:
        exec(compile(block, str(PAGE), "exec"), names)
    return len(chosen)


@pytest.mark.usefixtures("environment")
def test_the_page_runs_on_s3():
    """The blocks about S3."""
    assert ran("s3") == 3


def test_the_page_runs_on_google_cloud(gs):
    """The block about Google Cloud Storage."""
    assert ran("gs") == 1


def test_the_page_runs_on_azure(az):
    """The block about Azure Storage."""
    assert ran("az") == 1
