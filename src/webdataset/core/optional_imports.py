"""Imports of optional packages on first use, and base classes of torch without importing torch.

A package that is absent is named together with the extra that installs it.

``isinstance(dataset, torch.utils.data.Dataset)`` looks at the type of the dataset, then asks for its ``__class__``.
At that moment torch is loaded, so our class answers with a twin of itself that has the class of torch among its
bases. A program that never loads torch pays nothing, and the order of imports does not matter. The twin serves such
questions only: no object is made of it, and ``type(dataset)`` and pickles name the class itself.
"""

import contextlib
import copyreg
import importlib
import sys
import weakref
from types import ModuleType
from typing import Any, Self, SupportsIndex, cast

from webdataset.core.errors import MissingExtra, UsageError
from webdataset.core.redaction import redact


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module or say how to install it.

    Returns:
        The module.

    Raises:
        MissingExtra: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package
        # a package that is there, and lacks a library of its own
        reason = "" if absent else f" (importing it fails: {error})"
        raise MissingExtra(f"{purpose} needs {package}: {install_command(extra)}{reason}") from error


def install_command(extra: str = "") -> str:
    """Return the command that installs an extra of this package, from where the package was installed.

    The package index has another package under this name, so the name alone would install that one. A checkout and a
    file are named by their path, a repository by its url. Where none of them is left, the version is named: pip then
    keeps the package that is installed and adds what its extra needs.

    Args:
        extra: its name; several have commas between; empty for the package alone.
    """
    import json  # noqa: PLC0415  only for a message
    import shlex  # noqa: PLC0415  only for a message
    from importlib import metadata  # noqa: PLC0415  20 ms, only for a message
    from pathlib import Path  # noqa: PLC0415  only for a message

    brackets = f"[{extra}]" if extra else ""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent.parent
    if package == checkout / "src" / "webdataset" and (checkout / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{checkout}{brackets}')}"
    try:
        origin = metadata.distribution("webdataset")
        version = origin.version
        source = json.loads(origin.read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        version, source = getattr(sys.modules.get("webdataset"), "__version__", ""), {}
    return f"pip install {shlex.quote(_name_source(source, brackets) or f'webdataset{brackets}=={version}')}"


def _name_source(source: dict[str, object], brackets: str) -> str | None:
    """Return what pip is given for the source that ``direct_url.json`` (PEP 610) records; None where it is gone."""
    from pathlib import Path  # noqa: PLC0415  only for a message
    from urllib.parse import urlsplit  # noqa: PLC0415  only for a message
    from urllib.request import url2pathname  # noqa: PLC0415  only for a message

    url = redact(str(source.get("url", "")))
    revision = source.get("vcs_info")
    if isinstance(revision, dict):
        return f"webdataset{brackets} @ {revision['vcs']}+{url}@{revision['commit_id']}"
    if not url.startswith("file:"):
        return f"webdataset{brackets} @ {url}" if url else None
    path = Path(url2pathname(urlsplit(url).path))
    return f"{path}{brackets}" if path.exists() else None


def import_if_available(module: str) -> ModuleType | None:
    """Import an optional module, or return None where it is not installed or does not load."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


# modules that were whole when they were asked for
_whole: set[str] = set()
# packages that workers import by themselves, or whose functions users call there
_PACKAGES = frozenset(["PIL", "av", "jax", "numpy", "pyarrow", "torch", "webdataset"])


def loaded_module(module: str) -> ModuleType | None:
    """Return a module only if the process has imported it already (torch is never imported for a question).

    One that another thread is importing is waited for: it lacks some of its names.
    """
    found = sys.modules.get(module)
    if found is None or module in _whole:
        return found
    if _is_loading(found):
        _wait_for_import(module)
        return sys.modules.get(module)
    _whole.add(module)
    return found


def _is_loading(module: object) -> bool:
    """Tell whether a module is being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _wait_for_import(module: str) -> None:
    """Wait until another thread has imported a module; return at once where this thread does."""
    with contextlib.suppress(Exception):  # whatever the module raises: it is the other thread's
        importlib.import_module(module)


def finish_imports() -> None:
    """Wait for imports of other threads before a fork: the child would wait for them without end."""
    for name, module in list(sys.modules.items()):
        if _is_loading(module) and name.partition(".")[0] in _PACKAGES:
            _wait_for_import(name)


def is_instance_by_name(thing: object, module: str, kind: str) -> bool:
    """Tell whether something is of a class, without importing the class: while it is not imported, nothing is of it."""
    made = getattr(sys.modules.get(module), kind, None)
    return made is not None and isinstance(thing, made)


_twins: weakref.WeakKeyDictionary[type, tuple[type, type]] = weakref.WeakKeyDictionary()


def torch_twin(kind: type) -> type:
    """Return ``kind`` as a subclass of torch's IterableDataset, or ``kind`` itself while torch is not loaded.

    Args:
        kind: a class of datasets. It is registered with torch's class (an ABC) too, for ``issubclass``.
    """
    base = getattr(loaded_module("torch.utils.data"), "IterableDataset", None)
    if base is None or base in kind.__mro__:
        return kind
    known = _twins.get(kind)
    if known is None or known[0] is not base:
        base.register(kind)
        known = _twins[kind] = (base, _make_twin(kind, base))
    return known[1]


def _make_twin(kind: type, base: type) -> type:
    """Make the twin: it equals ``kind``, and calling it makes a ``kind``, as ``self.__class__(…)`` should."""
    metas = [meta for meta in dict.fromkeys((type(kind), type(base))) if meta is not type]
    metas = [meta for meta in metas if not any(other is not meta and issubclass(other, meta) for other in metas)]
    same: dict[str, Any] = {
        "__call__": lambda _, *args, **kw: kind(*args, **kw),
        "__eq__": lambda cls, other: other is kind or other is cls,
        "__hash__": lambda _: hash(kind),
    }
    members: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__new__": lambda _, *args, **kw: kind.__new__(kind, *args, **kw),
    }
    try:
        made: type = type("Twin", tuple(metas), same)(kind.__name__, (kind, base), members)
    except TypeError:  # a metaclass or layout of the user's that does not mix: the ABC alone has to do
        return kind
    return made


def _make_instance(kind: type, *args: object) -> object:
    return kind.__new__(kind, *args)


class IterableDataset:
    """Base of everything here that a DataLoader may be given."""

    @property
    def __class__(self) -> type[Self]:
        return cast("type[Self]", torch_twin(type(self)))

    @__class__.setter
    def __class__(self, kind: type) -> None:
        object.__dict__["__class__"].__set__(self, kind)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle by ``type(self)``: pickle refuses objects whose ``__class__`` is another one."""
        reduced = object.__reduce_ex__(self, max(int(protocol), 2))
        if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            return (_make_instance, *reduced[1:])
        return reduced

    def __add__(self, other: object) -> object:
        """Return torch's chain of two datasets.

        Raises:
            UsageError: torch is not loaded.
        """
        data = loaded_module("torch.utils.data")
        if data is None:
            raise UsageError("a + b is torch's ChainDataset: import torch.utils.data first, or use itertools.chain")
        return data.ChainDataset([self, other])
