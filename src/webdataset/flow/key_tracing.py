"""Rewrites a pipeline so that it gives the keys of samples, in the order in which it would give the samples.

Theory. Shard lists, readers, shuffles and batches decide what a pipeline gives, and when; a stage that makes one item
of each item (``decode``, ``to_tuple``, ``rename``) decides nothing. So every item is replaced by a
:class:`TracedItem`: the keys that it was made of, and its value where a later stage needs it. After the last stage
that looks at values (a function that may drop a sample, a handler that skips samples, a bound in bytes), stages that
make one item of each are replaced by :class:`PassItems`, and no value is kept: nothing is decoded there. Stages keep
their places, from which their random numbers follow, and their states, so that a run of the rewritten pipeline starts
from a state of the other one, and has that state itself at every item.
"""

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import FlowError, UsageError
from webdataset.flow.index_tracing import trace_by_index
from webdataset.flow.run import expand_stages
from webdataset.stages import fields as field_stages
from webdataset.stages import map as map_stages
from webdataset.stages.base import (
    Address,
    Fetch,
    FilterFunction,
    ObservingFunction,
    PassThroughStage,
    Run,
    Stage,
    collate_batch,
    stage_title,
)
from webdataset.stages.batch import Batched, Unbatched
from webdataset.stages.bucketing import Bucketed
from webdataset.stages.mix import Mixture
from webdataset.stages.packed_rows import PackedSample, Piece
from webdataset.stages.packing import Pack
from webdataset.stages.read_shards import ReadShards
from webdataset.stages.sample_cache import Cached, LMDBCached
from webdataset.stages.shuffle import sample_size_bytes

_MOST_REMEMBERED = 1 << 20

_ONE_TO_ONE: tuple[Any, ...] = (
    map_stages.decode,
    map_stages.xdecode,
    map_stages.add_label,
    map_stages.keep_fields,
    map_stages.keep_first,
    map_stages.map_dict,
    map_stages.map_tuple,
    map_stages.info,
    map_stages.log_keys,
    field_stages.to_tuple,
    field_stages.rename,
    field_stages.associate,
    field_stages.rename_keys,
    field_stages.extract_keys,
    field_stages.to_dict,
)
_ONE_TO_ONE_FUNCTIONS = frozenset(maker.__wrapped__ for maker in _ONE_TO_ONE)


class SampleSource(NamedTuple):
    """A sample as it stands in a shard.

    Args:
        key: of the sample.
        url: of the shard; nothing where it came from no shard.
    """

    key: str
    url: str


class TracedItem:
    """An item of a pipeline, and the samples that it was made of.

    Args:
        sources: of the samples, in their order.
        value: the item; None where no stage needs it.
    """

    __slots__ = ("sources", "value")

    def __init__(self, sources: Sequence[SampleSource], value: Any) -> None:
        self.sources = sources
        self.value = value

    @property
    def nbytes(self) -> int:
        """What a shuffle with a bound in bytes weighs: the value alone."""
        return sample_size_bytes(self.value)


def _find_source(sample: Any) -> SampleSource | None:
    if not isinstance(sample, dict) or "__key__" not in sample:
        return None
    return SampleSource(str(sample["__key__"]), str(sample.get("__url__") or ""))


@dataclass
class TracedPipeline:
    """The stages of a pipeline that gives traced items.

    Args:
        stages: in the places of the pipeline's own.
        deciding: stages that look at values, as text; where there are any, samples are decoded up to the last of them.
    """

    stages: list[Any]
    deciding: list[str]


def trace_stages(stages: Sequence[Any], *, values: bool = False) -> TracedPipeline:
    """Rewrite the stages of a pipeline.

    Args:
        stages: the first is the source.
        values: also keep the value of each item to the end.

    Raises:
        UsageError: a stage whose items cannot be followed; the message names it.
    """
    inner = expand_stages(stages)
    begin = _find_first_samples(inner)
    deciding = [place for place, stage in enumerate(inner) if place > begin and _looks_at_values(inner, place)]
    last = len(inner) if values else max(deciding, default=-1)
    head = _trace_source(inner[begin], values=last > begin)
    found = [*inner[:begin], head.stages[0]]
    found += [_trace_stage(stage, values=place <= last) for place, stage in enumerate(inner) if place > begin]
    return TracedPipeline(found, [*head.deciding, *(_name_stage(inner[place]) for place in deciding)])


def _name_stage(stage: Any) -> str:
    """Return a stage as text: its function where it has one of a user's."""
    function = getattr(stage, "function", None)
    return repr(stage) if function is None else stage_title(str(getattr(stage, "name", "stage")), function)


def _find_first_samples(stages: Sequence[Any]) -> int:
    """Return the place of the stage that gives the first samples: the reader, or the source where none reads shards."""
    return next((place for place, stage in enumerate(stages) if isinstance(stage, ReadShards)), 0)


def _looks_at_values(stages: Sequence[Any], place: int) -> bool:
    """Tell whether what a stage gives depends on the values of its items."""
    stage = stages[place]
    if isinstance(stage, FilterFunction):
        handler = stage.kw.get("handler", reraise_exception)
        return stage.f not in _ONE_TO_ONE_FUNCTIONS or handler is not reraise_exception
    if isinstance(stage, PassThroughStage):
        return getattr(stage, "max_bytes", None) is not None
    if isinstance(stage, Unbatched):
        return not _takes_batches(stages[:place])
    return not isinstance(stage, Batched)


def _takes_batches(before: Sequence[Any]) -> bool:
    """Tell whether items are batches of this pipeline's own, of which only order and fields have changed since."""
    for stage in reversed(before):
        if isinstance(stage, Batched):
            return True
        unchanged = isinstance(stage, PassThroughStage) or getattr(stage, "f", None) in _ONE_TO_ONE_FUNCTIONS
        if not unchanged:
            return False
    return False


def _trace_source(stage: Any, *, values: bool) -> TracedPipeline:
    if isinstance(stage, ReadShards):
        return TracedPipeline([TracedReader(stage, values=values)], [])
    if isinstance(stage, Mixture):
        mix = copy.copy(stage)
        parts = [trace_dataset(dataset, values=values) for dataset in stage.datasets]
        mix.datasets = [part for part, _ in parts]
        return TracedPipeline([mix], [text for _, texts in parts for text in texts])
    if isinstance(getattr(stage, "pipeline", None), list):
        dataset, deciding = trace_dataset(stage, values=values)
        return TracedPipeline([dataset], deciding)
    if isinstance(stage, Iterable) and not isinstance(stage, str | bytes):
        return TracedPipeline([TracedIterable(stage, values=values)], [])
    raise UsageError(
        f"the samples of {stage!r} cannot be followed by their keys: it is neither a reader of shards nor a mix of such"
    )


def trace_dataset(dataset: Any, *, values: bool = False) -> tuple[Any, list[str]]:
    """Return a dataset that gives traced items, and its stages that look at values.

    Args:
        dataset: a pipeline, or an iterable of samples.
        values: also keep the value of each item.

    Raises:
        UsageError: its items cannot be followed.
    """
    if isinstance(dataset, Mixture) or not isinstance(getattr(dataset, "pipeline", None), list):
        source = _trace_source(dataset, values=values)
        return source.stages[0], source.deciding
    traced = trace_stages(dataset.pipeline, values=values)
    result = copy.copy(dataset)
    result.pipeline = traced.stages
    result.silent = True
    return result, traced.deciding


def _trace_stage(stage: Any, *, values: bool) -> Any:
    if isinstance(stage, Batched):
        batched = copy.copy(stage)
        batched.collation_fn = _BatchTracer(stage.collation_fn if values else _drop_values)
        return batched
    if isinstance(stage, Unbatched):
        unbatched = copy.copy(stage)
        unbatched.rows = cast("Callable[[object], Iterable[object]]", _RowTracer(stage.rows if values else None))
        return unbatched
    if isinstance(stage, FilterFunction) and stage.f in _ONE_TO_ONE_FUNCTIONS:
        return TracedStage(stage) if values else PassItems(repr(stage))
    traced = next((traced for kind, traced in _TRACED.items() if isinstance(stage, kind)), None)
    if traced is not None:
        return traced(stage)
    if isinstance(stage, PassThroughStage):
        return stage
    if isinstance(stage, Cached | LMDBCached):
        raise UsageError(f"samples cannot be followed by their keys through {stage!r}, which keeps an order of its own")
    ours = isinstance(stage, Stage) and (stage.transparent or type(stage).begin is not Stage.begin)
    return TracedStage(stage) if ours else TracedFunction(stage)


def _drop_values(values: list[Any]) -> None:  # noqa: ARG001  in the place of a collation
    return None


class _BatchTracer:
    """Collates traced items.

    Args:
        collate: of the values; None keeps the list.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate

    def __call__(self, items: list[TracedItem]) -> TracedItem:
        values = [item.value for item in items]
        value = values if self.collate is None else collate_batch(self.collate, values, "batched")
        return TracedItem([source for item in items for source in item.sources], value)


class _RowTracer:
    """Takes traced batches apart.

    Args:
        rows: from a batch to its samples; None where values are not kept.
    """

    def __init__(self, rows: Callable[[Any], Iterable[Any]] | None) -> None:
        self.rows = rows

    def __call__(self, item: TracedItem) -> list[TracedItem]:
        if self.rows is None:
            return [TracedItem([source], None) for source in item.sources]
        rows = list(self.rows(item.value))
        if len(item.sources) == 1:
            return [TracedItem(item.sources, row) for row in rows]
        if len(item.sources) != len(rows):
            raise UsageError(
                f"keys cannot be followed where a batch of {len(item.sources)} samples is taken apart into "
                f"{len(rows)} items"
            )
        return [TracedItem([source], row) for source, row in zip(item.sources, rows, strict=True)]


class PassItems(Stage):
    """Gives what comes, in the place of a stage that makes one item of each.

    Args:
        replaced: that stage, as text.
    """

    transparent = True

    def __init__(self, replaced: str) -> None:
        self.replaced = replaced

    def flow(self, upstream: Iterator[Any], state: Any) -> Iterator[Any]:  # noqa: ARG002
        """Return the items."""
        return (item for item in upstream)

    def refetch(self, addresses: list[Address], fetch: Fetch, state: Any = None) -> list[Any]:  # noqa: ARG002
        """Return the input items."""
        return fetch(addresses)

    def __repr__(self) -> str:
        return self.replaced


class TracedReader(ReadShards):
    """A reader whose samples are traced items.

    Args:
        reader: reads them; without values, shards that have an index are not read.
        values: keep the samples.
    """

    def __init__(self, reader: ReadShards, *, values: bool) -> None:
        super().__init__(reader.reading)
        self.reader = reader if values else trace_by_index(reader)
        self.values = values

    def begin(self, run: Run) -> Any:
        """Return the reader's state."""
        return self.reader.begin(run)

    def for_stream(self, stream: StreamNumber) -> "TracedReader":
        """Return the reader of one stream, traced."""
        inner: Any = self.reader.for_stream(stream)
        return TracedReader(inner, values=self.values)

    def open_shards(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Open shards as the reader does."""
        return self.reader.open_shards(shards)

    def flow(self, upstream: Iterator[Any], state: Any) -> Iterator[Any]:
        """Yield traced items."""
        return (self._trace(sample) for sample in self.reader.flow(upstream, state))

    def fetch_from(self, shards: Iterable[dict[str, Any]], addresses: list[Any]) -> list[Any]:
        """Read the samples at some addresses once more."""
        return [self._trace(sample) for sample in self.reader.fetch_from(shards, addresses)]

    def _trace(self, sample: Any) -> TracedItem:
        source = _find_source(sample)
        if source is None:
            raise FlowError(f"{self.reader!r} gave a {type(sample).__name__} without __key__: it cannot be followed")
        return TracedItem((source,), sample if self.values else None)

    def __repr__(self) -> str:
        return repr(self.reader)


class TracedIterable:
    """Samples of an iterable as traced items.

    Args:
        source: gives dictionaries with ``__key__``.
        values: keep them.
    """

    def __init__(self, source: Iterable[Any], *, values: bool) -> None:
        self.source = source
        self.values = values

    def __iter__(self) -> Iterator[TracedItem]:
        for sample in self.source:
            source = _find_source(sample)
            if source is None:
                raise UsageError(
                    f"{type(self.source).__name__} gives a {type(sample).__name__} without '__key__', so that its "
                    "samples cannot be followed"
                )
            yield TracedItem((source,), sample if self.values else None)

    def __repr__(self) -> str:
        return repr(self.source)


class _SourceMatcher:
    """Finds the samples that an item was made of among those that a stage has taken.

    Args:
        stage: for messages.
        in_order: the stage makes each item of the one that it took last.
    """

    def __init__(self, stage: Any, *, in_order: bool) -> None:
        self.stage = stage
        self.in_order = in_order
        self.last: Sequence[SampleSource] = ()
        self.taken: dict[Any, Sequence[SampleSource]] = {}

    def feed(self, upstream: Iterable[TracedItem]) -> Iterator[Any]:
        """Yield the values of items, and take note of their sources."""
        for item in upstream:
            self.last = item.sources
            if not self.in_order:
                self._remember(item)
            yield item.value

    def _remember(self, item: TracedItem) -> None:
        source = _find_source(item.value)
        if source is None:
            return
        for name in (source, source.key):
            self.taken.pop(name, None)
            self.taken[name] = item.sources
        if len(self.taken) > _MOST_REMEMBERED:
            del self.taken[next(iter(self.taken))]

    def trace(self, value: Any) -> TracedItem:
        """Return an item that the stage has given.

        Raises:
            UsageError: it cannot be told what it was made of.
        """
        if self.in_order:
            return TracedItem(self.last, value)
        source = _find_source(value)
        if source is not None:
            found = self.taken.get(source) or self.taken.get(source.key)
            if found is not None:
                return TracedItem(found, value)
        raise UsageError(
            f"keys cannot be followed through {self.stage!r}: it is a stage of its own kind, and what it gives has no "
            "'__key__' of a sample that it took. Let it keep '__key__', or write it with map() or select()",
            stage=repr(self.stage),
        )


class TracedStage(Stage):
    """A stage of ours over traced items; its state is the stage's own.

    Args:
        stage: it.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.transparent = stage.transparent
        self.rewinds = stage.rewinds

    def begin(self, run: Run) -> Any:
        """Return the stage's state."""
        return self.stage.begin(run)

    def for_stream(self, stream: StreamNumber) -> "TracedStage":
        """Return the stage of one stream, traced."""
        return TracedStage(self.stage.for_stream(stream))

    def flow(self, upstream: Iterator[Any], state: Any) -> Iterator[Any]:
        """Yield traced items."""
        matcher = _SourceMatcher(self.stage, in_order=self.stage.transparent)
        for value in self.stage.flow(matcher.feed(upstream), state):
            yield matcher.trace(value)

    def refetch(self, addresses: list[Address], fetch: Fetch, state: Any = None) -> list[Any]:
        """Make the items at some addresses once more."""
        if isinstance(self.stage, ObservingFunction):
            return fetch(addresses)
        if self.stage.transparent:
            items: list[TracedItem] = fetch(addresses)
            values = self.stage.refetch(addresses, lambda _: [item.value for item in items], state)
            return [TracedItem(item.sources, value) for item, value in zip(items, values, strict=True)]
        matcher = _SourceMatcher(self.stage, in_order=False)
        values = self.stage.refetch(addresses, lambda wanted: list(matcher.feed(fetch(wanted))), state)
        return [matcher.trace(value) for value in values]

    def __repr__(self) -> str:
        return repr(self.stage)


class TracedPack(Pack):
    """A stage that packs the values of traced items; a row was made of the samples of all its pieces.

    Args:
        stage: packs the values.
    """

    def __init__(self, stage: Pack) -> None:
        vars(self).update(vars(stage))

    def blame(self, error: Exception, sample: object) -> Exception:
        """Return an error that says which value it is about."""
        return super().blame(error, cast("TracedItem", sample).value)

    def measure(self, sample: object) -> PackedSample:
        """Measure the value of an item."""
        return super().measure(cast("TracedItem", sample).value)._replace(sample=sample)

    def make_row(self, pieces: Sequence[Piece]) -> TracedItem:
        """Return a row of the values, and the samples of all pieces."""
        items = [cast("TracedItem", piece.content.sample) for piece in pieces]
        values = [
            piece._replace(content=piece.content._replace(sample=item.value))
            for piece, item in zip(pieces, items, strict=True)
        ]
        return TracedItem([source for item in items for source in item.sources], super().make_row(values))


class TracedBuckets(Bucketed):
    """A stage that puts traced items into buckets by their values.

    Args:
        stage: puts the values into buckets.
    """

    def __init__(self, stage: Bucketed) -> None:
        vars(self).update(vars(stage))

    def blame(self, error: Exception, sample: object) -> Exception:
        """Return an error that says which value it is about."""
        return super().blame(error, cast("TracedItem", sample).value)

    def find_bucket(self, sample: object) -> Hashable:
        """Return the bucket of the value of an item."""
        return super().find_bucket(cast("TracedItem", sample).value)

    def collate(self, samples: list[object]) -> TracedItem:
        """Return a batch of the values, and the samples of all items."""
        return _BatchTracer(super().collate)(cast("list[TracedItem]", samples))


# stages whose items are made of several, and are not told by the stage's own output
_TRACED: dict[type, Callable[..., Stage]] = {Pack: TracedPack, Bucketed: TracedBuckets}


class TracedFunction:
    """A stage of a user's own over traced items: anything that takes an iterator.

    Args:
        foreign: it.
    """

    def __init__(self, foreign: Any) -> None:
        self.foreign = foreign

    def __call__(self, upstream: Iterator[Any]) -> Iterator[Any]:
        """Yield traced items."""
        matcher = _SourceMatcher(self.foreign, in_order=False)
        run = getattr(self.foreign, "run", None) if not isinstance(self.foreign, type) else None
        call = self.foreign if run is None else run
        for value in call(matcher.feed(upstream)):
            yield matcher.trace(value)

    def __repr__(self) -> str:
        return repr(self.foreign)
