"""Sorting and shuffling outside memory equal what Python does in memory, for every limit."""

import errno
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.core.errors import SampleError, SourceError, UsageError
from webdataset.reshaping import external_sort
from webdataset.reshaping.external_sort import make_sort_key, shuffle_samples, sort_samples
from webdataset.samples.raw_samples import RawMember, RawSample


def sample(number, payload=b"", key=None):
    """A sample as it stands in a shard."""
    name = f"{number}" if key is None else key
    member = RawMember(f"{name}.txt", b"\0" * 512, payload)
    return RawSample(name, (member,), ("txt",), "s\udc80.tar", number)


VALUES = st.one_of(
    st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


@given(st.lists(VALUES, max_size=30), st.integers(1, 20_000), st.booleans())
def test_sorting_is_stable_for_any_limit(values, memory, reverse):
    """The order is that of a stable sort in memory, whether nothing, some or each sample is spilled."""
    samples = [sample(number, str(number).encode()) for number in range(len(values))]
    found = list(sort_samples(samples, lambda each: values[each.offset], reverse=reverse, memory_bytes=memory))
    assert found == sorted(samples, key=lambda each: make_sort_key(values[each.offset]), reverse=reverse)


def test_many_runs_are_merged_in_several_passes(monkeypatch, tmp_path):
    """More runs than may be merged at once: still stable, and nothing stays on the disk."""
    monkeypatch.setattr(external_sort, "FAN_IN", 3)
    samples = [sample(number, b"x" * (number % 7)) for number in range(100)]
    found = list(sort_samples(samples, lambda each: each.offset % 5, memory_bytes=3000, folder=str(tmp_path)))
    assert found == sorted(samples, key=lambda each: each.offset % 5)
    assert not list(tmp_path.iterdir())


def test_nothing_stays_on_the_disk_when_reading_stops(tmp_path):
    """Whoever stops early leaves no temporary files."""
    samples = [sample(number) for number in range(50)]
    found = sort_samples(samples, lambda each: -each.offset, memory_bytes=5000, folder=str(tmp_path))
    assert next(found).offset == 49
    assert list(tmp_path.iterdir())
    found.close()
    assert not list(tmp_path.iterdir())


def test_order_of_a_shuffle_does_not_depend_on_the_limit():
    """The same seed gives the same order, in memory and outside; another seed another one."""
    samples = [sample(number) for number in range(60)]
    orders = [[each.offset for each in shuffle_samples(samples, 7, memory_bytes=limit)] for limit in (1, 9000, 1 << 30)]
    assert orders[0] == orders[1] == orders[2] != list(range(60))
    assert sorted(orders[0]) == list(range(60))
    assert [each.offset for each in shuffle_samples(samples, 8)] != orders[0]


def test_every_order_is_as_probable_as_another():
    """Over many seeds, the six orders of three samples come equally often (chi square with 5 degrees, p = 1e-6)."""
    samples = [sample(number) for number in range(3)]
    counts = Counter(tuple(each.offset for each in shuffle_samples(samples, seed)) for seed in range(3000))
    assert len(counts) == 6
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 37


def test_values_without_order_are_errors_of_the_sample():
    """NaN and objects have no order."""
    for value in (float("nan"), {"a": 1}):
        with pytest.raises(SampleError, match="no order"):
            list(sort_samples([sample(1)], lambda _: value))


def test_limit_is_checked():
    """A limit of nothing cannot be meant."""
    with pytest.raises(UsageError, match="memory_bytes"):
        list(sort_samples([sample(1)], lambda _: 1, memory_bytes=0))


def test_what_is_gathered_stays_below_the_limit(monkeypatch):
    """No run is larger than the limit, but for a single larger sample."""
    sizes = []
    spill = external_sort._spill

    def watch(entries, path):
        kept = list(entries)
        sizes.append((len(kept), sum(external_sort._weigh_sample(each) for _, each in kept)))
        return spill(kept, path)

    monkeypatch.setattr(external_sort, "_spill", watch)
    rng = random.Random(1)
    samples = [sample(number, b"x" * rng.choice([0, 100, 30_000])) for number in range(80)]
    assert len(list(sort_samples(samples, lambda each: each.offset, memory_bytes=20_000))) == 80
    assert len(sizes) > 3
    assert all(weight <= 20_000 or count == 1 for count, weight in sizes)


def test_temporary_files_that_cannot_be_written(tmp_path, monkeypatch):
    """An error names the folder of temporary files and the options that help, for the folder and for each file."""
    samples = [sample(number, b"x" * 1000) for number in range(9)]
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="--temporary") as caught:
        list(sort_samples(samples, lambda each: each.key, memory_bytes=1, folder=str(tmp_path / "file")))
    assert caught.value.url == str(tmp_path / "file")

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(external_sort, "_write_entry", refuse)
    with pytest.raises(SourceError, match=r"No space left on device.*--memory"):
        list(shuffle_samples(samples, 1, memory_bytes=1, folder=str(tmp_path)))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
