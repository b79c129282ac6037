"""Streams that share a reader give what streams that read alone give: items, order, states, errors, counts.

The oracle is the same run with ``WDS_SHARED_BYTES=0``, which lets every stream read alone.
"""

import os
import random
import warnings

import pytest

import webdataset as wds
from webdataset.testing import archives

LIMITS = (1, 20_000, 1 << 26)
SIZES = (3, 700, 9_000, 140_000)
READER_PARTS = 8  # of where a reader stands, in a state
FAULTS = ("cut", "field twice", "split sample", "bad header", "no end mark", "missing", "empty", "zeros within")


def write_shards(rng, folder):
    """Write shards of samples of many sizes; return their urls, and the fault of one of them."""
    count = rng.choice((1, 1, 2, 3, 5, 8, 11))
    fault = rng.choice((None, None, *FAULTS))
    at = rng.randrange(count)
    for number in range(count):
        samples = rng.choice((0, 1, 2, 7, 30, 60))
        members = []
        for index in range(samples):
            size = rng.choice(SIZES[: 3 if rng.random() < 0.9 else 4])
            members += [(f"{number}-{index:03d}.bin", os.urandom(size)), (f"{number}-{index:03d}.cls", b"%d" % index)]
        path = folder / f"s-{number:02d}.tar"
        path.write_bytes(damage(rng, members, fault if number == at else None))
        if fault == "missing" and number == at:
            path.unlink()
    return [str(folder / f"s-{number:02d}.tar") for number in range(count)], fault


def damage(rng, members, fault):
    """Return an archive with one fault in it."""
    if fault == "field twice" and members:
        members.insert(rng.randrange(len(members)) | 1, members[0])
    if fault == "split sample" and len(members) > 4:
        members.append((members[0][0].replace(".bin", ".late"), b"late"))
    content = bytearray(archives.by_hand(members) if members else archives.archive())
    middle = rng.randrange(len(content)) // 512 * 512
    if fault == "cut":
        del content[rng.randrange(len(content)) :]
    elif fault == "bad header":
        content[middle : middle + 20] = b"\xff" * 20
    elif fault == "zeros within":
        content[middle : middle + 512] = bytes(512)
    elif fault == "no end mark":
        del content[-1024:]
    elif fault == "empty":
        content.clear()
    return bytes(content)


class Noted:
    """A handler that notes what it is asked about, and continues, or stops."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def __call__(self, error):
        self.asked.append((type(error).__name__, getattr(error, "key", None), getattr(error, "offset", None)))
        return self.answer


def choose_pipeline(rng, urls):
    """Return a function that makes an elastic dataset, with a handler for reading."""
    kind = rng.choice(("plain", "plain", "shuffle", "select", "batch", "mix", "repeat", "length", "open", "map"))
    shuffled, streams = rng.random() < 0.5, rng.choice((2, 3, 5, 8, 24))
    options = {"missing_end": rng.choice((None, "warn", "ignore")), "split_samples": rng.choice(("error", "warn"))}
    kept, size = rng.random(), rng.choice((2, 9, 40))

    def source(handler, seed=5, **more):
        return wds.WebDataset(
            urls,
            shardshuffle=50 if shuffled else False,
            seed=seed,
            empty_check=False,
            handler=handler,
            **options,
            **more,
        )

    def make(handler):
        dataset = source(handler, open_shards=size if kind == "open" else 1)
        if kind == "shuffle":
            dataset = dataset.shuffle(size)
        elif kind == "select":
            dataset = dataset.select(lambda sample: sum(sample["__key__"].encode()) * 7 % 10 < 10 * kept)
        elif kind == "batch":
            dataset = dataset.to_tuple("__key__", "cls").batched(size)
        elif kind == "mix":
            dataset = wds.RandomMix([dataset, source(handler, seed=6).map(lambda sample: sample)], longest=True)
        elif kind == "repeat":
            dataset = dataset.repeat(3)
        elif kind == "length":
            dataset = dataset.repeat().with_epoch(size * 2)
        elif kind == "map":
            dataset = dataset.map(lambda sample: sample).shuffle(size).compose(lambda items: (one for one in items))
        return dataset.elastic(streams=streams)

    return kind, streams, make


def name_of(item):
    """What tells an item."""
    if isinstance(item, dict):
        return item["__key__"], len(item["bin"]) if "bin" in item else None, sorted(item)
    return [list(item[0]), [bytes(one) for one in item[1]]]


def run(make, place, limit, steps, state, answer, monkeypatch):
    """Run one worker for some steps: items, states in between, the end, what the handler was asked, warnings."""
    monkeypatch.setenv("WDS_SHARED_BYTES", str(limit))
    handler = Noted(answer) if answer is not None else wds.reraise_exception
    items, states, end = [], [], None
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        current = make(handler).elastic_run(place, state)
        try:
            for step in range(steps):
                item = next(current, None)
                if item is None:
                    end = "end"
                    break
                items.append((current.position, name_of(item)))
                if step % 7 == 3:
                    states.append(current.state_dict())
            else:
                states.append(current.state_dict())
        except wds.WebDatasetError as error:
            end = type(error).__name__, error.key, error.offset, error.message
        finally:
            current.close()
    return items, states, end, getattr(handler, "asked", None)


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


@pytest.mark.repeats
@pytest.mark.parametrize("seed", [*range(120), 121, 7531, 7825])
def test_readers_that_are_shared_change_nothing(seed, tmp_path, monkeypatch):
    """Random shards, faults, pipelines, topologies, limits and places to resume from."""
    rng = random.Random(seed)
    monkeypatch.setenv("WDS_SEED", "5")
    urls, fault = write_shards(rng, tmp_path)
    kind, streams, make = choose_pipeline(rng, urls)
    ranks = rng.choice([one for one in (1, 1, 2, 3) if one <= streams])
    place = wds.WorkerContext(rng.randrange(ranks), ranks, 0, 1)
    answer = rng.choice((None, True, True, False))
    state = None
    for _ in range(3):
        steps = rng.choice((5, 40, 10_000))
        alone = run(make, place, 0, steps, state, answer, monkeypatch)
        for limit in LIMITS:
            shared = run(make, place, limit, steps, state, answer, monkeypatch)
            about = f"seed {seed}, {kind}, {streams} streams, {place}, fault {fault}, limit {limit}, handler {answer}"
            assert shared[0] == alone[0], about
            assert shared[2:] == alone[2:], about
            assert without_hints(shared[1]) == without_hints(alone[1]), about
        if not alone[1]:
            break
        state = rng.choice(alone[1])
