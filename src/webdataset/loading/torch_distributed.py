"""Compares the ranks of a job, and gives equally many batches on all of them.

``check_ranks`` compares a rank's fingerprint (seed, shards, stages, the order of shards before the split) with those of
the others, in one collective; the error names what differs and on which rank. Shards are listed, none is opened.

Theory of equal steps. Before each step (or each ``every`` steps) the ranks exchange how many batches they have ready:
one number each, in one collective. All give the fewest (drop) or the most (pad) of them. A rank whose loader raises
says so in the same collective, so that the others raise too and never wait for it.
"""

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

from webdataset.caching.names import object_key
from webdataset.core.distributed import worker_context
from webdataset.core.errors import FlowError, UsageError, WebDatasetError
from webdataset.core.optional_imports import require
from webdataset.flow.elastic_state import held_states
from webdataset.flow.fingerprint import fingerprint
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import Bounds, Flow, expand_stages, item_bound
from webdataset.shards.directory import DirectoryShardList
from webdataset.shards.lists import ResampledShards
from webdataset.shards.split import single_node_only
from webdataset.stages.base import Json, Run
from webdataset.stages.mix import Mixture
from webdataset.stages.read_shards import ReadShards

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# shards whose order is compared
_MAX_SHARDS = 1_000_000


def compute_rank_fingerprint(dataset: object) -> dict[str, object]:
    """Return what decides which samples a rank gives; equal on all ranks where they are set up alike.

    Raises:
        UsageError: neither.
    """
    pipeline, loader = _find_pipeline(dataset)
    described = fingerprint(pipeline.pipeline, Bounds(pipeline.repetitions, item_bound(pipeline)))
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
        "ranks": worker_context().world_size,
    }
    found["order of shards before they are shared out"] = _digest_shard_order(
        pipeline, replace(run, seed=common, common=common)
    )
    return {**found, **{f"stage {number}": stage for number, stage in enumerate(stages)}}


def _find_pipeline(dataset: object) -> tuple[DataPipeline, object]:
    """Return the pipeline that reads shards, and the loader over it where there is one."""
    loader = None
    while True:
        inner = dataset.pipeline[0] if isinstance(dataset, DataPipeline) and dataset.pipeline else None
        # a loader as a stage
        inner = getattr(inner, "loader", inner)
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


def _pass_all(shards: Iterable[object]) -> Iterator[object]:
    return iter(shards)


_pass_all.splits = True  # type: ignore[attr-defined]


def _digest_shard_order(pipeline: DataPipeline, run: Run) -> str:
    """Return a digest of the shards in the order in which they come to the first split in the next epoch."""
    flat = expand_stages(pipeline.pipeline)
    if not flat or isinstance(flat[0], Mixture | ResampledShards | DirectoryShardList):
        return "drawn by each worker"
    ends = (
        number
        for number, stage in enumerate(flat)
        if number and (isinstance(stage, ReadShards) or getattr(stage, "splits", False) or stage is single_node_only)
    )
    before = flat[: next(ends, len(flat))]
    digest = hashlib.blake2b(digest_size=8)
    with Flow([*copy.deepcopy(before), _pass_all], run) as flow:
        for shard in islice(flow, _MAX_SHARDS):
            url = str(shard.get("url") if isinstance(shard, dict) else shard)
            digest.update(object_key(url).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def is_split_between_ranks(dataset: object) -> bool:
    """Tell whether ranks read different samples: something shares out, or each draws its own."""
    pipeline, _ = _find_pipeline(dataset)
    if getattr(pipeline, "streams", None) or pipeline.evenness is not None:
        return True
    flat = expand_stages(pipeline.pipeline)
    if not flat or isinstance(flat[0], Mixture | ResampledShards | DirectoryShardList):
        return True
    reader = next((number for number, stage in enumerate(flat) if isinstance(stage, ReadShards)), len(flat))
    ours = {"split_by_worker", "single_node_only"}
    return any(
        getattr(stage, "splits", False) or not hasattr(stage, "flow")
        for stage in flat[1:reader]
        if getattr(stage, "__name__", "") not in ours
    )


_FAILED = -1
# of an epoch that is continued, which is no fault
_NOTHING_LEFT = -2


class _StatefulLoader(Protocol):
    """A loader whose epochs are numbered, with a state."""

    def set_epoch(self, epoch: int) -> object:
        """Choose the number of the next epoch."""

    def state_dict(self) -> dict[str, Json]:
        """Return the state after the batch received last."""

    def load_state_dict(self, state: Mapping[str, Json]) -> object:
        """Continue after a state."""


class EqualSteps:
    """The batches of a loader, equally many on all ranks; see :func:`equal_steps`.

    Its state, and that of the loader, is the state after the batch that it gave last, however many it holds.

    Args:
        loader: what gives the batches.
        how: ``drop`` or ``pad``.
        every: batches between two words with the other ranks.
        group: a process group; None for the default one.
    """

    def __init__(self, loader: Iterable[object], how: str, every: int, group: "ProcessGroup | None") -> None:
        self.loader = loader
        self.how = how
        self.every = every
        self._distributed = require("torch.distributed", extra="torch", purpose="equal_steps")
        self._group = group
        # a group of ours, where the default one has no tensors of the CPU
        self._own: ProcessGroup | None = None
        # the loader's states after each of the batches that are held, and how many of these were given
        self._states: list[dict[str, Json]] = []
        self._given = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch.

        Args:
            epoch: from 0.
        """
        cast("_StatefulLoader", self.loader).set_epoch(epoch)

    def state_dict(self) -> dict[str, Json]:
        """Return the state of the loader after the batch that was given last."""
        if self._states:
            return self._states[min(self._given, len(self._states)) - 1]
        return cast("_StatefulLoader", self.loader).state_dict()

    def load_state_dict(self, state: Mapping[str, Json]) -> None:
        """Let the loader continue after a state.

        Args:
            state: what ``state_dict`` of this or of the loader returned, or the merged one of all ranks.
        """
        cast("_StatefulLoader", self.loader).load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches.

        Raises:
            FlowError: another rank has failed, or some rank has no batch at all in a whole epoch; the message names it.
        """
        resumed = _has_loaded_state(self.loader)
        batches = iter(self.loader)
        first: object = None
        given = 0
        try:
            while True:
                ready = self._ready(batches)
                if given == 0 and ready:
                    first = ready[0]
                counts = self._exchange_counts(len(ready) or (_NOTHING_LEFT if resumed else 0))
                self._check(counts, given)
                counts = [max(count, 0) for count in counts]
                if not given and self.how == "pad":
                    first = self._share_first(first, counts)
                many = min(counts) if self.how == "drop" else max(counts)
                last = min(counts) < self.every if self.how == "drop" else many < self.every
                ready += [_pad_batch(first) for _ in range(many - len(ready))]
                for self._given, batch in enumerate(ready[:many], 1):
                    given += 1
                    yield batch
                if last:
                    return
        finally:
            self._hold(())
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _ready(self, batches: Iterator[object]) -> list[object]:
        """Return the next batches; tell the others where that fails."""
        self._hold(())
        found, states = [], []
        try:
            for batch in islice(batches, self.every):
                found.append(batch)
                if self.every > 1 and (state := _find_state(self.loader)) is not None:
                    states.append(state)
        except Exception:  # whatever it is: the others must not wait for this rank
            self._exchange_counts(_FAILED)
            raise
        self._hold(states)
        return found

    def _hold(self, states: Iterable[dict[str, Json]]) -> None:
        """Let the loader's state be that of the batch given last, while batches are held; without states, its own."""
        self._states, self._given = [*states], 0
        ask = self.state_dict if self._states else None
        # of a WebLoader, also torch's loader in it, which its dataset asks
        inner = self.loader.pipeline[:1] if isinstance(self.loader, DataPipeline) else ()
        # others have no state that could run ahead, and may be lists, which cannot be weakly referred to
        for loader in (each for each in (self.loader, *inner) if hasattr(each, "state_dict")):
            if ask is None:
                held_states.pop(loader, None)
            else:
                held_states[loader] = ask

    def _exchange_counts(self, count: int) -> list[int]:
        """Tell all ranks a number; return those of all."""
        distributed = self._distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return [count]
        torch = require("torch", extra="torch", purpose="equal_steps")
        group = self._cpu_group()
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size(group=group))]
        distributed.all_gather(counts, torch.tensor([count], dtype=torch.int64), group=group)
        return [int(number) for number in counts]

    def _share_first(self, first: object, counts: list[int]) -> object:
        """Return a rank's first batch; where a rank has nothing left of an epoch that is continued, that of another."""
        if min(counts) or not max(counts):
            return first
        distributed, group = self._distributed, self._cpu_group()
        source = next(rank for rank, count in enumerate(counts) if count)
        sender = source if group is None else distributed.get_global_rank(group, source)
        batch = [first]
        distributed.broadcast_object_list(batch, src=sender, group=group)
        return batch[0] if first is None else first

    def _cpu_group(self) -> "ProcessGroup | None":
        distributed = self._distributed
        if "gloo" in str(distributed.get_backend(group=self._group)):
            return self._group
        if self._own is None:
            ranks = None if self._group is None else distributed.get_process_group_ranks(self._group)
            self._own = distributed.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)
        return self._own

    def _check(self, counts: list[int], given: int) -> None:
        failed = [rank for rank, count in enumerate(counts) if count == _FAILED]
        if failed:
            raise FlowError(f"the loader of {_format_ranks(failed)} failed after {given} batches: see the error there")
        without = [rank for rank, count in enumerate(counts) if count == 0]
        if without and not given and max(counts) > 0:
            raise FlowError(
                f"{_format_ranks(without)} of {len(counts)} gave no batch at all: fewer shards than workers, or "
                "smaller ones "
                "than a batch. Pass nodesplitter=wds.split_by_sample, or partial=True to batched()"
            )

    def __repr__(self) -> str:
        return f"equal_steps({self.loader!r}, {self.how!r}, every={self.every})"


def _has_loaded_state(loader: object) -> bool:
    """Tell whether a loader, or its dataset, continues after a state."""
    # torchdata's StatefulDataLoader keeps a state that was loaded under this name
    if getattr(loader, "next_iter_state", None) is not None:
        return True
    dataset = getattr(loader, "dataset", None)
    for owner, name in ((loader, "continues_state"), (loader, "resumes"), (dataset, "continues_state")):
        if (ask := getattr(owner, name, None)) is not None:
            return bool(ask())
    return False


def _find_state(loader: object) -> dict[str, Json] | None:
    """Return the state of a loader that has one."""
    try:
        return cast("_StatefulLoader", loader).state_dict()
    except (AttributeError, WebDatasetError):
        return None


def _format_ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _pad_batch(batch: object) -> object:
    return {**batch, "__pad__": True} if isinstance(batch, dict) else batch


def equal_steps(
    loader: Iterable[object], how: str = "drop", *, every: int = 1, group: "ProcessGroup | None" = None
) -> EqualSteps:
    """Give equally many batches on every rank, by one small collective before each step.

    For datasets of unknown length, or with filters; where the numbers of samples are known, ``dataset.equal_epochs()``
    needs no words at all. All ranks must iterate it, in the process that torch.distributed was initialised in; without
    torch.distributed it gives what the loader gives.

    Args:
        loader: a loader, or anything else that can be iterated.
        how: ``drop`` stops where the first rank has no batch left; ``pad`` continues to the last one: ranks that have
            none left give their first batch again (with ``__pad__``, where it is a dict).
        every: batches between two collectives; so many batches are held at a time.
        group: a process group; None for the default one.

    Raises:
        UsageError: arguments that cannot mean anything.
        MissingExtra: torch is not installed.
    """
    if how not in ("drop", "pad"):
        raise UsageError(f"equal_steps(…, {how!r}): there are 'drop' and 'pad'")
    if every < 1:
        raise UsageError(f"every={every!r}: at least one batch")
    return EqualSteps(loader, how, every, group)


_ORDER = "order of shards before they are shared out"
_WAYS_OUT = {
    "seed": "give all ranks the same seed=",
    "urls": "give all ranks the same list of shards in the same order (sort what a folder listing gives)",
    "shards": "give all ranks the same list of shards",
    _ORDER: (
        "a shuffle before the split draws differently: give the dataset a seed=, or put the shuffle after the split"
    ),
    "ranks": "one process does not know of the others: set WDS_RANK and WDS_WORLD_SIZE, or unset RANK and WORLD_SIZE",
    "workers": "use the same num_workers on all ranks",
    "epoch": "call set_epoch on all ranks alike",
}
_MAX_SHOWN = 60


def check_ranks(dataset: object, *, same_samples: bool = False, group: "ProcessGroup | None" = None) -> None:
    """Compare a dataset between all ranks, and raise on all of them where it is not set up alike.

    Call it on every rank, before the first epoch, in the process that torch.distributed was initialised in. Shards are
    listed, none is opened. Without torch.distributed it does nothing.

    Args:
        dataset: a dataset, or a loader over one.
        same_samples: all ranks are meant to read all samples (``nodesplitter=None``).
        group: a process group; None for the default one.

    Raises:
        UsageError: ranks differ in seed, shards, stages, workers, the order before a split, …; or all would read the
            same shards; the message says what differs on which rank, and what to do.
        MissingExtra: torch is not installed.
    """
    distributed = require("torch.distributed", extra="torch", purpose="check_ranks")
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    world, own = distributed.get_world_size(group=group), distributed.get_rank(group=group)
    found: list[dict[str, object]] = [{}] * world
    distributed.all_gather_object(found, _describe_rank(dataset, own, world, whole=group is None), group=group)
    failed = {rank: facts["error"] for rank, facts in enumerate(found) if "error" in facts}
    if failed:
        raise UsageError("; ".join(f"rank {rank}: {error}" for rank, error in failed.items()))
    differing = [
        line
        for name in _select_names(found)
        if (line := _describe_difference(name, [facts.get(name) for facts in found]))
    ]
    if differing:
        raise UsageError(f"the {world} ranks are not set up alike: {'; '.join(differing)}")
    if world > 1 and not same_samples and not all(facts["shared"] for facts in found):
        raise UsageError(
            f"all {world} ranks would read the same {found[0]['shards']} shards, as nothing shares them out: pass "
            "nodesplitter=wds.split_by_node (in a DataPipeline: put wds.split_by_node after the list of shards), or "
            "same_samples=True where it is meant so"
        )


def _describe_rank(dataset: object, own: int, world: int, *, whole: bool) -> dict[str, object]:
    """Return what a rank says of itself; an error is said too, so that no rank waits for it."""
    try:
        where = worker_context()
        if whole and (where.rank, where.world_size) != (own, world):
            return {"error": f"torch.distributed says {own} of {world}, and the dataset sees {where.rank} of "
                             f"{where.world_size}: {_WAYS_OUT['ranks']}"}  # fmt: skip
        return {**compute_rank_fingerprint(dataset), "shared": is_split_between_ranks(dataset)}
    except Exception as error:  # noqa: BLE001  whatever a source of the user's raised: all ranks are to hear of it
        return {"error": f"{type(error).__name__}: {error}"}


def _select_names(found: list[dict[str, object]]) -> list[str]:
    """Return what is compared; where the shards are others, so is their order."""
    names = dict.fromkeys(name for facts in found for name in facts)
    if len({facts["urls"] for facts in found}) > 1:
        del names[_ORDER]
    return list(names)


def _describe_difference(name: str, values: list[object]) -> str:
    """Return a line on one part, where it is not the same on all ranks."""
    if all(value == values[0] for value in values):
        return ""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(str(value)[:_MAX_SHOWN], []).append(rank)
    shown = ", ".join(
        f"{value} on rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"
        for value, ranks in by_value.items()
    )
    advice = _WAYS_OUT.get(name)
    return f"{name}: {shown}" + (f" ({advice})" if advice else "")
