"""How many bytes samples hold."""

from dataclasses import dataclass

import numpy as np
import pytest

from webdataset.stages.shuffle import sample_size_bytes


@dataclass
class Pair:
    """A sample of the user's."""

    first: bytes
    second: str


@pytest.mark.parametrize(
    ("value", "bytes_held"),
    [
        (b"abc", 3),
        ("abcd", 4),
        (bytearray(7), 7),
        (object, 64),
        (object(), 64),
        (Pair(b"abc", "d"), 4),
        (5, 8),
        (None, 8),
        (np.zeros((3, 4), np.float32), 48),
        ({"a": b"xy", "b": {"c": b"z"}}, 3),
        ([b"xy", (b"z", 1)], 11),
        ({"a": np.zeros(5, np.uint8), "__key__": "k", "__url__": "/long/path"}, 5),
    ],
)
def test_sizes(value, bytes_held):
    """Payloads of every usual kind."""
    assert sample_size_bytes(value) == bytes_held


def test_images_count_their_pixels():
    """Width, height, bands."""
    image = pytest.importorskip("PIL.Image").new("RGB", (10, 20))
    assert sample_size_bytes({"jpg": image}) == 600


def test_kinds_of_dictionaries():
    """Subclasses too."""

    class Sample(dict):
        pass

    assert sample_size_bytes(Sample(a=b"abc")) == 3
