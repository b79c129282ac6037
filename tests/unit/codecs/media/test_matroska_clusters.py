"""Matroska files by ranges: indexes of every form, and files that have none or a wrong one."""

import re

import numpy as np
import pytest

from support.video_files import make_file
from webdataset.core.errors import DecodingError, UsageError

pytest.importorskip("av")

from webdataset.codecs.media.ranged_video import RangedVideo  # noqa: E402
from webdataset.codecs.media.video_decode import Video  # noqa: E402

CUES, SEEK_HEAD, CLUSTER = b"\x1c\x53\xbb\x6b", b"\x11\x4d\x9b\x74", b"\x1f\x43\xb6\x75"


def element(kind, *parts):
    """Return an element; sizes are written in 8 bytes."""
    content = b"".join(parts)
    return kind + (1 << 56 | len(content)).to_bytes(8, "big") + content


def take(content, start=0.5, stop=0.9):
    """Return a clip, and whether the file was read whole for it."""
    read = []

    def read_at(at, size):
        assert at >= 0
        assert size >= 0
        read.append((at, size))
        return content[at : at + size]

    clip = RangedVideo(read_at, len(content), probe_bytes=256).clip(start, stop)
    return clip, (0, len(content)) in read


def is_right(clip, content, start=0.5, stop=0.9):
    """Tell whether a clip is that of the whole file."""
    whole = Video(content).clip(start, stop)
    return np.array_equal(clip.frames, whole.frames) and np.array_equal(clip.seconds, whole.seconds)


def change_index(content, change):
    """Return a file with another index of the same size."""
    at = content.rindex(CUES)
    changed = content[:at] + change(content[at:])
    assert len(changed) == len(content)
    return changed


@pytest.mark.parametrize("name", ["mkv", "mkv_open_gop", "mkv_sound", "webm"])
def test_indexes_without_places_in_clusters(name):
    """Where the index names clusters only, a clip begins with the first frame of one, and is right."""
    content = make_file(name)
    bare = change_index(content, lambda cues: re.sub(rb"\xf0(?=[\x81-\x84])", b"\xec", cues))
    assert bare != content
    for start, stop in ((0.0, 0.2), (0.5, 0.9), (0.97, 1.3), (1.2, None)):
        clip, _ = take(bare, start, stop)
        assert is_right(clip, content, start, stop)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace(CUES, b"\x1c\x53\xbb\x6c"),
        lambda content: content.replace(SEEK_HEAD, b"\x11\x4d\x9b\x75"),
        lambda content: change_index(content, lambda cues: cues.replace(b"\xf7\x81\x01", b"\xf7\x81\x02")),
    ],
    ids=["no index", "no way to it", "of another track"],
)
def test_files_without_an_index_are_read_whole(change):
    """Without an index of the video track, the whole file decides."""
    content = change(make_file("mkv"))
    clip, whole = take(content)
    assert whole
    assert is_right(clip, content)


def test_an_index_that_leads_elsewhere():
    """Places that are no cluster, in the middle of a block, or beyond the file are errors or the whole file."""
    content = make_file("mkv")
    assert not take(content)[1]
    for pattern, replacement in (
        (rb"\xf1\x82..", b"\xf1\x82\x00\x50"),
        (rb"\xf1\x82..", b"\xf1\x82\xff\xf0"),
        (rb"\xf0\x82..", b"\xf0\x82\x00\x77"),
        (rb"\xf0\x82..", b"\xf0\x82\xff\xff"),
    ):
        wrong = change_index(content, lambda cues: re.sub(pattern, replacement, cues, flags=re.DOTALL))  # noqa: B023
        assert wrong != content
        try:
            clip, whole = take(wrong)
        except DecodingError:
            continue
        assert whole
        assert is_right(clip, content)


def test_a_wrong_time_in_the_index_is_noticed():
    """Where no key frame of that time is in the cluster, the whole file decides."""
    content = make_file("mkv_open_gop")
    wrong = change_index(content, lambda cues: cues.replace(b"\xb3\x82\x01\x40", b"\xb3\x82\x01\x41"))
    assert wrong != content
    clip, whole = take(wrong, 0.5, 0.6)
    assert whole
    assert is_right(clip, content, 0.5, 0.6)


def test_two_key_frames_of_one_time():
    """An index that names a time twice does not tell where decoding begins: the whole file decides."""
    content = make_file("mkv_open_gop")
    wrong = change_index(content, lambda cues: cues.replace(b"\xb3\x82\x02\x80", b"\xb3\x82\x01\x40"))
    assert wrong != content
    clip, whole = take(wrong, 0.7, 0.9)
    assert whole
    assert is_right(clip, content, 0.7, 0.9)


def test_elements_that_cannot_be_are_errors():
    """Files that end within a header, without a segment, without tracks, or with sound only."""
    head = element(b"\x1a\x45\xdf\xa3", b"")
    info = element(b"\x15\x49\xa9\x66", b"")
    sound = element(b"\x16\x54\xae\x6b", element(b"\xae", b"\xd7\x81\x01\x83\x81\x02"))
    cluster = element(CLUSTER, b"\xe7\x81\x00")
    for content in (
        head,
        head + b"\x18\x53\x80\x67",
        head + element(b"\x18\x53\x80\x68", b"abc"),
        head + element(b"\x18\x53\x80\x67", info, cluster),
        head + element(b"\x18\x53\x80\x67", info, sound, cluster),
        head + element(b"\x18\x53\x80\x67", b"\xec\x82\x00" * 5000, cluster),
        head + b"\x18\x53\x80\x67" + (1 << 56 | 1 << 40).to_bytes(8, "big"),
    ):
        with pytest.raises((DecodingError, UsageError)):
            take(content)
