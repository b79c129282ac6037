"""Mixes the sources of a dataset specification into one stream of samples, as they stand.

The order of the samples within a source stays; a seed determines which source each is drawn from, and which shards
and samples a source chooses. What changes the values of samples (decoding, transforms) belongs to reading, and is
refused here; shuffling is that of :mod:`webdataset.reshaping.external_sort`.

Memory: one sample of each source.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from webdataset.core.errors import MissingField, NoSamples, UsageError
from webdataset.samples.raw_samples import RawMember, RawSample, rename_member
from webdataset.shards.specs.mix import Mix, Source, SourceShards

Read = Callable[[str], Iterable[RawSample]]


def mix_samples(mix: Mix, read: Read, seed: int, emptied: Counter[str] | None = None) -> Iterator[RawSample]:
    """Yield the samples of a mix; endlessly where its sources begin again at their ends.

    Args:
        mix: of a specification.
        read: gives the samples of a shard.
        seed: the same seed, specification and shards give the same samples in the same order.
        emptied: counts, by the name of the source, samples that are left out since they have none of the fields that
            their source keeps.

    Raises:
        UsageError: a specification that asks for more than reading samples; weights that cannot be known.
        NoSamples: a source that begins again has none.
        MissingField: a sample lacks a field that its source renames.
    """
    _check_mix(mix)
    return _mix(mix, read, random.Random(seed), Counter() if emptied is None else emptied)  # noqa: S311  mixing, not cryptography


def is_endless(mix: Mix) -> bool:
    """Tell whether a mix never ends.

    Args:
        mix: of a specification.
    """
    return mix.how in ("interleave", "roundrobin") and mix.exhausted == "restart"


def _check_mix(mix: Mix) -> None:
    plain = Source()
    for source in mix.sources:
        if source.mix is not None:
            _check_mix(source.mix)
        for name in ("decode", "transforms", "preshuffle", "shuffle", "extensions", "where"):
            if getattr(source, name) != getattr(plain, name):
                raise UsageError(
                    f"source {source.name!r}: {name!r} belongs to reading: take it out of the specification to mix "
                    "shards ('wds shuffle' shuffles)"
                )
        if any(";" in old for old in source.rename.values()):
            raise UsageError(f"source {source.name!r}: a rename here names one field, without ';'")


def _mix(mix: Mix, read: Read, draw: random.Random, emptied: Counter[str]) -> Iterator[RawSample]:
    if mix.how == "shards":
        urls = [(source, url) for source in mix.sources for url in _draw_urls(source, draw)]
        draw.shuffle(urls)
        return chain.from_iterable(_choose(source, read(url), draw, emptied) for source, url in urls)
    if mix.how == "concat":
        return chain.from_iterable(_read_source(source, read, draw, emptied) for source in mix.sources)
    return _draw_samples(mix, read, draw, emptied)


def _draw_samples(mix: Mix, read: Read, draw: random.Random, emptied: Counter[str]) -> Iterator[RawSample]:
    """Draw each sample from a source: by weights, or in turn."""
    weights = mix.shares() if mix.how == "interleave" else [1.0] * len(mix.sources)
    live = [number for number, weight in enumerate(weights) if weight > 0]
    streams = {number: _read_source(mix.sources[number], read, draw, emptied) for number in live}
    turn = 0
    while live:
        if mix.how == "roundrobin":
            number = live[turn % len(live)]
        else:
            (number,) = draw.choices(live, [weights[each] for each in live])
        sample = next(streams[number], None)
        if sample is None and mix.exhausted == "restart":
            streams[number] = _read_source(mix.sources[number], read, draw, emptied)
            sample = next(streams[number], None)
            if sample is None:
                raise NoSamples(f"source {mix.sources[number].name!r} has no samples, and should begin again")
        if sample is not None:
            turn += 1
            yield sample
        elif mix.exhausted == "stop":
            return
        else:
            turn = turn % len(live)
            live.remove(number)


def _read_source(source: Source, read: Read, draw: random.Random, emptied: Counter[str]) -> Iterator[RawSample]:
    if source.mix is not None:
        whole, part = divmod(source.repeat, 1)
        if part:
            raise UsageError(f"source {source.name!r}: a mix is repeated a whole number of times here")
        samples = chain.from_iterable(_mix(source.mix, read, draw, emptied) for _ in range(int(whole)))
    else:
        samples = chain.from_iterable(read(url) for url in _draw_urls(source, draw))
    return _choose(source, samples, draw, emptied)


def _draw_urls(source: Source, draw: random.Random) -> list[str]:
    urls = SourceShards(source, shuffled=bool(source.shardshuffle)).drawn_urls(draw)
    return [source.origin.check(url) for url in urls]


def _choose(
    source: Source, samples: Iterable[RawSample], draw: random.Random, emptied: Counter[str]
) -> Iterator[RawSample]:
    """Yield what a source keeps of samples."""
    if source.subsample < 1:
        samples = (sample for sample in samples if draw.random() < source.subsample)
    return _choose_fields(source, samples, emptied) if source.rename or source.keep else iter(samples)


def _choose_fields(source: Source, samples: Iterable[RawSample], emptied: Counter[str]) -> Iterator[RawSample]:
    """Rename fields, then keep some, as the stages do by which the specification is read."""
    news: dict[str, list[str]] = {}
    for new, old in source.rename.items():
        news.setdefault(old, []).append(new)
    for sample in samples:
        lacking = next((old for old in news if old not in sample.fields), None)
        if lacking is not None:
            raise MissingField(
                f"the sample has no field {lacking!r}, which the source {source.name!r} renames; it has "
                f"{' '.join(sample.fields)}",
                key=sample.key,
                url=sample.url,
            )
        chosen: dict[str, RawMember] = {}
        for name, member in zip(sample.fields, sample.members, strict=True):
            for new in news.get(name, ()):
                chosen[new] = rename_member(member, f"{sample.key}.{new}")
            if name not in news and name not in source.rename:
                chosen[name] = member
        if source.keep:
            chosen = {name: member for name, member in chosen.items() if name in source.keep or name[:2] == "__"}
        if chosen:
            yield sample._replace(members=tuple(chosen.values()), fields=tuple(chosen))
        else:
            emptied[source.name or "?"] += 1
