"""One seed decides: order = f(seed, epoch), on every Python, under every start method, with any PYTHONHASHSEED."""

import json
import os
import random
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import webdataset as wds

PROBE = Path(__file__).with_name("determinism_probe.py")
RECORDED = json.loads(PROBE.with_name("determinism_recorded.json").read_text())
SOURCE = Path(wds.__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Seven shards of unequal size; the same everywhere, whatever they are called before their names."""
    folder = tmp_path_factory.mktemp("determinism")
    for number, size in enumerate((12, 9, 15, 4, 11, 1, 8)):
        with wds.TarWriter(str(folder / f"d-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index:02d}", "bin": b"x" * (5 + (index * 7) % 23)})
    return str(folder / "d-{0..6}.tar")


def probed(urls, *words, python=sys.executable, hash_seed="0"):
    """What the probe prints."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCE)}
    environment.pop("WDS_SEED", None)
    command = [python, str(PROBE), urls, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_orders_are_the_recorded_ones(urls, hash_seed):
    """Literal digests, in fresh processes; epochs differ from each other."""
    found = probed(urls, hash_seed=hash_seed)
    assert found == RECORDED["plain"]
    assert all(len(set(epochs)) == 3 for epochs in found.values())


PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def interpreters():
    """Other versions of Python on this machine that have what the package needs."""
    named = (os.environ.get(name, "").split(os.pathsep) for name in ("WDS_PYTHONS", "WDS_FREE_THREADED"))
    found = {}
    for name in [*filter(None, chain.from_iterable(named)), *PYTHONS]:
        python = shutil.which(name)
        if python is None:
            continue
        # a free-threaded one is another one, too
        check = "import sys, yaml, numpy, braceexpand, cloudpickle, urllib3; print(sys.version_info[1], sys.abiflags)"
        done = subprocess.run([python, "-c", check], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.split() != f"{sys.version_info[1]} {sys.abiflags}".split():
            found[done.stdout.strip()] = python
    return found


def test_other_pythons_agree(urls):
    """Every version on this machine gives the recorded orders (each also runs this file by itself)."""
    found = interpreters()
    if not found:
        pytest.skip("no other Python with this package's dependencies is on the path (or in WDS_PYTHONS)")
    for python in found.values():
        assert probed(urls, python=python) == RECORDED["plain"]


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_start_methods_agree(urls, method):
    """Two workers, however they are started, give the recorded orders."""
    pytest.importorskip("torch")
    assert probed(urls, method, "2") == RECORDED["two workers"]


def keys(dataset):
    """The keys of one epoch."""
    return [sample["__key__"] for sample in dataset]


def test_a_told_epoch_is_that_epoch(urls):
    """set_epoch(n) gives what the n-th iteration gives, before or behind others."""
    make = lambda: wds.WebDataset(urls, shardshuffle=10, seed=7).shuffle(20)
    epochs = [keys(each) for dataset in [make()] for each in [dataset] * 4]
    told = make()
    for number in (2, 0, 3, 3):
        told.set_epoch(number)
        assert keys(told) == epochs[number]
    assert keys(told) == keys_of_epoch(make(), 4)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def keys_of_epoch(dataset, epoch):
    """The keys of one epoch by number."""
    dataset.set_epoch(epoch)
    return keys(dataset)


def test_seeds_differ(urls):
    """Another seed, another order in every epoch."""
    found = [tuple(keys_of_epoch(wds.WebDataset(urls, shardshuffle=10, seed=seed).shuffle(20), 0)) for seed in range(6)]
    assert len(set(found)) == 6


def test_without_a_seed_every_run_and_every_epoch_differ(urls):
    """Whatever was seeded elsewhere: Python's global generator has no part in it."""
    found = []
    for _ in range(3):
        random.seed(0)
        dataset = wds.WebDataset(urls, shardshuffle=10).shuffle(20)
        found += [tuple(keys(dataset)) for _ in range(3)]
    assert len(set(found)) == 9


def test_the_global_generator_is_left_alone(urls):
    """Reading a shuffled dataset does not move the numbers that a training program draws."""
    random.seed(5)
    state = random.getstate()
    keys(wds.WebDataset(urls, shardshuffle=10, seed=1, open_shards=2).shuffle(20).map(lambda s, r: s, rng=True))
    assert random.getstate() == state


def test_the_environment_can_say_the_seed(urls, monkeypatch):
    """WDS_SEED is the seed of every dataset that is given none."""
    expected = keys(wds.WebDataset(urls, shardshuffle=10, seed=9).shuffle(20))
    monkeypatch.setenv("WDS_SEED", "9")
    assert keys(wds.WebDataset(urls, shardshuffle=10).shuffle(20)) == expected


def test_resampled_shards_as_documented(urls):
    """deterministic=True: a function of (worker, epoch, seed); else by the seed of the pipeline, or anew."""
    names = [f"s{n}" for n in range(10)]
    draws = lambda shards, n=12: [shard["url"] for shard, _ in zip(shards, range(n))]
    first, second = wds.ResampledShards(names, deterministic=True), wds.ResampledShards(names, deterministic=True)
    epochs = [draws(first) for _ in range(2)]
    assert epochs == [draws(second) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert draws(wds.ResampledShards(names)) != draws(wds.ResampledShards(names))
    seeded = lambda: keys(wds.WebDataset(urls, resampled=True, seed=3).slice(50))
    assert seeded() == seeded()


def test_ranks_agree_before_they_split(urls, monkeypatch):
    """Every rank and worker shuffles the list of shards alike, so that together they read each shard once."""
    stages = lambda: [wds.SimpleShardList(urls), wds.shuffle(100), wds.split_by_node, wds.tarfile_to_samples()]
    for epoch in range(3):
        found = []
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "3")
            pipeline = wds.DataPipeline(*stages())
            pipeline.seed = 11
            found += keys_of_epoch(pipeline, epoch)
        assert len(found) == len(set(found)) == 60


@pytest.mark.torch
@pytest.mark.parametrize("workers", [1, 2])
def test_augmentation_is_independent_of_workers(urls, workers):
    """A sample draws the same in every reader, and another number in the next epoch."""
    pytest.importorskip("torch")

    def augmented(sample, generator):
        return sample["__key__"], generator.random()

    make = lambda: wds.WebDataset(urls, shardshuffle=10, seed=2).shuffle(20).map(augmented, rng=True)
    alone = make()
    expected = [dict(alone) for _ in range(2)]
    loader = wds.WebLoader(make(), batch_size=None, num_workers=workers)
    assert [dict(loader) for _ in range(2)] == expected
    assert all(expected[0][key] != expected[1][key] for key in expected[0])


def test_augmentation_is_independent_of_resume(urls):
    """A run that is restored after any sample draws as the uninterrupted one, in buffers and behind them."""

    def augmented(sample, generator):
        return {"__key__": sample["__key__"], "drawn": generator.random()}

    make = lambda: wds.WebDataset(urls, shardshuffle=10, seed=2).map(augmented, rng=True).shuffle(20)
    whole = list(make())
    run = make().start()
    for given in range(len(whole)):
        if given % 7 == 0:
            state = json.loads(json.dumps(run.snapshot()))
            assert list(make().start(state)) == whole[given:]
        next(run)


@pytest.mark.parametrize("streams", [2, 24])
def test_elastic_datasets_draw_alike(urls, streams):
    """In virtual streams, a sample has the generator that it has in a plain run."""

    def augmented(sample, generator):
        return sample["__key__"], generator.random()

    make = lambda: wds.WebDataset(urls, shardshuffle=10, seed=2).map(augmented, rng=True)
    assert dict(make().elastic(streams=streams)) == dict(make())


@pytest.mark.torch
def test_stages_behind_a_loader_draw_from_the_datasets_seed(urls):
    """A shuffle over the samples of all workers is as reproducible as the dataset."""
    pytest.importorskip("torch")
    make = lambda: wds.WebLoader(wds.WebDataset(urls, seed=6), batch_size=None, num_workers=2).shuffle(30)
    loaders = make(), make()
    epochs = [[keys(loader) for _ in range(2)] for loader in loaders]
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1]


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_under_a_loader_can_be_told_its_epoch(urls, workers):
    """Through the dataset or through the loader, also the same epoch once more; without a word it is the next one."""
    pytest.importorskip("torch")
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=6).shuffle(20)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    epochs = [keys(loader) for _ in range(4)]
    for told in (dataset, loader):
        for number in (2, 0, 0):
            told.set_epoch(number)
            assert keys(loader) == epochs[number]
        assert keys(loader) == epochs[1]


SHUFFLES = {
    "open shards": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=2, open_shards=6).shuffle(12),
    "blocks": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=2).block_shuffle(20),
    "bytes": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=2).shuffle(30, initial=6, max_bytes=400),
    "drawn": lambda urls: wds.WebDataset(urls, resampled=True, seed=2).map(drawn, rng=True).shuffle(9).slice(40),
}


def drawn(sample, generator):
    """Key and a draw."""
    return {"__key__": f"{sample['__key__']} {generator.random()}"}


@pytest.mark.parametrize("name", SHUFFLES)
def test_the_shuffles_of_elastic_datasets_resume_exactly(urls, name):
    """In each stream, after any sample."""
    make = lambda: SHUFFLES[name](urls).elastic(streams=3)
    whole = keys(make())
    assert sorted(whole) == sorted(keys(SHUFFLES[name](urls))) or name == "drawn"
    run = iter(make())
    for given in range(len(whole)):
        if given % 9 == 0:
            again = make()
            again.load_state_dict(json.loads(json.dumps(run.state_dict())))
            assert keys(again) == whole[given:]
        assert next(run)["__key__"] == whole[given]
    run.close()
