"""Record the public names and signatures of a published webdataset, by importing it and asking ``inspect``.

Run it with the interpreter of an environment that holds one published version::

    $WDS_ORACLE_086 scripts/published_names.py tests/compat/published

It writes ``tests/compat/published/<version>.json``: for every module its names, and for every function and class the
parameters ``[name, kind, default]``. Nothing of the package's source is read. tests/compat compares ours with it.
Modules that need further packages (torch, pyzmq, typer) are recorded where these can be imported, and named as errors
otherwise.
"""

import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

PRIVATE = {
    "_shuffle",
    "_map",
    "_map_dict",
    "_map_tuple",
    "_batched",
    "_unbatched",
    "_decode",
    "_rename",
    "_to_tuple",
    "_select",
    "_rsample",
    "_slice",
    "_associate",
    "_extract_keys",
    "_rename_keys",
    "_info",
    "_log_keys",
    "_unlisted",
    "_xdecode",
}
SIMPLE = (bool, int, float, str, bytes, type(None))
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MEMORY = re.compile(r"0x[0-9a-f]{6,}")


def described_default(default: Any) -> Any:
    """Return a default as JSON: simple values as themselves in a list, anything else as the name it goes by."""
    if isinstance(default, SIMPLE) and not isinstance(default, bytes):
        return [default]
    if isinstance(default, (list, tuple, dict)):
        return f"{type(default).__name__} of {len(default)}"
    return getattr(default, "__name__", None) or ADDRESS.sub("", repr(default))


def parameters(function: Any) -> list[list[Any]] | None:
    """Return ``[name, kind, default]`` of each parameter (default left out where there is none), or None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    return [
        [entry.name, entry.kind.name]
        + ([] if entry.default is inspect.Parameter.empty else [described_default(entry.default)])
        for entry in signature.parameters.values()
    ]


def own_methods(kind: type) -> dict[str, Any]:
    """Return the public methods of a class that its package defines, by name."""
    methods: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in ("webdataset", "wids"):
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                if isinstance(function, types.FunctionType) and (
                    not name.startswith("_") or name in ("__len__", "__iter__", "__getitem__", "__call__", "__enter__")
                ):
                    methods[name] = parameters(function)
                elif isinstance(member, property):
                    methods[name] = "property"
    return methods


def described(thing: Any) -> dict[str, Any]:
    """Return what one name is: its kind, its home, its parameters."""
    home = getattr(thing, "__module__", None)
    if isinstance(thing, types.ModuleType):
        return {"kind": "module", "home": thing.__name__}
    if inspect.isclass(thing):
        return {"kind": "class", "home": home, "parameters": parameters(thing), "methods": own_methods(thing)}
    if isinstance(thing, types.FunctionType):
        return {"kind": "function", "home": home, "parameters": parameters(thing)}
    if callable(thing):
        inner = getattr(thing, "f", None)
        found: dict[str, Any] = {"kind": "callable", "home": type(thing).__module__, "type": type(thing).__name__}
        if isinstance(inner, types.FunctionType):
            found |= {"kind": "stage maker", "parameters": (parameters(inner) or [])[1:]}
        return found
    return {"kind": "value", "type": type(thing).__name__}


def names_of(module: types.ModuleType) -> dict[str, Any]:
    """Return the public names of a module, and the private ones that other projects import.

    A name that another recorded module defines is given as ``{"from": module}``, one of another package as
    ``{"foreign": module}``.
    """
    chosen = [name for name in vars(module) if not name.startswith("_") or name in PRIVATE]
    found = {}
    for name in sorted(chosen):
        entry = described(vars(module)[name])
        home = entry.get("home") or "builtins"
        if home.partition(".")[0] not in ("webdataset", "wids") and entry["kind"] != "value":
            entry = {"foreign": home, "kind": entry["kind"]}
        elif home != module.__name__ and entry["kind"] in ("function", "class"):
            entry = {"from": home, "kind": entry["kind"]}
        found[name] = entry
    return found


def published(package: str) -> dict[str, Any]:
    """Return modules by name: their names, or ``{"error": …}`` where one cannot be imported here."""
    root = importlib.import_module(package)
    modules = {package: names_of(root)}
    for entry in pkgutil.walk_packages(root.__path__, package + "."):
        if "test" in entry.name:
            continue
        try:
            modules[entry.name] = names_of(importlib.import_module(entry.name))
        except Exception as error:  # noqa: BLE001  a module may fail in any way when it is imported
            modules[entry.name] = {"error": MEMORY.sub("", f"{type(error).__name__}: {error}")}
    return modules


def written(version: str, modules: dict[str, Any]) -> str:
    """Return the record as JSON with one line a name."""
    blocks = []
    for module, names in sorted(modules.items()):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(names.items()))
        blocks.append(f" {json.dumps(module)}: {{\n{lines}\n }}")
    return f'{{"version": {json.dumps(version)}, "modules": {{\n' + ",\n".join(blocks) + "\n}}\n"


def main() -> None:
    """Write one file: the names of the webdataset (and wids) that this interpreter has."""
    warnings.simplefilter("ignore")
    version = importlib.metadata.version("webdataset")
    found = published("webdataset")
    try:
        found |= published("wids")
    except ImportError as error:
        print("no package wids beside", version, error)
    path = Path(sys.argv[1], f"{version}.json")
    path.write_text(written(version, found))
    print(path)


if __name__ == "__main__":
    main()
