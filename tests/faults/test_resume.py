"""What resuming reads: the samples that waited and one sample a stream, from any kind of source; what it notices."""

import gzip
import io
import itertools
import json
import random

import pytest

import webdataset as wds
from webdataset.core.errors import WebDatasetError
from webdataset.storage import prefetch_worker
from webdataset.testing.sources import RangeServer

SHARDS, SAMPLES, STREAMS, BUFFER = 8, 40, 4, 48
CHUNK = 32 * 1024  # what a reader asks for first


def key(sample):
    """Tell a sample by its key."""
    return sample["__key__"]


@pytest.fixture(scope="module")
def shards():
    """Name to bytes: shards of samples of 2 to 40 KB, in two members each."""
    draws, found = random.Random(3), {}
    for number in range(SHARDS):
        stream = io.BytesIO()
        with wds.TarWriter(stream) as sink:
            for index in range(SAMPLES):
                sink.write(
                    {
                        "__key__": f"{number}-{index:03d}",
                        "bin": draws.randbytes(draws.randrange(2_000, 40_000)),
                        "cls": 1,
                    }
                )
        found[f"s-{number}.tar"] = stream.getvalue()
    return found


@pytest.fixture(scope="module")
def folder(shards, tmp_path_factory):
    """The shards as files, plain and compressed."""
    path = tmp_path_factory.mktemp("resume")
    for name, content in shards.items():
        (path / name).write_bytes(content)
        (path / f"{name}.gz").write_bytes(gzip.compress(content, 1))
    return path


class Counted(io.FileIO):
    """A file that takes note of what was read of it."""

    def __init__(self, path, log):
        super().__init__(path)
        self.log = log

    def read(self, size=-1):
        """Read, and take note."""
        content = super().read(size)
        self.log.append(len(content))
        return content


def elastic(urls, *, bufsize=BUFFER, seed=5):
    """Return a shuffled elastic dataset of keys."""
    return wds.WebDataset(urls, shardshuffle=20, seed=seed).shuffle(bufsize, initial=bufsize).map(key).elastic(STREAMS)


def stopped(dataset, steps):
    """Return what a run gives behind some steps, and its state there."""
    run = iter(dataset)
    list(itertools.islice(run, steps))
    state = json.loads(json.dumps(run.state_dict()))
    return list(run), state


@pytest.mark.parametrize("steps", [30, 100, 170, 240])
def test_local_files(folder, monkeypatch, steps):
    """A resumed run reads what waited in its buffers, one sample a stream, and on from there."""
    log = []
    monkeypatch.setitem(wds.gopen_schemes, "counted", lambda url, *_, **__: Counted(url.partition(":")[2], log))
    urls = [f"counted:{folder}/s-{number}.tar" for number in range(SHARDS)]
    rest, state = stopped(elastic(urls), steps)
    log.clear()
    run = elastic(urls).elastic_run(state=state)
    assert [next(run) for _ in range(STREAMS)] == rest[:STREAMS]
    whole = SHARDS * SAMPLES * 21_000
    waited = BUFFER * (21_000 + 5 * 512) * 1.25  # the mean size, and what chance may add
    forward = 2 * STREAMS * (40_000 + 3 * CHUNK)  # the reading that goes on
    assert sum(log) < waited + forward < whole / 2
    assert list(run) == rest[STREAMS:]


def test_a_plain_stream_starts_at_its_place(folder, monkeypatch):
    """Without a shuffle, what is read again is the one sample that was given last."""
    log = []
    monkeypatch.setitem(wds.gopen_schemes, "counted", lambda url, *_, **__: Counted(url.partition(":")[2], log))
    urls = [f"counted:{folder}/s-{number}.tar" for number in range(SHARDS)]
    make = lambda: wds.WebDataset(urls, seed=1).map(key).elastic(1)
    rest, state = stopped(make(), 7 * SAMPLES + 39)
    log.clear()
    assert list(make().elastic_run(state=state)) == rest
    assert len(rest) == 1
    assert sum(log) < 2 * 43_000 + 10_240, "two samples, and the end of the archive"


@pytest.fixture
def near(monkeypatch):
    """Keep the server's log free of what is opened ahead."""
    monkeypatch.setattr(prefetch_worker, "FAR_SECONDS", 1e9)


@pytest.mark.usefixtures("near")
def test_remote_shards_are_asked_from_the_place_on(shards):
    """A web server is asked for ranges that begin where the run goes on."""
    big = {f"/{name}": content for name, content in shards.items()}
    with RangeServer(big) as server:
        urls = [f"{server.root}/s-{number}.tar" for number in range(SHARDS)]
        make = lambda: wds.WebDataset(urls, seed=1).map(key).elastic(2)
        rest, state = stopped(make(), 2 * SAMPLES + 70)
        places = {memory[4][0][0][2] for memory in state["memories"].values()}
        assert min(places) > 400_000
        del server.asked[:]
        run = make().elastic_run(state=state)
        assert [next(run), next(run)] == rest[:2]
        assert {f"bytes={place}-" for place in places} <= {asked for _, asked in server.asked}
        assert list(run) == rest[2:]
        rest, state = stopped(elastic(urls), 100)
        assert list(elastic(urls).elastic_run(state=state)) == rest


@pytest.mark.parametrize("kind", ["gz", "pipe", "pipe gz"])
def test_sources_without_places(folder, kind):
    """Compressed and piped shards are read up to the place: exact, if not cheap."""
    pattern = {"gz": "{0}/s-{1}.tar.gz", "pipe": "pipe:cat {0}/s-{1}.tar", "pipe gz": "pipe:cat {0}/s-{1}.tar.gz"}[kind]
    urls = [pattern.format(folder, number) for number in range(SHARDS)]
    for steps in (1, 77, 230):
        rest, state = stopped(elastic(urls), steps)
        assert list(elastic(urls).elastic_run(state=state)) == rest


def test_records(tmp_path):
    """Record shards go on at their place too."""
    pytest.importorskip("msgpack")
    for number in range(5):
        with wds.RecordWriter(str(tmp_path / f"{number}.mp")) as sink:
            for index in range(30):
                sink.write({"__key__": f"{number}-{index}", "n": index})
    urls = [str(tmp_path / f"{number}.mp") for number in range(5)]
    make = lambda: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.msgpacks_to_samples(), wds.map(lambda item: item["__key__"]), wds.shuffle(20)
    ).elastic(4)
    made = make()
    made.seed = 3
    run = made.elastic_run()
    list(itertools.islice(run, 61))
    state = json.loads(json.dumps(run.state_dict()))
    rest = list(run)
    assert len(rest) == 150 - 61
    assert list(make().elastic_run(state=state)) == rest


@pytest.mark.parametrize("change", ["shorter", "moved by a block", "swapped", "gone"])
def test_changed_shards(tmp_path, shards, change):
    """Shards that are not what they were are noticed."""
    for name, content in shards.items():
        (tmp_path / name).write_bytes(content)
    urls = [str(tmp_path / name) for name in shards]
    _, state = stopped(elastic(urls), 100)
    for name, content in shards.items():
        path = tmp_path / name
        if change == "shorter":
            path.write_bytes(content[:20_480])
        elif change == "gone":
            path.unlink()
        elif change == "swapped":
            path.write_bytes(shards[f"s-{(int(name[2]) + 1) % SHARDS}.tar"])
        else:
            path.write_bytes(bytes(512) + content)
    with pytest.raises(WebDatasetError):
        list(elastic(urls).elastic_run(state=state))


def test_big_buffers_have_small_states(tmp_path):
    """The state of a buffer of 10 000 samples stays below 64 KB, in one stream and in many, however far it has come."""
    draws = random.Random(1)
    for number in range(12):
        with wds.TarWriter(str(tmp_path / f"{number:02d}.tar")) as sink:
            for index in range(1500):
                sink.write({"__key__": f"{number}-{index}", "x": bytes(draws.randrange(1, 6000))})
    urls = str(tmp_path / "{00..11}.tar")
    for streams in (1, 24):
        dataset = wds.WebDataset(urls, shardshuffle=20, seed=1).shuffle(10_000, initial=5000).map(key).elastic(streams)
        run, sizes = iter(dataset), []
        for step in range(60):
            list(itertools.islice(run, 150 + step))
            sizes.append(len(json.dumps(run.state_dict())))
        assert 10_000 < max(sizes) < 64_000
        assert max(sizes[40:]) < max(sizes[20:40]) * 1.2, "it does not grow with the steps"
