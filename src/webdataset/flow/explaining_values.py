"""Arguments and functions as an explanation shows them.

Flows in: anything that a stage was given. Flows out: short text, the same in every process. Never calls the ``repr`` of
what it does not know (it may hold secrets, or an address in memory), and never shows a url with its credentials.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from webdataset.ground.redaction import redacted

LONGEST = 60
_NUMBERS = (bool, int, float, complex, type(None))


def shown(value: Any) -> str:
    """Return a value as text.

    Args:
        value: numbers, text, functions, short lists of these; of anything else only the type is shown.
    """
    if isinstance(value, _NUMBERS):
        return repr(value)
    if isinstance(value, str):
        text = redacted(value)
        return repr(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")
    if isinstance(value, list | tuple | set | frozenset):
        return _listed(value)
    return function(value) if callable(value) else _by_kind(value)


def _by_kind(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return "{" + ", ".join(redacted(str(name)) for name in list(value)[:8]) + ("…}" if len(value) > 8 else "}")
    return type(value).__qualname__


def _listed(value: Any) -> str:
    parts = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
    inside = ", ".join(shown(part) for part in parts[:4]) + (f", … {len(parts)} in all" if len(parts) > 4 else "")
    return f"[{inside}]" if isinstance(value, list) else f"({inside})"


def function(called: Any) -> str:
    """Return the name of a function and the file and line it is written in, as ``name (file.py:12)``.

    Args:
        called: a function, method, class, partial (whose arguments are not shown) or object that can be called.
    """
    if isinstance(called, functools.partial):
        return f"partial of {function(called.func)}"
    inner = inspect.unwrap(called) if inspect.isroutine(called) else called
    inner = getattr(inner, "__func__", inner)
    name = getattr(inner, "__qualname__", None)
    if name is None:
        name, inner = type(called).__qualname__, type(called).__call__
    return f"{name.rpartition('.<locals>.')[2]}{_place(inner)}"


def _place(called: Any) -> str:
    code = getattr(called, "__code__", None)
    if code is None or _ours(called):
        return ""
    return f" ({code.co_filename}:{code.co_firstlineno})"


def _ours(called: Any) -> bool:
    return str(getattr(called, "__module__", "")).partition(".")[0] == "webdataset"


def urls(found: list[Any]) -> str:
    """Return how many urls there are, and the first and the last of them.

    Args:
        found: urls.
    """
    count = f"{len(found)} shard{'' if len(found) == 1 else 's'}"
    named = [redacted(str(url)) for url in (found[:1] if len(found) < 2 else [found[0], found[-1]])]
    return f"{count}: {' … '.join(named)}" if named else count
