"""Sources and mixes: what is read, and how it is put together, as frozen values.

Flows in: checked values. Flows out: ``Source`` and ``Mix``, which can be compared, and asked what they would read. No
pipeline is built here, and no shard is opened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from webdataset.ground.errors import UsageError

from .origins import Origin, expanded

Transform = tuple[Any, Any]


@dataclass(frozen=True)
class Source:
    """One member of a mix: a list of shards, or a mix of its own.

    Args:
        name: its name in ``__source__`` and in messages.
        shards: expressions of urls, with braces and wildcards; whole (nothing is relative any more).
        mix: a mix of its own, in place of shards.
        weight: its weight among its neighbours; None where the specification gives none.
        repeat: passes over its shards in one epoch; of a last, partial pass, as large a part of the shards.
        choose: this many shards in each epoch, none twice; None for all.
        resample: this many draws of shards with replacement in each epoch.
        subset: the part of the list of shards that belongs to it, as fractions.
        subsample: the probability with which each sample is kept.
        rename: new field name to old (``"jpg;png"`` takes the first that is there).
        keep: the fields to keep; empty for all.
        extensions: the first of these is kept, under its last component, and other fields are dropped; empty for all.
        tags: copied into each sample's ``__tags__``.
        decode: arguments of ``decode``; None leaves bytes.
        transforms: names (or ``module:function``, or functions) with their arguments.
        preshuffle: samples in the buffer of a shuffle before decoding.
        shuffle: samples in the buffer of a shuffle behind everything else.
        shardshuffle: whether the shards come in a new order in each epoch; None leaves it to the dataset.
        cache: directory to keep its shards in.
        nsamples: how many samples it has, where that is known.
        nbytes: how many bytes its shards have, where that is known.
        energon: the prepared directory that the shards were listed from.
        split_part: which part of it.
        origin: where the specification came from.
    """

    name: str = ""
    shards: tuple[str, ...] = ()
    mix: "Mix | None" = None
    weight: float | None = None
    repeat: float = 1
    choose: int | None = None
    resample: int | None = None
    subset: tuple[float, float] = (0, 1)
    subsample: float = 1
    rename: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    tags: Mapping[str, Any] = field(default_factory=dict)
    decode: tuple[str, ...] | None = None
    transforms: tuple[Transform, ...] = ()
    preshuffle: int = 0
    shuffle: int = 0
    shardshuffle: bool | None = None
    cache: str | None = None
    nsamples: int | None = None
    nbytes: int | None = None
    energon: str | None = None
    split_part: str | None = None
    origin: Origin = field(default=Origin("", "", network=False), compare=False, repr=False)

    def urls(self) -> list[str]:
        """Return its shards, each checked against where the specification came from.

        Raises:
            UnsafeSpec: a specification from the network names what it may not.
            NotFound: wildcards that match no file.
        """
        from webdataset.shards.expand import _matched  # noqa: PLC0415  the same rules for wildcards

        check = self.origin.check
        found = [check(url) for expression in self.shards for url in expanded(expression)]
        if not self.origin.network:
            found = [match for url in found for match in _matched(url)]
        low, high = (round(bound * len(found)) for bound in self.subset)
        return found[low:high]

    @property
    def total(self) -> float | None:
        """How many samples it gives in an epoch, or None where that is not known."""
        count = self.mix.total if self.mix is not None else self.nsamples
        if count is None or self.choose is not None or self.resample is not None:
            return None
        return count * self.repeat * self.subsample * (self.subset[1] - self.subset[0])


@dataclass(frozen=True)
class Mix:
    """Several sources as one.

    Args:
        how: ``interleave`` (by weight), ``roundrobin``, ``concat``, or ``shards`` (the shards of all, shuffled).
        sources: what is mixed.
        exhausted: what a source does at its end: ``restart``, ``drop`` (the others go on), ``stop`` (all end).
        weights_are: what the weights count: ``samples``, ``shards`` or ``bytes``.
        temperature: weights are raised to this power; 0 makes all alike.
    """

    how: str = "interleave"
    sources: tuple[Source, ...] = ()
    exhausted: str = "restart"
    weights_are: str = "samples"
    temperature: float = 1

    @property
    def total(self) -> float | None:
        """How many samples it gives in an epoch, or None where it never ends or that is not known."""
        totals = [source.total for source in self.sources]
        if self.exhausted != "drop" or any(total is None for total in totals):
            return None
        return sum(total for total in totals if total is not None)

    def shares(self) -> list[float]:
        """Return the fraction of the samples that each source is drawn with, adding up to 1.

        Raises:
            UsageError: weights count shards or bytes, and a source does not say how large it is.
        """
        weights = [_weight(source, self) for source in self.sources]
        if all(source.weight is None for source in self.sources) and self.exhausted == "drop":
            totals = [source.total for source in self.sources]
            if all(totals):
                weights = [total or 0 for total in totals]
        top = max(weights, default=0)
        if not top > 0:
            raise UsageError("at least one weight must be above 0")
        powers = [0.0 if weight == 0 else (weight / top) ** self.temperature for weight in weights]
        return [power / sum(powers) for power in powers]


def _weight(source: Source, mix: Mix) -> float:
    """Return a source's weight, counted in samples."""
    weight = 1.0 if source.weight is None else source.weight
    if mix.weights_are == "samples":
        return weight
    counted = len(source.urls()) if mix.weights_are == "shards" else source.nbytes
    if source.nsamples is None or not counted:
        wanted = "nsamples" if mix.weights_are == "shards" else "nsamples and nbytes"
        raise UsageError(
            f"weights_are: {mix.weights_are} needs the size of every source: give {source.name!r} {wanted}, or an "
            "index that knows"
        )
    return weight * source.nsamples / counted
