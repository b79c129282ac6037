"""Every Python block of the README and the documentation runs as it stands."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", NAMES)
def test_page_runs(pages, name, tmp_path, monkeypatch):
    """The blocks of one page run one after the other in an empty directory."""
    monkeypatch.chdir(tmp_path)
    pages.run(ROOT / name)


def test_readme_has_code(pages):
    """The README shows code, so that the test above tests something."""
    assert len(pages.blocks(ROOT / "README.md")) >= 4


def test_no_block_is_left_out_without_a_reason(pages):
    """Blocks that are not run say why."""
    for page in PAGES:
        for line, mark, _ in pages.blocks(page):
            assert mark in ("", "torch") or len(mark) > len("no-run: why"), f"{page}:{line}"


def test_unknown_mark_is_refused(pages, tmp_path):
    """A mistyped mark does not silently leave a block out."""
    page = tmp_path / "page.md"
    page.write_text("```python norun\n1\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:1: a block is marked 'norun'"):
        pages.run(page)


def test_failing_block_names_page_and_line(pages, tmp_path):
    """An error in a block is reported at the page's own line."""
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        pages.run(page)
    assert caught.traceback[-1].lineno + 1 == 5
