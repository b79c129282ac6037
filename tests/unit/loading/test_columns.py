"""Samples as columns: what workers make of them, and what the consumer does with them."""

import collections
import gc
import multiprocessing
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import webdataset as wds
from webdataset.loading.columns import (
    LISTED,
    LOOSE,
    NUMBERS,
    SCALARS,
    RowOrder,
    collate_column,
    collate_rows,
    estimate_bytes,
    merge_columns,
)
from webdataset.loading.ipc import PartReceiver, PartSender, pack_credits, unpack_credits
from webdataset.loading.message_pipe import MessagePipe
from webdataset.loading.worker import WindowCredit, WindowPart
from webdataset.samples.native_core import find_native, load_native

needs_core = pytest.mark.skipif(load_native()[0] is None, reason="the native core is not compiled")


class Word(str):
    """A text that is more than one."""

    __slots__ = ()


class Chunk(bytes):
    """Bytes that are more than that."""


class Fields(dict):
    """Fields that are more than a dictionary."""


Pair = collections.namedtuple("Pair", "a b")

VALUES = st.sampled_from(
    [b"", b"bytes", "", "text", "\udcff", "\U0001f600", 1, 2.5, True, None, ["a"], {"b": 1}, (), np.zeros(2)]
    + [np.int8(3), Word("w"), Chunk(b"c"), bytearray(b"a"), 1 << 70]
)


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["a", b"b", None, {}, [], ()], LISTED),
        ([1, 2], NUMBERS),
        ([1.5, 2.5], NUMBERS),
        ([True, False], NUMBERS),
        ([1, 2.5], LOOSE),
        ([1, 2**63], LOOSE),
        ([np.float16(1), np.float16(2)], SCALARS),
        ([np.float16(1), np.float32(2)], LOOSE),
        ([np.timedelta64(1, "s")], LOOSE),
        ([np.zeros(2)], LOOSE),
        ([np.array(1)], LOOSE),
        ([bytearray(b"a")], LOOSE),
        (["a", 1], LOOSE),
    ],
    ids=repr,
)
def test_the_form_of_a_column_follows_from_the_types_of_its_values(values, form):
    """Only what one look at the types decides has a form of its own; the values come back as they were."""
    column = collate_column(list(values))
    assert column.form == form
    assert repr(column.to_list()) == repr(values)


def test_samples_that_do_not_fit_into_one_batch_are_no_columns():
    """Other fields, another length, another kind; the consumer, who knows all parts, says what is wrong."""
    cases: list[list[object]] = [
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 1, "b": 1}],
        [(1,), (1, 2)],
        [(1,), {"a": 1}],
        [5, (1,)],
    ]
    for samples in cases:
        assert collate_rows(samples) is None
    one, other = collate_rows([{"a": 1, "b": 2}]), collate_rows([{"a": 1, "c": 2}])
    assert merge_columns([one, other]) is None
    assert merge_columns([one, collate_rows([(1, 2)])]) is None


def test_parts_are_joined_by_field_and_not_by_place():
    """The fields of two parts may stand in another order, and their types may differ: the first part's order counts."""
    parts: list[list[object]] = [[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], [{"b": None, "a": 0.5}]]
    columns = [collated for part in parts if (collated := collate_rows(part)) is not None]
    merged = merge_columns(columns, RowOrder([[0, 2], [1]], 3))
    assert merged is not None
    assert merged.keys == ("a", "b")
    assert merged.samples() == [{"a": 1, "b": "x"}, {"a": 0.5, "b": None}, {"a": 2, "b": "y"}]
    assert repr(merged.assemble(np.array)) == "{'a': array([1. , 0.5, 2. ]), 'b': ['x', None, 'y']}"


@pytest.mark.parametrize("rows", [[range(0, 5, 2), range(1, 4, 2)], [[0, 3], [1, 2, 4]], [range(2), [3]]])
def test_rows_of_parts_interleave(rows):
    """At equal distances, at any, and where some are missing."""
    order = RowOrder(rows, 5)
    wanted = sorted(row for part in rows for row in part)
    assert order.merge_lists([list(part) for part in rows]) == wanted
    merged = order.merge_arrays([np.array(part)[:, None] * [1, 1] for part in rows])
    assert merged.tolist() == [[row, row] for row in wanted]


def test_a_part_goes_through_a_pipe_as_it_was():
    """Columns, rows, counts and large bytes; arrays of numbers are the receiver's own."""
    ours, theirs = multiprocessing.Pipe()
    sender, receiver = PartSender(MessagePipe(ours)), PartReceiver(MessagePipe(theirs), 1)
    samples = [{"n": n, "half": np.float16(n), "text": f"{n}", "raw": bytes([n]) * 50_000} for n in range(4)]
    sent = WindowPart(1, 7, range(1, 8, 2), collate_rows(samples), turns=5, busy=[3])
    sender.send(sent)
    # memory is announced first
    found = receiver.receive() or receiver.receive()
    assert (found.worker, found.window, found.rows, found.turns, found.busy) == (1, 7, range(1, 8, 2), 5, [3])
    assert found.columns.samples() == samples
    assert found.columns.fields[0].values.flags.owndata
    assert all(type(value) is bytes for value in found.columns.fields[3].values)


def test_credits_go_through_a_pipe_in_a_few_bytes():
    """All but the blocks' arrays, which the worker has; another order is none."""
    credits = [WindowCredit(2**40, -1, eager=True, collating=False), WindowCredit(2**40 + 1, 3, collating=True)]
    assert unpack_credits(pack_credits(credits)) == (credits, ())
    assert unpack_credits(pack_credits(credits, [3, 70_000])) == (credits, (3, 70_000))
    assert len(pack_credits(credits[:1])) < 32
    assert unpack_credits(b"\x80\x05.") is None


def count_calls(batches):
    """Return how many calls the next batch takes in this thread, of functions in Python or in C."""
    calls = [0]

    def count(_frame, event, _argument):
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        next(batches)
    finally:
        sys.setprofile(None)
    return calls[0]


@pytest.mark.parametrize("sample", [{"cls": 1, "caption": "some text", "raw": b"bytes", "tags": ["a"]}, (1, None)])
def test_what_the_consumer_does_for_a_batch_does_not_depend_on_its_size(sample):
    """A batch of 800 samples takes it as many calls as one of 40: workers collate."""
    calls = {}
    for size in (40, 800):
        with wds.Loader([sample] * (size * 12), size, workers=2, mode="processes", start_method="fork") as loader:
            batches = iter(loader)
            next(batches)
            # the least: it waits for some
            calls[size] = min(count_calls(batches) for _ in range(10))
    assert calls[800] < 1.3 * calls[40]


def test_nothing_keeps_a_batch_that_the_program_lets_go_of():
    """Its memory can be used again at once, and not after the next batch only."""
    samples = [(np.full((50, 50), n), f"{n}") for n in range(40)]
    with wds.Loader(samples, 4, workers=2, mode="processes", start_method="fork") as loader:
        batches = iter(loader)
        for _ in range(10):
            pixels = weakref.ref(next(batches)[0])
            assert pixels() is None


def test_a_batch_is_weighed_by_its_columns():
    """Texts and bytes exactly, numbers as their array, containers by some of them."""
    samples = [{"n": n, "text": "x" * n, "json": {"caption": "y" * 100}} for n in range(64)]
    weight = 64 * 8 + sum(range(64)) + 64 * 100
    assert collate_rows(samples).size_bytes == weight
    assert estimate_bytes({"text": ["x" * n for n in range(64)]}) == sum(range(64))
    with wds.Loader(samples, 64, workers=2) as loader:
        list(loader)
        assert loader.stats().bytes == weight


def describe_columns(columns):
    """Return all that can be seen of some columns."""
    if columns is None:
        return None
    values = [[(type(one), repr(one)) for one in each.to_list()] for each in columns.fields]
    forms = [(each.form, each.size_bytes) for each in columns.fields]
    return columns.kind, columns.keys, forms, values, columns.size, columns.size_bytes


@st.composite
def samples_alike_or_not(draw):
    """Return samples of one kind, most of which have the same fields."""
    width = draw(st.integers(0, 4) | st.just(70))
    keys = draw(st.permutations([*"ab", 3, None])) + [f"k{n}" for n in range(70)]
    samples = []
    for _ in range(draw(st.integers(1, 6))):
        values = [draw(VALUES) if place < 4 else b"x" for place in range(width)]
        kind = draw(st.sampled_from(["dict"] * 4 + ["tuple"] * 4 + ["list", "subclass", "named", "bare", "other"]))
        named = dict(zip(draw(st.sampled_from([keys[:width], keys[:width][::-1]])), values, strict=True))
        made = {"dict": named, "tuple": tuple(values), "list": values, "subclass": Fields(named), "bare": draw(VALUES)}
        made |= {"named": Pair(1, b"x"), "other": dict.fromkeys([*named, "more"], 1)}
        samples.append(made[kind])
    alike = draw(st.sampled_from([None, dict, tuple]))
    return [sample for sample in samples if alike is None or type(sample) is alike] or samples


@needs_core
@given(samples_alike_or_not())
def test_the_core_takes_samples_apart_as_python_does(samples):
    """Values, their types and their order, what they weigh, and which samples fit into one batch."""
    gather = load_native()[0].gather
    assert describe_columns(collate_rows(samples, gather)) == describe_columns(collate_rows(samples))


class Changing:
    """A key that changes a list when it is compared, or refuses to be."""

    def __init__(self, change):
        self.change = change

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self is other or self.change()


@needs_core
def test_the_core_survives_keys_that_run_code():
    """A list that shrinks meanwhile has no columns, and an error of theirs is raised."""
    gather = load_native()[0].gather
    samples: list[object] = []
    samples += [{Changing(lambda: samples.clear() or True): b"a"} for _ in range(3)]
    assert gather(samples, (Changing(lambda: False),)) is None
    assert samples == []
    samples = [{Changing(lambda: 1 / 0): b"a"}]
    with pytest.raises(ZeroDivisionError):
        gather(samples, (Changing(lambda: False),))
    assert gather([{}], (1,)) is gather([{"a": 1}], ()) is gather([], None) is gather([()], None) is None
    assert gather([{"a": 1}], ["a"]) is None
    with pytest.raises(TypeError):
        gather(((1,),), None)


@needs_core
def test_the_core_keeps_nothing_of_the_samples():
    """Whether it makes columns, stops in their midst, or raises."""
    gather = load_native()[0].gather
    value, other = object(), object()
    before = sys.getrefcount(value), sys.getrefcount(other)
    cases = [
        ([{"a": value, "b": other}] * 3, ("a", "b")),
        ([(value, other)] * 3, None),
        ([{"a": value, "b": other}, {"a": value}], ("a", "b")),
        ([{"a": value, "b": other}, {"a": value, "c": other}], ("a", "b")),
        ([(value, other), (value,)], None),
    ]
    for _ in range(100):
        assert [gather(*case) is None for case in cases] == [False, False, True, True, True]
        samples = [{"a": value, Changing(lambda: 1 / 0): other}]
        with pytest.raises(ZeroDivisionError):
            gather(samples, ("a", Changing(lambda: False)))
        del samples
    del cases
    gc.collect()
    assert (sys.getrefcount(value), sys.getrefcount(other)) == before


@needs_core
def test_the_core_is_used_where_it_is_wanted(monkeypatch):
    """A worker draws and collates by it, and without it under ``WDS_NATIVE=0``."""
    core = load_native()[0]
    calls: list[object] = []

    def gather(samples, keys):
        calls.append(len(samples))
        return core.gather(samples, keys)

    def draw(*args):
        calls.append("draw")
        return core.draw(*args)

    monkeypatch.setattr("webdataset.loading.worker.find_native", lambda: SimpleNamespace(gather=gather, draw=draw))
    assert len(list(wds.Loader([(1,)] * 8, 4))) == 2
    assert calls == ["draw", 4, "draw", 4, "draw"]
    monkeypatch.setenv("WDS_NATIVE", "0")
    assert find_native() is None


def test_a_sender_keeps_nothing_of_what_it_sent():
    """Neither of a part, nor of one that cannot be sent."""
    ours, theirs = multiprocessing.Pipe()
    sender, receiver = PartSender(MessagePipe(ours)), PartReceiver(MessagePipe(theirs), 1)
    for fails in (False, True):
        array = np.zeros(3)
        gone, samples = weakref.ref(array), [{"a": array, "b": (lambda: None) if fails else 1}]
        if fails:
            with pytest.raises(wds.WebDatasetError, match="cannot be pickled"):
                sender.send(WindowPart(0, 0, range(1), beside=samples))
        else:
            sender.send(WindowPart(0, 0, range(1), beside=samples))
            assert receiver.receive().beside[0]["a"].tolist() == [0, 0, 0]
        del array, samples
        gc.collect()
        assert gone() is None
    sender.send(WindowPart(0, 1, range(1), beside=[5]))
    assert receiver.receive().beside == [5]
