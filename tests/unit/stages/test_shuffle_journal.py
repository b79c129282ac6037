"""What a shuffle remembers: exact at every step, small, and without influence on the order."""

import json

import pytest

import webdataset as wds
from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import StateMismatch
from webdataset.core.json_types import as_list, normalize_json
from webdataset.core.seeds import CounterRng
from webdataset.flow.run import Flow
from webdataset.samples.address import CheckedAddress as Address
from webdataset.stages import shuffle_journal
from webdataset.stages.base import Run
from webdataset.stages.shuffle import JournaledShuffleState, shuffle, shuffle_buffer

ITEMS = list(range(700))
ADDRESSES = [
    Address(number // 90, number % 90, 512 * (3 * (number % 90) + number % 2), number * 37 % 64)
    for number in range(400)
]


def flow(*, bufsize, stream=None, state=None, initial=20, seed=1, items=ITEMS):
    """Return a run of a shuffle over numbers."""
    stages = [items, shuffle(bufsize, initial=initial)]
    return Flow(stages, Run(seed=seed, tracked=True, stream=stream), state)


@pytest.mark.parametrize("stream", [None, StreamNumber(0, 1), StreamNumber(1, 2)])
@pytest.mark.parametrize("bufsize", [1, 2, 10, 140, 2000])
def test_every_step(stream, bufsize):
    """Restored from any step, and saved again at once: the same state, the same rest."""
    run = flow(bufsize=bufsize, stream=stream)
    seen, states = [], [json.dumps(run.snapshot())]
    for item in run:
        seen.append(item)
        states.append(json.dumps(run.snapshot()))
    for step in range(0, len(states), 7):
        again = flow(bufsize=bufsize, stream=stream, state=json.loads(states[step]))
        assert json.dumps(again.snapshot()) == states[step]
        assert list(again) == seen[step:]


@pytest.mark.parametrize("stream", [None, StreamNumber(0, 1)])
def test_how_often_one_looks_does_not_matter(stream):
    """The order is the same whether snapshots are taken never, always or now and then."""
    orders = []
    for every in (1, 3, 50, 10_000):
        run, seen = flow(bufsize=100, stream=stream), []
        for step, item in enumerate(run):
            seen.append(item)
            if step % every == 0 and every < 10_000:
                run.snapshot()
        orders.append(seen)
    assert orders[1:] == orders[:-1]
    assert sorted(orders[0]) == ITEMS
    assert orders[0] != ITEMS


@pytest.mark.parametrize("every", [1, 5, 37, 70, 150])
def test_readers_addresses_at_any_distance(tmp_path, every):
    """With a reader's addresses, snapshots that lie near or far apart all lead back to where they were taken."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for index in range(700):
            sink.write({"__key__": str(index), "x": "y" * (index % 900)})
    make = lambda: wds.WebDataset(str(tmp_path / "a.tar"), seed=1).shuffle(300).map(lambda s: s["__key__"]).elastic(1)
    run, seen, states = make().elastic_run(), [], []
    for step, item in enumerate(run, 1):
        seen.append(item)
        if step % every == 0:
            states.append((step, json.dumps(run.state_dict())))
    for step, state in states[:: max(len(states) // 8, 1)]:
        again = make().elastic_run(state=json.loads(state), continue_epochs=False)
        assert next(again, None) == (seen[step] if step < len(seen) else None)
        whole = json.dumps(make().elastic_run(state=json.loads(state)).state_dict())
        assert whole == state
        assert list(again) == seen[step + 1 :]


def test_lives():
    """Saved and restored every few steps, over borders and chunks: the same order."""
    whole = list(flow(bufsize=150, stream=StreamNumber(0, 1)))
    run, seen = flow(bufsize=150, stream=StreamNumber(0, 1)), []
    while True:
        part = [item for _, item in zip(range(11), run, strict=False)]
        seen += part
        if not part:
            break
        run = flow(bufsize=150, stream=StreamNumber(0, 1), state=json.loads(json.dumps(run.snapshot())))
    assert seen == whole


def test_most_steps_write_little():
    """Between two bases, a snapshot differs from the one before by one address."""
    run = flow(bufsize=400, items=list(range(4000)))
    memories = []
    for _ in zip(range(2000), run, strict=False):
        memories.append(run.snapshot()["memories"][-1])
    bases = [memory["waiting"] for memory in memories[500:]]
    assert 3 <= len(set(bases)) <= 6
    same = [
        (before, after)
        for before, after in zip(memories[500:], memories[501:], strict=False)
        if before["waiting"] == after["waiting"]
    ]
    assert all(len(after["tail"]) <= 63 and after["given"] == before["given"] + 1 for before, after in same)


def test_foreign_addresses_stay_in_their_order():
    """Addresses that cannot be ordered are kept as they come."""
    run = flow(bufsize=40, stream=StreamNumber(0, 1))
    run.runners[-1].state.origin = lambda: None
    assert sorted(run) == ITEMS


@pytest.mark.parametrize(
    "change",
    [
        {"given": 10_000},
        {"since": ["", ""]},
        {"since": []},
        {"waiting": "!"},
        {"tail": None},
        {"tail": "1 2;x"},
        {"tail": "1 2 3;1"},
        {"phase": None},
    ],
)
def test_broken_states(change):
    """A state that does not follow from itself is refused."""
    run = flow(bufsize=200)
    for _ in zip(range(300), run, strict=False):
        state = run.snapshot()
    state["memories"][-1] |= change
    with pytest.raises(StateMismatch):
        flow(bufsize=200, state=state)


def shuffled(memory, addresses):
    """Yield addresses in the order in which a buffer gives them."""
    last = [None]

    def coming():
        for address in addresses:
            last[0] = address
            yield address

    pairs = memory.journal.note_addresses(coming(), lambda: last[0])
    return memory.journal.deliver(shuffle_buffer(pairs, memory.waiting, memory.bufsize, 5, memory.rng), memory)


def placed(addresses):
    """Return addresses as a reader gives them."""
    return [Address(*address) for address in addresses]


def test_each_address_is_written_once(monkeypatch):
    """Snapshots after every step write a base each few borders and no more, and stay small in between."""
    sizes, real = [], shuffle_journal.encode_addresses
    monkeypatch.setattr(
        shuffle_journal, "encode_addresses", lambda those, **how: sizes.append(len(those)) or real(those, **how)
    )
    memory = JournaledShuffleState(CounterRng(3), 300, 50, sorts=True)
    lengths = []
    for _ in shuffled(memory, [Address(0, number, number * 1024, number * 37 % 64) for number in range(5000)]):
        lengths.append(len(json.dumps(memory.snapshot())))
    assert len(sizes) <= 2 + 5000 // (shuffle_journal.FEWEST * shuffle_journal.SPAN)
    assert max(lengths) < 2500


@pytest.mark.parametrize("sorts", [True, False])
@pytest.mark.parametrize("kind", [lambda n: [n % 3, Address(0, n, n)], lambda n: (str(n), n), lambda n: [n, [True]]])
def test_addresses_of_other_shapes(kind, sorts):
    """Addresses that are not a reader's lead back to the same order, and are lists in snapshots."""
    addresses = [kind(number) for number in range(400)]
    whole = list(shuffled(JournaledShuffleState(CounterRng(7), 40, 5, sorts=sorts), addresses))
    memory = JournaledShuffleState(CounterRng(7), 40, 5, sorts=sorts)
    for step, _ in enumerate(shuffled(memory, addresses), 1):
        state = memory.snapshot()
        text = json.dumps(state)
        assert json.loads(text) == state
        if step % 23 == 0:
            again = JournaledShuffleState(CounterRng(7), 40, 5, sorts=sorts)
            again.restore(json.loads(text), lambda those: those)
            came = step + len(again.waiting)
            assert json.dumps(again.snapshot()) == text
            rest = normalize_json(list(shuffled(again, addresses[came:])))
            assert list(map(str, as_list(rest))) == list(map(str, as_list(normalize_json(whole[step:]))))
