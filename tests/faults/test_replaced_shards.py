"""Shards that were replaced between saving and resuming: noticed, named, and gone on in only where that was said."""

import collections
import json
import os
import random
import shutil
import warnings

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import ReceivedState

SHARDS, SAMPLES = 9, 60


def write(path, keys, size=100, salt="x"):
    """Write a shard of some keys."""
    with wds.TarWriter(str(path)) as sink:
        for number, key in enumerate(keys):
            sink.write({"__key__": key, "txt": (salt * size)[: size + number % 7]})


def keys_of(number):
    """Return the keys of a shard."""
    return [f"{number}-{index:03d}" for index in range(SAMPLES)]


@pytest.fixture
def folder(tmp_path):
    """Shards of the same layout."""
    for number in range(SHARDS):
        write(tmp_path / f"{number}.tar", keys_of(number))
    return tmp_path


def passed_on(source):
    """Give every item: a stage that is not ours, resumed by replay."""
    yield from source


def renamed(prefix):
    """Return keys as long as the original ones."""
    return lambda number: [f"{prefix}-{index:03d}" for index in range(SAMPLES)]


PIPELINES = {
    "plain": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(150),
    "bytes": lambda ds: ds.shuffle(150, max_bytes=30_000),
    "blocks": lambda ds: ds.compose(wds.block_shuffle(70)),
    "listed": lambda ds: ds.shuffle(80).listed(7).unlisted().shuffle(40),
    "replayed": lambda ds: ds.shuffle(90).compose(passed_on),
    "replayed, shuffled": lambda ds: ds.compose(passed_on).shuffle(90),
    "four open": None,
    "mix": None,
    "mix, replayed": None,
}


def dataset(folder, name, streams=3):
    """Return an elastic dataset of keys."""
    urls = str(folder / f"{{0..{SHARDS - 1}}}.tar")
    if name.startswith("mix"):
        parts = [wds.WebDataset(str(folder / f"{{{low}..{low + 2}}}.tar"), shardshuffle=False) for low in (0, 3, 6)]
        stages = [passed_on] if "replayed" in name else []
        made = wds.DataPipeline(wds.RandomMix(parts, longest=True, seed=3), *stages, wds.shuffle(60))
        return made.compose(wds.map(lambda sample: sample["__key__"])).elastic(streams)
    if name == "four open":
        made = wds.WebDataset(urls, shardshuffle=100, seed=1, open_shards=4).shuffle(60)
    else:
        made = PIPELINES[name](wds.WebDataset(urls, shardshuffle=100, seed=1))
    return made.map(lambda sample: sample["__key__"]).elastic(streams)


def stopped(folder, name, cut):
    """Return what was given before a cut, the state there, and what comes behind it."""
    run = dataset(folder, name).elastic_run(WorkerContext(0, 1, 0, 1))
    given = [next(run) for _ in range(cut)]
    state = json.loads(json.dumps(run.state_dict()))
    return given, state, list(run)


CHANGES = {
    "a sample in front": lambda path, number: write(path, ["new", *keys_of(number)]),
    "a sample behind": lambda path, number: write(path, [*keys_of(number), "new"]),
    "other keys": lambda path, number: write(path, renamed("n")(number)),
    "other keys in part": lambda path, number: write(path, [*keys_of(number)[:-40], *renamed("n")(number)[-40:]]),
    "larger samples": lambda path, number: write(path, keys_of(number), size=3000),
    "cut": lambda path, number: path.write_bytes(path.read_bytes()[:512]),
    "empty": lambda path, number: path.write_bytes(b""),
    "no tar": lambda path, number: path.write_bytes(b"<html>" * 5000),
}


# other streams may find these before the one that was stopped in them
BROKEN = ("cut", "empty", "no tar")


def outcome(folder, name, state):
    """Return the error that a resumed run ends in, or None, and how many warnings it gives of touched shards."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            list(dataset(folder, name).elastic_run(state=state))
        except wds.WebDatasetError as error:
            return error, len(warned)
    return None, sum("time of change" in str(warning.message) for warning in warned)


@pytest.mark.repeats
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_replaced_shard_is_noticed(folder, name, change):
    """All shards are replaced in the same way: the error names one of them and the way to go on."""
    for cut in (1, 37, 200):
        given, state, rest = stopped(folder, name, cut)
        kept = {path.name: path.read_bytes() for path in folder.glob("*.tar")}
        for number in range(SHARDS):
            CHANGES[change](folder / f"{number}.tar", number)
        error, warned = outcome(folder, name, state)
        if change == "other keys in part" and error is None:
            assert warned == 1  # at the saved places stand the same keys, in files that were touched
        elif change in BROKEN:
            assert isinstance(error, wds.WebDatasetError)
            assert ".tar" in str(error.url)
        else:
            assert isinstance(error, StateMismatch)
            assert ".tar" in str(error.url)
            assert "WDS_CHANGED_SHARDS=warn" in str(error) or "came again on replay" in str(error)
        for file, content in kept.items():
            (folder / file).write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert list(dataset(folder, name).elastic_run(state=state)) == rest
        assert len(given) == cut


@pytest.mark.parametrize("seed", range(12))
def test_one_replaced_shard_is_noticed_or_not_needed(folder, seed):
    """Whichever shard it is: the run goes on exactly, because it was not begun or is done with, or it is refused."""
    draw = random.Random(seed)
    name = draw.choice(["plain", "shuffled", "bytes", "listed", "replayed", "replayed, shuffled", "four open", "mix"])
    cut = draw.randrange(1, 300)
    given, state, rest = stopped(folder, name, cut)
    number = draw.randrange(SHARDS)
    begun = {key for key in given if key.startswith(f"{number}-")}
    CHANGES["a sample in front"](folder / f"{number}.tar", number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error, _ = outcome(folder, name, state)
        if error is not None:
            assert isinstance(error, StateMismatch)
            assert error.url.endswith(f"{number}.tar") or "replayed" in name
            return
        found = list(dataset(folder, name).elastic_run(state=state))
    counts = collections.Counter(given + found)
    assert max(counts.values()) == 1
    assert counts.keys() - {"new"} == {key for n in range(SHARDS) for key in keys_of(n)}
    assert not begun or len(begun) == SAMPLES


@pytest.mark.parametrize("name", PIPELINES)
def test_a_copy_is_the_same_shard(folder, name, tmp_path_factory):
    """Another time of change alone, as of copies: one warning, and the run goes on exactly. Never the inode."""
    _, state, rest = stopped(folder, name, 150)
    for path in folder.glob("*.tar"):
        content, status = path.read_bytes(), path.stat()
        path.unlink()
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(dataset(folder, name).elastic_run(state=state)) == rest
    for path in folder.glob("*.tar"):
        os.utime(path, ns=(0, 1_600_000_000_000_000_000))
    with pytest.warns(UserWarning, match="another ETag, generation or time of change") as caught:
        assert list(dataset(folder, name).elastic_run(state=state)) == rest
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["plain", "shuffled", "listed", "four open", "replayed"])
def test_going_on_deliberately(folder, name, monkeypatch):
    """With the setting the run goes on behind as many samples as were given of each shard."""
    given, state, rest = stopped(folder, name, 150)
    for number in range(SHARDS):
        write(folder / f"{number}.tar", keys_of(number), size=2000, salt="y")
    monkeypatch.setenv("WDS_CHANGED_SHARDS", "warn")
    with pytest.warns(UserWarning, match="WDS_CHANGED_SHARDS=warn"):
        assert list(dataset(folder, name).elastic_run(state=state)) == rest
    assert len(given) == 150


def test_a_shard_that_was_moved_with_a_rewrite(folder, tmp_path_factory, monkeypatch):
    """A copy elsewhere, to which urls are rewritten, is the same shard, with one warning."""
    _, state, rest = stopped(folder, "shuffled", 150)
    other = tmp_path_factory.mktemp("mirror")
    for path in folder.glob("*.tar"):
        shutil.copyfile(path, other / path.name)
        path.unlink()
    monkeypatch.setenv("WDS_REWRITE", f"{folder}={other}")
    with pytest.warns(UserWarning, match="a copy, or touched since"):
        assert list(dataset(folder, "shuffled").elastic_run(state=state)) == rest


def test_states_hold_no_key(folder):
    """Keys may be names of people: what a state holds of them are sums."""
    _, state, _ = stopped(folder, "shuffled", 150)
    assert not any(f"{number}-0" in json.dumps(state["memories"]) for number in range(SHARDS))


@pytest.mark.parametrize("name", [name for name in PIPELINES if "replayed" in name])
def test_a_state_of_a_run_that_has_not_replayed_yet(folder, name):
    """Taken at once, or behind items out of a restored buffer: it says how far the saved run had read."""
    for cut in (1, 40, 250):
        _, state, rest = stopped(folder, name, cut)
        for more in (0, 1, 2, 30):
            run = dataset(folder, name).elastic_run(state=state)
            given = [next(run) for _ in range(more)]
            again = json.loads(json.dumps(run.state_dict()))
            assert given + list(dataset(folder, name).elastic_run(state=again)) == rest


def test_what_arrived_first_is_a_state(folder):
    """A consumer that has received one item from one stream has a state that can be loaded."""
    run = dataset(folder, "shuffled").elastic_run()
    received = ReceivedState(run.header())
    first = next(run)
    received.take(run.progress())
    state = received.state_dict()
    kept = json.dumps(state)
    rest = list(dataset(folder, "shuffled").elastic_run(state=state))
    assert [first, *rest] == [first, *run]
    ReceivedState(state).take({"0": [7]})
    assert json.dumps(state) == kept
