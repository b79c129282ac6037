"""The careful unpickler: besides the globals it checks every call and every change of state.

Theory. Three kinds of harm are left to a pickle that may only name allowed globals: calling an allowed class with
arguments it was not meant for (``bytes(10**12)``, ``ndarray`` over a foreign buffer), changing an allowed class instead
of an instance of it (the BUILD opcode sets attributes), and giving an object a state that its type trusts blindly
(numpy's dtype flags, Pillow's sizes). The Python unpickler of the standard library has one method for each opcode;
the few that call or change anything are checked here first.
"""

import collections
import io
import pickle
import re
import uuid
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ClassVar

from webdataset.ground.extras import loaded

from . import safe_globals
from .frugal import Budget
from .safe_globals import ADDED, refusal, shown

_STATEFUL = (collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter, uuid.UUID)
_FRACTION = re.compile(r"[+-]?\d+(/\d+)?", re.ASCII)
_Opcode = Callable[[Any], None]


class CarefulReader(pickle._Unpickler):  # noqa: SLF001  the only unpickler whose opcodes can be checked
    """Unpickles through the allow-list, with checks.

    Args:
        data: the pickle.
        plain: globals that need no care.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001

    def __init__(self, data: bytes, plain: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.plain = plain
        self.budget = Budget(len(data))

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed global.

        Raises:
            UnsafeContent: it is not on the list.
        """
        plain = self.plain.get((module, name))
        return safe_globals.found(module, name) if plain is None else plain

    def get_extension(self, code: int) -> None:
        """Refuse copyreg extension codes: what they mean depends on the process that reads them.

        Raises:
            UnsafeContent: always.
        """
        raise refusal(f"uses copyreg extension code {code}")

    def _instantiate(self, klass: Any, args: Any) -> None:
        permit_call(klass, tuple(args))
        self.budget.spend(args)
        super()._instantiate(klass, args)  # type: ignore[misc]


def _checked(opcode: bytes, check: Callable[[CarefulReader, list[Any]], None]) -> None:
    original: _Opcode = CarefulReader.dispatch[opcode[0]]

    def step(self: Any) -> None:
        check(self, self.stack)
        original(self)

    CarefulReader.dispatch[opcode[0]] = step


def _check_call(reader: CarefulReader, stack: list[Any]) -> None:
    permit_call(stack[-2], stack[-1])
    reader.budget.spend(stack[-1])


def _check_new(reader: CarefulReader, stack: list[Any]) -> None:
    if not isinstance(stack[-2], type):
        raise refusal("creates an instance of something that is not a class")
    _check_call(reader, stack)


def _check_new_with_keywords(reader: CarefulReader, stack: list[Any]) -> None:
    if not isinstance(stack[-3], type) or (stack[-1] and ADDED.get(_name(stack[-3])) is not stack[-3]):
        raise refusal("creates an instance with keyword arguments")
    _check_call(reader, stack[:-1])


def _check_state(reader: CarefulReader, stack: list[Any]) -> None:
    permit_state(stack[-2], stack[-1])
    reader.budget.spend(stack[-1] if isinstance(stack[-1], tuple) else stack[-1:])


_checked(pickle.REDUCE, _check_call)
_checked(pickle.NEWOBJ, _check_new)
_checked(pickle.NEWOBJ_EX, _check_new_with_keywords)
_checked(pickle.BUILD, _check_state)
_checked(pickle.SETITEM, lambda reader, stack: reader.budget.hash(stack[-2:-1]))
_checked(pickle.SETITEMS, lambda reader, stack: reader.budget.hash(stack[::2]))
_checked(pickle.DICT, lambda reader, stack: reader.budget.hash(stack[::2]))
_checked(pickle.ADDITEMS, lambda reader, stack: reader.budget.hash(stack))
_checked(pickle.FROZENSET, lambda reader, stack: reader.budget.hash(stack))


def _name(allowed: Any) -> tuple[str, str]:
    return getattr(allowed, "__module__", ""), getattr(allowed, "__qualname__", "")


def permit_call(function: Any, args: Any) -> None:
    """Check a call that a pickle wants to make.

    Args:
        function: a global that it may use.
        args: the arguments.

    Raises:
        UnsafeContent: these arguments make the call dangerous.
    """
    if not isinstance(args, tuple):
        raise refusal("calls something with arguments that are no tuple")
    if function in (bytes, bytearray) and args and not isinstance(args[0], (bytes, bytearray, str)):
        raise refusal(f"makes {function.__name__} of {type(args[0]).__name__}")
    if function is not range and any(isinstance(argument, range) for argument in args):
        raise refusal("makes a container of a range")
    if function is Fraction and not all(type(part) is int or _is_fraction(part) for part in args):
        raise refusal("makes a Fraction of something that is neither integers nor 'p/q'")
    numpy = loaded("numpy")
    if numpy is not None and isinstance(function, type) and issubclass(function, numpy.ndarray):
        raise refusal("makes an array over memory of its own choice")


def _is_fraction(part: Any) -> bool:
    return isinstance(part, str) and _FRACTION.fullmatch(part) is not None


def permit_state(target: Any, state: Any) -> None:
    """Check a state that a pickle wants to give to an object.

    Args:
        target: the object.
        state: what its ``__setstate__`` or ``__dict__`` would get.

    Raises:
        UnsafeContent: the target is no plain instance, or its type would trust a forged state.
    """
    kind = type(target)
    if kind in _STATEFUL or ADDED.get(_name(kind)) is kind:
        return
    numpy, image = loaded("numpy"), loaded("PIL.Image")
    if numpy is not None and isinstance(target, (numpy.dtype, numpy.ndarray)):
        safe_globals._named("webdataset.codecs.pickled_numpy", "permit_state")(target, state)  # noqa: SLF001
    elif image is not None and kind is image.Image:
        _permit_picture(state)
    else:
        raise refusal(f"changes {shown(target)}, which decoding may not do")


def _permit_picture(state: Any) -> None:
    """Check the state of a Pillow image: [info, mode, size, palette, pixels]."""
    width, height = state[2]
    if type(width) is not int or type(height) is not int or width * height > 8 * len(state[-1]) or min(state[2]) < 0:
        raise refusal(f"holds a picture of {width} x {height} pixels in {len(state[-1])} bytes")


def latin1_encoded(characters: str, encoding: str) -> bytes:
    """Stand in for ``_codecs.encode``, which old protocols use to write bytes.

    Args:
        characters: the bytes as code points below 256.
        encoding: "latin1".

    Raises:
        UnsafeContent: another encoding.
    """
    if encoding not in ("latin1", "latin-1") or type(characters) is not str:
        raise refusal(f"encodes text as {shown(encoding)}")
    return characters.encode("latin-1")


def reconstructed(kind: Any, base: Any, state: Any) -> Any:
    """Stand in for ``copyreg._reconstructor``, which protocols 0 and 1 use to create instances.

    Args:
        kind: the class.
        base: its first base that is not written in Python.
        state: that base's value.

    Raises:
        UnsafeContent: the class or base may not be created this way.
    """
    image = loaded("PIL.Image")
    safe = kind is uuid.UUID or (image is not None and kind is image.Image) or ADDED.get(_name(kind)) is kind
    if not (isinstance(kind, type) and safe) or base not in (object, int, float, str, bytes, list, dict, tuple, set):
        raise refusal(f"reconstructs {shown(kind)}")
    if base is object:
        return object.__new__(kind)
    permit_call(base, (state,))
    made = base.__new__(kind, state)
    base.__init__(made, state)
    return made
