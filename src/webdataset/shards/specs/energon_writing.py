"""Specifications as Energon's metadatasets.

Flows in: splits. Flows out: a document. What Energon cannot say is refused with the reason.
"""

import os
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.sources.open import is_local

from .mixes import Mix, Source


def exported(splits: Mapping[str, Mix]) -> dict[str, Any]:
    """Return the splits of a specification as an Energon metadataset, version 2.

    Args:
        splits: name of the split to its mix; each source a prepared directory (``energon:``), or the shards of one
            directory, to be prepared there.

    Returns:
        The document; write it as YAML.

    Raises:
        UsageError: something that Energon cannot say; the message says what.
    """
    written = {name: _exported_mix(mix, name) for name, mix in splits.items()}
    for name, mix in splits.items():
        _check_folders(mix, name, {})
    return {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": written}


def _exported_mix(mix: Mix, split: str) -> dict[str, Any]:
    if mix.how == "concat" and len(mix.sources) == 1 and mix.sources[0].repeat == 1:
        return _exported(mix.sources[0], split)
    how = "interleave" if mix.how == "concat" else mix.how  # Energon orders samples itself
    _need(how == "interleave" and mix.exhausted != "stop", f"mix: {mix.how} with exhausted: {mix.exhausted}")
    if mix.exhausted == "restart":
        shares = mix.shares()
        given = [source.weight for source in mix.sources]
        plain = mix.weights_are == "samples" and mix.temperature == 1 and None not in given
        weights = given if plain else shares
        _need(all(source.repeat == 1 for source in mix.sources), "repeat of sources that restart")
        members = zip(mix.sources, weights, strict=True)
        return {"blend": [{"weight": weight, **_exported(source, split)} for source, weight in members]}
    weightless = mix.how == "concat" or all(source.weight is None for source in mix.sources)
    _need(weightless, "weights in an epoch that ends (mix: exhaust)")
    return {"blend_epochized": [{"repetitions": each.repeat, **_exported(each, split)} for each in mix.sources]}


def _exported(source: Source, split: str) -> dict[str, Any]:
    tags = {"subflavors": dict(source.tags)} if source.tags else {}
    plain = Source()
    for name in ("choose", "resample", "subset", "subsample", "rename", "keep", "extensions", "decode", "transforms",
                 "preshuffle", "shuffle", "cache"):  # fmt: skip
        _need(getattr(source, name) == getattr(plain, name), f"'{name}' of {source.name!r}")
    if source.mix is not None:
        return {**_exported_mix(source.mix, split), **tags}
    if source.energon is not None:
        part = {} if source.split_part in (None, split) else {"split_part": source.split_part}
        return {"path": _whole(source.energon), **part, **tags}
    return {"path": _whole(_folder_of(source)), **tags}


def _whole(path: str) -> str:
    """Return a path that means the same wherever the metadataset is written to."""
    return os.path.abspath(path) if is_local(path) else path  # noqa: PTH100  symbolic links stay


def _check_folders(mix: Mix, split: str, seen: dict[str, tuple[str, list[str]]]) -> None:
    """Refuse sources of one split that would read one directory and mean different shards of it."""
    for source in mix.sources:
        if source.mix is not None:
            _check_folders(source.mix, split, seen)
        elif source.energon is None:
            urls = sorted(source.urls())
            other, theirs = seen.setdefault(_folder_of(source), (source.name, urls))
            _need(urls == theirs, f"that {other!r} and {source.name!r} have other shards of one directory in {split!r}")


def _folder_of(source: Source) -> str:
    folders = {url.rpartition("/")[0] or "." for url in source.urls()}
    _need(len(folders) == 1, f"the shards of {source.name!r}, which lie in {len(folders)} directories")
    return folders.pop()


def _need(sayable: bool, what: str) -> None:  # noqa: FBT001  a condition
    if not sayable:
        raise UsageError(f"an Energon metadataset cannot say {what}: take it out of the specification first")
