"""Video fields: whole, lazily, by clips; encoders; what is refused and what cannot be reached."""

import io
import pickle
import socket

import numpy as np
import pytest

import webdataset as wds
from webdataset.codecs import default_handlers, encode_based_on_extension1
from webdataset.codecs.media import video_decode as video
from webdataset.codecs.media.container import check_whole, open_container
from webdataset.core.errors import DecodingError, EncodingError, FieldTooLarge, UsageError

av = pytest.importorskip("av")

Y, X = np.mgrid[0:48, 0:64]
FRAMES = np.stack([np.stack([X * 3 + k, Y * 4, np.full_like(Y, k * 6)], -1) for k in range(40)]).astype(np.uint8)
TONE = np.stack([np.sin(np.arange(76_800) / 50) * 0.4] * 2).astype(np.float32)
KINDS = ["mp4", "mov", "mkv", "webm", "avi"]
EMPTY = b"\x1aE\xdf\xa3\x80"


def encode(value, field):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, field, default_handlers)


@pytest.fixture(scope="module", params=KINDS)
def film(request):
    """A video of each kind: name and bytes; 40 frames of 64 x 48 at 25 a second, with sound."""
    return request.param, encode((FRAMES, TONE, {"video_fps": 25.0, "audio_fps": 48000}), request.param)


@pytest.fixture(scope="module")
def short():
    """One mp4 of 40 frames, without sound."""
    return encode((FRAMES, 25), "mp4")


def close(decoded, frames):
    """Tell whether frames are what a lossy codec makes of others; what it makes depends on its threads, a little."""
    error = np.abs(np.asarray(decoded).astype(int) - frames)
    return error.mean() < 3 and error.max() < 24


def test_whole_videos_come_back(film):
    """Frames, sound and rates come back in every container."""
    field, data = film
    frames, sound, rates = video.video_loads(data)
    assert frames.dtype == np.uint8
    assert close(frames, FRAMES)
    assert rates == {"video_fps": 25.0, "audio_fps": 48000}
    assert abs(sound.shape[1] - TONE.shape[1]) < 2048
    middle = slice(10_000, 60_000)
    assert np.sqrt(((sound[:, middle] - TONE[:, middle]) ** 2).mean()) < 0.01


@pytest.mark.torch
def test_torch_video_is_what_torchvision_gave(film):
    """Tensors uint8[T, H, W, 3] and float32[channels, n], and the dict of rates; they can be written again."""
    torch = pytest.importorskip("torch")
    field, data = film
    value = wds.Decoder(wds.torch_video)({f"clip.{field}": data})[f"clip.{field}"]
    frames, sound, rates = value
    assert (frames.dtype, sound.dtype) == (torch.uint8, torch.float32)
    assert close(frames, FRAMES)
    again = video.video_loads(encode(value, field))[0]
    assert close(again, frames.numpy())


def test_videos_tell_what_they_are(film):
    """Size, rate, length and sound are known without decoding frames."""
    field, data = film
    handle = wds.Decoder(wds.video)({field: data})[field]
    assert (handle.height, handle.width, handle.fps, handle.sound_rate) == (48, 64, 25.0, 48000)
    assert handle.frame_count in (40, None)
    assert handle.duration_seconds == pytest.approx(1.6, abs=0.05)
    assert repr(handle) == f"Video({len(data)} bytes)"
    assert pickle.loads(pickle.dumps(handle)).width == 64


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0.4, 0.8), (0, 0.2), (1.0, None), (0.41, 0.5), (1.56, 9), (5, 6)]
)
def test_parts_are_what_the_whole_has_there(film, start, stop):
    """Frames of a part are those whose times lie in it, to the bit, wherever the key frames are."""
    handle = wds.video("." + film[0], film[1])
    whole = list(handle.frames())
    assert [round(seconds, 3) for seconds, _ in whole] == [round(k / 25, 3) for k in range(40)]
    expected = [(s, frame) for s, frame in whole if s >= start - 1e-6 and (stop is None or s < stop - 1e-6)]
    part = list(handle.frames(start, stop))
    assert [seconds for seconds, _ in part] == [seconds for seconds, _ in expected]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(part, expected, strict=True))
    thinned = list(handle.frames(start, stop, stride=3))
    assert [seconds for seconds, _ in thinned] == [seconds for seconds, _ in expected[::3]]


def test_many_key_frames_and_none():
    """Seeking goes to the key frame before: with a key frame every 5 frames, and with one at the beginning only."""
    for gop in ("5", "250"):
        stream = io.BytesIO()
        with av.open(stream, "w", format="mp4") as file:
            track = file.add_stream("libx264", rate=25, options={"g": gop, "bf": "2"})
            track.width, track.height, track.pix_fmt = 64, 48, "yuv420p"
            for picture in FRAMES:
                file.mux(track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            file.mux(track.encode(None))
        handle = video.Video(stream.getvalue())
        whole = list(handle)
        assert len(whole) == 40
        for number in (0, 1, 4, 5, 6, 23, 39):
            assert np.array_equal(handle.frame_at(number / 25), whole[number])


def test_formats_without_times_are_read_from_the_beginning():
    """Raw H.264 knows no times and no seeking: parts come all the same."""
    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt, codec.framerate = 64, 48, "yuv420p", 25
    codec.time_base = 1 / codec.framerate
    packets = [codec.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")) for picture in FRAMES]
    data = b"".join(bytes(packet) for some in [*packets, codec.encode(None)] for packet in some)
    handle = wds.video(".h264", data)
    whole = list(handle)
    assert len(whole) == 40
    part = [frame for _, frame in handle.frames(0.4, 0.8)]
    assert len(part) == 10
    assert np.array_equal(part[0], whole[10])


def test_frames_can_be_made_smaller(short):
    """By the shorter side, or to a height and width."""
    handle = video.Video(short)
    assert next(iter(handle.frames(size=24)))[1].shape == (24, 32, 3)
    assert next(iter(handle.frames(size=(10, 20))))[1].shape == (10, 20, 3)
    assert handle.clip(0.2, 0.6, stride=2, size=12).frames.shape == (5, 12, 16, 3)
    assert handle.clip(0.2, 0.6).seconds.tolist() == pytest.approx([k / 25 for k in range(5, 15)])


def test_clips_are_frames_at_regular_distances(short):
    """Every clip is the frames that its stride and step say, without gap or overlap by default."""
    whole = list(video.Video(short))
    for frames, stride, step, starts in (
        (8, 1, None, [0, 8, 16, 24, 32]),
        (8, 2, None, [0, 16]),
        (4, 3, 5, [0, 5, 10, 15, 20, 25, 30]),
        (40, 1, None, [0]),
        (41, 1, None, []),
    ):
        clips = wds.video_clips(frames, stride=stride, step=step)(".mp4", short)
        assert [round(clip.seconds[0] * 25) for clip in clips] == starts
        for clip, start in zip(clips, starts, strict=True):
            assert np.array_equal(clip.frames, np.stack(whole[start : start + frames * stride : stride]))
    cut = wds.video_clips(16, partial=True)(".mp4", short)
    assert [len(clip.frames) for clip in cut] == [16, 16, 8]
    assert len(wds.video_clips(4, limit=3, size=(8, 8))(".mp4", short)) == 3
    assert wds.video_clips(4)(".txt", short) is None
    assert "limit=None" in repr(wds.video_clips(4))


def test_sound_of_a_part(film):
    """Sound comes whole or in part; the part is a piece of the whole."""
    handle = wds.video("." + film[0], film[1])
    whole, rate = handle.sound()
    assert rate == 48000
    part, _ = handle.sound(0.5, 1.0)
    assert part.shape == (2, 24000)
    assert np.array_equal(part, whole[:, 24000:48000])
    assert np.array_equal(handle.sound(0.25)[0], whole[:, 12000:])
    assert handle.sound(50)[0].shape[1] == 0


def test_silent_videos_have_no_sound(short):
    """A video without sound gives none, with its rate 0, and audio handlers say so."""
    handle = video.Video(short)
    assert handle.sound_rate is None
    assert handle.sound()[0].shape == (1, 0)
    assert video.video_loads(short)[1].shape == (1, 0)
    with pytest.raises(DecodingError, match="no audio track"):
        wds.audio(".m4a", short)


@pytest.mark.parametrize("field", KINDS)
def test_odd_sizes_single_frames_and_rates_are_written(field):
    """Width and height may be odd, one frame is a video, and rates are kept."""
    for frames, fps in ((FRAMES[:5, :47, :63], 30000 / 1001), (FRAMES[:1], 10)):
        decoded, _, rates = video.video_loads(encode((frames, fps), field))
        assert close(decoded, frames)
        assert len(decoded) == 1 or rates["video_fps"] == pytest.approx(fps, rel=1e-2)
    assert video.video_loads(encode(FRAMES[:4], field))[2] == {"video_fps": 25.0}


@pytest.mark.parametrize(
    "value",
    [FRAMES[0], FRAMES[..., 0], FRAMES / 255.0, FRAMES[:0], (FRAMES, 0), (FRAMES, "25"), (FRAMES, 25, 3), None, (1,)],
    ids=range(9),
)
def test_what_is_no_video_is_an_error(value):
    """Anything but frames, frames and a rate, or what torch_video gives says what is wanted."""
    with pytest.raises(EncodingError):
        encode(value, "mp4")


def test_videos_cut_short_are_errors(film):
    """A demultiplexer plays what there is and stops without a word: here it is an error that says so."""
    field, data = film
    for part in (0.4, 0.7, 0.95):
        for handler in (wds.video, wds.video_clips(4)):
            cut = {"__key__": "k", field: data[: int(len(data) * part)]}
            with pytest.raises(DecodingError, match="cut short"):
                list(wds.Decoder(handler)(cut)[field].frames())


def test_lengths_that_are_not_stated_pass():
    """Files written to a pipe state no length; boxes and elements of any kind are stepped over, damage is no end."""
    for data in (
        b"RIFF\xff\xff\xff\xffAVI ",
        b"\0\0\0\x08free\0\0\0\0mdat" + bytes(5),
        b"\0\0\0\x08free\0\0\0\x03mdat",
        EMPTY + b"\x18S\x80g\x01\xff\xff\xff\xff\xff\xff\xff",
        EMPTY + b"\x18S\x80g",
        EMPTY[:4],
        EMPTY[:4] + b"\xff",
        b"",
        b"anything else",
    ):
        check_whole(data)
    for data in (b"\0\0\0\x10ftyp", b"\0\0\0\x01mdat\0\0\0\0\0\0\1\0", EMPTY[:4] + b"\x85", b"RIFX\0\0\1\0AVI "):
        with pytest.raises(DecodingError, match="cut short"):
            check_whole(data)


@pytest.mark.parametrize("data", [b"", b"no video", bytes(1000), b"\0\0\0\x08ftyp", b"ID3" + bytes(100)])
def test_what_is_no_video_does_not_decode(data):
    """Junk is an error that names the field, eagerly and lazily."""
    with pytest.raises(DecodingError) as failure:
        wds.Decoder(wds.video_clips(4))({"mp4": data})
    assert failure.value.field == "mp4"
    with pytest.raises((OSError, ValueError)):
        list(video.Video(data))


def test_sound_files_have_no_frames():
    """Asking audio for frames says what is missing."""
    pytest.importorskip("soundfile")
    with pytest.raises(DecodingError, match="no video track"):
        list(video.Video(encode((TONE, 48000), "wav")))
    assert video.video_loads(encode((TONE, 48000), "wav"))[0].shape == (0, 1, 1, 3)


def test_questions_that_mean_nothing_are_errors(short):
    """Strides below 1, and times at which there is nothing."""
    handle = video.Video(short)
    for question in (
        lambda: list(handle.frames(stride=0)),
        lambda: list(handle.clips(0)),
        lambda: list(handle.clips(4, step=0)),
        lambda: handle.frame_at(99),
        lambda: handle.clip(98, 99),
    ):
        with pytest.raises(UsageError):
            question()


@pytest.mark.limited
def test_video_bombs_are_refused(short, monkeypatch):
    """Frames beyond the limits, in number or in size, are refused before they fill the memory."""
    monkeypatch.setenv("WDS_MAX_MEDIA_BYTES", "100_000")
    with pytest.raises(FieldTooLarge, match="video_clips"):
        video.Video(short).clip()
    monkeypatch.setattr(video, "_AT_ONCE", 1)
    with pytest.raises(FieldTooLarge, match="video_clips"):
        video.video_loads(short)
    assert sum(1 for _ in video.Video(short)) == 40
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", "3000")
    with pytest.raises(FieldTooLarge, match="64 x 48"):
        next(iter(video.Video(short)))


def test_videos_that_grow_while_they_are_read(short, monkeypatch):
    """A video that does not say how many frames it has comes whole."""
    whole = video.video_loads(short)[0]
    monkeypatch.setattr(video, "_AT_ONCE", 1)
    grown = video.video_loads(short)[0]
    assert np.array_equal(whole, grown)
    assert grown.base is None


def test_a_playlist_reaches_no_file(tmp_path, short):
    """A field that lists other files makes ffmpeg open none of them."""
    path = tmp_path / "secret.mp4"
    path.write_bytes(short)
    concat = f"ffconcat version 1.0\nfile '{path}'\n".encode()
    hls = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{path}\n#EXT-X-ENDLIST\n".encode()
    with av.open(io.BytesIO(concat), options={"safe": "0"}) as container:
        assert sum(1 for _ in container.decode(video=0)) == 40, "what an unguarded reader does"
    for data in (concat, hls):
        with pytest.raises(DecodingError):
            wds.Decoder(wds.video_clips(1))({"mp4": data})
    with pytest.raises((OSError, ValueError)), open_container(concat, "testing") as container:
        list(container.decode(video=0))


def test_a_session_description_opens_no_socket():
    """A field that describes a network session makes ffmpeg neither listen nor send: it is an error at once."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1] & ~1
    sdp = f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
    with pytest.raises(DecodingError):
        wds.Decoder(wds.video_clips(1))({"mp4": (sdp + "a=rtpmap:96 H264/90000\n").encode()})
