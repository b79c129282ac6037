"""How two datasets differ, whatever their order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from webdataset.inspection.difference import compare_samples
from webdataset.samples.raw_samples import RawMember, RawSample


def sample(key, **fields):
    """A sample as it stands in a shard."""
    members = tuple(RawMember(f"{key}.{name}", b"", payload) for name, payload in fields.items())
    return RawSample(key, members, tuple(fields), "s.tar", 0)


def test_equal_in_another_order():
    """The order of samples does not matter, nor that of fields."""
    first = [sample("a", x=b"1", y=b"2"), sample("b", x=b"3"), sample("c", x=b"4")]
    second = [sample("c", x=b"4"), sample("a", y=b"2", x=b"1"), sample("b", x=b"3")]
    assert not list(compare_samples(first, second))


def test_each_kind_of_difference():
    """Samples of one side, and fields that changed, came or went."""
    first = [sample("a", x=b"1", y=b"2"), sample("b", x=b"3")]
    second = [sample("a", x=b"9", z=b"0"), sample("c", x=b"3")]
    found = {difference.key: difference for difference in compare_samples(first, second)}
    assert found["a"].fields == {"x": "changed", "y": "removed", "z": "added"}
    assert (found["a"].kind, found["b"].kind, found["c"].kind) == ("changed", "removed", "added")


def test_samples_that_come_twice():
    """Keys that come again are matched one by one."""
    first = [sample("a", x=b"1"), sample("a", x=b"2")]
    assert not list(compare_samples(first, list(first)))
    assert [d.kind for d in compare_samples(first, first[:1])] == ["removed"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"))), st.randoms(use_true_random=False))
def test_shuffled_dataset_with_unique_keys_is_equal(pairs, random):
    """A permutation of samples with keys of their own is no difference; one sample more is one difference."""
    first = [sample(f"{key}{number}", x=payload.encode()) for number, (key, payload) in enumerate(pairs)]
    second = list(first)
    random.shuffle(second)
    assert not list(compare_samples(first, second))
    more = [*second, sample("more", x=b"")]
    assert Counter(d.kind for d in compare_samples(first, more)) == {"added": 1}
