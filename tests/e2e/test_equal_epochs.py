"""Three ranks of torch.distributed, two workers each, seven shards of unequal size: equal steps, whatever is chosen."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import webdataset as wds

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROBE = Path(__file__).with_name("equal_epochs_probe.py")
SIZES = [13, 7, 22, 5, 31, 11, 3]
RANKS = 3
EXPECTED = {  # steps of each rank
    "drop": 8,
    "pad": 8,
    "pad, mistakes": 8,
    "drop, steps": 5,
    "resample": 9,
    "elastic drop": 8,
    "elastic pad": 8,
    "elastic resample": 9,
    "own loader drop": 8,
    "own loader elastic pad": 8,
    "asked drop": 6,
    "asked drop, by threes": 6,
    "asked pad": 10,
    "asked pad, by threes": 10,
    "asked of an own loader": 6,
    "asked drop, nothing left": 0,
    "asked pad by threes, nothing left": 13,
    "asked by threes, saved after two": 15,
}
EXACT = {  # samples that come once, and repeats with a mark
    "drop": (90, 0),
    "pad": (92, 1),
    "pad, mistakes": (91, 1),
    "elastic drop": (90, 0),
    "elastic pad": (92, 4),
    "own loader drop": (90, 0),
    "own loader elastic pad": (92, 4),
}
WRONG = {
    "no nodesplitter": r"rank {rank} of 3, .*nodesplitter=wds.split_by_node",
    "no split": "all 3 ranks would read the same 7 shards",
    "seeds": "seed: 0 on ranks 0 and 1, 1 on rank 2",
    "shards": "shards: 7 on ranks 0 and 1, 6 on rank 2",
    "shuffled before the split": "order of shards before they are shared out.*a shuffle before the split",
    "workers": "workers: 0 on rank 0, 1 on rank 1, 2 on rank 2",
    "streams": r"7 streams cannot be shared out equally between 3 ranks.*elastic\(streams=9\)",
    "a failing loader": "the loader of rank 1 failed after 3 batches",
    "no shard for a rank": "rank 2 of 3 gave no batch at all",
}


def _started(folder, rank, environment):
    """Start one rank."""
    with (folder / f"log-{rank}").open("wb") as log:
        return subprocess.Popen([sys.executable, PROBE, folder, str(rank), str(RANKS)], env=environment, stderr=log)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each rank gave; a rank that hangs fails here."""
    folder = tmp_path_factory.mktemp("job")
    for number, size in enumerate(SIZES):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    (folder / "sizes.json").write_text(json.dumps({f"s-{number}.tar": size for number, size in enumerate(SIZES)}))
    quiet = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "WDS_SEED")}
    ranks = [_started(folder, rank, quiet) for rank in range(RANKS)]
    until = time.monotonic() + 240  # of which most is importing torch, on a busy machine
    try:
        for number, rank in enumerate(ranks):
            rank.wait(max(0, until - time.monotonic()))
            assert rank.returncode == 0, (folder / f"log-{number}").read_text()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(RANKS)]


def test_everything_was_tried(results):
    """No way and no mistake is left out of the tests below."""
    for found in results:
        assert found["steps"].keys() == EXPECTED.keys()
        assert found["wrong"].keys() == WRONG.keys()


@pytest.mark.parametrize("way", EXPECTED)
def test_equal_steps(results, way):
    """All ranks take as many steps."""
    assert [len(found["steps"][way]) for found in results] == [EXPECTED[way]] * RANKS


@pytest.mark.parametrize("way", EXACT)
def test_all_samples_once(results, way):
    """All ranks together have each sample once, and what is repeated says so."""
    samples = [sample for found in results for batch in found["steps"][way] for sample in batch]
    once = [key for key, padded in samples if not padded]
    assert (len(once), len(samples) - len(once)) == EXACT[way]
    assert len(set(once)) == len(once)


def test_padding_by_asking_loses_nothing(results):
    """Where ranks go on to the longest, every sample has come."""
    for way in ("asked pad", "asked pad, by threes", "asked by threes, saved after two"):
        samples = {key for found in results for batch in found["steps"][way] for key, _ in batch}
        assert len(samples) == sum(SIZES)


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_setups_raise_on_every_rank(results, mistake):
    """No rank goes on alone, or waits for others: all of them raise, with what differs and what to do."""
    for rank, found in enumerate(results):
        message = found["wrong"][mistake]
        own = mistake == "a failing loader" and rank == 1
        expected = "OSError: the disk is gone" if own else WRONG[mistake].format(rank=rank)
        assert message is not None
        assert re.search(expected, message), message
