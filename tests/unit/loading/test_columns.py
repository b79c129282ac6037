"""Samples as columns: what workers make of them, and what the consumer does with them."""

import multiprocessing
import sys
import weakref

import numpy as np
import pytest

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
from webdataset.loading.ipc import PartReceiver, PartSender, pack_credit, unpack_credit
from webdataset.loading.message_pipe import MessagePipe
from webdataset.loading.worker import WindowCredit, WindowPart


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
    """All but the block's arrays, which the worker has; another order is none."""
    credit = WindowCredit(2**40, -1, eager=True, collating=False)
    assert unpack_credit(pack_credit(credit)) == (credit, ())
    assert unpack_credit(pack_credit(credit, [3, 70_000])) == (credit, (3, 70_000))
    assert len(pack_credit(credit)) < 32
    assert unpack_credit(b"\x80\x05.") is None


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
