"""Files of some frames of another: their tables, and what a demultiplexer makes of them."""

import io

import numpy as np
import pytest

from support.video_files import find_box, make_file
from webdataset.codecs.media import frame_seek
from webdataset.codecs.media.mp4_boxes import Box, make_box
from webdataset.codecs.media.mp4_clip_file import make_clip_file
from webdataset.codecs.media.mp4_samples import read_track

av = pytest.importorskip("av")

from webdataset.codecs.media.video_decode import Video  # noqa: E402


def read(content):
    """Return the track of a file."""
    start, stop = find_box(content, b"moov")
    return read_track(content, Box(b"moov", start, start + 8, stop))


def cut(name, key, frames=None):
    """Return samples of a file from one of its key frames on, and a file of them."""
    content = make_file(name)
    track = read(content)
    start = int(np.flatnonzero(track.samples.is_key)[key])
    samples = track.samples.cut(start, 40 if frames is None else start + frames)
    payload = b"".join(content[at : at + size] for at, size in zip(samples.offsets, samples.sizes, strict=True))
    return samples, make_clip_file(make_box(b"ftyp", b"isom", bytes(4)), track, samples, payload)


@pytest.mark.parametrize("name", ["b_frames", "open_gop", "negative_ctts", "vfr", "sound", "all_keys"])
@pytest.mark.parametrize(("key", "frames"), [(0, None), (1, 8), (1, 1), (-1, None)])
def test_tables_of_the_file_are_those_of_its_frames(name, key, frames):
    """Sizes, key frames and times are kept, no frame is shown before it is decoded, and times lead back."""
    samples, file = cut(name, key, frames)
    again = read(file.content).samples
    again.check(len(file.content))
    assert again.sizes.tolist() == samples.sizes.tolist()
    assert again.is_key.tolist() == samples.is_key.tolist()
    assert (again.times + file.start_time).tolist() == samples.times.tolist()
    assert (again.times >= again.decode_times).all()
    with av.open(io.BytesIO(file.content)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        assert [packet.pts + file.start_time for packet in packets] == samples.times.tolist()
        assert [packet.is_keyframe for packet in packets] == samples.is_key.tolist()


def test_frames_before_the_first_key_frame_have_no_number():
    """Where a file begins with frames that refer to what is not there, frames are counted by decoding them."""
    samples, file = cut("open_gop", 1)
    assert samples.times.min() < samples.times[0]
    video = Video(file.content)
    assert video._scan_frames() is None  # noqa: SLF001
    whole = list(video.frames())
    assert video.count_frames() == len(list(video)) >= len(whole)
    clips = list(video.clips(2, step=11))
    shown = list(video._pictures(-np.inf, None))  # noqa: SLF001
    assert [clip.seconds[0] for clip in clips] == [seconds for seconds, _ in shown][: len(shown) - 1 : 11]


def test_seeking_beyond_a_frame_is_noticed():
    """Where a container goes to a later key frame than it was asked to, nothing is taken for the frame."""
    with av.open(io.BytesIO(make_file("b_frames"))) as container:
        stream = container.streams.video[0]
        scan = frame_seek.scan_frames(container, stream)
        later = scan._replace(seek_times=scan.seek_times + 10 * 512)
        with pytest.raises(frame_seek.LostFrameError):
            list(frame_seek.decode_numbers(container, stream, later, [5]))
