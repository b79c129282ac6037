"""Pipes to worker processes, and large bytes that travel beside them."""

import gc
import mmap
import multiprocessing
import os
import platform
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import FlowError, WorkerDied
from webdataset.loading.columns import collate_rows
from webdataset.loading.ipc import PartReceiver, PartSender
from webdataset.loading.message_pipe import MessagePipe, frame_message
from webdataset.loading.worker import WindowPart

METHODS = ["fork", "forkserver", "spawn"]


def make_pipe(waiting_seconds=None):
    """Return both ends of a pipe; the second one waits so long."""
    ours, theirs = multiprocessing.Pipe()
    return MessagePipe(ours), MessagePipe(theirs, waiting_seconds)


def receive_part(receiver):
    """Return the next part; memory is announced before it."""
    while (part := receiver.receive()) is None:
        pass
    return part


def payload(rng, size):
    """Return bytes that differ from all others."""
    return rng.randbytes(size)


@pytest.mark.parametrize("size", [1, 3, 4, 65_535, 300_000, 5_000_000])
def test_messages_arrive_whole_and_apart(size):
    """Of any size, in pieces or not, larger than the pipe too, while the other side waits for it."""
    ours, theirs = make_pipe()
    content = random.Random(size).randbytes(size)
    sent = [content, content[::-1], b"x"]

    def send():
        ours.send(content)
        ours.send(content[::-1][: size // 2], memoryview(content[::-1][size // 2 :]), b"")
        ours.send(b"x")

    thread = threading.Thread(target=send)
    thread.start()
    assert [theirs.receive() for _ in sent] == sent
    thread.join()


def test_a_message_is_waited_for_so_long_and_then_whole():
    """None where nothing came in time; one that has begun is read to its end, however slowly it comes."""
    ours, theirs = make_pipe(0.05)
    assert theirs.receive_in_time() is None
    frame = memoryview(frame_message(b"slowly"))

    def send():
        for start, stop in ((0, 2), (2, 4), (4, 7), (7, len(frame))):
            ours.send_now(frame[start:stop])
            time.sleep(0.15)
        ours.send(b"at once")

    thread = threading.Thread(target=send)
    thread.start()
    found = [theirs.receive(), theirs.receive()]
    thread.join()
    assert found == [b"slowly", b"at once"]
    ours.send_now(frame[:7])
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive_in_time()


def test_a_full_pipe_takes_what_fits_and_does_not_wait():
    """The consumer reads meanwhile; the rest follows, and nothing is lost or sent twice."""
    ours, theirs = make_pipe()
    content = random.Random(1).randbytes(3_000_000)
    frame = memoryview(frame_message(content))
    sent = 0
    while taken := ours.send_now(frame[sent:]):
        sent += taken
    assert 0 < sent < len(frame)
    assert not ours.poll(writing=True)
    found = []
    thread = threading.Thread(target=lambda: found.append(theirs.receive()))
    thread.start()
    while sent < len(frame):
        sent += ours.send_now(frame[sent:])
    thread.join()
    assert found == [content]


@pytest.mark.parametrize("cut", [0, 2, 4, 40])
def test_a_pipe_that_breaks_within_a_message_is_at_its_end(cut):
    """Half a size or half a message is no message."""
    ours, theirs = make_pipe()
    ours.send_now(memoryview(frame_message(b"y" * 100))[:cut])
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    with pytest.raises(OSError, match="[Bb]roken pipe|reset"):
        theirs.send(b"z")


def test_a_descriptor_that_comes_late_is_waited_for(tmp_path):
    """A worker that is stopped between the message and its descriptor costs time, not the batch."""
    ours, theirs = make_pipe(0.05)
    (tmp_path / "memory").write_bytes(b"content")
    with (tmp_path / "memory").open("r+b") as file:

        def send():
            # waits in time for several receives, until the other side has begun
            started.wait()
            time.sleep(0.2)
            ours.send_descriptor(file.fileno())

        started = threading.Event()
        thread = threading.Thread(target=send)
        thread.start()
        started.set()
        block = theirs.receive_block(3, 7)
        thread.join()
    assert bytes(block.memory[:]) == b"content"


def test_a_signal_within_a_message_loses_nothing():
    """A handler that returns interrupts the waiting for the rest, which is read afterwards."""
    ours, theirs = make_pipe()
    content = random.Random(2).randbytes(1_000)
    frame = frame_message(content)
    handled = []

    def send_slowly():
        for at in range(0, len(frame), 101):
            ours.send_now(memoryview(frame)[at : at + 101])
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
    try:
        thread = threading.Thread(target=send_slowly)
        thread.start()
        assert theirs.receive() == content
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(handled) >= 5


def test_a_pipe_that_is_forgotten_is_closed_without_a_word():
    """Neither a descriptor nor a warning is left over."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        ours, theirs = make_pipe()
        ours.send(b"a")
        del ours, theirs
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def make_value(rng, row):
    """Return a field's value: small or large bytes, an array, a number, a text, nothing."""
    size = rng.choice([0, 1, 100, 8_191, 8_192, 8_193, 20_000, 70_000])
    choices = [
        lambda: rng.randbytes(size),
        lambda: rng.randbytes(size),
        lambda: None,
        lambda: row,
        lambda: f"text {row}" * 9,
        lambda: np.full(size + 1, row % 251, np.uint8),
        lambda: {"deep": rng.randbytes(size), "n": row},
    ]
    return rng.choice(choices)()


def make_samples(rng, rows):
    """Return samples whose fields hold large bytes always, never or now and then."""
    kind = rng.choice(["dict", "tuple", "bare", "mixed"])
    always, size = rng.choice([True, False]), rng.choice([9_000, 30_000, 70_000])
    samples: list[object] = []
    for row in range(rows):
        large = rng.randbytes(size + rng.randrange(999)) if always else make_value(rng, row)
        fields = {"jpg": large, "n": row, "more": make_value(rng, row)}
        if kind == "dict" or (kind == "mixed" and row % 3):
            samples.append(fields)
        else:
            samples.append(large if kind == "bare" else tuple(fields.values()))
    return samples


def same(one, other):
    """Tell whether two values are equal, and of one type."""
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("seed", range(12))
def test_parts_that_are_kept_never_change(seed):
    """Whatever samples hold, whichever segments are used again, and whenever the worker is told of them."""
    rng = random.Random(seed)
    ours, theirs = make_pipe()
    sender, receiver = PartSender(ours), PartReceiver(theirs, rng.choice([1, 40]))
    kept = []
    for window in range(40):
        samples = make_samples(rng, rng.randrange(1, 24))
        columns = collate_rows(samples) if rng.random() < 0.8 else None
        part = WindowPart(0, window, range(len(samples)), columns, samples if columns is None else [])
        thread = threading.Thread(target=sender.send, args=(part,))
        thread.start()
        found = receive_part(receiver)
        thread.join()
        assert found.window == window
        kept.append((samples, found))
        if rng.random() < 0.3:
            del kept[rng.randrange(len(kept))]
        if rng.random() < 0.7:
            for number in receiver.release_segments():
                sender.release_segment(number)
        for wanted, part in rng.sample(kept, min(3, len(kept))):
            assert same(wanted, part.beside if part.columns is None else part.columns.samples())
    for wanted, part in kept:
        assert same(wanted, part.beside if part.columns is None else part.columns.samples())


def test_undecoded_fields_need_one_segment_however_many_parts_are_kept():
    """They are copied when they are received, so that its warm memory is used again at once."""
    rng = random.Random(3)
    ours, theirs = make_pipe()
    sender, receiver = PartSender(ours), PartReceiver(theirs, 1)
    kept = []
    for window in range(30):
        samples = [(rng.randbytes(20_000 + rng.randrange(2_000)), n) for n in range(8)]
        sender.send(WindowPart(0, window, range(8), collate_rows(samples)))
        kept.append((samples, receive_part(receiver)))
        freed = receiver.release_segments()
        assert freed == [0]
        sender.release_segment(*freed)
    assert all(part.columns.samples() == samples for samples, part in kept)
    assert all(type(sample[0]) is bytes for _, part in kept for sample in part.columns.samples())


class Unwilling:
    """Cannot be unpickled."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ValueError("not here")


def test_a_part_that_cannot_be_unpickled_gives_its_segment_back():
    """The next ones use it."""
    rng = random.Random(4)
    ours, theirs = make_pipe()
    sender, receiver = PartSender(ours), PartReceiver(theirs, 1)
    for window in range(5):
        samples = [(rng.randbytes(40_000), Unwilling()) for _ in range(4)]
        sender.send(WindowPart(0, window, range(4), collate_rows(samples)))
        with pytest.raises(FlowError, match="not here"):
            receive_part(receiver)
        assert receiver.release_segments() == [0]
        sender.release_segment(0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory by rules of their own")
@pytest.mark.parametrize("held", [1, 5])
def test_memory_of_a_batch_is_not_cleared_again_for_the_next_one(held):
    """The consumer of payloads that it lets go of touches few new pages: 40 of 640, and not 580.

    Nor where several windows wait, and all of them are gone at the end of an epoch.
    """
    program = """
        import multiprocessing, os, resource, sys
        from webdataset.loading.columns import collate_rows
        from webdataset.loading.ipc import PartReceiver, PartSender
        from webdataset.loading.message_pipe import MessagePipe
        from webdataset.loading.worker import WindowPart

        ours, theirs = multiprocessing.Pipe()
        if not os.fork():
            sender = PartSender(MessagePipe(ours))
            samples = [(bytes([n]) * 80_000,) for n in range(32)]
            for window in range(60):
                sender.send(WindowPart(0, window, range(32), collate_rows(samples)))
            os._exit(0)
        receiver = PartReceiver(MessagePipe(theirs), 1)
        faults, held = [], []
        while len(faults) < 60:
            while (part := receiver.receive()) is None:
                pass
            held.append(part)
            del part
            if len(held) == int(sys.argv[1]):
                held.clear()
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        os.wait()
        print((faults[-1] - faults[29]) // 30)
        """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(held)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert int(found.stdout) < 200


def pictures(count=240):
    """Return samples of large bytes that follow from their number."""
    return [
        {"__key__": f"{n}", "jpg": random.Random(n).randbytes(30_000 + 997 * (n % 31)), "cls": n} for n in range(count)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_undecoded_fields_that_are_kept_never_change(method):
    """Through two epochs, while the workers use their memory again; the user gets bytes."""
    samples = pictures()
    with wds.Loader(samples, 8, workers=2, mode="processes", start_method=method, prefetch=3) as loader:
        kept = [batch for _ in range(2) for batch in loader]
    found = [pair for batch in kept for pair in zip(batch["jpg"], batch["cls"].tolist(), strict=True)]
    assert found == [(sample["jpg"], sample["cls"]) for sample in samples] * 2
    assert all(type(picture) is bytes for picture, _ in found)


def test_orders_and_states_of_undecoded_fields_do_not_depend_on_the_workers(tmp_path):
    """Nor do states in the middle of an epoch, continued under another number of processes."""
    samples = pictures(120)
    with wds.ShardWriter(str(tmp_path / "p-%02d.tar"), maxcount=20) as sink:
        for sample in samples:
            sink.write(sample)
    dataset = wds.WebDataset(str(tmp_path / "p-{00..05}.tar"), shardshuffle=6, seed=5).to_tuple("jpg", "cls")
    dataset = dataset.shuffle(10).elastic(streams=6)

    def load(workers, state=None, steps=None):
        mode = "processes" if workers else "threads"
        with wds.Loader(dataset, 8, workers=workers, mode=mode) as loader:
            loader.set_epoch(0) if state is None else loader.load_state_dict(state)
            found = []
            for step, batch in enumerate(loader):
                found += list(zip(*batch, strict=True))
                if step + 1 == steps:
                    break
            return found, loader.state_dict()

    wanted, _ = load(0)
    assert sorted(wanted) == sorted((sample["jpg"], str(sample["cls"]).encode()) for sample in samples)
    for first, then in ((1, 3), (3, 2)):
        begun, state = load(first, steps=7)
        assert begun + load(then, state)[0] == wanted


def kill_on_the_way(loader, kept, at, rng):
    """Keep the batches of an epoch, one of whose workers is killed after some of them."""
    for step, batch in enumerate(loader):
        kept.append(batch)
        if step == at:
            os.kill(rng.choice(multiprocessing.active_children()).pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(3))
def test_killed_workers_of_undecoded_fields_leave_nothing_and_change_nothing(seed):
    """Batches received before stay as they were; no descriptor, process or map is left; the loader starts anew."""
    rng = random.Random(seed)
    samples = pictures()

    def shared_maps():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return sum("memfd:webdataset" in line for line in maps)

    before, maps = len(os.listdir("/proc/self/fd")), shared_maps()
    kept = []
    loader = wds.Loader(samples, 8, workers=2, mode="processes", start_method="fork", prefetch=3)
    for _ in range(3):
        at = rng.randrange(1, 25)

        with pytest.raises(WorkerDied, match="SIGKILL"):
            kill_on_the_way(loader, kept, at, rng)
        assert not multiprocessing.active_children()
    assert sum(len(batch["cls"]) for batch in loader) == len(samples)
    loader.close()
    for batch in kept:
        assert batch["jpg"] == [samples[n]["jpg"] for n in batch["cls"]]
    del loader
    assert shared_maps() == maps
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_descriptor_is_sent_without_waiting_for_an_answer(monkeypatch):
    """The helper of multiprocessing waits for one on macOS and on Python 3.14; here that is turned on."""
    monkeypatch.setattr(multiprocessing.reduction, "ACKNOWLEDGE", True, raising=False)
    ours, theirs = map(MessagePipe, multiprocessing.Pipe())
    ours._socket.settimeout(5)
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    ours.send_descriptor(descriptor)
    os.close(descriptor)
    assert theirs.receive_block(3, mmap.PAGESIZE).number == 3
    assert not ours.poll()
