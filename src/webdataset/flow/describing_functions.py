"""What a user's function is called where two of them are to be told apart, in every process and Python version.

Flows in: functions. Flows out: names, and digests. What a name does not tell (the names and constants of a lambda,
defaults, what a closure or a partial holds) is hashed into it, as far as it is numbers and text. A digest also covers
the code of named functions, and the functions and numbers of their own module that they name. File and line are left
out, since they change with every edit, and so is every name of a module. Never calls the function, and never shows what
it holds.
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
_LONGEST = 256  # of a list whose values all count; of longer ones their ends do
_OPERATORS = ("COMPARE_OP", "BINARY_OP")
_PACKAGES = ("webdataset", "wids")


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


def digest_values(values: Any) -> str | None:
    """Return a digest of the values that a stage was given, functions with their code; None where there are none.

    It is the same in every process and on every Python version for the same source text, but for functions whose
    bytecode names other constants there; so another digest is a reason to warn, and none to refuse.

    Args:
        values: a dictionary, list or tuple of anything.
    """
    known = sorted(set(_held(values, 0, code=True)))
    if not known:
        return None
    return hashlib.blake2b(repr(known).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _held(value: Any, depth: int, *, code: bool = False) -> Iterable[str]:
    """Yield what a function, or something it holds, is made of.

    Args:
        value: the function or value.
        depth: how many functions and containers hold it.
        code: go into the code of named functions.
    """
    if depth > _DEEPEST:
        return
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _of_list(value, depth, code=code)
    elif isinstance(value, dict) and code:
        for name, part in value.items():
            yield from (f"{name!r}={text}" for text in _held(part, depth + 1, code=code))
    elif isinstance(value, functools.partial):
        for name, part in {"": value.args, "func": value.func, **value.keywords}.items():
            yield from (f"{name}={text}" for text in _held(part, depth + 1, code=code))
    else:
        function = _code_of(value, objects=code)
        if function is not None:
            yield from _of_function(function, depth, code=code)
    if depth and callable(value) and not (code and _is_users(value)):
        yield named(value)


def _code_of(value: Any, *, objects: bool) -> types.FunctionType | None:
    """Return the Python function behind a function, a method or, where wanted, an object that can be called."""
    function = getattr(value, "__func__", value) if isinstance(value, types.MethodType) else value
    if objects and not isinstance(value, type) and not isinstance(function, types.FunctionType):
        function = vars(type(value)).get("__call__")
    return function if isinstance(function, types.FunctionType) else None


def _of_list(values: Any, depth: int, *, code: bool) -> Iterable[str]:
    ordered = sorted(values, key=repr) if isinstance(values, set | frozenset) else values
    if code and len(ordered) > _LONGEST:
        yield f"{len(ordered)} values"
        ordered = [*ordered[: _LONGEST // 2], *ordered[-_LONGEST // 2 :]]
    for place, part in enumerate(ordered):
        yield from (f"{place}.{text}" for text in _held(part, depth + 1, code=code))


def _is_users(value: Any) -> bool:
    """Tell whether this is a user's function, whose code tells more than its name."""
    function = getattr(value, "__func__", value)
    return isinstance(function, types.FunctionType) and not _is_ours(function)


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in _PACKAGES


def _of_function(function: types.FunctionType, depth: int, *, code: bool) -> Iterable[str]:
    if function.__name__ == "<lambda>" or (code and not _is_ours(function)):
        yield from _of_code(function.__code__, operators=code)
    held = {"default": function.__defaults__ or (), **(function.__kwdefaults__ or {})}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        held[name] = _content(cell)
    if code and not _is_ours(function):
        held |= _named_globals(function)
    for name, part in held.items():
        # what a function may change while it runs is no part of what it is
        if part is not function and not (code and isinstance(part, list | dict | set)):
            yield from (f"{name}={text}" for text in _held(part, depth + 1, code=code))


def _named_globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the functions and numbers of a function's own module that it names."""
    found = {}
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        own = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
        if own or isinstance(value, bool | int | float):
            found[name] = value
    return found


def _names(code: types.CodeType) -> set[str]:
    """Return the names that some code and the code in it use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ()


def _of_code(code: types.CodeType, *, operators: bool = False) -> Iterable[str]:
    """Yield the names, texts, numbers and operators of some code.

    Not its instructions, which differ between Python versions.

    Args:
        code: of a function.
        operators: also yield comparisons and arithmetic.
    """
    import dis  # noqa: PLC0415  seldom needed, and slow to import

    yield from (f"name {name}" for name in sorted(code.co_names))
    steps = list(dis.get_instructions(code))
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if operators and step.opname in _OPERATORS:
            yield from _operator(step)
        # the names of keyword arguments: a constant that is loaded in some versions and not in others
        if step.opname not in _LOADING or (following is not None and following.opname == "CALL_KW"):
            continue
        if isinstance(step.argval, types.CodeType):
            yield from _of_code(step.argval, operators=operators)
        elif isinstance(step.argval, frozenset):
            yield f"constant {sorted(map(repr, step.argval))!r}"
        elif step.argval is not None:
            yield f"constant {step.argval!r}"


def _operator(step: Any) -> Iterable[str]:
    """Yield the sign of a comparison or of arithmetic; indexing is an operator in some versions only."""
    shown = step.argrepr if step.opname == "BINARY_OP" else str(step.argval)
    sign = shown.removeprefix("bool(").removesuffix(")").strip()
    if sign and not sign.startswith("["):
        yield f"operator {sign}"
