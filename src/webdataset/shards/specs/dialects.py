"""Specifications written for other programs: the documented ``dataset:`` list, ``MultiShardSample``'s, tarmix's.

Flows in: a tree. Flows out: a ``DatasetSpec`` that means the same, or mistakes by their places. docs/specs.md says for
each key what it means here.
"""

from dataclasses import replace
from typing import Any

from webdataset.ground.errors import UsageError

from .context import Context, check_mix, numbered
from .description import DatasetSpec
from .kinds import FLAG, PAIR, TEXT, TEXT_MAP, TEXTS, Table, choice, integer, number
from .mixes import Mix, Source
from .multishard import MultiShardSample
from .trees import Tree

_SHARE = number(0, high=1)
SEED_ROOT = Table({"mix": choice("interleave", "exhaust", "roundrobin", "concat"), "shuffle": integer(0)})
SEED = Table(
    {
        "name": TEXT,
        "shards": TEXTS,
        "extensions": TEXTS,
        "probability": number(0),
        "weight": number(0),
        "subsample": number(0, open_end=True, high=1),
        "preshuffle": integer(0),
        "shuffle": integer(0),
        "gray": FLAG,
        "scale": PAIR,
        "scaleprob": _SHARE,
        "rotprob": _SHARE,
        "noise": number(0),
        "patchsize": integer(1),
        "nsample": integer(1),
    }
)
_IMAGE = ("gray", "scale", "scaleprob", "rotprob", "noise")
_FOREIGN = {
    "A": "the two domains of the program it was written for: load each list by itself",
    "B": "the two domains of the program it was written for: load each list by itself",
    "epoch": "the length of an epoch: call with_epoch(n) on the dataset",
}


def read_seed(tree: Tree, context: Context) -> DatasetSpec:
    """Return the specification in a ``dataset:`` list.

    Args:
        tree: the whole document.
        context: where it came from.
    """
    problems = context.problems
    for name in _FOREIGN.keys() & tree.value.keys():
        problems.add(tree.keys[name], f"{name!r} is not read: it means {_FOREIGN[name]}")
    root = SEED_ROOT.read(tree, problems, besides=("dataset", *_FOREIGN))
    members = tree.value["dataset"].value
    sources = [_seed_source(part, context) for part in members]
    if any(source.transforms for source in sources):
        sources = [replace(source, decode=("pil",)) for source in sources]
    weighted = any(source.weight is not None for source in sources)
    how = root.get("mix", "interleave" if weighted else "exhaust")
    made = Mix(
        "interleave" if how == "exhaust" else how,
        numbered(sources, members, problems),
        "restart" if how == "interleave" else "drop",
    )
    check_mix(made, tree.value["dataset"], problems)
    return DatasetSpec({"train": _shuffled(made, root.get("shuffle", 0), context)}, "dataset", context.origin)


def _shuffled(mix: Mix, size: int, context: Context) -> Mix:
    """Return a mix that is shuffled as a whole."""
    return Mix("concat", (Source("all", mix=mix, shuffle=size, origin=context.origin),), "drop") if size else mix


def _seed_source(tree: Tree, context: Context) -> Source:
    if isinstance(tree.value, str):
        tree = Tree({"shards": tree}, tree.place, {"shards": tree.place})
    members = SEED.read(tree, context.problems)
    if not isinstance(tree.value, dict):
        return Source()
    if "shards" not in tree.value:
        context.problems.add(tree.place, "a member of 'dataset' has 'shards'")
    if "probability" in members and "weight" in members:
        context.problems.add(tree.keys["weight"], "'weight' and 'probability' are the same: give one of them")
    steps = [
        (name, members[name] if name != "gray" else None) for name in _IMAGE if members.get(name) not in (None, False)
    ]
    if "patchsize" in members or "nsample" in members:
        steps.append(("patches", {"size": members.get("patchsize", 256), "count": members.get("nsample", 10)}))
    names = tuple(name for text in members.get("extensions", ()) for name in text.split(";"))
    return Source(
        name=members.get("name", ""),
        shards=context.shards(tree.value["shards"], members["shards"]) if "shards" in members else (),
        weight=members.get("probability", members.get("weight")),
        subsample=members.get("subsample", 1),
        extensions=names,
        preshuffle=members.get("preshuffle", 0),
        shuffle=members.get("shuffle", 0),
        transforms=tuple(_plain(name, argument) for name, argument in steps),
        origin=context.origin,
    )


def _plain(name: str, argument: Any) -> tuple[str, Any]:
    """Return a transform as the native format reads it: pairs are lists."""
    return (name, list(argument)) if isinstance(argument, tuple) else (name, argument)


MULTI_ROOT = Table({"prefix": TEXT, "buckets": TEXTS, "datasets": TEXTS})
MULTI = Table(
    {"name": TEXT, "shards": TEXTS, "buckets": TEXTS, "choose": integer(-1), "resample": integer(-1)}
)  # -1 says "all", as in the published versions


def read_multishard(tree: Tree, context: Context) -> DatasetSpec:
    """Return the specification in a file for ``MultiShardSample``.

    Args:
        tree: the whole document.
        context: where it came from.
    """
    problems = context.problems
    before = len(problems.found)
    MULTI_ROOT.read(tree, problems, besides=("datasets",))
    members = tree.value["datasets"].value
    for part in members:
        MULTI.read(part, problems)
    if context.origin.network:
        _refuse_environment(tree, context)
    if len(problems.found) > before:
        return DatasetSpec({}, "multishard", context.origin)
    try:
        parsed = MultiShardSample(tree.plain()).sources
    except UsageError as error:
        problems.add(tree.place, error.message)
        return DatasetSpec({}, "multishard", context.origin)
    sources = [
        Source(
            name=each.name if each.name[:1] != "@" else "",
            shards=context.taken(part, each.urls),
            choose=each.perepoch if each.perepoch > 0 else None,
            resample=int(each.resample) if each.resample > 0 else None,
            shardshuffle=True,
            origin=context.origin,
        )
        for each, part in zip(parsed, members, strict=True)
    ]
    made = Mix("shards", _apart(sources), "drop")
    return DatasetSpec({"train": check_mix(made, tree.value["datasets"], problems)}, "multishard", context.origin)


def _apart(sources: list[Source]) -> tuple[Source, ...]:
    """Return sources with names that differ: here they were for messages alone."""
    names = [source.name for source in sources]
    return tuple(
        replace(each, name=each.name if each.name and names.count(each.name) == 1 else f"{each.name or 'source'}-{n}")
        for n, each in enumerate(sources)
    )


def _refuse_environment(tree: Tree, context: Context) -> None:
    if isinstance(tree.value, dict | list):
        for part in tree.value.values() if isinstance(tree.value, dict) else tree.value:
            _refuse_environment(part, context)
    elif isinstance(tree.value, str) and ("$" in tree.value or "~" in tree.value):
        context.problems.add(tree.place, f"a specification from the network cannot read {tree.value!r} from the "
                             "environment here", unsafe=True)  # fmt: skip


TARMIX_ROOT = Table({"shuffle": integer(0), "sources": TEXTS})
TARMIX = Table(
    {
        "name": TEXT,
        "shards": TEXTS,
        "weight": number(0),
        "probability": number(0),
        "nrepeats": integer(1),
        "shuffle": integer(0),
        "rename": TEXT_MAP,
    }
)  # fmt: skip
_TARMIX_FOREIGN = {
    "convert": "programs that change fields: use transforms in the native format",
    "nstreams": "how many shards are read at once: mix them as sources of their own",
    "allow_missing": "shards that may be absent: name those that are there",
}
_TARMIX_USUAL = {"convert": "None", "nstreams": "1", "allow_missing": "False"}


def read_tarmix(tree: Tree, context: Context) -> DatasetSpec:
    """Return the specification in a file for tarmix.

    Args:
        tree: the whole document.
        context: where it came from.
    """
    problems = context.problems
    root = TARMIX_ROOT.read(tree, problems, besides=("sources",))
    members = tree.value["sources"].value
    sources = [_tarmix_source(part, context) for part in members]
    weighted = any(source.weight is not None for source in sources)
    made = Mix("interleave", numbered(sources, members, problems), "restart" if weighted else "drop")
    check_mix(made, tree.value["sources"], problems)
    return DatasetSpec({"train": _shuffled(made, root.get("shuffle", 0), context)}, "tarmix", context.origin)


def _tarmix_source(tree: Tree, context: Context) -> Source:
    kept = tree
    if isinstance(tree.value, dict):
        for name, reason in _TARMIX_FOREIGN.items():
            part = tree.value.get(name)
            if part is not None and part.plain() is not None and repr(part.plain()) != _TARMIX_USUAL[name]:
                context.problems.add(tree.keys[name], f"'{name}' is not read: it means {reason}")
        kept = replace(tree, value={n: part for n, part in tree.value.items() if n not in _TARMIX_FOREIGN})
    members = TARMIX.read(kept, context.problems)
    if "shards" not in members:
        context.problems.add(tree.place, "a member of 'sources' has 'shards'")
        return Source()
    return Source(
        name=members.get("name", ""),
        shards=context.shards(tree.value["shards"], members["shards"]),
        weight=members.get("probability", members.get("weight")),
        repeat=members.get("nrepeats", 1),
        rename=members.get("rename", {}),
        shuffle=members.get("shuffle", 0),
        origin=context.origin,
    )
