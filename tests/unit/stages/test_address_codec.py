"""Addresses packed into texts come back as they were, and small."""

import base64
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset.core.errors import StateMismatch
from webdataset.core.json_types import Address
from webdataset.samples.address import CheckedAddress
from webdataset.stages.address_codec import decode_addresses, encode_addresses, flatten_address

NUMBERS = st.integers(-(1 << 62), (1 << 62))
ROW = st.tuples(st.integers(0, 5000), st.integers(0, 9), st.integers(0, 1 << 40).map(lambda n: n * 512))
NESTED = st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 9), ROW))
ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda parts: st.lists(parts))


def listed(address):
    """Return an address as JSON has it."""
    return [listed(part) for part in address] if isinstance(address, tuple | list) else address


@settings(max_examples=60, deadline=None)
@given(st.one_of(*(st.lists(kind, max_size=40) for kind in (NUMBERS, ROW, NESTED, ANY))), st.booleans())
def test_back_again(addresses, in_order):
    """Whatever the addresses, sorted or not: the same, in the same order."""
    assert decode_addresses(encode_addresses(addresses, in_order=in_order)) == listed(addresses)


@pytest.mark.parametrize("most", [n + step for n in (1 << 8, 1 << 16, 1 << 32) for step in (-1, 0, 1)])
def test_widths(most):
    """Numbers at the ends of what one, two and four bytes hold."""
    for addresses in ([0, most], [0, 0, most], [0, most, 1], [most, 0, 7, most]):
        assert decode_addresses(encode_addresses(addresses)) == addresses
        assert decode_addresses(encode_addresses([[one, 0] for one in addresses])) == [[one, 0] for one in addresses]


def buffer(count, size):
    """Return the addresses in a shuffle buffer behind many samples of some size."""
    draws, held, offset = random.Random(1), [], 0
    for ordinal in range(count * 5):
        address = CheckedAddress(ordinal // 20_000, ordinal % 20_000, offset, ordinal * 2654435761 % 2**32 >> 26)
        offset += 1024 + draws.randrange(size // 2, size * 2) // 512 * 512
        if len(held) < count:
            held.append(address)
        else:
            held[draws.randrange(count)] = address
    return held


@pytest.mark.parametrize(("size", "most"), [(2_000, 51_000), (100_000, 60_000)])
def test_size(size, most):
    """The addresses of 10 000 samples take less than 64 KB in any order, and 40 KB in their own."""
    held = buffer(10_000, size)
    assert decode_addresses(encode_addresses(held)) == listed(held)
    assert len(encode_addresses(held)) < most
    assert len(encode_addresses(sorted(held), in_order=True)) < 40_000


def test_flat():
    """The numbers of nested addresses, in order; anything else has none."""
    assert flatten_address(CheckedAddress(1, 2, 3, 4)) == (1, 2, 3, 4)
    assert flatten_address([1, [2, (3, 4)]]) == (1, 2, 3, 4)
    assert flatten_address(7) == (7,)
    others: list[Address] = ["text", None, [1, "a"], 1.5]
    for other in others:
        with pytest.raises(TypeError):
            flatten_address(other)


@pytest.mark.parametrize(
    "text",
    [
        "!",
        "AAAA",
        base64.b64encode(zlib.compress(b"")).decode(),
        base64.b64encode(zlib.compress(b"\1[0,2,true,[[1,0,0,1]]]\n")).decode(),
        base64.b64encode(zlib.compress(b"\1[0,2,true,[[1,0,0,1]]]\n1234")).decode(),
        base64.b64encode(zlib.compress(b"\0{")).decode(),
        3,
    ],
)
def test_what_is_no_such_text(text):
    """Anything else is a StateMismatch."""
    with pytest.raises(StateMismatch):
        decode_addresses(text)
