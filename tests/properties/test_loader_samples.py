"""Samples of any kind through a loader: what comes out is the collation of the samples, whoever made them."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds

SIZES = st.integers(0, 40)


class Text(str):
    """A text of a type of its own."""

    __slots__ = ()


class Record(dict):
    """A dictionary of a type of its own."""


Pair = namedtuple("Pair", ["one", "two"])  # noqa: PYI024  one without types, as users write them

VALUES = {
    "int": lambda n: n,
    "large int": lambda n: 2**70 + n,
    "float": lambda n: n / 3,
    "not a number": lambda n: float("nan") if n % 2 else -0.0,
    "bool": lambda n: n % 3 == 0,
    "numbers": lambda n: (n, n / 2, n > 3, np.float32(n))[n % 4],
    "int, then one too large": lambda n: n if n < 12 else 2**64 + n,
    "numpy scalar": lambda n: np.float16(n),
    "numpy bool": lambda n: np.bool_(n % 2),
    "numpy scalars": lambda n: (np.int8(n), np.uint16(n))[n % 2],
    "duration": lambda n: np.timedelta64(n, "s"),
    "text": lambda n: f"text {n}",
    "own text": lambda n: Text(n),
    "texts": lambda n: (Text(n), f"{n}")[n % 2],
    "bytes": lambda n: bytes([n]) * (n % 5),
    "huge bytes": lambda n: bytes([n]) * 90_000,
    "bytes now and then huge": lambda n: bytes([n]) * (70_000 if n % 7 == 3 else n),
    "bytearray": lambda n: bytearray([n]) * 20_000,
    "none": lambda n: None,
    "none now and then": lambda n: None if n % 4 == 1 else f"{n}",
    "number or text": lambda n: n if n % 5 else f"{n}",
    "text or number": lambda n: f"{n}" if n % 5 else n,
    "list": lambda n: list(range(n % 4)),
    "list of huge bytes": lambda n: [bytes([n]) * 30_000, "small"],
    "tuple": lambda n: (n, f"{n}"),
    "named tuple": lambda n: Pair(n, f"{n}"),
    "dict": lambda n: {"caption": f"{n}", "tags": [n, None], "raw": bytes([n]) * 10_000},
    "array": lambda n: np.full((3, 2), n, np.int16),
    "large array": lambda n: np.full((40, 50), n, np.float32),
    "arrays of two types": lambda n: np.full(3, n, (np.int16, np.float32)[n % 2]),
    "ragged arrays": lambda n: np.full((n % 3, 2), n),
    "ragged large arrays": lambda n: np.full((20 + n % 2, 60), n),
    "another shape later": lambda n: np.full(3 + n // 9, n),
    "no elements": lambda n: np.zeros((0, 4), np.float32),
    "no dimension": lambda n: np.array(n),
    "every second": lambda n: np.arange(n, n + 12)[::2],
    "Fortran order": lambda n: np.asfortranarray(np.arange(6).reshape(2, 3) + n),
    "foreign byte order": lambda n: np.full(3, n, ">i4"),
    "objects": lambda n: np.array([n, f"{n}", None], object),
    "texts in an array": lambda n: np.array([f"{n}", "x" * n]),
    "array or number": lambda n: np.full(2, n) if n % 6 else n,
    "array or none": lambda n: np.full(2, n) if n % 6 else None,
}  # fmt: skip


def collate_column(values):
    """Return what one field of a batch is to be."""
    none = () if isinstance(values[0], int | float) else None
    if len({getattr(value, "shape", none) for value in values}) > 1:
        return values
    if all(isinstance(value, np.number | np.bool_ | int | float) for value in values):
        return np.array(values)
    return wds.default_collation_fn([(value,) for value in values])[0]


def collate(samples):
    """Return what a batch is to be."""
    first = samples[0]
    if isinstance(first, dict):
        if any(not isinstance(sample, dict) or sample.keys() != first.keys() for sample in samples):
            raise wds.errors.SampleError("other fields")
        return {key: collate_column([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        if any(not isinstance(sample, tuple | list) or len(sample) != len(first) for sample in samples):
            raise wds.errors.SampleError("another length")
        return tuple(collate_column(list(values)) for values in zip(*samples, strict=True))
    return collate_column(samples)


def assert_same(found, wanted):
    """Compare values and types, all the way down."""
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.flags.writeable
        assert_same(found.tolist(), wanted.tolist())
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert repr(found) == repr(wanted)


def outcomes(batches):
    """Return what an iteration gives: batches, and then the type of the error that ends it, or None."""
    found = []
    try:
        for batch in batches:
            found.append(batch)
    except Exception as error:
        return found, type(error)
    return found, None


def make_samples(draw, count):
    """Return samples of drawn fields; now and then one that does not fit to the others."""
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4))
    form = draw(st.sampled_from(["dict", "tuple", "list", "named", "mixed", "bare", "reordered", "record"]))
    odd = draw(st.sampled_from([None] * 6 + ["missing", "other kind"]))

    def make(n):
        values = [VALUES[kind](n) for kind in kinds]
        if n == 17 and odd == "missing":
            values = values[:-1]
        if n == 17 and odd == "other kind":
            return {"odd": 1} if form not in ("dict", "reordered", "record") else 5
        if form in ("dict", "reordered", "record"):
            sample = {f"{place} {kinds[place]}": value for place, value in enumerate(values)}
            if form == "record":
                return Record(sample)
            return dict(reversed(sample.items())) if form == "reordered" and n % 3 == 2 else sample
        if form == "named":
            return Pair(values, n)
        if form == "bare":
            return values[0] if values else n
        return list(values) if form == "list" or (form == "mixed" and n % 2) else tuple(values)

    return [make(n) for n in range(count)]


def check(data, workers, mode):
    """Compare two epochs of a loader with the collation of what its dataset gives."""
    samples = make_samples(data.draw, data.draw(SIZES))
    size = data.draw(st.integers(1, 9))
    streams = data.draw(st.sampled_from([None, 1, 3, 4]))
    dataset = samples
    if streams is not None:
        dataset = wds.DataPipeline([samples], wds.map(lambda sample: sample)).elastic(streams)
        dataset.seed = 3
        if not samples:
            return
        dataset.set_epoch(0)
        samples = list(dataset)
    wanted, error = outcomes(collate(samples[n : n + size]) for n in range(0, len(samples), size))
    start = "fork" if mode == "processes" else None
    with wds.Loader(dataset, size, workers=workers, mode=mode, start_method=start) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            found, failure = outcomes(loader)
            assert failure is error
            assert_same(found, wanted)


@given(data=st.data(), workers=st.integers(0, 3))
@settings(max_examples=60)
def test_samples_of_any_kind_are_collated_alike_in_threads(data, workers):
    """Also where streams end early, fields are missing, and types change from sample to sample."""
    check(data, workers, "threads")


@given(data=st.data(), workers=st.integers(1, 3))
@settings(max_examples=15)
def test_samples_of_any_kind_are_collated_alike_in_processes(data, workers):
    """What travels is what the process without workers has."""
    check(data, workers, "processes")


@pytest.mark.repeats
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("size", [None, 4])
def test_values_of_each_kind_travel(kind, size):
    """Each kind of value comes out of processes as of threads, in batches and as samples."""
    samples = [{"value": VALUES[kind](n), "n": n} for n in range(18)]
    found = []
    for workers, mode in ((0, "threads"), (2, "processes")):
        start = "fork" if workers else None
        with wds.Loader(samples, size, workers=workers, mode=mode, start_method=start) as loader:
            found.append(outcomes(loader))
    (one, failed), (other, failure) = found
    assert failed is failure
    assert_same(other, one)
