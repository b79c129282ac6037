"""Hooks of mkdocs: marks of code blocks are left out; cross references of docstrings become links or plain code."""

import re
from typing import Any

# ``:class:`Loader``` after Markdown has made its backquotes code
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):<code>([!~]?)([^<]+)</code>")
# what tests/docs says of a block (``torch``, ``no-run: reason``): with it the block would be no code block here
_MARKED_FENCE = re.compile(r"^(```python) .*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's text with the mark of each code block left out.

    Args:
        markdown: the text of one page.
    """
    return _MARKED_FENCE.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Return a page's content with each role as code; where the name's own heading is on the page, as a link to it.

    Args:
        html: the content of one page.
    """
    anchors = set(re.findall(r'id="([\w.]+)"', html))
    by_name = {anchor.rpartition(".")[2]: anchor for anchor in sorted(anchors, reverse=True)}

    def link(found: re.Match[str]) -> str:
        path = found[2]
        shown = path.rpartition(".")[2] if found[1] == "~" else path
        anchor = path if path in anchors else by_name.get(path.rpartition(".")[2])
        return f'<a href="#{anchor}"><code>{shown}</code></a>' if anchor else f"<code>{shown}</code>"

    return _ROLE.sub(link, html)
