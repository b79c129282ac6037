"""Builds the stages of one virtual stream: those of the pipeline, with the stream's share taken at the right place.

The stage that takes the share stands right before shards are read, where a pipeline reads shards; else right after
its source. Where a stage joins neighbouring samples, the share is one of whole shards. Splitters stay, and pass
everything on (see :mod:`webdataset.core.distributed`).

Refuses every stage whose output would depend on the owner of the stream, or would lose or repeat samples.
"""

from collections.abc import Sequence
from typing import Any

from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import UsageError
from webdataset.shards.directory import DirectoryShardList
from webdataset.shards.lists import ResampledShards, resampled_shards
from webdataset.shards.split import StreamItems, StreamShare
from webdataset.stages.base import Stage
from webdataset.stages.checks import CheckSamples
from webdataset.stages.mix import Mixture
from webdataset.stages.read_shards import ReadShards
from webdataset.stages.sample_cache import Cached, LMDBCached


def stages_of_stream(
    stages: Sequence[object], stream: StreamNumber, *, known: bool = False, whole: bool = False
) -> tuple[list[Any], int]:
    """Return the stages of one stream, and how many of them draw alike in all streams.

    Args:
        stages: of the pipeline.
        stream: whose share is taken.
        known: another stream has run them, so that they need not be checked.
        whole: no shard is shared out by samples.

    Raises:
        UsageError: a stage that cannot run in streams.
    """
    for stage in () if known else stages:
        _check_stage(stage)
    inner = [stage for stage in stages if not isinstance(stage, CheckSamples)]  # a stream may have no samples
    if not inner or isinstance(inner[0], Mixture | ResampledShards):  # these take the share, or draw, by themselves
        return _divide_stages(inner, stream), 0
    sharing = [place for place, stage in enumerate(inner) if getattr(stage, "shares_streams", False)]
    if sharing:
        return _divide_stages(inner, stream), sharing[0]
    reads = [place for place, stage in enumerate(inner) if isinstance(stage, ReadShards)]
    place = reads[0] if reads and reads[0] > 0 else 1
    share = StreamShare(stream, whole=whole) if reads else StreamItems(stream, whole=whole)
    return [*inner[:place], share, *_divide_stages(inner[place:], stream)], place


def _divide_stages(stages: Sequence[object], stream: StreamNumber) -> list[Any]:
    return [stage.for_stream(stream) if isinstance(stage, Stage) else stage for stage in stages]


def _check_stage(stage: object) -> None:
    """Refuse a stage that cannot run in streams."""
    reason = _find_objection(stage)
    if reason:
        raise UsageError(f"an elastic dataset cannot hold {stage!r}: {reason}", stage=repr(stage))


def _find_objection(stage: object) -> str | None:
    if isinstance(stage, DirectoryShardList):
        return "who claims a shard depends on timing; name the shards in a list"
    if getattr(stage, "f", stage) is resampled_shards:
        return "it draws from the operating system; say resampled=True, or begin with ResampledShards"
    if isinstance(stage, Cached | LMDBCached):
        return "it keeps one order of samples, and each stream has its own; cache shards with cache_dir= instead"
    if getattr(stage, "rng", None) is not None:
        return "its generator would be shared by all streams; give it seed= instead, or nothing"
    if hasattr(stage, "num_workers") and hasattr(stage, "dataset"):
        return "a loader divides its dataset itself; make the dataset that it loads elastic"
    return None
