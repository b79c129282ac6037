"""Checks the arguments of a loader, and what all its workers together gave in an epoch.

A worker's own share may rightly be empty, so only the sum of all can be judged (:mod:`webdataset.flow.outcomes`).
"""

import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import FlowError, UsageError, check_keywords
from webdataset.core.tracebacks import warn_user
from webdataset.core.upstream_utils import check_flags
from webdataset.flow.outcomes import StageOutcome, judge_outcomes, merge_outcomes
from webdataset.flow.pass_checks import counts_once, warn_of_length
from webdataset.flow.pipeline import DataPipeline
from webdataset.loading.batching import BatchMaker
from webdataset.loading.partition import DatasetAdapter, EpochStart
from webdataset.stages.argument_checks import read_count
from webdataset.stages.base import Json
from webdataset.stages.batch import Batched

if TYPE_CHECKING:
    from webdataset.loading.torch_device import DevicePrefetcher


@dataclass
class EpochEnd:
    """What is known at the end of an epoch."""

    origin: DatasetAdapter
    beginning: EpochStart
    outcomes: list[StageOutcome]
    batching: BatchMaker | None = None

    def judge(self, samples: int) -> None:
        """Raise or warn where the epoch gave nothing, or where one stage dropped all samples.

        Raises:
            NoSamples: what a run of one process raises.
        """
        found = merge_outcomes(self.outcomes)
        batching, left_out = self.batching, 0 if self.batching is None else self.batching.left_out
        if batching is not None and left_out and not samples and not _count_before(self.beginning):
            warn_user(
                f"drop_last=True left out all {left_out} samples of this epoch: they are fewer than the batch of "
                f"{batching.size}; make batches smaller, or pass drop_last=False"
            )
        if not _count_before(self.beginning):
            judge_outcomes(found, whole=_is_whole_pass(self.beginning))
        if not samples and all(each.gave or not each.dropped for each in found):
            self.origin.check(self.beginning)


def compare_length(dataset: object, beginning: EpochStart, samples: int) -> None:
    """Warn where a dataset declares another length than an epoch had, the samples before a resume included."""
    if not isinstance(dataset, DataPipeline) or dataset.silent:
        return
    declared = getattr(dataset, "size", None)
    if declared is not None and _is_whole_pass(beginning) and counts_once(dataset):
        warn_of_length(dataset, declared, _count_before(beginning) + samples)


def _count_before(beginning: EpochStart) -> int:
    """Return how many samples came before the epoch was resumed."""
    return 0 if beginning.state is None else int(beginning.state["received"])


def _is_whole_pass(beginning: EpochStart) -> bool:
    """Tell whether the workers of one loader read all of a pass."""
    return beginning.place.world_size * beginning.place.num_workers == 1


EXACT, READY = "exact", "ready"
# batches that samples may come early by, where nothing else is said
_MOST_EARLY = 64
# of torch's DataLoader
_INSTEAD = {
    "num_workers": "write workers=",
    "collate_fn": "write collate=",
    "prefetch_factor": "write prefetch=",
    "multiprocessing_context": "write start_method=",
    "shuffle": "the dataset shuffles: WebDataset(urls, shardshuffle=100).shuffle(1000)",
    "sampler": "the dataset decides the order; torch's DataLoader takes a sampler, and a wds.IndexedDataset",
    "batch_sampler": "the dataset decides the order; torch's DataLoader takes a sampler, and a wds.IndexedDataset",
    "persistent_workers": "workers always stay for the next epoch",
    "worker_init_fn": "workers learn rank, worker and seed from the dataset",
}


def check_arguments(
    batch_size: int | None, workers: int, mode: str, prefetch: int | None, *, unknown: Iterable[str], loader: type
) -> None:
    """Refuse numbers that no loader has, and arguments that it does not have.

    Raises:
        UsageError: it names the argument.
        TypeError: an unknown argument; it says what to write in place of torch's.
    """
    if unknown:
        known = signature(loader).parameters.keys() - {"unknown"}
        check_keywords(loader.__name__, unknown, sorted(known), _INSTEAD)
    for name, count in {"workers": workers, "prefetch": prefetch, "batch_size": batch_size}.items():
        if not isinstance(count, SupportsIndex) and (count is not None or name == "workers"):
            raise UsageError(f"{name}={count!r}: a whole number")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size={batch_size!r}: a batch holds at least one sample; None makes no batches")
    if workers < 0:
        raise UsageError(f"workers={workers!r}: 0 loads in this thread, n in n threads or processes")
    if mode not in ("threads", "processes"):
        raise UsageError(f"mode={mode!r}: there are 'threads' and 'processes'")
    if prefetch is not None and prefetch < 0:
        raise UsageError(f"prefetch={prefetch!r}: batches that workers may be ahead by, at least 0")


def check_options(
    dataset: object, workers: int, collate: object, start_method: str | None, prefetch_bytes: float
) -> int:
    """Refuse what cannot mean anything, and would fail with the first batch or in a worker.

    Args:
        dataset: no urls, no class, no dictionary without numbers, and for several workers no iterator.
        workers: their number.
        collate: a function, or None.
        start_method: of processes, or None for Python's choice.
        prefetch_bytes: bytes; programs compute them, so that some are floats.

    Returns:
        The bytes, a whole number.

    Raises:
        UsageError: it says what to write.
    """
    if isinstance(dataset, str | bytes | os.PathLike | type):
        refuse_names(dataset, "Loader")
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise UsageError("samples are read by number, and this dictionary has no 0: give list(samples.values())")
    if workers > 1 and isinstance(dataset, Iterator) and not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"{type(dataset).__name__} is an iterator, which several workers cannot share: "
            "pass what it iterates over, or workers=1"
        )
    if collate is not None and not callable(collate):
        raise UsageError(
            f"collate={reprlib.repr(collate)}: it makes a batch of a list of samples: write collate=function, or "
            "leave it out to join arrays"
        )
    size_bytes = prefetch_bytes if isinstance(prefetch_bytes, int) else read_count(prefetch_bytes, "prefetch_bytes")
    if size_bytes < 0:
        raise UsageError(
            f"prefetch_bytes={prefetch_bytes!r}: bytes of batches ahead, at least 0: 1 << 30 is a gigabyte"
        )
    if start_method is not None:
        import multiprocessing  # noqa: PLC0415  only where it is named

        known = multiprocessing.get_all_start_methods()
        if start_method not in known:
            raise UsageError(f"start_method={start_method!r}: this system has {', '.join(known)}")
    return size_bytes


def refuse_names(dataset: object, call: str) -> None:
    """Refuse the name of a shard, or a class, in the place of a dataset.

    Args:
        dataset: what was given.
        call: the loader's name.

    Raises:
        UsageError: it says what to write.
    """
    if isinstance(dataset, str | bytes | os.PathLike):
        raise UsageError(
            f"{call}({str(dataset)[:60]!r}): a loader reads a dataset, not urls: "
            f"write wds.{call}(wds.WebDataset(urls).decode())"
        )
    if isinstance(dataset, type):
        raise UsageError(f"{call} takes a dataset, not its class: write wds.{call}({dataset.__name__}(…))")


def check_data_loader(
    kind: Callable[..., object], stream: type, arguments: tuple[object, ...], options: Mapping[str, object]
) -> None:
    """Refuse arguments of torch's DataLoader that fail when it is iterated, or in one of its workers.

    Args:
        kind: torch's class.
        stream: torch's class of datasets without numbers.
        arguments: by place.
        options: by name; those that torch does not have are left to it.

    Raises:
        UsageError: it names the argument.
    """
    try:
        given = signature(kind).bind_partial(*arguments, **options).arguments
    except TypeError:
        return  # torch says it in the same words
    if "dataset" in given:
        dataset = given["dataset"]
        refuse_names(dataset, "WebLoader")
        if not isinstance(dataset, stream) and not any(map(partial(hasattr, dataset), ("__getitem__", "__getitems__"))):
            raise UsageError(
                f"torch's DataLoader reads a dataset, not {reprlib.repr(dataset)}: write wds.WebLoader(dataset), and "
                "wds.WebLoader(wds.FluidWrapper(samples)) for any other iterable"
            )
        if isinstance(dataset, stream):
            _check_stream(dataset, given)
    for name, takes in {"collate_fn": "a list of samples", "worker_init_fn": "a worker's number"}.items():
        if given.get(name) is not None and not callable(given[name]):
            raise UsageError(f"{name}={reprlib.repr(given[name])}: a function of {takes}: write {name}=function")
    flags = ("shuffle", "drop_last", "pin_memory", "persistent_workers")
    check_flags(**{name: given[name] for name in flags if name in given})
    for name in ("batch_size", "num_workers", "prefetch_factor"):
        if given.get(name) is not None and not isinstance(given[name], SupportsIndex):
            raise UsageError(f"{name}={given[name]!r}: a whole number")
    if not isinstance(given.get("timeout", 0), SupportsFloat):
        raise UsageError(f"timeout={given['timeout']!r}: seconds to wait for a batch; 0 waits as long as it takes")


def _check_stream(dataset: object, given: Mapping[str, object]) -> None:
    """Refuse what torch does not do with a stream; warn where batches would be batched again."""
    if given.get("shuffle") is True:
        raise UsageError(
            "shuffle=True: torch shuffles datasets with numbered samples only; a stream shuffles itself: "
            "WebDataset(urls, shardshuffle=100).shuffle(1000)"
        )
    last = dataset.pipeline[-1] if isinstance(dataset, DataPipeline) and dataset.pipeline else None
    if isinstance(last, Batched) and "batch_size" not in given and "batch_sampler" not in given:
        warn_user(
            f"the dataset makes batches ({last}), and torch's batch_size=1 puts each into a batch of one: "
            "pass batch_size=None"
        )


def check_restarts(origin: DatasetAdapter, max_restarts: int, timeout: float | None, *, processes: bool) -> None:
    """Refuse restarts and timeouts where no worker can be killed, and restarts that would lose samples.

    Raises:
        UsageError: it says what to write.
    """
    if not isinstance(max_restarts, SupportsIndex) or max_restarts < 0:
        raise UsageError(f"max_restarts={max_restarts!r}: how often workers are started again, at least 0")
    if timeout is not None and not (isinstance(timeout, SupportsFloat) and float(timeout) > 0):
        raise UsageError(f"timeout={timeout!r}: seconds without a sample of a worker, more than 0; None waits")
    if not processes:
        name = "max_restarts" if max_restarts else "timeout"
        raise UsageError(f"{name}= is for worker processes, which can be killed: mode='processes', workers=2")
    if max_restarts and not origin.elastic:
        raise UsageError(
            "max_restarts= needs a state to continue from, so that no sample is lost: give the loader an elastic "
            "dataset, wds.WebDataset(urls).elastic()"
        )


def read_order(order: str, window: int | None, *, exact: bool) -> int | None:
    """Return how many batches samples may come early by; None: the order is exact.

    Args:
        order: ``exact`` or ``ready``.
        window: that number, or None.
        exact: batches are those of any number of ranks.

    Raises:
        UsageError: arguments that cannot mean anything, or exclude each other.
    """
    if order not in (EXACT, READY):
        raise UsageError(
            f"order={order!r}: there are 'exact', which depends on the seed alone, and 'ready', in which slow samples "
            "hold up no others; the dataset shuffles: WebDataset(urls, shardshuffle=100).shuffle(1000)"
        )
    if order == EXACT:
        if window is not None:
            raise UsageError(f"window={window!r} bounds how early samples come with order='ready': write both, or none")
        return None
    if exact:
        raise UsageError(
            "exact=True makes the batches that any number of ranks has, and with order='ready' they depend on time: "
            "leave one of the two out"
        )
    if window is None:
        return _MOST_EARLY
    if not isinstance(window, SupportsIndex) or window < 1:
        raise UsageError(f"window={window!r}: batches that a sample may come early by, at least 1")
    return window


def warn_of_unequal_ranks(dataset: object, state: Json, place: WorkerContext, batch_size: int) -> None:
    """Warn where a state leaves the ranks unequal numbers of batches of an epoch whose length is fixed.

    Args:
        dataset: of the loader.
        state: where it begins.
        place: rank and number of ranks.
        batch_size: samples in a batch, or 1.
    """
    ranks, streams = place.world_size, int(state["streams"])
    items, memories = state["description"].get("items"), state["memories"]
    if ranks == 1 or not getattr(dataset, "fixed_epoch", False) or len(memories) < streams:
        return
    counts = [memory[0] if (memory := memories[str(stream)]) else 0 for stream in range(streams)]
    if max(counts) - min(counts) <= 1:
        return
    left = [0] * ranks
    for stream, count in enumerate(counts):
        left[stream % ranks] += len(range(stream, items, streams)) - count
    batches = [-(-each // batch_size) for each in left]
    if max(batches) > min(batches):
        warn_user(
            f"after this state, {ranks} ranks have unequal numbers of batches until the end of the epoch: from "
            f"{min(batches)} to {max(batches)}. It was saved by another number of ranks with order='ready', or after "
            "different steps. Each sample still comes once; stop all ranks after the lowest number, or continue with "
            "the number of ranks that saved it"
        )


def missing_loader_state(dataset: object) -> FlowError:
    """Return the error for asking a loader for a state that it does not have."""
    if hasattr(dataset, "elastic"):
        return FlowError("only a loader over an elastic dataset has a state: write dataset.elastic()")
    return FlowError(
        f"only a loader over an elastic dataset has a state, and this one is over {type(dataset).__name__}: read the "
        "shards as a stream, wds.WebDataset(urls).elastic()"
    )


def check_single_samples(**about_batches: bool) -> None:
    """Refuse what would change nothing where the loader makes no batches.

    Raises:
        UsageError: one was.
    """
    for name, given in about_batches.items():
        if given:
            raise UsageError(
                f"{name}= is about batches that the loader makes: give it a batch_size too. Without one, it delivers "
                "what the dataset gives (batched(…) in the pipeline has a collation_fn of its own)"
            )


def make_device_prefetcher(device: object, *, pin_memory: bool) -> "DevicePrefetcher | None":
    """Return what moves batches to a device, or None where none is named.

    Raises:
        UsageError: pinned memory for no device.
    """
    if device is None:
        if pin_memory:
            raise UsageError("pin_memory is for batches on their way to a device: name it, device='cuda'")
        return None
    from webdataset.loading.torch_device import DevicePrefetcher  # noqa: PLC0415  needs torch

    return DevicePrefetcher(device, pin_memory=pin_memory)
