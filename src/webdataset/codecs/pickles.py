"""Pickles, read through an exact allow-list: no class or function that is not on it is ever imported or called.

Theory. A pickle is a program for a small stack machine; all its power to run code comes from the globals it names. The
*swift* reader is the C unpickler with only those globals that are immutable and harmless however they are called or
altered (containers, dates, Decimal). Anything else starts the *careful* reader (``careful``), which also checks every
call and every change of state, because a plain allow-list is not enough: numpy's dtype, for one, lets a pickle forge
its flags and read raw memory as objects.

Flows in: pickled bytes and a trust level. Flows out: the object, or :class:`UnsafeContent`.
"""

import collections
import copyreg
import datetime as dt
import decimal
import io
import pickle
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from webdataset.ground import trust as trust_levels
from webdataset.ground.errors import UnsafeContent

from . import careful
from .frugal import is_frugal
from .memo import is_modest
from .safe_globals import ADDED, remember

PLAIN: dict[tuple[str, str], Any] = {
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (set, frozenset, complex, slice, list, dict, tuple, object, int, float, bool)
    },
    **{("collections", kind.__name__): kind for kind in (collections.OrderedDict, collections.defaultdict)},
    ("collections", "deque"): collections.deque,
    **{("datetime", kind.__name__): kind for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone)},
    ("decimal", "Decimal"): decimal.Decimal,
}


class _CareNeeded(Exception):
    """The pickle names a global that the swift reader does not serve."""


class _Swift(pickle.Unpickler):
    """The C unpickler over ``PLAIN`` only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a plain global, or ask for the careful reader."""
        try:
            return PLAIN[module, name]
        except KeyError:
            raise _CareNeeded from None


def unpickle_loads(data: bytes, trust: str | None = None) -> Any:
    """Unpickle a field as far as the trust level allows.

    Args:
        data: one pickle, any protocol.
        trust: ``strict`` refuses, ``safe`` reads through the allow-list, ``full`` unpickles anything; None means the
            level in force.

    Returns:
        The object.

    Raises:
        UnsafeContent: the pickle needs a class or function that is not on the allow-list, or the level is strict.
        pickle.UnpicklingError: the data is no pickle. Damaged pickles may raise other errors, as in ``pickle.loads``.
    """
    level = trust_levels.level(trust)
    if level == "full":
        return pickle.loads(data)  # noqa: S301  the caller trusts this data
    if level == "strict":
        raise UnsafeContent(
            "unpickling is refused at trust level 'strict' (WDS_SECURE=1, utils.enforce_security or trust='strict')"
        )
    if not _cached_extensions() and is_modest(data) and is_frugal(data):
        try:
            return _Swift(io.BytesIO(data)).load()
        except _CareNeeded:
            pass
    return careful.CarefulReader(data, PLAIN).load()


def _cached_extensions() -> bool:
    """Tell whether copyreg extension codes could bypass ``find_class`` in the C unpickler."""
    return bool(getattr(copyreg, "_extension_cache", None) or getattr(copyreg, "_inverted_registry", None))


class SafeGlobals:
    """What ``add_safe_globals`` returns: as a context manager it takes the additions back at its end.

    Args:
        names: the additions, (module, name) pairs.
    """

    def __init__(self, names: list[tuple[str, str]]) -> None:
        self.names = names

    def __enter__(self) -> Self:
        """Return itself; the additions are in force already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the additions back."""
        for name in self.names:
            ADDED.pop(name, None)


def add_safe_globals(safe_globals: Iterable[Any]) -> SafeGlobals:
    """Allow pickles and ``.pth`` fields to create further classes and to call further functions.

    Whatever their constructors, ``__setstate__`` and ``__reduce__`` targets do then happens on reading data. The
    additions hold for this process; they travel with a pickled :class:`Decoder` to its workers.

    Args:
        safe_globals: classes or functions.

    Returns:
        A context manager that takes the additions back at its end; may be ignored.
    """
    return SafeGlobals([name for name in map(remember, safe_globals) if name is not None])


def added_safe_globals() -> tuple[Any, ...]:
    """Return the classes and functions added so far."""
    return tuple(ADDED.values())


def pickle_dumps(value: Any) -> bytes:
    """Pickle a value.

    Args:
        value: anything that pickles. Reading it back safely needs types that are on the allow-list.
    """
    return pickle.dumps(value)
