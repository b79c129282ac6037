"""Shards that several streams share are opened once, read once, held within bounds, and closed."""

import json
import os
import random
from collections import Counter

import pytest

import webdataset as wds
from support.garbage import no_collector
from support.proxy import Fault, FaultyProxy, planned
from support.range_server import RangeServer
from webdataset.core.errors import FlowError, ShardChanged
from webdataset.samples import shared_reader
from webdataset.samples.address import Address
from webdataset.samples.sample_reader import Position, Reading, read_samples
from webdataset.samples.shard_opener import open_shards
from webdataset.samples.shared_reader import SharedReader, SharedReaders, StreamReader

SAMPLES = 240
EACH = 5_000


@pytest.fixture
def folder(tmp_path):
    """Three shards of 240 samples of 5 KB."""
    for number in range(3):
        with wds.TarWriter(str(tmp_path / f"s-{number}.tar")) as sink:
            for index in range(SAMPLES):
                sink.write({"__key__": f"{number}-{index:03d}", "bin": bytes(EACH), "cls": index})
    return tmp_path


@pytest.fixture
def held(monkeypatch):
    """The most bytes that waited, beyond those of the list that was read last."""
    most = [0]
    plain = SharedReader.hand_out

    def hand_out(self, asking):
        before = self.held.bytes
        plain(self, asking)
        most[0] = max(most[0], min(before, self.held.bytes))

    monkeypatch.setattr(SharedReader, "hand_out", hand_out)
    return most


def make(folder, shards=3):
    """An elastic dataset of 24 streams."""
    return wds.WebDataset(f"{folder}/s-{{0..{shards - 1}}}.tar", shardshuffle=False, seed=1).elastic(24)


def count_bytes():
    """How many bytes this process has read so far."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_byte_is_read_once(folder, shards):
    """An epoch reads as many bytes as the shards have, not as many times as streams share them."""
    size = sum((folder / f"s-{number}.tar").stat().st_size for number in range(shards))
    dataset = make(folder, shards)
    next(iter(dataset))  # what is imported late
    before = count_bytes()
    assert sum(1 for _ in dataset) == shards * SAMPLES
    assert count_bytes() - before < size * 1.02 + 20_000


def test_a_resumed_epoch_reads_the_rest_once(folder):
    """Half of an epoch costs half of the bytes, and one more sample for each stream."""
    size = sum((folder / f"s-{number}.tar").stat().st_size for number in range(3))
    run = iter(make(folder))
    keys = [next(run)["__key__"] for _ in range(3 * SAMPLES // 2)]
    state = run.state_dict()
    dataset = make(folder)
    dataset.load_state_dict(state)
    before = count_bytes()
    keys += [sample["__key__"] for sample in dataset]
    assert len(keys) == len(set(keys)) == 3 * SAMPLES
    assert count_bytes() - before < size * 0.7


def test_remote_shards_are_asked_for_once(folder):
    """A server is asked for each shard by one stream of the process, not by all that share it."""
    with RangeServer(folder) as server:
        urls = [f"{server.root}/s-{number}.tar" for number in range(3)]
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(24)
        assert sum(1 for _ in dataset) == 3 * SAMPLES
        asked = Counter(request.path.rpartition("/")[2] for request in server.requests)
    assert len(asked) == 3
    assert max(asked.values()) <= 3, asked


@pytest.mark.parametrize("limit", [1, 60_000, 400_000])
def test_what_waits_is_bounded(folder, held, monkeypatch, limit):
    """A stream that is asked for all its samples first leaves no more than the limit waiting for the others."""
    monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
    batched = wds.WebDataset(f"{folder}/s-0.tar", shardshuffle=False, seed=1).batched(30).elastic(24)
    keys = [key for batch in batched for key in batch["__key__"]]
    assert sorted(keys) == [f"0-{index:03d}" for index in range(SAMPLES)]
    assert held[0] <= limit


def test_all_bytes_that_wait_are_counted(folder):
    """The sum of what waits is that of the queues, at each step and at the end."""
    run = make(folder, 1).shuffle(40).elastic_run()
    for step, _ in enumerate(run):
        readers = run._started.readers
        parts = [part for reader in readers._readers.values() for part in reader.parts.values()]
        assert readers.held.bytes == sum(part.held_bytes for part in parts), step
    assert readers.held.bytes == 0


@pytest.mark.parametrize("steps", [1, 10, 100, 400, 3 * SAMPLES])
@pytest.mark.parametrize("kind", ["plain", "bounded", "failing", "two passes"])
def test_nothing_stays_open(folder, kind, steps):
    """However a run ends, its shards are closed, without the collector's help."""
    dataset = make(folder)
    if kind == "bounded":
        dataset = dataset.with_epoch(steps)
    elif kind == "failing":
        chance = random.Random(steps)
        dataset = dataset.map(lambda sample: 1 / 0 if chance.random() < 0.01 else sample)
    elif kind == "two passes":
        dataset = dataset.repeat(2)
    with no_collector():
        before = len(os.listdir("/proc/self/fd"))
        run = iter(dataset)
        try:
            for _ in range(steps):
                next(run, None)
        except wds.WebDatasetError:
            pass
        except ZeroDivisionError:
            pass
        dataset.close()
        del run, dataset
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_that_ends_is_closed_before_the_epoch_does(folder):
    """With one shard long and others short, the short ones are closed as soon as their streams have them."""
    for number in (1, 2):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            sink.write({"__key__": f"{number}", "cls": 1})
    run = make(folder).elastic_run()
    for _ in range(100):
        next(run)
    readers = run._started.readers._readers.values()
    assert sorted(reader.over for reader in readers) == [False, True, True]
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.islink(link)]
    assert [name for name in names if name.startswith(str(folder))] == [str(folder / "s-0.tar")]
    run.close()


class Shared:
    """One shard of 240 samples, shared by three streams of four; the fourth is another worker's."""

    def __init__(self, folder, limit=1 << 30):
        self.readers = SharedReaders([0, 1, 2], limit)
        self.reading = Reading()
        self.url = str(folder / "s-0.tar")
        self.opened = []

    def open(self, shards):
        for shard in open_shards(shards):
            self.opened.append(shard["stream"])
            yield shard

    def claim(self, stream, start=None, epoch=0, **stamp):
        shard = {"url": self.url, "share": (stream, 4), "shared_by": range(4), **stamp}
        return self.readers.claim(shard, self.reading, stream, epoch, self.open, start)


@pytest.fixture
def shared(folder):
    """Shared readers, closed at the end."""
    made = Shared(folder)
    yield made
    made.readers.close()


def test_a_stream_comes_once(shared):
    """What a stream reads is handed out to it once; to others, and of other epochs, separately; to strangers not."""
    first = shared.claim(0)
    assert first is not None
    assert shared.claim(0) is None
    assert shared.claim(3) is None, "the stream of another worker"
    assert shared.claim(1, __note__="differs") is None
    assert shared.claim(1).shared is first.shared
    assert shared.claim(0, epoch=1).shared is not first.shared
    assert len(shared.opened) == 2


def test_nothing_waits_for_streams_that_left(shared):
    """A stream that was closed, let go, or has ended gets nothing more; the shard is closed with the last one."""
    first, second = shared.claim(0), shared.claim(1)
    lists = first.lists()
    next(lists)
    third = first.shared.parts[2]
    assert min(second.held_bytes, third.held_bytes) > 0
    shared.readers.leave(2)
    assert third.held_bytes == 0
    second.close()
    assert shared.readers.held.bytes == 0
    next(lists)
    next(lists)
    assert shared.readers.held.bytes == second.held_bytes == third.held_bytes == 0
    assert not shared.opened[0].closed
    first.close()
    assert shared.opened[0].closed
    assert first.shared.released
    assert shared.claim(2) is None


def test_what_was_read_to_the_end_waits_for_those_that_come_late(shared):
    """A shard is closed at its end; streams that come after that still get what was handed out to them."""
    first = shared.claim(0)
    assert sum(len(samples) for samples, _ in first.lists()) == SAMPLES // 4
    assert shared.opened[0].closed
    waiting = SAMPLES // 4 * 2 * (EACH + 2 * 512)  # of two streams
    assert shared.readers.held.bytes == pytest.approx(waiting, rel=0.15)
    first.close()
    late = shared.claim(2)
    keys = [sample["__key__"] for samples, _ in late.lists() for sample in samples]
    assert keys == [f"0-{index:03d}" for index in range(2, SAMPLES, 4)]
    assert len(shared.opened) == 1


def test_a_stream_that_resumes_before_the_others_catches_up(folder, shared):
    """The reader begins where the first comer stands; one that stands before that reads up to there alone."""
    index = wds.index_shard(str(folder / "s-0.tar"))
    start = lambda stream, ordinal: Address(0, ordinal, index.entries[stream + 4 * ordinal].offset)
    ahead = shared.claim(0, start(0, 40))
    behind, before = shared.claim(1, start(1, 3)), shared.claim(2, start(2, 45))
    found = [
        [sample["__key__"] for samples, _ in part.lists() for sample in samples] for part in (ahead, behind, before)
    ]
    wanted = [range(0 + 4 * 40, SAMPLES, 4), range(1 + 4 * 3, SAMPLES, 4), range(2 + 4 * 45, SAMPLES, 4)]
    assert found == [[f"0-{number:03d}" for number in numbers] for numbers in wanted]
    assert len(shared.opened) == 2, "one more for the stream that catches up"
    assert shared.opened[1].closed


def test_catching_up_ends_where_the_others_are(folder, shared):
    """A stream that stands a few samples before the first comer reads a few more, and not the whole shard again."""
    index = wds.index_shard(str(folder / "s-0.tar"))
    ahead = shared.claim(0, Address(0, 2, index.entries[8].offset))
    behind = shared.claim(1, Address(0, 0, index.entries[1].offset))
    assert sum(len(samples) for samples, _ in ahead.lists()) == SAMPLES // 4 - 2
    before = count_bytes()
    assert sum(len(samples) for samples, _ in behind.lists()) == SAMPLES // 4
    assert count_bytes() - before < SAMPLES * EACH // 2


@pytest.mark.parametrize("seed", range(40))
def test_samples_taken_ahead_are_those_of_a_stream_that_is_run(folder, seed):
    """However a stream takes its next samples, and whatever others do: same samples, same addresses, same sums."""
    rng = random.Random(seed)
    shared = Shared(folder, rng.choice((1, 3 * EACH, 60 * EACH, 1 << 30)))
    index = wds.index_shard(shared.url)
    ordinals = {stream: rng.choice((None, None, 0, 3, 30, 45)) for stream in rng.sample(range(3), 3)}
    running = {}
    for stream, ordinal in ordinals.items():
        start = None if ordinal is None else Address(0, ordinal, index.entries[stream + 4 * ordinal].offset)
        oracle, position = (Position(tracked=True) for _ in range(2))
        alone = [{"url": shared.url, "share": (stream, 4), "stream": open(shared.url, "rb", buffering=0)}]  # noqa: SIM115  its reader closes it
        wanted = read_samples(alone, shared.reading, oracle, start)
        part = shared.claim(stream, start)
        given = read_samples(
            [{"url": shared.url, "reader": part, "stream": part.stream}], shared.reading, position, start
        )
        running[stream] = part, position, given, oracle, wanted
    ways = Counter()
    while running:
        stream = rng.choice(list(running))
        part, position, given, oracle, wanted = running[stream]
        for _ in range(rng.choice((1, 2, 20))):
            way = "list" if position.pending else rng.choice(("ahead", "ahead", "run"))
            if way == "ahead" and not (position.offsets and part.refill(position)):
                way = "run"
            ways[way] += 1
            expected = next(wanted, None)
            sample = next(given, None) if way == "run" else position.pending.pop()
            assert sample == expected
            if sample is None:
                del running[stream]
                break
            assert position.address() == oracle.address()
            assert (position.key_sum(), position.chain()) == (oracle.key_sum(), oracle.chain())
    assert all(ways[way] for way in ("list", "run"))
    assert ways["ahead"] or shared.readers.held.limit_bytes < 1 << 30
    shared.readers.close()


def test_little_is_taken_ahead_for_a_stream_that_is_not_asked(shared):
    """A stream that took samples ahead once, and is asked no more, gets a list more; the rest is counted, and waits."""
    ahead = {}
    for stream in (0, 1):
        part, position = shared.claim(stream), Position(tracked=True)
        given = read_samples([{"url": shared.url, "reader": part, "stream": part.stream}], shared.reading, position)
        next(given)
        while position.pending:
            position.pending.pop()
        assert part.refill(position)
        ahead[stream] = part, position, given
    part, position, given = ahead[0]
    longest = 0
    while position.pending or part.refill(position):
        longest = max(longest, len(position.pending))
        position.pending.pop()
    part, position, given = ahead[1]
    assert longest <= len(position.pending) <= 2 * longest < SAMPLES // 4
    assert part.held_bytes > EACH
    rest = len(position.pending) + sum(len(samples) for samples, *_ in part._queue)
    assert sum(1 for _ in given) == rest


def test_states_do_not_tell_how_samples_were_taken(tmp_path, monkeypatch):
    """Byte for byte, after each item, also where the keys of the shard rise no more from its middle on."""
    for name, size in (("a", 3_000), ("b", 10)):
        with wds.TarWriter(str(tmp_path / f"{name}.tar")) as sink:
            for index in range(400):
                number = index if index < 300 else 999 - index
                sink.write({"__key__": f"{name}{number:03d}", "bin": bytes(size), "cls": index})

    def states():
        urls = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
        run = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(8).elastic_run()
        return [(sample["__key__"], json.dumps(run.state_dict())) for sample in run]

    ahead = states()
    monkeypatch.setattr(StreamReader, "refill", lambda *_: False)
    run = states()
    assert len(ahead) == 800
    assert [number for number in range(800) if ahead[number] != run[number]] == []
    memories = [json.loads(state)["memories"].values() for _, state in ahead]
    rises = [{memory[4][-1][1][-1] for memory in each if memory} for each in memories]
    assert {1} in rises
    assert {0} in rises


@pytest.mark.parametrize("calls", [4, 8, 12])
def test_there_is_no_state_after_an_interrupt(folder, monkeypatch, calls):
    """It may come while samples are taken ahead: some of them are lost. A state from before is exact."""
    plain, left = SharedReader.hand_out, [calls]

    def hand_out(self, asking):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        plain(self, asking)

    monkeypatch.setattr(SharedReader, "hand_out", hand_out)
    run, seen = make(folder).elastic_run(), []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(run)
    try:
        state = run.state_dict()
    except FlowError as error:
        assert "failed" in str(error)  # noqa: PT017  a state may be given, too
    else:
        # the stream that was interrupted had given nothing, as with the shorter lists that Python reads
        assert calls == 4
        assert seen + list(make(folder).elastic_run(state=state)) == list(make(folder))


def test_samples_of_shared_shards_have_their_addresses(folder, monkeypatch):
    """``addresses=True`` stamps the samples of each stream as where it reads alone."""
    dataset = wds.WebDataset(f"{folder}/s-{{0..2}}.tar", shardshuffle=False, addresses=True).elastic(24)
    found = [(sample["__key__"], sample["__address__"]) for sample in dataset]
    monkeypatch.setenv("WDS_SHARED_BYTES", "0")
    assert found == [(sample["__key__"], sample["__address__"]) for sample in dataset]
    assert len(found) == 3 * SAMPLES


def test_readers_of_old_epochs_are_forgotten(folder, shared):
    """A dataset that repeats without end keeps no reader of passes that are over, failed ones neither."""
    for epoch in range(20):
        shared.url = str(folder / ("s-0.tar" if epoch % 2 else "missing.tar"))
        parts = [shared.claim(stream, epoch=epoch) for stream in range(3)]
        assert (parts == [None] * 3) is (epoch % 2 == 0)
        for part in parts:
            if part is not None:
                assert sum(len(samples) for samples, _ in part.lists()) == SAMPLES // 4
                part.close()
    assert len(shared.readers._readers) <= 3


def test_a_replaced_shard_is_not_continued(folder, monkeypatch):
    """A stream that reads on alone finds the sample that it gave last, or says that the shard was replaced."""
    monkeypatch.setenv("WDS_SHARED_BYTES", "1000000")
    run = make(folder, 1).elastic_run()
    for _ in range(30):
        next(run)
    part = next(part for reader in run._started.readers._readers.values() for part in reader.parts.values())
    with wds.TarWriter(str(folder / "new.tar")) as sink:
        for index in range(SAMPLES):
            sink.write({"__key__": f"new-{index:03d}", "bin": bytes(EACH), "cls": index})
    os.replace(folder / "new.tar", folder / "s-0.tar")
    part.let_go()
    with pytest.raises(wds.WebDatasetError) as raised:
        list(run)
    assert type(raised.value).__name__ == "ShardChanged"


@pytest.mark.parametrize("streams", [3, 24])
@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES - 30])
@pytest.mark.parametrize("after", [0.05, 0.4, 0.9])
def test_a_shard_that_is_replaced_at_a_server_is_not_continued(folder, streams, samples, after):
    """No stream goes on in another object: none of its samples is given, and each stream's handler is told."""

    def replace_shard():
        with wds.TarWriter(str(folder / "new.tar")) as sink:
            for index in range(samples):
                sink.write({"__key__": f"n-{index:03d}", "bin": bytes(EACH), "cls": index})
        os.replace(folder / "new.tar", folder / "s-0.tar")

    def plan_fault():
        return planned([Fault("swapped", int(after * (folder / "s-0.tar").stat().st_size))])

    asked = []
    with (
        RangeServer(folder) as server,
        FaultyProxy(server.root.removeprefix("http://"), plan_fault(), swap=replace_shard) as proxy,
    ):
        url = f"{proxy.url}/s-0.tar"
        handled = wds.WebDataset(url, shardshuffle=False, seed=1, handler=lambda error: asked.append(error) or True)
        keys = [sample["__key__"] for sample in handled.elastic(streams)]
        proxy.plan = plan_fault()
        with pytest.raises(ShardChanged):
            list(wds.WebDataset(url, shardshuffle=False, seed=1).elastic(streams))
    assert [type(error) for error in asked] == [ShardChanged] * streams
    assert {error.url for error in asked} == {url}
    assert len(set(keys)) == len(keys)
    assert not [key for key in keys if not key.startswith("0-")]


def test_a_worker_with_one_stream_of_a_shard_shares_nothing(folder, monkeypatch):
    """What is shared by streams of other workers is read alone, without a queue."""
    monkeypatch.setattr(shared_reader.SharedReader, "_open_whole", lambda *_, **__: pytest.fail("shared with nobody"))
    place = wds.WorkerContext(0, 8, 0, 1)
    dataset = wds.WebDataset(f"{folder}/s-{{0..2}}.tar", shardshuffle=False, seed=1).elastic(8)
    assert sum(1 for _ in dataset.elastic_run(place)) == SAMPLES // 3


def test_a_part_of_a_sample_is_found_by_all_streams_of_a_store(tmp_path):
    """A store cannot be asked for what comes before: streams that continue after such a fault read from the start."""
    keys = ["zz", *(f"{index:03d}" for index in range(40))]
    with wds.TarWriter(str(tmp_path / "s.tar")) as sink:
        for key in keys:
            sink.write({"__key__": key, "bin": bytes(900)})
        sink.write({"__key__": "zz", "late": b"a part"})
    asked = []
    with RangeServer(tmp_path) as server:
        dataset = wds.WebDataset(
            f"{server.root}/s.tar", shardshuffle=False, seed=1, handler=lambda error: asked.append(error.key) or True
        )
        samples = list(dataset.elastic(5).elastic_run(wds.WorkerContext(0, 1, 0, 1)))
    assert sorted(sample["__key__"] for sample in samples) == sorted(keys)
    assert not [sample for sample in samples if "late" in sample]
    assert asked == ["zz"] * 5


def test_zero_shares_nothing(folder, monkeypatch):
    """``WDS_SHARED_BYTES=0`` lets every stream read by itself."""
    monkeypatch.setenv("WDS_SHARED_BYTES", "0")
    monkeypatch.setattr(SharedReaders, "make_room", lambda *_: pytest.fail("nothing waits"))
    monkeypatch.setattr(StreamReader, "take", lambda *_, **__: pytest.fail("nothing waits"))
    assert sum(1 for _ in make(folder)) == 3 * SAMPLES
