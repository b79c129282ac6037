"""Many threads at once over one dataset, one index, one state, one cache: each gets what it would get alone.

Where Python has no global lock they run side by side; elsewhere they take turns every few microseconds.
"""

import contextlib
import gc
import json
import os
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.testing.sources import RangeServer

THREADS = 6
SHARDS, EACH = 5, 40
PATIENCE_SECONDS = 120


@pytest.fixture(autouse=True)
def short_turns():
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["core", "python"])
def core(request, monkeypatch):
    """Samples are read by the native core, or without it."""
    monkeypatch.setenv("WDS_NATIVE", "1" if request.param == "core" else "0")


def payload_of(number):
    """The bytes of a sample: most are small, some are cut off by the chunks that are read."""
    return bytes([number % 251]) * (70_000 if number % 37 == 5 else number % 900)


def write_shards(folder):
    """Write the shards; return their paths."""
    paths = []
    for shard in range(SHARDS):
        paths.append(str(folder / f"x-{shard}.tar"))
        with wds.TarWriter(paths[-1]) as sink:
            for number in range(shard * EACH, (shard + 1) * EACH):
                sink.write({"__key__": f"{number:05d}", "bin": payload_of(number), "json": {"number": number}})
    return paths


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Shards without indexes."""
    return write_shards(tmp_path_factory.mktemp("threads"))


def run_together(work, count=THREADS):
    """Call work(n) in each of so many threads, which begin at one moment; return what they return, in order."""
    start = threading.Barrier(count)

    def begin(number):
        start.wait(PATIENCE_SECONDS)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count), timeout=PATIENCE_SECONDS))


def check_samples(samples):
    """Return the keys of decoded samples, each of which must hold what was written under its key."""
    for sample in samples:
        number = int(sample["__key__"])
        assert sample["json"] == {"number": number}
        assert sample["bin"] == payload_of(number)
    return [sample["__key__"] for sample in samples]


def make_dataset(urls):
    """A dataset with an order of its own in each epoch."""
    return wds.WebDataset(urls, shardshuffle=10, seed=7).shuffle(30, initial=10).decode()


@pytest.mark.usefixtures("core")
def test_one_dataset(urls):
    """Each pass over a dataset is the next epoch, whichever thread begins it; none comes twice, none is left out."""
    shared, alone = make_dataset(urls), make_dataset(urls)
    for _ in range(3):
        found = run_together(lambda _: check_samples(list(shared)))
        assert sorted(found) == sorted(check_samples(list(alone)) for _ in range(THREADS))
    assert check_samples(list(shared)) == check_samples(list(alone))


@pytest.mark.usefixtures("core")
def test_one_elastic_dataset(urls):
    """Each thread's run of an elastic dataset is an epoch, is saved in its midst, and continues in another run."""
    shared, alone = make_dataset(urls).elastic(streams=3), make_dataset(urls).elastic(streams=3)

    def read(number):
        run = iter(shared)
        first = [next(run) for _ in range(10 + 7 * number)]
        state = json.loads(json.dumps(run.state_dict()))
        rest = list(run)
        return check_samples(first + rest), state, check_samples(rest)

    found = run_together(read)
    assert sorted(whole for whole, _, _ in found) == sorted(check_samples(list(alone)) for _ in range(THREADS))

    # once all epochs have begun: after a run of a state the next epoch is the one after that state's
    def resume(number):
        return check_samples(list(shared.elastic_run(state=found[number][1], continue_epochs=False)))

    assert run_together(resume) == [rest for _, _, rest in found]


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("open_shards", [2, 32])
@pytest.mark.parametrize("index", ["headers", "wdsindex"])
def test_one_indexed_dataset(tmp_path, index, open_shards):
    """Samples by number and by key, from shards that are opened and closed meanwhile; indexes are let go of."""
    paths = write_shards(tmp_path)
    if index == "wdsindex":
        wds.write_indexes(paths, "binary")
    count = SHARDS * EACH

    def read(seed):
        rng = random.Random(seed)
        for step in range(150):
            number = rng.randrange(count)
            key = f"{number:05d}"
            sample = dataset.by_key(key) if step % 10 == 3 else dataset[number - count if step % 7 == 2 else number]
            assert sample["__key__"] == key
            assert sample["bin"] == payload_of(number)
            assert json.loads(sample["json"]) == {"number": number}
        return len(dataset)

    for _ in range(4):
        dataset = wds.IndexedDataset(paths, open_shards=open_shards)
        assert run_together(read) == [count] * THREADS
        assert len(list_open_files(tmp_path)) <= open_shards
        dataset.close()
        assert not list_open_files(tmp_path)
    if Path("/proc/self/maps").exists():
        del dataset
        gc.collect()
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def list_open_files(folder):
    """The shards in a folder that this process has open, as far as the system tells."""
    found = []
    for place in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            found += [path] if (path := os.readlink(place)).startswith(str(folder)) and path.endswith(".tar") else []
    return found


@pytest.mark.parametrize("kind", ["list", "mix", "repeated"])
def test_passes_are_numbered(urls, kind):
    """Passes over a resampled list, a mix and a repeated dataset: threads get the passes that one thread would get."""

    def make():
        if kind == "list":
            return wds.ResampledShards(urls, nshards=30, seed=3, deterministic=True)
        dataset = wds.WebDataset(urls[:2], shardshuffle=10, seed=3).decode()
        if kind == "repeated":
            return dataset.repeat(2)
        mixed = wds.RandomMix([dataset, wds.WebDataset(urls[2:4], shardshuffle=10, seed=4).decode()])
        mixed.seed = 5
        return mixed

    def name_items(items):
        return [item.get("__key__") or item["url"] for item in items]

    shared, alone = make(), make()
    for _ in range(5):
        # of a repeated one, each thread has two passes, of which one may be another thread's as well
        found = run_together(lambda _: name_items(shared))
        if kind != "repeated":
            assert sorted(found) == sorted(name_items(alone) for _ in range(THREADS))
    if kind == "repeated":
        assert shared.epoch >= 5 * THREADS


def batches_of(loader):
    """The keys of each batch."""
    return [check_batch(batch) for batch in loader]


def check_batch(batch):
    """Return the keys of a batch, which must hold what was written under them."""
    keys, values, payloads = batch
    for key, value, payload in zip(keys, values, payloads, strict=True):
        assert value == {"number": int(key)}
        assert payload == payload_of(int(key))
    return list(keys)


def make_loaded(urls):
    """An elastic dataset whose samples are tuples."""
    return make_dataset(urls).to_tuple("__key__", "json", "bin").elastic(streams=4)


def test_one_loader_state(urls):
    """Threads ask one loader for its state between batches, and continue from the same object at once."""
    dataset = make_loaded(urls)
    with wds.Loader(make_loaded(urls), 8) as alone:
        expected = batches_of(alone) + batches_of(alone)
    states = []
    with wds.Loader(dataset, 8, workers=3) as loader:
        found = []
        for batch in loader:
            found.append(check_batch(batch))
            if len(found) % 6 == 2:
                first, *others = run_together(lambda _: json.dumps(loader.state_dict(), sort_keys=True))
                assert set(others) == {first}
                states.append((len(found), json.loads(first)))
        assert found == expected[: len(found)]
    assert len(states) >= 4
    for given, state in states[:: len(states) - 1]:
        before = json.dumps(state)

        def resume(number, given=given, state=state):
            with wds.Loader(make_loaded(urls), 8, workers=number % 4) as loader:
                loader.load_state_dict(state)
                assert batches_of(loader) + batches_of(loader) == expected[given:]

        run_together(resume)
        assert json.dumps(state) == before


def fail_sometimes(sample):
    """Raise for every tenth sample, drop every tenth other one."""
    number = sample["json"]["number"]
    if number % 10 == 3:
        raise ValueError("this one is not wanted")
    return None if number % 10 == 7 else sample


def test_loaders_over_one_dataset(urls):
    """Loaders in several threads over one dataset: the same batches, and every sample delivered or counted."""
    dataset = make_dataset(urls).map(fail_sometimes, handler=wds.ignore_and_continue)
    dataset = dataset.to_tuple("__key__", "json", "bin").elastic(streams=4)

    # a loader begins with the epoch that its dataset stands at, which others take further
    loaders = [wds.Loader(dataset, 8, workers=2 + number % 2) for number in range(4)]

    def load(number):
        with loaders[number] as loader:
            batches = [batches_of(loader) for _ in range(2)]
            return batches, loader.stats().skipped, loader.stats().dropped

    first, *others = run_together(load, 4)
    assert others == [first] * 3
    batches, skipped, dropped = first
    kept = [f"{number:05d}" for number in range(SHARDS * EACH) if number % 10 not in (3, 7)]
    assert [sorted(sum(epoch, [])) for epoch in batches] == [kept] * 2
    assert skipped == dropped == 2 * SHARDS * EACH // 10


@pytest.mark.parametrize("size_bytes", [-1, 500_000], ids=["all kept", "some evicted"])
def test_one_cache(urls, tmp_path, size_bytes):
    """Threads read one list through one cache: each shard is fetched once where all have room, and none is lost."""
    pages = {f"/{os.path.basename(url)}": Path(url).read_bytes() for url in urls}
    expected = [f"{number:05d}" for number in range(SHARDS * EACH)]
    with RangeServer(pages) as server:
        served = [server.root + path for path in pages]
        cached = {"cache_dir": str(tmp_path), "cache_size": size_bytes, "shardshuffle": False}
        dataset = wds.WebDataset(served, **cached).decode()

        def read(number):
            own = dataset if number % 2 else wds.WebDataset(served, **cached).decode()
            return check_samples(list(own))

        for _ in range(2):
            assert run_together(read) == [expected] * THREADS
        if size_bytes < 0:
            assert Counter(path for path, _ in server.asked) == dict.fromkeys(pages, 1)
            assert sorted(path.read_bytes() for path in tmp_path.glob("*.tar")) == sorted(pages.values())


def test_one_indexed_shard_at_a_store(urls):
    """Threads read one remote shard by number over their own connections."""
    content = Path(urls[0]).read_bytes()
    with RangeServer({"/x.tar": content}) as server, wds.IndexedShard(f"{server.root}/x.tar") as shard:

        def read(seed):
            numbers = random.Random(seed).sample(range(EACH), EACH)
            return [shard[number]["bin"] == payload_of(number) for number in numbers]

        assert run_together(read) == [[True] * EACH] * THREADS


def test_writers_side_by_side(tmp_path):
    """Each thread writes shards of its own into one folder; all are complete."""

    def write(number):
        with wds.ShardWriter(str(tmp_path / f"{number}-%d.tar"), maxcount=7) as sink:
            for index in range(20):
                sink.write({"__key__": f"{number}-{index:02d}", "json": {"index": index}, "npy": [number, index]})

    run_together(write)
    read = [sample["__key__"] for sample in wds.WebDataset([*map(str, tmp_path.glob("*.tar"))], shardshuffle=False)]
    assert sorted(read) == [f"{number}-{index:02d}" for number in range(THREADS) for index in range(20)]
