"""Parts of videos by ranges: the frames of a whole decode, few bytes, and typed errors for hostile tables."""

import io
import struct

import numpy as np
import pytest

from support.video_files import FILES, box, change_edit, chunk_places, make_file, make_video, outer_boxes, replace_box
from webdataset.core.errors import DecodingError, FieldTooLarge, UsageError

av = pytest.importorskip("av")

from webdataset.codecs.media.frame_table import Segment  # noqa: E402
from webdataset.codecs.media.mp4_samples import MediaSamples  # noqa: E402
from webdataset.codecs.media.ranged_video import RangedVideo  # noqa: E402
from webdataset.codecs.media.video_decode import Video  # noqa: E402

SPANS = [(0.0, None, 1), (-1, 0.3, 1), (0.31, 0.33, 1), (0.7, 1.1, 2), (1.01, None, 3), (0.25, 1.4, 20), (0.9, 0.94, 1)]


class Source:
    """Bytes that are read by ranges, and what was read of them."""

    def __init__(self, content):
        self.content, self.read = content, []

    def open(self, **options):
        """Open the video."""
        return RangedVideo(self.read_at, len(self.content), **{"probe_bytes": 512, **options})

    def read_at(self, at, size):
        """Return a range."""
        assert at >= 0
        assert size >= 0
        self.read.append((at, size))
        return self.content[at : at + size]


def expected(whole, start, stop, stride):
    """Return what a part of a whole decode is."""
    return [
        (seconds, frame)
        for seconds, frame in whole
        if seconds >= start - 1e-6 and (stop is None or seconds < stop - 1e-6)
    ][::stride]


def check_parts(video, whole):
    """Compare parts with a whole decode, in frames and times."""
    for start, stop, stride in SPANS:
        frames = expected(whole, start, stop, stride)
        if not frames:
            with pytest.raises(UsageError, match="no frames in this time"):
                video.clip(start, stop, stride=stride)
            continue
        clip = video.clip(start, stop, stride=stride)
        assert clip.seconds.tolist() == [seconds for seconds, _ in frames]
        assert np.array_equal(clip.frames, np.stack([frame for _, frame in frames]))


def encoder_is_there(name):
    """Tell whether this build of ffmpeg makes a file."""
    return {"hevc": "libx265", "mkv_hevc": "libx265", "vp9": "libvpx-vp9", "webm": "libvpx-vp9"}.get(
        name, "libx264"
    ) in av.codecs_available


@pytest.mark.parametrize("name", FILES)
def test_parts_are_those_of_the_whole_decode(name):
    """Frames and times equal a whole decode to the bit, in every make of file, and the file is not read whole."""
    if not encoder_is_there(name):
        pytest.skip(f"no encoder for {name}")
    source = Source(make_file(name))
    whole = list(Video(source.content).frames())
    assert len(whole) > 15
    check_parts(source.open(), whole)
    source.read.clear()
    source.open().clip(0.5, 0.6)
    if name not in ("one_gop", "frame_fragments", "negative_fragments", "mkv_hevc"):
        assert sum(size for _, size in source.read) < len(source.content)


@pytest.mark.parametrize("name", ["b_frames", "open_gop", "sound", "vfr", "co64", "sidx", "mkv", "webm"])
def test_bytes_are_those_of_the_needed_frames(name):
    """A second clip of a video reads at most 1.3 times the bytes of the groups of pictures that it needs."""
    source = Source(make_file(name))
    with av.open(io.BytesIO(source.content)) as file:
        stream = file.streams.video[0]
        packets = [
            (float((packet.pts - stream.start_time) * stream.time_base), packet.is_keyframe, packet.size)
            for packet in file.demux(stream)
            if packet.size
        ]
    keys = [place for place, (_, key, _) in enumerate(packets) if key]
    video = source.open()
    video.clip(0.0, 0.1)
    for start in (0.4, 0.77, 1.2):
        source.read.clear()
        clip = video.clip(start, start + 0.2)
        first = max(key for key in keys if packets[key][0] <= clip.seconds[0])
        last = max(place for place, (time, _, _) in enumerate(packets) if time <= clip.seconds[-1])
        stop = min([key for key in keys if key > last], default=len(packets))
        needed = sum(size for _, _, size in packets[first:stop])
        # the tables of fragments and the headers of clusters are small, and read with what follows
        slack = 4096 if name in ("sidx", "mkv", "webm") else 0
        assert sum(size for _, size in source.read) <= 1.3 * needed + slack
        if not slack:
            assert len(source.read) <= (6 if name == "sound" else 1)


@pytest.mark.parametrize(
    "name",
    ["open_gop", "vfr", "fragments", "sidx", "negative_fragments", "mkv_open_gop", "mkv_vfr", "mkv_hevc", "webm"],
)
def test_spans_that_begin_and_end_at_any_frame(name):
    """Wherever a span begins and ends, at a key frame, before or after it, its frames are those of the whole."""
    if not encoder_is_there(name):
        pytest.skip(f"no encoder for {name}")
    source = Source(make_file(name))
    whole = list(Video(source.content).frames())
    video = source.open()
    times = [seconds for seconds, _ in whole]
    for start in range(len(times)):
        for stop in (start + 1, start + 7):
            for edge in (times[stop] if stop < len(times) else None, times[min(stop, len(times) - 1)] + 0.004):
                frames = expected(whole, times[start], edge, 1)
                clip = video.clip(times[start], edge)
                assert clip.seconds.tolist() == [seconds for seconds, _ in frames]
                assert np.array_equal(clip.frames, np.stack([frame for _, frame in frames]))


def test_gaps_are_read_over_up_to_a_limit():
    """Frames that lie apart are read at once while that costs at most 1.3 times their bytes, the nearest first."""
    offsets, sizes = np.array([0, 110, 400, 515, 5000]), np.full(5, 100)
    samples = MediaSamples(offsets, sizes, offsets, offsets, np.array([True, False, False, True, False]))
    source = Source(bytes(range(250)) * 24)
    video = source.open(probe_bytes=1)
    payloads = video._read_segments(samples, [Segment(0, 3, []), Segment(3, 5, [])])  # noqa: SLF001
    assert source.read == [(0, 210), (400, 215), (5000, 100)]
    assert [len(payload) for payload in payloads] == [300, 200]
    assert payloads[0] == b"".join(source.content[place : place + 100] for place in (0, 110, 400))
    assert payloads[1] == source.content[515:615] + source.content[5000:5100]


def test_tables_take_two_requests():
    """Tables at the end of the file are found by the first bytes, and read at once."""
    source = Source(make_file("b_frames"))
    source.open(probe_bytes=1024).clip(0.8, 0.9)
    assert [at for at, _ in source.read][:2] == [0, list(outer_boxes(source.content))[-1][1]]
    assert len(source.read) == 3


@pytest.mark.parametrize("kind", ["avi", "mpegts"])
def test_other_containers_are_read_whole(kind):
    """What has no tables that are known here gives the same frames, from all of its bytes."""
    source = Source(make_video(kind, "mpeg4", {"g": "8"}))
    video = source.open()
    check_parts(video, list(Video(source.content).frames()))
    assert source.read.count((0, len(source.content))) == len(SPANS)


EDITED = ("b_frames", "open_gop", "negative_ctts", "fragments_with_edit")


def test_random_edit_lists_show_what_ffmpeg_shows():
    """Where an edit list begins and ends within groups of pictures, the same frames are shown at the same times."""
    random = np.random.default_rng(3)
    edits = [(name, *random.integers((100, 0), (1800, 15_000)).tolist()) for name in EDITED for _ in range(6)]
    # a duration that is not a whole number of the track's units, at the edge of a frame
    for name, duration, start in [*edits, ("b_frames", 801, 1024 + 512 * 3 - 12)]:
        content = change_edit(make_file(name), duration, start)
        whole = list(Video(content).frames())
        video = Source(content).open()
        if not whole:
            with pytest.raises(UsageError):
                video.clip(-9)
            continue
        clip = video.clip(-9)
        assert clip.seconds.tolist() == [seconds for seconds, _ in whole]
        assert np.array_equal(clip.frames, np.stack([frame for _, frame in whole]))


def test_frames_that_the_decoder_does_not_give_are_looked_for_in_the_whole():
    """A key frame that is none (its mark is wrong) is noticed by the frames that are missing: the whole decides."""
    content = make_file("b_frames")
    at = content.index(b"stss") + 8
    count = int.from_bytes(content[at : at + 4], "big")
    numbers = struct.unpack(f">{count}I", content[at + 4 : at + 4 + 4 * count])
    wrong = struct.pack(f">{count}I", *(number + (2 if number > 1 else 0) for number in numbers))
    content = content[: at + 4] + wrong + content[at + 4 + 4 * count :]
    source = Source(content)
    clip = source.open().clip(0.7, 0.9)
    whole = expected(list(Video(content).frames()), 0.7, 0.9, 1)
    assert np.array_equal(clip.frames, np.stack([frame for _, frame in whole]))
    assert (0, len(content)) in source.read


def test_rotation_is_read_and_not_applied():
    """The matrix of a file is known; frames stay as they are encoded."""
    video = Source(make_file("turned")).open()
    assert video.clip(0.0, 0.1).frames.shape == (3, 48, 64, 3)
    assert video.rotation_degrees == 90
    assert Source(make_file("b_frames")).open().rotation_degrees == 0


def test_frames_can_be_made_smaller():
    """Sizes are those of ``Video.clip``."""
    assert Source(make_file("b_frames")).open().clip(0.2, 0.6, stride=2, size=24).frames.shape == (5, 24, 32, 3)


def test_questions_that_mean_nothing_are_errors():
    """A stride below 1, and a time at which there is nothing."""
    for arguments in ({"stride": 0}, {"start_seconds": 99.0}):
        with pytest.raises(UsageError):
            Source(make_file("b_frames")).open().clip(**arguments)


@pytest.mark.limited
def test_bombs_are_refused(monkeypatch):
    """Frames beyond the limits are refused before they fill the memory, from ranges as from the whole."""
    monkeypatch.setenv("WDS_MAX_MEDIA_BYTES", "100_000")
    with pytest.raises(FieldTooLarge):
        Source(make_file("b_frames")).open().clip()
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", "3000")
    with pytest.raises(FieldTooLarge, match="64 x 48"):
        Source(make_file("b_frames")).open().clip(0.0, 0.1)


def test_videos_cut_short_are_errors():
    """A file that lacks its end, its tables, or what the source said it has, is an error."""
    for name in ("b_frames", "moov_first", "sidx", "fragments"):
        content = make_file(name)
        for part in (0.05, 0.3, 0.7):
            with pytest.raises(DecodingError):
                Source(content[: int(len(content) * part)]).open().clip(1.3, 1.5)
    content = make_file("b_frames")
    with pytest.raises(DecodingError, match="cut short"):
        RangedVideo(lambda at, size: content[at : min(at + size, 3000)], len(content), probe_bytes=64).clip()


def test_sound_and_junk_have_no_frames():
    """A file of sound, and bytes that are nothing, say so."""
    pytest.importorskip("soundfile")
    content = make_file("sound").replace(b"vide", b"text")
    with pytest.raises(DecodingError, match="no video track"):
        Source(content).open().clip()
    for junk in (b"", bytes(100), b"\0\0\0\x08ftyp", b"\0\0\0\x10ftypisom\0\0\0\1moov", b"\x1aE\xdf\xa3" + bytes(40)):
        with pytest.raises(DecodingError):
            Source(junk).open().clip()


def full_box(kind, *numbers):
    """Return a box of version 0 and 32-bit numbers."""
    return box(kind, bytes(4), *(number.to_bytes(4, "big") for number in numbers))


HOSTILE = {
    b"stts": [full_box(b"stts", 1 << 28, 40, 512), full_box(b"stts", 1, 39, 512), full_box(b"stts", 0)],
    b"ctts": [full_box(b"ctts", 0xFFFF_FFFF, 40, 512), full_box(b"ctts", 1, 3, 5)],
    b"stss": [full_box(b"stss", 1 << 30, 1), full_box(b"stss", 1, 41), full_box(b"stss", 1, 0)],
    b"stsc": [full_box(b"stsc", 1, 2, 40, 1), full_box(b"stsc", 2, 1, 20, 1, 1, 20, 1), full_box(b"stsc", 1, 1, 7, 1)],
    b"stsz": [
        full_box(b"stsz", 0, 40, 9),
        full_box(b"stsz", 1 << 30, 40),
        full_box(b"stsz", 4, 39),
        full_box(b"stsz", 4),
    ],
    b"stco": [
        full_box(b"stco", 1, 0xFFFF_FFF0),
        full_box(b"stco", 1 << 31, 48),
        box(b"co64", bytes(4), b"\0\0\0\1", b"\xff" * 8),
    ],
    b"stsd": [full_box(b"stsd", 1)],
    b"mdhd": [box(b"mdhd", bytes(4))],
    b"hdlr": [box(b"free", bytes(40))],
    b"elst": [full_box(b"elst", 0xFFFF_FFFF, 0, 0, 0), full_box(b"elst", 2, 0, 0, 0)],
}


@pytest.mark.parametrize(("kind", "number"), [(kind, n) for kind, boxes in HOSTILE.items() for n in range(len(boxes))])
def test_hostile_tables_are_errors(kind, number):
    """Counts beyond the box, tables that contradict each other and places outside of the file set nothing aside."""
    content = replace_box(make_file("b_frames"), kind, HOSTILE[kind][number])
    with pytest.raises(DecodingError):
        Source(content).open().clip(0.2, 0.4)


def test_frames_in_the_same_place_are_errors():
    """Tables that name the same bytes for many frames, which would be read many times, are refused."""
    content = make_file("b_frames")
    place = chunk_places(content)[0]
    content = replace_box(content, b"stco", full_box(b"stco", 2, place, place))
    content = replace_box(content, b"stsc", full_box(b"stsc", 1, 1, 20, 1))
    with pytest.raises(DecodingError, match="same place"):
        Source(content).open().clip(0.2, 0.4)


def test_deep_and_many_boxes_end():
    """Boxes within boxes are not followed beyond what a file has, and a million of them end early."""
    deep = b""
    for _ in range(2000):
        deep = box(b"trak", deep)
    many = box(b"moov", b"\0\0\0\x08free" * 20_000)
    for movie in (box(b"moov", deep), many):
        with pytest.raises(DecodingError):
            Source(box(b"ftyp", b"isom", bytes(4)) + movie).open().clip()


@pytest.mark.parametrize("name", ["b_frames", "sound", "sidx", "dash", "fragments_with_sound", "mkv_sound", "webm"])
def test_mutated_files_give_frames_or_typed_errors(name):
    """Damaged tables give a clip or an error of this library, nothing else, and read the file a few times at most."""
    content = make_file(name)
    start = content.index(b"moov") - 4 if b"moov" in content else 0
    for seed in range(60):
        random, mutant = np.random.default_rng(seed), bytearray(content)
        for _ in range(int(random.integers(1, 4))):
            at = int(random.integers(start, len(content) - 4))
            number = (int(random.integers(0, 1 << 32)), 0xFFFF_FFFF, int(random.integers(0, 70)))[random.integers(0, 3)]
            size = int(random.integers(1, 5))
            mutant[at : at + size] = number.to_bytes(4, "big")[:size]
        source = Source(bytes(mutant))
        try:
            clip = source.open().clip(0.5, 0.9)
        except (DecodingError, UsageError):
            pass
        else:
            assert len(clip.frames) == len(clip.seconds) > 0
        assert sum(size for _, size in source.read) <= 3 * len(content) + 100_000


def test_fragments_in_wrong_places_are_errors():
    """An index that leads nowhere, or to what is no fragment, is an error; a wrong time only costs reading."""
    content = make_file("sidx")
    whole = list(Video(content).frames())
    at = content.index(b"sidx") + 4
    check_parts(Source(content[: at + 12] + struct.pack(">I", 0) + content[at + 16 :]).open(), whole)
    lying = bytearray(content)
    for row in range(5):
        lying[at + 28 + 12 * row : at + 32 + 12 * row] = struct.pack(">I", 512 * (row * 5 % 7))
    check_parts(Source(bytes(lying)).open(), whole)
    broken = content[: at + 24] + struct.pack(">I", 77) + content[at + 28 :]
    with pytest.raises(DecodingError):
        Source(broken).open().clip(0.5, 0.9)


def test_other_makes_are_read_whole():
    """Two edits, an encrypted track, two formats in one track: valid, and only for a demultiplexer."""
    content = make_file("b_frames")
    at = content.index(b"stsd") + 8
    several = content[:at] + (2).to_bytes(4, "big") + content[at + 4 :]
    slow = change_edit(content, 900, 1024)
    at = slow.index(b"elst") + 20
    slow = slow[:at] + b"\0\0\x80\0" + slow[at + 4 :]
    at = content.index(b"elst") + 4
    endless = struct.pack(">IIQqI", 1 << 24, 1, 1 << 63, 1024, 1 << 16)
    endless = replace_box(content, b"elst", box(b"elst", endless))
    for other in (several, slow, endless):
        source = Source(other)
        try:
            source.open().clip(0.2, 0.4)
        except (DecodingError, UsageError):
            pass
        assert (0, len(other)) in source.read
