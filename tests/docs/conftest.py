"""Runs the Python blocks of Markdown pages, as a reader would type them."""

import importlib.util
import os
import re
import types
from pathlib import Path
from typing import Any

import pytest

FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
TORCH_THERE = importlib.util.find_spec("torch") is not None


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """Return (line, mark, code) of each block of a page that is fenced as Python.

    Args:
        page: a Markdown file. A fence is ``python``, ``python torch`` (left out where torch is not installed) or
            ``python no-run: reason``.
    """
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        language, _, mark = fence["kind"].strip().partition(" ")
        if language.lower() == "python":
            found.append((text.count("\n", 0, fence.start("code")), mark.strip(), fence["code"]))
    return found


def run_page(page: Path, **names: Any) -> dict[str, Any]:
    """Run the blocks of a page, one after the other, in one namespace and the present directory.

    Args:
        page: the Markdown file.
        **names: what the page takes for granted.

    Returns:
        The namespace afterwards.

    Raises:
        ValueError: a fence is marked with something else than ``torch`` or ``no-run: reason``.
    """
    namespace: dict[str, Any] = {"__name__": "page", **names}
    for line, mark, code in blocks(page):
        if mark.startswith("no-run: ") or (mark == "torch" and not TORCH_THERE):
            continue
        if mark not in ("", "torch"):
            raise ValueError(f"{page}:{line}: a block is marked {mark!r}; write 'torch' or 'no-run: reason'")
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
    return namespace


@pytest.fixture
def pages() -> types.SimpleNamespace:
    """Give ``pages.run(page, **names)`` and ``pages.blocks(page)``."""
    return types.SimpleNamespace(run=run_page, blocks=blocks)


@pytest.fixture(autouse=True)
def environment():
    """Put the environment back: examples set variables as a program of its own would."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
