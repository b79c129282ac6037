"""Reads specifications of other programs: ``dataset:`` lists, ``MultiShardSample``, tarmix, open_clip, wids indexes.

Each gives a ``DatasetSpec`` that means the same, or mistakes with their places. docs/spec-dialects.md says for each key
what it means here.

Theory of open_clip's lists (``--train-data 'a::b' --train-data-upsampling-factors 1::2``). open_clip draws shards,
not samples: each shard of a source weighs as much as the source's factor. A source is therefore drawn with factor x
number of shards; a source of twice as many shards gives twice as much. This is kept here as weights of samples (with
equally large shards the same). open_clip draws with replacement; here each source gives all its shards before it
begins again.

A wids index gives sources with known numbers of samples. Where its datasets have weights they are interleaved by
them; otherwise they follow one another, as in ``ShardListDataset``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from webdataset.core.errors import UsageError
from webdataset.shards import urls
from webdataset.shards.expand import split_urls
from webdataset.shards.specs.context import SpecContext, check_mix, name_sources
from webdataset.shards.specs.mix import Mix, Source
from webdataset.shards.specs.multishard import MultiShardSample
from webdataset.shards.specs.origin import expand_names
from webdataset.shards.specs.schema import (
    FLAG,
    PAIR,
    TEXT,
    TEXT_MAP,
    TEXTS,
    KeyTable,
    choice_kind,
    integer_kind,
    number_kind,
)
from webdataset.shards.specs.spec import DatasetSpec
from webdataset.shards.specs.syntax import SpecTree, meant_name
from webdataset.shards.wids_index import WidsIndex, WidsShard, read_wids_json
from webdataset.shards.wids_lists import LocatedIndex, WidsShardList

_SHARE = number_kind(0, high=1)
SEED_ROOT = KeyTable({"mix": choice_kind("interleave", "exhaust", "roundrobin", "concat"), "shuffle": integer_kind(0)})
SEED = KeyTable(
    {
        "name": TEXT,
        "shards": TEXTS,
        "extensions": TEXTS,
        "probability": number_kind(0),
        "weight": number_kind(0),
        "subsample": number_kind(0, open_end=True, high=1),
        "preshuffle": integer_kind(0),
        "shuffle": integer_kind(0),
        "gray": FLAG,
        "scale": PAIR,
        "scaleprob": _SHARE,
        "rotprob": _SHARE,
        "noise": number_kind(0),
        "patchsize": integer_kind(1),
        "nsample": integer_kind(1),
    }
)
_IMAGE = ("gray", "scale", "scaleprob", "rotprob", "noise")
_FOREIGN = {
    "A": "the two domains of the program it was written for: load each list by itself",
    "B": "the two domains of the program it was written for: load each list by itself",
    "epoch": "the length of an epoch: call with_epoch(n) on the dataset",
}


def read_dataset_list(tree: SpecTree, context: SpecContext) -> DatasetSpec:
    """Return the specification in a ``dataset:`` list."""
    problems = context.problems
    for name in _FOREIGN.keys() & tree.value.keys():
        problems.add(tree.keys[name], f"{name!r} is not read: it means {_FOREIGN[name]}")
    root = SEED_ROOT.parse_tree(tree, problems, besides=("dataset", *_FOREIGN))
    members = tree.value["dataset"].value
    sources = [_seed_source(part, context) for part in members]
    if any(source.transforms for source in sources):
        sources = [replace(source, decode=("pil",)) for source in sources]
    weighted = any(source.weight is not None for source in sources)
    how = root.get("mix", "interleave" if weighted else "exhaust")
    made = Mix(
        "interleave" if how == "exhaust" else how,
        name_sources(sources, members, problems),
        "restart" if how == "interleave" else "drop",
    )
    check_mix(made, tree.value["dataset"], problems)
    return DatasetSpec({"train": _shuffle_mix(made, root.get("shuffle", 0), context)}, "dataset", context.origin)


def _shuffle_mix(mix: Mix, size: int, context: SpecContext) -> Mix:
    """Return a mix that is shuffled as a whole."""
    return Mix("concat", (Source("all", mix=mix, shuffle=size, origin=context.origin),), "drop") if size else mix


def _seed_source(tree: SpecTree, context: SpecContext) -> Source:
    if isinstance(tree.value, str):
        tree = SpecTree({"shards": tree}, tree.place, {"shards": tree.place})
    members = SEED.parse_tree(tree, context.problems)
    if not isinstance(tree.value, dict):
        return Source()
    if "shards" not in tree.value and not any(meant_name(name, SEED.kinds) == "shards" for name in tree.value):
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
        transforms=tuple(_plain_transform(name, argument) for name, argument in steps),
        origin=context.origin,
    )


def _plain_transform(name: str, argument: object) -> tuple[str, object]:
    """Return a transform as the native format reads it: pairs are lists."""
    return (name, list(argument)) if isinstance(argument, tuple) else (name, argument)


MULTI_ROOT = KeyTable({"prefix": TEXT, "buckets": TEXTS, "datasets": TEXTS})
MULTI = KeyTable(
    {"name": TEXT, "shards": TEXTS, "buckets": TEXTS, "choose": integer_kind(-1), "resample": integer_kind(-1)}
    # -1 says "all", as in the published versions
)


def read_multishard(tree: SpecTree, context: SpecContext) -> DatasetSpec:
    """Return the specification in a file for ``MultiShardSample``."""
    problems = context.problems
    before = len(problems.found)
    MULTI_ROOT.parse_tree(tree, problems, besides=("datasets",))
    members = tree.value["datasets"].value
    for part in members:
        MULTI.parse_tree(part, problems)
    if context.origin.network:
        _refuse_environment(tree, context)
    if len(problems.found) > before:
        return DatasetSpec({}, "multishard", context.origin)
    try:
        sample = MultiShardSample(tree.plain())
    except UsageError as error:
        problems.add(tree.place, error.message)
        return DatasetSpec({}, "multishard", context.origin)
    sources = [
        Source(
            name=each.name if each.name[:1] != "@" else "",
            shards=context.take_urls(part, each.urls),
            choose=each.perepoch if each.perepoch > 0 else None,
            resample=int(each.resample) if each.resample > 0 else None,
            shardshuffle=True,
            origin=context.origin,
        )
        for each, part in zip(sample.sources, members, strict=True)
    ]
    context.listed.append(sample)
    made = Mix("shards", _make_names_unique(sources), "drop")
    return DatasetSpec({"train": check_mix(made, tree.value["datasets"], problems)}, "multishard", context.origin)


def _make_names_unique(sources: list[Source]) -> tuple[Source, ...]:
    """Return sources with names that differ: here they were for messages alone."""
    names = [source.name for source in sources]
    return tuple(
        replace(each, name=each.name if each.name and names.count(each.name) == 1 else f"{each.name or 'source'}-{n}")
        for n, each in enumerate(sources)
    )


def _refuse_environment(tree: SpecTree, context: SpecContext) -> None:
    if isinstance(tree.value, dict | list):
        for part in tree.value.values() if isinstance(tree.value, dict) else tree.value:
            _refuse_environment(part, context)
    elif isinstance(tree.value, str) and ("$" in tree.value or "~" in tree.value):
        context.problems.add(tree.place, f"a specification from the network cannot read {tree.value!r} from the "
                             "environment here", unsafe=True)  # fmt: skip


TARMIX_ROOT = KeyTable({"shuffle": integer_kind(0), "sources": TEXTS})
TARMIX = KeyTable(
    {
        "name": TEXT,
        "shards": TEXTS,
        "weight": number_kind(0),
        "probability": number_kind(0),
        "nrepeats": integer_kind(1),
        "shuffle": integer_kind(0),
        "rename": TEXT_MAP,
    }
)  # fmt: skip
_TARMIX_FOREIGN = {
    "convert": "programs that change fields: use transforms in the native format",
    "nstreams": "how many shards are read at once: mix them as sources of their own",
    "allow_missing": "shards that may be absent: name those that are there",
}
_TARMIX_USUAL = {"convert": "None", "nstreams": "1", "allow_missing": "False"}


def read_tarmix(tree: SpecTree, context: SpecContext) -> DatasetSpec:
    """Return the specification in a file for tarmix."""
    problems = context.problems
    root = TARMIX_ROOT.parse_tree(tree, problems, besides=("sources",))
    members = tree.value["sources"].value
    sources = [_tarmix_source(part, context) for part in members]
    weighted = any(source.weight is not None for source in sources)
    made = Mix("interleave", name_sources(sources, members, problems), "restart" if weighted else "drop")
    check_mix(made, tree.value["sources"], problems)
    return DatasetSpec({"train": _shuffle_mix(made, root.get("shuffle", 0), context)}, "tarmix", context.origin)


def _tarmix_source(tree: SpecTree, context: SpecContext) -> Source:
    kept = tree
    if isinstance(tree.value, dict):
        for name, reason in _TARMIX_FOREIGN.items():
            part = tree.value.get(name)
            if part is not None and part.plain() is not None and repr(part.plain()) != _TARMIX_USUAL[name]:
                context.problems.add(tree.keys[name], f"'{name}' is not read: it means {reason}")
        kept = replace(tree, value={n: part for n, part in tree.value.items() if n not in _TARMIX_FOREIGN})
    members = TARMIX.parse_tree(kept, context.problems)
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


def read_open_clip(train_data: str, factors: str | None, context: SpecContext) -> DatasetSpec:
    """Return the specification that the arguments stand for.

    Args:
        train_data: expressions of shards, joined by ``::``.
        factors: one number for each of them, joined by ``::``; None for 1 each.
        context: where they came from.

    Raises:
        UsageError: not one factor for each expression, or factors that are no positive numbers.
    """
    expressions = split_urls(train_data)
    numbers = [_parse_factor(text) for text in factors.split("::")] if factors is not None else [1.0] * len(expressions)
    if len(numbers) != len(expressions):
        raise UsageError(f"{len(numbers)} upsampling factors for {len(expressions)} sources: give one for each")
    tree = SpecTree(train_data, "train_data")
    sources = []
    for expression, factor in zip(expressions, numbers, strict=True):
        shards = context.shards(tree, (expression,))
        count = sum(len(expand_names(part)) for part in shards)
        sources.append(Source(shards=shards, weight=factor * count, shardshuffle=True, origin=context.origin))
    named = name_sources(sources, [tree] * len(sources), context.problems)
    return DatasetSpec({"train": Mix("interleave", named, "restart")}, "open_clip", context.origin)


def _parse_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise UsageError(f"an upsampling factor is a number above 0, not {text!r}")
    return factor


def wids_source(made: Source, tree: SpecTree, name: str, context: SpecContext) -> Source:
    """Return a source with the shards of an index."""
    url = context.place_of(tree, name)
    shards = context.attempt(tree, lambda: _read_index(url, context).shards) if url is not None else None
    if not shards:
        return made
    return _fill_shards(made, shards, tree, context)


def _fill_shards(made: Source, shards: Sequence[WidsShard], tree: SpecTree, context: SpecContext) -> Source:
    sizes = [shard.filesize for shard in shards]
    nbytes = sum(size for size in sizes if size is not None) if None not in sizes else None
    urls = context.take_urls(tree, (shard.url for shard in shards))
    nsamples = sum(shard.nsamples for shard in shards)
    return replace(made, shards=urls, nsamples=nsamples, nbytes=nbytes)


def read_wids(tree: SpecTree, context: SpecContext, document: Mapping[str, object]) -> DatasetSpec:
    """Return the specification that an index stands for.

    Args:
        tree: the whole document.
        context: where it came from.
        document: the index: one that stands within a specification, or one that knows its own place.

    Raises:
        FormatError: it is no index.
        UsageError: it names what it may not.
    """
    index = _read_index(document, context, base=_base_of_document(document, context))
    shards = index.shards
    sources, weighted = [], False
    for (name, weight), group in groupby(shards, key=lambda shard: (shard.dataset, shard.weight)):
        part = _fill_shards(Source(name=name or "", weight=weight, origin=context.origin), list(group), tree, context)
        weighted = weighted or weight is not None
        sources.append(part)
    named = tuple(replace(part, name=_distinct_name(part.name, n, sources)) for n, part in enumerate(sources))
    if not named:
        raise UsageError("an index without shards")
    context.listed.append(WidsShardList(index))
    made = Mix("interleave", named, "restart") if weighted else Mix("concat", named, "drop")
    return DatasetSpec({"train": made}, "wids", context.origin)


def _read_index(source: object, context: SpecContext, base: str | None = None) -> WidsIndex:
    """Read an index; one that a specification from the network names, or is, gets no more for being trusted."""
    network = context.origin.network
    trust = "safe" if network and context.trust == "full" else context.trust
    return read_wids_json(source, base=base, trust=trust, network=network)


def _distinct_name(name: str, number: int, sources: Sequence[Source]) -> str:
    alone = name and sum(source.name == name for source in sources) == 1
    return name if alone else f"{name or 'source'}-{number}"


def _base_of_document(document: Mapping[str, object], context: SpecContext) -> str | None:
    """Return what the urls of an index that stands within a specification are relative to; None: itself."""
    if isinstance(document, LocatedIndex) or not context.origin.base:
        return None
    own = document.get("base")
    return urls.join_url(context.origin.base, own) if isinstance(own, str) else context.origin.base
