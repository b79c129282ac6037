"""Durations, rates and sizes by headers equal those of what was encoded."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.media_fields import encode_sound, encode_wav
from webdataset.inspection.expression import Expression
from webdataset.inspection.field_preview import name_kind
from webdataset.inspection.media_header import MEDIA_FIELDS, read_media_duration, read_media_header

pytest.importorskip("av")
FRAMES = np.zeros((10, 48, 64, 3), np.uint8)


def encode(kind):
    """A video of a second, ten frames of 64 x 48 pixels, with sound where the format holds any."""
    from webdataset.codecs.media.video_encode import encode_video

    if kind == "webm":
        return encode_video((FRAMES, 10.0), kind)
    return encode_video((FRAMES, np.zeros((2, 16_000), np.float32), {"video_fps": 10.0, "audio_fps": 16_000}), kind)


def read_from(content, reads=None):
    """A function that reads ranges, and notes them."""

    def read(start, stop):
        if reads is not None:
            reads.append((start, stop))
        return content[start:stop]

    return read


@pytest.mark.parametrize("kind", ["mkv", "webm", "mp4", "mov"])
def test_videos(kind):
    """Each container, from its head alone or from ranges."""
    content = encode(kind)
    found = read_media_header(content[:4096], len(content), read_from(content))
    assert (found["width"], found["height"]) == (64, 48)
    assert math.isclose(found["duration_seconds"], 1.0, rel_tol=0.01)
    assert read_media_duration(read_from(content), len(content)) == found["duration_seconds"]
    if kind == "mkv":
        assert (found["rate"], found["channels"]) == (16_000, 2)


def test_a_movie_box_at_the_end_costs_a_few_reads():
    """Of a long film whose movie box stands after the pictures, the pictures are not read."""
    content = encode("mp4")
    at = content.index(b"moov") - 4
    pictures = (8 + (40 << 20)).to_bytes(4, "big") + b"free" + bytes(40 << 20)
    moved = content[:at] + pictures + content[at:]
    reads = []
    assert read_media_duration(read_from(moved, reads), len(moved)) == pytest.approx(1.0, rel=0.01)
    assert len(reads) < 12
    assert sum(min(stop, len(moved)) - start for start, stop in reads) < 64 << 10


def test_expressions():
    """``duration`` is a function of a field by its name, and what a field has."""
    sample = {"wav": encode_wav(np.zeros((4000, 1), np.int16)), "flac": b"fLaC", "x.mp3": b"", "mkv": encode("mkv")}
    for text, expected in [
        ("duration('wav')", 0.5), ("wav.duration == 0.5", True), ("duration('flac')", None), ("duration('none')", None),
        ("duration('x.mp3') is None", True), ("mkv.duration > 0.9 and mkv.duration < 1.1", True),
    ]:  # fmt: skip
        assert Expression(text).evaluate(sample, key="k", shard="s.tar") == expected, text


def test_what_is_not_known():
    """A video that was streamed has no duration in its header; other content has none either."""
    assert read_media_header(b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\x01" + b"\xff" * 7, 100, None) == {}
    assert read_media_duration(read_from(b"nothing of the kind"), 19) is None


KNOWN = [encode_wav(np.zeros((40, 1), np.int16)), encode("mkv"), encode("mp4")]
KNOWN += [encode_sound(kind, np.zeros((1, 400), np.float32)) for kind in ("flac", "ogg")]


@example(b"\x1aE\xdf\xa3" + b"\x80" * 40)
@given(
    st.builds(
        lambda whole, changes, cut: bytes(
            changes.get(place, byte) for place, byte in enumerate(whole[: len(whole) - cut])
        ),
        st.sampled_from(KNOWN),
        st.dictionaries(st.integers(0, 300), st.integers(0, 255), max_size=6),
        st.integers(0, 400),
    )
)
@settings(max_examples=300)
def test_hostile_headers(content):
    """Whatever the bytes, the answer is finite, and few ranges are read."""
    reads = []
    found = read_media_header(content[:4096], len(content), read_from(content, reads))
    assert all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in found.values())
    assert len(reads) <= 300


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("jpg", "image"), ("seg.PNG", "image"), ("wav", "audio"), ("mp4", "video"), ("json.gz", "json"),
        ("txt", "text"), ("cls", "class"), ("npy.zst", "array"), ("pth", "pickle"), ("gz", None),
        ("blob", None), ("a.svgz", "svg"),
    ],
)  # fmt: skip
def test_kinds_by_name(field, kind):
    """The last component counts, before those of compression."""
    assert name_kind(field) == kind
    if kind in ("audio", "video"):
        assert field in MEDIA_FIELDS
