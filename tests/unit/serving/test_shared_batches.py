"""Batches in memory files: what was put in comes out, and a wrong description is an error."""

import copy
import os
import sys

import numpy as np
import pytest

from webdataset.core.errors import EncodingError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared streams need Linux")

BATCH = {
    "x": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "strided": np.arange(24)[::2],
    "empty": np.empty((0, 3), np.int16),
    "flags": np.array([True, False]),
    "words": np.array(["a", "bcd"]),
    "__key__": ["a", "b\ud800", ""],
    "long": ["x" * 5000, "é"],
    "raw": [b"", b"\0\1", b"x" * 100],
    "one": "text",
    "bytes": b"bytes",
    "ragged": [np.zeros(3), np.zeros((2, 2), np.uint8)],
    "mixed": [1, "a", None, 2.5, True],
    "numbers": [1, 2, 1 << 70],
    "nested": ({"a": {"b": [(1, np.float16(3))]}}, ()),
    "none": None,
    3: 4,
}


def share(batch, *, writable=False):
    """Return a batch as another process receives it, with both sides."""
    from webdataset.serving.shared_batches import ReceivedBatches, SharedBlocks, encode_batch  # noqa: PLC0415  Linux only

    blocks = SharedBlocks()
    encoded = encode_batch(batch, blocks)
    received = ReceivedBatches(writable=writable)
    for number in encoded.blocks:
        descriptor, size = blocks.file(number)
        received.map_block(number, size, descriptor)
    return encoded, received, blocks


def same(one, two):
    """Tell whether two values are equal, with their types."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def test_values_come_back():
    """Arrays, texts, bytes, numbers and what holds them are the same on the other side."""
    encoded, received, blocks = share(BATCH)
    assert same(received.decode(1, encoded.node, encoded.blocks), BATCH)
    assert list(received.collect_returns()) == [1]
    blocks.close()


def test_a_batch_is_given_back_when_nothing_refers_to_it():
    """One view of one array keeps it."""
    encoded, received, blocks = share(BATCH)
    view = received.decode(1, encoded.node, encoded.blocks)["x"][1:]
    assert list(received.collect_returns()) == []
    del view
    assert list(received.collect_returns()) == [1]
    blocks.close()


def test_pages_written_to_are_dropped():
    """What a receiver wrote does not hide the next content of the block."""
    encoded, received, blocks = share({"x": np.zeros(1 << 16, np.uint8)}, writable=True)
    batch = received.decode(1, encoded.node, encoded.blocks)
    batch["x"][:] = 7
    own = encoded.keep[-1]
    assert not own.any()
    own[:] = 9
    assert (batch["x"] == 7).all()
    del batch
    assert list(received.collect_returns()) == [1]
    assert (received.decode(2, encoded.node, encoded.blocks)["x"] == 9).all()
    blocks.close()


def test_receivers_cannot_write_to_the_file():
    """The file of a block is sealed: no writing, no shared writable map, no other size."""
    import mmap  # noqa: PLC0415  here alone

    encoded, _, blocks = share(BATCH)
    descriptor, size = blocks.file(encoded.blocks[0])
    with pytest.raises(PermissionError):
        os.write(descriptor, b"x")
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, size)
    for changed in (size // 2, size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, changed)
    blocks.close()


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([None]), {(1, 2): 3}, np.zeros(1, "M8[s]"), 1j])
def test_values_that_are_refused(value):
    """The error names the field, and what to do."""
    with pytest.raises(EncodingError, match=r"take the field out.*field='a\.b\[1\]"):
        share({"a": {"b": [1, value]}})


def mutations(node):
    """Yield nodes with one place changed to something wrong."""
    for change in (None, -1, "O", [], {}, 1 << 60, [1 << 60, 3], "x" * 10):
        for path in paths(node):
            changed = copy.deepcopy(node)
            place = changed
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = change
            yield changed


def paths(node, here=()):
    """Yield the path of each place in a node."""
    for step, each in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*here, step)
        if isinstance(each, dict | list):
            yield from paths(each, (*here, step))


def test_wrong_descriptions():
    """Each is an error of its own kind or a batch within bounds, never a crash; and its memory is given back."""
    from webdataset.serving.unix_channel import ChannelError  # noqa: PLC0415  Linux only

    encoded, received, blocks = share(BATCH)
    refused = 0
    for number, node in enumerate(mutations(encoded.node)):
        try:
            received.decode(number, node, encoded.blocks)
        except ChannelError:
            refused += 1
        assert list(received.collect_returns()) == [number]
    assert refused > 500
    with pytest.raises(ChannelError):
        received.decode(0, encoded.node, [99])
    with open(os.devnull) as file, pytest.raises(ChannelError):
        received.map_block(5, 100, file.fileno())
    blocks.close()
