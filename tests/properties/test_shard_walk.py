"""Streams that go through a list of shards together give what streams that go alone give: items, order, states.

The oracle is the same run with ``WDS_SHARED_BYTES=0``, in which every stream goes through the list by itself.
"""

import json
import random
import warnings

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.shards import shard_walk

SHARDS = 90


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Many shards of no, one, two or five samples."""
    folder, draws = tmp_path_factory.mktemp("many"), random.Random(8)
    urls = []
    for number in range(SHARDS):
        urls.append(str(folder / f"{number:03d}.tar"))
        with wds.TarWriter(urls[-1]) as sink:
            for index in range(draws.choice((0, 1, 2, 2, 5))):
                sink.write({"__key__": f"{number:03d}-{index}", "cls": index})
    return urls


def leave_some_out(source):
    """Leave out every seventh shard; a stage that is not ours."""
    for number, shard in enumerate(source):
        if number % 7 != 3:
            yield shard


def listed(source):
    """Return the shards at once; a stage that is not ours, and draws them all when it is started."""
    return list(source)


def choose_pipeline(rng, urls):
    """Return what makes an elastic dataset, and its number of streams."""
    kind = rng.choice(("plain", "shuffle", "shuffle", "select", "open", "repeat", "length", "mix", "foreign", "replay"))
    front = rng.choice((None, None, leave_some_out, listed))
    streams = rng.choice((2, 3, 5, 8, 24))
    chosen = urls[: rng.choice((0, 1, streams, streams + 1, 40, SHARDS)) or 3]
    shuffled, size, kept = rng.choice((0, 30)), rng.choice((5, 60)), rng.random()

    def source(seed):
        reader = wds.tarfile_to_samples()
        stages = [wds.SimpleShardList(chosen), front, wds.shuffle(shuffled, seed=None) if shuffled else None, reader]
        made = wds.DataPipeline(*stages)
        made.seed = seed
        return made

    def make():
        if kind == "open":
            made = wds.WebDataset(chosen, shardshuffle=shuffled or False, seed=5, open_shards=40, empty_check=False)
        else:
            made = source(5)
        if kind == "mix":
            made = wds.DataPipeline(wds.RandomMix([source(5).repeat(2), source(6)], longest=True))
            made.seed = 4
        if kind in ("shuffle", "replay"):
            made = made.compose(wds.shuffle(size))
        if kind == "select":
            made = made.compose(wds.select(lambda sample: sum(sample["__key__"].encode()) * 7 % 10 < 10 * kept))
        if kind in ("foreign", "replay"):
            made = made.compose(lambda items: (item for item in items))
        if kind == "repeat":
            made = made.repeat(3)
        if kind == "length":
            made = made.with_epoch(size * 4)
        return made.elastic(streams)

    return make, streams


def run(make, place, limit, steps, state, monkeypatch):
    """Run one worker for some steps: keys and positions, states in between, how it ended."""
    monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
    items, states, end = [], [], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        current = make().elastic_run(place, state)
        try:
            for step in range(steps):
                item = next(current, None)
                if item is None:
                    end = "end"
                    break
                items.append((current.position, item["__key__"], item["__url__"]))
                if step % 11 == 5:
                    states.append(json.dumps(current.state_dict()))
            states.append(json.dumps(current.state_dict()))
        except wds.WebDatasetError as error:
            end = str(error)
        finally:
            current.close()
    return items, states, end


@pytest.mark.repeats
@pytest.mark.parametrize("number", range(60))
def test_a_walk_for_all_streams_changes_nothing(number, shards, monkeypatch):
    """Items, positions, states and errors are those of streams that go alone, also after resumes, however few wait."""
    rng = random.Random(number)
    make, streams = choose_pipeline(rng, shards)
    monkeypatch.setattr(shard_walk, "HISTORY", rng.choice((0, 20, 4096)))
    limit = shard_walk.SHARD_BYTES * rng.choice((2 * streams, 3 * streams, 100, 1 << 16))
    ranks, workers = rng.choice(((1, 1), (1, 1), (2, 1), (1, 2))) if streams > 3 else (1, 1)
    place = WorkerContext(rng.randrange(ranks), ranks, rng.randrange(workers), workers)
    state = None
    for _ in range(4):
        steps = rng.choice((1, 9, 60, 300))
        wanted = run(make, place, 0, steps, state, monkeypatch)
        assert run(make, place, limit, steps, state, monkeypatch) == wanted
        items, states, _ = wanted
        if not items or not states:
            break
        state = json.loads(rng.choice(states))


def broken(source):
    """Give nine shards, and then an error."""
    for number, shard in enumerate(source):
        if number == 9:
            raise OSError("the list of shards broke")
        yield shard


def test_an_error_in_the_list_strikes_where_it_does_without_a_walk(shards, monkeypatch):
    """Streams that got their shards before give their samples; the first that asks for more raises the error."""

    def make():
        return wds.DataPipeline(wds.SimpleShardList(shards), broken, wds.tarfile_to_samples()).elastic(4)

    def read(limit):
        monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
        current, given = iter(make()), []
        with pytest.raises(OSError, match="broke"):
            given.extend(sample["__key__"] for sample in current)
        return given

    def collect(limit):
        monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
        current, given = iter(make()), []
        for _ in range(200):
            try:
                given.append(next(current)["__key__"])
            except OSError:
                given.append("error")
            except StopIteration:
                break
        return given

    assert collect(1 << 20) == collect(0)
    assert len(collect(0)) > 5
