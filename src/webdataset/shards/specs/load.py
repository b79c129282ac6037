"""Loads a specification from a file, a url or a dictionary, whatever dialect it is written in.

The result is a ``DatasetSpec``, or one error that names every mistake with its place. Loading opens specifications
and indexes, never shards, and imports nothing that a specification names.
"""

import contextlib
import json
import os
from collections.abc import Mapping

from webdataset.core.errors import FormatError, SpecError
from webdataset.core.tracebacks import TrimmedTracebacks
from webdataset.shards.lists import ShardList
from webdataset.shards.specs import dialects, energon, native
from webdataset.shards.specs.context import SpecContext, current_trust
from webdataset.shards.specs.mix import Mix
from webdataset.shards.specs.origin import SpecOrigin, find_origin, read_spec_bytes
from webdataset.shards.specs.spec import DatasetSpec
from webdataset.shards.specs.syntax import (
    SpecProblems,
    SpecTree,
    parse_json,
    parse_yaml,
    substitute_tree,
    tree_from_python,
)
from webdataset.shards.wids_lists import LocatedIndex

SpecLike = str | os.PathLike[str] | Mapping[str, object] | DatasetSpec

FORMS = (
    "a specification has 'version: 1' and 'splits' or 'sources'; a list 'dataset' of shards; 'datasets' as "
    "MultiShardSample has them; 'sources' as tarmix has them; 'splits' as an Energon metadataset has them; or "
    "'wids_version' as a wids shard index has it"
)


def load_source(spec: SpecLike, split: str | None, *, trust: str | None = None) -> tuple[Mix, ShardList | None]:
    """Read a specification for a dataset, opening each file once.

    Returns:
        The split, and the list of its shards where the document is no more than a list: a shard index without weights,
        or the samples of shards that ``MultiShardSample`` takes.

    Raises:
        UsageError: there is no such split.
        SpecError: as for :func:`load_spec`.
    """
    found, listed = _load(spec, trust, None)
    mix = found.split(split)
    plain = not found.origin.network and (found.dialect == "multishard" or mix.how == "concat")
    return mix, listed[0] if listed and plain else None


def load_spec(spec: SpecLike, *, trust: str | None = None, url: str | None = None) -> DatasetSpec:
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
    with TrimmedTracebacks():
        return _load(spec, trust, url)[0]


def _load(spec: SpecLike, trust: str | None, url: str | None) -> tuple[DatasetSpec, list[ShardList]]:
    """Return a specification, and the list of shards that its document is, if it is one."""
    if isinstance(spec, DatasetSpec):
        return spec, []
    problems = SpecProblems()
    if isinstance(spec, Mapping):
        origin = SpecOrigin("specification", "", network=False) if url is None else find_origin(url)
        located = isinstance(spec, LocatedIndex) and "wids_version" in spec
        tree = _leave_index(spec, origin.name) if located else tree_from_python(spec)
    else:
        origin = find_origin(spec)
        tree = read_tree(spec, problems)
    context = SpecContext(
        origin, current_trust(trust), _load_include, problems, (os.path.realpath(origin.name),), _read_document
    )
    found = _read_document(tree, context)
    problems.raise_any()
    return found, context.listed if found.dialect in ("wids", "multishard") else []


def from_open_clip(train_data: str, upsampling_factors: str | None = None) -> DatasetSpec:
    """Return the specification that open_clip's arguments stand for.

    Args:
        train_data: ``--train-data``: expressions of shards, joined by ``::``.
        upsampling_factors: ``--train-data-upsampling-factors``: a number for each, joined by ``::``.

    Raises:
        UsageError: not one positive factor for each expression.
    """
    context = SpecContext(SpecOrigin("train_data", "", network=False), current_trust(None), _load_include)
    found = dialects.read_open_clip(train_data, upsampling_factors, context)
    context.problems.raise_any()
    return found


def read_tree(url: str | os.PathLike[str], problems: SpecProblems) -> SpecTree:
    """Return the tree of a YAML or JSON file.

    Args:
        url: its url or path; JSON is known by its name, ``.json``.
        problems: where mistakes are noted.

    Raises:
        NotFound: no such file.
        SpecError: it is neither.
    """
    name = os.fsdecode(url)
    text = read_spec_bytes(url)
    if b'"wids_version"' in text:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(text)
            # it has a reader of its own
            if isinstance(document, dict) and "wids_version" in document:
                return _leave_index(LocatedIndex(document, name), name)
    read = parse_json if name.split("?")[0].lower().endswith(".json") else parse_yaml
    return read(text, name, problems)


def _leave_index(document: Mapping[str, object], name: str) -> SpecTree:
    """Return the tree of a shard index, which may be large and has a reader of its own: its keys alone."""
    return SpecTree({key: SpecTree(None, name) for key in document}, name, document=document)


def _load_include(url: str, context: SpecContext) -> DatasetSpec:
    """Read a specification that another one names: it may name no more than either of them may."""
    origin = find_origin(url)
    network = origin.network or context.origin.network
    place = SpecOrigin(origin.name, origin.base, network=network)
    inner = SpecContext(
        place, context.trust, _load_include, around=context.around, within=_read_document, files=context.files
    )
    found = _read_document(read_tree(url, inner.problems), inner)
    inner.problems.raise_any()
    return found


def dialect(tree: SpecTree) -> str | None:
    """Return the name of the dialect that a document is written in, or None."""
    if not isinstance(tree.value, dict):
        return None
    has = tree.value.keys()
    if "wids_version" in has or "__kind__" in has:
        return "wids"
    if "version" in has or ("mix" in has and "sources" in has):
        return "native"
    if energon.is_metadataset(tree):
        return "energon"
    lists = {name for name in ("dataset", "datasets", "sources") if isinstance(tree.value.get(name, tree).value, list)}
    named = {"dataset": "dataset", "datasets": "multishard", "sources": "tarmix"}
    found = next((named[name] for name in named if name in lists), None)
    return "native" if found is None and "splits" in has else found


_READERS = {
    "native": native.read_native,
    "energon": energon.read_energon,
    "dataset": dialects.read_dataset_list,
    "tarmix": dialects.read_tarmix,
}


def _read_document(tree: SpecTree, context: SpecContext) -> DatasetSpec:
    kind = dialect(tree)
    empty = DatasetSpec({}, "", context.origin)
    if kind is None:
        near = f", and this has {', '.join(map(repr, list(tree.value)[:6]))}" if isinstance(tree.value, dict) else ""
        context.problems.add(tree.place, f"not a dataset specification: {FORMS}{near}")
        return empty
    if kind == "wids":
        document = tree.plain() if tree.document is None else tree.document
        return context.attempt(tree, lambda: dialects.read_wids(tree, context, document)) or empty
    if kind == "multishard":
        return dialects.read_multishard(tree, context)
    filled = substitute_tree(tree, context.problems, allowed=not context.origin.network)
    before = len(context.problems.found)
    found = _READERS[kind](filled, context)
    if kind == "tarmix" and len(context.problems.found) > before:
        context.problems.add(
            tree.place, "without 'version: 1', 'sources' are read as those of tarmix: write it if that is not meant"
        )
    return found


__all__ = ["FORMS", "FormatError", "SpecError", "dialect", "from_open_clip", "load_spec", "read_tree"]
