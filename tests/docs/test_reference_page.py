"""The reference lists every public name."""

import inspect
import re
from pathlib import Path

import webdataset as wds

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def path_of(name):
    """Return where a public module, class or function lives; nothing for a plain value."""
    value = getattr(wds, name)
    if inspect.ismodule(value):
        return value.__name__
    return f"{value.__module__}.{getattr(value, '__qualname__', name)}" if callable(value) else ""


def test_every_public_name_is_in_the_reference():
    """Each name of ``__all__`` is documented where it lives, in a documented module, or in words."""
    text = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    missing = []
    for name in wds.__all__:
        path = path_of(name)
        found = path in documented or any(path.startswith(f"{module}.") for module in documented)
        if not found and f"wds.{name}" not in text:
            missing.append(name)
    assert not missing


def test_every_documented_name_exists_once():
    """No entry is listed twice, and each heading names what the entry documents."""
    text = PAGE.read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)\n(?:    options:\n      heading: (.*)\n)?", text, re.MULTILINE)
    assert len({path for path, _ in entries}) == len(entries) > 100
    for path, heading in entries:
        for shown in filter(None, heading.split(", ")):
            assert path_of(shown.removeprefix("wds.")) in (path, ""), shown
