"""Unpickles through the allow-list with checks of every call, every change of state, and the resources asked for.

Theory of checks. A pickle that may only name allowed globals can still harm in three ways: by calling an allowed class
with arguments it was not meant for (``bytes(10**12)``, ``int(Decimal("1e999999"))``), by changing an allowed class or a
list instead of an instance (the BUILD opcode sets attributes, SETITEM puts a list into itself), and by giving an object
a state that its type trusts blindly (numpy's dtype flags, Pillow's sizes). The standard library's Python unpickler has
one method for each opcode; those that call or change anything are checked here first.

Theory of bounds. A pickle may refer to its parts again (GET, DUP); calls copy what they are given, and sets and
dictionaries hash their keys through all levels of tuples. So ``n`` bytes may ask for ``n**2`` bytes, or ``2**n`` steps.
:func:`has_bounded_cost` recognises pickles that surely ask for no more than they hold; all others go to the checked
unpickler, whose :class:`UnpicklingBudget` weighs every call and every key.
"""

import collections
import functools
import io
import pickle
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from webdataset.codecs import pickle_allowlist
from webdataset.codecs.pickle_allowlist import ADDED, describe_value, unsafe_content_error
from webdataset.core.optional_imports import loaded_module

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


def has_bounded_cost(data: bytes) -> bool:
    """Tell whether a pickle surely takes memory and time in proportion to its length."""
    count = data.count
    if sum(map(count, _REFERENCES)) < _MANY and sum(map(count, _TUPLES)) <= _DEEPEST:
        calls = sum(map(count, _CALLS))
        if calls * len(data) <= _SPARE:
            return True
    run, at, end = _plain_pattern(), 0, len(data)
    while at < end:
        at = run.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing at least
        size = _LONG.get(data[at]) if at < end else None
        if size is None:
            return at < end and data[at] == _STOP
        at += 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "little")
    return False


@functools.cache
def _plain_pattern() -> re.Pattern[bytes]:
    """Return a pattern for a run of opcodes that can neither copy nor nest what there is already."""
    # each process that reads larger pickles makes it: opcodes with bodies of one kind share the list of 256 lengths
    short = b"|".join(b"%b.{%d}" % (re.escape(bytes([n])), n) for n in range(256))
    long = b"|".join(rb"%b\0{3}.{%d}" % (re.escape(bytes([n])), n) for n in range(256))
    memo = rb"(?:\x94|q.|r.{4}|p[0-9]+\n)"
    leaf = rb"(?:[N\x88\x89)]|K.|J.{4}|G.{8}|M.{2}|[\x8cCU\x8a](?:%b)|[XBT](?:%b)|[VFIL][^\n]*\n)%b?+" % (
        short,
        long,
        memo,
    )
    call = rb"%b?R?" % memo
    leaves = rb"%b(?:\x85%b|%b(?:\x86%b|%b\x87%b))?" % (leaf, call, leaf, call, leaf, call)
    other = rb"h.|[]}(aesu0ld\x8f\x90\x93]|c[^\n]*\n[^\n]*\n|j.{4}|g[0-9]+\n|\)R|\x80.|\x95.{8}"
    return re.compile(rb"(?:\((?:%b)*t%b|%b|%b|%b)*+" % (leaf, call, leaves, other, memo), re.DOTALL)


class UnpicklingBudget:
    """What the careful reader may still copy and hash."""

    def __init__(self, size_bytes: int) -> None:
        self.left = _SPARE + 8 * size_bytes
        self._known: dict[int, tuple[object, int, int]] = {}

    def spend(self, parts: Iterable[Any]) -> None:
        """Weigh what a call copies or hashes: the length of each part, and the keys among its elements.

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
                    cost += sum(map(self._hash_cost, part))
            else:
                size = getattr(part, "nbytes", None)
                cost += size if type(size) is int else 1
        self._take(cost)

    def hash(self, keys: Iterable[Any]) -> None:
        """Weigh keys of a dictionary, or members of a set.

        Raises:
            UnsafeContent: it is too much.
        """
        for key in keys:
            self._take(self._hash_cost(key))

    def _hash_cost(self, key: object) -> int:
        """Return what it takes to hash a key, beyond a step: what Python does not remember of it."""
        if type(key) is int:
            return key.bit_length() >> 10
        return self._weight(key) if type(key) in _HASHED else 0

    def _take(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise unsafe_content_error(
                "repeats its parts so often that it would take far more memory or time than its size"
            )

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
            long = sum(part.bit_length() >> 10 for part in present if type(part) is int)
            weight = 1 + len(present) + long + sum(known[id(part)][1] for part in parts)
            depth = 1 + max((known[id(part)][2] for part in parts), default=0)
            if depth > _DEEPEST:
                raise unsafe_content_error(f"holds tuples inside of each other, {_DEEPEST} deep and more")
            known[id(present)] = (present, weight, depth)
            pending.pop()
        return known[id(whole)][1]


_STATEFUL = (collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter, uuid.UUID)
_ENCODINGS = frozenset(("utf-8", "utf8", "ascii", "latin-1", "latin1", "iso-8859-1"))
_MOST_BITS = 1 << 14
_FRACTION = re.compile(r"[+-]?\d+(/\d+)?", re.ASCII)
_Opcode = Callable[[Any], None]


class CheckedUnpickler(pickle._Unpickler):  # noqa: SLF001  the only unpickler whose opcodes can be checked
    """Unpickles through the allow-list, with checks."""

    dispatch: ClassVar[dict[int, _Opcode]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001

    def __init__(self, data: bytes, plain: Mapping[tuple[str, str], type]) -> None:
        super().__init__(io.BytesIO(data))
        self.plain = plain
        self.budget = UnpicklingBudget(len(data))

    def find_class(self, module: str, name: str) -> object:
        """Return an allowed global.

        Raises:
            UnsafeContent: it is not on the list.
        """
        plain = self.plain.get((module, name))
        return pickle_allowlist.find_global(module, name) if plain is None else plain

    def get_extension(self, code: int) -> None:
        """Refuse copyreg extension codes: what they mean depends on the process that reads them.

        Raises:
            UnsafeContent: always.
        """
        raise unsafe_content_error(f"uses copyreg extension code {code}")

    def _instantiate(self, klass: object, args: Sequence[object]) -> None:
        check_call(klass, tuple(args))
        self.budget.spend(args)
        super()._instantiate(klass, args)  # type: ignore[misc]


def _guard_opcode(opcode: bytes, check: Callable[[CheckedUnpickler, list[Any]], None]) -> None:
    original: _Opcode = CheckedUnpickler.dispatch[opcode[0]]

    def step(self: Any) -> None:
        check(self, self.stack)
        original(self)

    CheckedUnpickler.dispatch[opcode[0]] = step


def _check_call(reader: CheckedUnpickler, stack: list[Any]) -> None:
    check_call(stack[-2], stack[-1])
    reader.budget.spend(stack[-1])


def _check_new(reader: CheckedUnpickler, stack: list[Any]) -> None:
    if not isinstance(stack[-2], type):
        raise unsafe_content_error("creates an instance of something that is not a class")
    _check_call(reader, stack)


def _check_new_with_keywords(reader: CheckedUnpickler, stack: list[Any]) -> None:
    if not isinstance(stack[-3], type) or (stack[-1] and ADDED.get(_global_name(stack[-3])) is not stack[-3]):
        raise unsafe_content_error("creates an instance with keyword arguments")
    _check_call(reader, stack[:-1])


def _check_state(reader: CheckedUnpickler, stack: list[Any]) -> None:
    check_state(stack[-2], stack[-1])
    reader.budget.spend(stack[-1] if isinstance(stack[-1], tuple) else stack[-1:])


def _check_items(reader: CheckedUnpickler, target: object, keys: Iterable[object]) -> None:
    # a list takes a slice of itself in place of an item, and doubles each time
    if not isinstance(target, dict) and ADDED.get(_global_name(type(target))) is not type(target):
        raise unsafe_content_error(f"sets items of {describe_value(target)}")
    reader.budget.hash(keys)


def _check_marked_items(reader: CheckedUnpickler, stack: list[object]) -> None:
    below: list[list[object]] = vars(reader)["metastack"]
    _check_items(reader, below[-1][-1], stack[::2])


_guard_opcode(pickle.REDUCE, _check_call)
_guard_opcode(pickle.NEWOBJ, _check_new)
_guard_opcode(pickle.NEWOBJ_EX, _check_new_with_keywords)
_guard_opcode(pickle.BUILD, _check_state)
_guard_opcode(pickle.SETITEM, lambda reader, stack: _check_items(reader, stack[-3], stack[-2:-1]))
_guard_opcode(pickle.SETITEMS, _check_marked_items)
_guard_opcode(pickle.DICT, lambda reader, stack: reader.budget.hash(stack[::2]))
_guard_opcode(pickle.ADDITEMS, lambda reader, stack: reader.budget.hash(stack))
_guard_opcode(pickle.FROZENSET, lambda reader, stack: reader.budget.hash(stack))


def _global_name(allowed: object) -> tuple[str, str]:
    return getattr(allowed, "__module__", ""), getattr(allowed, "__qualname__", "")


def check_call(function: object, args: object) -> None:
    """Check a call that a pickle wants to make.

    Raises:
        UnsafeContent: these arguments make the call dangerous.
    """
    if not isinstance(args, tuple):
        raise unsafe_content_error("calls something with arguments that are no tuple")
    if function is str or function is bytes or function is bytearray:
        _check_text(function, args)
    if function is not range and any(isinstance(argument, range) for argument in args):
        raise unsafe_content_error("makes a container of a range")
    if function is Fraction and not all(type(part) is int or _is_fraction(part) for part in args):
        raise unsafe_content_error("makes a Fraction of something that is neither integers nor 'p/q'")
    if function in (Decimal, Fraction) and any(type(part) is int and part.bit_length() > _MOST_BITS for part in args):
        raise unsafe_content_error(f"makes a {function.__name__} of a number of more than {_MOST_BITS} bits")
    numpy = loaded_module("numpy")
    if not isinstance(function, type) or ADDED.get(_global_name(function)) is function:
        return
    if numpy is not None and issubclass(function, numpy.ndarray):
        raise unsafe_content_error("makes an array over memory of its own choice")
    if issubclass(function, int if numpy is None else (int, numpy.generic)) and not all(map(_is_number, args)):
        raise unsafe_content_error(f"makes a number of {', '.join(map(describe_value, args))[:200]}")


def _check_text(kind: type, args: Sequence[object]) -> None:
    """Check the arguments of str, bytes or bytearray."""
    if args and not isinstance(args[0], (bytes, bytearray, str)):
        # of lists that hold each other, str writes each as often as it is met
        raise unsafe_content_error(f"makes {kind.__name__} of {type(args[0]).__name__}")
    if not all(type(name) is str and name.lower() in _ENCODINGS for name in args[1:2]):
        # some, such as idna, take quadratic time
        raise unsafe_content_error(f"uses the encoding {describe_value(args[1])}")


def _is_number(part: object) -> bool:
    """Tell whether a number is made of this in little time; of ``Decimal("1e999999")``, ``int`` makes all digits."""
    return isinstance(part, (int, float, complex, str, bytes, bytearray))


def _is_fraction(part: object) -> bool:
    return isinstance(part, str) and _FRACTION.fullmatch(part) is not None


def check_state(target: object, state: Any) -> None:
    """Check a state that a pickle wants to give to an object.

    Raises:
        UnsafeContent: the target is no plain instance, or its type would trust a forged state.
    """
    kind = type(target)
    if kind in _STATEFUL or ADDED.get(_global_name(kind)) is kind:
        return
    numpy, image = loaded_module("numpy"), loaded_module("PIL.Image")
    if numpy is not None and isinstance(target, (numpy.dtype, numpy.ndarray)):
        pickle_allowlist._import_function("webdataset.codecs.pickle_numpy", "check_numpy_state")(target, state)  # noqa: SLF001
    elif image is not None and kind is image.Image:
        _check_picture(state)
    else:
        raise unsafe_content_error(f"changes {describe_value(target)}, which decoding may not do")


def _check_picture(state: Any) -> None:
    """Check the state of a Pillow image: [info, mode, size, palette, pixels]."""
    width, height = state[2]
    if type(width) is not int or type(height) is not int or width * height > 8 * len(state[-1]) or min(state[2]) < 0:
        raise unsafe_content_error(f"holds a picture of {width} x {height} pixels in {len(state[-1])} bytes")


def encode_latin1(characters: str, encoding: str) -> bytes:
    """Stand in for ``_codecs.encode``, which old protocols use to write bytes.

    Args:
        characters: the bytes as code points below 256.
        encoding: "latin1".

    Raises:
        UnsafeContent: another encoding.
    """
    if encoding not in ("latin1", "latin-1") or type(characters) is not str:
        raise unsafe_content_error(f"encodes text as {describe_value(encoding)}")
    return characters.encode("latin-1")


def reconstruct_object(kind: object, base: Any, state: object) -> object:
    """Stand in for ``copyreg._reconstructor``, which protocols 0 and 1 use to create instances.

    Raises:
        UnsafeContent: the class or base may not be created this way.
    """
    image = loaded_module("PIL.Image")
    safe = kind is uuid.UUID or (image is not None and kind is image.Image) or ADDED.get(_global_name(kind)) is kind
    if not (isinstance(kind, type) and safe) or base not in (object, int, float, str, bytes, list, dict, tuple, set):
        raise unsafe_content_error(f"reconstructs {describe_value(kind)}")
    if base is object:
        return object.__new__(kind)
    check_call(base, (state,))
    made = base.__new__(kind, state)
    base.__init__(made, state)
    return made
