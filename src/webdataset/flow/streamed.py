"""What a pipeline is within one virtual stream: its stages, with the stream's share taken at the right place.

Flows in: the stages of a pipeline. Flows out: the same stages, and one more: right before shards are read, where a
pipeline reads shards; else right behind its source. Splitters stay, and pass everything on (see
:mod:`webdataset.ground.topology`). Never gives what would depend on who owns the stream, or would lose or repeat
samples: it is refused.
"""

from collections.abc import Sequence
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.topology import Stream
from webdataset.shards.directory import DirectoryShardList
from webdataset.shards.lists import ResampledShards, resampled_shards
from webdataset.shards.split import StreamItems, StreamShare
from webdataset.stages.base import Stage
from webdataset.stages.caching import Cached
from webdataset.stages.checking import CheckSamples
from webdataset.stages.disk_caching import LMDBCached
from webdataset.stages.mixing import Mixture
from webdataset.stages.reading import ReadShards


def streamed(stages: Sequence[Any], stream: Stream) -> tuple[list[Any], int]:
    """Return the stages of one stream, and how many of them draw alike in all streams.

    Args:
        stages: of the pipeline.
        stream: which stream.

    Raises:
        UsageError: a stage that cannot run in streams.
    """
    for stage in stages:
        _admit(stage)
    inner = [stage for stage in stages if not isinstance(stage, CheckSamples)]  # a stream may have no samples
    if not inner or isinstance(inner[0], Mixture | ResampledShards):  # these take the share, or draw, by themselves
        return _divided(inner, stream), 0
    sharing = [place for place, stage in enumerate(inner) if getattr(stage, "shares_streams", False)]
    if sharing:
        return _divided(inner, stream), sharing[0]
    reads = [place for place, stage in enumerate(inner) if isinstance(stage, ReadShards)]
    place = reads[0] if reads and reads[0] > 0 else 1
    share = StreamShare(stream) if reads else StreamItems(stream)
    return [*inner[:place], share, *_divided(inner[place:], stream)], place


def _divided(stages: Sequence[Any], stream: Stream) -> list[Any]:
    return [stage.divided(stream) if isinstance(stage, Stage) else stage for stage in stages]


def _admit(stage: Any) -> None:
    """Refuse a stage that cannot run in streams.

    Raises:
        UsageError: the stage, why, and what to do.
    """
    reason = _reason(stage)
    if reason:
        raise UsageError(f"an elastic dataset cannot hold {stage!r}: {reason}", stage=repr(stage))


def _reason(stage: Any) -> str | None:
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
