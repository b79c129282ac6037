"""Describes a function by a digest that changes when what it computes may change, and only then.

Theory. The source is parsed, and its syntax tree is hashed: comments, docstrings, layout and the Python version do not
count. To it come the values that the function holds (closures, defaults, partials, attributes of an object that is
called) and those that it names: plain constants of its module, and, followed to any depth, functions and classes of
the user's own modules. What installed packages do, and values that are not plain, cannot be seen; ``version`` declares
them, and
``unseen`` names them. Functions without source are described by their code objects, which differ between versions of
Python; without these, ``version`` is required.

Never calls the function.
"""

import ast
import functools
import hashlib
import inspect
import os
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

from webdataset.cluster.stored_files import DIGEST_BYTES, Record
from webdataset.core.errors import UsageError

AnyFunction: TypeAlias = Callable[..., Any]
"""What can be called: a function, a class, a partial, an object."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_OWN = ("webdataset", "wids")
_SKIPPED_FIELDS = frozenset(("type_comment", "kind", "ctx", "type_ignores"))


class FunctionDescription(NamedTuple):
    """What tells a function from another.

    Args:
        name: ``module:name``, for people and for the import.
        code: digest of the sources.
        holds: digest of the values that it holds and names.
        declared: what the user says about the rest.
        unseen: names of what the digests cannot see.
    """

    name: str
    code: str
    holds: str
    declared: str | None
    unseen: tuple[str, ...]

    def to_json(self) -> Record:
        """Return what a receipt says."""
        return {"name": self.name, "code": self.code, "holds": self.holds, "declared": self.declared}


def describe_function(function: AnyFunction, version: str | None = None) -> FunctionDescription:
    """Return the description of a function.

    Args:
        function: a function, method, class, partial or object that can be called.
        version: what the user declares about what cannot be seen.

    Raises:
        UsageError: there is neither source nor code, and no version is declared.
    """
    walk = _FunctionWalk()
    walk.add("function", function)
    if not walk.sources and version is None:
        raise UsageError(
            f"{name_function(function)} has no Python code that could be compared with a later run: pass version='1', "
            "and another version when it changes"
        )
    return FunctionDescription(
        name_function(function), _digest(walk.sources), _digest(walk.values), version, tuple(sorted(set(walk.unseen)))
    )


def name_function(function: object) -> str:
    """Return ``module:name`` of a function, of what a partial calls, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _digest(lines: Iterable[str]) -> str:
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()


class _FunctionWalk:
    """Collects what a function is made of.

    Attributes:
        sources: of functions and classes, in the order in which they are met.
        values: those that are held and named.
        unseen: names of values of which only the class is known.
    """

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.values: list[str] = []
        self.unseen: list[str] = []
        self._met: list[object] = []
        self._package = ""

    def add(self, name: str, value: object) -> None:
        """Take a value: a plain one, or one that is called."""
        if isinstance(value, functools.partial):
            self.add(f"{name}.func", value.func)
            self.add(f"{name}.args", value.args)
            self.add(f"{name}.keywords", value.keywords)
        elif isinstance(value, types.MethodType):
            self.add(f"{name}.self", value.__self__)
            self.add(f"{name}.method", value.__func__)
        elif isinstance(value, types.FunctionType):
            self._add_function(name, inspect.unwrap(value))
            if value is not inspect.unwrap(value):
                self._add_function(f"{name}.wrapper", value)
        elif isinstance(value, type):
            self._add_class(name, value)
        elif callable(inner := getattr(value, "__wrapped__", getattr(value, "__func__", None))):
            # functools.cache and its like; static and class methods
            self.add(name, inner)
        else:
            self._add_value(name, value)

    def _add_value(self, name: str, value: object) -> None:
        """Take a value that is no function and no class."""
        if (text := format_plain(value)) is not None:
            self.values.append(f"{name}={text}")
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            self.values.append(f"{name}={getattr(value, '__module__', None)}.{value.__name__}")
        elif isinstance(value, list | tuple | set | frozenset | dict):
            self._add_container(name, value)
        else:
            self._add_object(name, value)

    def _add_container(self, name: str, values: Collection[object]) -> None:
        """Take a container of values that are not all plain; those of a set have no order, and count by number."""
        if not self._is_new(values):
            return
        self.values.append(f"{name}={type(values).__name__} of {len(values)}")
        if isinstance(values, dict):
            for word, part in values.items():
                self.add(f"{name}[{word!r:.100}]", part)
        elif isinstance(values, list | tuple):
            for place, part in enumerate(values):
                self.add(f"{name}[{place}]", part)
        else:
            self.unseen.append(f"{name} ({type(values).__name__})")

    def _is_new(self, value: object) -> bool:
        if any(value is met for met in self._met):
            return False
        self._met.append(value)
        return True

    def _is_own(self, value: object) -> bool:
        """Tell whether something is the user's code: of the package of the described function, or installed nowhere."""
        module = str(getattr(value, "__module__", None) or "")
        package = module.partition(".")[0]
        if package in _OWN:
            return False
        self._package = self._package or package
        return package == self._package or _is_user_module(sys.modules.get(module))

    def _add_function(self, name: str, function: types.FunctionType) -> None:
        if not self._is_new(function):
            self.values.append(f"{name}={function.__qualname__}")
            return
        if not self._is_own(function):
            self.values.append(f"{name}={function.__module__}.{function.__qualname__}")
            return
        self.sources.append(_read_source(function))
        for index, default in enumerate(function.__defaults__ or ()):
            self.add(f"{name}.default{index}", default)
        for word, default in sorted((function.__kwdefaults__ or {}).items()):
            self.add(f"{name}.{word}", default)
        for word, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.add(f"{name}.{word}", _read_cell(cell))
        self._add_globals(name, function)

    def _add_globals(self, name: str, function: types.FunctionType) -> None:
        names = _collect_names(function.__code__)
        for word in sorted(names):
            if word not in function.__globals__:
                continue
            value = function.__globals__[word]
            if isinstance(value, types.ModuleType):
                self._add_module(word, value, names)
            else:
                self.add(f"{name}.{word}", value)

    def _add_module(self, word: str, module: types.ModuleType, names: set[str]) -> None:
        """Take what a function names of a module of its own package."""
        if module.__name__.partition(".")[0] != self._package and not _is_user_module(module):
            return
        for attribute in sorted(names):
            value = vars(module).get(attribute)
            if value is not None and not isinstance(value, types.ModuleType):
                self.add(f"{word}.{attribute}", value)

    def _add_class(self, name: str, kind: type) -> None:
        if not self._is_new(kind) or not self._is_own(kind):
            self.values.append(f"{name}={kind.__module__}.{kind.__qualname__}")
            return
        source = _read_source(kind)
        self.sources.append(source)
        for base in kind.__bases__:
            if base is not object:
                self.add(f"{name}.base", base)
        for word, part in vars(kind).items():
            inner = part.fget if isinstance(part, property) else part
            inner = getattr(inner, "__func__", inner)
            if isinstance(inner, types.FunctionType):
                self._add_globals(f"{name}.{word}", inner)
                if not source.startswith("class"):
                    self._add_function(f"{name}.{word}", inner)
            elif not word.startswith("__") and format_plain(inner) is not None:
                self.add(f"{name}.{word}", inner)

    def _add_object(self, name: str, value: object) -> None:
        text = _format_array(value)
        if text is not None:
            self.values.append(f"{name}={text}")
            return
        kind = type(value)
        self.values.append(f"{name}=a {kind.__module__}.{kind.__qualname__}")
        if not self._is_new(value):
            return
        own = str(kind.__module__).partition(".")[0]
        if callable(value) or own == self._package:
            self._add_class(f"{name}.class", kind)
            for word, part in sorted(getattr(value, "__dict__", {}).items()):
                self.add(f"{name}.{word}", part)
        if own != self._package:
            self.unseen.append(f"{name} ({kind.__module__}.{kind.__qualname__})")


def _is_user_module(module: types.ModuleType | None) -> bool:
    """Tell whether a module is the user's own: not of Python, and not installed beside other packages."""
    path = getattr(module, "__file__", None)
    if path is None or str(getattr(module, "__name__", "")).partition(".")[0] in _OWN:
        return False
    return not path.startswith(_installed_folders())


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(f"{paths[name]}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def format_plain(value: object) -> str | None:
    """Return the text of a plain value, the same in every process; None where it is not plain.

    Plain are numbers, text, bytes, None, paths, regular expressions, and tuples, lists, dictionaries and sets of them.
    """
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, PurePath):
        return f"path {value.as_posix()!r}"
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r} {value.flags}"
    try:
        return _format_container(value)
    except RecursionError:  # a list that holds itself
        return None


def _format_container(value: object) -> str | None:
    if isinstance(value, dict):
        pairs = [(format_plain(name), format_plain(part)) for name, part in value.items()]
        known = [f"{name}:{part}" for name, part in pairs if name is not None and part is not None]
        return None if len(known) < len(pairs) else f"{type(value).__name__} {sorted(known)}"
    if not isinstance(value, list | tuple | set | frozenset):
        return None
    parts = [format_plain(part) for part in value]
    texts = [part for part in parts if part is not None]
    if len(texts) < len(parts):
        return None
    return f"{type(value).__name__} {sorted(texts) if isinstance(value, set | frozenset) else texts}"


def _format_array(value: object) -> str | None:
    """Return the digest of a NumPy array."""
    kind, tell = getattr(value, "dtype", None), getattr(value, "tobytes", None)
    if type(value).__module__ != "numpy" or tell is None or getattr(kind, "hasobject", True):
        return None
    content = hashlib.blake2b(tell(), digest_size=DIGEST_BYTES).hexdigest()
    return f"array {kind} {getattr(value, 'shape', ())} {content}"


def _read_cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ()


def _collect_names(code: types.CodeType) -> set[str]:
    """Return the names that some code and the code in it use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_collect_names, inner))


def _read_source(thing: types.FunctionType | type) -> str:
    """Return the syntax tree of a function's or a class's source, as text; else what its code objects hold."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError, ValueError):
        tree = None
    if isinstance(thing, types.FunctionType) and thing.__name__ == "<lambda>":
        # the line may hold several: the one that this is does not show in the source
        lambdas = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        return _format_tree(lambdas[0]) if len(lambdas) == 1 else "\n".join(_walk_code(thing.__code__))
    if tree is not None and len(tree.body) == 1:
        kind = "class" if isinstance(thing, type) else "function"
        return f"{kind} {_format_tree(tree.body[0])}"
    if isinstance(thing, type):
        return f"code {thing.__qualname__}"
    return "\n".join(_walk_code(thing.__code__))


def _format_tree(node: object) -> str:
    """Return a syntax tree as text that is the same on every version of Python: empty fields are left out."""
    if isinstance(node, list):
        return f"[{', '.join(map(_format_tree, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, part in ast.iter_fields(node):
        if name == "body" and isinstance(part, list):
            part = _drop_docstring(part)  # noqa: PLW2901  the same field without its comment
        if part is not None and part != [] and name not in _SKIPPED_FIELDS:
            fields.append(f"{name}={_format_tree(part)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _drop_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    documents = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if documents else body


def _walk_code(code: types.CodeType) -> Iterator[str]:
    """Yield what a code object holds, for functions without source."""
    yield f"code {code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _walk_code(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
