"""What the site makes of the pages, as far as that needs no mkdocs: code blocks, links, the list of pages."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
HOOKS = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))


def anchors(page):
    """Return the anchors that the headings of a page get, and those that it writes itself."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words.encode("ascii", "ignore").decode()))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_code_blocks_have_one_word(name):
    """A block that is marked for the tests (``torch``, ``no-run: …``) is a code block on the site, too."""
    shown = HOOKS["on_page_markdown"]((ROOT / name).read_text(encoding="utf-8"))
    assert not re.findall(r"^```\w+ .*$", shown, re.MULTILINE)
    assert len(re.findall("^```", shown, re.MULTILINE)) % 2 == 0


def test_only_the_mark_is_left_out():
    """The code of a block, and blocks without a mark, stay as they are."""
    text = "```python no-run: why not\nx = 1\n```\n\n```python\ny = 2\n```\n"
    assert HOOKS["on_page_markdown"](text) == "```python\nx = 1\n```\n\n```python\ny = 2\n```\n"


@pytest.mark.parametrize("name", [*NAMES, "README.md", "AGENTS.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    """Each link to a page, a section or a picture of this repository leads to one that exists."""
    page = ROOT / name
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        file = (page.parent / target) if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), f"{target}{anchor}"


def test_every_page_is_in_the_navigation():
    """No page can be reached by its address alone."""
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES}


def test_pages_that_sources_name_exist():
    """Docstrings, comments and the settings page send readers to pages that are there."""
    folders = (ROOT / "src", ROOT / "examples", ROOT / "bench", ROOT / "scripts")
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    named = {page for path in sources for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert len(named) > 10
    assert not [page for page in sorted(named) if not (ROOT / page).exists()]
