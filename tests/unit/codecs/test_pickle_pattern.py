"""The pattern of pickles whose cost is bounded accepts what its plain form accepts, byte for byte."""

import collections
import datetime as dt
import functools
import pickle
import random
import re
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset.codecs import pickle_checks


@functools.cache
def plain_form():
    """Return the pattern with every opcode and length written out."""
    lengths = range(256)
    short = b"|".join(re.escape(bytes([n])) + rb"[\s\S]{%d}" % n for n in lengths)
    long = b"|".join(re.escape(bytes([n, 0, 0, 0])) + rb"[\s\S]{%d}" % n for n in lengths)
    memo = rb"(?:\x94|q[\s\S]|r[\s\S]{4}|p[0-9]+\n)"
    kinds = [rb"[N\x88\x89)]", rb"K[\s\S]", rb"J[\s\S]{4}", rb"G[\s\S]{8}", rb"M[\s\S]{2}", rb"[VFIL][^\n]*\n"]
    kinds += [re.escape(opcode) + b"(?:" + short + b")" for opcode in (b"\x8c", b"C", b"U", b"\x8a")]
    kinds += [opcode + b"(?:" + long + b")" for opcode in (b"X", b"B", b"T")]
    leaf = b"(?:" + b"|".join(kinds) + b")" + memo + b"?+"
    call = memo + b"?R?"
    leaves = rb"%b(?:\x85%b|%b(?:\x86%b|%b\x87%b))?" % (leaf, call, leaf, call, leaf, call)
    other = rb"h[\s\S]|[]}(aesu0ld\x8f\x90\x93]|c[^\n]*\n[^\n]*\n|j[\s\S]{4}|g[0-9]+\n|\)R|\x80[\s\S]|\x95[\s\S]{8}"
    return re.compile(rb"(?:\((?:%b)*t%b|%b|%b|%b)*+" % (leaf, call, leaves, other, memo))


def check(data):
    """Compare how far both go, from several places."""
    pattern = pickle_checks._plain_pattern()
    for at in (0, 1, 2, 3, len(data) // 2):
        ends = [
            None if found is None else found.end() for found in (pattern.match(data, at), plain_form().match(data, at))
        ]
        assert ends[0] == ends[1], (data, at)


VALUES = [
    None, [], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [(1,)] * 9, "x" * 255, "x" * 256, b"y" * 255, b"y" * 256,
    "\n", b"\n" * 200, 2**31, 2**63, -(2**200), 1.5, True, {"a": [1, (2, ("b", None))]}, {1, 2}, frozenset([3]),
    [bytes([n]) * n for n in range(256)], ["é" * n for n in range(140)], bytearray(b"z" * 300), range(3), 1j,
    collections.OrderedDict(a=1), collections.Counter("abc"), collections.deque([1], 3), uuid.UUID(int=7),
    dt.date(2020, 1, 2), np.arange(40), np.float32(1), np.zeros((2, 3), "i2"), [np.arange(3)] * 3,
    functools.partial(print, 1), {n: (n, str(n)) for n in range(300)},
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    """Of all kinds and protocols; whole, cut, and with a byte that was changed."""
    draw = random.Random(protocol)
    for value in VALUES:
        data = pickle.dumps(value, protocol)
        check(data)
        for _ in range(20):
            place = draw.randrange(len(data))
            check(data[:place])
            check(data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :])


TOKENS = st.one_of(
    st.sampled_from([bytes([n]) for n in b"N\x88\x89)](}aesu0ld\x8f\x90\x93\x94t\x85\x86\x87Rb.2o\x81\x92"]),
    st.tuples(st.sampled_from([b"\x8c", b"C", b"U", b"\x8a"]), st.binary(max_size=255)).map(
        lambda pair: pair[0] + bytes([len(pair[1])]) + pair[1]
    ),
    st.tuples(st.sampled_from([b"X", b"B", b"T"]), st.binary(max_size=300)).map(
        lambda pair: pair[0] + len(pair[1]).to_bytes(4, "little") + pair[1]
    ),
    st.tuples(st.sampled_from([b"K", b"h", b"q", b"\x80"]), st.binary(min_size=1, max_size=1)).map(b"".join),
    st.tuples(st.sampled_from([b"J", b"r", b"j"]), st.binary(min_size=4, max_size=4)).map(b"".join),
    st.tuples(st.sampled_from([b"V", b"F", b"I", b"L", b"p", b"g"]), st.binary(max_size=3), st.just(b"\n")).map(
        b"".join
    ),
    st.tuples(st.sampled_from([b"p", b"g"]), st.integers(0, 999)).map(lambda pair: b"%b%d\n" % pair),
    st.tuples(st.just(b"c"), st.binary(max_size=3), st.just(b"\n"), st.binary(max_size=3), st.just(b"\n")).map(
        b"".join
    ),
    st.tuples(st.just(b"G"), st.binary(min_size=8, max_size=8)).map(b"".join),
    st.tuples(st.just(b"M"), st.binary(min_size=2, max_size=2)).map(b"".join),
    st.binary(max_size=4),
)


@given(st.lists(TOKENS, max_size=12).map(b"".join))
@settings(max_examples=400, deadline=None)
def test_any_opcodes(data):
    """In any order, right or not."""
    check(data)
