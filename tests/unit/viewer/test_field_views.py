"""How fields are described for the page: their kinds, texts, values, headers, and how much of them is read."""

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.media_fields import (
    FIELDS,
    encode_image,
    encode_npy,
    encode_npz,
    encode_safetensors,
    encode_sound,
    encode_video,
    encode_wav,
)
from webdataset.viewer.field_views import CARD_BYTES, describe_field, describe_full
from webdataset.viewer.plain_values import bound_json


class Payload:
    """A payload that notes what was read of it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reach = 0

    def read(self, start: int, stop: int) -> bytes:
        """Return a range."""
        self.reach = max(self.reach, stop)
        return self.content[start:stop]


def card(name: str, content: bytes) -> dict:
    """Describe a field, as the page gets it."""
    payload = Payload(content)
    found = describe_field(name, len(content), payload.read)
    assert payload.reach <= CARD_BYTES
    return json.loads(json.dumps(found, allow_nan=False).encode())


def full(name: str, content: bytes) -> dict:
    """Describe a whole field, as the page gets it."""
    found = describe_full(name, len(content), Payload(content).read)
    return json.loads(json.dumps(found, allow_nan=False, ensure_ascii=False).encode())


KINDS = {
    "jpg": "image", "exif.jpg": "image", "cmyk.jpg": "image", "png": "image", "deep.png": "image", "mask.png": "image",
    "gif": "image", "webp": "image", "avif": "image", "tiff": "image", "ppm": "image", "bmp": "image", "npy": "array",
    "npz": "array", "safetensors": "array", "wav": "audio", "flac": "audio", "mp3": "audio", "ogg": "audio",
    "mp4": "video", "webm": "video", "json": "document", "txt": "text", "html": "html", "svg": "svg", "cls": "class",
    "pkl": "pickle", "json.gz": "json",
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_each_kind_is_told_by_its_extension_and_content(name):
    """Real fields of every format have the kind of their content, and nothing odd is said."""
    found = card(name, FIELDS[name]())
    assert found["kind"] == KINDS[name]
    assert "note" not in found or name == "pkl"


@pytest.mark.parametrize(
    "name", [name for name in FIELDS if KINDS[name] in ("image", "audio", "video") and name != "ppm"]
)
def test_media_without_an_extension_are_told_by_content(name):
    """A field of an extension that says nothing has the kind of its first bytes."""
    if name not in ("mp3", "bmp"):
        assert card("thing", FIELDS[name]())["kind"] in (KINDS[name], "audio" if name == "ogg" else KINDS[name])


@pytest.mark.parametrize(
    ("name", "content", "kind", "word"),
    [
        ("jpg", b"<!DOCTYPE html><html>404</html>", "html", "HTML"),
        ("jpg", b"Not found", "text", "text"),
        ("png", b"<svg xmlns=''/>", "svg", "SVG"),
        ("txt", b"<html>page</html>", "text", None),
        ("jpg", encode_npy(np.zeros(3)), "array", "array"),
        ("txt", encode_image("PNG"), "image", "image"),
        ("json", encode_image("JPEG"), "image", "image"),
        ("wav", encode_image("JPEG"), "image", "image"),
        ("cls", b"cat", "class", None),
        ("pkl", encode_image("JPEG"), "pickle", "never loaded"),
        ("bin", b"\0\1\2", "binary", None),
        ("bin", b"words", "text", None),
        ("jpg", b"\0\1\2\3", "image", None),
    ],
)
def test_content_that_is_not_what_the_extension_says_is_told(name, content, kind, word):
    """The bytes win, and a note says what they are; pickles stay what they are called."""
    found = card(name, content)
    assert found["kind"] == kind
    assert (word or "") in found.get("note", "")
    assert (word is None) == ("note" not in found)


def test_texts_in_any_encoding_are_shown():
    """UTF-8 with and without its mark, UTF-16, and bytes that are neither: shown with replacement, and told."""
    assert card("txt", "h\xe9".encode())["text"] == "h\xe9"
    assert card("txt", b"\xef\xbb\xbfx") == {
        "name": "txt", "size_bytes": 4, "kind": "text", "text": "x", "truncated": False,
    }  # fmt: skip
    assert card("txt", "h\xe9".encode("utf-16"))["text"] == "h\xe9"
    assert card("txt", "h\xe9".encode("utf-16"))["encoding"] == "UTF-16-LE"
    latin = card("txt", "h\xe9llo".encode("latin-1"))
    assert latin["text"] == "h\N{REPLACEMENT CHARACTER}llo"
    assert "not UTF-8" in latin["encoding"]
    assert card("txt", b"\xff\xfe\x00\xd8x\0")["text"].endswith("x")


def test_long_texts_are_cut_between_characters():
    """Cards have 300 characters, details 256 KiB, and a character at the cut does not make the text look damaged."""
    content = ("\N{SNOWMAN}" * 200_000).encode()
    assert card("txt", content)["text"] == "\N{SNOWMAN}" * 300
    whole = full("txt", content)
    assert whole["truncated"]
    assert set(whole["text"]) == {"\N{SNOWMAN}"}
    assert "encoding" not in whole
    assert full("txt", content[:3000])["truncated"] is False


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"7\n", 7), (b"-3", -3), (b"0.5", 0.5), (b"1e3", 1000.0), (b"cat", "cat"), (b"1e999", "1e999"),
     (b"9" * 30, "9" * 30), (b"nan", "nan"), (b"", ""), ("\u0663".encode(), "\u0663")],
)  # fmt: skip
def test_classes_have_values(content, value):
    """Numbers are numbers where JavaScript can hold them, else texts."""
    found = card("cls", content)
    assert found["value"] == value
    assert type(found["value"]) is type(value)


def test_json_is_bounded_in_depth_length_and_numbers():
    """Deep, long and odd JSON is cut or told, never an exception; what comes out can be written as strict JSON."""
    deep = b"[" * 400 + b"]" * 400
    assert full("json", deep)["truncated"]
    for hostile in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 200_000, b"[1,", b"\xff\xfe", b""):
        found = full("json", hostile)
        assert found["kind"] == "json"
        assert "json" not in found or hostile == b"9" * 200_000
    odd = full("json", b'{"a": NaN, "b": 1e999, "c": 12345678901234567890, "d": "\\ud800", "\\udfff": 1}')
    assert odd["json"] == {
        "a": "nan", "b": "inf", "c": "12345678901234567890", "d": "\N{REPLACEMENT CHARACTER}",
        "\N{REPLACEMENT CHARACTER}": 1,
    }  # fmt: skip
    many = full("json", json.dumps(list(range(200_000))).encode())
    assert many["truncated"]
    assert len(many["json"]) <= 50_000 if "json" in many else "text" in many
    assert full("json", b'{"a": "%s"}' % (b"x" * 100_000))["truncated"]
    assert card("json", b"3")["value"] == 3
    assert "no JSON" in card("json", b"{'a': 1}")["note"]


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None))


@settings(max_examples=60, deadline=None)
@given(st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))
def test_any_json_value_can_be_sent(value):
    """Whatever a parser gave is written as strict JSON in UTF-8, and ordinary values are unchanged."""
    found, complete = bound_json(value)
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    assert complete
    text = json.dumps(value)
    if not any(word in text for word in ("NaN", "Infinity", "\\ud")) and all(abs(n) < 2**53 for n in _integers(value)):
        assert found == value


def _integers(value: object) -> list[int]:
    if isinstance(value, dict | list):
        return [n for part in (value.values() if isinstance(value, dict) else value) for n in _integers(part)]
    return [value] if isinstance(value, int) else []


def test_compressed_fields_are_described_by_what_is_in_them():
    """One layer or two, a bomb, damage: the content's kind, or a note."""
    assert card("json.gz", gzip.compress(b'{"a": 1}'))["text"] == '{"a": 1}'
    assert card("txt.gz.gz", gzip.compress(gzip.compress(b"hi")))["text"] == "hi"
    bomb = gzip.compress(gzip.compress(bytes(1 << 27)))
    assert card("txt.gz.gz", bomb)["truncated"]
    assert "note" in card("txt.gz", b"no gzip at all")
    assert "note" in full("json.zst", b"\x28\xb5\x2f\xfd damaged")


def test_headers_of_arrays_are_read_without_their_numbers():
    """Shapes and types of npy, npz and safetensors; damaged ones are told."""
    assert card("npy", encode_npy(np.zeros((3, 4), np.int16)))["media"] == {"shape": [3, 4], "dtype": "<i2"}
    arrays = full("npz", encode_npz(a=np.zeros((2, 3)), b=np.float32(1)))["arrays"]
    assert arrays == [{"name": "a", "shape": [2, 3], "dtype": "<f8"}, {"name": "b", "shape": [], "dtype": "<f4"}]
    header = {"__metadata__": {"x": "y"}, "w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    assert full("safetensors", encode_safetensors(header, bytes(4)))["arrays"] == [
        {"name": "w", "shape": [2], "dtype": "BF16"}
    ]
    many = full("npz", encode_npz(**{f"a{number}": np.zeros(1) for number in range(100)}))
    assert len(many["arrays"]) == 64
    assert "36 more" in many["note"]
    for name in ("npz", "safetensors"):
        assert full(name, b"\xff" * 100)["arrays"] == []
        assert "cannot be read" in full(name, b"\xff" * 100)["note"]
    assert "never loaded" in card("pth", b"PK\3\4")["note"]


def test_headers_of_sound_and_video_tell_duration_rate_and_size():
    """Durations by headers equal those of the samples that were written."""
    samples = np.zeros((4000, 2), np.int16)
    expected = {"duration_seconds": 0.5, "rate": 8000, "channels": 2}
    assert card("wav", encode_wav(samples))["media"] == expected
    planes = np.zeros((2, 4000), np.float32)
    assert card("flac", encode_sound("flac", planes))["media"] == expected
    assert full("ogg", encode_sound("ogg", planes))["media"] == expected
    mp3 = full("mp3", encode_sound("mp3", np.zeros((1, 80_000), np.float32)))["media"]
    assert math.isclose(mp3["duration_seconds"], 10, rel_tol=0.05)
    assert (mp3["rate"], mp3["channels"]) == (8000, 1)
    opus = full("opus", encode_sound("opus", planes))["media"]
    assert math.isclose(opus["duration_seconds"], 0.5, rel_tol=0.1)
    video = full("mp4", encode_video())["media"]
    assert (video["width"], video["height"]) == (64, 48)
    assert math.isclose(video["duration_seconds"], 0.5, rel_tol=0.01)
    assert full("wav", encode_wav(samples)[:30])["kind"] == "audio"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_field_whatever_its_bytes_raises_or_is_unbounded(data):
    """Real fields, changed, cut and under other names: a description that can be sent, from 64 KiB at most."""
    names = st.sampled_from(list(FIELDS))
    content = bytearray(_known(data.draw(names)))
    for _ in range(data.draw(st.integers(0, 6))):
        if content:
            content[data.draw(st.integers(0, min(len(content), 600) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    name = data.draw(names | st.text(max_size=8))
    found = card(name, bytes(content[:cut]))
    assert len(found.get("text", "")) <= 300
    assert full(name, bytes(content[:cut]))["kind"]


_made: dict[str, bytes] = {}


def _known(name: str) -> bytes:
    return _made.setdefault(name, FIELDS[name]())
