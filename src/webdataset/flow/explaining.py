"""A pipeline in words: its stages in order, what each holds, and how a run of it is resumed.

Flows in: a pipeline. Flows out: text, the same for equal pipelines. Nothing is run, opened or drawn. What a stage says
about itself is the ``Flow:`` line of its docstring, with the stage's own numbers filled in.
"""

import inspect
import re
from typing import Any

from webdataset.ground import settings
from webdataset.ground.redaction import redacted
from webdataset.shards.lists import ShardList
from webdataset.stages.base import FilterFunction, Stage
from webdataset.stages.mixing import Mixture
from webdataset.stages.open_shards import OpenShards
from webdataset.stages.reading import ReadShards
from webdataset.stages.shuffling import DetShuffle, Shuffle
from webdataset.stages.shuffling_blocks import BlockShuffle

from .explaining_loaders import is_loader, loader_lines, loader_named
from .explaining_values import function, shown, urls
from .in_streams import InStreams
from .looping import ENDLESS, item_bound
from .running import steps

_FLOW = re.compile(r"^\s*Flow:\s*(.+?)(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"``(\w+)``")
_HELD = ("bufsize", "size", "batchsize", "lookahead")  # attributes that bound what waits, in samples
_DEFAULTS = re.compile("(, )?(handler=reraise_exception|trust=None|partial=True|collation_fn=default_collation_fn)")
_LONGEST_PART = 80  # characters of a stage in a line that shows all of them
_REPLAYED = "unknown to this library: resumed by running the epoch again from its start"


def explain(pipeline: Any) -> str:
    """Describe a pipeline: stages, arguments, bounds of memory, seeds, and what is resumed how.

    Args:
        pipeline: a ``DataPipeline`` (``WebDataset``, ``WebLoader`` …), a mix, a loader, or any iterable.

    Returns:
        Lines of text. Urls are shown without credentials, user's functions with file and line.
    """
    return "\n".join(_described(pipeline, ""))


def summarize(pipeline: Any) -> str:
    """Describe a pipeline in one line: its source and its stages, in order.

    Args:
        pipeline: a ``DataPipeline``.
    """
    source, stages = pipeline.pipeline[:1], pipeline.pipeline[1:]
    parts = [_source(each)[0] for each in steps(source)]
    parts += [_DEFAULTS.sub("", _named(stage)).replace("(, ", "(").replace("()", "") for stage in stages]
    short = [part if len(part) <= _LONGEST_PART else f"{part[: _LONGEST_PART - 1]}…" for part in parts]
    return f"{type(pipeline).__name__}({' | '.join(short)})"


def _described(pipeline: Any, indent: str) -> list[str]:
    stages = getattr(pipeline, "pipeline", None)
    if not isinstance(stages, list):
        return [indent + line for line in _source(pipeline)]
    flat = steps(stages)
    reader = max((number for number, stage in enumerate(flat) if isinstance(stage, ReadShards)), default=0)
    lines = [f"{indent}{type(pipeline).__name__}: {'; '.join(_runs(pipeline))}"]
    for number, stage in enumerate(flat):
        first, *rest = _source(stage) if number == 0 else _stage(stage, before=number < reader)
        lines.append(f"{indent}{number:3} {first}")
        lines += [f"{indent}      {line}" for line in rest]
    return [*lines, *(f"{indent}{line}" for line in _summary(flat, reader))]


def _runs(pipeline: Any) -> list[str]:
    """Return what decides the order of a pipeline, and how long one iteration is."""
    seed = pipeline.seed if pipeline.seed is not None else settings.SEED.get()
    told = "seed drawn anew for every run" if seed is None else f"seed {seed}"
    passes = "endless passes" if pipeline.repetitions >= ENDLESS else f"{pipeline.repetitions} passes"
    lines = [told, f"next epoch {pipeline.epoch}", "one pass" if pipeline.repetitions == 1 else passes]
    if item_bound(pipeline) is not None:
        lines.append(f"{pipeline.nsamples} items an iteration")
    if getattr(pipeline, "evenness", None) is not None:
        lines.append(str(pipeline.evenness))
    if isinstance(pipeline, InStreams):
        lines.append(f"{pipeline.streams} virtual streams, between which the bounds below are divided")
    if pipeline.size is not None:
        lines.append(f"length {pipeline.size}")
    return lines


def _source(source: Any) -> list[str]:
    """Describe what stands first."""
    if isinstance(source, ShardList):
        given = getattr(source, "urls", None)
        listed = urls(given) if isinstance(given, list) else "shards"
        return [f"{type(source).__name__}: {listed}", *_options(source, "seed", "deterministic", "nshards", "mode")]
    if isinstance(source, Mixture):
        return _mixed(source)
    if is_loader(source):
        return [f"{loader_named(source)} over", *_described(source.dataset, "  "), *loader_lines(source)]
    if isinstance(getattr(source, "pipeline", None), list):
        return _described(source, "")
    return _stage(source, before=False) if isinstance(source, Stage) else [_plain(source)]


def _mixed(mix: Mixture) -> list[str]:
    """Describe a mix and its sources."""
    lines = [f"{type(mix).__name__} of {len(mix.datasets)} sources", *_options(mix, "longest", "seed")]
    weights = getattr(mix, "probs", None)
    for number, dataset in enumerate(mix.datasets):
        lines.append(f"source {number}{'' if weights is None else f', weight {weights[number]:g}'}:")
        lines += _described(dataset, "  ")
    return lines


def _plain(source: Any) -> str:
    if callable(source):
        return f"source {function(source)}"
    size = f" of {len(source)}" if isinstance(source, list | tuple | range | str) else ""
    return f"{type(source).__name__}{size}"


def _options(source: Any, *names: str) -> list[str]:
    known = {name: getattr(source, name, None) for name in names}
    told = [f"{name}={shown(value)}" for name, value in known.items() if value is not None and value != ENDLESS]
    return [", ".join(told)] if told else []


def _stage(stage: Any, *, before: bool) -> list[str]:
    """Describe a stage.

    Args:
        stage: ours, or any callable.
        before: it stands before the reader, where everything is run again from the seed.
    """
    lines = [_named(stage), *(_about(stage) if isinstance(stage, Stage) else []), *_chance(stage)]
    if not before and not isinstance(stage, Stage):
        lines.append(_REPLAYED)
    if getattr(stage, "splits", False):
        lines.append("shares out: what stands before it draws alike in all ranks and workers")
    return lines


def _chance(stage: Any) -> list[str]:
    """Return what decides the order of a shuffle."""
    if not isinstance(stage, Shuffle | BlockShuffle):
        return []
    if getattr(stage, "rng", None) is not None:
        return ["order: from a generator of the caller's, whose state moves on from epoch to epoch"]
    if stage.seed is None:
        return ["order: from the seed and epoch of the run"]
    always = isinstance(stage, Shuffle) and not isinstance(stage, DetShuffle)
    return ["order: from seed= alone, the same in every epoch" if always else "order: from seed= and the epoch"]


def _named(stage: Any) -> str:
    if isinstance(stage, OpenShards):
        return f"{_named(stage.reader)}, {stage.count} shards open at once"
    if isinstance(stage, ReadShards):
        return f"{_called(stage)}({_reading(stage.reading)})"
    if isinstance(stage, FilterFunction):
        told = [shown(value) for value in stage.args] + [f"{name}={shown(value)}" for name, value in stage.kw.items()]
        return f"{_called(stage)}({', '.join(told)})"
    if isinstance(stage, Stage):
        told = [shown(value) for value in vars(stage).get("args", ())]
        told += [f"{name}={shown(value)}" for name, value in vars(stage).items() if _telling(name, value)]
        return f"{_called(stage)}({', '.join(told)})"
    return function(stage)


def _called(stage: Any) -> str:
    if isinstance(stage, FilterFunction):
        return function(stage.f).lstrip("_")
    told = repr(stage).partition("(")[0]
    return type(stage).__name__ if " object at 0x" in told else redacted(told)


def _telling(name: str, value: Any) -> bool:
    """Tell whether an attribute of a stage is an argument worth telling."""
    hidden = name.startswith("_") or name in ("args", "cached", "name", "rows")
    return value is not None and not hidden and not isinstance(value, Stage)


def _reading(reading: Any) -> str:
    told = []
    for name, field in type(reading).__dataclass_fields__.items():
        value = getattr(reading, name)
        if name == "storage_options":
            told += ["storage_options=…"] if value else []
        elif name == "handler" or value != _default(field):
            told.append(f"{name}={shown(value)}")
    return ", ".join(told)


def _default(field: Any) -> Any:
    factory = field.default_factory
    return factory() if callable(factory) else field.default


def _about(stage: Any) -> list[str]:
    """Return the ``Flow:`` line of a stage's docstring, with its own numbers in it."""
    for told in (getattr(stage, "f", None), *type(stage).__mro__[:-1], *_makers(stage)):
        found = _FLOW.search(inspect.getdoc(told) or "") if told is not None else None
        if found is not None:
            text = " ".join(found[1].split())
            return [_NAMED.sub(lambda name: _number(stage, name[1]), text)]
    return []


def _makers(stage: Any) -> list[Any]:
    """Return the function that makes such stages, where it has the stage's name: its docstring says how it flows."""
    module = inspect.getmodule(type(stage))
    return [getattr(module, _called(stage), None)]


def _number(stage: Any, name: str) -> str:
    value = getattr(stage, name, None)
    return name if value is None or isinstance(value, str) else f"{value:,}" if isinstance(value, int) else shown(value)


def keeps_state(stage: Any) -> bool:
    """Tell whether a stage is restored from its own memory, and not by replay.

    Args:
        stage: anything that stands in a pipeline.
    """
    return isinstance(stage, Stage) and (stage.transparent or stage.rewinds or type(stage).begin is not Stage.begin)


def _summary(stages: list[Any], reader: int) -> list[str]:
    """Return what waits in all, and where a restored run begins."""
    held = sum(_held(stage) for stage in stages[reader:])
    lines = [f"In all, up to {held:,} samples wait."] if held else []
    if reader:
        which = "Stage 0 stands" if reader == 1 else f"Stages 0 to {reader - 1} stand"
        lines.append(f"{which} before the reader: a restored run draws the shards again, reading nothing.")
    replayed = [number for number, stage in enumerate(stages) if number > reader and not keeps_state(stage)]
    if replayed:
        lines.append(
            f"Resumed by replay: a restored run reads the epoch again up to stage {replayed[-1]}. A stage that is a "
            "function of one sample, written with map or select, is resumed exactly without."
        )
    elif any(isinstance(stage, ReadShards | Mixture) for stage in stages):
        lines.append("Resumed exactly, at byte offsets.")
    return lines


def _held(stage: Any) -> int:
    """Return the number of samples that may wait in a stage; 0 where they do not."""
    if not isinstance(stage, Stage):
        return 0
    bounds = [getattr(stage, name, None) for name in _HELD]
    return max((bound for bound in bounds if isinstance(bound, int)), default=0)
