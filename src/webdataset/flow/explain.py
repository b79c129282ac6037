"""Describes a pipeline in words: its stages in order, what each holds, and how a run of it resumes.

The text is the same for equal pipelines and in every process. What a stage says about itself is the ``Flow:`` line of
its docstring, with the stage's own numbers filled in. A loader, torch's or ours, is described by its workers and by
what waits between them and the consumer.

Runs, opens and draws nothing, starts no worker, and asks a loader's dataset for nothing. Never calls the ``repr`` of
an unknown object (it may hold secrets, or an address in memory), and never shows a url with its credentials.
"""

import functools
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from webdataset.core import settings
from webdataset.core.distributed import StreamNumber
from webdataset.core.redaction import redact
from webdataset.flow.run import ENDLESS, expand_stages, item_bound
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lazy_urls import LazyUrls
from webdataset.shards.lists import ShardList, SimpleShardList
from webdataset.stages.base import FilterFunction, Stage
from webdataset.stages.mix import Mixture
from webdataset.stages.open_shards import OpenShards
from webdataset.stages.read_shards import ReadShards
from webdataset.stages.shuffle import DetShuffle, Shuffle
from webdataset.stages.shuffle_blocks import BlockShuffle

if TYPE_CHECKING:
    import dataclasses
    from typing import TypeGuard

    from webdataset.flow.pipeline import DataPipeline

MAX_TEXT = 60
MAX_WHERE = 400
_NUMBERS = (bool, int, float, complex, type(None))


def format_value(value: object) -> str:
    """Return a value as text.

    Args:
        value: numbers, text, functions, short lists of these; of anything else only the type is shown.
    """
    if isinstance(value, _NUMBERS):
        return repr(value)
    if isinstance(value, str):
        text = redact(value)
        return repr(text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…")
    if isinstance(value, list | tuple | set | frozenset):
        return _format_list(value)
    return format_function(value) if callable(value) else _format_by_kind(value)


def _format_by_kind(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return "{" + ", ".join(redact(str(name)) for name in list(value)[:8]) + ("…}" if len(value) > 8 else "}")
    return type(value).__qualname__


def _format_list(value: "list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]") -> str:
    parts = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
    inside = ", ".join(format_value(part) for part in parts[:4]) + (
        f", … {len(parts)} in all" if len(parts) > 4 else ""
    )
    return f"[{inside}]" if isinstance(value, list) else f"({inside})"


def format_function(called: object) -> str:
    """Return the name of a function and the file and line it is written in, as ``name (file.py:12)``.

    Args:
        called: a function, method, class, partial (whose arguments are not shown) or object that can be called.
    """
    if isinstance(called, functools.partial):
        return f"partial of {format_function(called.func)}"
    inner = inspect.unwrap(called) if inspect.isroutine(called) else called
    inner = getattr(inner, "__func__", inner)
    name = getattr(inner, "__qualname__", None)
    if name is None:
        name, inner = type(called).__qualname__, type(called).__call__
    return f"{name.rpartition('.<locals>.')[2]}{_format_location(inner)}"


def _format_location(called: object) -> str:
    code = getattr(called, "__code__", None)
    if code is None or _is_own(called):
        return ""
    return f" ({code.co_filename}:{code.co_firstlineno})"


def _is_own(called: object) -> bool:
    return str(getattr(called, "__module__", "")).partition(".")[0] == "webdataset"


def format_urls(found: Sequence[Any]) -> str:
    """Return how many urls there are, and the first and the last of them."""
    count = f"{len(found)} shard{'' if len(found) == 1 else 's'}"
    named = [redact(str(url)) for url in (found[:1] if len(found) < 2 else [found[0], found[-1]])]
    return f"{count}: {' … '.join(named)}" if named else count


_OPTIONS = (
    "batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last", "workers", "mode",
    "start_method",
)  # fmt: skip
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class LoaderOptions(Protocol):
    """What torch's loader and ours both have."""

    dataset: object
    batch_size: int | None


def is_loader(source: object) -> "TypeGuard[LoaderOptions]":
    """Tell whether something loads a dataset with workers."""
    return hasattr(source, "dataset") and (hasattr(source, "num_workers") or hasattr(source, "workers"))


def find_loader_name(source: object) -> str:
    """Return what a loader is called: torch's with a state as torch's."""
    loader = getattr(source, "loader", source)
    kinds = [kind.__name__ for kind in type(loader).__mro__]
    return "DataLoader" if "DataLoader" in kinds else kinds[0]


def describe_loader(source: object) -> list[str]:
    """Return what a loader says of itself, after its dataset.

    Args:
        source: torch's ``DataLoader``, ours, or one of them as a stage.
    """
    loader: Any = getattr(source, "loader", source)
    options = [
        f"{name}={format_value(value)}" for name in _OPTIONS if (value := getattr(loader, name, None)) is not None
    ]
    if getattr(loader, "order", "exact") != "exact":
        options.append(f"order={loader.order!r}")
    workers = int(loader.num_workers if hasattr(loader, "num_workers") else loader.workers)
    return [", ".join(options), _describe_sharing(loader, workers), _describe_waiting(loader, workers)]


def _describe_sharing(loader: LoaderOptions, workers: int) -> str:
    if not workers:
        return "no workers: the dataset is read in the consumer's thread"
    kind = getattr(loader, "mode", "processes")
    if getattr(loader.dataset, "streams", None):
        return f"{workers} {kind} divide this rank's streams, and the bounds above, between them"
    return f"each of {workers} {kind} has such a pipeline, and its bounds, to itself"


def _describe_waiting(loader: LoaderOptions, workers: int) -> str:
    """Return what waits between workers and consumer."""
    what = "items" if loader.batch_size is None else "batches"
    if not workers:
        return f"nothing waits but the {what[:-1] if what == 'items' else 'batch'} that is made"
    bounds = getattr(loader, "ahead", None)
    if bounds is None:
        factor = getattr(loader, "prefetch_factor", None) or 2
        return f"up to {workers * factor:,} {what} wait; torch knows no bound in bytes"
    few, many, size_bytes = bounds
    small = f" ({many:,} small ones)" if many > few else ""
    of_each = "items of each worker" if loader.batch_size is None else "batches"
    return f"workers are at most {few:,} {of_each} ahead{small}, and {format_bytes(size_bytes)} (one is always allowed)"


def format_bytes(size_bytes: int) -> str:
    """Return a number of bytes as people write it."""
    power = 0
    while size_bytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    if not power:
        return f"{size_bytes:,} bytes"
    return f"{size_bytes / 1024**power:.4g} {_UNITS[power]}"


_FLOW = re.compile(r"^\s*Flow:\s*(.+?)(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"``(\w+)``")
_BOUND_NAMES = ("bufsize", "size", "batchsize", "lookahead", "window")  # attributes that bound what waits, in samples
_DEFAULTS = re.compile("(, )?(handler=reraise_exception|trust=None|partial=True|collation_fn=default_collation_fn)")
_LONGEST_PART = 80  # characters of a stage in a line that shows all of them
_REPLAYED = "unknown to this library: resumed by running the epoch again from its start"


def explain(pipeline: object) -> str:
    """Describe a pipeline: stages, arguments, bounds of memory, seeds, and what is resumed how.

    Args:
        pipeline: a ``DataPipeline`` (``WebDataset``, ``WebLoader`` …), a mix, a loader, or any iterable.

    Returns:
        Lines of text. Urls are shown without credentials, user's functions with file and line.
    """
    return "\n".join(_describe_pipeline(pipeline, ""))


def summarize(pipeline: "DataPipeline") -> str:
    """Describe a pipeline in one line: its source and its stages, in order."""
    source, stages = pipeline.pipeline[:1], pipeline.pipeline[1:]
    parts = [_summarize_source(each) for each in expand_stages(source)]
    parts += [_DEFAULTS.sub("", _format_stage(stage)).replace("(, ", "(").replace("()", "") for stage in stages]
    short = [part if len(part) <= _LONGEST_PART else f"{part[: _LONGEST_PART - 1]}…" for part in parts]
    return f"{type(pipeline).__name__}({' | '.join(short)})"


def _summarize_source(source: object) -> str:
    if is_loader(source):
        return f"{find_loader_name(source)} over {type(source.dataset).__name__}"
    return _describe_source(source)[0]


def _describe_pipeline(pipeline: object, indent: str) -> list[str]:
    stages = getattr(pipeline, "pipeline", None)
    if not isinstance(stages, list):
        return [indent + line for line in _describe_source(pipeline)]
    flat = expand_stages(stages)
    reader = max((number for number, stage in enumerate(flat) if isinstance(stage, ReadShards)), default=0)
    known = cast("DataPipeline", pipeline)
    lines = [f"{indent}{type(pipeline).__name__}: {'; '.join(_describe_run(known))}"]
    for number, stage in enumerate(flat):
        first, *rest = _describe_source(stage) if number == 0 else _describe_stage(stage, before=number < reader)
        lines.append(f"{indent}{number:3} {first}")
        lines += [f"{indent}      {line}" for line in rest]
    return [*lines, *(f"{indent}{line}" for line in _summarize_waiting(flat, reader, getattr(known, "streams", None)))]


def _describe_run(pipeline: "DataPipeline") -> list[str]:
    """Return what decides the order of a pipeline, and how long one iteration is."""
    seed = pipeline.seed if pipeline.seed is not None else settings.SEED.get()
    seeding = "seed drawn anew for every run" if seed is None else f"seed {seed}"
    passes = "endless passes" if pipeline.repetitions >= ENDLESS else f"{pipeline.repetitions} passes"
    lines = [seeding, f"next epoch {pipeline.epoch}", "one pass" if pipeline.repetitions == 1 else passes]
    if item_bound(pipeline) is not None:
        lines.append(f"{pipeline.nsamples} items an iteration")
    if getattr(pipeline, "evenness", None) is not None:
        lines.append(str(pipeline.evenness))
    streams = getattr(pipeline, "streams", None)
    if streams:
        lines.append(f"{streams} virtual streams, between which the bounds below are divided")
        lines += _describe_shared_shards(pipeline, streams)
    if pipeline.size is not None:
        lines.append(f"length {pipeline.size}")
    return lines


def _describe_shared_shards(pipeline: "DataPipeline", streams: int) -> list[str]:
    """Return how many shards are left over for streams to share, and how many processes read each of them."""
    source = pipeline.pipeline[0] if pipeline.pipeline else None
    urls = getattr(source, "urls", None)
    # sources of other types draw shards for each stream
    if type(source) is not SimpleShardList or not isinstance(urls, list | LazyUrls) or not len(urls) % streams:
        return []
    left = len(urls) % streams
    fitting = max(number for number in range(1, streams + 1) if len(urls) % number == 0)
    examples = ", ".join(f"{number // math.gcd(left, number)} of {number}" for number in (2, 4, 8))
    shared = (
        f"{left} of {len(urls)} shards are shared by sample, and each is opened by P / gcd({left}, P) of P processes"
    )
    return [f"{shared} ({examples}; by one with streams={fitting})"]


def _describe_source(source: object) -> list[str]:
    """Describe what stands first."""
    if isinstance(source, ShardList):
        given = getattr(source, "urls", None)
        listed = format_urls(given) if isinstance(given, list | LazyUrls) else "shards"
        return [
            f"{type(source).__name__}: {listed}",
            *_format_options(source, "seed", "deterministic", "nshards", "mode"),
        ]
    if isinstance(source, Mixture):
        return _describe_mix(source)
    if is_loader(source):
        return [f"{find_loader_name(source)} over", *_describe_pipeline(source.dataset, "  "), *describe_loader(source)]
    if isinstance(getattr(source, "pipeline", None), list):
        return _describe_pipeline(source, "")
    return _describe_stage(source, before=False) if isinstance(source, Stage) else [_describe_iterable(source)]


def _describe_mix(mix: Mixture) -> list[str]:
    """Describe a mix and its sources."""
    lines = [f"{type(mix).__name__} of {len(mix.datasets)} sources", *_format_options(mix, "longest", "seed")]
    weights = getattr(mix, "probs", None)
    for number, dataset in enumerate(mix.datasets):
        lines.append(f"source {number}{'' if weights is None else f', weight {weights[number]:g}'}:")
        lines += _describe_pipeline(dataset, "  ")
    return lines


def _describe_iterable(source: object) -> str:
    if callable(source):
        return f"source {format_function(source)}"
    size = f" of {len(source)}" if isinstance(source, list | tuple | range | str) else ""
    return f"{type(source).__name__}{size}"


def _format_options(source: object, *names: str) -> list[str]:
    known = {name: getattr(source, name, None) for name in names}
    options = [
        f"{name}={format_value(value)}" for name, value in known.items() if value is not None and value != ENDLESS
    ]
    return [", ".join(options)] if options else []


def _describe_stage(stage: object, *, before: bool) -> list[str]:
    """Describe a stage."""
    lines = [
        _format_stage(stage),
        *(_find_flow_line(stage) if isinstance(stage, Stage) else []),
        *_describe_order(stage),
        *_describe_selection(stage),
        *_describe_map(stage),
    ]
    if not before and not isinstance(stage, Stage):
        lines.append(_REPLAYED)
    if getattr(stage, "splits", False):
        lines.append("shares out: what stands before it draws alike in all ranks and workers")
    return lines


def _describe_selection(stage: object) -> list[str]:
    """Return which samples a reader leaves out, and how much it reads of shards for the others."""
    where = getattr(stage.reading, "where", None) if isinstance(stage, ReadShards) else None
    if where is None:
        return []
    text = where.normal if len(where.normal) <= MAX_WHERE else f"{where.normal[: MAX_WHERE - 1]}…"
    return [
        f"leaves out samples for which this does not hold: {text}",
        "beside a shard with a columns file that answers it, only the samples that may match are read",
    ]


def _describe_map(stage: object) -> list[str]:
    """Return what fields are, where a reader maps shards."""
    if not isinstance(stage, ReadShards) or not getattr(stage.reading, "memory_map", False):
        return []
    plain = "of the file where a shard is local or complete in the cache, and plain; of copied bytes elsewhere"
    return [f"fields are read-only memoryviews: {plain}"]


def _describe_order(stage: object) -> list[str]:
    """Return what decides the order of a shuffle."""
    if not isinstance(stage, Shuffle | BlockShuffle):
        return []
    if getattr(stage, "rng", None) is not None:
        return ["order: from a generator of the caller's, whose state moves on from epoch to epoch"]
    if stage.seed is None:
        return ["order: from the seed and epoch of the run"]
    always = isinstance(stage, Shuffle) and not isinstance(stage, DetShuffle)
    return ["order: from seed= alone, the same in every epoch" if always else "order: from seed= and the epoch"]


def _format_stage(stage: object) -> str:
    if isinstance(stage, OpenShards):
        return f"{_format_stage(stage.reader)}, {stage.count} shards open at once"
    if isinstance(stage, ReadShards):
        return f"{_find_name(stage)}({_format_reading(stage.reading)})"
    if isinstance(stage, FilterFunction):
        arguments = [format_value(value) for value in stage.args] + [
            f"{name}={format_value(value)}" for name, value in stage.kw.items()
        ]
        return f"{_find_name(stage)}({', '.join(arguments)})"
    if isinstance(stage, Stage):
        arguments = [format_value(value) for value in vars(stage).get("args", ())]
        # a copy: another thread that begins a run may add attributes meanwhile
        arguments += [
            f"{name}={format_value(value)}"
            for name, value in dict(vars(stage)).items()
            if _is_worth_telling(name, value)
        ]
        return f"{_find_name(stage)}({', '.join(arguments)})"
    return format_function(stage)


def _find_name(stage: object) -> str:
    if isinstance(stage, FilterFunction):
        return format_function(stage.f).lstrip("_")
    text = repr(stage).partition("(")[0]
    return type(stage).__name__ if " object at 0x" in text else redact(text)


def _is_worth_telling(name: str, value: object) -> bool:
    """Tell whether an attribute of a stage is an argument worth telling."""
    hidden = name.startswith("_") or name in ("args", "cached", "name", "rows")
    return value is not None and not hidden and not isinstance(value, Stage)


def _format_reading(reading: Reading) -> str:
    options = []
    for name, field in type(reading).__dataclass_fields__.items():
        value = getattr(reading, name)
        if name == "storage_options":
            options += ["storage_options=…"] if value else []
        elif name == "where":
            options += [f"where={format_value(value.normal)}"] if value is not None else []
        elif name == "handler" or value != _find_default(field):
            options.append(f"{name}={format_value(value)}")
    return ", ".join(options)


def _find_default(field: "dataclasses.Field[Any]") -> object:
    factory = field.default_factory
    return factory() if callable(factory) else field.default


def _find_flow_line(stage: object) -> list[str]:
    """Return the ``Flow:`` line of a stage's docstring, with its own numbers in it."""
    for documented in (getattr(stage, "f", None), *type(stage).__mro__[:-1], *_find_makers(stage)):
        found = _FLOW.search(inspect.getdoc(documented) or "") if documented is not None else None
        if found is not None:
            text = " ".join(found[1].split())
            return [_NAMED.sub(lambda name: _format_number(stage, name[1]), text)]
    return []


def _find_makers(stage: object) -> list[Any]:
    """Return the function that makes such stages, where it has the stage's name: its docstring says how it flows."""
    module = inspect.getmodule(type(stage))
    return [getattr(module, _find_name(stage), None)]


def _format_number(stage: object, name: str) -> str:
    value = getattr(stage, name, None)
    return (
        name
        if value is None or isinstance(value, str)
        else f"{value:,}"
        if isinstance(value, int)
        else format_value(value)
    )


def keeps_state(stage: object) -> bool:
    """Tell whether a stage is restored from its own state, and not by replay."""
    return isinstance(stage, Stage) and (stage.transparent or stage.rewinds or type(stage).begin is not Stage.begin)


def _summarize_waiting(stages: list[Any], reader: int, streams: int | None) -> list[str]:
    """Return what waits in all, and where a restored run begins."""
    held = sum(_count_waiting(stage, streams) for stage in stages[reader:])
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


def _count_waiting(stage: object, streams: int | None) -> int:
    """Return the number of samples that may wait in a stage, in all streams; 0 where they do not."""
    if not isinstance(stage, Stage):
        return 0
    held = _find_bound(stage)
    part = stage.for_stream(StreamNumber(0, streams)) if streams else stage
    # shares are rounded up; only where they have a least size do they hold more than the whole together
    least = 0 if part is stage or not streams else _find_bound(part)
    return least * streams if streams and least > -(-held // streams) else held


def _find_bound(stage: Stage) -> int:
    most = getattr(stage, "most_waiting", None)
    bounds = [most] if isinstance(most, int) else [getattr(stage, name, None) for name in _BOUND_NAMES]
    return max((bound for bound in bounds if isinstance(bound, int)), default=0)
