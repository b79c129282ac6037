"""Pickles that ask for more than they hold are told from those that do not; both readers agree on the latter."""

import collections
import datetime as dt
import decimal
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hostile_bombs import exhausting, growing
from webdataset.codecs.pickle_checks import CheckedUnpickler, UnpicklingBudget, has_bounded_cost
from webdataset.codecs.safe_pickle import PLAIN, unpickle_loads
from webdataset.core.errors import UnsafeContent

pytestmark = pytest.mark.limited

RECORDS: list[dict[str, Any]] = [
    {"id": n, "caption": f"a photo of the thing number {n}", "box": (1, 2, n, 4.5), "tags": ["a", "b"], "at": None}
    for n in range(300)
]
HARMLESS = {"memo index", "memo index as text", "lists in lists", "decimal", "huge dtype"}
UNBOUNDED = sorted(name for name in exhausting() if "tuples doubled" in name or "cop" in name or "in tuples" in name)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile the pattern of plain pickles: each copy of this process would."""
    assert not has_bounded_cost(exhausting()[UNBOUNDED[0]])


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [
        RECORDS,
        [dict(record, caption=record["caption"] * 40) for record in RECORDS],
        [decimal.Decimal(n) for n in range(500)],
        [dt.date(2024, 1, 1 + n % 28) for n in range(500)],
        ["that " * 5000, *range(3000)],
    ],
    ids=["records", "long texts", "decimals", "dates", "text"],
)
def test_plain_pickles_are_read_fast(value, protocol):
    """Records of texts, numbers and flat tuples go to the C reader, however many."""
    data = pickle.dumps(value, protocol)
    assert has_bounded_cost(data) or (
        type(value[0]) is dt.date and protocol < 3
    )  # older ones hold bytes as encoded text
    assert unpickle_loads(data) == value


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_pickles_never_reach_the_c_reader(name):
    """What copies or doubles is left to the careful reader."""
    assert not has_bounded_cost(exhausting()[name])


@pytest.mark.repeats
@pytest.mark.parametrize("name", sorted(set(exhausting()) - {"marks"}))
def test_little_memory_is_taken(name):
    """No such pickle takes more than a few dozen times its length, and 16 MB."""
    data = exhausting()[name]
    tracemalloc.start()
    try:
        unpickle_loads(data)
    except Exception:
        assert name not in HARMLESS
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * len(data) + (64 << 20)


@pytest.mark.parametrize("name", sorted(growing()))
def test_what_grows_is_refused(name):
    """Lists put into themselves, numbers with any number of digits, and texts of lists are not made."""
    with pytest.raises(UnsafeContent):
        unpickle_loads(growing()[name])


@pytest.mark.parametrize("protocol", range(6))
def test_shared_parts_are_welcome(protocol):
    """Honest pickles refer to their parts again: keys, classes, whole objects, arrays and their types."""
    shared = {"a": (1, (2, "x")), "b": frozenset({(1, 2), (3, (4, 5))}), "c": {(1, (2, 3)): "y"}}
    array = np.arange(1000)
    value: dict[str, Any] = {
        "records": [shared] * 200,
        "sets": [{1, 2, n, (n, (n,))} for n in range(300)],
        "ordered": [collections.OrderedDict(a=n, b=shared) for n in range(300)],
        "queues": [collections.deque([shared, n], 9) for n in range(100)],
        "arrays": [array, array[:5], np.float32(1.5), *(np.full(3, n) for n in range(200))],
    }
    read = unpickle_loads(pickle.dumps(value, protocol))
    assert read["records"] == value["records"]
    assert read["records"][0] is read["records"][199]
    assert (read["sets"], read["ordered"], read["queues"]) == (value["sets"], value["ordered"], value["queues"])
    assert all(np.array_equal(*pair) for pair in zip(read["arrays"], value["arrays"], strict=True))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda parts: (
        st.lists(parts) | st.tuples(parts, parts) | st.tuples(parts) | st.dictionaries(st.text(), parts)
        | st.frozensets(st.integers() | st.tuples(st.text(), st.integers())) | st.lists(parts).map(lambda x: [x, x])
    ),
)  # fmt: skip


@given(VALUES, st.integers(0, 5))
def test_both_readers_agree(value, protocol):
    """Any value of plain types comes back as it was from the one reader and from the other."""
    data = pickle.dumps(value, protocol)
    assert unpickle_loads(data) == value
    assert CheckedUnpickler(data, PLAIN).load() == value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(("old", "new"), [("numpy.core", "numpy._core"), ("numpy._core", "numpy.core")])
def test_numpy_of_either_layout(old, new, protocol):
    """Pickles made by numpy 1 name its modules otherwise than those made by numpy 2; both load."""
    kinds = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 S3 U2 M8[s] m8[D]".split()
    values: list[Any] = [*(np.ones(2, "i1").astype(kind) for kind in kinds), np.float32(1), np.array(5), np.str_("a")]
    for value in values:
        data = pickle.dumps(value, protocol)
        before, after = old.encode(), new.encode()
        for module in (b".multiarray", b".numeric"):
            data = data.replace(
                bytes([len(before + module)]) + before + module, bytes([len(after + module)]) + after + module
            )
            data = data.replace(b"c" + before + module, b"c" + after + module)
        if protocol >= 4:
            data = data[:2] + data[11:]  # without its frame, whose length has changed
        read = unpickle_loads(data)
        assert read.dtype == value.dtype
        assert np.array_equal(read, value)


def test_the_budget_counts_what_is_copied_and_hashed():
    """Lengths of containers and texts, sizes of arrays, and tuples through all their levels."""
    budget = UnpicklingBudget(0)
    spare = budget.left
    budget.spend([[1] * 100, "x" * 50, np.zeros(10), 3])
    assert spare - budget.left == 1 + 100 + 50 + 80 + 1
    nested = ()
    for _ in range(10):
        nested = (nested, nested)
    before = budget.left
    budget.hash([nested, "text", 5])
    assert before - budget.left > 2**10
    for _ in range(40):
        nested = (nested, nested)
    with pytest.raises(UnsafeContent, match="repeats its parts"):
        budget.hash([nested])
    with pytest.raises(UnsafeContent, match="far more memory"):
        UnpicklingBudget(10).spend([bytes(1 << 23)])


@pytest.mark.parametrize(
    "data", [b"", b".", b"N", b"(", b"X\xff\xff\xff\xff", b"\x8e", b"\xff" * 100, b"h" * 100 + b"t" * 100]
)
def test_damaged_pickles_are_no_trouble(data):
    """Telling does not fail where a pickle is cut or none at all."""
    assert has_bounded_cost(data * 50) in (True, False)
