"""Names of modules in strings, docstrings and pages: each leads somewhere, so that a move cannot leave one after."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.core.errors import MissingExtra

SOURCE = Path(wds.__file__).parent
ROOT = SOURCE.parents[1]
DOTTED = re.compile(r"(?<![\w./@-])webdataset(?:\.[A-Za-z_][A-Za-z_0-9]*)+")
# not modules: files, packages of others, and what programs write
OTHER = re.compile(r"webdataset\.(py|org|readthedocs|tar|tgz|s3|toml|yaml|json|git|io)\b")
# groups of entry points, and the kinds of states
GROUPS = {"webdataset.decoders", "webdataset.encoders", "webdataset.elastic", "webdataset.loader", "webdataset.stages"}


def resolve(name):
    """Import the longest module of a dotted name and return what the rest names; None where there is no such thing."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is not None and not error.name.startswith("webdataset"):
                pytest.skip(f"could not import {error.name!r}")
            continue
        except MissingExtra as error:
            pytest.skip(f"could not import {error.__cause__.name!r}")
        for part in parts[count:]:
            # an attribute that instances have is documented at the class
            found = getattr(found, part, None) or getattr(found, "__annotations__", {}).get(part)
            if found is None:
                return None
        return found
    return None


def names_in(text):
    """The dotted names in a text."""
    return {name.rstrip(".") for name in DOTTED.findall(text) if not OTHER.match(name)} - GROUPS


FILES = sorted([*SOURCE.rglob("*.py"), *(SOURCE.parent / "wids").rglob("*.py")])
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def named():
    """Every dotted name and one place where it stands."""
    found = {}
    for path in [*FILES, *PAGES]:
        for name in names_in(path.read_text(encoding="utf-8")):
            found.setdefault(name, path.relative_to(ROOT))
    return found


@pytest.mark.parametrize(("name", "where"), sorted(named().items()), ids=lambda value: str(value))
def test_names_of_modules_lead_somewhere(name, where):
    """A module, or something that a module has."""
    assert resolve(name) is not None, f"{where} names {name}"


def calls_by_name():
    """Classes that are recognised by the names of their modules: the arguments of ``is_of`` and its like."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and len(node.args) == 3:
                module, name = node.args[1:]
                constants = all(
                    isinstance(each, ast.Constant) and isinstance(each.value, str) for each in (module, name)
                )
                if constants and module.value.startswith("webdataset."):
                    yield module.value, name.value


def test_classes_that_are_recognised_by_name_exist():
    """A wrong name would never match, silently."""
    found = sorted(set(calls_by_name()))
    assert found
    for module, name in found:
        assert isinstance(getattr(importlib.import_module(module), name), type), (module, name)


def test_late_tables_name_what_there_is():
    """Compatibility modules say where their names live; each is there."""
    for compatibility in ("compat", "filters", "shardlists", "writer"):
        module = importlib.import_module(f"webdataset.{compatibility}")
        for home, names in module._LAZY_NAMES.items():
            there = importlib.import_module(f"webdataset.{home}")
            assert all(hasattr(there, name) for name in names.split()), (compatibility, home)


def test_deferred_codecs_name_what_there_is():
    """Each decoder and encoder that is loaded at first use names a function of a module."""
    from webdataset.codecs import registry

    tables = [
        value for name, value in vars(importlib.import_module("webdataset.autodecode")).items() if name == "decoders"
    ]
    deferred = [each for table in tables for each in table.values() if isinstance(each, registry.LazyCodec)]
    assert len(deferred) >= 5
    for each in deferred:
        if each.module.startswith("torch") and importlib.util.find_spec("torch") is None:
            continue
        module = importlib.import_module(f"webdataset.codecs.{each.module}")
        assert callable(getattr(module, each.name))


# names of modules that are joined to the name of a package: function, and the package
LAZY = {
    "load_backend": "webdataset.storage.backends",
    "make_opener": "webdataset.storage.backends",
    "_make_lazy_opener": "webdataset.storage.backends",
    "LazyCodec": "webdataset.codecs",
    "_lazy_encoder": "webdataset.codecs",
}


def lazy_names():
    """(function, dotted name) of every module that is loaded by the last part of its name."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if not any(f"{function}(" in text for function in LAZY):
            continue
        for node in ast.walk(ast.parse(text)):
            called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
            if called in LAZY and node.args and isinstance(node.args[0], ast.Constant):
                yield called, f"{LAZY[called]}.{node.args[0].value!s}"


@pytest.mark.parametrize(("function", "name"), sorted(set(lazy_names())))
def test_names_of_lazy_modules_lead_somewhere(function, name):
    """A module that is imported when it is first needed exists today."""
    assert importlib.util.find_spec(name) is not None, f"{function} loads {name}"


def test_lazy_functions_are_all_seen():
    """Each function that loads by name is found in the sources; a renamed one would otherwise go unchecked."""
    assert {function for function, _ in lazy_names()} == set(LAZY)
