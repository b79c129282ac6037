"""Calls in the order of arguments of an older version, where they can be told apart.

Flows in: positional arguments. Flows out: the same call by name. A call in the present order passes untouched.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def older_order(place: int, kind: type, names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function be called in an older order too: known by the type of one argument.

    Args:
        place: which positional argument tells, from 0, ``self`` included.
        kind: its type in the older order; the present order never has that type there.
        names: what that argument and those behind it are called, in the older order, separated by spaces.

    Returns:
        A decorator. The function's signature stays the present one.
    """
    older = names.split()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def either(*args: Any, **kw: Any) -> R:
            if len(args) > place and isinstance(args[place], kind):
                if len(args) - place > len(older):
                    raise TypeError(f"{function.__qualname__}() got {len(args)} positional arguments: too many")
                args, named = args[:place], dict(zip(older, args[place:], strict=False))
                if twice := named.keys() & kw.keys():
                    raise TypeError(f"{function.__qualname__}() got multiple values for argument {min(twice)!r}")
                kw |= named
            return function(*args, **kw)

        return either

    return decorate
