"""What a dataset is, in a few words and numbers, so that a state can tell whether it belongs to it.

Flows in: stages. Flows out: names of stages with the numbers that decide their order, those of functions that choose
and name a shard's members, and a hash of the shards' urls (without signatures) and of the numbers of a specification's
sources. Reads nothing; never shows a url.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from webdataset.caching.identity import same_object
from webdataset.samples.reading import Reading
from webdataset.shards.lists import ShardList
from webdataset.stages.base import FilterFunction, Stage

from .describing_functions import digest_values, function_named
from .levels import named
from .looping import ENDLESS, Bounds, item_bound
from .running import steps

_NUMBERS = (bool, int, float, type(None))
_TEXTS = (*_NUMBERS, str)
_MOVING = ("epoch",)  # of shard lists: changes from pass to pass


def description(stages: Sequence[Any], bounds: Bounds) -> dict[str, Any]:
    """Return the description of a dataset.

    Args:
        stages: the first is the source.
        bounds: how long it runs.
    """
    names, digest = [], hashlib.blake2b(digest_size=8)
    count = 0
    for stage in _all(stages):
        names.append(stage if isinstance(stage, str) else _shown(stage))
        for part in _parts(stage):
            count += _enter(digest, part)
            if part is not stage:
                digest.update(repr(sorted(_known(part, _NUMBERS).items())).encode() + b"\0")
    return {
        "stages": names,
        "shards": count,
        "urls": digest.hexdigest(),
        "passes": _passes(bounds.passes),
        "items": bounds.items,
    }


def describe_functions(stages: Sequence[Any]) -> list[list[Any]]:
    """Return, for each stage, its name and a digest of the functions and values that a user gave it.

    Handlers are left out: what is done about an error may change between runs.

    Args:
        stages: the first is the source.
    """
    return [[named(stage), digest_values(_given(stage))] for stage in _all(stages) if not isinstance(stage, str)]


def _given(stage: Any) -> Any:
    """Return what a user gave a stage, as far as it decides what the stage gives."""
    if isinstance(stage, FilterFunction):
        kept = {name: value for name, value in stage.kw.items() if name != "handler"}
        return {"f": stage.f, "args": stage.args, **kept}
    if isinstance(stage, ShardList):
        return {}
    if not isinstance(stage, Stage):
        return {"f": stage} if callable(stage) else {}
    reading = getattr(stage, "reading", None)
    parts = {name: part for name, part in vars(stage).items() if name != "handler" and callable(part)}
    if isinstance(reading, Reading):
        parts |= {name: getattr(reading, name) for name in ("select_files", "rename_files", "keys")}
    return parts


def _enter(digest: Any, part: Any) -> int:
    """Hash the urls of one list of shards, and how many they are; return that."""
    urls = _urls(part)
    for url in urls:
        digest.update(same_object(str(url)).encode("utf-8", "surrogateescape") + b"\0")
    if urls:
        digest.update(b"%d\0" % len(urls))
    return len(urls)


def _passes(passes: int) -> int | None:
    return None if passes >= ENDLESS else passes


def _all(stages: Sequence[Any]) -> Iterable[Any]:
    """Yield the stages, each followed by those of the datasets in it; what holds for such a dataset, as text."""
    for stage in steps(stages):
        yield stage
        for inner in getattr(stage, "datasets", None) or ():
            yield from _within(inner)
        if isinstance(getattr(stage, "pipeline", None), list):
            yield from _within(stage, named_already=True)


def _within(dataset: Any, *, named_already: bool = False) -> Iterable[Any]:
    """Yield what holds for a dataset in another one, and its stages."""
    stages = getattr(dataset, "pipeline", None)
    if not isinstance(stages, list):
        yield from [] if named_already else _all([dataset])
        return
    own = getattr(dataset, "seed", None)
    bounds = _passes(getattr(dataset, "repetitions", 1)), item_bound(dataset)
    yield f"dataset(seed={own if isinstance(own, int) else None}, passes={bounds[0]}, items={bounds[1]})"
    yield from _all(stages)


def _parts(stage: Any) -> Iterable[Any]:
    """Yield a stage, and what it draws shards from where that is several sources."""
    yield stage
    for name in ("sources", "lists"):
        parts = getattr(stage, name, None)
        yield from parts if isinstance(stage, ShardList) and isinstance(parts, list) else ()
    for holder in (stage, *(getattr(stage, "lists", None) or ())):
        source = getattr(holder, "source", None)
        if isinstance(holder, ShardList) and source is not None:
            yield source


def _urls(part: Any) -> Sequence[Any]:
    urls = getattr(part, "urls", None)
    if urls is None:
        urls = getattr(getattr(part, "source", None), "urls", None)
    return urls if isinstance(urls, list | tuple) else ()


def _known(part: Any, kinds: tuple[type, ...]) -> dict[str, Any]:
    """Return the attributes that are numbers (or texts), by name."""
    attributes = getattr(part, "__dict__", {})
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_") and name not in _MOVING and isinstance(value, kinds)
    }


def _shown(stage: Any) -> str:
    if isinstance(stage, ShardList):
        known = _known(stage, _NUMBERS)
    elif isinstance(stage, Stage) and not isinstance(stage, FilterFunction):
        known = _known(stage, _TEXTS)
        known |= {name: part for name, part in vars(stage).items() if _is_row(part)}
        weights = getattr(stage, "probs", None)
        if weights is not None:
            known["probs"] = [float(weight) for weight in weights]
        known |= _members(getattr(stage, "reading", None))
    else:
        return named(stage)
    return f"{named(stage)}({', '.join(f'{name}={part!r}' for name, part in sorted(known.items()))})"


def _members(reading: Any) -> dict[str, Any]:
    """Return what decides which members a reader takes, and what they are called, where that is not the default."""
    if not isinstance(reading, Reading):
        return {}
    found: dict[str, Any] = {}
    for name in ("select_files", "rename_files", "keys", "lcase", "suffixes", "duplicates", "split_samples"):
        value = getattr(reading, name)
        if value != getattr(Reading, name, None):
            plain = value if isinstance(value, _TEXTS) else None
            chosen = sorted(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else plain
            found[name] = function_named(value) if chosen is None else chosen
    return found


def _is_row(part: Any) -> bool:
    """Tell whether an attribute is a row of numbers, as the bounds of a slice are."""
    return isinstance(part, tuple) and bool(part) and all(isinstance(number, _NUMBERS) for number in part)
