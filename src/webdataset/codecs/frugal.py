"""Pickles of a few bytes that stand for more than a machine holds, or that hash for ever.

Theory. A pickle may refer to its parts again: by GET, out of its memo, and by DUP. Calls copy what they are given, and
sets and dictionaries hash their keys through all levels of tuples. So ``n`` bytes may ask for ``n**2`` bytes, or for
``2**n`` steps; and a chain of tuples, each inside of the next, is hashed by recursion that nothing guards.

:func:`is_frugal` tells pickles that surely ask for no more than they hold, without looking far into them: those with
few bytes that could refer, call or make tuples, and those whose tuples and calls hold nothing but texts and numbers,
each written there. Pickles that do not pass are left to the careful reader, whose :class:`Budget` weighs every call
and every key.
"""

import functools
import re
from collections import deque
from collections.abc import Iterable
from typing import Any

from .safe_globals import refusal

_SPARE = 1 << 22
_DEEPEST = 1000
_MANY = 40
_REFERENCES = (b"h", b"j", b"g", b"2")
_TUPLES = (b"\x85", b"\x86", b"\x87", b"t", b"\x91")
_CALLS = (b"R", b"\x81", b"\x92", b"o", b"i")
_FLAT = (str, bytes, bytearray)
_HASHED = (tuple, frozenset)
_COPIED = (list, set, dict, deque, *_FLAT)
_STOP = ord(".")
_LONG = {ord("X"): 4, ord("B"): 4, ord("T"): 4, 0x8D: 8, 0x8E: 8}


def is_frugal(data: bytes) -> bool:
    """Tell whether a pickle surely takes memory and time in proportion to its length.

    Args:
        data: one pickle.
    """
    count = data.count
    if sum(map(count, _REFERENCES)) < _MANY and sum(map(count, _TUPLES)) <= _DEEPEST:
        calls = sum(map(count, _CALLS))
        if calls * len(data) <= _SPARE:
            return True
    run, at, end = _plain(), 0, len(data)
    while at < end:
        at = run.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing at least
        size = _LONG.get(data[at]) if at < end else None
        if size is None:
            return at < end and data[at] == _STOP
        at += 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "little")
    return False


@functools.cache
def _plain() -> re.Pattern[bytes]:
    """Return a pattern for a run of opcodes that can neither copy nor nest what there is already."""
    bodies = [rb"[\s\S]{%d}" % n for n in range(256)]
    short = b"|".join(re.escape(bytes([n])) + body for n, body in enumerate(bodies))
    long = b"|".join(re.escape(bytes([n, 0, 0, 0])) + body for n, body in enumerate(bodies))
    memo = rb"(?:\x94|q[\s\S]|r[\s\S]{4}|p[0-9]+\n)"
    leaf = rb"(?:[N\x88\x89)]|K[\s\S]|\x8c(?:%b)|J[\s\S]{4}|G[\s\S]{8}|M[\s\S]{2}|X(?:%b)|[CU\x8a](?:%b)" % (
        short,
        long,
        short,
    )
    leaf += rb"|[BT](?:%b)|[VFIL][^\n]*\n)%b?+" % (long, memo)
    call = rb"%b?R?" % memo
    leaves = rb"%b(?:\x85%b|%b(?:\x86%b|%b\x87%b))?" % (leaf, call, leaf, call, leaf, call)
    other = rb"h[\s\S]|[]}(aesu0ld\x8f\x90\x93]|c[^\n]*\n[^\n]*\n|j[\s\S]{4}|g[0-9]+\n|\)R|\x80[\s\S]|\x95[\s\S]{8}"
    return re.compile(rb"(?:\((?:%b)*t%b|%b|%b|%b)*+" % (leaf, call, leaves, other, memo))


class Budget:
    """What the careful reader may still copy and hash.

    Args:
        size_bytes: length of the pickle.
    """

    def __init__(self, size_bytes: int) -> None:
        self.left = _SPARE + 8 * size_bytes
        self._known: dict[int, tuple[Any, int, int]] = {}

    def spend(self, parts: Iterable[Any]) -> None:
        """Weigh what a call copies or hashes: the length of each part, and the keys among its elements.

        Args:
            parts: arguments, or the parts of a state.

        Raises:
            UnsafeContent: it is too much.
        """
        cost = 1
        for part in parts:
            kind = type(part)
            if kind is tuple or kind is frozenset:
                cost += self._weight(part)
            elif kind in _COPIED:
                cost += len(part)
                if kind not in _FLAT:
                    cost += sum(self._weight(key) for key in part if type(key) in _HASHED)
            else:
                size = getattr(part, "nbytes", None)
                cost += size if type(size) is int else 1
        self._take(cost)

    def hash(self, keys: Iterable[Any]) -> None:
        """Weigh keys of a dictionary, or members of a set.

        Args:
            keys: the keys.

        Raises:
            UnsafeContent: it is too much.
        """
        for key in keys:
            if type(key) in _HASHED:
                self._take(self._weight(key))

    def _take(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise refusal("repeats its parts so often that it would take far more memory or time than its size")

    def _weight(self, whole: Any) -> int:
        """Return how many steps it takes to hash a tuple or frozenset."""
        known = self._known
        pending = [whole]
        while pending:
            present = pending[-1]
            if id(present) in known:
                pending.pop()
                continue
            parts = [part for part in present if type(part) in _HASHED]
            unknown = [part for part in parts if id(part) not in known]
            if unknown:
                pending += unknown
                continue
            weight = 1 + len(present) + sum(known[id(part)][1] for part in parts)
            depth = 1 + max((known[id(part)][2] for part in parts), default=0)
            if depth > _DEEPEST:
                raise refusal(f"holds tuples inside of each other, {_DEEPEST} deep and more")
            known[id(present)] = (present, weight, depth)
            pending.pop()
        return known[id(whole)][1]
