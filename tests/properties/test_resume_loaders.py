"""Random pipelines over loaders, stopped anywhere and resumed by other workers several times: the order of the dataset.

``make test`` plays some cases, ``RESUME_LOADER_CASES`` says how many; a single one by its seed:
``Trial(seed, urls, modes).play()``.
"""

import os
import sys
import warnings
from pathlib import Path

import pytest

from webdataset.core.errors import NoSamples

sys.path.insert(0, str(Path(__file__).parent))  # the generator is in a module beside this one
try:
    from loader_resumes import Trial, write_shards
finally:
    sys.path.pop(0)

CASES = int(os.environ.get("RESUME_LOADER_CASES", "24"))
GROUPS = 3


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Shards of unequal sizes, one of them empty."""
    return write_shards(tmp_path_factory.mktemp("shards"))


def play(seeds, urls, modes, set_rank=None):
    """Play cases; return how many were of pipelines that have samples for all streams."""
    played = 0
    for seed in seeds:
        trial = Trial(seed, urls, modes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trial.list_orders()
            except NoSamples:  # of an epoch of so many items, and a stream without any
                continue
            trial.play() if set_rank is None else trial.play_ranks(set_rank)
            played += 1
    return played


@pytest.mark.repeats
@pytest.mark.parametrize("group", range(GROUPS))
def test_resumed_loaders_give_the_order_of_the_dataset(urls, group):
    """Without workers and with threads, whose number changes at each stop: nothing lost, moved, or twice."""
    assert play(range(group, CASES, GROUPS), urls, ("inline", "threads")) > CASES // GROUPS // 2


def test_resumed_processes_give_the_order_of_the_dataset(urls):
    """The same where processes, threads and no workers take turns."""
    assert play(range(1000, 1000 + CASES // 6), urls, ("inline", "threads", "processes")) > CASES // 12


@pytest.mark.repeats
def test_ranks_that_change_give_each_sample_once(urls, monkeypatch):
    """1 to 4 ranks, each stopped somewhere; what continues has the merged states, and other ranks and workers."""

    def set_rank(rank, ranks):
        monkeypatch.setenv("WDS_RANK", str(rank))
        monkeypatch.setenv("WDS_WORLD_SIZE", str(ranks))

    def play_alone(seed):
        set_rank(0, 1)
        return play([seed], urls, ("inline", "threads"), set_rank)

    assert sum(map(play_alone, range(2000, 2000 + CASES // 2))) > CASES // 4
