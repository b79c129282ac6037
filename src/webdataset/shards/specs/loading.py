"""From a file, a url or a dictionary to a specification, whatever dialect it is written in.

Flows in: what the user names. Flows out: a ``DatasetSpec``, or one error that names every mistake by its place. Opens
specifications and indexes, never shards, and imports nothing that a specification names.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import FormatError, SpecError

from . import dialects, energon, native, open_clip, wids
from .context import Context, trust_level
from .description import DatasetSpec
from .json_trees import json_tree
from .origins import Origin, origin_of
from .texts import text_of
from .trees import Problems, Tree, filled_in, from_python
from .yaml_trees import yaml_tree

FORMS = (
    "a specification has 'version: 1' and 'splits' or 'sources'; a list 'dataset' of shards; 'datasets' as "
    "MultiShardSample has them; 'sources' as tarmix has them; 'splits' as an Energon metadataset has them; or "
    "'wids_version' as a wids shard index has it"
)


def load_spec(spec: Any, *, trust: str | None = None, url: str | None = None) -> DatasetSpec:
    """Read a dataset specification.

    Args:
        spec: path or url of a YAML or JSON file; a ``Path``; a dictionary of the same form; or a ``DatasetSpec``, which
            is returned as it is.
        trust: ``full`` lets a local specification name functions (``module:function``).
        url: for a dictionary, where it came from: relative names are relative to it, and it may name no more than a
            file from there may.

    Returns:
        The specification, frozen: nothing is opened but specifications and indexes.

    Raises:
        NotFound: no such file.
        SpecError: mistakes, all of them, each with ``file:line:column``.
        UnsafeSpec: it came over the network and names a command, a local path, a function or the environment.
    """
    if isinstance(spec, DatasetSpec):
        return spec
    problems = Problems()
    if isinstance(spec, Mapping):
        origin = Origin("specification", "", network=False) if url is None else origin_of(url)
        tree = from_python(spec)
    else:
        origin = origin_of(spec)
        tree = read_tree(spec, problems)
    context = Context(origin, trust_level(trust), _load, problems, (os.path.realpath(origin.name),), _dispatched)
    found = _dispatched(tree, context)
    problems.raise_any()
    return found


def from_open_clip(train_data: str, upsampling_factors: str | None = None) -> DatasetSpec:
    """Return the specification that open_clip's arguments stand for.

    Args:
        train_data: ``--train-data``: expressions of shards, joined by ``::``.
        upsampling_factors: ``--train-data-upsampling-factors``: a number for each, joined by ``::``.

    Raises:
        UsageError: not one positive factor for each expression.
    """
    context = Context(Origin("train_data", "", network=False), trust_level(None), _load)
    found = open_clip.read(train_data, upsampling_factors, context)
    context.problems.raise_any()
    return found


def read_tree(url: Any, problems: Problems) -> Tree:
    """Return the tree of a YAML or JSON file.

    Args:
        url: its url or path; JSON is known by its name, ``.json``.
        problems: where mistakes are noted.

    Raises:
        NotFound: no such file.
        SpecError: it is neither.
    """
    name = os.fsdecode(url)
    text = text_of(url)
    if b'"wids_version"' in text:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(text)
            if isinstance(document, dict) and "wids_version" in document:  # it may be large: its own reader reads it
                return Tree({key: Tree(None, name) for key in document}, name)
    read = json_tree if name.split("?")[0].lower().endswith(".json") else yaml_tree
    return read(text, name, problems)


def _load(url: str, context: Context) -> DatasetSpec:
    """Read a specification that another one names: it may name no more than either of them may."""
    origin = origin_of(url)
    network = origin.network or context.origin.network
    place = Origin(origin.name, origin.base, network=network)
    inner = Context(place, context.trust, _load, around=context.around, within=_dispatched, files=context.files)
    found = _dispatched(read_tree(url, inner.problems), inner)
    inner.problems.raise_any()
    return found


def dialect(tree: Tree) -> str | None:
    """Return the name of the dialect that a document is written in, or None.

    Args:
        tree: the whole document.
    """
    if not isinstance(tree.value, dict):
        return None
    has = tree.value.keys()
    if "wids_version" in has or "__kind__" in has:
        return "wids"
    if "version" in has or ("mix" in has and "sources" in has):
        return "native"
    if energon.looks_like(tree):
        return "energon"
    lists = {name for name in ("dataset", "datasets", "sources") if isinstance(tree.value.get(name, tree).value, list)}
    named = {"dataset": "dataset", "datasets": "multishard", "sources": "tarmix"}
    found = next((named[name] for name in named if name in lists), None)
    return "native" if found is None and "splits" in has else found


_READERS = {
    "native": native.read,
    "energon": energon.read,
    "dataset": dialects.read_seed,
    "tarmix": dialects.read_tarmix,
}


def _dispatched(tree: Tree, context: Context) -> DatasetSpec:
    kind = dialect(tree)
    empty = DatasetSpec({}, "", context.origin)
    if kind is None:
        near = f", and this has {', '.join(map(repr, list(tree.value)[:6]))}" if isinstance(tree.value, dict) else ""
        context.problems.add(tree.place, f"not a dataset specification: {FORMS}{near}")
        return empty
    if kind == "wids":
        document = tree.plain()
        if None in document.values():  # it was left to its own reader
            document = context.origin.name
        return context.attempt(tree, lambda: wids.read(tree, context, document)) or empty
    if kind == "multishard":
        return dialects.read_multishard(tree, context)
    filled = filled_in(tree, context.problems, allowed=not context.origin.network)
    return _READERS[kind](filled, context)


__all__ = ["FORMS", "FormatError", "SpecError", "dialect", "from_open_clip", "load_spec", "read_tree"]
