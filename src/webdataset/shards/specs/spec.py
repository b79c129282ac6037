"""A whole specification as a frozen value, and its exports to Energon and open_clip.

A ``DatasetSpec`` can be compared, written in the native format or in another dialect, and asked what it would read.
An export refuses what the other program cannot express, with the reason; :mod:`webdataset.shards.specs.dialects` says
what open_clip's weights mean. No pipeline is built here, and no shard is opened.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from webdataset.core.errors import UsageError
from webdataset.shards.specs import mix
from webdataset.shards.specs.mix import Mix, Source, Transform
from webdataset.shards.specs.origin import SpecOrigin
from webdataset.storage.open_url import is_local


def export_energon(splits: Mapping[str, Mix]) -> dict[str, Any]:
    """Return the splits of a specification as an Energon metadataset, version 2.

    Args:
        splits: name of the split to its mix; each source a prepared directory (``energon:``), or the shards of one
            directory, to be prepared there.

    Returns:
        The document; write it as YAML.

    Raises:
        UsageError: something that Energon cannot say; the message says what.
    """
    written = {name: _export_mix(mix, name) for name, mix in splits.items()}
    for name, split in splits.items():
        _check_folders(split, name, {})
    return {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": written}


def _export_mix(mix: Mix, split: str) -> dict[str, object]:
    if mix.how == "concat" and len(mix.sources) == 1 and mix.sources[0].repeat == 1:
        return _export_source(mix.sources[0], split)
    # Energon orders samples itself
    how = "interleave" if mix.how == "concat" else mix.how
    _require_sayable_in_energon(
        how == "interleave" and mix.exhausted != "stop", f"mix: {mix.how} with exhausted: {mix.exhausted}"
    )
    if mix.exhausted == "restart":
        shares = mix.shares()
        given = [source.weight for source in mix.sources]
        plain = mix.weights_are == "samples" and mix.temperature == 1 and None not in given
        weights = given if plain else shares
        _require_sayable_in_energon(all(source.repeat == 1 for source in mix.sources), "repeat of sources that restart")
        members = zip(mix.sources, weights, strict=True)
        return {"blend": [{"weight": weight, **_export_source(source, split)} for source, weight in members]}
    weightless = mix.how == "concat" or all(source.weight is None for source in mix.sources)
    _require_sayable_in_energon(weightless, "weights in an epoch that ends (mix: exhaust)")
    return {"blend_epochized": [{"repetitions": each.repeat, **_export_source(each, split)} for each in mix.sources]}


def _export_source(source: Source, split: str) -> dict[str, object]:
    tags = {"subflavors": dict(source.tags)} if source.tags else {}
    plain = Source()
    for name in ("choose", "resample", "subset", "subsample", "rename", "keep", "extensions", "decode", "transforms",
                 "preshuffle", "shuffle", "cache", "where"):  # fmt: skip
        _require_sayable_in_energon(getattr(source, name) == getattr(plain, name), f"'{name}' of {source.name!r}")
    if source.mix is not None:
        return {**_export_mix(source.mix, split), **tags}
    if source.energon is not None:
        part = {} if source.split_part in (None, split) else {"split_part": source.split_part}
        return {"path": _absolute_path(source.energon), **part, **tags}
    return {"path": _absolute_path(_source_folder(source)), **tags}


def _absolute_path(path: str) -> str:
    """Return a path that means the same wherever the metadataset is written to."""
    return os.path.abspath(path) if is_local(path) else path  # noqa: PTH100  symbolic links stay


def _check_folders(mix: Mix, split: str, seen: dict[str, tuple[str, list[str]]]) -> None:
    """Refuse sources of one split that would read one directory and mean different shards of it."""
    for source in mix.sources:
        if source.mix is not None:
            _check_folders(source.mix, split, seen)
        elif source.energon is None:
            urls = sorted(source.urls())
            other, theirs = seen.setdefault(_source_folder(source), (source.name, urls))
            _require_sayable_in_energon(
                urls == theirs, f"that {other!r} and {source.name!r} have other shards of one directory in {split!r}"
            )


def _source_folder(source: Source) -> str:
    folders = {url.rpartition("/")[0] or "." for url in source.urls()}
    _require_sayable_in_energon(
        len(folders) == 1, f"the shards of {source.name!r}, which lie in {len(folders)} directories"
    )
    return folders.pop()


def _require_sayable_in_energon(sayable: bool, what: str) -> None:  # noqa: FBT001  a condition
    if not sayable:
        raise UsageError(f"an Energon metadataset cannot say {what}: take it out of the specification first")


def export_open_clip(mix: Mix) -> dict[str, str]:
    """Return a mix as open_clip's arguments.

    Returns:
        ``train_data`` and ``train_data_upsampling_factors``, the least factor 1.

    Raises:
        UsageError: something that open_clip cannot say; the message says what.
    """
    _require_sayable_in_open_clip(
        mix.how == "interleave" and mix.exhausted == "restart", f"mix: {mix.how} with exhausted: {mix.exhausted}"
    )
    factors, expressions = [], []
    plain = Source()
    for source, share in zip(mix.sources, mix.shares(), strict=True):
        for name in ("mix", "repeat", "choose", "resample", "subset", "subsample", "rename", "keep", "extensions",
                     "tags", "decode", "transforms", "preshuffle", "shuffle", "cache", "where"):  # fmt: skip
            _require_sayable_in_open_clip(getattr(source, name) == getattr(plain, name), f"'{name}' of {source.name!r}")
        _require_sayable_in_open_clip(share > 0, f"the weight 0 of {source.name!r}")
        _require_sayable_in_open_clip(
            len(source.shards) == 1, f"the {len(source.shards)} expressions of {source.name!r}: write one with braces"
        )
        factors.append(share / len(source.urls()))
        expressions.append(source.shards[0])
    least = min(factors)
    return {
        "train_data": "::".join(expressions),
        "train_data_upsampling_factors": "::".join(f"{factor / least:.10g}" for factor in factors),
    }


def _require_sayable_in_open_clip(sayable: bool, what: str) -> None:  # noqa: FBT001  a condition
    if not sayable:
        raise UsageError(f"open_clip cannot say {what}: take it out of the specification first")


VERSION = 1


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset specification: one mix for each split.

    Args:
        splits: name of the split to its mix.
        dialect: what it was written in.
        origin: where it came from.
    """

    splits: Mapping[str, Mix]
    dialect: str = field(default="native", compare=False)
    origin: SpecOrigin = field(default=SpecOrigin("", "", network=False), compare=False, repr=False)

    def split(self, name: str | None = None) -> Mix:
        """Return the mix of one split.

        Args:
            name: which; None for the only one, or ``train``.

        Raises:
            UsageError: there is no such split, or several and none is called ``train``.
        """
        if name is None:
            name = next(iter(self.splits)) if len(self.splits) == 1 else "train"
        if name not in self.splits:
            place = self.origin.name or "the specification"
            raise UsageError(f"no split {name!r}: {place} has {', '.join(self.splits)}; pass split=")
        return self.splits[name]

    def dump(self) -> dict[str, Any]:
        """Return the specification in the native format, as JSON values; reading them gives an equal specification.

        Raises:
            UsageError: a transform is a Python function, which has no name.
        """
        return {"version": VERSION, "splits": {name: _dump_mix(mix) for name, mix in self.splits.items()}}

    def dumps(self) -> str:
        """Return the specification in the native format, as YAML text."""
        import yaml  # noqa: PLC0415  only specifications need it

        document = self.dump()
        text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        if yaml.safe_load(text) == document:
            return text
        # some letters come back from escapes only
        return str(yaml.safe_dump(document, sort_keys=False))

    def plan(self, split: str | None = None, samples: int | None = None) -> list[mix.Contribution]:
        """Return what each source contributes; see :func:`webdataset.shards.specs.mix.plan_mix`.

        Raises:
            UsageError: there is no such split, a negative number, or weights of sources whose size is not known.
        """
        return list(mix.plan_mix(self.split(split), samples))

    def to_energon(self) -> dict[str, Any]:
        """Return it as an Energon metadataset; see :func:`webdataset.shards.specs.spec.export_energon`."""
        return export_energon(self.splits)

    def to_open_clip(self, split: str | None = None) -> dict[str, str]:
        """Return it as open_clip's arguments; see :func:`webdataset.shards.specs.spec.export_open_clip`."""
        return export_open_clip(self.split(split))


_PLAIN_MIX = Mix()
_PLAIN_SOURCE = Source()


def _dump_mix(mix: Mix) -> dict[str, object]:
    found: dict[str, object] = {"mix": mix.how, "exhausted": mix.exhausted}
    for name in ("weights_are", "temperature"):
        if getattr(mix, name) != getattr(_PLAIN_MIX, name):
            found[name] = getattr(mix, name)
    return {**found, "sources": [_dump_source(source) for source in mix.sources]}


def _dump_source(source: Source) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in _list_options(source):
        if name == "mix":
            found["spec"] = _dump_mix(value)
        elif name == "transforms":
            found[name] = [_dump_transform(step) for step in value]
        else:
            found[name] = _escape_variables(value)
    return found


def _list_options(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield what differs from a source that says nothing."""
    listed = source.energon is not None
    for each in fields(source):
        value = getattr(source, each.name)
        if each.name == "origin" or (listed and each.name in ("shards", "nsamples")):
            continue
        if value != getattr(_PLAIN_SOURCE, each.name):
            yield each.name, value


def _dump_transform(step: Transform) -> object:
    name, argument = step
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is a Python function, which cannot be written down: name it 'module:function'")
    return _escape_variables(name) if argument is None else {name: _escape_variables(argument)}


def _escape_variables(value: object) -> object:
    """Return a value in which no text would be filled in from the environment."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {name: _escape_variables(part) for name, part in value.items()}
    return [_escape_variables(part) for part in value] if isinstance(value, list | tuple) else value
