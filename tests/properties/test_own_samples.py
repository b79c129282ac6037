"""A process that reads only its own samples of a shared shard gives what it gives where it reads all of the shard.

The oracle is the same run with ``WDS_SHARED_BYTES=0``, which reads shards whole. Gaps of any size are left out here, so
that small shards are enough.
"""

import io
import os
import random
import tarfile
import warnings

import pytest

import webdataset as wds
from support.odd_shards import write_shard
from support.range_server import RangeServer
from webdataset.index import sample_tables
from webdataset.samples.shard_extents import ExtentReader
from webdataset.storage import extents

LIMITS = (1, 20_000, 1 << 26)
READER_PARTS = 8  # of where a reader stands, in a state
INDEXES = ("binary", "dali", "files", "none")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A web server for all of these."""
    with RangeServer(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(autouse=True)
def any_gap(monkeypatch):
    """Gaps of one byte are left out, and no latency speaks against it."""
    monkeypatch.setattr(extents, "REMOTE_GAP_BYTES", 1)
    monkeypatch.setattr(extents, "BYTES_PER_SECOND", 0)
    monkeypatch.setattr(extents.FileExtents, "gap_bytes", 1)
    monkeypatch.setattr(sample_tables, "LOCAL_GAP_BYTES", 1)
    monkeypatch.setenv("WDS_SEED", "5")


@pytest.fixture
def used(monkeypatch):
    """How many shards were read by ranges."""
    opened = []
    whole = ExtentReader.open.__func__

    def noted(*arguments):
        reader = whole(ExtentReader, *arguments)
        opened.extend([reader] if reader is not None else [])
        return reader

    monkeypatch.setattr(ExtentReader, "open", noted)
    return opened


def write_shards(rng, folder, count):
    """Write shards, with indexes beside them; return their paths."""
    paths = []
    for number in range(count):
        path = folder / f"s-{number:02d}.tar"
        write_shard(rng, path, number)
        index_shard(rng.choice(INDEXES), path)
        paths.append(path)
    return paths


def index_shard(kind, path):
    """Write an index of some kind, where it can hold the shard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wds.write_indexes(str(path), [kind] if kind != "none" else [])
        except wds.WebDatasetError:
            return


class Noted:
    """A handler that notes what it is asked about."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def __call__(self, error):
        self.asked.append((type(error).__name__, getattr(error, "key", None), getattr(error, "offset", None)))
        return self.answer


def make_dataset(urls, streams, kind, handler=wds.reraise_exception):
    """An elastic dataset of some kind."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=5, empty_check=False, handler=handler)
    if kind == "shuffle":
        dataset = dataset.shuffle(9)
    elif kind == "repeat":
        dataset = dataset.repeat(2)
    elif kind == "select":
        dataset = dataset.select(lambda sample: sum(sample["__key__"].encode()) % 3)
    return dataset.elastic(streams=streams)


def without_hints(state):
    """A state without the note whether keys rise, which tells how far a reader looked ahead, and the sum over it."""
    if isinstance(state, list):
        if len(state) == READER_PARTS and all(type(part) is int or part is None for part in state):
            return state[:-1]
        # the same in two parts
        if len(state) == 2 and all(isinstance(part, list) for part in state) and len(sum(state, [])) == READER_PARTS:
            return [state[0], state[1][:-1]]
        return [without_hints(part) for part in state]
    if isinstance(state, dict):
        return {name: without_hints(part) for name, part in state.items() if name != "check"}
    return state


def run(make, place, limit, steps, state, monkeypatch):
    """Run one worker for some steps: items, states in between, and how it ended."""
    monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
    items, states, end = [], [], None
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        current = make().elastic_run(place, state)
        try:
            for step in range(steps):
                item = next(current, None)
                if item is None:
                    end = "end"
                    break
                items.append((current.position, tuple(item.items())))
                if step % 7 == 3:
                    states.append(current.state_dict())
            else:
                states.append(current.state_dict())
        except wds.WebDatasetError as error:
            end = type(error).__name__, error.key, error.offset, error.message
        finally:
            current.close()
    return items, states, end


def choose_topology(rng):
    """Streams, and the places of all workers."""
    streams = rng.choice((2, 3, 5, 8, 24))
    ranks = rng.choice([one for one in (1, 2, 3) if one <= streams])
    workers = rng.choice((1, 2, 4))
    places = [wds.WorkerContext(rank, ranks, worker, workers) for rank in range(ranks) for worker in range(workers)]
    return streams, places


def name_urls(rng, paths, server):
    """Paths, or urls of the server."""
    if rng.random() < 0.5:
        return [str(path) for path in paths]
    return [f"{server.root}/{path.relative_to(server.folder)}" for path in paths]


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(60))
def test_own_samples_alone_change_nothing(seed, server, monkeypatch):
    """Random shards, indexes, pipelines, topologies, limits and places to resume from, in states of either way."""
    rng = random.Random(seed)
    folder = server.folder / f"same-{seed}"
    folder.mkdir()
    urls = name_urls(rng, write_shards(rng, folder, rng.choice((1, 2, 3, 5, 11))), server)
    streams, places = choose_topology(rng)
    kind = rng.choice(("plain", "plain", "shuffle", "repeat", "select"))
    place, state = rng.choice(places), None

    def make():
        return make_dataset(urls, streams, kind)

    for _ in range(3):
        steps = rng.choice((5, 40, 10_000))
        whole = run(make, place, 0, steps, state, monkeypatch)
        states = list(whole[1])
        for limit in LIMITS:
            ranges = run(make, place, limit, steps, state, monkeypatch)
            about = f"seed {seed}, {kind}, {streams} streams, {place}, limit {limit}"
            assert ranges[0] == whole[0], about
            assert ranges[2] == whole[2], about
            assert without_hints(ranges[1]) == without_hints(whole[1]), about
            states += ranges[1]
        if not states:
            break
        state = rng.choice(states)


def test_most_random_shards_are_read_by_ranges(server, monkeypatch, used):
    """The random runs would show nothing if shards were read whole."""
    counts = []
    for seed in range(12):
        rng = random.Random(seed)
        folder = server.folder / f"used-{seed}"
        folder.mkdir()
        urls = name_urls(rng, write_shards(rng, folder, 3), server)
        for worker in range(4):
            before = len(used)
            run(lambda urls=urls: make_dataset(urls, 24, "plain"), wds.WorkerContext(0, 1, worker, 4), 1 << 26, 10_000,
                None, monkeypatch)  # fmt: skip
            counts.append(len(used) - before)
    assert sum(counts) > len(counts)


def read_all(urls, streams, places, limit, monkeypatch):
    """All workers one after another: the samples by stream, and what each worker's handler was asked."""
    monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
    by_stream, asked = {}, []
    for place in places:
        handler = Noted(answer=True)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            with make_dataset(urls, streams, "plain", handler).elastic_run(place) as current:
                for sample in current:
                    by_stream.setdefault(current.position % streams, []).append(tuple(sample.items()))
        asked.append(handler.asked)
    return by_stream, asked


def is_part(shorter, longer):
    """Whether the items of one list come in another, in this order."""
    rest = iter(longer)
    return all(item in rest for item in shorter)


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(40))
def test_a_fault_is_found_by_its_owner(seed, server, monkeypatch):
    """A header that was damaged after the index was made: one worker at least reports it, as reading whole does.

    All samples that reading whole gives are given, and others only as they stand in the shard.
    """
    rng = random.Random(seed)
    folder = server.folder / f"fault-{seed}"
    folder.mkdir()
    path = folder / "s-0.tar"
    members = write_shard(rng, path, 0, samples=rng.choice((7, 20, 40)))
    index_shard(rng.choice(("binary", "dali", "files")), path)
    urls = name_urls(rng, [path], server)
    streams, places = choose_topology(rng)
    sound, _ = read_all(urls, streams, places, 0, monkeypatch)
    content, status = bytearray(path.read_bytes()), path.stat()
    with tarfile.open(path) as archive:
        at = rng.choice(archive.getmembers()).offset
    content[at : at + 20] = b"\xff" * 20
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    whole, faults = read_all(urls, streams, places, 0, monkeypatch)
    assert members
    for limit in LIMITS:
        ranges, found = read_all(urls, streams, places, limit, monkeypatch)
        for stream in range(streams):
            assert is_part(whole.get(stream, []), ranges.get(stream, []))
            assert is_part(ranges.get(stream, []), sound.get(stream, []))
        kinds = {(kind, offset) for asked in found for kind, _, offset in asked}
        assert kinds == {(kind, offset) for asked in faults for kind, _, offset in asked}


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(60))
def test_an_index_of_another_shard_gives_no_wrong_sample(seed, server, monkeypatch):
    """Shards of the same size under a stale index, and torn indexes: right samples, or StaleIndex; never others."""
    rng = random.Random(seed)
    folder = server.folder / f"stale-{seed}"
    folder.mkdir()
    path = folder / "s-0.tar"
    members = write_shard(rng, path, 0, samples=rng.choice((7, 20, 40)))
    index_shard(rng.choice(("binary", "dali", "files")), path)
    how = change_shard(rng, path, members, folder)
    urls = name_urls(rng, [path], server)
    streams, places = choose_topology(rng)
    whole, faults = read_all(urls, streams, places, 0, monkeypatch)
    every = [item for items in whole.values() for item in items]
    for limit in LIMITS:
        ranges, found = read_all(urls, streams, places, limit, monkeypatch)
        stale = any(kind == "StaleIndex" for asked in found for kind, *_ in asked)
        # headers within a payload, at the very places of the index, are seen through by one process alone
        assert all(item in every for items in ranges.values() for item in items) or (stale and how == "nest")
        kinds = [{fault for asked in told for fault in asked} for told in (found, faults)]
        assert stale or (ranges == whole and kinds[0] == kinds[1])


def change_shard(rng, path, members, folder):
    """Rewrite a shard at about the same size, or its index; return how."""
    how = rng.choice(("swap", "rename", "join", "shuffle", "nest", "torn", "foreign"))
    if how == "torn":
        for index in [one for one in folder.iterdir() if one != path]:
            content = bytearray(index.read_bytes())
            at = rng.randrange(len(content))
            content[at : at + 8] = rng.randbytes(8)
            index.write_bytes(bytes(content[: rng.choice((at + 1, len(content)))]))
        return how
    if how == "foreign":
        write_shard(rng, path, 0, samples=rng.choice((7, 20, 40)))
        return how
    at = rng.randrange(len(members))
    if how == "swap":
        other = rng.randrange(len(members))
        members[at], members[other] = members[other], members[at]
    elif how == "rename":
        members[at] = (members[at][0] + "x", members[at][1])
    elif how == "join":
        before = members[at - 1][0].partition(".")[0]
        members[at] = (f"{before}.joined", members[at][1])
    elif how == "shuffle":
        rng.shuffle(members)
    else:
        # the rest of the shard becomes the payload of one member
        members[at:] = [("zz.tar", pack(members[at + 1 :]))]
    path.write_bytes(pack(members))
    return how


def pack(members):
    """An archive of some members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()
