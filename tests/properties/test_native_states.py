"""The native core makes the states that Python makes: the same sums, and the same texts of addresses."""

import itertools
import json
import random
import sys

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import Sums, sum_stream
from webdataset.samples import native_core
from webdataset.samples.address import CheckedAddress
from webdataset.stages.address_codec import CHUNK, AddressLog

CORE = native_core.load_native()[0]
pytestmark = pytest.mark.skipif(CORE is None, reason="the native core was not compiled")
EDGES = [0, 1, -1, 2**15, 2**30, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**45, 2**53, 2**63 - 1, -(2**63) + 1]


def draw_value(rng, depth=0):
    """Return a random JSON value without fractions."""
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice(EDGES)
    if kind == 2:
        return rng.choice([1, -1]) * rng.getrandbits(rng.choice([1, 8, 15, 16, 30, 31, 32, 45, 60, 63]))
    if kind == 3:
        return "".join(rng.choices("aé€😀z0", k=rng.choice([0, 1, 5, 100, 300])))
    if kind == 4:
        return "x" * rng.randrange(1200)
    if kind == 7:
        return {str(number): draw_value(rng, depth + 1) for number in range(rng.randrange(4))}
    return [draw_value(rng, depth + 1) for _ in range(rng.randrange(6))]


def draw_state(rng, lasting):
    """Return the state of a stream whose memories have these parts that last."""
    memories = [None if rng.random() < 0.2 else [draw_value(rng), part] for part in lasting]
    return [rng.randrange(100), 0, 5, rng.choice([None, 3]), memories]


@pytest.mark.parametrize("seed", range(8))
def test_random_states_have_one_sum(seed):
    """Of any values, whether or not the parts that last are those of the state before."""
    rng = random.Random(seed)
    for _ in range(250):
        names = [str(number) for number in range(rng.choice([1, 3]))]
        lasting = {name: [draw_value(rng) for _ in range(rng.randrange(4))] for name in names}
        known = {name: (None, 0, None, 0, rng.randrange(2**32)) for name in names}
        slow = dict(known)
        for _ in range(4):
            if rng.random() < 0.3:
                lasting[rng.choice(names)] = [draw_value(rng)]
            states = {name: draw_state(rng, lasting[name]) for name in names}
            slow = {name: sum_stream(states[name], slow[name]) for name in names}
            received, total = CORE.sum_streams(states, known)
            assert known == slow
            assert received == sum(state[0] for state in states.values())
            assert total == slow[names[0]][1] ^ (slow[names[1]][1] ^ slow[names[2]][1] if names[1:] else 0)
            assert CORE.sum_streams(states, known) == (received, total)


@pytest.mark.parametrize(
    "state",
    [
        [3, 0, 3, None, [[1.5, None]]],
        [3, 0, 3, None, [[[2**63], None]]],
        [3, 0, 3, None, [[-(2**63), None]]],
        [3, 0, 3, None, [["\ud800", None]]],
        [3, 0, 3, None, [[1, 2.5]]],
        [7],
        None,
    ],
)
def test_python_sums_what_is_unusual(state):
    """Values and states that the core leaves alone have their sum all the same, and no longer need it the next time."""
    sums, header = Sums(), {"functions": [], "seed": 0, "epoch": 0, "streams": 2}
    other = [1, 0, 1, None, [[1, 2]]]
    _, before = sums.add(header, {"0": other, "1": other})
    begin = before ^ sum_stream(other, (None, 0, None, 0, 1))[1] ^ sum_stream(other, (None, 0, None, 0, 2))[1]
    states = {"0": [2, 0, 2, None, [[1, 2]]], "1": state}
    assert CORE.sum_streams(states, dict(sums._streams)) is None
    expected = sum_stream(states["0"], (None, 0, None, 0, 1))[1] ^ sum_stream(state, (None, 0, None, 0, 2))[1]
    received = 2 + (state[0] if state else 0)
    assert sums.add(header, states) == (received, expected ^ begin)
    assert CORE.sum_streams(states, sums._streams) == (received, expected)


@pytest.mark.parametrize("memory", [[object(), None], [1, object()], [[object()], None]])
def test_what_is_no_json_is_refused_either_way(memory, monkeypatch):
    """The core passes it on to Python, which raises."""
    for setting in "01":
        monkeypatch.setenv("WDS_NATIVE", setting)
        sums, header = Sums(), {"functions": [], "seed": 0, "epoch": 0, "streams": 2}
        sums.add(header, {"0": [1, 0, 1, None, [[1, 2]]]})
        with pytest.raises(StateMismatch, match="no JSON value"):
            sums.add(header, {"0": [3, 0, 3, None, [memory]]})


def test_a_deep_value_is_summed_by_python():
    """The core does not follow lists without end."""
    value = []
    value.append(value)
    known = {"0": (None, 0, None, 0, 1)}
    assert CORE.sum_streams({"0": [1, 0, 1, None, [[value, None]]]}, known) is None


@pytest.mark.parametrize("arguments", [(), ({},), ([], {}), ({}, []), ({}, {}, {})])
def test_wrong_arguments(arguments):
    """Are a TypeError, and nothing else."""
    with pytest.raises(TypeError):
        CORE.sum_streams(*arguments)
    with pytest.raises(TypeError):
        CORE.write_steps(*arguments)
    with pytest.raises(ValueError, match="below 0"):
        CORE.write_steps([], 0, -1, 0)


def draw_addresses(rng):
    """Return rising addresses of a reader, some of them far away."""
    shard = ordinal = offset = 0
    found = []
    for _ in range(rng.randrange(200)):
        kind = rng.randrange(8)
        if kind == 0:
            shard, ordinal, offset = shard + rng.randrange(3), rng.randrange(9), 512 * rng.randrange(9)
        elif kind == 1:
            ordinal, offset = ordinal + rng.randrange(-2, 9), offset + rng.randrange(-900, 2**40)
        else:
            ordinal, offset = ordinal + 1, offset + 512 * rng.randrange(1000)
        found.append(CheckedAddress(shard, ordinal, offset, rng.randrange(64)))
    return found


def write_log(addresses, steps, monkeypatch, setting):
    """Return what a log holds after each of some steps."""
    monkeypatch.setenv("WDS_NATIVE", setting)
    log, found, place = AddressLog(), [], 0
    for step in steps:
        log.entered += addresses[place : place + step]
        place += step
        found.append((log.tail(), log.sealed.copy()))
    again = AddressLog()
    again.reread(json.loads(json.dumps(log.sealed)), log.tail())
    assert json.dumps(again.entered) == json.dumps(log.entered)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_addresses_are_written_alike(seed, monkeypatch):
    """In the core and in Python, in any steps; both are read again. One in four has an address of another kind."""
    rng = random.Random(seed)
    addresses = draw_addresses(rng)
    if addresses and seed % 4 == 0:
        strange = [[0, 1, 2, 3], (0, 1, 2, 63), [1, [2]], (0, 1, 2, 64), (0, 1, 2), (0, 2**62, 1, 1), (0, 2**80, 1, 1)]
        addresses[rng.randrange(len(addresses))] = rng.choice(strange)
    steps = [rng.choice([0, 1, 2, 3, 30, 70]) for _ in range(60)]
    assert write_log(addresses, steps, monkeypatch, "1") == write_log(addresses, steps, monkeypatch, "0")


def test_the_core_writes_no_more_than_a_chunk():
    """What does not fit its buffer is left to Python; the longest addresses fit."""
    parts = [(-1) ** number * (2**61 - 1) for number in range(CHUNK + 1)]
    addresses = [CheckedAddress(part, part, part, 63) for part in parts]
    assert CORE.write_steps(addresses, 0, CHUNK + 1, 0) is None
    log = AddressLog()
    log.entered += addresses[:CHUNK]
    assert CORE.write_steps(addresses, 0, CHUNK, 0) == log._write_steps(0, CHUNK)


def test_nothing_is_kept():
    """Thousands of calls leave as many objects as there were, and as many references to what they were given."""
    lasting, text = ["x" * 400], "y" * 300
    state = [1, 0, 1, None, [[{"a": text}, lasting], None]]
    addresses = [CheckedAddress(0, number, number * 512, 3) for number in range(9)]
    odd = [1, 0, 1, None, [[text, lasting], [1.5, lasting]]]

    def call():
        known = {"0": (None, 0, None, 0, 1), "1": (None, 0, None, 0, 2)}
        CORE.sum_streams({"0": state, "1": odd}, known)
        CORE.sum_streams({"0": [*state]}, known)
        CORE.write_steps(addresses, 0, 9, 0)
        CORE.write_steps([*addresses, [1]], 0, 10, 0)

    call()
    before = [sys.getrefcount(one) for one in (lasting, text, state, odd, addresses[3])], sys.getallocatedblocks()
    for _ in range(3000):
        call()
    after = [sys.getrefcount(one) for one in (lasting, text, state, odd, addresses[3])], sys.getallocatedblocks()
    assert before[0] == after[0]
    assert after[1] - before[1] < 500


PIPELINES = {
    "raw": lambda urls: wds.WebDataset(urls, shardshuffle=False, seed=1),
    "mapped": lambda urls: wds.WebDataset(urls, shardshuffle=False, seed=1).map(dict).shuffle(30),
    "shuffled": lambda urls: wds.WebDataset(urls, shardshuffle=False, seed=1).shuffle(300),
    "weighed": lambda urls: wds.WebDataset(urls, shardshuffle=False, seed=1).shuffle(300, max_bytes=20_000),
    "batched": lambda urls: wds.WebDataset(urls, shardshuffle=False, seed=1).shuffle(90).batched(3).repeat(2),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_states_of_either_way(kind, tmp_path, monkeypatch):
    """Equal after every batch, to the end of the run; each way takes up those of the other, and refuses damage."""
    urls = [str(tmp_path / f"{number}.tar") for number in range(4)]
    for number, url in enumerate(urls):
        with wds.TarWriter(url) as sink:
            for index in range(170):
                sink.write({"__key__": f"{number}-{index}", "bin": bytes(index % 700)})

    def play(setting, state=None):
        monkeypatch.setenv("WDS_NATIVE", setting)
        run = PIPELINES[kind](urls).elastic(5).elastic_run(state=state)
        found = []
        while batch := [str(item["__key__"]) for item in itertools.islice(run, 23)]:
            found.append((batch, json.dumps(run.state_dict())))
        return found

    native, python = play("1"), play("0")
    assert len(native) > 5
    assert native == python
    for place in (0, len(native) // 2, len(native) - 2):
        state = json.loads(native[place][1])
        assert play("0", state) == play("1", state) == native[place + 1 :]
        name = next(name for name, memory in state["memories"].items() if memory and len(memory) == 5)
        state["memories"][name][4][0][1][1] += 1
        for setting in "01":
            with pytest.raises(StateMismatch, match="changed or damaged"):
                play(setting, state)
