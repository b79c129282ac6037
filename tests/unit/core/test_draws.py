"""Generators whose state is one number, permutations, and the digests of samples."""

import random

import pytest

from webdataset.core.seeds import CounterRng, permutation, sample_digest


def test_draws_can_be_set_to_any_position():
    """Within a block, at its end, blocks ahead: what follows is what would have followed."""
    whole = CounterRng(7)
    words = [whole.word() for _ in range(3000)]
    assert whole.position == 3000
    for position in (0, 1, 1023, 1024, 1025, 2047, 2048, 2999):
        draws = CounterRng(7, position)
        assert draws.position == position
        assert [draws.word() for _ in range(3)] == (words + [CounterRng(7, 3000 + n).word() for n in range(3)])[
            position : position + 3
        ]


def test_draws_are_those_of_their_key():
    """Another key gives others, and the words are pinned for all versions and platforms."""
    assert [CounterRng(5).word() for _ in range(1)] == [1390240659]
    draws = CounterRng(5)
    assert [draws.word() for _ in range(3)] == [1390240659, 801832463, 1224044225]
    assert CounterRng(6).word() != 1390240659


def test_numbers_below_a_bound_are_uniform():
    """All of them, about equally often."""
    draws = CounterRng(1)
    counts = [0] * 10
    for _ in range(20000):
        counts[draws.below(10)] += 1
    assert min(counts) > 1800
    assert max(counts) < 2200
    assert {draws.below(1) for _ in range(9)} == {0}


def test_fractions_are_in_the_unit_interval():
    """With a mean of a half."""
    draws = CounterRng(2)
    found = [draws.random() for _ in range(10000)]
    assert 0 <= min(found)
    assert max(found) < 1
    assert abs(sum(found) / len(found) - 0.5) < 0.02


@pytest.mark.parametrize("length", [0, 1, 2, 17, 1000])
def test_permutations(length):
    """Every number once; another name gives another order."""
    order = permutation(length, "a", 1)
    assert sorted(order) == list(range(length))
    assert order == permutation(length, "a", 1)
    if length > 9:
        assert order != permutation(length, "a", 2)
        assert order != list(range(length))


def test_the_permutation_is_pinned():
    """The same on every version of Python."""
    assert permutation(8, "pinned") == PINNED


PINNED = [5, 1, 7, 0, 3, 2, 4, 6]


def test_permutations_are_even():
    """Each place takes each number about equally often."""
    firsts = [permutation(5, n)[0] for n in range(5000)]
    assert all(900 < firsts.count(n) < 1100 for n in range(5))


def test_a_digest_belongs_to_shard_key_and_draw():
    """Not to the folder or the signature of the url, nor to fields."""
    sample = {"__key__": "k", "__url__": "s3://bucket/a/s-1.tar?X-Amz-Signature=1", "txt": b"x"}
    digest = sample_digest(sample, 1, 2)
    assert digest == sample_digest({**sample, "__url__": "/local/s-1.tar", "txt": b"y"}, 1, 2)
    assert len(digest) == 32
    others = [
        sample_digest({**sample, "__key__": "l"}, 1, 2),
        sample_digest({**sample, "__url__": "s-2.tar"}, 1, 2),
        sample_digest({**sample, "__draw__": 3}, 1, 2),
        sample_digest(sample, 1, 3),
        sample_digest(sample, 1, "2"),
    ]
    assert len({digest, *others}) == 6


def test_draws_of_neighbouring_blocks_are_independent():
    """No word of one block comes again in the next one more often than by chance."""
    draws = CounterRng(random.Random(0).getrandbits(64))
    words = [draws.word() for _ in range(8 * 1024)]
    assert len(set(words)) > len(words) - 8
