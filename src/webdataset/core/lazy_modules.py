"""Module attributes that are imported on first access (PEP 562), and errors for names that moved.

Compatibility modules take their ``__getattr__`` and ``__dir__`` from here. Nothing is imported before it is accessed;
a name that was removed raises an error that says what to use instead.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
_PACKAGE = __name__.partition(".")[0]


class LazyModule(ModuleType):
    """A module with a class of its own; it pickles by name, as functions that mention it must under spawn."""

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class Override(Generic[Value]):
    """What a program has put in the place of something of this library.

    Attributes:
        replaced: it; None where nothing was put there.
    """

    def __init__(self) -> None:
        self.replaced: Value | None = None


def lazy_attributes(
    module: str, /, modules: str = "", homes: Mapping[str, str] | None = None, **aliases: str
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose further names live elsewhere (PEP 562).

    Args:
        module: its ``__name__``.
        modules: names of compatibility modules that are attributes of this one, separated by spaces.
        homes: a module, relative to this package, to the names that it holds, separated by spaces. What is found is
            kept: from then on the name is one of this module's own, and replacing it here changes what callers get.
        **aliases: a name to the module that holds it, relative to this package; ``module:other`` where it is called
            something else there. Nothing is kept.
    """
    attributes = modules.split()
    kept = {name: home for home, names in (homes or {}).items() for name in names.split()}

    def __getattr__(name: str) -> object:  # noqa: N807  it becomes the module's
        if name in kept:
            found = getattr(importlib.import_module(f"{_PACKAGE}.{kept[name]}"), name)
            # what was put there meanwhile stays
            return vars(sys.modules[module]).setdefault(name, found)
        if name in attributes:
            return importlib.import_module(f"{_PACKAGE}.{name}")
        home, _, other = aliases.get(name, "").partition(":")
        if not home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{_PACKAGE}.{home}"), other or name)

    return __getattr__


def lazy_dir(module: str, names: Iterable[str]) -> Callable[[], list[str]]:
    """Return the ``__dir__`` of a module: also the names that have not been looked up yet."""
    return lambda: sorted({*vars(sys.modules[module]), *names})


def removed_attributes(module: str, way_out: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that is gone: every name is an error that says what to use."""

    def __getattr__(name: str) -> object:  # noqa: N807  it becomes the module's
        raise missing_name_error(f"module {module!r} has no attribute {name!r}: {way_out}")

    return __getattr__


def missing_name_error(message: str, depth: int = 2) -> Exception:
    """Return the error for a name that is not here: an AttributeError, or an ImportError in ``from … import name``.

    Python replaces what an AttributeError says there, and with it the way out.

    Args:
        message: what to say.
        depth: how far up the asking frame is; 2 is the caller of the caller.
    """
    import opcode  # noqa: PLC0415  only where a name is wrong

    asking = sys._getframe(depth)  # noqa: SLF001  the only way to tell an import from an attribute
    imported = asking.f_code.co_code[asking.f_lasti] == opcode.opmap["IMPORT_FROM"]
    return ImportError(message) if imported else AttributeError(message)
