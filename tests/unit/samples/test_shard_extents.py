"""Which bytes a process reads of a shard that it shares with others, and what it does where its index is wrong."""

import gc
import itertools
import os
import sys
import threading
import warnings
from pathlib import Path

import pytest

import webdataset as wds
from support.range_server import RangeServer
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import StaleIndex
from webdataset.samples import shard_extents
from webdataset.samples.shard_extents import SampleTable
from webdataset.storage import extents
from webdataset.storage.prefetch_worker import prefetch_budget
from webdataset.testing import archives

SAMPLES, SIZE = 96, 80_000
FIRST_INDEX = ".wdsindex"


@pytest.fixture(autouse=True)
def near(monkeypatch):
    """However busy this machine is, its own servers are near."""
    monkeypatch.setattr(extents, "BYTES_PER_SECOND", 0)


def write_shards(folder, count, size=SIZE, samples=SAMPLES):
    """Write shards; return their names."""
    names = [f"s-{number}.tar" for number in range(count)]
    for number, name in enumerate(names):
        with wds.TarWriter(str(folder / name)) as sink:
            for index in range(number, samples, count):
                sink.write({"__key__": f"{index:06d}", "bin": index.to_bytes(4, "big") * (size // 4)})
    return names


def read_worker(urls, worker=0, workers=4, handler=wds.reraise_exception, state=None):
    """Read what one worker reads; return the keys, and check the bytes."""
    keys = []
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1, handler=handler).elastic(streams=24)
    with dataset.elastic_run(WorkerContext(0, 1, worker, workers), state) as run:
        for sample in run:
            keys.append(sample["__key__"])
            assert sample["bin"][:4] == int(sample["__key__"]).to_bytes(4, "big")
    return keys


def sizes_of(folder, names):
    """Bytes of some shards together."""
    return sum((folder / name).stat().st_size for name in names)


@pytest.mark.parametrize("kind", ["binary", "dali", "files"])
@pytest.mark.parametrize("count", [3, 6, 25])
def test_four_workers_read_a_web_server_once(kind, count, tmp_path):
    """With an index beside the shards all workers together ask for hardly more than the bytes of the shards."""
    names = write_shards(tmp_path, count)
    with RangeServer(tmp_path) as server:
        wds.write_indexes([str(tmp_path / name) for name in names], kind)
        keys = [key for worker in range(4) for key in read_worker([f"{server.root}/{name}" for name in names], worker)]
        assert sorted(keys) == [f"{index:06d}" for index in range(SAMPLES)]
        assert server.sent_bytes <= 1.05 * sizes_of(tmp_path, names)


def test_a_resumed_worker_asks_for_its_rest_alone(tmp_path):
    """A run that continues in the middle of its shards requests the samples that are left, and little more."""
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        urls = [f"{server.root}/{name}" for name in names]
        whole = read_worker(urls)
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(streams=24)
        with dataset.elastic_run(WorkerContext(0, 1, 0, 4)) as run:
            given = [sample["__key__"] for sample in itertools.islice(run, 10)]
            state = run.state_dict()
        before = server.sent_bytes
        rest = read_worker(urls, state=state)
        assert given + rest == whole
        # each stream reads the sample again that it gave last
        assert server.sent_bytes - before < (len(rest) + 7) * 1.1 * SIZE


def test_workers_of_a_loader_read_a_web_server_once(tmp_path):
    """Four worker processes together ask for hardly more than the bytes of the shards."""
    names = write_shards(tmp_path, 3)
    with RangeServer(tmp_path) as server:
        wds.write_indexes([str(tmp_path / name) for name in names], "binary")
        urls = [f"{server.root}/{name}" for name in names]
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).to_tuple("__key__", "bin").elastic(streams=24)
        with wds.Loader(dataset, 8, workers=4) as loader:
            keys = [key for batch in loader for key in batch[0]]
        assert sorted(keys) == [f"{index:06d}" for index in range(SAMPLES)]
        assert server.sent_bytes <= 1.05 * sizes_of(tmp_path, names)


def test_without_an_index_shards_are_read_whole(tmp_path):
    """Where the first shard of a folder has no index the others are not asked about; each is one request."""
    names = write_shards(tmp_path, 3)
    with RangeServer(tmp_path) as server:
        assert len(read_worker([f"{server.root}/{name}" for name in names])) == SAMPLES // 4
        paths = [request.path.lstrip("/") for request in server.requests if request.size != 512]
        assert sorted(paths) == sorted(["s-0.idx", "s-0.json", "s-0.wdsindex", *names])
        assert server.sent_bytes == sizes_of(tmp_path, names) + 512


def test_one_process_asks_for_no_index(tmp_path):
    """A process that reads all samples reads each shard whole, by one request, and looks for nothing beside it."""
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        assert len(read_worker([f"{server.root}/{name}" for name in names], workers=1)) == SAMPLES
        assert sorted(request.path.lstrip("/") for request in server.requests) == names
        assert server.sent_bytes == sizes_of(tmp_path, names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WDS_SHARED_BYTES", "0"),
        ("WDS_CONNECTIONS", "1"),
        ("WDS_PREFETCH_BYTES", "0"),
        ("WDS_REQUESTS_PER_SECOND", "500"),
    ],
)
def test_settings_that_read_shards_whole(name, text, tmp_path, monkeypatch):
    """Without sharing, further connections or reading ahead, or within a bound on requests, no index is asked for."""
    monkeypatch.setenv(name, text)
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / each) for each in names], "binary")
    with RangeServer(tmp_path) as server:
        assert len(read_worker([f"{server.root}/{each}" for each in names])) == SAMPLES // 4
        assert not [request for request in server.requests if FIRST_INDEX in request.path]


def test_small_samples_are_read_whole(tmp_path):
    """Gaps of a few kilobytes are read: one request for a shard, beside the look at the first index."""
    names = write_shards(tmp_path, 3, size=2_000)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        assert len(read_worker([f"{server.root}/{name}" for name in names])) == SAMPLES // 4
        assert sum(request.path.endswith(".tar") and request.size != 512 for request in server.requests) == len(names)
        assert sum(FIRST_INDEX in request.path for request in server.requests) == 1


def test_far_servers_are_asked_for_whole_shards(tmp_path, monkeypatch):
    """Where a request takes longer than the bytes that it saves, shards are read whole."""
    monkeypatch.setattr(extents, "BYTES_PER_SECOND", 1e15)
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        assert len(read_worker([f"{server.root}/{name}" for name in names])) == SAMPLES // 4
        whole = [request.path.lstrip("/") for request in server.requests if request.size > SAMPLES * SIZE // 4]
        assert sorted(whole) == names


def count_read_bytes(read):
    """Return how many bytes this process reads meanwhile, by the system's count."""

    def counted():
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))

    before = counted()
    read()
    return counted() - before


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts elsewhere")
@pytest.mark.parametrize(("indexed", "size"), [(True, 80_000), (False, 300_000)])
def test_local_files_are_stepped_over(indexed, size, tmp_path):
    """A worker of four reads little more than a fourth of local shards: by their index, or by their headers."""
    names = write_shards(tmp_path, 3, size=size, samples=48)
    if indexed:
        wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    urls = [str(tmp_path / name) for name in names]
    read_worker(urls)
    assert count_read_bytes(lambda: read_worker(urls)) < 0.35 * sizes_of(tmp_path, names)


def test_a_stale_index_is_an_error_and_gives_no_sample(tmp_path):
    """Samples in another order under an index that lists them as they were: StaleIndex, and no wrong sample."""
    [name] = write_shards(tmp_path, 1)
    wds.write_indexes(str(tmp_path / name), "binary")
    with wds.TarWriter(str(tmp_path / name)) as sink:
        for index in [0, *reversed(range(1, SAMPLES))]:
            sink.write({"__key__": f"{index:06d}", "bin": index.to_bytes(4, "big") * (SIZE // 4)})
    with pytest.raises(StaleIndex, match="other samples stand there"):
        read_worker([str(tmp_path / name)])


def test_an_index_of_a_shard_that_begins_otherwise_is_passed_by(tmp_path):
    """Where the first header is another one, all processes read the shard whole, in the order that it has now."""
    [name] = write_shards(tmp_path, 1)
    wds.write_indexes(str(tmp_path / name), "binary")
    with wds.TarWriter(str(tmp_path / name)) as sink:
        for index in reversed(range(SAMPLES)):
            sink.write({"__key__": f"{index:06d}", "bin": index.to_bytes(4, "big") * (SIZE // 4)})
    keys = [key for worker in range(4) for key in read_worker([str(tmp_path / name)], worker)]
    assert sorted(keys) == [f"{index:06d}" for index in range(SAMPLES)]
    assert keys[0] == f"{SAMPLES - 1:06d}"


def test_an_index_that_leaves_the_last_samples_out_loses_none_silently(tmp_path):
    """Small samples after the last one listed, which look like padding by their size: its owner sees them."""
    path = tmp_path / "s-0.tar"
    with wds.TarWriter(str(path)) as sink:
        for index in range(SAMPLES + 2):
            sink.write(
                {"__key__": f"{index:06d}", "bin": index.to_bytes(4, "big") * (SIZE // 4 if index < SAMPLES else 1)}
            )
    wds.write_indexes(str(path), "dali")
    lines = (tmp_path / "s-0.idx").read_text(encoding="ascii").splitlines()
    (tmp_path / "s-0.idx").write_text("\n".join([f"v1.2 {SAMPLES}", *lines[1 : SAMPLES + 1], ""]), encoding="ascii")
    failed = 0
    for worker in range(4):
        try:
            read_worker([str(path)], worker)
        except StaleIndex:
            failed += 1
    assert failed == 1


def test_a_handler_is_asked_about_a_stale_index_by_each_stream(tmp_path):
    """Each stream asks its own handler, which may leave out the rest of the shard, with a count."""
    [name] = write_shards(tmp_path, 1)
    wds.write_indexes(str(tmp_path / name), "binary")
    with wds.TarWriter(str(tmp_path / name)) as sink:
        for index in [0, *reversed(range(1, SAMPLES))]:
            sink.write({"__key__": f"{index:06d}", "bin": index.to_bytes(4, "big") * (SIZE // 4)})
    asked = []

    def note(error):
        asked.append(type(error))
        return True

    read_worker([str(tmp_path / name)], handler=note)
    assert StaleIndex in asked


def test_other_fields_of_the_same_samples_are_read_with_a_warning(tmp_path):
    """Keys that stand where the index says, under members of another name: read whole, and warnings say so.

    One comes from the worker that reads the sample, and one from that of the sample before it, which sees its header.
    """
    [name] = write_shards(tmp_path, 1)
    wds.write_indexes(str(tmp_path / name), "binary")
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    rename_member(content, 40)
    path.write_bytes(bytes(content))
    keys = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for worker in range(4):
            dataset = wds.WebDataset(str(path), shardshuffle=False, seed=1).elastic(streams=24)
            with dataset.elastic_run(WorkerContext(0, 1, worker, 4)) as run:
                keys += [sample["__key__"] for sample in run]
    assert sorted(keys) == [f"{index:06d}" for index in range(SAMPLES)]
    assert sorted(str(one.message).partition("from sample ")[2][:2] for one in told) == ["36", "37"]


def rename_member(content, number):
    """Give a sample's member another extension, and its header the right sum."""
    at = content.index(b"%06d.bin" % number)
    content[at + 7 : at + 10] = b"dat"
    content[at + 148 : at + 156] = b" " * 8
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_forked_in_the_middle_continues(tmp_path):
    """A child reads on over connections of its own; it and its parent give the same rest."""
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        dataset = wds.WebDataset([f"{server.root}/{name}" for name in names], shardshuffle=False, seed=1)
        run = dataset.elastic(streams=24).elastic_run(WorkerContext(0, 1, 0, 4))
        given = [next(run)["__key__"] for _ in range(5)]
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.write(writing, ",".join(sample["__key__"] for sample in run).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        rest = [sample["__key__"] for sample in run]
        with os.fdopen(reading) as answer:
            assert answer.read().split(",") == rest
        assert os.waitpid(child, 0)[1] == 0
        assert len(set(given + rest)) == SAMPLES // 4


@pytest.mark.parametrize("fault", ["key twice", "no end mark", "zeros"])
def test_warnings_are_those_of_reading_whole(fault, tmp_path, monkeypatch):
    """What is unusual in a local shard of large members is told once, though its headers are looked at before."""
    path = tmp_path / "s-0.tar"
    with wds.TarWriter(str(path)) as sink:
        for index in range(12):
            number = index - 4 * (fault == "key twice" and index > 9)
            sink.write({"__key__": f"{number:06d}", "bin": bytes(300_000)})
    content = path.read_bytes()
    if fault == "no end mark":
        path.write_bytes(content[: 12 * 300_544])
    elif fault == "zeros":
        path.write_bytes(content[: 6 * 300_544] + bytes(512) + content[6 * 300_544 :])
    told = []
    for limit in ("0", "67108864"):
        monkeypatch.setenv("WDS_SHARED_BYTES", limit)
        monkeypatch.setenv("WDS_MISSING_END", "warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dataset = wds.WebDataset(str(path), shardshuffle=False, seed=1).elastic(streams=8)
            # one stream of the shard in each process
            with dataset.elastic_run(WorkerContext(1, 8, 0, 1)) as run:
                told.append((sum(1 for _ in run), [str(one.message) for one in caught]))
    assert told[0] == told[1]
    assert len(told[0][1]) == 1


@pytest.mark.parametrize("taken", [1, 9, 1000])
def test_nothing_is_left_behind(taken, tmp_path):
    """Where a run ends or is left, no thread, descriptor or part of the budget stays."""
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        urls = [f"{server.root}/{name}" for name in names]
        dataset = wds.WebDataset([*urls, str(tmp_path / names[0])], shardshuffle=False, seed=1).elastic(streams=24)
        with dataset.elastic_run(WorkerContext(0, 1, 0, 4)) as run:
            list(itertools.islice(run, taken))
    assert (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0)
    assert not [one for one in threading.enumerate() if one.name.startswith(("webdataset-ahead", "index"))]
    assert not [one for one in gc.get_objects() if isinstance(one, extents.FileExtents) and not one.stream.closed]


def test_a_shard_that_goes_away_is_an_error(tmp_path):
    """Where a shard is gone after its index was read, streams say what they say where shards are read whole."""
    names = write_shards(tmp_path, 3)
    wds.write_indexes([str(tmp_path / name) for name in names], "binary")
    with RangeServer(tmp_path) as server:
        dataset = wds.WebDataset([f"{server.root}/{name}" for name in names], shardshuffle=False, seed=1)
        with dataset.elastic(streams=24).elastic_run(WorkerContext(0, 1, 0, 4)) as run:
            next(run)
            for name in names:
                (tmp_path / name).unlink()
            with pytest.raises(wds.WebDatasetError, match="404"):
                list(run)


class Entry:
    """An entry of a table."""

    def __init__(self, key, offset, *fields):
        self.key, self.offset = key, offset
        self.fields = [Field(*field) for field in fields]


class Field:
    """A field of an entry."""

    def __init__(self, offset, size):
        self.name, self.member, self.offset, self.size = "bin", "x.bin", offset, size


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        ([], 0),
        # a gap, in which a sample may stand
        ([Entry("a", 0, (512, 10)), Entry("b", 2048, (2560, 10))], 3584),
        # they overlap
        ([Entry("a", 0, (512, 1000)), Entry("b", 1024, (1536, 10))], 2560),
        # a link to a member before it
        ([Entry("a", 0, (512, 10)), Entry("b", 1024, (512, 10))], 2048),
        # a link stands before a member
        ([Entry("a", 0, (512, 10), (2048, 10))], 2560),
        # a key that stands twice
        ([Entry("a", 0, (512, 10)), Entry("a", 1024, (1536, 10))], 2048),
        # without a field, and short of the end
        ([Entry("a", 0)], 0),
        ([Entry("a", 0, (512, 10))], 2048),
    ],
)
def test_tables_that_may_leave_samples_out_are_not_used(entries, end):
    """Only a table whose samples stand one after another up to the end mark says that none is missing."""
    assert not SampleTable(entries, end, None).whole


def test_a_table_that_covers_the_shard():
    """Folders before the first sample, and extended headers before a payload, leave no gap."""
    table = SampleTable([Entry("a", 512, (2048, 10)), Entry("b", 2560, (3072, 0))], 3072, None)
    assert table.whole
    assert (table.starts, table.rising) == ([0, 2560, 3072], 2)
    assert [table.find(offset) for offset in (512, 0, 2560, 3072)] == [0, -1, 1, -1]
    assert [table.fits(length) for length in (3072, 3584, 3072 + 20480, 3072 + 20992)] == [False, True, True, False]


def test_a_table_knows_how_its_shard_begins():
    """The first header is compared by every process, where it is a plain one."""
    table = SampleTable([Entry("x", 0, (512, 10))], 1024, None)
    assert table.begins_with(archives.header(b"x.bin", 10))
    assert not table.begins_with(archives.header(b"x.bin", 11))
    assert not table.begins_with(archives.header(b"y.bin", 10))
    assert not table.begins_with(bytes(512))
    assert SampleTable([Entry("x", 512, (1024, 10))], 1536, None).begins_with(bytes(512))


def test_gaps_between_own_samples():
    """The longest run of samples that are not wanted, around the end of a round too."""
    assert shard_extents.find_gap([0, 4], 8) == 3
    assert shard_extents.find_gap([1], 8) == 7
    assert shard_extents.find_gap([0, 1, 2], 3) == 0
    assert shard_extents.find_gap([1, 2], 6) == 4
