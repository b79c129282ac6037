"""Batches survive the wire; what cannot be described is refused by name; malformed frames are refused."""

import json
import random
import tracemalloc

import numpy as np
import pytest

from webdataset.core.errors import EncodingError
from webdataset.serving.batch_format import BatchDecoder, BatchEncoder
from webdataset.serving.wire_format import (
    LARGEST_HEADER_BYTES,
    SCHEMAS,
    WireError,
    decode_json,
    decode_message,
    encode_message,
)


def travel(value: object) -> object:
    """Return a value after a journey over the wire."""
    encoder = BatchEncoder()
    described = json.loads(json.dumps(encoder.encode(value)))
    return BatchDecoder([memoryview(bytearray(frame)) for frame in encoder.finish()]).decode(described)


def assert_same(one: object, other: object) -> None:
    """Compare values and their types."""
    assert type(one) is type(other)
    if isinstance(one, dict) and isinstance(other, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    else:
        assert one == other or (one != one and other != other)


BATCHES = [
    {"__key__": ["a", "ü\ud800", ""], "n": np.arange(3), "x": np.zeros((3, 200, 200), np.float32)},
    (np.float16(2), np.bool_(True), 1.5, float("inf"), float("nan"), -(1 << 80), True, None, "text", b"\0bytes"),
    [np.zeros((0, 3), np.uint8), np.array(5, np.complex64), [], (), {}, [b"", b"x"]],
    {3: {"deep": [{"cls": 1}, {"cls": 2.0}]}, "fortran": np.asfortranarray(np.arange(6).reshape(2, 3))},
    [np.full((70000,), n, np.uint8) for n in range(100)],
]


@pytest.mark.parametrize("value", BATCHES)
def test_travel(value: object) -> None:
    """Values and types come as they went, also where there are more large arrays than frames."""
    assert_same(travel(value), value)


def test_arrays_are_writable_views() -> None:
    """A large array is a view of its frame, may be changed in place, and is aligned."""
    encoder = BatchEncoder()
    described = encoder.encode({"x": np.arange(1 << 17, dtype=np.int64)})
    frames = [memoryview(bytearray(frame)) for frame in encoder.finish()]
    found = BatchDecoder(frames).decode(described)["x"]
    found[0] = 77
    assert frames[1][0] == 77
    assert found.flags.aligned


class Thing:
    """An object of a class."""


@pytest.mark.parametrize(
    "value", [Thing(), {1, 2}, np.array([None]), np.array(["a"]), np.zeros(2, "M8[s]"), 1j, range(3)]
)
def test_refused_with_the_field(value: object) -> None:
    """What cannot be described is an error where it is sent, with the field's name."""
    with pytest.raises(EncodingError, match=r"field='thing'"):
        BatchEncoder().encode({"x": np.zeros(3), "thing": [value]})


def test_no_cycles() -> None:
    """A list that holds itself is refused."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(EncodingError, match="nested"):
        BatchEncoder().encode({"endless": endless})


def _mutate(draw: random.Random, node: object) -> object:
    """Return a description with one part changed."""
    if not isinstance(node, list) or not node or draw.random() < 0.2:
        values = [-1, 1 << 40, 1 << 70, "a", "x" * 50, None, [], {}, True, "int64", 1.5, ["a"], "object", "O"]
        return draw.choice(values)
    where = draw.randrange(len(node))
    return [*node[:where], _mutate(draw, node[where]), *node[where + 1 :]]


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_descriptions(seed: int) -> None:
    """A changed description gives a batch or WireError, and never asks for memory beyond its frames."""
    draw = random.Random(seed)
    refused = 0
    for _ in range(1500):
        value = draw.choice(BATCHES[:4])
        encoder = BatchEncoder()
        described = _mutate(draw, encoder.encode(value))
        frames = [memoryview(bytearray(frame)) for frame in encoder.finish()]
        if draw.random() < 0.3:
            frames = [frame[: draw.randrange(len(frame) + 1)] for frame in frames]
        try:
            BatchDecoder(frames).decode(described)
        except WireError:
            refused += 1
    assert refused > 500


def test_messages() -> None:
    """A header comes as it went; another kind, other entries, other types and other frames are refused."""
    header = encode_message("CREDIT", nonce=5, to=9)
    assert decode_message([header], ["CREDIT"]) == ({"kind": "CREDIT", "nonce": 5, "to": 9}, None)
    bad = [
        [],
        [header, b""],
        [b""],
        [b"\x80\x04."],
        [b"[" * 60000],
        [b'{"a":' * 10000],
        [b'"' + b"x" * LARGEST_HEADER_BYTES + b'"'],
        [b"9" * 5000],
        [b'{"kind":"CREDIT","nonce":5,"to":NaN}'],
        [b'{"kind":"CREDIT","nonce":5}'],
        [b'{"kind":"CREDIT","nonce":5,"to":9,"more":1}'],
        [b'{"kind":"CREDIT","nonce":true,"to":9}'],
        [b'{"kind":"CREDIT","nonce":-1,"to":9}'],
        [b'{"kind":["CREDIT"],"nonce":1,"to":9}'],
        [b'{"kind":"OPEN"}'],
        [header] * 70,
    ]
    for frames in bad:
        with pytest.raises(WireError):
            decode_message(frames, ["CREDIT"])


def test_closed_schemas() -> None:
    """A message is made only with the entries of its kind."""
    with pytest.raises(WireError):
        encode_message("BYE", seconds=1, more=2)
    assert "seconds" in SCHEMAS["BYE"]


def test_depth_within_texts() -> None:
    """Brackets in texts are no nesting, escaped quotes do not end a text."""
    text = '\\"' + "[{" * 500
    assert decode_json(json.dumps({"a": text}).encode(), 1 << 16) == {"a": text}


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_the_deepest_json(brackets: str) -> None:
    """As many levels as are allowed come, one more is refused, whatever stands beside them."""
    begin, end = ("[", "]") if brackets == "[]" else ('{"a\\\\":', "}")
    for depth in (1, 63, 64, 65, 5000):
        encoded = f"[[], {begin * (depth - 1)}{brackets}{end * (depth - 1)}]".encode()
        if depth < 64:
            assert decode_json(encoded, 1 << 20)
        else:
            with pytest.raises(WireError, match="deeper than 64"):
                decode_json(encoded, 1 << 20)


@pytest.mark.parametrize(
    "text", ["a" * (1 << 21), "\n" * (1 << 20), "[" * (1 << 21)], ids=["plain", "escaped", "brackets"]
)
def test_memory_of_long_texts(text: str) -> None:
    """Looking at a message takes a few times its size."""
    encoded = json.dumps([text]).encode()
    tracemalloc.start()
    try:
        assert decode_json(encoded, 1 << 22) == [text]
        assert tracemalloc.get_traced_memory()[1] < 8 * len(encoded)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(3))
def test_fuzzed_headers(seed: int) -> None:
    """Random changes of headers give a message or WireError."""
    draw = random.Random(seed)
    given = encode_message("HELLO", version=1), encode_message("CLOSE", nonce=3)
    refused = 0
    for _ in range(2000):
        frame = bytearray(draw.choice(given))
        for _ in range(draw.randrange(1, 4)):
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        try:
            decode_message([bytes(frame)], ["HELLO", "CLOSE"])
        except WireError:
            refused += 1
    assert refused > 500
