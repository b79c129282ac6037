"""Unpickles through an exact allow-list: never imports or calls a class or function that is not on it.

Theory. A pickle is a program for a small stack machine; all its power to run code comes from the globals it names.
The *fast* unpickler is the C unpickler with only those globals that are immutable and harmless however they are
called or altered (containers, dates, Decimal). Anything else starts the *checked* unpickler
(:mod:`~webdataset.codecs.pickle_checks`), which also checks every call and every change of state: numpy's dtype, for
one, lets a pickle forge its flags and read raw memory as objects.

Memo bound. The C unpickler's memo is as long as its largest index, so that nine bytes (PUT, LONG_BINPUT) can ask for
34 GB. No honest pickle uses an index beyond its own length. A search for bytes that could be such an opcode settles
most pickles; the rest are cut into opcodes, nearly all by one regular expression in C.
"""

import collections
import copyreg
import datetime as dt
import decimal
import functools
import io
import pickle
import pickletools
import re
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from webdataset.codecs import pickle_checks
from webdataset.codecs.pickle_allowlist import ADDED, allow_global
from webdataset.codecs.pickle_checks import has_bounded_cost
from webdataset.core import trust as trust_levels
from webdataset.core.errors import UnsafeContent

_MAY_STORE = re.compile(rb"r[\s\S]{3}[^\0]|p[^\n]{8,}\n")
_STOP, _PUT, _LONG_BINPUT = b".pr"


def has_bounded_memo(data: bytes) -> bool:
    """Tell whether a pickle surely stores under no index beyond its length.

    Returns:
        False for pickles that do, and for those that cannot be cut into opcodes.
    """
    if _MAY_STORE.search(data) is None:
        return True
    run, prefixes = _opcode_patterns()
    end = len(data)
    at = 0
    while at < end:
        match = run.match(data, at)
        at = at if match is None else match.end()
        opcode = data[at] if at < end else _STOP
        if opcode == _STOP:
            return at < end
        length = prefixes.get(opcode)
        if length is not None:
            at += 1 + length + int.from_bytes(data[at + 1 : at + 1 + length], "little")
        elif opcode == _LONG_BINPUT:
            if int.from_bytes(data[at + 1 : at + 5], "little") > end:
                return False
            at += 5
        else:
            line = data.find(b"\n", at)
            if opcode != _PUT or not data[at + 1 : line].isdigit() or line - at > 19 or int(data[at + 1 : line]) > end:
                return False
            at = line + 1
    return False


@functools.cache
def _opcode_patterns() -> tuple[re.Pattern[bytes], dict[int, int]]:
    """Return a pattern for runs of opcodes of simple form, and the sizes of the lengths that the others start with."""
    kinds: dict[int, bytes] = {}
    for opcode in pickletools.opcodes:
        kind = 0 if opcode.arg is None else opcode.arg.n
        code = opcode.code.encode("latin-1")
        if code not in b".prci":
            kinds[kind] = kinds.get(kind, b"") + code
    short = {1: kinds.pop(pickletools.TAKEN_FROM_ARGUMENT1), 4: kinds.pop(pickletools.TAKEN_FROM_ARGUMENT4U)}
    signed, long = kinds.pop(pickletools.TAKEN_FROM_ARGUMENT4), kinds.pop(pickletools.TAKEN_FROM_ARGUMENT8U)
    lines = re.escape(kinds.pop(pickletools.UP_TO_NEWLINE))
    forms = [b"[%b]%b" % (re.escape(codes), rb"[\s\S]{%d}" % size) for size, codes in sorted(kinds.items())]
    for size, codes in short.items():
        bodies = (re.escape(n.to_bytes(size, "little")) + rb"[\s\S]{%d}" % n for n in range(256))
        forms.append(b"[%b](?:%b)" % (re.escape(codes), b"|".join(bodies)))
    forms += [rb"[%b][^\n]*\n" % lines, rb"[ci][^\n]*\n[^\n]*\n"]
    prefixes = dict.fromkeys(short[4] + signed, 4) | dict.fromkeys(long, 8)
    return re.compile(b"(?:%b)*+" % b"|".join(forms)), prefixes


PLAIN: dict[tuple[str, str], type] = {
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (set, frozenset, complex, list, dict, tuple, object, int, float, bool)
    },
    **{("collections", kind.__name__): kind for kind in (collections.OrderedDict, collections.defaultdict)},
    ("collections", "deque"): collections.deque,
    ("decimal", "Decimal"): decimal.Decimal,
    **{("datetime", kind.__name__): kind for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone)},
}
"""No ``slice``, with which a list can be put into itself."""
_LONG_INTEGER = pickle.LONG4


class _ChecksNeeded(Exception):
    """The pickle names a global that the swift reader does not serve."""


class _FastUnpickler(pickle.Unpickler):
    """The C unpickler over ``PLAIN`` only.

    Args:
        data: the pickle.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._data = data
        self._numbers: set[type] = set()

    def find_class(self, module: str, name: str) -> type:
        """Return a plain global, or ask for the careful reader."""
        kind = PLAIN.get((module, name))
        if kind is None:
            raise _ChecksNeeded
        if kind is decimal.Decimal or kind is int:
            # an int of Decimal("1e999999") has all digits, and a Decimal of a long int takes quadratic time
            self._numbers.add(kind)
            if decimal.Decimal in self._numbers and (int in self._numbers or _LONG_INTEGER in self._data):
                raise _ChecksNeeded
        return kind


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
    level = trust_levels.trust_level(trust)
    if level == "full":
        return pickle.loads(data)  # noqa: S301  the caller trusts this data
    if level == "strict":
        raise UnsafeContent(
            "unpickling is refused at trust level 'strict' (WDS_SECURE=1, utils.enforce_security or trust='strict')"
        )
    if not _has_cached_extensions() and has_bounded_memo(data) and has_bounded_cost(data):
        try:
            return _FastUnpickler(data).load()
        except _ChecksNeeded:
            pass
    return pickle_checks.CheckedUnpickler(data, PLAIN).load()


def _has_cached_extensions() -> bool:
    """Tell whether copyreg extension codes could bypass ``find_class`` in the C unpickler."""
    return bool(getattr(copyreg, "_extension_cache", None) or getattr(copyreg, "_inverted_registry", None))


class SafeGlobals:
    """What ``add_safe_globals`` returns: as a context manager it takes the additions back at its end."""

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
    return SafeGlobals([name for name in map(allow_global, safe_globals) if name is not None])


def added_safe_globals() -> tuple[object, ...]:
    """Return the classes and functions added so far."""
    return tuple(ADDED.values())


def pickle_dumps(value: object) -> bytes:
    """Pickle a value.

    Args:
        value: anything that pickles. Reading it back safely needs types that are on the allow-list.
    """
    return pickle.dumps(value)
