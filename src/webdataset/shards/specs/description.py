"""A whole specification, as a frozen value.

Flows in: checked values. Flows out: ``DatasetSpec``, which can be compared, written down as the native format or in
another dialect, and asked what it would read. No pipeline is built here, and no shard is opened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from webdataset.ground.errors import UsageError

from . import energon_writing, open_clip_writing, planning
from .mixes import Mix, Source, Transform
from .origins import Origin

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
    origin: Origin = field(default=Origin("", "", network=False), compare=False, repr=False)

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
            raise UsageError(
                f"no split {name!r}: {self.origin.name or 'the specification'} has {', '.join(self.splits)}"
            )
        return self.splits[name]

    def dump(self) -> dict[str, Any]:
        """Return the specification in the native format, as JSON values; reading them gives an equal specification.

        Raises:
            UsageError: a transform is a Python function, which has no name.
        """
        return {"version": VERSION, "splits": {name: _dumped_mix(mix) for name, mix in self.splits.items()}}

    def dumps(self) -> str:
        """Return the specification in the native format, as YAML text."""
        import yaml  # noqa: PLC0415  only specifications need it

        document = self.dump()
        text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        if yaml.safe_load(text) == document:
            return text
        return str(yaml.safe_dump(document, sort_keys=False))  # some letters come back from escapes only

    def plan(self, split: str | None = None, samples: int | None = None) -> list[Any]:
        """Return what each source contributes; see :func:`webdataset.shards.specs.planning.plan`."""
        return list(planning.plan(self.split(split), samples))

    def to_energon(self) -> dict[str, Any]:
        """Return it as an Energon metadataset; see :func:`webdataset.shards.specs.energon_writing.exported`."""
        return energon_writing.exported(self.splits)

    def to_open_clip(self, split: str | None = None) -> dict[str, str]:
        """Return it as open_clip's arguments; see :func:`webdataset.shards.specs.open_clip_writing.exported`."""
        return open_clip_writing.exported(self.split(split))


_PLAIN_MIX = Mix()
_PLAIN_SOURCE = Source()


def _dumped_mix(mix: Mix) -> dict[str, Any]:
    found: dict[str, Any] = {"mix": mix.how, "exhausted": mix.exhausted}
    for name in ("weights_are", "temperature"):
        if getattr(mix, name) != getattr(_PLAIN_MIX, name):
            found[name] = getattr(mix, name)
    return {**found, "sources": [_dumped_source(source) for source in mix.sources]}


def _dumped_source(source: Source) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _said(source):
        if name == "mix":
            found["spec"] = _dumped_mix(value)
        elif name == "transforms":
            found[name] = [_dumped_transform(step) for step in value]
        else:
            found[name] = _literal(value)
    return found


def _said(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield what differs from a source that says nothing."""
    listed = source.energon is not None
    for each in fields(source):
        value = getattr(source, each.name)
        if each.name == "origin" or (listed and each.name in ("shards", "nsamples")):
            continue
        if value != getattr(_PLAIN_SOURCE, each.name):
            yield each.name, value


def _dumped_transform(step: Transform) -> Any:
    name, argument = step
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is a Python function, which cannot be written down: name it 'module:function'")
    return _literal(name) if argument is None else {name: _literal(argument)}


def _literal(value: Any) -> Any:
    """Return a value in which no text would be filled in from the environment."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {name: _literal(part) for name, part in value.items()}
    return [_literal(part) for part in value] if isinstance(value, list | tuple) else value
