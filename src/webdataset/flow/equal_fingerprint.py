"""What all ranks of a job must have in common, as a small value that they can compare.

Flows in: a dataset, or a loader over one. Flows out: names and short values: seed, shards, stages, the order in which
shards are about to be shared out. Shards are listed, none is opened.
"""

import copy
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from webdataset.caching.identity import same_object
from webdataset.ground.errors import UsageError
from webdataset.ground.topology import place
from webdataset.shards.directory import DirectoryShardList
from webdataset.shards.lists import ResampledShards
from webdataset.shards.split import single_node_only
from webdataset.stages.mixing import Mixture
from webdataset.stages.reading import ReadShards

from .describing import description
from .looping import Bounds, item_bound
from .pipeline import DataPipeline
from .running import Flow, steps

_MOST = 1_000_000  # shards whose order is compared


def fingerprint(dataset: Any) -> dict[str, Any]:
    """Return what decides which samples a rank gives; equal on all ranks where they are set up alike.

    Args:
        dataset: a pipeline, or a loader over one.

    Raises:
        UsageError: neither.
    """
    pipeline, loader = _pipeline(dataset)
    described = description(pipeline.pipeline, Bounds(pipeline.repetitions, item_bound(pipeline)))
    stages = described.pop("stages")
    run = pipeline._begin()  # noqa: SLF001  the seed of its next run
    common = run.seed if run.common is None else run.common
    found = {
        "seed": pipeline.seed if pipeline.seed is not None else "none",
        "epoch": run.epoch,
        "streams": getattr(pipeline, "streams", "none"),
        "equal epochs": str(pipeline.evenness or "none"),
        **described,
        "workers": getattr(loader, "num_workers", getattr(loader, "workers", "none")),
        "batch size": str(getattr(loader, "batch_size", None)),
        "ranks": place().world_size,
    }
    found["order of shards before they are shared out"] = _order(pipeline, replace(run, seed=common, common=common))
    return {**found, **{f"stage {number}": stage for number, stage in enumerate(stages)}}


def _pipeline(dataset: Any) -> tuple[DataPipeline, Any]:
    """Return the pipeline that reads shards, and the loader over it where there is one."""
    loader = None
    while True:
        inner = dataset.pipeline[0] if isinstance(dataset, DataPipeline) and dataset.pipeline else None
        inner = getattr(inner, "loader", inner)  # a loader as a stage
        if inner is not None and hasattr(inner, "dataset") and hasattr(inner, "num_workers"):
            dataset = inner
        elif not isinstance(dataset, DataPipeline) and hasattr(dataset, "dataset"):
            loader, dataset = dataset if loader is None else loader, dataset.dataset
        elif not isinstance(dataset, DataPipeline) and hasattr(dataset, "loader"):
            dataset = dataset.loader
        elif isinstance(dataset, DataPipeline):
            return dataset, loader
        else:
            raise UsageError(f"expected a dataset, or a loader over one, and {type(dataset).__name__} is neither")


def _everybody(shards: Iterable[Any]) -> Iterator[Any]:
    return iter(shards)


_everybody.splits = True  # type: ignore[attr-defined]


def _order(pipeline: DataPipeline, run: Any) -> str:
    """Return a digest of the shards in the order in which they come to the first split in the next epoch."""
    flat = steps(pipeline.pipeline)
    if not flat or isinstance(flat[0], Mixture | ResampledShards | DirectoryShardList):
        return "drawn by each worker"
    ends = (
        number
        for number, stage in enumerate(flat)
        if number and (isinstance(stage, ReadShards) or getattr(stage, "splits", False) or stage is single_node_only)
    )
    before = flat[: next(ends, len(flat))]
    digest = hashlib.blake2b(digest_size=8)
    with Flow([*copy.deepcopy(before), _everybody], run) as flow:
        for shard in islice(flow, _MOST):
            url = str(shard.get("url") if isinstance(shard, dict) else shard)
            digest.update(same_object(url).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def shares_between_ranks(dataset: Any) -> bool:
    """Tell whether ranks read different samples: something shares out, or each draws its own.

    Args:
        dataset: a pipeline, or a loader over one.
    """
    pipeline, _ = _pipeline(dataset)
    if getattr(pipeline, "streams", None) or pipeline.evenness is not None:
        return True
    flat = steps(pipeline.pipeline)
    if not flat or isinstance(flat[0], Mixture | ResampledShards | DirectoryShardList):
        return True
    reader = next((number for number, stage in enumerate(flat) if isinstance(stage, ReadShards)), len(flat))
    ours = {"split_by_worker", "single_node_only"}
    return any(
        getattr(stage, "splits", False) or not hasattr(stage, "flow")
        for stage in flat[1:reader]
        if getattr(stage, "__name__", "") not in ours
    )
