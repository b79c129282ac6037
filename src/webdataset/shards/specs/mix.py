"""Sources and mixes as frozen values: what is read, how it is combined, the shards of each pass, and a plan.

``Source`` and ``Mix`` can be compared. ``plan_mix`` gives one line for each list of shards before anything is read:
how many shards, which share of the samples. On each pass a source yields ``{"url": url}`` for its shards, chosen,
repeated and shuffled as it says. All workers draw alike, so that what a following split distributes is neither lost
nor read twice. No pipeline is built here, and no shard is opened.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from webdataset.core.errors import NoShards, UsageError
from webdataset.shards.expand import MAX_URLS
from webdataset.shards.lists import Shard, ShardList
from webdataset.shards.specs.origin import SpecOrigin, expand_names
from webdataset.storage.open_url import load_openers

Transform = tuple[object, object]


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
        shuffle: samples in the buffer of a shuffle after everything else.
        shardshuffle: whether the shards come in a new order in each epoch; None leaves it to the dataset.
        cache: directory to keep its shards in.
        where: the expression that holds for the samples to be read; None for all.
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
    where: str | None = None
    nsamples: int | None = None
    nbytes: int | None = None
    energon: str | None = None
    split_part: str | None = None
    origin: SpecOrigin = field(default=SpecOrigin("", "", network=False), compare=False, repr=False)

    def urls(self) -> list[str]:
        """Return its shards, each checked against where the specification came from.

        Raises:
            UnsafeSpec: a specification from the network names what it may not.
            NotFound: wildcards that match no file.
        """
        from webdataset.shards.expand import expand_name  # noqa: PLC0415  the same rules for wildcards

        check = self.origin.check
        found = [check(url) for expression in self.shards for url in expand_names(expression)]
        if not self.origin.network:
            found = [match for url in found for match in expand_name(url)]
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
        exhausted: what a source does at its end: ``restart``, ``drop`` (the others continue), ``stop`` (all end).
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
        weights = [_source_weight(source, self) for source in self.sources]
        if all(source.weight is None for source in self.sources) and self.exhausted == "drop":
            totals = [source.total for source in self.sources]
            if all(totals):
                weights = [total or 0 for total in totals]
        top = max(weights, default=0)
        if not top > 0:
            raise UsageError("at least one weight must be above 0")
        powers = [0.0 if weight == 0 else (weight / top) ** self.temperature for weight in weights]
        return [power / sum(powers) for power in powers]


def _source_weight(source: Source, mix: Mix) -> float:
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


class SourceShards(ShardList):
    """The shards of one source.

    Args:
        source: what to read.
        shuffled: a new order in each pass.

    Raises:
        NoShards: it names none.
        UsageError: more shards to be chosen than there are, or a part of a pass that is no shard at all.
        UnsafeSpec: a specification from the network names what it may not.
    """

    def __init__(self, source: Source, *, shuffled: bool) -> None:
        self.source = source
        self.shuffled = shuffled
        self.urls = source.urls()
        load_openers(self.urls)
        if not self.urls:
            raise NoShards(f"source {source.name!r} has no shards: {', '.join(source.shards)} in {source.subset}")
        if source.choose is not None and source.choose > len(self.urls):
            raise UsageError(f"source {source.name!r}: 'choose' is {source.choose}, but it has {len(self.urls)} shards")
        self.whole = int(source.repeat)
        if not self.whole and not self._part():
            raise UsageError(
                f"source {source.name!r}: 'repeat' of {source.repeat} is no whole shard of {len(self.urls)}: write "
                f"'subsample: {source.repeat}'"
            )
        if self._count() > MAX_URLS:
            raise UsageError(
                f"source {source.name!r}: more than {MAX_URLS} shards in one epoch: give a smaller 'repeat' or "
                "'resample'; a mix with 'exhausted: restart' begins its sources again, as often as with_epoch() says"
            )

    def __len__(self) -> int:
        """Return the number of shards in one pass."""
        return self._count()

    def _count(self) -> int:
        if self.source.resample is not None:
            return self.source.resample
        return self.whole * self._chosen() + self._part()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source.name!r}, {len(self.urls)} shards)"

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield the shards of one pass, each checked once more against where the specification came from."""
        for url in self.drawn_urls(draw()):
            yield {"url": self.source.origin.check(url)}

    def drawn_urls(self, generator: random.Random) -> Iterator[str]:
        """Yield the urls of one pass, which may be far more than the source has."""
        if self.source.resample is not None:
            for _ in range(self.source.resample):
                yield generator.choices(self.urls)[0]
            return
        for _ in range(self.whole):
            yield from self._some(self._chosen(), generator)
        yield from self._some(self._part(), generator)

    def _chosen(self) -> int:
        return len(self.urls) if self.source.choose is None else self.source.choose

    def _part(self) -> int:
        return round(self.source.repeat % 1 * self._chosen())

    def _some(self, count: int, generator: random.Random) -> list[str]:
        """Return so many of the urls: in their order, unless they are shuffled."""
        if self.shuffled:
            return generator.sample(self.urls, count)
        if count == len(self.urls):
            return self.urls
        return [self.urls[number] for number in sorted(generator.sample(range(len(self.urls)), count))]


class AllowedShards:
    """Checks each shard once more, as it is about to be opened.

    Args:
        origin: where the specification came from.
    """

    def __init__(self, origin: SpecOrigin) -> None:
        self.origin = origin

    def __call__(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Yield the shards.

        Raises:
            UnsafeSpec: a url that the environment rewrites to what a specification from the network may not name.
        """
        for shard in shards:
            self.origin.check(shard["url"])
            yield shard


class MixedShards(ShardList):
    """The shards of several sources, shuffled together (``mix: shards``).

    Args:
        lists: the sources.
    """

    def __init__(self, lists: list[SourceShards]) -> None:
        self.lists = lists

    def __len__(self) -> int:
        """Return the number of shards in one pass."""
        return sum(map(len, self.lists))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lists!r})"

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield the shards of one pass."""
        generator = draw()
        found = [(each, url) for each in self.lists for url in each.drawn_urls(generator)]
        generator.shuffle(found)
        for each, url in found:
            yield {"url": each.source.origin.check(url)}


@dataclass(frozen=True)
class Contribution:
    """What one list of shards contributes.

    Args:
        name: its name, with those of the mixes around it.
        shards: number of shards.
        nsamples: number of its samples, or None where that is not known.
        share: its fraction of the samples, or None where that depends on sizes that are not known.
        samples: how many of the samples asked for come from it, or None.
        urls: the first and the last shard.
    """

    name: str
    shards: int
    nsamples: int | None
    share: float | None
    samples: float | None
    urls: tuple[str, ...]


def plan_mix(mix: Mix, samples: int | None = None) -> Iterator[Contribution]:
    """Yield what each list of shards contributes, nested ones by their share of a share.

    Args:
        mix: what is planned.
        samples: to say how many of so many samples come from each.

    Raises:
        UsageError: weights that count shards or bytes, of sources that do not say how large they are; or fewer than no
            samples.
    """
    if samples is not None and samples < 0:
        raise UsageError(f"samples={samples} is below 0")
    for name, source, share in _plan_leaves(mix, "", 1.0):
        urls = source.urls()
        expected = None if share is None or samples is None else share * samples
        ends = tuple(dict.fromkeys((*urls[:1], *urls[-1:])))
        yield Contribution(name, len(urls), source.nsamples, share, expected, ends)


def _plan_leaves(mix: Mix, prefix: str, share: float | None) -> Iterator[tuple[str, Source, float | None]]:
    for source, part in zip(mix.sources, _source_shares(mix), strict=True):
        name = prefix + source.name
        whole = None if share is None or part is None else share * part
        if source.mix is not None:
            yield from _plan_leaves(source.mix, f"{name}/", whole)
        else:
            yield name, source, whole


def _source_shares(mix: Mix) -> list[float | None]:
    """Return the fraction of each source, None where it is not known."""
    if mix.exhausted != "drop":
        if mix.how == "roundrobin":
            return [1 / len(mix.sources)] * len(mix.sources)
        return list(mix.shares())
    # all of every source: the sizes decide
    totals = [source.total for source in mix.sources]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals) or not sum(known):
        return [1.0] if len(totals) == 1 else [None] * len(totals)
    return [total / sum(known) for total in known]
