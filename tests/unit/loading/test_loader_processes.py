"""The loader with worker processes."""

import contextlib
import gc
import io
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import FlowError, UsageError, WorkerDied

METHODS = ["fork", "forkserver", "spawn"]


def squares(count=50, size=4):
    """Return samples whose array, number and text agree."""
    return [{"__key__": str(n), "x": np.full((size, size), n), "n": n, "t": f"text {n}"} for n in range(count)]


def numbers(batches):
    """Return the numbers of all batches of (array, number) in order."""
    return [int(number) for batch in batches for number in batch[1]]


def processes(dataset, batch_size=None, workers=2, start_method="fork", **kw):
    """Return a loader with processes."""
    return wds.Loader(dataset, batch_size, workers=workers, mode="processes", start_method=start_method, **kw)


@pytest.mark.parametrize(
    ("start_method", "workers"), [("fork", 1), ("fork", 2), ("fork", 4), *((m, 2) for m in METHODS[1:])]
)
def test_order_does_not_depend_on_processes(elastic, order, start_method, workers):
    """Any number of processes, started in any way, gives the order of one run; they live for all epochs."""
    with processes(elastic, 8, workers, start_method) as loader:
        loader.set_epoch(0)
        first = list(loader)
        assert numbers(first) == order
        assert all((batch[0] == batch[1][:, None, None]).all() for batch in first)
        pids = {child.pid for child in multiprocessing.active_children()}
        second = numbers(loader)
        assert sorted(second) == sorted(order)
        assert second != order
        assert {child.pid for child in multiprocessing.active_children()} == pids


@pytest.mark.parametrize("start_method", METHODS)
def test_lambdas_and_local_functions_travel(numbered, start_method):
    """A pipeline of lambdas runs under every start method."""
    offset = 1000
    dataset = wds.WebDataset(numbered, seed=1).decode().to_tuple("npy", "cls")
    with processes(dataset.map(lambda s: (s[0] + offset, s[1])).elastic(streams=12), 8, 2, start_method) as loader:
        batches = list(loader)
    assert sorted(numbers(batches)) == list(range(140))
    assert all((batch[0][:, 0, 0] == batch[1] + offset).all() for batch in batches)


@pytest.mark.parametrize(
    ("batch_size", "mode", "workers"), [(8, "threads", 3), (8, "processes", 1), (None, "threads", 0)]
)
def test_a_state_continues_in_threads_and_processes(elastic, order, batch_size, mode, workers):
    """What processes gave, threads continue, and the other way round."""
    with processes(elastic, batch_size) as loader, wds.Loader(elastic, 8, workers=workers, mode=mode) as other:
        other.set_epoch(1)
        second = numbers(other)
        loader.set_epoch(0)
        received = []
        for step, batch in enumerate(loader):
            received += np.atleast_1d(batch[1]).tolist()
            if step in (0, 3, 7, 17):
                other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                assert received + numbers(other) == (order if len(received) < len(order) else received + second)


def test_batches_equal_the_collated_samples():
    """Every batch holds what collating its samples gives."""
    samples = squares()
    with processes(samples, 8) as loader:
        for start, batch in zip(range(0, 50, 8), loader, strict=True):
            expected = wds.default_collation_fn(samples[start : start + 8])
            assert list(batch) == list(expected)
            for field, column in expected.items():
                assert type(batch[field]) is type(column)
                assert np.array_equal(batch[field], column)
                assert getattr(batch[field], "dtype", None) == getattr(column, "dtype", None)


def test_arrays_are_writable_and_kept_ones_never_overwritten():
    """A batch is the consumer's own for as long as anything refers to it."""
    samples = [(np.full((100, 100), n), n) for n in range(64)]
    with processes(samples, 4, prefetch=2) as loader:
        kept = [batch[0][1, ::2] for batch in loader]
        for number, view in enumerate(kept):
            view += 1
            assert int(view[3, 3]) == 4 * number + 2
        made = loader.stats().memory_bytes
        del kept, view
        for _ in range(3):
            for batch in loader:
                assert (batch[0] == batch[1][:, None, None]).all()
        assert loader.stats().memory_bytes == made


def test_memory_goes_round():
    """As many blocks as may be in flight are enough for any number of batches."""
    samples = [(np.full((64, 64), n), n) for n in range(400)]
    with processes(samples, 4, prefetch=3) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        assert loader.stats().memory_bytes <= 8 * 4 * 64 * 64 * 8


@pytest.mark.parametrize("ragged", [False, True])
def test_a_consumer_that_keeps_everything_needs_no_descriptor_a_batch(ragged):
    """Beyond some blocks, batches are copied: two hundred kept ones are whole, and few files are open."""
    samples = [(np.full((60, 50 + n % 2 * ragged), n), n) for n in range(800)]
    with processes(samples, 4, 1) as loader:
        before = len(os.listdir("/proc/self/fd"))
        kept = list(loader)
        assert len(os.listdir("/proc/self/fd")) - before < 90
        assert numbers(kept) == list(range(800))
        assert all(int(array.min()) == int(array.max()) == n for batch in kept for array, n in zip(*batch, strict=True))


@pytest.mark.parametrize("size", [3, 200_000])
def test_ragged_samples_come_through(size):
    """Arrays of different shapes, small ones through the pipe and large ones through shared memory."""
    samples = [{"x": np.full((n % 3 + 1, size), n), "n": n, "raw": bytes([n]) * size} for n in range(12)]
    with processes(samples, 4) as loader:
        for _ in range(2):
            kept = list(loader)
            for batch, start in zip(kept, (0, 4, 8), strict=True):
                for n, array, raw in zip(range(start, start + 4), batch["x"], batch["raw"], strict=True):
                    assert np.array_equal(array, samples[n]["x"])
                    assert raw == samples[n]["raw"]
                    array += 1  # writable, and nobody else's


def test_samples_without_batches_come_through():
    """Without a batch size the dataset's own items arrive, in order."""
    samples = [*squares(40), None, 3, "text"]
    with processes(samples) as loader:
        for sample, expected in zip(loader, samples, strict=True):
            assert repr(sample) == repr(expected)


def test_workers_wait_for_a_slow_consumer(tmp_path):
    """Processes read no further ahead than was allowed, whether samples have columns or not."""
    log = tmp_path / "log"

    class Source:
        def __init__(self, ragged):
            self.ragged = ragged

        def __len__(self):
            return 200

        def __getitem__(self, n):
            with log.open("a") as file:
                file.write(f"{n}\n")
            return np.zeros(1000 + (n if self.ragged else 0)), n

    for ragged in (False, True):
        log.unlink(missing_ok=True)
        with processes(Source(ragged), 4, prefetch=2) as loader:
            for step, batch in enumerate(loader):
                assert numbers([batch]) == list(range(4 * step, 4 * step + 4))
                assert max(map(int, log.read_text().split())) < 4 * (step + 4)
                if step == 10:
                    break


def test_an_error_arrives_with_the_workers_traceback_and_its_place(numbered):
    """The exception is the user's own, says url and key, and shows the worker's frames; then the loader goes on."""

    def broken(sample):
        if sample["__key__"] == "00021":
            raise ArithmeticError("no such number")
        return sample

    dataset = wds.WebDataset(numbered).map(broken).decode().elastic(streams=12)
    with processes(dataset, 4) as loader:
        with pytest.raises(ArithmeticError, match="no such number") as caught:
            list(loader)
        notes = "\n".join(caught.value.__notes__)
        assert "in broken" in notes
        assert "in worker" in notes
        assert "00021" in notes
        assert "shard-1.tar" in notes
        with pytest.raises(ArithmeticError):
            list(loader)


def test_an_error_that_cannot_be_pickled_still_says_what_happened():
    """An exception class that only the worker knows arrives as FlowError with its words."""

    def broken(sample):
        class Own(Exception):
            def __init__(self, one, two):
                super().__init__(f"{one} and {two}")

        raise Own("this", "that")

    with processes(wds.DataPipeline([[1, 2]], wds.map(broken)), 1) as loader:
        with pytest.raises(FlowError, match="this and that"):
            list(loader)


def test_a_sample_that_cannot_be_pickled_is_named():
    """The error says what to do."""
    with processes(wds.DataPipeline([[1, 2]], wds.map(lambda s: (n for n in [s]))), 1) as loader:
        with pytest.raises(FlowError, match=r"cannot be pickled \(.*generator.*mode='threads'"):
            list(loader)


class OneWay:
    """Can be pickled, and not unpickled: as many exceptions and third-party objects."""

    def __reduce__(self):
        return OneWay._made, (1,)

    @staticmethod
    def _made(number):
        raise TypeError(f"missing argument behind {number}")


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_sample_that_cannot_be_unpickled_is_named(size):
    """The program learns what it was, and how to go on."""
    samples = [(OneWay(), np.zeros(size)) for _ in range(8)]
    with processes(samples, 4) as loader, pytest.raises(FlowError, match=r"cannot be unpickled \(TypeError: missing"):
        list(loader)


def test_large_objects_travel_in_memory_that_is_used_again():
    """What is no array travels beside the batch; the worker writes where the consumer has read."""
    samples = [{"n": n, "text": f"{n} " * 20_000, "more": [bytes([n]) * 50_000]} for n in range(60)]
    with processes(samples, 3, workers=1) as loader:
        for _ in range(2):
            found = [batch for batch in loader]
            assert [text for batch in found for text in batch["text"]] == [sample["text"] for sample in samples]
            assert [more for batch in found for more in batch["more"]] == [sample["more"] for sample in samples]


class Locked:
    """A dataset of the user's that holds a lock."""

    def __init__(self):
        self.lock = threading.Lock()

    def __iter__(self):
        return iter([{"n": 1}])


def test_a_dataset_that_cannot_be_sent_is_named():
    """Where it is no pipeline, it is the dataset itself."""
    with processes(Locked(), 1, start_method="spawn") as loader:
        with pytest.raises(UsageError, match="since it cannot be pickled: .*lock"):
            list(loader)


def test_a_dataset_that_cannot_start_says_so():
    """An error before the first sample arrives as well, an operating system's too."""

    class Source:
        def __iter__(self):
            raise FileNotFoundError(2, "no disk")

    with processes(Source()) as loader:
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="no disk"):
                list(loader)


@pytest.mark.parametrize("when", ["reading", "waiting"])
def test_a_killed_worker_is_reported(elastic, order, when):
    """The error names the worker, how it ended and after which sample; the state goes on without loss."""
    with processes(elastic, 8) as loader:
        loader.set_epoch(0)
        received = []

        def consume():
            for step, batch in enumerate(loader):
                received.extend(batch[1].tolist())
                if step == 2:
                    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
                    time.sleep(0.3 if when == "waiting" else 0)

        with pytest.raises(WorkerDied, match="SIGKILL") as caught:
            consume()
        assert caught.value.exit_code == -9
        assert caught.value.worker in (0, 1)
        assert "of index" in str(caught.value)
        assert "shard-" in caught.value.url
        assert not multiprocessing.active_children()
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert received + numbers(loader) == order


def test_a_worker_that_exits_is_reported(numbered):
    """A user's function that ends the process is found out, with the sample before it."""

    def leave(sample):
        if sample["__key__"] == "00012":
            os._exit(7)
        return sample

    with processes(wds.WebDataset(numbered).map(leave).elastic(streams=12), 2, 1) as loader:
        with pytest.raises(WorkerDied, match="exit code 7") as caught:
            list(loader)
    assert caught.value.exit_code == 7
    assert "shard-" in caught.value.url
    assert caught.value.key


@pytest.mark.parametrize("dies", [0, 1])
def test_a_worker_that_dies_is_reported_while_another_is_waited_for(dies):
    """Soon, though the consumer waits for the other one, which gives nothing (for longer than a test may take)."""

    def work(sample):
        if multiprocessing.current_process().name.endswith(str(dies)):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    dataset = wds.DataPipeline(lambda: iter(range(8)), wds.split_by_worker, wds.map(work))
    with processes(dataset, 4, start_method="fork") as loader, pytest.raises(WorkerDied) as caught:
        list(loader)
    assert caught.value.worker == dies


def test_leaving_early_costs_no_process_and_no_descriptor():
    """Fifty epochs broken off after a batch leave as many children and descriptors as the first."""
    samples = [(np.full((50, 50 + n % 2 * 9), n), n) for n in range(100)]
    with processes(samples, 4) as loader:
        counts = []
        for _ in range(50):
            for batch in loader:
                assert numbers([batch]) == [0, 1, 2, 3]
                break
            counts.append(len(os.listdir("/proc/self/fd")))
            assert len(multiprocessing.active_children()) == 2
        assert max(counts[30:]) - max(counts[:10]) < 15  # blocks that happen to be in use, not one an epoch
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_leaving_the_block_ends_the_workers(mode):
    """Though the loader is kept, and in the middle of an epoch, whether or not by an exception."""
    for failing in (False, True):
        before = threading.active_count()
        loader = wds.Loader(squares(), 4, workers=2, mode=mode)
        with pytest.raises(ZeroDivisionError) if failing else contextlib.nullcontext(), loader:
            batches = iter(loader)
            next(batches)
            assert multiprocessing.active_children() or threading.active_count() > before
            if failing:
                raise ZeroDivisionError
        assert not multiprocessing.active_children()
        assert threading.active_count() == before
        loader.close()


def test_a_forgotten_loader_ends_its_processes():
    """Nothing needs to be closed by hand."""
    gc.collect()
    fds = len(os.listdir("/proc/self/fd"))
    for batch in processes(squares(), 4):
        assert len(multiprocessing.active_children()) == 2
        break
    del batch
    gc.collect()
    assert not multiprocessing.active_children()
    assert len(os.listdir("/proc/self/fd")) == fds


def test_workers_draw_differently():
    """Forked workers do not share one generator."""

    def drawn(n):
        return n, random.random(), float(np.random.random())  # noqa: NPY002  what users draw from

    dataset = wds.DataPipeline([list(range(40))], wds.map(drawn))
    with processes(dataset) as loader:
        found = list(loader)
    assert [n for n, _, _ in found] == list(range(40))
    assert len({own for _, own, _ in found}) == 40
    assert len({own for _, _, own in found}) == 40


@pytest.mark.parametrize("method", METHODS)
def test_what_workers_draw_from_torch(numbered, method):
    """Its generator is a worker's own, follows the seed, and is another than that of this process."""
    torch = pytest.importorskip("torch")

    def drawn(sample):
        return sample["__key__"], float(torch.rand(1, dtype=torch.float64)), torch.get_num_threads()

    before = torch.get_rng_state()
    found = []
    for _ in range(2):
        dataset = wds.WebDataset(numbered[:2], seed=3).map(drawn).elastic(streams=4)
        with processes(dataset, start_method=method) as loader:
            found.append(sorted(loader))
    assert found[0] == found[1]
    assert len({own for _, own, _ in found[0]}) == len(found[0]) > 20
    assert {threads for *_, threads in found[0]} == {1}
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", METHODS)
def test_what_workers_draw_from_torch_that_a_function_loads(numbered, method):
    """The same where the first import in a worker stands in the function."""
    pytest.importorskip("torch")

    def drawn(sample):
        import torch

        return sample["__key__"], float(torch.rand(1, dtype=torch.float64)), torch.get_num_threads()

    found = []
    for _ in range(2):
        dataset = wds.WebDataset(numbered[:2], seed=3).map(drawn).elastic(streams=4)
        with processes(dataset, start_method=method) as loader:
            found.append(sorted(loader))
    assert found[0] == found[1]
    assert len({own for _, own, _ in found[0]}) == len(found[0]) > 20
    assert {threads for *_, threads in found[0]} == {1}


def test_what_workers_draw_follows_a_seed_and_the_epoch(numbered):
    """Generators of workers are reproducible where the dataset is, and differ from epoch to epoch and run to run."""

    def drawn(dataset, epoch):
        with processes(dataset.map(lambda sample: random.random()).elastic(streams=4)) as loader:
            loader.set_epoch(epoch)
            return list(loader)

    seeded = wds.WebDataset(numbered[:2], seed=3)
    assert drawn(seeded, 0) == drawn(seeded, 0) != drawn(seeded, 1)
    assert drawn(wds.WebDataset(numbered[:2]), 0) != drawn(wds.WebDataset(numbered[:2]), 0)


def test_batches_stand_in_memory_without_a_name():
    """While batches are made and kept, this process maps no file of /dev/shm, but files that have no name."""
    before = Path("/proc/self/maps").read_text().count("/dev/shm/")  # of other tests
    with processes([(np.zeros((100, 100 + n % 3)), n) for n in range(60)], 4) as loader:
        kept = [batch for batch, _ in zip(loader, range(5), strict=False)]
        maps = Path("/proc/self/maps").read_text()
        assert len(kept) == 5
    assert "memfd:webdataset (deleted)" in maps
    assert maps.count("/dev/shm/") <= before


def test_a_process_that_may_have_no_children_is_told_so():
    """Inside a daemonic worker the loader says which modes there are."""

    def inside(pipe):
        try:
            list(processes([1, 2]))
        except UsageError as error:
            pipe.send(str(error))

    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=inside, args=(theirs,), daemon=True)
    child.start()
    assert ours.poll(20)
    assert "mode='threads'" in ours.recv()
    child.join()


def test_a_loader_may_be_used_after_a_fork():
    """A child that inherits a running loader starts workers of its own, and leaves its parent's alone."""
    loader = wds.Loader([(np.zeros(2), n) for n in range(20)], 4, workers=2)
    batches = iter(loader)
    next(batches)

    def inside(pipe):
        pipe.send(numbers(loader))

    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=inside, args=(theirs,))
    child.start()
    assert ours.poll(20)
    assert ours.recv() == list(range(20))
    child.join()
    assert numbers(batches) == list(range(4, 20))
    loader.close()


def test_an_unknown_start_method_is_refused():
    """The message lists those of this system."""
    with pytest.raises(UsageError, match="fork"):
        processes([1], start_method="teleport")


def test_whatever_is_raised_comes_in_its_turn():
    """What is no Exception reaches the consumer, too, behind the batches before it."""

    def leave(n):
        if n == 21:
            raise KeyboardInterrupt("by a function")
        return n

    got = []
    with processes(wds.DataPipeline([list(range(40))], wds.map(leave)), 4) as loader:
        with pytest.raises(KeyboardInterrupt, match="by a function"):
            got.extend(loader)
    assert [batch.tolist() for batch in got] == [list(range(start, start + 4)) for start in range(0, 20, 4)]


def test_thousands_of_samples_ahead_fill_no_pipe():
    """More orders and parts than pipes hold: neither side waits for the other for ever."""
    with processes(list(range(3000)), prefetch=2000) as loader:
        assert list(loader) == list(range(3000))


def test_a_killed_worker_whose_pipe_is_held_open_is_reported():
    """A process that a worker's function has started does not hide that the worker is gone."""
    ours, theirs = os.pipe()

    class Source:
        def __len__(self):
            return 100

        def __getitem__(self, n):
            if n == 20:
                if os.fork() == 0:
                    os.close(theirs)
                    os.read(ours, 1)  # until the test is over
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            return n

    try:
        with processes(Source(), 4, 1) as loader, pytest.raises(WorkerDied, match="SIGKILL"):
            list(loader)
    finally:
        os.close(theirs)
        os.close(ours)


def test_pictures_that_a_function_remembers_are_not_overwritten(tmp_path):
    """A row that a worker refers to is used again when it lets go, also where its windows are far apart."""
    image = pytest.importorskip("PIL.Image")
    with wds.TarWriter(str(tmp_path / "a.tar"), encoder=False) as writer:
        for n in range(200):
            stream = io.BytesIO()
            image.fromarray(np.full((48, 64, 3), n, np.uint8)).save(stream, "PNG")
            writer.write({"__key__": f"{n:03d}", "png": stream.getvalue(), "cls": str(n).encode()})
    before = {}

    def remembering(sample):
        stream = int(sample["cls"]) % 4
        picture, number = before.get(stream, (sample["png"], sample["cls"]))
        before[stream] = sample["png"], sample["cls"]
        return sample["png"], sample["cls"], bool((picture == int(number)).all())

    dataset = wds.WebDataset(str(tmp_path / "a.tar")).decode("rgb8").map(remembering).elastic(streams=4)
    with processes(dataset, 1, 4, prefetch=2) as loader:
        for _ in range(2):
            found = [(int(picture.min()), int(picture.max()), int(n), bool(ok)) for picture, (n,), (ok,) in loader]
            assert all(low == high == n for low, high, n, _ in found)
            assert sum(not ok for *_, ok in found) == 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, ValueError])
def test_an_interrupt_within_a_message_ends_the_workers(monkeypatch, kind):
    """Ctrl-C, or what a signal's handler raises, while half a message was read or sent leaves no pipe in its middle."""
    from webdataset.loading.ipc import PartReceiver
    from webdataset.loading.message_pipe import MessagePipe

    def interrupt_receiving(receiver):
        receiver.pipe._socket.recv(2)
        raise kind("by a handler")

    def interrupt_sending(pipe, frame):
        monkeypatch.undo()
        pipe._socket.send(frame[:3])
        raise kind("by a handler")

    with processes([(np.zeros(4), n) for n in range(400)], 4, prefetch=1) as loader:
        for owner, name, interrupted in [
            (PartReceiver, "receive", interrupt_receiving),
            (MessagePipe, "send_now", interrupt_sending),
        ]:
            batches = iter(loader)
            next(batches)
            monkeypatch.setattr(owner, name, interrupted)
            with pytest.raises(kind, match="by a handler"):
                list(batches)
            monkeypatch.undo()
            assert not multiprocessing.active_children()
            assert numbers(loader) == list(range(400))
