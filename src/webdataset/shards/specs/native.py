"""The native format, version 1: documents and mixes.

Flows in: a tree. Flows out: a ``DatasetSpec``; every mistake is noted by its place.
"""

from .context import Context, check_mix, numbered
from .description import VERSION, DatasetSpec
from .mixes import Mix, Source
from .sources import source
from .tables import ENDS, MIX, OPTIONS, ROOT
from .trees import Tree


def read(tree: Tree, context: Context) -> DatasetSpec:
    """Return the specification in a tree.

    Args:
        tree: the whole document.
        context: where it came from.
    """
    problems = context.problems
    members = ROOT.read(tree, problems, besides=tuple(MIX.kinds))
    if "version" not in tree.value:
        problems.add(tree.place, f"a specification says which version it is written in: 'version: {VERSION}'")
    splits: dict[str, Mix] = {}
    for name in members.get("include", ()):
        included = context.nested(tree.value["include"], name)
        splits.update(included.splits if included is not None else {})
    defaults = tree.get("defaults") if "defaults" in members else None
    if defaults is not None:
        OPTIONS.read(defaults, problems)
    own = tree.get("splits") if "splits" in members else None
    if own is not None and any(name in tree.value for name in MIX.kinds):
        problems.add(own.place, "give either 'splits' or, for one split alone, 'sources'")
    elif own is not None:
        splits.update({name: mix(part, defaults, context) for name, part in own.value.items()})
    elif "sources" in tree.value:
        splits["train"] = mix(tree, defaults, context, besides=tuple(ROOT.kinds))
    if not splits:
        problems.add(tree.place, "a specification without 'splits' and without 'sources'")
    return DatasetSpec(splits, "native", context.origin)


def mix(tree: Tree, defaults: Tree | None, context: Context, besides: tuple[str, ...] = ()) -> Mix:
    """Return one mix.

    Args:
        tree: where it stands.
        defaults: keys of sources that do not give them.
        context: the specification.
        besides: keys of the mapping that somebody else reads.
    """
    members = MIX.read(tree, context.problems, besides=besides)
    listed_trees = tree.get("sources")
    if listed_trees is None or not isinstance(listed_trees.value, list):
        if isinstance(tree.value, dict) and "sources" not in tree.value:
            context.problems.add(tree.place, "a mix without 'sources'")
        return Mix()
    how = members.get("mix", "interleave")
    sources = [source(part, defaults, context, mix) for part in listed_trees.value]
    ends = members.get("exhausted", ENDS[how])
    if how in ("concat", "exhaust", "shards") and ends != "drop":
        context.problems.add(tree.value["exhausted"].place, f"mix: {how} goes on until all have ended")
    made = Mix(
        "interleave" if how == "exhaust" else how,
        numbered(sources, listed_trees.value, context.problems),
        ends,
        members.get("weights_are", "samples"),
        members.get("temperature", 1),
    )
    if how == "shards":
        _check_plain(made, listed_trees.value, context)
    return check_mix(made, listed_trees, context.problems)


def _check_plain(made: Mix, trees: list[Tree], context: Context) -> None:
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
