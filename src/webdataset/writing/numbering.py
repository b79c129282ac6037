"""Names of the shards of a series.

Flows in: a pattern and a shard's number. Flows out: its name. ``{rank}``, ``{worker}``, ``{world_size}`` and
``{num_workers}`` in a pattern become this process's place in the job, so that parallel writers never share a name.
"""

import os
import re
from collections.abc import Callable

from webdataset.ground.errors import UsageError
from webdataset.ground.topology import Place, place
from webdataset.ground.tracebacks import warn_user

Namer = Callable[[int], str]

_FIELD = re.compile(r"\{(shard|rank|world_size|worker|num_workers)(:0?\d*d?)?\}")


def shard_namer(pattern: str | os.PathLike[str] | Namer) -> Namer:
    """Return ``f(shard) -> name`` for a pattern.

    Args:
        pattern: text with ``%06d`` or ``{shard:06d}`` where the number goes, and any of ``{rank}``, ``{worker}``,
            ``{world_size}``, ``{num_workers}``, each with a format such as ``:03d``; or such a function itself.

    Raises:
        UsageError: a pattern without a place for the number, or that cannot be formatted.
    """
    if callable(pattern) and not isinstance(pattern, os.PathLike):
        return pattern
    text = os.fspath(pattern)
    if not isinstance(text, str):
        raise UsageError(f"a pattern is text with %06d or {{shard:06d}}, or a function of the number, not {pattern!r}")
    here = place()
    fields = {match[1] for match in _FIELD.finditer(text)}
    _warn_of_sharing(text, fields, here)
    by_braces = "shard" in fields
    chosen = text

    def name(shard: int) -> str:
        numbers = {"shard": shard, **here._asdict()}

        def filled(match: re.Match[str]) -> str:
            return format(numbers[match[1]], (match[2] or ":")[1:])

        return _FIELD.sub(filled, chosen if by_braces else _percent(chosen, shard))

    name(0)  # a pattern that cannot be formatted fails here, not after an hour of work
    return name


def _percent(text: str, shard: int) -> str:
    try:
        return text % shard
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"pattern {text!r} has no single place for the shard number: put one %06d or {{shard:06d}} into it"
        ) from error


def _warn_of_sharing(text: str, fields: set[str], here: Place) -> None:
    missing = [
        word
        for word, count in (("rank", here.world_size), ("worker", here.num_workers))
        if count > 1 and word not in fields
    ]
    if missing:
        wanted = " and ".join(f"{{{word}}}" for word in missing)
        warn_user(
            f"pattern {text!r} names the same shards in every process of this job ({here.world_size} ranks, "
            f"{here.num_workers} workers): put {wanted} into it, unless only one process writes",
        )
