"""Small video files of every make that is read by ranges: containers, codecs, orders of frames, edit lists, tables."""

import functools
import io
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

FRAMES = 40
RATE = 25
# with key frames that others refer beyond: the frames after them in the file are shown before them
OPEN_GOP = {"g": "8", "bf": "2", "x264-params": "open-gop=1:scenecut=0:keyint=8:min-keyint=8:b-adapt=0"}
CLOSED_GOP = {"g": "8", "bf": "2"}


def draw_frames(count: int = FRAMES, height: int = 48, width: int = 64) -> np.ndarray:
    """Return uint8[count, height, width, 3] in which no two frames are alike, and each takes some bytes."""
    rows, columns = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).integers(0, 30, (count, height, width, 3))
    drawn = [np.stack([columns * 3 + k, rows * 4, np.full_like(rows, k * 6)], -1) for k in range(count)]
    return (np.stack(drawn) + noise).astype(np.uint8)


def make_video(
    kind: str = "mp4",
    codec: str = "libx264",
    options: Mapping[str, str] = CLOSED_GOP,
    *,
    muxing: str = "",
    milliseconds: Sequence[int] | None = None,
    sound: bool = False,
) -> bytes:
    """Return a video file of 40 frames of 64 x 48.

    Args:
        kind: container.
        codec: of the frames.
        options: of the codec.
        muxing: ffmpeg's ``movflags``, or another option of the container as ``name=value``.
        milliseconds: when each frame is shown; None: 25 a second.
        sound: interleave a track of sound.
    """
    import av

    base = Fraction(1, 1000 if milliseconds else RATE)
    stream = io.BytesIO()
    name, _, value = muxing.rpartition("=")
    with av.open(stream, "w", format=kind, options={name or "movflags": value} if muxing else {}) as file:
        track: Any = file.add_stream(codec, rate=RATE, options=dict(options))
        track.width, track.height, track.pix_fmt, track.codec_context.time_base = 64, 48, "yuv420p", base
        audio: Any = file.add_stream("aac", rate=48_000, layout="stereo") if sound else None
        for number, picture in enumerate(draw_frames()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = milliseconds[number] if milliseconds else number, base
            file.mux(track.encode(frame))
            for half in (0, 960) if audio else ():
                samples = av.AudioFrame.from_ndarray(np.zeros((2, 960), np.float32), format="fltp", layout="stereo")
                samples.sample_rate, samples.pts = 48_000, number * 1920 + half
                file.mux(audio.encode(samples))
        file.mux(track.encode(None))
        if audio:
            file.mux(audio.encode(None))
    return stream.getvalue()


@functools.cache
def make_file(name: str) -> bytes:
    """Return a file by name; see ``FILES``."""
    return FILES[name]()


def outer_boxes(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the boxes that stand one after another in a file."""
    at = 0
    while at + 8 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        yield content[at + 4 : at + 8], at, at + size
        at += size


def box(kind: bytes, *parts: bytes) -> bytes:
    """Return a box."""
    return (8 + sum(map(len, parts))).to_bytes(4, "big") + kind + b"".join(parts)


def find_box(content: bytes, kind: bytes) -> tuple[int, int]:
    """Return where the first box of a kind starts and ends."""
    at = content.index(kind) - 4
    return at, at + int.from_bytes(content[at : at + 4], "big")


def replace_box(content: bytes, kind: bytes, replacement: bytes) -> bytes:
    """Return an MP4 file with another box in place of one; the boxes around it grow or shrink."""
    start, stop = find_box(content, kind)
    growth = len(replacement) - (stop - start)
    changed = content[:start] + replacement + content[stop:]
    for around in (b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl"):
        begin, end = find_box(content, around) if around in content else (0, 0)
        if begin < start and stop <= end:
            changed = changed[:begin] + (end - begin + growth).to_bytes(4, "big") + changed[begin + 4 :]
    return changed


def chunk_places(content: bytes) -> list[int]:
    """Return where the chunks of frames of the first track lie."""
    start, stop = find_box(content, b"stco")
    return list(struct.unpack(f">{(stop - start - 16) // 4}I", content[start + 16 : stop]))


def move_tables_first(content: bytes, *, large: bool = False) -> bytes:
    """Return an MP4 file of one track with ``moov`` before the frames, and if ``large`` with ``co64``."""
    places = chunk_places(content)
    payload = find_box(content, b"mdat")[0]

    def place_chunks(shift: int) -> bytes:
        numbers = [place + shift for place in places]
        rows = struct.pack(f">II{len(numbers)}{'Q' if large else 'I'}", 0, len(numbers), *numbers)
        return replace_box(content, b"stco", box(b"co64" if large else b"stco", rows))

    def parts(changed: bytes) -> dict[bytes, bytes]:
        return {kind: changed[start:stop] for kind, start, stop in outer_boxes(changed)}

    begin = len(parts(content)[b"ftyp"]) + len(parts(place_chunks(0))[b"moov"])
    moved = parts(place_chunks(begin - payload))
    return moved[b"ftyp"] + moved[b"moov"] + moved[b"mdat"]


def add_segment_index(content: bytes) -> bytes:
    """Return a fragmented MP4 file with a ``sidx`` of all its fragments."""
    boxes = list(outer_boxes(content))
    fragments = [start for kind, start, _ in boxes if kind == b"moof"]
    ends = [*fragments[1:], max(stop for kind, _, stop in boxes if kind == b"mdat")]
    # 8 frames in each, in units of 1/12800 second
    rows = [struct.pack(">III", end - start, 8 * 512, 0x9000_0000) for start, end in zip(fragments, ends, strict=True)]
    index = box(b"sidx", struct.pack(">IIIIIHH", 0, 1, 12_800, 0, 0, 0, len(rows)), *rows)
    return content[: fragments[0]] + index + content[fragments[0] :]


def change_edit(content: bytes, duration: int, start: int) -> bytes:
    """Return an MP4 file with another entry in its edit list: duration in 1/1000, start in 1/12800 second."""
    at = content.index(b"elst") + 12
    return content[:at] + struct.pack(">II", duration, start) + content[at + 8 :]


def make_live(content: bytes) -> bytes:
    """Return a Matroska file whose segment does not state its size."""
    at = content.index(b"\x18\x53\x80\x67") + 4
    return content[:at] + b"\x01" + b"\xff" * 7 + content[at + 8 :]


def turn(content: bytes) -> bytes:
    """Return an MP4 file that says it is to be turned by 90 degrees."""
    at = content.index(b"tkhd") + 44
    return content[:at] + struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30) + content[at + 36 :]


_PAUSES = np.cumsum(np.random.default_rng(1).integers(5, 90, FRAMES)).tolist()

FILES: dict[str, Callable[[], bytes]] = {
    "b_frames": make_video,
    "open_gop": lambda: make_video(options=OPEN_GOP),
    "one_gop": lambda: make_video(options={"g": "250", "bf": "3"}),
    "all_keys": lambda: make_video(codec="mpeg4", options={"g": "1"}),
    "mpeg4": lambda: make_video(codec="mpeg4", options={"g": "8"}),
    "sound": lambda: make_video(sound=True),
    "moov_first": lambda: move_tables_first(make_file("open_gop")),
    "co64": lambda: move_tables_first(make_file("open_gop"), large=True),
    "negative_ctts": lambda: make_video(options=OPEN_GOP, muxing="negative_cts_offsets"),
    "vfr": lambda: make_video(milliseconds=_PAUSES),
    "edit_in_gop": lambda: change_edit(make_file("open_gop"), 900, 1024 + 512 * 11 + 100),
    "edit_of_end": lambda: change_edit(make_file("b_frames"), 700, 1024),
    "turned": lambda: turn(make_file("b_frames")),
    "mov": lambda: make_video("mov", options=OPEN_GOP),
    "fragments": lambda: make_video(options=OPEN_GOP, muxing="frag_keyframe+empty_moov"),
    "fragments_with_edit": lambda: make_video(options=OPEN_GOP, muxing="frag_keyframe+delay_moov"),
    "fragments_with_sound": lambda: make_video(sound=True, muxing="frag_keyframe+delay_moov"),
    "dash": lambda: make_video(options=OPEN_GOP, muxing="dash+frag_keyframe+delay_moov"),
    "sidx": lambda: add_segment_index(
        make_video(options=OPEN_GOP, muxing="frag_keyframe+default_base_moof+delay_moov")
    ),
    "frame_fragments": lambda: make_video(options=OPEN_GOP, muxing="frag_every_frame+empty_moov"),
    "negative_fragments": lambda: make_video(
        options=OPEN_GOP, muxing="frag_every_frame+empty_moov+negative_cts_offsets"
    ),
    "mkv": lambda: make_video("matroska"),
    "mkv_open_gop": lambda: make_video("matroska", options=OPEN_GOP),
    "mkv_sound": lambda: make_video("matroska", sound=True),
    "mkv_vfr": lambda: make_video("matroska", options=OPEN_GOP, milliseconds=_PAUSES),
    "mkv_index_first": lambda: make_video("matroska", options=OPEN_GOP, muxing="reserve_index_space=2000"),
    "mkv_hevc": lambda: make_video(
        "matroska", "libx265", {"x265-params": "keyint=8:min-keyint=8:open-gop=1:bframes=3:log-level=none"}
    ),
    "mkv_live": lambda: make_live(make_file("mkv")),
    "webm": lambda: make_video("webm", "libvpx-vp9", {"g": "8", "lag-in-frames": "10"}),
    "hevc": lambda: make_video(
        codec="libx265", options={"x265-params": "keyint=8:min-keyint=8:open-gop=1:bframes=3:log-level=none"}
    ),
    "vp9": lambda: make_video(codec="libvpx-vp9", options={"g": "8", "lag-in-frames": "10", "auto-alt-ref": "1"}),
}
"""How to make each file that is read by ranges."""
