"""What a dataset is, in a few words and numbers, so that a state can tell whether it belongs to it.

Flows in: stages. Flows out: names of stages with the numbers that decide their order, and a hash of the shards' urls
(signatures and other queries left out). Reads nothing; never shows a url.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from webdataset.stages.base import FilterFunction, Stage

from .levels import named
from .looping import ENDLESS, Bounds
from .running import steps

_TEXTS = (bool, int, float, str, type(None))


def description(stages: Sequence[Any], bounds: Bounds) -> dict[str, Any]:
    """Return the description of a dataset.

    Args:
        stages: the first is the source.
        bounds: how long it runs.
    """
    names, digest = [], hashlib.blake2b(digest_size=8)
    count = 0
    for stage in _all(stages):
        names.append(_shown(stage))
        for url in _urls(stage):
            count += 1
            digest.update(str(url).partition("?")[0].encode("utf-8", "surrogateescape") + b"\0")
    return {
        "stages": names,
        "shards": count,
        "urls": digest.hexdigest(),
        "passes": None if bounds.passes >= ENDLESS else bounds.passes,
        "items": bounds.items,
    }


def _all(stages: Sequence[Any]) -> Iterable[Any]:
    """Yield the stages, each followed by those of the datasets in it."""
    for stage in steps(stages):
        yield stage
        for inner in getattr(stage, "datasets", None) or ():
            yield from _all(getattr(inner, "pipeline", None) or [inner])
        if isinstance(getattr(stage, "pipeline", None), list):
            yield from _all(stage.pipeline)


def _urls(stage: Any) -> Iterable[Any]:
    urls = getattr(stage, "urls", None)
    if urls is None:
        source = getattr(stage, "source", None)
        urls = getattr(source, "urls", None)
    return urls if isinstance(urls, list | tuple) else ()


def _shown(stage: Any) -> str:
    if not isinstance(stage, Stage) or isinstance(stage, FilterFunction):
        return named(stage)
    known: dict[str, Any] = {
        name: part for name, part in vars(stage).items() if not name.startswith("_") and isinstance(part, _TEXTS)
    }
    weights = getattr(stage, "probs", None)
    if weights is not None:
        known["probs"] = [float(weight) for weight in weights]
    return f"{named(stage)}({', '.join(f'{name}={part!r}' for name, part in sorted(known.items()))})"
