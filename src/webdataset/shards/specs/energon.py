"""Reads Energon's metadatasets, and the directories that it prepared.

A metadataset has ``splits`` of ``path``, ``blend``, ``blend_epochized`` or ``concat``; a prepared directory has
``.nv-meta``. Both become mixes of the shards that the directories list. What has no equivalent here is refused with
the reason. This module reads text files only: no sqlite, no shards.
"""

from dataclasses import replace

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.shards.specs.context import SpecContext, check_mix, name_sources
from webdataset.shards.specs.mix import Mix, Source
from webdataset.shards.specs.origin import expand_names, read_spec_bytes
from webdataset.shards.specs.schema import MAPPING, TEXT, TEXTS, KeyTable, number_kind
from webdataset.shards.specs.spec import DatasetSpec
from webdataset.shards.specs.syntax import SpecTree, parse_yaml

META = ".nv-meta"
_BLENDS = {"blend": "weight", "blend_epochized": "repetitions", "concat": None, "datasets": "weight"}
_ITEM = KeyTable(
    {
        "path": TEXT,
        "weight": number_kind(0),
        "repetitions": number_kind(0, open_end=True),
        "split_part": TEXT,
        "subflavors": MAPPING,
        "subflavor": TEXT,
        "split_config": TEXT,
    }
)
_SPLITS = KeyTable({"split_parts": MAPPING, "exclude": TEXTS})
_COUNTS = KeyTable({"shard_counts": MAPPING})
_REFUSED = {
    "join": "samples of several datasets that share a key: join them into shards of their own first",
    "subset": "ranges of samples: give the shards that they fall into as a source of their own",
    "aux": "further files beside each sample: put them into the shards as fields",
    "shuffle_over_epochs_multiplier": "an order over several epochs at once",
    "dataset_config": "how samples are cooked: use transforms",
    "split_config": "another file in place of split.yaml",
    "max_samples_per_sequence": "Energon's own order of reading",
}


def is_metadataset(tree: SpecTree) -> bool:
    """Tell whether a document is a metadataset."""
    named = f"{_plain_member(tree, '__module__')}.{_plain_member(tree, '__class__')}"
    if "energon" in named or "Metadataset" in named:
        return True
    splits = tree.get("splits")
    members = splits.value.values() if splits is not None and isinstance(splits.value, dict) else ()
    return "version" not in tree.value and any(_member_kind(part) is not None for part in members)


def _plain_member(tree: SpecTree, name: str) -> object:
    member = tree.get(name)
    return None if member is None else member.plain()


def _member_kind(tree: SpecTree) -> str | None:
    """Return how a member says what it reads."""
    return next((name for name in (*_BLENDS, "join", "path") if tree.get(name) is not None), None)


def read_energon(tree: SpecTree, context: SpecContext) -> DatasetSpec:
    """Return the specification that a metadataset stands for."""
    splits = tree.get("splits")
    if splits is None or not isinstance(splits.value, dict):
        context.problems.add(tree.place, "a metadataset has a mapping 'splits'")
        return DatasetSpec({}, "energon", context.origin)
    made = {name: _read_mix(part, name, context) for name, part in splits.value.items()}
    return DatasetSpec(made, "energon", context.origin)


def _read_mix(tree: SpecTree, split: str, context: SpecContext) -> Mix:
    kind = _member_kind(tree)
    if kind not in _BLENDS:
        one = _read_member(tree, split, context, None)
        return Mix("concat", name_sources([one], [tree], context.problems), "drop")
    members = tree.value[kind]
    if not isinstance(members.value, list):
        context.problems.add(members.place, f"'{kind}' is a list")
        return Mix()
    sources = [_read_member(part, split, context, _BLENDS[kind]) for part in members.value]
    named = name_sources(sources, members.value, context.problems)
    how, ends = {"blend": ("interleave", "restart"), "datasets": ("interleave", "restart"),
                 "blend_epochized": ("interleave", "drop"), "concat": ("concat", "drop")}[kind]  # fmt: skip
    return check_mix(Mix(how, named, ends), members, context.problems)


def _read_member(tree: SpecTree, split: str, context: SpecContext, counted: str | None) -> Source:
    """Return one member of a blend."""
    for name, reason in _REFUSED.items():
        if tree.get(name) is not None:
            context.problems.add(tree.keys[name], f"'{name}' is not read: it means {reason}")
    members = _ITEM.parse_tree(tree, context.problems, besides=(*_BLENDS, *_REFUSED))
    for name in ("weight", "repetitions"):
        if name in members and name != counted:
            context.problems.add(tree.keys[name], f"'{name}' means nothing here")
    tags = dict(members.get("subflavors", {}))
    if "subflavor" in members:
        tags["__subflavor__"] = members["subflavor"]
    made = Source(tags=tags, weight=members.get("weight"), repeat=members.get("repetitions", 1), origin=context.origin)
    kind = _member_kind(tree)
    if kind in _BLENDS:
        return replace(made, mix=_read_mix(tree, split, context))
    if "path" not in members:
        if kind is None:
            context.problems.add(tree.place, f"expected 'path' or one of {', '.join(_BLENDS)}")
        return made
    path, part = members["path"], members.get("split_part", split)
    if path.endswith((".yaml", ".yml", ".json")):
        return _read_specification(made, tree, path, part, context)
    return add_prepared_shards(made, tree.value["path"], path, part, context)


def _read_specification(made: Source, tree: SpecTree, path: str, split: str, context: SpecContext) -> Source:
    nested = context.load_inner(tree.value["path"], path)
    if nested is None:
        return made
    if split not in nested.splits:
        context.problems.add(tree.value["path"].place, f"it has no split {split!r}, but {', '.join(nested.splits)}")
        return made
    return replace(made, mix=nested.splits[split])


def add_prepared_shards(made: Source, tree: SpecTree, path: str, part: str | None, context: SpecContext) -> Source:
    """Return a source with the shards that a prepared directory lists."""
    folder = context.place_of(tree, path)
    if folder is None:
        return made
    part = part or "train"
    found = context.attempt(tree, lambda: _list_shards(folder.rstrip("/"), part, context))
    if found is None:
        return made
    names, nsamples = found
    urls = context.take_urls(tree, (f"{folder.rstrip('/')}/{name}" for name in names))
    return replace(made, shards=urls, nsamples=nsamples, energon=folder, split_part=part)


def _list_shards(folder: str, part: str, context: SpecContext) -> tuple[list[str], int | None]:
    """Return the names of the shards of one part, and their samples where Energon has counted them."""
    name = f"{folder}/{META}/split.yaml"
    try:
        text = _read_text(name, context)
    except NotFound as error:
        raise UsageError(
            f"{folder} holds no {META}/split.yaml: prepare it with `energon prepare`, or list its shards with 'shards'"
        ) from error
    members = _SPLITS.parse_tree(parse_yaml(text, name, context.problems), context.problems)
    parts = members.get("split_parts", {})
    if part not in parts:
        raise UsageError(f"{name} has no part {part!r}, but {', '.join(parts)}")
    excluded = {one for text in members.get("exclude", ()) for one in expand_names(text)}
    listed_names = [parts[part]] if isinstance(parts[part], str) else parts[part]
    if not isinstance(listed_names, list) or not all(isinstance(text, str) for text in listed_names):
        raise UsageError(f"{name}: the part {part!r} is a list of shards, not {listed_names!r}")
    names = [one for text in listed_names for one in expand_names(text)]
    single = sorted(one for one in excluded if one not in names and any(one.startswith(f"{name}/") for name in names))
    if single:
        raise UsageError(f"{name} excludes single samples, which is not read: {', '.join(single[:3])}")
    names = [one for one in names if one not in excluded]
    return names, _count_samples(folder, names, context)


def _count_samples(folder: str, names: list[str], context: SpecContext) -> int | None:
    for name in (".info.json", ".info.yaml"):
        try:
            text = _read_text(f"{folder}/{META}/{name}", context)
        except (NotFound, SourceError):
            continue
        tree = parse_yaml(text, f"{folder}/{META}/{name}", context.problems)
        besides = tuple(tree.value) if isinstance(tree.value, dict) else ()
        counts = _COUNTS.parse_tree(tree, context.problems, besides=tuple({*besides} - {"shard_counts"}))
        found = [counts.get("shard_counts", {}).get(shard) for shard in names]
        return sum(found) if all(type(count) is int and count >= 0 for count in found) else None
    return None


def _read_text(url: str, context: SpecContext) -> bytes:
    return read_spec_bytes(context.origin.check(url))
