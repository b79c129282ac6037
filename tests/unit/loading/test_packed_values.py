"""Lists of bytes and texts that the native core packs in a worker: what comes out is what went in."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import webdataset as wds
from webdataset.loading import columns as columns_module
from webdataset.loading.columns import (
    LISTED,
    LOOSE,
    PACKED,
    Columns,
    FieldColumn,
    PackedValues,
    RowOrder,
    collate_rows,
    merge_columns,
    unpack_values,
)
from webdataset.loading.ipc import PartReceiver, PartSender
from webdataset.loading.worker import WindowPart
from webdataset.samples.native_core import load_native

CORE = load_native()[0]
pytestmark = pytest.mark.skipif(CORE is None, reason="the native core is not compiled")

TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["", "é" * 300, "\0", "😀"]))
# in C, and in Python for a process that has no core
UNPACKS = [pytest.param(getattr(CORE, "unpack_values", None), id="core"), pytest.param(unpack_values, id="python")]
LISTS = st.one_of(st.lists(st.binary(max_size=400), min_size=1), st.lists(TEXTS, min_size=1))


def pack(values):
    """Return values as a worker sends them."""
    return PackedValues(CORE.pack_values(values), len(values), type(values[0]) is str)


@given(values=LISTS, repeats=st.integers(0, 3))
def test_values_come_out_as_they_went_in(values, repeats):
    """Of any length; values that follow each other and are one object are one afterwards, and are sent once."""
    values = [each for each in values for _ in range(repeats + 1)]
    packed = pack(values)
    found = packed.to_list()
    assert found == values
    rows: list[object] = [None] * (2 * len(values) + 1)
    unpack_values(packed.content, packed.size, packed.text, rows, 1, 2)
    spread = rows[1::2]
    assert spread == found
    assert set(map(type, rows[::2])) == {type(None)}
    assert all(a is b for a, b in zip(spread[:: repeats + 1], spread[repeats :: repeats + 1], strict=True))
    assert [type(each) for each in found] == [type(each) for each in values]
    assert all(a is b for a, b in zip(found[:: repeats + 1], found[repeats :: repeats + 1], strict=True))
    content = [each if type(each) is bytes else each.encode() for each in values[:: repeats + 1]]
    assert len(packed.content) <= 4 * len(values) + sum(map(len, content))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1],
        [b"a", "a"],
        ["a", b"a"],
        ["\ud800"],
        ["a", "\udc80"],
        [b"a", bytearray(b"a")],
        [None],
        (b"a",),
        [[b"a"]],
    ],
    ids=repr,
)
def test_what_is_not_all_bytes_or_all_texts_is_left_alone(values):
    """It is pickled, with all that it is: subclasses and texts with surrogates too."""

    class Text(str):
        __slots__ = ()

    assert CORE.pack_values(values) is None
    assert CORE.pack_values([Text("a")]) is None


@pytest.mark.parametrize("unpack", UNPACKS)
@given(content=st.binary(max_size=60), size=st.integers(-1, 20), text=st.booleans())
def test_bytes_that_nothing_has_packed_are_refused(unpack, content, size, text):
    """Whatever they are: an error, or a list of so many values that take no more bytes than there are."""
    rows, others = ([None] * max(size, 0) for _ in range(2))
    try:
        unpack(content, size, text, rows, 0, 1)
    except (ValueError, UnicodeDecodeError) as error:
        with pytest.raises(type(error)):
            CORE.unpack_values(content, size, text, others, 0, 1)
        return
    assert len(rows) == size
    assert all(type(each) is (str if text else bytes) for each in rows)
    CORE.unpack_values(content, size, text, others, 0, 1)
    assert rows == others


@pytest.mark.parametrize("unpack", UNPACKS)
@pytest.mark.parametrize(
    ("start", "step", "rows"),
    [(0, 2, 4), (1, 1, 3), (-1, 1, 3), (0, 0, 3), (0, -1, 3), (3, 1, 3), (0, 1 << 62, 3), (0, 1, 0)],
)
def test_rows_that_a_list_does_not_have_are_refused(unpack, start, step, rows):
    """Nothing is written outside of a list, nor is a part of the values."""
    held = ["old"] * rows
    with pytest.raises(IndexError, match="no rows"):
        unpack(*pack([b"a", b"b", b"c"]), held, start, step)
    assert held == ["old"] * rows


def test_other_arguments_are_refused():
    """By their kind."""
    for given_ in [(), (b"", 0, False, []), (bytearray(), 0, False, [], 0, 1), (b"", 0, False, (), 0, 1)]:
        with pytest.raises(TypeError):
            CORE.unpack_values(*given_)
    with pytest.raises(TypeError):
        CORE.unpack_values(b"", "0", False, [], 0, 1)


def column_of(values):
    """Return a column as the consumer receives it."""
    packed = CORE.pack_values(values)
    return FieldColumn(LISTED, values) if packed is None else FieldColumn(PACKED, pack(values))


@pytest.mark.parametrize("seed", range(40))
def test_columns_of_several_workers_are_joined_by_row(seed, monkeypatch):
    """Packed or not, bytes here and texts there, in even or odd rows: as the lists are joined."""
    if seed % 3 == 0:
        monkeypatch.setattr(columns_module, "_unpack", unpack_values)
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    span = rng.randint(4, 12)
    if rng.random() < 0.5:
        rows = [range(n, span, count) for n in range(count)]
    else:
        mixed = rng.sample(range(span), rng.randint(count, span))
        rows = [sorted(mixed[n::count]) for n in range(count)]
    kinds = [rng.choice(["bytes", "texts", "none"]) for _ in rows] if seed % 2 else ["texts"] * count
    make: dict[str, Any] = {
        "bytes": lambda row: b"%d" % row,
        "texts": str,
        "none": lambda row: None if row % 2 else str(row),
    }
    lists = [[make[kind](row) for row in each] for kind, each in zip(kinds, rows, strict=True)]
    order = RowOrder(rows, span)
    plain = [Columns("dict", ("a",), [FieldColumn(LISTED, list(each))], len(each), 9) for each in lists]
    packed = [Columns("dict", ("a",), [column_of(each)], len(each), 9) for each in lists]
    assert merge_columns(packed, order) == merge_columns(plain, order)
    assert [each.samples() for each in packed] == [each.samples() for each in plain]


def test_a_column_of_another_form_beside_a_packed_one_is_looked_at():
    """As it is beside a list."""
    loose = FieldColumn(LOOSE, [np.zeros(2)])
    packed, plain = column_of(["a"]), FieldColumn(LISTED, ["a"])
    joined = [
        merge_columns([Columns("bare", (0,), [column], 1, 9) for column in (first, loose)]) for first in (packed, plain)
    ]
    assert [each.fields[0].form for each in joined] == [LOOSE, LOOSE]
    assert [each.fields[0].values[0] for each in joined] == ["a", "a"]


@pytest.mark.parametrize("native", ["0", "1"])
def test_parts_arrive_with_and_without_the_core(monkeypatch, native):
    """A worker without it pickles; the consumer takes both."""
    import multiprocessing

    from webdataset.loading.message_pipe import MessagePipe

    monkeypatch.setenv("WDS_NATIVE", native)
    ours, theirs = map(MessagePipe, multiprocessing.Pipe())
    samples = [{"__key__": str(n), "txt": "é" * n, "bin": bytes([n]) * n, "n": n, "deep": {"a": [n]}} for n in range(9)]
    columns = collate_rows(samples)
    PartSender(ours).send(WindowPart(0, 0, range(9), columns))
    part = PartReceiver(theirs, 1).receive()
    assert part.columns.samples() == samples
    forms = [column.form for column in part.columns.fields]
    assert (PACKED in forms) == (native == "1")


@pytest.mark.parametrize("unpack", UNPACKS)
def test_batches_of_processes_are_those_of_this_thread(monkeypatch, unpack):
    """Small samples of texts, bytes, and what is not always a text; workers may have the core, and this one none."""
    monkeypatch.setattr(columns_module, "_unpack", unpack)
    samples = [
        {
            "__key__": f"k{n}",
            "txt": "ü" * (n % 7),
            "raw": bytes([n % 256]) * (n % 5),
            "mixed": None if n % 29 == 0 else "m",
        }
        for n in range(500)
    ]
    with wds.Loader(samples, 32, workers=2, mode="processes") as loader:
        found = list(loader)
    assert found == list(wds.Loader(samples, 32))
