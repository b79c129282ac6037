"""One loader for several trainers on one host: each receives what a loader of its own would give it."""

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import DecodingError, EncodingError, FlowError, NotFound, StateMismatch, UsageError
from webdataset.serving import shared_loader, shared_server, unix_channel
from webdataset.serving.shared_loader import TrainerDropped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared streams need Linux")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Return the pattern of six small shards."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(6):
        with wds.TarWriter(f"{folder}/{shard}.tar") as writer:
            for n in range(20):
                value = np.full((40, 40), shard * 20 + n, np.float32)
                writer.write({"__key__": f"{shard}-{n:02}", "x.npy": value, "txt": f"text {n}", "cls": n})
    return f"{folder}/{{0..5}}.tar"


@pytest.fixture
def name():
    """Return the path of a socket, which must be short."""
    with tempfile.TemporaryDirectory(prefix="w-") as folder:
        yield f"{folder}/s"


@pytest.fixture
def make(shards, name):
    """Return a function that makes trainers of one stream, which are closed at the end."""
    made = []

    def make(**options):
        loader = wds.SharedLoader(dataset(shards), name, **{"batch_size": 8, **options})
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.close()


def dataset(shards):
    """Return an elastic dataset."""
    return wds.WebDataset(shards, shardshuffle=True, seed=3).shuffle(30).decode().elastic()


def expect(shards, epochs=1, **options):
    """Return keys and states of a loader of one's own."""
    loader = wds.Loader(dataset(shards), **{"batch_size": 8, **options})
    return [[(batch["__key__"], loader.state_dict()) for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "mode": "processes"}])
def test_every_trainer_receives_every_batch(shards, make, options):
    """Three trainers receive two epochs as a loader gives them, with its states after each batch."""
    trainers = [make(trainers=3, **options) for _ in range(3)]
    found = {}

    def train(number):
        loader = trainers[number]
        found[number] = [[(batch["__key__"], loader.state_dict()) for batch in loader] for _ in range(2)]

    run_all(train, 3)
    expected = expect(shards, 2)
    assert found == dict.fromkeys(range(3), expected)


def run_all(train, count):
    """Run trainers in threads, as if they were processes; raise what one raised."""
    raised = []

    def guarded(number):
        try:
            train(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not raised, raised
    assert not any(each.is_alive() for each in threads)


def test_each_trainer_counts_what_it_receives(shards, make):
    """Counters are those of a loader of one's own; the owner knows the workers, too."""
    trainers = [make(trainers=2, workers=2) for _ in range(2)]
    own = wds.Loader(dataset(shards), 8)
    for batch in own:
        del batch
    expected = own.stats()

    def train_once(number):
        for batch in trainers[number]:
            del batch

    run_all(train_once, 2)
    for trainer in trainers:
        found = trainer.stats()
        for name in ("epochs", "batches", "samples", "bytes", "failures"):
            assert getattr(found, name) == getattr(expected, name), name
        assert 0 < found.waiting_seconds <= found.running_seconds
        assert found.workers == 2
        assert (len(found.worker_busy_seconds) == 2) == trainer.owner
        assert f"samples_total {expected.samples}" in found.prometheus()
    # an epoch is given up, and another one read: what came counts
    batches = iter(trainers[0])
    trainers[1].close()
    next(batches)
    del batches
    assert trainers[0].stats().samples == expected.samples + 8
    assert trainers[0].stats().epochs == 2


def test_samples_that_drop_last_leaves_out_are_counted(make):
    """120 samples are 17 batches of 7, and one is left out in each epoch: the owner of the stream knows."""
    trainer = make(batch_size=7, drop_last=True)
    assert sum(1 for _ in trainer) == 17
    assert trainer.stats().drops == {"drop_last": 1}


def test_counters_of_a_trainer_that_reads_alone(shards, make):
    """What a detached trainer reads by itself counts, each sample once."""
    fast, slow = (make(policy="detach", window=4, trainers=2) for _ in range(2))
    reader = threading.Thread(target=lambda: [None for _ in fast], daemon=True)
    reader.start()
    batches = iter(slow)
    next(batches)
    reader.join(60)
    for batch in batches:
        del batch
    assert (slow.stats().samples, slow.stats().batches) == (120, 15)
    assert (fast.stats().samples, fast.stats().batches) == (120, 15)


def test_arrays_are_read_only(make):
    """Nobody writes into shared memory by mistake."""
    batch = next(iter(make()))
    with pytest.raises(ValueError, match="read-only"):
        batch["x.npy"][0] = 0


def test_what_a_trainer_writes_is_its_own(shards, make):
    """In-place work is invisible to others, and gone when the block is used again."""
    one, two = make(writable=True), make(writable=True)
    for mine, theirs in zip(one, two, strict=True):
        for batch in (mine, theirs):
            expected = [20 * int(key[0]) + int(key[2:]) for key in batch["__key__"]]
            assert (batch["x.npy"] == np.array(expected, np.float32)[:, None, None]).all()
            batch["x.npy"][:] = -1
        del mine, theirs, batch


@pytest.mark.parametrize("policy", ["drop", "detach"])
def test_a_slow_trainer(shards, make, policy):
    """A trainer that is behind by the window is dropped with an error, or goes on alone with its next batch."""
    fast, slow = (make(policy=policy, window=4, trainers=2) for _ in range(2))
    first: dict[str, object] = {}
    reader = threading.Thread(target=lambda: first.update(keys=[batch["__key__"] for batch in fast]), daemon=True)
    reader.start()
    batches = iter(slow)
    keys = [next(batches)["__key__"]]
    reader.join(60)
    expected = [batch for batch, _ in expect(shards)[0]]
    assert first["keys"] == expected
    if policy == "detach":
        keys += [batch["__key__"] for batch in batches]
        assert keys == expected
        assert [batch["__key__"] for batch in slow] == [batch for batch, _ in expect(shards, 2)[1]]
        return
    with pytest.raises(TrainerDropped, match="window"):
        keys.extend(batch["__key__"] for batch in batches)
    assert keys == expected[: len(keys)]
    assert 4 <= len(keys) < len(expected)


def test_a_wide_window(tmp_path, name):
    """A trainer may lag by a window of more messages than a channel keeps by itself; then it is dropped, not before."""
    with wds.TarWriter(f"{tmp_path}/a.tar") as writer:
        for n in range(800):
            writer.write({"__key__": f"{n:03}", "cls": n})
    samples = wds.WebDataset(f"{tmp_path}/a.tar", shardshuffle=False, seed=3).decode().elastic(1)
    options: dict[str, Any] = {"batch_size": 1, "policy": "drop", "window": 600, "trainers": 2}
    with wds.SharedLoader(samples, name, **options) as fast, wds.SharedLoader(samples, name, **options) as slow:
        reader = threading.Thread(target=lambda: [None for _ in fast], daemon=True)
        reader.start()
        batches = iter(slow)
        keys = [next(batches)["__key__"]]
        reader.join(60)
        with pytest.raises(TrainerDropped, match="600 batches behind"):
            keys.extend(batch["__key__"] for batch in batches)
    assert keys == [[f"{n:03}"] for n in range(601)]


def test_in_lockstep_the_slowest_sets_the_pace(shards, make):
    """A trainer that does not read holds the others up; when it reads, both receive all."""
    fast, slow = (make(trainers=2) for _ in range(2))
    found = []
    reader = threading.Thread(target=lambda: found.extend(batch["__key__"] for batch in fast), daemon=True)
    reader.start()
    batches = iter(slow)
    keys = [next(batches)["__key__"]]
    reader.join(0.5)
    assert reader.is_alive()
    assert len(found) <= 4
    keys += [batch["__key__"] for batch in batches]
    reader.join(60)
    assert found == keys == [batch for batch, _ in expect(shards)[0]]


@pytest.mark.parametrize("late", ["current", None])
def test_a_late_trainer(shards, make, late):
    """It begins with the stream's next batch, or at its own start: then others wait, where it is a little behind."""
    expected = [batch for batch, _ in expect(shards)[0]]
    one = make()
    batches = iter(one)
    assert [next(batches)["__key__"] for _ in range(5)] == expected[:5]
    other = make(late="current") if late else make()
    found = {}

    def train(number):
        # where the first one is at its end, the stream's next batch is of an epoch that it does not begin
        while late and not number and not other._member:
            time.sleep(0.001)
        found[number] = [batch["__key__"] for batch in (batches, other)[number]]

    run_all(train, 2)
    assert found[0] == expected[5:]
    if late:
        assert found[1] == expected[len(expected) - len(found[1]) :]
        assert len(expected) - 7 <= len(found[1]) <= len(expected) - 5
    else:
        assert found[1] == expected


def test_the_log_says_who_is_waited_for(shards, make, monkeypatch, caplog):
    """A trainer that ended an epoch and begins no other one holds up the next one, and the log names its process."""
    monkeypatch.setattr(shared_server, "_WARN_SECONDS", 0.2)
    monkeypatch.setattr(shared_loader, "_LOOK_SECONDS", 0.02)
    one, two = (make(trainers=2) for _ in range(2))
    found = {}

    def train(number):
        found[number] = [[batch["__key__"] for batch in (one, two)[number]] for _ in range(number + 1)]

    threads = [threading.Thread(target=train, args=(number,), daemon=True) for number in range(2)]
    for each in threads:
        each.start()
    threads[0].join(60)
    until = time.monotonic() + 60
    while "waits for process" not in caplog.text and time.monotonic() < until:
        time.sleep(0.01)
    assert f"waits for process {os.getpid()}" in caplog.text
    assert threads[1].is_alive()
    one.close()
    threads[1].join(60)
    keys = [[batch for batch, _ in epoch] for epoch in expect(shards, 2)]
    assert found == {0: keys[:1], 1: keys}


@pytest.mark.parametrize("batch_size", [7, 8, 500])
def test_the_owner_ends_between_the_last_batch_and_the_end(shards, make, monkeypatch, batch_size):
    """Where the owner dies before it says that the epoch is over, each iteration still gives one epoch."""
    say_end = shared_server.SharedServer._end_epoch
    ended = []

    def die_twice(server, receivers):
        ended.append(server)
        if len(ended) in (1, 3):
            raise MemoryError
        say_end(server, receivers)

    monkeypatch.setattr(shared_server.SharedServer, "_end_epoch", die_twice)
    trainers = [make(trainers=2, batch_size=batch_size) for _ in range(2)]
    found = {}

    def train(number):
        loader = trainers[number]
        found[number] = [[(batch["__key__"], loader.state_dict()) for batch in loader] for _ in range(3)]
        loader.close()

    run_all(train, 2)
    assert len(ended) >= 3
    assert found == dict.fromkeys(range(2), expect(shards, 3, batch_size=batch_size))


def test_more_files_than_select_takes(shards, make):
    """Trainers that have a thousand files open share a stream all the same."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2000), limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1024):
            stack.enter_context(open(os.devnull))
        trainers = [make(trainers=2) for _ in range(2)]
        found = {}

        def train(number):
            found[number] = [batch["__key__"] for batch in trainers[number]]
            trainers[number].close()

        run_all(train, 2)
    assert found == dict.fromkeys(range(2), [batch for batch, _ in expect(shards)[0]])


def test_a_file_in_the_place_of_the_socket(make, name):
    """A file that is no socket is left as it is; the stream begins when it is gone."""
    path = Path(name)
    path.write_text("notes")
    one, two = make(), make()
    for each in (one, two, one):
        with pytest.raises(UsageError, match="no socket"):
            next(iter(each))
    assert path.read_text() == "notes"
    path.unlink()
    assert next(iter(two))


def test_an_epoch_given_up(shards, make):
    """A trainer that leaves an epoch early goes on with the next one, as with a loader."""
    one, two = make(), make()
    for _ in zip(range(3), one, strict=False):
        pass
    expected = expect(shards, 2)
    found = {}

    def train(number):
        loader = (one, two)[number]
        found[number] = [[batch["__key__"] for batch in loader] for _ in range(2 - (number == 0))]

    run_all(train, 2)
    keys = [[batch for batch, _ in epoch] for epoch in expected]
    assert found == {0: keys[1:], 1: keys}


def test_the_owner_closes_first(shards, make):
    """Where the owner is done, another trainer takes over with its next batch."""
    one, two = make(), make()
    expected = expect(shards)[0]
    first, second = iter(one), iter(two)
    found = []
    for _ in range(4):
        next(first)
        found.append((next(second)["__key__"], two.state_dict()))
    assert one.owner
    assert not two.owner
    one.close()
    found += [(batch["__key__"], two.state_dict()) for batch in second]
    assert two.owner
    assert found == expected


def test_a_state_while_a_batch_is_waited_for(shards, make, monkeypatch):
    """A signal's handler may ask for the state in any wait: the state is right, and no message is lost."""
    expected = expect(shards)[0]
    one = make()
    states = []
    wait = unix_channel.UnixChannel.wait
    answer = {}

    def interrupt(channel, timeout_seconds):
        if one._channel is channel and one._base is not None and not answer:
            answer["asked"] = True
            states.append((len(keys), one.state_dict()))
            answer.clear()
        return wait(channel, timeout_seconds)

    monkeypatch.setattr(unix_channel.UnixChannel, "wait", interrupt)
    keys = []
    for batch in one:
        keys.append(batch["__key__"])
        if len(keys) % 3 == 0:
            assert one.state_dict() == expected[len(keys) - 1][1]
    assert keys == [each for each, _ in expected]
    assert len(states) > len(keys)
    assert all(state == expected[count - 1][1] for count, state in states if count)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 7, 10])
def test_an_interrupt_in_a_wait(shards, make, monkeypatch, at):
    """After Ctrl-C in any wait the trainer continues from its state, and takes no old answer for a new one."""
    expected = [batch for batch, _ in expect(shards)[0]]
    one = make()
    read = shared_loader.SharedLoader._read
    reads = []

    def interrupt(loader):
        reads.append(loader)
        if len(reads) == at:
            raise KeyboardInterrupt
        return read(loader)

    monkeypatch.setattr(shared_loader.SharedLoader, "_read", interrupt)
    keys = []

    def train():
        for batch in one:
            keys.append(batch["__key__"])
            one.state_dict()

    with pytest.raises(KeyboardInterrupt):
        train()
    one.load_state_dict(one.state_dict())
    train()
    assert keys == expected


def test_a_state_continues_in_a_loader_and_back(shards, make):
    """States pass between SharedLoader and Loader in the middle of an epoch."""
    expected = expect(shards)[0]
    one = make()
    batches = iter(one)
    for _ in range(3):
        next(batches)
    own = wds.Loader(dataset(shards), 8)
    own.load_state_dict(one.state_dict())
    again = iter(own)
    assert next(again)["__key__"] == expected[3][0]
    state = own.state_dict()
    one.load_state_dict(state)
    assert [batch["__key__"] for batch in one] == [batch for batch, _ in expected[4:]]
    assert one.epoch == 1


def test_the_epoch_of_a_state_that_was_saved_at_its_end(make):
    """It is the next one, which comes, as of a Loader."""
    trainer = make()
    assert sum(1 for _ in trainer) == 15
    state = trainer.state_dict()
    assert (state["epoch"], trainer.epoch) == (0, 1)
    trainer.close()  # others wait for a trainer that is there
    again = make()
    again.load_state_dict(state)
    assert again.epoch == 1
    assert sum(1 for _ in again) == 15
    assert again.epoch == 2


@pytest.mark.parametrize("part", ["memories", "description", "streams", "epoch"])
def test_what_is_no_state(make, part):
    """States that lack something, or hold something else there, are refused as those of a Loader are."""
    loader = make()
    state = loader.state_dict()
    for wrong in ({name: entry for name, entry in state.items() if name != part}, {**state, part: "x"}, {}, [], "{}"):
        with pytest.raises(StateMismatch):
            loader.load_state_dict(wrong)


def links():
    """Return what the descriptors of this process are."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()))
    return found


def open_files():
    """Return how many files and maps of shared streams this process has."""
    maps = Path("/proc/self/maps").read_text().count("memfd:webdataset")
    gc.collect()
    return len([each for each in links() if any(kind in each for kind in ("memfd", "socket", "pid", "lock"))]), maps


def test_nothing_is_left(shards, make):
    """Descriptors and shared memory are as before when all have closed."""
    before = open_files()
    one, two = make(), make()
    for both in zip(one, two, strict=True):
        assert open_files() != before
        del both
    one.close()
    two.close()
    assert open_files() == before


def test_a_fork_in_a_trainer(shards, make):
    """A forked child reads nothing of it and disturbs nothing; the owner's end is seen though its child lives."""
    one, two = make(), make()
    first, second = iter(one), iter(two)
    keys = [next(second)["__key__"] for _ in (next(first),)]
    child = os.fork()
    if not child:
        try:
            next(second)
        except FlowError:
            signal.alarm(60)
            signal.pause()
        finally:
            os._exit(3)
    try:
        one.close()
        keys += [batch["__key__"] for batch in second]
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert keys == [batch for batch, _ in expect(shards)[0]]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_another_user_is_refused(make, name):
    """Another user cannot open the socket; where it can, it gets an answer that says so, and no batch."""
    batches = iter(make())
    next(batches)
    Path(name).parent.chmod(0o755)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            answers = []
            for mode in range(2):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    connection.connect(name)
                    answers.append(connection.recv(4096).decode())
                except OSError as error:
                    answers.append(type(error).__name__)
                if not mode:
                    os.write(write, b"ready")
                    while not Path(name).stat().st_mode & 0o002:
                        pass
            os.write(write, "|".join(answers).encode())
        finally:
            os._exit(0)
    os.read(read, 5)
    Path(name).chmod(0o777)
    answer = os.read(read, 4096).decode()
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert answer.startswith("PermissionError|")
    assert '"kind":"no"' in answer
    assert next(batches)


HOSTILE = [
    b"garbage", b"[" * 20000, b"[]", b"{}", b'{"kind":"batch"}', b'{"kind":"join","state":null}', b'{"far":99}',
    b'{"kind":"hello","version":1,"terms":[]}', b'{"kind":"hello","version":2,"terms":{}}', b"\xff" * 30000,
    b'{"kind":[]}',
]  # fmt: skip


@pytest.mark.parametrize("packet", HOSTILE)
def test_a_hostile_client(shards, make, name, packet, tmp_path):
    """What a client says wrongly ends its own connection with an error; descriptors it sends are closed."""
    loader = make()
    batches = iter(loader)
    keys = [next(batches)["__key__"]]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(60)
        client.connect(name)
        with (tmp_path / "sent").open("w") as file:
            socket.send_fds(client, [packet], [file.fileno()] * 3)
        assert b'"no"' in client.recv(1 << 16)
        assert client.recv(1 << 16) == b""
    keys += [batch["__key__"] for batch in batches]
    assert keys == [batch for batch, _ in expect(shards)[0]]
    assert not [each for each in links() if each.endswith("/sent")]


def send_without_end(client):
    """Send requests, and read no answer."""
    for _ in range(100_000):
        client.send(b'{"kind":"state","seq":1}')


def test_a_client_that_floods(shards, make, name):
    """Messages without end, and a client that does not read, hold nobody up."""
    terms = '"rank":0,"world_size":1,"batch_size":8,"exact":false,"drop_last":false,"ragged":true,"policy":"lockstep"'
    loader = make()
    batches = iter(loader)
    keys = [next(batches)["__key__"]]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(60)
        client.connect(name)
        client.send(b'{"kind":"hello","version":1,"terms":{%s}}' % terms.encode())
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            send_without_end(client)
    keys += [batch["__key__"] for batch in batches]
    assert keys == [batch for batch, _ in expect(shards)[0]]


def test_trainers_that_differ(shards, make, name):
    """A trainer with another batch size, or another dataset, is told what differs."""
    next(iter(make()))
    with pytest.raises(StateMismatch, match=r"^this trainer differs from the owner .*batch_size=4"):
        next(iter(make(batch_size=4)))
    other = wds.WebDataset(shards, seed=3).shuffle(7).decode().elastic()
    with wds.SharedLoader(other, name, batch_size=8) as loader, pytest.raises(StateMismatch, match="another dataset"):
        next(iter(loader))


def test_errors_of_the_dataset(shards, name):
    """An error in the owner is raised in each trainer as what it is; a value that cannot be shared is named."""
    broken = dataset(shards).map(lambda sample: {"x": object()})
    with wds.SharedLoader(broken, name, batch_size=4) as loader, pytest.raises(EncodingError, match="field='x"):
        next(iter(loader))

    def leave(sample):
        raise SystemExit("no more")

    for workers in (0, 2):
        leaving = wds.WebDataset(shards).map(leave).elastic()
        with wds.SharedLoader(leaving, name, batch_size=4, workers=workers) as loader:
            with pytest.raises(FlowError, match="SystemExit: no more"):
                next(iter(loader))

    def fail(sample):
        raise DecodingError("a sample that cannot be read")

    failing = wds.WebDataset(shards).map(fail).elastic()
    with wds.SharedLoader(failing, name, batch_size=4) as one, wds.SharedLoader(failing, name, batch_size=4) as two:
        for each in (one, two):
            with pytest.raises(DecodingError, match="cannot be read"):
                next(iter(each))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": "skip"}, "lockstep"),
        ({"window": 1}, "window"),
        ({"trainers": 0}, "trainers"),
        ({"late": "never"}, "late"),
        ({"name": "a b"}, "name"),
        ({"name": "/" + "x" * 200}, "too long"),
    ],
)
def test_wrong_arguments(shards, arguments, words):
    """Each mistake is named."""
    with pytest.raises(UsageError, match=words):
        wds.SharedLoader(dataset(shards), arguments.pop("name", "s"), batch_size=8, **arguments)


def test_a_folder_that_is_not_there(shards, tmp_path):
    """The error says what to do."""
    with pytest.raises(NotFound, match="folder of the stream's socket .*; make the folder"):
        next(iter(wds.SharedLoader(dataset(shards), str(tmp_path / "absent" / "s.sock"), batch_size=8)))


def test_sources(shards, name):
    """A Loader or a function that makes one is taken as it is; what has no states is refused."""
    for source in (wds.Loader(dataset(shards), 8), lambda: wds.Loader(dataset(shards), 8)):
        with wds.SharedLoader(source, name) as loader:
            assert next(iter(loader))["__key__"] == expect(shards)[0][0][0]
    with pytest.raises(UsageError, match="elastic"):
        wds.SharedLoader([1, 2, 3], name, batch_size=2)
    with pytest.raises(UsageError, match="batch_size"):
        wds.SharedLoader(wds.Loader(dataset(shards), 8), name, batch_size=8)


def test_torch_tensors(shards, name):
    """Tensors arrive as tensors, and can be written to, privately."""
    torch = pytest.importorskip("torch")
    tensors = (
        wds.WebDataset(shards, shardshuffle=False)
        .decode("torch")
        .map(lambda sample: (torch.from_numpy(sample["x.npy"]), sample["cls"]))
    )
    with (
        wds.SharedLoader(tensors.elastic(), name, batch_size=8) as one,
        wds.SharedLoader(tensors.elastic(), name, batch_size=8) as two,
    ):
        for (mine, _), (theirs, numbers) in zip(one, two, strict=True):
            assert type(mine) is torch.Tensor
            assert (mine == theirs).all()
            mine += 1
            assert not (mine == theirs).any()
            assert len(numbers) == len(theirs)
            del mine, theirs
