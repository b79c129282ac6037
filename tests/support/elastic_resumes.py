"""Stops an elastic dataset again and again, each time to continue on other numbers of ranks and workers."""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import webdataset as wds
from webdataset.core.distributed import WorkerContext

TOPOLOGIES = [(1, 1), (2, 1), (3, 2), (2, 4), (4, 3)]


def start_runs(dataset: Any, ranks: int, workers: int, state: Mapping[str, Any] | None = None) -> list[Any]:
    """Return the runs of all workers of a job."""
    state = state or dataset.elastic_run(WorkerContext(0, 1, 0, 1)).header()
    places = [WorkerContext(rank, ranks, worker, workers) for rank in range(ranks) for worker in range(workers)]
    return [dataset.elastic_run(place, state, continue_epochs=False) for place in places]


def check_three_resumes(make: Callable[[], Any], epoch: int, name: str, rounds: int = 8) -> None:
    """Check that a dataset gives the same items where it is stopped three times at random steps.

    Args:
        make: returns the dataset.
        epoch: that is read.
        name: what the steps are drawn from, with the epoch.
        rounds: how often to start anew.
    """

    def begin() -> Any:
        dataset = make()
        dataset.set_epoch(epoch)
        return dataset

    whole = [pair for run in start_runs(begin(), 1, 1) for pair in run.positions()]
    assert len(whole) > 20
    rng = random.Random(f"{name} {epoch}")
    for _ in range(rounds):
        found: list[Any] = []
        state: dict[str, Any] | None = None
        for ranks, workers in rng.choices(TOPOLOGIES, k=3):
            runs = start_runs(begin(), ranks, workers, state)
            for run in runs:
                found += itertools.islice(run.positions(), rng.randrange(len(whole) // len(runs) + 1))
            state = json.loads(json.dumps(wds.merge_states([run.state_dict() for run in runs])))
        found += [pair for run in start_runs(begin(), 2, 1, state) for pair in run.positions()]
        assert sorted(found, key=lambda pair: pair[0]) == whole
