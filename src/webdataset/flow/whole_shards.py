"""Checks that stages which join neighbouring samples get the samples of whole shards, in their order.

``interleaved`` and ``sibling_fields`` put the samples of one document together, which stand next to each other in a
shard. A stage says so by a true attribute ``needs_whole_shards``; a user's stage or generator function may have it,
too. In an elastic dataset each stream of such a pipeline reads whole shards (see :mod:`webdataset.flow.stream_stages`).

A stage that gives samples in another order says so by a true attribute ``reorders``. Between the reader and a stage
that joins, it would tear documents without an error, as would a share of single samples. Both are refused: while the
pipeline is built, or, where it follows from the number of workers, when it runs (``Run.whole_shards``).
"""

from collections.abc import Iterator, Sequence

from webdataset.core.errors import UsageError
from webdataset.flow.run import expand_stages
from webdataset.shards.split import split_by_sample
from webdataset.stages.mix import Mixture
from webdataset.stages.read_shards import ReadShards
from webdataset.stages.sharding import EqualShare


def check_whole_shards(stages: Sequence[object]) -> None:
    """Refuse a pipeline in which a stage that joins neighbouring samples would get them apart.

    Args:
        stages: of the pipeline.

    Raises:
        UsageError: it names both stages, and says where to put them.
    """
    flat = expand_stages(stages)
    for place, stage in enumerate(flat):
        if not getattr(stage, "needs_whole_shards", False):
            continue
        reason = next(_find_reasons(flat[:place]), None)
        if reason is not None:
            raise UsageError(
                f"{stage!r} joins samples that stand next to each other in a shard, and {reason}", stage=repr(stage)
            )


def _find_reasons(before: Sequence[object]) -> Iterator[str]:
    """Yield what the stages before one do that keeps neighbours apart, and what to write."""
    readers = [place for place, stage in enumerate(before) if isinstance(stage, ReadShards)]
    reader = readers[-1] if readers else 0
    yield from filter(None, map(_describe_share, before[:reader]))
    for stage in before[reader:]:
        if getattr(stage, "reorders", False):
            yield f"{stage!r} before it gives them in another order: put it after the stage that joins them"
    if before and not readers:
        for inside in _list_pipelines(before[0]):
            yield from _find_reasons(expand_stages(inside))


def _describe_share(stage: object) -> str | None:
    """Return what is wrong with a stage between the list of shards and the reader: it shares out single samples."""
    if stage is split_by_sample:
        return (
            "split_by_sample shares the samples of a shard out between workers: write nodesplitter=wds.split_by_node, "
            "which shares out whole shards"
        )
    if isinstance(stage, EqualShare):
        return f"{stage!r} cuts shards: write with_epoch(n) in place of equal_epochs()"
    return None


def _list_pipelines(source: object) -> Iterator[list[object]]:
    """Yield the stages of the datasets that a source reads, where it reads any."""
    for dataset in source.datasets if isinstance(source, Mixture) else [source]:
        stages = getattr(dataset, "pipeline", None)
        if isinstance(stages, list):
            yield stages
