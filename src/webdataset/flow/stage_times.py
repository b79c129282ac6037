"""What stages took, as values and as a table.

Flows in: (name, samples, seconds) of each stage, counts of failures that handlers let pass. Flows out: a value for each
stage, and text of a few lines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_WIDEST = 48


@dataclass(frozen=True)
class StageTime:
    """What one stage took.

    Args:
        name: as ``decode`` or ``map(augment at train.py:12)``.
        samples: that it gave.
        seconds: that it took for itself, without what it waited for the stages before it.
        share: its part of the seconds of all stages, from 0 to 1.
        skipped: failures in it that a handler let pass.
        dropped: samples that its function dropped by returning None.
    """

    name: str
    samples: int
    seconds: float
    share: float
    skipped: int = 0
    dropped: int = 0


def stage_times(
    rows: Iterable[tuple[str, int, float]], skips: Mapping[str, int], drops: Mapping[str, int] | None = None
) -> list[StageTime]:
    """Return what each stage took.

    Args:
        rows: name, samples, seconds, in the order of the pipeline.
        skips: failures that handlers let pass, by the name of a stage, with or without its function.
        drops: samples that functions dropped, likewise.

    Returns:
        One value for each row, and one for each name that something was counted under and that has no row.
    """
    rows = list(rows)
    whole = sum(seconds for _, _, seconds in rows) or 1.0
    left, gone = dict(skips), dict(drops or {})
    found = []
    for name, samples, seconds in rows:
        skipped = _taken(left, name)
        if name == "reading":
            skipped += left.pop("opening", 0)
        found.append(StageTime(name, samples, seconds, seconds / whole, skipped, _taken(gone, name)))
    others = [*left, *(name for name in gone if name not in left)]
    return found + [StageTime(name, 0, 0.0, 0.0, left.get(name, 0), gone.get(name, 0)) for name in others]


def _taken(counts: dict[str, int], name: str) -> int:
    """Take the count of a stage out of others: under its whole name, or without its function."""
    exact = counts.pop(name, None)
    return counts.pop(name.partition("(")[0], 0) if exact is None else exact


def gone_without(skipped: int, dropped: int) -> str:
    """Return words on what was gone on without; of samples that were dropped, where there were any."""
    return f"skipped {skipped}, dropped {dropped}" if dropped else f"skipped {skipped}"


def table(stages: Iterable[StageTime], *lines: str, estimated: bool = False) -> str:
    """Return a table of stages, and lines below it. Samples dropped have a column where there are any.

    Args:
        stages: in the order of the pipeline.
        *lines: what else there is to say.
        estimated: the samples are estimated, and are said to be.
    """
    stages = list(stages)
    dropping = any(stage.dropped for stage in stages)
    heads = ("dropped",) if dropping else ()
    rows = [("stage", "~samples" if estimated else "samples", "ms/sample", "share", "skipped", *heads)]
    for stage in stages:
        each = f"{stage.seconds / stage.samples * 1e3:.3f}" if stage.samples else "-"
        last = (str(stage.dropped),) if dropping else ()
        rows.append((stage.name, str(stage.samples), each, f"{stage.share:.1%}", str(stage.skipped), *last))
    width = min(_WIDEST, max(len(name) for name, *_ in rows))
    shown = [
        f"{_short(name, width):<{width}}  {samples:>10}  {each:>10}  {share:>6}" + "".join(f"  {n:>7}" for n in counts)
        for name, samples, each, share, *counts in rows
    ]
    return "\n".join([*(shown if len(shown) > 1 else []), *lines])


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
