"""One rank of a job of several: run as a program, with every way of equal epochs and every wrong set-up in turn.

Arguments: folder of the shards, rank, number of ranks. Writes ``result-<rank>.json`` there. Every step is a step of
DistributedDataParallel, so that ranks with unequal steps would hang, and fail by the group's timeout.
"""

import datetime as dt
import json
import os
import random
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import webdataset as wds

warnings.simplefilter("ignore")
FOLDER, RANK, WORLD = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
URLS = str(FOLDER / "s-{0..6}.tar")
BATCH, STEPS, WORKERS = 4, 9, 2


def dataset(batch=BATCH, **options):
    """Return a shuffled dataset of batches of samples."""
    made = wds.WebDataset(URLS, shardshuffle=10, seed=5, **options).shuffle(12)
    return made.listed(batch) if batch else made


def loader(made, workers=WORKERS):
    """Return torch's loader over batches."""
    return torch.utils.data.DataLoader(made, batch_size=None, num_workers=workers)


def own(made, **options):
    """Return this library's loader over samples."""
    return wds.Loader(made, BATCH, workers=WORKERS, collate=list, **options)


def split():
    """Return a dataset whose ranks have unequal numbers of batches."""
    return dataset(nodesplitter=wds.split_by_node)


class Failing:
    """Batches that end in an error on rank 1."""

    def __iter__(self):
        for number in range(6):
            if RANK == 1 and number == 3:
                raise OSError("the disk is gone")
            yield [{"__key__": f"f{RANK}-{number}"}]


def uneven():
    """Return an own loader, of which ranks have unequal numbers of batches."""
    return own(dataset(batch=0).select(first_or_long).elastic(6))


def resumed(how, every):
    """Return the steps of all ranks from where one of them has nothing left of the epoch."""
    counts, states = [None] * WORLD, [None] * WORLD
    torch.distributed.all_gather_object(counts, len(list(uneven())))
    assert len(set(counts)) > 1
    before = uneven()
    batches = iter(before)
    for _ in range(min(counts)):
        next(batches)
    torch.distributed.all_gather_object(states, before.state_dict())
    after = uneven()
    after.load_state_dict(wds.merge_states(states))
    return wds.equal_steps(after, how, every=every)


def interrupted(every):
    """Return the batches of steps that are held by threes, saved in the midst of them, and resumed."""
    states = [None] * WORLD
    made = own(dataset(batch=0).elastic(6))
    steps = iter(wds.equal_steps(made, "drop", every=every))
    given = [next(steps) for _ in range(2)]
    torch.distributed.all_gather_object(states, made.state_dict())
    steps.close()
    after = own(dataset(batch=0).elastic(6))
    after.load_state_dict(wds.merge_states(states))
    return [*given, *wds.equal_steps(after, "pad")]


WAYS = {
    "drop": lambda: loader(dataset().equal_epochs("drop")),
    "pad": lambda: loader(dataset().equal_epochs("pad")),
    "pad, mistakes": lambda: loader(dataset(batch=0).map(lost).listed(BATCH).equal_epochs("pad"), workers=0),
    "drop, steps": lambda: loader(
        dataset(batch=0).select(chosen).listed(BATCH).equal_epochs("drop", steps=5), workers=0
    ),
    "resample": lambda: loader(dataset().equal_epochs("resample", steps=STEPS)),
    "elastic drop": lambda: loader(dataset().elastic(6).equal_epochs("drop")),
    "elastic pad": lambda: loader(dataset().equal_epochs("pad").elastic(6)),
    "elastic resample": lambda: loader(dataset().elastic(6).equal_epochs("resample", steps=STEPS)),
    "own loader drop": lambda: own(dataset(batch=0).equal_epochs("drop")),
    "own loader elastic pad": lambda: own(dataset(batch=0).equal_epochs("pad").elastic(6)),
    "asked drop": lambda: wds.equal_steps(loader(split()), "drop"),
    "asked drop, by threes": lambda: wds.equal_steps(loader(split(), workers=0), "drop", every=3),
    "asked pad": lambda: wds.equal_steps(loader(split()), "pad"),
    "asked pad, by threes": lambda: wds.equal_steps(loader(split(), workers=0), "pad", every=3),
    "asked of an own loader": lambda: wds.equal_steps(own(split().unlisted()), "drop"),
    "asked drop, nothing left": lambda: resumed("drop", 1),
    "asked pad by threes, nothing left": lambda: resumed("pad", 3),
    "asked by threes, saved after two": lambda: interrupted(3),
}


def lost(sample):
    """Lose one sample of the dataset."""
    return None if sample["__key__"] == "4-007" else sample


def first_or_long(sample):
    """Keep the samples of long shards, and two of each other one."""
    return sample["__key__"][0] in "024" or int(sample["__key__"][2:]) < 2


def chosen(sample):
    """Keep two samples of three."""
    return int(sample["__key__"][2:]) % 3 > 0


def wrong(number):
    """Return wrong set-ups: what to call, which must raise on every rank."""
    shuffled = wds.DataPipeline(
        wds.SimpleShardList(URLS),
        wds.shuffle(10, rng=random.Random(RANK)),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(),
    )
    unsplit = wds.DataPipeline(wds.SimpleShardList(URLS), wds.split_by_worker, wds.tarfile_to_samples())
    shorter = wds.WebDataset(str(FOLDER / ("s-{0..5}.tar" if RANK == 2 else "s-{0..6}.tar")), seed=1).elastic(6)
    seeded = wds.WebDataset(URLS, seed=RANK // 2, nodesplitter=wds.split_by_node)
    return {
        "no nodesplitter": lambda: list(wds.WebDataset(URLS)),
        "no split": lambda: wds.check_ranks(unsplit),
        "seeds": lambda: wds.check_ranks(seeded),
        "shards": lambda: wds.check_ranks(wds.WebLoader(shorter, batch_size=None, num_workers=2).shuffle(5)),
        "shuffled before the split": lambda: wds.check_ranks(shuffled),
        "workers": lambda: wds.check_ranks(loader(split(), workers=RANK)),
        "streams": lambda: list(dataset().elastic(7).equal_epochs("drop")),
        "a failing loader": lambda: [step(batch, number) for batch in wds.equal_steps(Failing(), "drop")],
        "no shard for a rank": lambda: list(
            wds.equal_steps(
                wds.WebDataset(str(FOLDER / "s-{0..1}.tar"), nodesplitter=wds.split_by_node, empty_check=False), "drop"
            )
        ),
    }


def step(batch, model):
    """Take a step of training with all other ranks."""
    model(torch.ones(len(batch), 1)).sum().backward()
    return [[sample["__key__"], bool(sample.get("__pad__"))] for sample in batch]


def main():
    """Run everything."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{FOLDER}/meeting",
        rank=RANK,
        world_size=WORLD,
        timeout=dt.timedelta(seconds=25),
    )
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    result = {"steps": {}, "wrong": {}}
    for name, make in WAYS.items():
        result["steps"][name] = [step(batch, model) for batch in make()]
        torch.distributed.barrier()  # raises where a rank is not there within the group's time
    right = dataset(nodesplitter=wds.split_by_node)
    for made in (right, loader(right), right.elastic(6), wds.equal_steps(loader(right)), dataset().equal_epochs()):
        wds.check_ranks(made)
    wds.check_ranks(wds.DataPipeline(wds.SimpleShardList(URLS), wds.tarfile_to_samples()), same_samples=True)
    for name, call in wrong(model).items():
        try:
            call()
            result["wrong"][name] = None
        except Exception as error:
            result["wrong"][name] = f"{type(error).__name__}: {error}"
        torch.distributed.barrier()
    (FOLDER / f"result-{RANK}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    assert "RANK" not in os.environ
    main()
