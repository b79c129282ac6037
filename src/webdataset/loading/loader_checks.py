"""Checks the arguments of a loader, and what all its workers together gave in an epoch.

A worker's own share may rightly be empty, so only the sum of all can be judged (:mod:`webdataset.flow.outcomes`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from webdataset.core.errors import FlowError, UsageError, check_keywords
from webdataset.flow.outcomes import StageOutcome, judge_outcomes, merge_outcomes
from webdataset.flow.pass_checks import counts_once, warn_of_length
from webdataset.flow.pipeline import DataPipeline
from webdataset.loading.partition import DatasetAdapter, EpochStart

if TYPE_CHECKING:
    from webdataset.loading.torch_device import DevicePrefetcher


@dataclass
class EpochEnd:
    """What is known at the end of an epoch."""

    origin: DatasetAdapter
    beginning: EpochStart
    outcomes: list[StageOutcome]

    def judge(self, samples: int) -> None:
        """Raise or warn where the epoch gave nothing, or where one stage dropped all samples.

        Raises:
            NoSamples: what a run of one process raises.
        """
        found = merge_outcomes(self.outcomes)
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
