"""The loader without workers and with threads."""

import gc
import json
import math
import pathlib
import pickle
import threading
import weakref

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import FlowError, NoSamples, SampleError, StateMismatch, UsageError
from webdataset.loading import thread_workers
from webdataset.loading.torch_trainers import read_state, write_state


def squares(count=50, size=4):
    """Return samples whose array, number and text agree."""
    return [{"__key__": str(n), "x": np.full((size, size), n), "n": n, "t": f"text {n}"} for n in range(count)]


def numbers(batches):
    """Return the numbers of all batches of (array, number) in order."""
    return [int(number) for batch in batches for number in batch[1]]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_batches_equal_the_collated_samples(workers):
    """Every batch holds what collating its samples gives: arrays stacked, numbers an array, texts a list."""
    samples = squares()
    with wds.Loader(samples, 8, workers=workers) as loader:
        for _ in range(2):
            for start, batch in zip(range(0, 50, 8), loader, strict=True):
                expected = wds.default_collation_fn(samples[start : start + 8])
                assert list(batch) == list(expected)
                for field, column in expected.items():
                    assert type(batch[field]) is type(column)
                    assert np.array_equal(batch[field], column)
                    assert getattr(batch[field], "dtype", None) == getattr(column, "dtype", None)


@pytest.mark.parametrize("sample", [np.arange(6.0), [np.zeros(3), 1], (np.zeros((2, 2), bool), "a", None)], ids=repr)
def test_samples_of_any_kind_are_batched(sample):
    """Bare arrays, lists and tuples become what the collation of the pipeline makes of them."""
    with wds.Loader([sample] * 6, 3, workers=2) as loader:
        for batch in loader:
            expected = wds.default_collation_fn([sample] * 3)
            assert repr(batch) == repr(expected)


ODD = {
    "no dimension": lambda n: (np.array(n), np.array(f"text {n}")),
    "foreign byte order": lambda n: {"x": np.full(3, n, ">i4"), "n": n},
    "another dtype later": lambda n: np.full(3, n, np.float32 if n > 10 else np.int16),
    "Fortran order": lambda n: np.asfortranarray(np.arange(6).reshape(2, 3) + n),
    "no rows": lambda n: (np.zeros((0, 3)), np.full(2, n)),
    "records": lambda n: (np.full(2, n), np.zeros(2, [("a", "i4"), ("b", "f8")])),
    "nested": lambda n: {"x": {"y": np.full(3, n)}, "z": [np.full(2, n)], "w": None, "b": bytearray(b"b")},
    "dates": lambda n: np.full(3, n, "M8[s]"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_odd_arrays_are_batched_alike_from_the_first_batch_to_the_last(kind, mode):
    """Batches that workers wrote, and those of samples that stood elsewhere, are those of the collation."""
    samples = [ODD[kind](n) for n in range(22)]
    start = "fork" if mode == "processes" else None
    with wds.Loader(samples, 4, workers=2, mode=mode, start_method=start) as loader:
        for _ in range(2):
            for first, batch in zip(range(0, 22, 4), loader, strict=True):
                expected = wds.default_collation_fn(samples[first : first + 4])
                assert repr(batch) == repr(expected)


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_order_of_an_elastic_dataset_does_not_depend_on_threads(elastic, order, workers):
    """Any number of threads gives the order of one run, in every epoch another."""
    with wds.Loader(elastic, 8, workers=workers) as loader:
        loader.set_epoch(0)
        first = list(loader)
        assert numbers(first) == order
        assert all((batch[0] == batch[1][:, None, None]).all() for batch in first)
        assert [len(batch[1]) for batch in first[:-1]] == [8] * (len(first) - 1)
        second = numbers(loader)
        assert sorted(second) == sorted(order)
        assert second != order


@pytest.mark.parametrize(("batch_size", "workers", "again"), [(8, 2, 3), (8, 0, 2), (None, 2, 0), (5, 3, 1)])
def test_a_state_continues_with_another_number_of_workers(elastic, order, batch_size, workers, again):
    """What a state leaves out is exactly what was received, at every step, whatever workers ran ahead."""
    with wds.Loader(elastic, batch_size, workers=workers) as loader, wds.Loader(elastic, 8, workers=again) as other:
        other.set_epoch(1)
        second = numbers(other)
        loader.set_epoch(0)
        received = []
        for step, batch in enumerate(loader):
            received += np.atleast_1d(batch[1]).tolist()
            if step % 13 == 4 or len(received) > len(order) - 12:
                other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                rest = numbers(other)
                assert received + rest == order or (received == order and rest == second)
        assert received == order


def test_a_state_at_the_end_goes_on_with_the_next_epoch(elastic):
    """Behind the last batch an epoch has nothing left: the next iteration is the next epoch."""
    with wds.Loader(elastic, 8, workers=2) as loader:
        loader.set_epoch(0)
        list(loader)
        state = loader.state_dict()
        following = numbers(loader)
    with wds.Loader(elastic, 8) as other:
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert numbers(other) == following


def test_a_state_before_the_first_batch_is_the_beginning(elastic, order):
    """A loader that gave nothing yet has a state, too."""
    with wds.Loader(elastic, 8) as loader:
        loader.set_epoch(0)
        state = loader.state_dict()
        loader.set_epoch(3)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert numbers(loader) == order


def test_ranks_together_give_the_batches_of_one(elastic, order, monkeypatch):
    """Two ranks' batches of half the size are, step by step, the batches of one rank; exactly, to the end."""
    with wds.Loader(elastic, 12, workers=2, exact=True) as loader:
        loader.set_epoch(0)
        whole = [sorted(batch[1].tolist()) for batch in loader]
    ranks = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with wds.Loader(elastic, 6, workers=2, exact=True) as loader:
            loader.set_epoch(0)
            ranks.append([batch[1].tolist() for batch in loader])
    longest = max(map(len, ranks))
    halves = [each + [[]] * (longest - len(each)) for each in ranks]
    assert sorted(sum(whole, [])) == sorted(order)
    full = [batch for batch in whole if len(batch) == 12]
    assert [sorted(a + b) for a, b in zip(*halves, strict=True)][: len(full)] == full
    assert sorted(number for each in ranks for batch in each for number in batch) == sorted(order)


def test_an_exact_loader_continues_at_its_windows(elastic):
    """With exact batches, continuing gives the same smaller batches at the end."""
    with wds.Loader(elastic, 6, workers=2, exact=True) as loader, wds.Loader(elastic, 6, exact=True) as other:
        loader.set_epoch(0)
        every = [batch[1].tolist() for batch in loader]
        assert {len(batch) for batch in every} > {6}
        loader.set_epoch(0)
        for step, _ in enumerate(loader, 1):
            if step < len(every) and (step % 5 == 0 or step > len(every) - 8):
                other.load_state_dict(loader.state_dict())
                assert [batch[1].tolist() for batch in other] == every[step:]


def test_set_epoch_tells_that_a_state_is_left(elastic):
    """A loop that begins at another epoch begins there, and is told; the state's own epoch is gone on with."""
    with wds.Loader(elastic, 8) as loader:
        loader.set_epoch(2)
        next(iter(loader))
        state = loader.state_dict()
        loader.set_epoch(2)
        second = numbers(loader)
        first = numbers(loader)
        loader.load_state_dict(state)
        loader.set_epoch(2)
        assert numbers(loader) == second[8:]
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match=r"set_epoch\(3\) begins epoch 3.* after 8 items of epoch 2") as told:
            loader.set_epoch(3)
        assert len(told) == 1
        assert told[0].filename == __file__
        assert numbers(loader) == first


def test_a_state_behind_set_epoch_is_the_beginning_of_that_epoch(elastic):
    """Between two epochs; within one, set_epoch is about the next, and the state about the present."""
    with wds.Loader(elastic, 8, workers=2) as loader:
        loader.set_epoch(5)
        fifth = numbers(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        next(batches)
        loader.set_epoch(5)
        within = loader.state_dict()
        assert (within["epoch"], within["received"]) == (0, 8)
        list(batches)
        loader.set_epoch(5)
        state = loader.state_dict()
        assert (state["epoch"], state["received"]) == (5, 0)
        again = iter(loader)
        assert loader.state_dict()["epoch"] == 5
        next(again)
        assert loader.state_dict()["received"] == 8
    with wds.Loader(elastic, 8) as other:
        other.load_state_dict(state)
        assert numbers(other) == fifth


def test_a_state_loaded_into_the_dataset_counts(elastic, order):
    """What the dataset was told to go on from, its loader goes on from, also where the state was looked at before."""
    with wds.Loader(elastic, 8) as loader:
        loader.set_epoch(0)
        batches = iter(loader)
        got = numbers([next(batches) for _ in range(4)])
        state = loader.state_dict()
    elastic.load_state_dict(state)
    with wds.Loader(elastic, 8, workers=2) as other:
        assert other.state_dict()["memories"] == state["memories"]
        assert got + numbers(other) == order


def test_a_dataset_that_is_not_elastic_has_no_state(numbered):
    """It says what to write."""
    loader = wds.Loader(wds.WebDataset(numbered), 4)
    with pytest.raises(FlowError, match=r"elastic\(\)"):
        loader.state_dict()
    with pytest.raises(StateMismatch, match=r"elastic\(\)"):
        loader.load_state_dict({"epoch": 0})


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_another_pipeline_is_shared_by_its_own_splitter(numbered, workers):
    """A plain dataset gives every sample once, with each thread reading its own shards."""
    seen = set()

    def noted(sample):
        seen.add((sample["__url__"], threading.get_ident()))
        return sample

    dataset = wds.WebDataset(numbered, shardshuffle=100).map(noted)
    with wds.Loader(dataset.decode().to_tuple("npy", "cls"), 8, workers=workers) as loader:
        found = numbers(loader)
    assert sorted(found) == list(range(140))
    assert len(seen) == 7


def test_a_pipeline_without_a_splitter_gives_each_sample_once():
    """Threads that all run the same list keep their own part of it, in order."""
    dataset = wds.DataPipeline([[(np.zeros(1), n) for n in range(20)]], wds.map(lambda sample: sample))
    with wds.Loader(dataset, 4, workers=3) as loader:
        assert numbers(loader) == list(range(20))


def test_an_iterator_cannot_be_shared():
    """Two threads on one iterator would lose or repeat samples: they are refused."""
    with pytest.raises(UsageError, match="iterator"):
        wds.Loader(iter([1, 2, 3]), workers=2)
    with wds.Loader(iter([1, 2, 3])) as loader:
        assert list(loader) == [1, 2, 3]


def test_an_iterable_is_told_the_epoch():
    """An object with ``set_epoch`` hears of it."""

    class Counting:
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch] * 3)

    with wds.Loader(Counting()) as loader:
        assert [list(loader), list(loader)] == [[0, 0, 0], [1, 1, 1]]


def test_arrays_of_different_shapes_become_a_list_or_an_error():
    """Ragged fields fall back to a list; ``ragged=False`` refuses them."""
    samples = [{"x": np.full(n % 3 + 1, n), "n": n} for n in range(12)]
    with wds.Loader(samples, 4, workers=2) as loader:
        batches = list(loader)
    assert [array.tolist() for batch in batches for array in batch["x"]] == [s["x"].tolist() for s in samples]
    assert np.concatenate([batch["n"] for batch in batches]).tolist() == list(range(12))
    with wds.Loader(samples, 4, ragged=False) as loader, pytest.raises(SampleError, match="different shapes"):
        list(loader)


def test_shapes_may_change_from_batch_to_batch():
    """A batch of one shape is an array even where the batches before had another shape."""
    samples = [(np.full((2 + n // 8, 3), n), n) for n in range(32)]
    with wds.Loader(samples, 4, workers=2) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [batch[0].shape for batch in batches] == [(4, 2 + n // 2, 3) for n in range(8)]
            assert numbers(batches) == list(range(32))
            assert all((batch[0][:, 0, 0] == batch[1]).all() for batch in batches)


def test_samples_with_other_fields_are_an_error():
    """A batch whose samples do not fit together says which fields they have."""
    with wds.Loader([{"a": 1}, {"b": 2}], 2) as loader, pytest.raises(SampleError, match=r"\['a'\] and \['b'\]"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_empty_dataset_is_an_error(tmp_path, workers):
    """Shards without samples raise, as without a loader; an empty epoch that was asked for does not."""
    path = str(tmp_path / "empty.tar")
    wds.TarWriter(path).close()
    for dataset in (wds.WebDataset(path), wds.WebDataset(path).elastic(streams=2)):
        with wds.Loader(dataset, 4, workers=workers) as loader, pytest.raises(NoSamples):
            list(loader)
    with wds.Loader(wds.WebDataset(path, empty_check=False).elastic(streams=2), 4, workers=workers) as loader:
        assert list(loader) == []


def test_collate_and_drop_last():
    """A function of the user's makes the batch; a smaller last batch can be left out."""
    with wds.Loader(squares(10), 4, workers=2, collate=lambda s: [each["n"] for each in s], drop_last=True) as loader:
        assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_batches_that_are_kept_are_never_overwritten():
    """Memory is used again only when the batch, and every view of it, is gone."""
    samples = [(np.full((100, 100), n), n) for n in range(64)]
    with wds.Loader(samples, 4, workers=2, prefetch=3) as loader:
        kept = [batch[0][1, ::2] for batch in loader]
        assert [int(view[3, 3]) for view in kept] == list(range(1, 64, 4))
        made = loader.stats().memory_bytes
        del kept
        for _ in range(3):
            for batch in loader:
                assert (batch[0] == batch[1][:, None, None]).all()
        assert loader.stats().memory_bytes == made


def test_memory_goes_round():
    """A consumer that lets batches go needs as many blocks as may be in flight, not one a batch."""
    samples = [(np.full((64, 64), n), n) for n in range(400)]
    with wds.Loader(samples, 4, workers=2, prefetch=3) as loader:
        for _ in loader:
            pass
        assert 4 * 64 * 64 * 8 <= loader.stats().memory_bytes <= 7 * 4 * 64 * 64 * 8


def test_workers_wait_for_a_slow_consumer():
    """Threads read no further ahead than was allowed."""
    drawn = []

    class Source:
        def __len__(self):
            return 400

        def __getitem__(self, n):
            drawn.append(n)
            return np.zeros(1000), n

    with wds.Loader(Source(), 4, workers=2, prefetch=2) as loader:
        for step, batch in enumerate(loader):
            assert numbers([batch]) == list(range(4 * step, 4 * step + 4))
            assert max(drawn) < 4 * (step + 4)
            if step == 20:
                break


def test_in_flight_memory_is_bounded_in_bytes():
    """The bound in bytes holds before the one in batches, also for samples that travel beside the batch."""
    drawn = []

    class Source:
        def __len__(self):
            return 200

        def __getitem__(self, n):
            drawn.append(n)
            return np.zeros(1000 + n), n  # of different shapes

    with wds.Loader(Source(), 4, workers=2, prefetch=50, prefetch_bytes=3 * 4 * 8200) as loader:
        for step, _ in enumerate(loader):
            if step == 30:
                break
            assert step < 10 or max(drawn) < 4 * (step + 5)


def test_an_error_comes_in_its_turn_and_the_loader_goes_on():
    """Batches before the failing sample arrive; then the error, with the thread's traceback; a new epoch works."""

    class Source:
        broken = True

        def __len__(self):
            return 40

        def __getitem__(self, n):
            if n == 21 and self.broken:
                raise KeyError("sample 21")
            return np.zeros(2), n

    source = Source()
    with wds.Loader(source, 4, workers=2) as loader:
        got = []
        with pytest.raises(KeyError, match="sample 21") as caught:
            got.extend(loader)
        assert numbers(got) == list(range(20))
        assert any(entry.name == "__getitem__" for entry in caught.traceback)
        assert loader.stats().failures == 1
        source.broken = False
        assert numbers(loader) == list(range(40))


def test_a_dataset_that_cannot_start_says_so():
    """An error before the first sample arrives as well."""

    class Source:
        def __iter__(self):
            raise OSError("no disk")

    with wds.Loader(Source(), 4, workers=2) as loader, pytest.raises(OSError, match="no disk"):
        list(loader)


def test_system_exit_in_a_thread_reaches_the_consumer():
    """A user's function that exits does not leave the consumer waiting."""

    def leave(sample):
        raise SystemExit(3)

    with wds.Loader(wds.DataPipeline([[1, 2]], wds.map(leave)), 1, workers=1) as loader, pytest.raises(SystemExit):
        list(loader)


def test_leaving_early_ends_the_epoch_and_no_thread():
    """Breaking out of an epoch fifty times needs no more threads than one does; closing ends them all."""
    before = threading.active_count()
    loader = wds.Loader(squares(200), 4, workers=2)
    for _ in range(50):
        for batch in loader:
            assert batch["n"].tolist() == [0, 1, 2, 3]
            break
        assert threading.active_count() == before + 2
    loader.close()
    assert threading.active_count() == before
    loader.close()


def test_a_forgotten_loader_ends_its_threads():
    """Threads do not keep a loader alive."""
    before = set(threading.enumerate())  # servers of other tests may still be ending theirs
    for batch in wds.Loader(squares(), 4, workers=2):
        assert len(set(threading.enumerate()) - before) == 2
        break
    del batch
    gc.collect()
    assert set(threading.enumerate()) <= before


def test_a_new_iteration_ends_the_one_before():
    """One loader runs one epoch at a time; who asks the earlier one for more is told, and does not see it end."""
    with wds.Loader(squares(), 4, workers=2) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert next(second)["n"].tolist() == [0, 1, 2, 3]
        with pytest.raises(FlowError, match="another one was begun"):
            next(first)
        assert len(list(second)) == 12
        assert list(second) == []
        third = iter(loader)
        assert len(list(third)) == 13
        iter(loader)
        assert list(third) == []  # it was over before


def test_one_loader_cannot_be_read_twice_at_once():
    """Loops within loops and zip would leave samples out without a word."""
    with wds.Loader(squares(), 4, workers=2) as loader:
        with pytest.raises(FlowError, match="make two loaders"):
            list(zip(loader, loader, strict=True))
        with pytest.raises(FlowError, match="make two loaders"):
            [1 for _ in loader for _ in loader]


@pytest.mark.parametrize("way", ["close", "load_state_dict"])
def test_a_loop_that_is_ended_from_within_is_told(elastic, way):
    """Closing a loader, or loading a state into it, in the middle of a loop does not look like the end of the epoch."""
    with wds.Loader(elastic, 8, workers=2) as loader:
        batches = iter(loader)
        next(batches)
        loader.close() if way == "close" else loader.load_state_dict(loader.state_dict())
        with pytest.raises(FlowError, match=way.removesuffix("e")):
            next(batches)


def test_a_loader_that_another_thread_waits_for_says_so():
    """Closing it then is an error with a name, not one about generators."""
    asked, go = threading.Event(), threading.Event()

    class Slow:
        def __len__(self):
            return 8

        def __getitem__(self, number):
            asked.set()
            go.wait()
            return number

    with wds.Loader(Slow(), 4, workers=1) as loader:
        batches = iter(loader)
        consumer = threading.Thread(target=next, args=(batches,))
        consumer.start()
        asked.wait()
        with pytest.raises(FlowError, match="another thread"):
            loader.close()
        go.set()
        consumer.join()
        assert next(batches).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"collate": list}, "collate"),
        ({"drop_last": True}, "drop_last"),
        ({"exact": True}, "exact"),
        ({"ragged": False}, "ragged"),
        ({"batch_size": "4"}, "batch_size"),
        ({"batch_size": 4, "workers": 1.5}, "workers"),
        ({"batch_size": 4, "prefetch": 2.5}, "prefetch"),
        ({"batch_size": 4, "workers": None}, "workers"),
    ],
)
def test_arguments_that_would_do_nothing_are_refused(arguments, name):
    """What is about batches needs a batch size; counts are whole numbers."""
    with pytest.raises(UsageError, match=f"^{name}="):
        wds.Loader([1, 2], **arguments)


def test_epochs_and_states_that_are_none_are_refused(elastic):
    """The message says what they should have been."""
    with wds.Loader(elastic, np.int64(8)) as loader:  # type: ignore[arg-type]
        for epoch in (-1, "2", None):
            with pytest.raises(UsageError, match="numbered from 0"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]
        for state in (None, "state.json", [loader.state_dict()]):
            with pytest.raises(StateMismatch, match="state_dict"):
                loader.load_state_dict(state)  # type: ignore[arg-type]
        loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
        assert loader.state_dict()["epoch"] == 3


def test_numbers_of_numpy_are_a_column():
    """Labels that numpy has made are numbers like all others."""
    with wds.Loader([(np.int64(n), np.bool_(n % 2), n) for n in range(4)], 4) as loader:
        ((labels, odd, numbers),) = loader
    assert labels.dtype == np.int64
    assert labels.tolist() == numbers.tolist() == [0, 1, 2, 3]
    assert odd.tolist() == [False, True, False, True]


def test_a_loader_travels_with_its_state(elastic, order):
    """A pickled loader has no workers, and goes on where it was."""
    with wds.Loader(elastic, 8, workers=2) as loader:
        loader.set_epoch(0)
        batches = iter(loader)
        got = [next(batches) for _ in range(3)]
        other = pickle.loads(pickle.dumps(loader))
    with other:
        assert numbers(got) + numbers(other) == order


def test_wrong_arguments_are_refused():
    """Each mistake says what to write."""
    for wrong in ({"batch_size": 0}, {"workers": -1}, {"mode": "fibres"}, {"prefetch": -1}, {"pin_memory": True}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            wds.Loader([], **wrong)
    with pytest.raises(UsageError, match="int"):
        wds.Loader(3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"collate": "x"}, "collate='x': .* write collate=function"),
        ({"drop_last": "no"}, "drop_last='no' is a text, which counts as True whatever it says"),
        ({"ragged": "no"}, "write ragged=True or False"),
        ({"exact": "no"}, "write exact=True or False"),
        ({"timings": "no"}, "write timings=True or False"),
        ({"prefetch_bytes": "x"}, "prefetch_bytes='x'"),
        ({"prefetch_bytes": -1}, "prefetch_bytes=-1"),
        ({"prefetch_bytes": math.inf}, "prefetch_bytes=inf"),
        ({"start_method": "thread"}, "start_method='thread': this system has .*spawn"),
        ({"dataset": "train.tar"}, r"reads a dataset, not urls: write wds\.Loader\(wds\.WebDataset\(urls"),
        ({"dataset": pathlib.Path("train.tar")}, "not urls"),
        ({"dataset": b"train.tar"}, "not urls"),
        ({"dataset": wds.WebDataset}, r"not its class: write wds\.Loader\(WebDataset\("),
        ({"dataset": list}, "not its class"),
        ({"dataset": {"a": 1}}, r"list\(samples\.values\(\)\)"),
    ],
)
def test_wrong_options_fail_where_they_are_given(arguments, said):
    """Not with the first batch, and not in a worker: nothing is iterated here."""
    with pytest.raises(UsageError, match=said):
        wds.Loader(**{"dataset": [1, 2], "batch_size": 4, **arguments})


def test_options_as_programs_compute_them():
    """Bytes that are a float, samples by number in a dictionary, flags of numpy."""
    with wds.Loader({0: 5, 1: 6}, 2, prefetch_bytes=1e9 / 3, drop_last=np.bool_(1)) as loader:  # type: ignore[arg-type]
        assert [batch.tolist() for batch in loader] == [[5, 6]]


def test_samples_without_batches_come_as_they_are():
    """Without a batch size, the dataset's own items are delivered, the same objects."""
    samples = squares(40)
    with wds.Loader(samples, workers=3) as loader:
        assert [id(sample) for sample in loader] == [id(sample) for sample in samples]


def test_system_exit_in_a_thread_comes_in_its_turn():
    """Whatever a function raises, in whatever batch, reaches the consumer behind the batches before it."""

    def leave(n):
        if n == 21:
            raise SystemExit(3)
        return n

    got = []
    with wds.Loader(wds.DataPipeline([list(range(40))], wds.map(leave)), 4, workers=2) as loader:
        with pytest.raises(SystemExit):
            got.extend(loader)
    assert [batch.tolist() for batch in got] == [list(range(start, start + 4)) for start in range(0, 20, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_objects_of_different_shapes_beside_an_array_become_a_list(workers):
    """A field without a column is as ragged as any other, also where the others have columns."""
    samples = [{"x": np.zeros((4, 4)), "o": np.full(n % 3 + 1, None)} for n in range(12)]
    with wds.Loader(samples, 4, workers=workers) as loader:
        for start, batch in zip((0, 4, 8), loader, strict=True):
            assert batch["x"].shape == (4, 4, 4)
            assert [o.shape for o in batch["o"]] == [(n % 3 + 1,) for n in range(start, start + 4)]
    with wds.Loader(samples, 4, workers=workers, ragged=False) as loader, pytest.raises(SampleError, match="shapes"):
        list(loader)


def test_numbers_of_python_and_numpy_are_one_column():
    """A column of numbers is an array, whoever made them; an array among them makes it a list."""
    with wds.Loader([(1, 1), (np.int64(2), 2.5), (3, np.float32(3)), (4, np.zeros(2))], 2) as loader:
        (ints, floats), (more, mixed) = loader
    assert (ints.tolist(), floats.tolist(), more.tolist()) == ([1, 2], [1, 2.5], [3, 4])
    assert isinstance(mixed, list)


def test_what_could_not_start_is_tried_again_from_the_same_state(elastic, order, monkeypatch):
    """A system that has no room for a thread costs neither the state that was loaded nor the epoch."""
    with wds.Loader(elastic, 8) as loader:
        loader.set_epoch(0)
        batches = iter(loader)
        got = numbers([next(batches) for _ in range(4)])
        state = loader.state_dict()

    start, before = threading.Thread.start, threading.active_count()

    def full(thread):
        if thread.name.endswith("-1"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with wds.Loader(elastic, 8, workers=2) as loader:
        loader.load_state_dict(state)
        monkeypatch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="new thread"):
            list(loader)
        monkeypatch.undo()
        assert threading.active_count() == before
        assert loader.state_dict() == state
        assert got + numbers(loader) == order


def test_a_state_loaded_into_the_dataset_of_a_loader_counts(elastic, order):
    """It does not matter whether the loader or the state was there first."""
    with wds.Loader(elastic, 8) as loader, wds.Loader(elastic, 8, workers=2) as other:
        loader.set_epoch(0)
        batches = iter(loader)
        got = numbers([next(batches) for _ in range(4)])
        elastic.load_state_dict(loader.state_dict())
        other.set_epoch(0)
        assert got + numbers(other) == order
        elastic.load_state_dict(loader.state_dict())
        with pytest.warns(UserWarning, match="of epoch 0"):
            other.set_epoch(2)
        assert sorted(numbers(other)) == sorted(order)


def test_a_closed_loader_keeps_no_worker_pool():
    """Closing after each epoch leaves nothing of the workers of earlier ones."""
    loader = wds.Loader(squares(), 4, workers=1)
    pools = []
    for _ in range(3):
        for _ in loader:
            break
        pools.append(weakref.ref(loader._pool))
        loader.close()
    gc.collect()
    assert [pool() for pool in pools] == [None] * 3


@pytest.mark.parametrize("patient", [True, False])
def test_closing_waits_briefly_for_a_read(monkeypatch, patient):
    """Threads that end soon have ended when ``close`` returns; one that sits in a read is left behind."""
    reading, goes_on = threading.Event(), threading.Event()

    class Source:
        def __iter__(self):
            yield from ({"n": n} for n in range(1000))
            reading.set()
            goes_on.wait(60)

    if not patient:
        monkeypatch.setattr(thread_workers, "_PATIENCE_SECONDS", 0.05)
    loader = wds.Loader(Source(), 8, workers=1, mode="threads")
    batches = iter(loader)
    while not reading.wait(0.01):
        next(batches)
    (thread,) = [each for each in threading.enumerate() if each.name.startswith("webdataset-loader-")]
    timer = threading.Timer(0.3, goes_on.set)
    if patient:
        timer.start()
    loader.close()
    assert thread.is_alive() is not patient
    goes_on.set()
    thread.join()
    timer.cancel()


def test_states_in_checkpoints(tmp_path, monkeypatch):
    """Each rank writes a file of its own, again if it must; what is incomplete, or of several jobs, is refused."""
    folder = tmp_path / "new" / "checkpoint-7"
    made = wds.WebDataset([f"{n}.tar" for n in range(4)], shardshuffle=False, seed=1).elastic(4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    state = made.state_dict()
    write_state(folder, {"old": True})
    write_state(folder, state)
    with pytest.raises(UsageError, match=r"of ranks \['1'\], not those of all ranks"):
        read_state(folder)
    monkeypatch.setenv("RANK", "0")
    write_state(folder, state)
    assert sorted(path.name for path in folder.iterdir()) == ["webdataset-0-of-2.json", "webdataset-1-of-2.json"]
    assert json.loads((folder / "webdataset-1-of-2.json").read_text()) == json.loads(json.dumps(state))
    assert read_state(folder)["kind"] == state["kind"]
    write_state(folder, {"of": 0})
    assert read_state(folder) == {"of": 0}
    monkeypatch.setenv("RANK", "1")
    assert read_state(folder) == json.loads(json.dumps(state))
    write_state(folder, state)
    monkeypatch.setenv("RANK", "0")
    write_state(folder, state)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert read_state(folder)["received"] == 2 * state["received"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    (folder / "webdataset-0-of-1.json").write_text("{}")
    with pytest.raises(UsageError, match="not those of all ranks"):
        read_state(folder)


def test_workers_that_are_ended_are_no_end_of_the_epoch():
    """Where exit handlers close the workers, an epoch that a thread still reads does not end as if it were complete."""
    loader = wds.Loader(list(range(200)), 5, workers=2)
    batches = iter(loader)
    next(batches)
    loader._pool.close()
    with pytest.raises(FlowError, match="were ended before the end"):
        list(batches)


@pytest.mark.parametrize(("mode", "workers"), [("threads", 0), ("threads", 2), ("processes", 2)])
def test_an_interrupt_just_after_an_epoch_was_begun(elastic, monkeypatch, mode, workers):
    """Samples of the epoch that was begun do not come in the place of another's."""

    def interrupt():
        raise KeyboardInterrupt

    with wds.Loader(elastic, 8) as loader:
        expected = [numbers(loader) for _ in range(3)]
    with wds.Loader(elastic, 8, workers=workers, mode=mode) as loader:
        loader.set_epoch(0)
        assert numbers(loader) == expected[0]
        with monkeypatch.context() as patch:
            # called next
            patch.setattr(loader, "_forget", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        for epoch in (2, 0, 1):
            loader.set_epoch(epoch)
            assert numbers(loader) == expected[epoch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_a_sample_is_made(kind, workers):
    """Ctrl-C and sys.exit in the middle of a sample come out as what they are, and the loader can be used again."""
    raised = []

    def stop(sample):
        if sample == 7 and not raised:
            raised.append(sample)
            raise kind("stop")
        return sample

    class Stopping(list):
        def __getitem__(self, index):
            return stop(super().__getitem__(index))

    loader = wds.Loader(Stopping(range(50)), 5, workers=workers)
    with pytest.raises(kind, match="stop"):
        list(loader)
    assert sum(len(batch) for batch in loader) == 50
