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
    """

    name: str
    samples: int
    seconds: float
    share: float
    skipped: int = 0


def stage_times(rows: Iterable[tuple[str, int, float]], skips: Mapping[str, int]) -> list[StageTime]:
    """Return what each stage took.

    Args:
        rows: name, samples, seconds, in the order of the pipeline.
        skips: failures that handlers let pass, by the name of a stage, with or without its function.

    Returns:
        One value for each row, and one for each name that failures were counted under and that has no row.
    """
    rows = list(rows)
    whole = sum(seconds for _, _, seconds in rows) or 1.0
    left = dict(skips)
    found = []
    for name, samples, seconds in rows:
        exact = left.pop(name, None)
        skipped = left.pop(name.partition("(")[0], 0) if exact is None else exact
        if name == "reading":
            skipped += left.pop("opening", 0)
        found.append(StageTime(name, samples, seconds, seconds / whole, skipped))
    return found + [StageTime(name, 0, 0.0, 0.0, count) for name, count in left.items()]


def table(stages: Iterable[StageTime], *lines: str, estimated: bool = False) -> str:
    """Return a table of stages, and lines below it.

    Args:
        stages: in the order of the pipeline.
        *lines: what else there is to say.
        estimated: the samples are estimated, and are said to be.
    """
    rows = [("stage", "~samples" if estimated else "samples", "ms/sample", "share", "skipped")]
    for stage in stages:
        each = f"{stage.seconds / stage.samples * 1e3:.3f}" if stage.samples else "-"
        rows.append((stage.name, str(stage.samples), each, f"{stage.share:.1%}", str(stage.skipped)))
    width = min(_WIDEST, max(len(name) for name, *_ in rows))
    shown = [
        f"{_short(name, width):<{width}}  {samples:>10}  {each:>10}  {share:>6}  {skipped:>7}"
        for name, samples, each, share, skipped in rows
    ]
    return "\n".join([*(shown if len(shown) > 1 else []), *lines])


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
