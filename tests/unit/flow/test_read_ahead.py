"""Items that streams have read ahead are given in rounds: the same items, positions and states as one by one."""

import itertools
import json
import random
import zlib

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import FlowError
from webdataset.flow import run as run_module

BUILDS = {
    "plain": lambda made: made,
    "bound": lambda made: made.with_epoch(53),
    "passes": lambda made: made.repeat(3),
    "bound over passes": lambda made: made.repeat(4, nbatches=170),
    "mapped": lambda made: made.map(lambda sample: {**sample, "more": 1}),
    "shuffled": lambda made: made.shuffle(20),
    "addresses": lambda made: made,
}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Shards of unequal numbers of samples, one of them empty, two of several chunks."""
    folder = tmp_path_factory.mktemp("uneven")
    urls, draws = [], random.Random(3)
    for number, count in enumerate((9, 0, 31, 1, 150, 22, 90, 4)):
        urls.append(str(folder / f"{number}.tar"))
        with wds.TarWriter(urls[-1]) as sink:
            for index in range(count):
                sink.write({"__key__": f"{number}-{index:04d}", "bin": bytes(draws.choice((10, 3000, 9000)))})
    return urls


def build(urls, name, streams):
    """Return an elastic dataset."""
    made = wds.WebDataset(urls, shardshuffle=4, seed=5, addresses=name == "addresses", empty_check=False)
    return BUILDS[name](made).elastic(streams)


def record(dataset, place, state=None):
    """Return keys, positions, addresses and states after each item."""
    found = []
    with dataset.elastic_run(place, state) as run:
        for item in run:
            found.append([item["__key__"], run.position, run.address(), json.dumps(run.state_dict())])
    return found


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("streams", [1, 3, 8])
def test_rounds_that_were_read_ahead_change_nothing(uneven, name, streams, monkeypatch):
    """Keys, positions, addresses and states of each item are those of a run that asks each stream for each item."""
    worker = WorkerContext(0, 1, streams // 2 % 2, 1 + streams // 2 % 2)
    rounds = record(build(uneven, name, streams), worker)
    monkeypatch.setattr(run_module, "find_position", lambda items, state: None)
    assert record(build(uneven, name, streams), worker) == rounds
    assert len(rounds) > 10


@pytest.mark.parametrize("name", ["plain", "bound", "passes"])
def test_a_state_that_is_asked_seldom_is_that_of_each_item(uneven, name):
    """A state asked in the middle of a round equals the one of a run that was asked after every item, and continues."""
    dataset = build(uneven, name, 8)
    every = record(dataset, None, None)
    for cut in range(1, len(every), 17):
        run = build(uneven, name, 8).elastic_run(WorkerContext(0, 1, 0, 1))
        assert [item["__key__"] for item in itertools.islice(run, cut)] == [entry[0] for entry in every[:cut]]
        state = run.state_dict()
        assert json.dumps(state) == every[cut - 1][3]
        run.close()
        rest = record(build(uneven, name, 8), WorkerContext(0, 1, 0, 1), state)
        assert [entry[0] for entry in rest] == [entry[0] for entry in every[cut:]]
        assert rest == every[cut:]


def test_a_run_that_is_closed_in_the_middle_of_a_round_gives_nothing_more(uneven):
    """The state after it was closed is that after the item given last, and no item of the round is given any more."""
    run = iter(build(uneven, "plain", 8))
    given = list(itertools.islice(run, 45))
    state, position = run.state_dict(), run.position
    run.close()
    assert next(run, None) is None
    assert run.state_dict()["received"] == state["received"] == len(given)
    assert run.position == position


def test_the_turns_of_a_loader_count_what_was_read_ahead(uneven):
    """What ``turns`` gives, which asks stream by stream, are the items of the run in their order."""
    wanted = [entry[0] for entry in record(build(uneven, "plain", 8), None)]
    run = build(uneven, "plain", 8).elastic_run()
    given = [item for item, _ in run.turns(range(8), 10**6) if isinstance(item, dict)]
    assert [item["__key__"] for item in given] == wanted
    assert run.state_dict()["received"] == len(wanted)


def test_an_interrupt_ends_what_was_read_ahead(uneven):
    """After an interrupt inside a stream nothing of it is given, and there is no state."""
    run = iter(build(uneven, "plain", 3))
    next(run)
    stream = run._started.streams[1]
    stream.advance()
    stream.loop.flow.position.pending.clear()
    stream.loop.flow.items = interrupt()
    with pytest.raises(KeyboardInterrupt):
        stream.advance()
    assert stream.loop.flow.position is run_module.NO_POSITION
    with pytest.raises(FlowError, match="no state after a failure"):
        run.state_dict()


def interrupt():
    """Interrupt whoever asks for an item."""
    raise KeyboardInterrupt
    yield


def numbered(source):
    """Pass everything on; a stage that is not ours, and is replayed."""
    yield from source


@pytest.mark.parametrize("mixed", [False, True])
def test_keys_are_summed_where_a_later_stage_is_replayed(uneven, mixed):
    """The state of a stage that is replayed holds the sum of all keys before, of all shards; also over a mix."""
    plain = wds.WebDataset(uneven, shardshuffle=False, empty_check=False)
    run = iter(wds.DataPipeline(wds.RoundRobin([plain]) if mixed else plain, numbered).elastic(1))
    keys = ""
    for count, item in enumerate(run):
        keys += item["__key__"] + "\0"
        if count % 40 == 0:
            memories = run.state_dict()["memories"]["0"][4]
            assert f'"keys": {zlib.crc32(keys.encode())}' in json.dumps(memories)
