"""``Loader(order="ready")``: each sample once, a bounded number of batches early, whatever happens on the way."""

import contextlib
import json
import os
import random
import signal
import threading
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import UsageError, WorkerTimeout

COUNT = 140


class Uneven:
    """A function whose samples take unequally long; at some it ends or stops its process, once each.

    Args:
        seed: decides which samples are slow.
        folder: remembers what was done.
        deeds: ``die``, ``hang`` or ``raise`` at which number.
    """

    def __init__(self, seed=0, folder="", deeds=None):
        self.seed, self.folder, self.deeds = seed, Path(folder), deeds or {}

    def __call__(self, sample):
        number = int(sample["cls"])
        deed = self.deeds.get(number)
        if deed is not None and self._is_due(number):
            if deed == "raise":
                raise ValueError(f"at {number}")
            if deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        if zlib.crc32(b"%d %d" % (self.seed, number)) % 100 < 8:
            time.sleep(0.01)
        return sample

    def _is_due(self, number):
        try:
            os.close(os.open(self.folder / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def drop_some(sample):
    """Drop one of seven samples."""
    return None if int(sample["cls"]) % 7 == 3 else sample


def join(samples):
    """Return the classes of some samples."""
    return [int(sample["cls"]) for sample in samples]


def make(urls, kind="plain", work=None, streams=12):
    """Return an elastic dataset of one kind."""
    dataset = wds.WebDataset(urls, shardshuffle=kind != "plain", seed=5)
    if kind != "plain":
        dataset = dataset.shuffle(30)
    dataset = dataset.decode().map(work or Uneven()).map(drop_some)
    if kind == "batched":
        dataset = dataset.shuffle(10).batched(3, collation_fn=join, partial=True)
    else:
        dataset = dataset.to_tuple("cls", "npy")
    if kind == "endless":
        dataset = dataset.with_epoch(144)
    return dataset.elastic(streams=streams)


def numbers(batch):
    """Return the numbers of a batch, or of an item."""
    if isinstance(batch, list):
        return batch
    number, array = batch
    found = np.atleast_1d(number).tolist()
    assert np.atleast_2d(np.asarray(array).reshape(len(found), -1))[:, 0].tolist() == found
    return found


def load(dataset, batch_size=8, **arguments):
    """Return a loader in the ready order."""
    start = {"start_method": "fork"} if arguments.get("mode") == "processes" else {}
    return wds.Loader(dataset, batch_size, **{"workers": 3, "order": "ready", **start, **arguments})


@contextlib.contextmanager
def as_rank(rank, ranks):
    """Let this process be one of some ranks."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    try:
        yield
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]


class Trial:
    """A run of some ranks that is stopped and resumed, with what is drawn by a seed.

    Args:
        urls: of shards.
        seed: of all choices.
        folder: remembers which workers have died.
    """

    def __init__(self, urls, seed, folder):
        self.draw = random.Random(seed)  # noqa: S311  what to try
        draw = self.draw
        self.kind = draw.choice(["plain", "shuffled", "batched", "endless"])
        self.batch_size = None if self.kind == "batched" else draw.choice([None, 1, 4, 7, 8])
        self.epoch = draw.choice([0, 0, 1, 3])
        self.deadly = draw.random() < 0.4
        deeds = dict.fromkeys(draw.sample(range(COUNT), 2), "die") if self.deadly else {}
        self.dataset = make(urls, self.kind, Uneven(seed, folder, deeds))
        self.expected_dataset = make(urls, self.kind)
        self.dropped = 0

    def expected(self, state, ranks):
        """Return what the exact order gives each rank after a state: lists of batches."""
        found = []
        for rank in range(ranks):
            with as_rank(rank, ranks), wds.Loader(self.expected_dataset, self.batch_size) as loader:
                self.begin(loader, state)
                found.append([numbers(batch) for batch in loader])
        return found

    def begin(self, loader, state):
        """Let a loader begin where the run is."""
        if state is not None:
            loader.load_state_dict(json.loads(state))
        loader.set_epoch(self.epoch)

    def loader(self):
        """Return a loader of some kind."""
        draw = self.draw
        workers, window = draw.randint(0, 5), draw.choice([None, 1, 2, 5])
        how: Any = {"workers": workers, "window": window, "prefetch": draw.choice([None, 0, 1, 4])}
        if self.deadly:
            how |= {"mode": "processes", "max_restarts": 5, "workers": max(1, workers)}
        elif workers and draw.random() < 0.3:
            how["mode"] = "processes"
        if draw.random() < 0.15:
            how |= {"order": "exact", "window": None}
        return load(self.dataset, self.batch_size, **how), how

    def run_rank(self, state, rank, ranks, batches, expected):
        """Run a rank for some batches, and check these; return them, and the state after them."""
        loader, how = self.loader()
        with as_rank(rank, ranks), loader:
            self.begin(loader, state)
            found, given = [], iter(loader)
            while len(found) < batches and (batch := next(given, None)) is not None:
                found.append(numbers(batch))
                if self.draw.random() < 0.2:
                    json.dumps(loader.state_dict())
            rest = loader.state_dict()
            stats = loader.stats()
            assert stats.failures == 0
            self.dropped += stats.dropped
        assert len(found) == min(batches, len(expected))
        assert [len(batch) for batch in found] == [
            len(batch) for batch in expected[: len(found)]
        ] or not self.batch_size
        self.check_bound(found, expected, how)
        return found, rest

    def check_bound(self, found, expected, how):
        """Check how early samples came."""
        if self.kind == "endless" or how.get("order") == "exact":
            return
        size, window = self.batch_size or 1, 64 if how["window"] is None else how["window"]
        most = (window + 1) * size - 1 if self.batch_size else max(window, how["workers"] - 1)
        flat = (
            [tuple(batch) for batch in expected] if self.batch_size is None else [n for each in expected for n in each]
        )
        came = [tuple(batch) for batch in found] if self.batch_size is None else [n for each in found for n in each]
        place = {item: index for index, item in enumerate(flat)}
        missing, lowest = set(range(len(flat))), 0
        for item in came:
            assert place[item] - lowest <= most
            missing.discard(place[item])
            while lowest < len(flat) and lowest not in missing:
                lowest += 1

    def run(self):
        """Run an epoch in up to four parts, each of other ranks and workers, and check that each sample comes once."""
        ranks, state, given = self.draw.choice([1, 1, 2, 3]), None, []
        whole = [n for rank in self.expected(None, 1) for batch in rank for n in batch]
        for part in range(4):
            expected = self.expected(state, ranks)
            longest = max(map(len, expected))
            batches = 1 << 30 if part == 3 else self.draw.randint(0, max(1, longest // 2))
            found = [self.run_rank(state, rank, ranks, batches, expected[rank]) for rank in range(ranks)]
            given += [n for rank, _ in found for batch in rank for n in batch]
            merged = wds.merge_states([rest for _, rest in found])
            assert merged["received"] == len(given) or self.kind == "batched"
            state = json.dumps(merged)
            if self.draw.random() < 0.5:
                ranks = self.draw.choice([1, 2, 3])
        assert Counter(given) == Counter(whole)
        assert self.dropped == COUNT // 7 or self.kind == "endless"
        with wds.Loader(self.expected_dataset, self.batch_size) as loader:
            loader.load_state_dict(json.loads(state))
            next(iter(loader))
            assert loader.epoch == self.epoch + 2


@pytest.mark.slow
@pytest.mark.repeats
@pytest.mark.filterwarnings("ignore:after this state, . ranks have unequal numbers")
@pytest.mark.parametrize("seed", range(16))
def test_each_sample_comes_once_whatever_happens(numbered, tmp_path, seed):
    """Stops, resumes under other ranks, workers and orders, killed workers: the epoch is complete, and bounded."""
    Trial(numbered, seed, tmp_path).run()


class Gate:
    """A function that waits at some samples until it may continue, and remembers what it was given."""

    def __init__(self, held):
        self.held, self.made, self.opened = held, [], threading.Event()

    def __call__(self, sample):
        number = int(sample["cls"])
        self.made.append(number)
        if number in self.held:
            self.opened.wait()
        return sample


@pytest.fixture
def two(tmp_path):
    """Return two shards: of numbers 0 to 99, and 100 to 199."""
    for first in (0, 100):
        with wds.TarWriter(str(tmp_path / f"{first}.tar")) as sink:
            for number in range(first, first + 100):
                sink.write({"__key__": f"{number:03d}", "cls": number})
    return [str(tmp_path / "0.tar"), str(tmp_path / "100.tar")]


def gated(urls, gate, **more):
    """Return two streams of numbers, of which the first one waits."""
    dataset = wds.WebDataset(urls, shardshuffle=False).decode().map(gate)
    return (dataset.with_epoch(200) if more else dataset).rename(n="cls", keep=False).elastic(streams=2)


def plain(batch):
    """Return a batch of dictionaries as numbers."""
    return batch["n"].tolist()


@pytest.mark.parametrize("window", [3, 9])
def test_others_are_given_while_one_sample_is_made_and_no_further_than_the_window(two, window):
    """With one worker held up, the other's samples of the windows up to the bound come, and no more are made."""
    gate = Gate({0})
    with load(gated(two, gate), workers=2, window=window) as loader:
        batches = iter(loader)
        early = [n for _ in range((window + 1) // 2) for n in plain(next(batches))]
        assert early == list(range(100, 100 + 4 * (window + 1)))
        # its worker may begin late
        while 0 not in gate.made:
            time.sleep(0.01)
        assert max(gate.made) == early[-1]
        state = json.dumps(loader.state_dict())
        stats = loader.stats()
        assert stats.overtakes == len(early) - 4
        assert f"overtakes {stats.overtakes}, " in stats.report()
        assert f"webdataset_loader_overtakes_total {stats.overtakes}\n" in stats.prometheus()
        gate.opened.set()
        rest = [n for batch in batches for n in plain(batch)]
    assert sorted(early + rest) == list(range(200))
    for order in ("exact", "ready"):
        with load(gated(two, gate), workers=1, order=order) as loader:
            loader.load_state_dict(json.loads(state))
            again = [plain(batch) for batch in loader]
        # the stream that was held up comes first
        assert again[0] == list(range(8))
        assert sorted(n for batch in again for n in batch) == sorted(rest)
    dataset = gated(two, gate)
    dataset.load_state_dict(json.loads(state))
    assert sorted(sample["n"] for sample in dataset) == sorted(rest)
    assert [n for batch in wds.states.trace(gated(two, gate), json.loads(state)) for n in map(int, batch.keys)] == (
        [n for batch in again for n in batch]
    )


def test_without_a_batch_size_the_window_counts_samples(two):
    """Two workers: the fourth sample of the other stream stands at index 7, which is 7 early."""
    gate = Gate({0})
    with load(gated(two, gate), None, workers=2, window=7) as loader:
        samples = iter(loader)
        assert [next(samples)["n"] for _ in range(4)] == [100, 101, 102, 103]
        assert max(gate.made) == 103
        gate.opened.set()
        assert len(list(samples)) == 196


def test_other_ranks_are_warned_where_a_state_leaves_them_unequal_parts(two):
    """Two ranks have a stream each, of which the state has read one only."""
    gate = Gate({0})
    with load(gated(two, gate, fixed=True), workers=2, window=9) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        gate.opened.set()
    words = "2 ranks have unequal numbers of batches until the end of the epoch: from 9 to 13"
    with as_rank(0, 2), load(gated(two, gate, fixed=True), workers=1) as loader:
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match=words):
            assert len(list(loader)) == 13
    # one rank has all of it
    with load(gated(two, gate, fixed=True), workers=1) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 21


@pytest.mark.parametrize(
    ("dataset", "count"), [(list(range(50)), 50), (dict.fromkeys(range(50)).keys(), 50), ("pipeline", COUNT)]
)
@pytest.mark.parametrize("how", [{"workers": 0}, {}, {"mode": "processes"}, {"drop_last": True}])
def test_datasets_without_states_are_loaded_too(numbered, dataset, count, how):
    """A list, an iterable, a pipeline that shares its shards out: the same samples, in as many batches."""
    if dataset == "pipeline":
        dataset = wds.WebDataset(numbered, shardshuffle=False).decode().map(lambda sample: int(sample["cls"]))
    with load(dataset, 8, **how) as loader:
        found = [batch.tolist() for batch in loader]
    full, left = divmod(count, 8)
    assert [len(batch) for batch in found] == [8] * full + [left] * bool(left and "drop_last" not in how)
    assert len({n for batch in found for n in batch}) == sum(map(len, found))


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_an_error_comes_after_what_was_ready_and_the_state_continues(numbered, tmp_path, mode):
    """The batches before it have been given; after it the state gives the rest, the failed sample too."""
    work = Uneven(1, tmp_path, {77: "raise"})
    with load(make(numbered, "shuffled", work), mode=mode, workers=2) as loader:
        found = []
        batches = iter(loader)
        with pytest.raises(ValueError, match="at 77"):
            found.extend(n for batch in batches for n in numbers(batch))
        loader.load_state_dict(loader.state_dict())
        found += [n for batch in loader for n in numbers(batch)]
        assert loader.stats().failures == 1
    assert sorted(found) == [n for n in range(COUNT) if n % 7 != 3]


@pytest.mark.slow
def test_a_worker_that_hangs_is_found_and_started_again(numbered, tmp_path):
    """It holds the others up at the end of the window; without restarts it is an error."""
    work = Uneven(1, tmp_path, {40: "hang", 90: "hang"})
    how = {"mode": "processes", "workers": 2, "timeout": 1.5, "window": 2}
    with load(make(numbered, "shuffled", work), max_restarts=2, **how) as loader:
        found = [n for batch in loader for n in numbers(batch)]
        assert 1 <= loader.stats().restarts <= 2
    assert sorted(found) == [n for n in range(COUNT) if n % 7 != 3]
    with (
        load(make(numbered, "shuffled", Uneven(1, tmp_path, {41: "hang"})), **how) as loader,
        pytest.raises(WorkerTimeout),
    ):
        list(loader)


def test_a_silent_loader_names_the_workers_that_it_waits_for(two, monkeypatch, caplog):
    """The one that is held up; not the one that may not continue."""
    monkeypatch.setattr("webdataset.loading.windows.SILENCE_SECONDS", 0.2)
    gate = Gate({0})
    with load(gated(two, gate), workers=2, window=1) as loader:
        batches = iter(loader)
        next(batches)
        threading.Timer(1.0, gate.opened.set).start()
        next(batches)
    assert "nothing came from worker 0 of 2" in caplog.text
    assert "worker 1 of 2" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"order": "fast"}, "order='fast': there are 'exact'"),
        ({"order": None}, "order=None: there are 'exact'"),
        ({"window": 3, "order": "exact"}, r"window=3 bounds how early samples come with order='ready'"),
        ({"window": 0}, "window=0: batches that a sample may come early by, at least 1"),
        ({"window": 1.5}, "window=1.5: batches"),
        ({"exact": True}, "exact=True makes the batches that any number of ranks has"),
    ],
)
def test_arguments_are_checked_where_they_are_given(arguments, words):
    """Wrong orders and bounds, and what excludes each other."""
    with pytest.raises(UsageError, match=words):
        load([1, 2], **arguments)


def test_what_needs_an_order_refuses(numbered):
    """A trace and a shared stream know batches by seed and epoch."""
    loader = load(make(numbered))
    with pytest.raises(UsageError, match=r"trace what they are taken from, wds.states.trace\(loader.dataset"):
        list(wds.states.trace(loader, seed=1))
    with pytest.raises(UsageError, match="leave order= out"):
        wds.SharedLoader(loader, "/tmp/never/made")
    assert "order='ready'" in loader.explain()


def test_an_epoch_whose_last_samples_are_left_out_is_over(numbered):
    """The state after it continues with the next epoch, whichever samples were left out."""
    with load(make(numbered, "shuffled"), 7, drop_last=True, workers=5) as loader:
        assert [len(numbers(batch)) for batch in loader] == [7] * 17
        state = json.dumps(loader.state_dict())
    with load(make(numbered, "shuffled"), 7, order="exact") as loader:
        loader.load_state_dict(json.loads(state))
        assert len([n for batch in loader for n in numbers(batch)]) == COUNT - COUNT // 7
        assert loader.epoch == 2
