"""What each source of a mix contributes, before anything is read.

Flows in: a mix. Flows out: one line for each list of shards: how many shards, which share of the samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .mixes import Mix, Source


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


def plan(mix: Mix, samples: int | None = None) -> Iterator[Contribution]:
    """Yield what each list of shards contributes, nested ones by their share of a share.

    Args:
        mix: what is planned.
        samples: to say how many of so many samples come from each.

    Raises:
        UsageError: weights that count shards or bytes, of sources that do not say how large they are.
    """
    for name, source, share in _leaves(mix, "", 1.0):
        urls = source.urls()
        expected = None if share is None or samples is None else share * samples
        ends = tuple(dict.fromkeys((*urls[:1], *urls[-1:])))
        yield Contribution(name, len(urls), source.nsamples, share, expected, ends)


def _leaves(mix: Mix, prefix: str, share: float | None) -> Iterator[tuple[str, Source, float | None]]:
    for source, part in zip(mix.sources, _parts(mix), strict=True):
        name = prefix + source.name
        whole = None if share is None or part is None else share * part
        if source.mix is not None:
            yield from _leaves(source.mix, f"{name}/", whole)
        else:
            yield name, source, whole


def _parts(mix: Mix) -> list[float | None]:
    """Return the fraction of each source, None where it is not known."""
    if mix.exhausted != "drop":
        if mix.how == "roundrobin":
            return [1 / len(mix.sources)] * len(mix.sources)
        return list(mix.shares())
    totals = [source.total for source in mix.sources]  # all of every source: the sizes decide
    known = [total for total in totals if total is not None]
    if len(known) < len(totals) or not sum(known):
        return [1.0] if len(totals) == 1 else [None] * len(totals)
    return [total / sum(known) for total in known]
