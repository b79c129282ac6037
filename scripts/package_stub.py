"""Write ``src/webdataset/__init__.pyi``: what type checkers see of a package that finds its names when they are used.

``python scripts/package_stub.py`` writes the file; with ``--check`` it fails where the file is not what it should be.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import webdataset

STUB = Path(webdataset.__file__).with_suffix(".pyi")
WIDTH = 120

HEAD = """# ruff: noqa: A004, F401, I001  each name is passed on, in the order in which the script writes them
# Names of the package and where they live, for type checkers. Written by scripts/package_stub.py.
from collections.abc import Callable
from typing import Any

"""

TAIL = """
class _Gopen:
    gopen_schemes: dict[str, Callable[..., Any]]
    info: dict[str, Any]
    def __call__(self, url: Any, mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...

gopen: _Gopen
pytorch_weights_only: bool
__version__: str
"""


def imported(home: str, pairs: list[tuple[str, str]]) -> str:
    """Return one import statement that passes its names on.

    Args:
        home: the module, as it is written behind ``from``.
        pairs: names there, and what they are called here.
    """
    names = [f"{there} as {here}" for there, here in pairs]
    line = f"from {home} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line + "\n"
    return "".join([f"from {home} import (\n", *(f"    {name},\n" for name in names), ")\n"])


def resolve_home(home: str, name: str) -> str:
    """Return the module that defines a name, where a package serves it when it is first used.

    Args:
        home: the module or package that has it.
        name: of the object.
    """
    served: dict[str, str] = getattr(importlib.import_module(f"webdataset.{home}"), "_HOMES", {})
    return f"{home}.{served[name]}" if name in served else home


def text() -> str:
    """Return what the file should hold."""
    tables: dict[str, Any] = vars(webdataset)
    special = {"gopen", "pytorch_weights_only"}
    homes: dict[str, set[str]] = {}
    for name, home in {**tables["_HOME"], **tables["_ELSEWHERE"]}.items():
        if name not in special:
            homes.setdefault(resolve_home(home, name), set()).add(name)
    places: dict[str, list[tuple[Any, Any]]] = {}
    for name, place in sorted(tables["_MODULES"].items()):
        if name not in special:
            package, _, module = place.rpartition(".")
            places.setdefault(f".{package}", []).append((module, name))
    modules = sorted(places.items())
    late = [
        (f".{home}", sorted((tables["_ALIASES"].get(name, name), name) for name in names))
        for home, names in sorted(homes.items())
        if names
    ]
    names = "".join(f'    "{name}",\n' for name in webdataset.__all__)
    return HEAD + "".join(imported(*row) for row in modules + late) + f"\n__all__ = [\n{names}]\n" + TAIL


if __name__ == "__main__":
    if "--check" in sys.argv:
        if not STUB.exists() or STUB.read_text(encoding="utf-8") != text():
            sys.exit(f"{STUB.name} is not what the package serves: run python scripts/package_stub.py")
    else:
        STUB.write_text(text(), encoding="utf-8")
