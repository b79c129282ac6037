"""Pickles of a few bytes that stand for more than a machine holds, or that hash for ever, told before they are read.

Theory. A pickle may refer to its parts again: by GET, out of its memo, and by DUP. Calls copy what they are given, and
sets and dictionaries hash their keys through all levels of tuples. So ``n`` bytes may ask for ``n**2`` bytes, or for
``2**n`` steps; and a chain of tuples, each inside of the next, is hashed by recursion that nothing guards. An honest
pickle refers again to short texts, to classes, and now and then to other objects.

:func:`is_frugal` bounds the *weight* of a pickle: its own length, plus that of each text referred to again; a
reference to anything else doubles the weight, for it may stand for all there is. Most pickles pass by counting the
bytes that could be such opcodes; the rest are cut into opcodes by one regular expression. Pickles that do not pass are
left to the careful reader, whose :class:`Budget` weighs every call and every key.
"""

import functools
import pickletools
import re
from typing import Any

from .safe_globals import refusal

_SPARE = 1 << 22
_DEEPEST = 1000
_FEW, _MANY = 4, 40
_REFERENCES = (b"h", b"j", b"g", b"2")
_TUPLES = (b"\x85", b"\x86", b"\x87", b"t", b"\x91")
_CALLS = (b"R", b"\x81", b"\x92", b"o", b"i")


def is_frugal(data: bytes) -> bool:
    """Tell whether a pickle surely takes memory and time in proportion to its length.

    Args:
        data: one pickle.
    """
    count = data.count
    references = sum(map(count, _REFERENCES))
    if sum(map(count, _TUPLES)) <= _DEEPEST:
        if references <= _FEW:
            return True
        if references < _MANY and sum(map(count, _CALLS)) * len(data) <= _SPARE:
            return True
    return _weighed(data)


def _weighed(data: bytes) -> bool:
    """Weigh a pickle by its opcodes."""
    limit = _SPARE + 4 * len(data)
    weight, depth, at, end = len(data), 0, 0, len(data)
    texts: dict[int, int] = {}
    memoised = 0
    match = _token().match
    while at < end:
        token = match(data, at)
        if token is None:
            return False
        at = token.end()
        kind = token.lastgroup
        if kind == "get":
            weight += texts.get(_index(token["get"]), weight)
        elif kind in ("put", "memo"):
            index = memoised if kind == "memo" else _index(token["put"])
            memoised += 1
            texts.pop(index, None)
            if token["text"] is not None:
                texts[index] = token.end("text") - token.start("text")
        elif kind == "long":
            at += _length(data, token.start("long"))
        elif kind == "deep":
            depth += 1
        elif kind == "twice":
            weight *= 2
        elif kind == "stop":
            return True
        if weight > limit or depth > _DEEPEST:
            return False
    return False


def _index(reference: bytes) -> int:
    """Return the memo's index that a PUT or GET opcode names."""
    if reference[:1] in b"pg":
        return int(reference[1:]) if reference[1:-1].isdigit() and len(reference) < 12 else -1
    return int.from_bytes(reference[1:], "little")


def _length(data: bytes, at: int) -> int:
    """Return the length of an argument that is prefixed with its length in four or eight bytes."""
    return int.from_bytes(data[at + 1 : at + (9 if data[at] in b"\x8d\x8e\x96" else 5)], "little")


@functools.cache
def _token() -> re.Pattern[bytes]:
    """Return a pattern for a run of opcodes that weigh nothing, and one that does."""
    sizes = {pickletools.UP_TO_NEWLINE: rb"[^\n]*\n"}
    short, long, plain = [], [], []
    for opcode in pickletools.opcodes:
        code = re.escape(opcode.code.encode("latin-1"))
        n = 0 if opcode.arg is None else opcode.arg.n
        if opcode.code in "pqr\x94ghj2.ct\x85\x86\x87\x91i":
            continue
        if n == pickletools.TAKEN_FROM_ARGUMENT1:
            short.append(code)
        elif n < pickletools.UP_TO_NEWLINE:
            long.append(code)
        elif opcode.name in ("STRING", "UNICODE"):
            plain.append((True, code + sizes[n]))
        else:
            plain.append((False, code + (sizes.get(n) or rb"[\s\S]{%d}" % n)))
    bodies = b"|".join(re.escape(bytes([n])) + rb"[\s\S]{%d}" % n for n in range(256))
    text = b"|".join([rb"[%b](?:%b)" % (b"".join(short), bodies), *(form for is_text, form in plain if is_text)])
    empty = rb"\x93|c[^\n]*\n[^\n]*\n"  # globals: classes weigh nothing
    light = b"|".join([text, empty, *(form for is_text, form in plain if not is_text and form != rb"\x93")])
    atom = rb"[NKM\x88\x89)](?:(?<=K)[\s\S]|(?<=M)[\s\S]{2}|(?<=[N\x88\x89)]))|[JG](?:(?<=J)[\s\S]{4}|(?<=G)[\s\S]{8})"
    leaves = rb"\((?:%b)*+t|(?:%b){1}\x85|(?:%b){2}\x86|(?:%b){3}\x87" % (atom, atom, atom, atom)
    memo, put = rb"\x94", rb"q[\s\S]|r[\s\S]{4}|p[^\n]*\n"
    run = rb"(?:(?!(?:%b|%b)(?:%b|%b))(?:%b|%b))*+" % (text, empty, memo, put, leaves, light)
    return re.compile(
        rb"%b(?:(?P<text>%b|%b)?(?:(?P<memo>%b)|(?P<put>%b))" % (run, text, empty, memo, put)
        + rb"|(?P<get>h[\s\S]|j[\s\S]{4}|g[^\n]*\n)|(?P<deep>[t\x85\x86\x87\x91]|i[^\n]*\n[^\n]*\n)"
        + rb"|(?P<twice>2)|(?P<stop>\.)|(?P<long>[%b])(?:(?<=[\x8d\x8e\x96])[\s\S]{8}|(?<![\x8d\x8e\x96])[\s\S]{4}))"
        % b"".join(long)
    )


class Budget:
    """What the careful reader may still copy and hash.

    Args:
        size_bytes: length of the pickle.
    """

    def __init__(self, size_bytes: int) -> None:
        self.left = _SPARE + 8 * size_bytes
        self._known: dict[int, tuple[Any, int, int]] = {}

    def spend(self, *parts: Any) -> None:
        """Weigh what a call copies or hashes: the length of each part, and the keys among its elements.

        Args:
            *parts: arguments, a state, or keys.

        Raises:
            UnsafeContent: it is too much.
        """
        cost = len(parts)
        for part in parts:
            kind = type(part)
            if kind is tuple or kind is frozenset:
                cost += self._weight(part)
            elif kind in (list, set, dict):
                cost += len(part) + sum(self._weight(key) for key in part if type(key) in (tuple, frozenset))
            elif hasattr(kind, "__len__"):
                cost += len(part)
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
            parts = [part for part in present if type(part) in (tuple, frozenset)]
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
