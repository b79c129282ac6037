"""Hooks of mkdocs: cross references that docstrings write as Sphinx roles become links or plain code."""

import re
from typing import Any

# ``:class:`Loader``` after Markdown has made its backquotes code
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):<code>([!~]?)([^<]+)</code>")


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
