"""Reads the native format, version 1: documents, mixes and sources.

A tree becomes a ``DatasetSpec``; every mistake is noted with its place.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from webdataset.shards.specs.context import SpecContext, check_mix, name_sources
from webdataset.shards.specs.dialects import wids_source
from webdataset.shards.specs.energon import add_prepared_shards
from webdataset.shards.specs.mix import Mix, Source
from webdataset.shards.specs.schema import ENDS, KINDS_OF_SOURCE, MIX, OF_SHARDS, OPTIONS, ROOT, SOURCE
from webdataset.shards.specs.spec import VERSION, DatasetSpec
from webdataset.shards.specs.syntax import SpecTree, meant_name

MixReader = Callable[..., Mix]


def read_source(tree: SpecTree, defaults: SpecTree | None, context: SpecContext, mix: MixReader) -> Source:
    """Return one source."""
    problems = context.problems
    if isinstance(tree.value, str):
        tree = SpecTree({"shards": tree}, tree.place, {"shards": tree.place})
    if not isinstance(tree.value, dict):
        problems.add(tree.place, "a source is a mapping, or the url of its shards")
        return Source()
    members = SOURCE.parse_tree(tree, problems)
    given = [name for name in KINDS_OF_SOURCE if name in tree.value]
    # it has been noted, with the key that was meant
    if not given and any(meant_name(name, SOURCE.kinds) in KINDS_OF_SOURCE for name in tree.value):
        return Source()
    if len(given) != 1:
        problems.add(
            tree.place,
            f"a source has one of {', '.join(KINDS_OF_SOURCE)}, not {' and '.join(given) if given else 'none'}",
        )
        return Source()
    options = {name: value for name, value in members.items() if name in OPTIONS.kinds or name == "name"}
    inherited = _inherit_defaults(options, defaults, given[0], context)
    made = Source(**{**inherited, **options}, origin=context.origin)
    _check_together(tree, members, given[0], context)
    _check_permissions(made, tree, defaults, context)
    return _fill_source(made, given[0], tree, members, partial(mix, defaults=defaults, context=context), context)


def _fill_source(  # noqa: PLR0917  one call
    made: Source,
    kind: str,
    tree: SpecTree,
    members: dict[str, Any],
    mix: Callable[[SpecTree], Mix],
    context: SpecContext,
) -> Source:
    """Return a source with its shards, or with its mix."""
    if kind not in members:
        return made
    part, value = tree.value[kind], members[kind]
    if kind == "shards":
        return replace(made, shards=context.shards(part, value))
    if kind == "energon":
        return add_prepared_shards(made, part, value, members.get("split_part"), context)
    if kind == "spec":
        return replace(made, mix=_read_nested_mix(part, members.get("split"), context, mix))
    return wids_source(made, part, value, context)


def _inherit_defaults(
    options: dict[str, Any], defaults: SpecTree | None, kind: str, context: SpecContext
) -> dict[str, Any]:
    if defaults is None:
        return {}
    found = OPTIONS.parse_tree(defaults, context.problems)
    if "tags" in found and "tags" in options:
        options["tags"] = {**found["tags"], **options["tags"]}
    if kind == "spec":
        found = {name: value for name, value in found.items() if name not in OF_SHARDS}
    return found


def _check_together(tree: SpecTree, members: dict[str, Any], kind: str, context: SpecContext) -> None:
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
        _check_nested_keys(tree, members, context)


def _check_permissions(made: Source, tree: SpecTree, defaults: SpecTree | None, context: SpecContext) -> None:
    """Note what a source, with what it takes over from the defaults, may not name."""

    def at(name: str) -> SpecTree:
        return tree.get(name) or (defaults and defaults.get(name)) or tree

    if made.cache is not None and context.origin.network:
        problem = "a specification from the network cannot name a directory"
        context.problems.add(at("cache").place, problem, unsafe=True)
    for step, _ in made.transforms:
        if isinstance(step, str) and ":" in step:
            context.allowed_function(at("transforms"), step)


def _check_nested_keys(tree: SpecTree, members: dict[str, Any], context: SpecContext) -> None:
    for name in OF_SHARDS:
        if name in members:
            context.problems.add(tree.keys[name], f"'{name}' belongs to shards: say it in the nested specification")
    if members.get("repeat", 1) % 1:
        context.problems.add(tree.keys["repeat"], "a nested specification is repeated a whole number of times")


def _read_nested_mix(
    tree: SpecTree, split: str | None, context: SpecContext, mix: Callable[[SpecTree], Mix]
) -> Mix | None:
    """Return the mix that stands within a source, or that another file holds; None with the mistake noted."""
    value = tree.value
    whole = isinstance(value, dict) and {"version", "splits", "dataset", "datasets", "wids_version"} & value.keys()
    if isinstance(value, dict) and not whole:
        return mix(tree)
    nested: DatasetSpec | None = None
    if isinstance(value, str):
        nested = context.load_inner(tree, value)
    elif whole and context.within is not None:
        nested = context.within(tree, context)
    else:
        context.problems.add(tree.place, "expected the path of a specification, or a mix")
    return None if nested is None else _select_split(nested, split, tree, context)


def _select_split(nested: DatasetSpec, split: str | None, tree: SpecTree, context: SpecContext) -> Mix | None:
    name = split or (next(iter(nested.splits)) if len(nested.splits) == 1 else "train")
    if name not in nested.splits and nested.splits:
        context.problems.add(tree.place, f"it has no split {name!r}, but {', '.join(nested.splits)}")
    return nested.splits.get(name)


def read_native(tree: SpecTree, context: SpecContext) -> DatasetSpec:
    """Return the specification in a tree."""
    problems = context.problems
    members = ROOT.parse_tree(_without_source_keys(tree, context), problems, besides=tuple(MIX.kinds))
    if "version" not in tree.value:
        problems.add(tree.place, f"a specification says which version it is written in: 'version: {VERSION}'")
    splits: dict[str, Mix] = {}
    for name in members.get("include", ()):
        included = context.load_inner(tree.value["include"], name)
        splits.update(included.splits if included is not None else {})
    defaults = tree.get("defaults") if "defaults" in members else None
    if defaults is not None:
        OPTIONS.parse_tree(defaults, problems)
    own = tree.get("splits") if "splits" in members else None
    if own is not None and any(name in tree.value for name in MIX.kinds):
        problems.add(own.place, "give either 'splits' or, for one split alone, 'sources'")
    elif own is not None:
        splits.update({name: read_mix(part, defaults, context) for name, part in own.value.items()})
    elif "sources" in tree.value:
        splits["train"] = read_mix(tree, defaults, context, besides=tuple(ROOT.kinds))
    wrong = tree.get("sources") or tree.get("splits")
    if not splits and (wrong is None or wrong.value == {}):
        problems.add(tree.place, "a specification without 'splits' and without 'sources': write sources: [a.tar]")
    return DatasetSpec(splits, "native", context.origin)


def _without_source_keys(tree: SpecTree, context: SpecContext) -> SpecTree:
    """Return a mix without the keys of a source that stand beside its own, each noted with where it belongs."""
    if not isinstance(tree.value, dict):
        return tree
    astray = [name for name in tree.value if name in SOURCE.kinds and name not in MIX.kinds and name not in ROOT.kinds]
    for name in astray:
        context.problems.add(tree.keys[name], f"{name!r} belongs to a source: write sources: [{{{name}: …}}]")
    return replace(tree, value={name: part for name, part in tree.value.items() if name not in astray})


def read_mix(tree: SpecTree, defaults: SpecTree | None, context: SpecContext, besides: tuple[str, ...] = ()) -> Mix:
    """Return one mix."""
    # a whole specification has been looked through
    checked = tree if besides else _without_source_keys(tree, context)
    members = MIX.parse_tree(checked, context.problems, besides=besides)
    listed_trees = tree.get("sources")
    if listed_trees is None or not isinstance(listed_trees.value, list):
        if isinstance(tree.value, dict) and "sources" not in tree.value:
            context.problems.add(tree.place, "a mix without 'sources': write sources: [a.tar]")
        return Mix()
    how = members.get("mix", "interleave")
    sources = [read_source(part, defaults, context, read_mix) for part in listed_trees.value]
    ends = members.get("exhausted", ENDS[how])
    if how in ("concat", "exhaust", "shards") and ends != "drop":
        context.problems.add(tree.value["exhausted"].place, f"mix: {how} continues until all have ended")
    made = Mix(
        "interleave" if how == "exhaust" else how,
        name_sources(sources, listed_trees.value, context.problems),
        ends,
        members.get("weights_are", "samples"),
        members.get("temperature", 1),
    )
    if how == "shards":
        _check_plain(made, listed_trees.value, context)
    return check_mix(made, listed_trees, context.problems)


def _check_plain(made: Mix, trees: list[SpecTree], context: SpecContext) -> None:
    """Note what sources whose shards are shuffled together cannot have of their own."""
    plain = Source()
    shared = ("name", "shards", "repeat", "choose", "resample", "subset", "nsamples", "nbytes", "shardshuffle",
              "energon", "split_part", "origin")  # fmt: skip
    for each, tree in zip(made.sources, trees, strict=True):
        for name, value in each.__dict__.items():
            if name not in shared and value != getattr(plain, name):
                at = tree.get(name)
                context.problems.add(
                    at.place if at else tree.place, f"'{name}' is nothing that mix: shards can keep apart"
                )
