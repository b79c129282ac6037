"""What a user's function is called where two of them are to be told apart, in every process and Python version.

Flows in: functions. Flows out: names. What a name does not tell (the names and constants of a lambda, defaults, what a
closure or a partial holds) is hashed into it, as far as it is numbers and text. File and line are left out, since they
change with every edit. Never calls the function, and never shows what it holds.
"""

import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any

from .levels import named

_PLAIN = (bool, int, float, str, bytes, type(None))
_LOADING = ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST")
_DEEPEST = 4  # of functions that hold functions


def function_named(function: Any) -> str:
    """Return the name of a function, and a digest of what else tells it apart.

    Args:
        function: a function, method, class, partial or an object that can be called.
    """
    known = sorted(_held(function, 0))
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = named(inner)
    if not known:
        return name
    return f"{name}#{hashlib.blake2b(repr(known).encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _held(value: Any, depth: int) -> Iterable[str]:
    """Yield what a function, or something it holds, is made of."""
    if depth > _DEEPEST:
        return
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, list | tuple | set | frozenset):
        for place, part in enumerate(sorted(value, key=repr) if isinstance(value, set | frozenset) else value):
            yield from (f"{place}.{text}" for text in _held(part, depth + 1))
    elif isinstance(value, functools.partial):
        for name, part in {"": value.args, "func": value.func, **value.keywords}.items():
            yield from (f"{name}={text}" for text in _held(part, depth + 1))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, depth)
    elif isinstance(value, types.MethodType) and isinstance(value.__func__, types.FunctionType):
        yield from _of_function(value.__func__, depth)
    if depth and callable(value):
        yield named(value)


def _of_function(function: types.FunctionType, depth: int) -> Iterable[str]:
    if function.__name__ == "<lambda>":
        yield from _of_code(function.__code__)
    held = {"default": function.__defaults__ or (), **(function.__kwdefaults__ or {})}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        held[name] = _content(cell)
    for name, part in held.items():
        yield from (f"{name}={text}" for text in _held(part, depth + 1))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ()


def _of_code(code: types.CodeType) -> Iterable[str]:
    """Yield the names, texts and numbers of a lambda; not its instructions, which differ between Python versions."""
    import dis  # noqa: PLC0415  seldom needed, and slow to import

    yield from (f"name {name}" for name in sorted(code.co_names))
    for step in dis.get_instructions(code):
        if step.opname not in _LOADING:
            continue
        if isinstance(step.argval, types.CodeType):
            yield from _of_code(step.argval)
        elif isinstance(step.argval, frozenset):
            yield f"constant {sorted(map(repr, step.argval))!r}"
        elif step.argval is not None:
            yield f"constant {step.argval!r}"
