"""The native format, version 1: one source of a mix.

Flows in: the tree of one source. Flows out: a ``Source``; every mistake is noted by its place.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .context import Context
from .description import DatasetSpec
from .energon import listed
from .mixes import Mix, Source
from .tables import KINDS_OF_SOURCE, OF_SHARDS, OPTIONS, SOURCE
from .trees import Tree
from .wids import wids_source

MixReader = Callable[..., Mix]


def source(tree: Tree, defaults: Tree | None, context: Context, mix: MixReader) -> Source:
    """Return one source.

    Args:
        tree: where it stands; a text stands for its shards.
        defaults: keys that it may not give.
        context: the specification.
        mix: reads a mix that stands within a source.
    """
    problems = context.problems
    if isinstance(tree.value, str):
        tree = Tree({"shards": tree}, tree.place, {"shards": tree.place})
    if not isinstance(tree.value, dict):
        problems.add(tree.place, "a source is a mapping, or the url of its shards")
        return Source()
    members = SOURCE.read(tree, problems)
    given = [name for name in KINDS_OF_SOURCE if name in tree.value]
    if len(given) != 1:
        problems.add(
            tree.place,
            f"a source has one of {', '.join(KINDS_OF_SOURCE)}, not {' and '.join(given) if given else 'none'}",
        )
        return Source()
    options = {name: value for name, value in members.items() if name in OPTIONS.kinds or name == "name"}
    inherited = _inherited(options, defaults, given[0], context)
    made = Source(**{**inherited, **options}, origin=context.origin)
    _check_together(tree, members, given[0], context)
    _check_allowed(made, tree, defaults, context)
    return _filled(made, given[0], tree, members, partial(mix, defaults=defaults, context=context), context)


def _filled(  # noqa: PLR0917  one call
    made: Source, kind: str, tree: Tree, members: dict[str, Any], mix: Callable[[Tree], Mix], context: Context
) -> Source:
    """Return a source with its shards, or with its mix."""
    if kind not in members:
        return made
    part, value = tree.value[kind], members[kind]
    if kind == "shards":
        return replace(made, shards=context.shards(part, value))
    if kind == "energon":
        return listed(made, part, value, members.get("split_part"), context)
    if kind == "spec":
        return replace(made, mix=_nested(part, members.get("split"), context, mix))
    return wids_source(made, part, value, context)


def _inherited(options: dict[str, Any], defaults: Tree | None, kind: str, context: Context) -> dict[str, Any]:
    if defaults is None:
        return {}
    found = OPTIONS.read(defaults, context.problems)
    if "tags" in found and "tags" in options:
        options["tags"] = {**found["tags"], **options["tags"]}
    if kind == "spec":
        found = {name: value for name, value in found.items() if name not in OF_SHARDS}
    return found


def _check_together(tree: Tree, members: dict[str, Any], kind: str, context: Context) -> None:
    """Note keys that do not go together."""
    note = context.problems.add
    if "choose" in members and "resample" in members:
        note(tree.keys["resample"], "give either 'choose' or 'resample', not both")
    if "resample" in members and members.get("repeat", 1) != 1:
        note(tree.keys["repeat"], "'resample' says already how many shards an epoch reads")
    for name, needed in (("split", "spec"), ("split_part", "energon")):
        if name in members and kind != needed:
            note(tree.keys[name], f"'{name}' goes with '{needed}'")
    if kind == "spec":
        _check_nested(tree, members, context)


def _check_allowed(made: Source, tree: Tree, defaults: Tree | None, context: Context) -> None:
    """Note what a source, with what it takes over from the defaults, may not name."""

    def at(name: str) -> Tree:
        return tree.get(name) or (defaults and defaults.get(name)) or tree

    if made.cache is not None and context.origin.network:
        problem = "a specification from the network cannot name a directory"
        context.problems.add(at("cache").place, problem, unsafe=True)
    for step, _ in made.transforms:
        if isinstance(step, str) and ":" in step:
            context.allowed_function(at("transforms"), step)


def _check_nested(tree: Tree, members: dict[str, Any], context: Context) -> None:
    for name in OF_SHARDS:
        if name in members:
            context.problems.add(tree.keys[name], f"'{name}' belongs to shards: say it in the nested specification")
    if members.get("repeat", 1) % 1:
        context.problems.add(tree.keys["repeat"], "a nested specification is repeated a whole number of times")


def _nested(tree: Tree, split: str | None, context: Context, mix: Callable[[Tree], Mix]) -> Mix | None:
    """Return the mix that stands within a source, or that another file holds; None with the mistake noted."""
    value = tree.value
    whole = isinstance(value, dict) and {"version", "splits", "dataset", "datasets", "wids_version"} & value.keys()
    if isinstance(value, dict) and not whole:
        return mix(tree)
    nested: DatasetSpec | None = None
    if isinstance(value, str):
        nested = context.nested(tree, value)
    elif whole and context.within is not None:
        nested = context.within(tree, context)
    else:
        context.problems.add(tree.place, "expected the path of a specification, or a mix")
    return None if nested is None else _split_of(nested, split, tree, context)


def _split_of(nested: DatasetSpec, split: str | None, tree: Tree, context: Context) -> Mix | None:
    name = split or (next(iter(nested.splits)) if len(nested.splits) == 1 else "train")
    if name not in nested.splits and nested.splits:
        context.problems.add(tree.place, f"it has no split {name!r}, but {', '.join(nested.splits)}")
    return nested.splits.get(name)
