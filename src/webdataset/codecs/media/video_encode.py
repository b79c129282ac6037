"""Encodes frames as video files, through PyAV.

The input is frames uint8[T, H, W, 3], alone, with a rate, or with sound as ``torch_video`` gives them. All formats
lose: H.264 in mp4, mov and mkv, VP9 in webm, JPEG frames in avi.
"""

import io
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from webdataset.codecs.media.audio_codec import check_sound, mux_sound, to_float32
from webdataset.core.errors import EncodingError, describe_error
from webdataset.core.optional_imports import require

DEFAULT_FPS = 25.0
_X264 = "libx264", {"crf": "17", "preset": "medium"}
_VP9 = "libvpx-vp9", {"crf": "15", "b:v": "0", "deadline": "good", "cpu-used": "4"}
_JPEG = "mjpeg", {"qmin": "2", "qmax": "2"}
# container, video encoder and its options, audio encoder
_KINDS: dict[str, tuple[str, tuple[str, dict[str, str]], str]] = {
    "mp4": ("mp4", _X264, "aac"),
    "mov": ("mov", _X264, "aac"),
    "mkv": ("matroska", _X264, "pcm_f32le"),
    "webm": ("webm", _VP9, "libopus"),
    "avi": ("avi", _JPEG, "pcm_s16le"),
}


def encode_video(value: object, kind: str) -> bytes:
    """Encode a video.

    Args:
        value: frames uint8[T, H, W, 3], an array or tensor; or a pair of frames and their rate; or frames, sound
            (samples [channels, n]) and a dict with ``video_fps`` and ``audio_fps``, as ``torch_video`` returns them.
            Frames alone are 25 a second.
        kind: mp4, mov, mkv, webm or avi.

    Raises:
        EncodingError: no such frames, or the format cannot hold them.
        MissingExtra: PyAV is not installed.
    """
    frames, fps, sound = _split_video(value)
    library = require("av", extra="media", purpose="writing video")
    container, (codec, options), sound_codec = _KINDS[kind]
    stream = io.BytesIO()
    try:
        with library.open(stream, "w", format=container, container_options={"fflags": "+bitexact"}) as file:
            track = file.add_stream(codec, rate=Fraction(fps).limit_denominator(65_535), options=options)
            track.height, track.width = frames.shape[1:3]
            halves = "yuv420p" if track.height % 2 == 0 and track.width % 2 == 0 else "yuv444p"
            track.pix_fmt = halves.replace("yuv", "yuvj") if codec == "mjpeg" else halves
            write_sound = None if sound is None else mux_sound(library, file, *sound, sound_codec)
            for picture in frames:
                file.mux(track.encode(library.VideoFrame.from_ndarray(picture, format="rgb24")))
            file.mux(track.encode(None))
            if write_sound is not None:
                write_sound()
    except (library.FFmpegError, ValueError) as error:
        raise EncodingError(
            f"frames of shape {frames.shape} cannot be written as {kind}: {describe_error(error)}"
        ) from error
    return stream.getvalue()


def _split_video(value: Any) -> tuple[npt.NDArray[np.uint8], float, tuple[npt.NDArray[np.float32], int] | None]:
    """Return frames, their rate, and sound with its rate or None."""
    fps: object = DEFAULT_FPS
    sound = None
    if isinstance(value, (tuple, list)):
        if len(value) == 2:
            value, fps = value
        elif len(value) == 3 and isinstance(value[2], dict):
            value, samples, rates = value
            fps = rates.get("video_fps", DEFAULT_FPS)
            if "audio_fps" in rates and samples.shape[-1]:
                samples, rate = check_sound((samples, rates["audio_fps"]))
                sound = to_float32(samples), rate
        else:
            raise EncodingError("a video is frames, or (frames, rate), or (frames, sound, {'video_fps': …})")
    frames = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise EncodingError(f"frames of {frames.dtype} and shape {frames.shape} are no video: uint8[T, H, W, 3] is")
    if not isinstance(fps, (int, float, Fraction)) or not 0 < fps <= 1000:
        raise EncodingError(f"{fps!r} is no number of frames a second")
    return np.ascontiguousarray(frames), float(fps), sound


encode_mp4 = partial(encode_video, kind="mp4")
encode_mov = partial(encode_video, kind="mov")
encode_mkv = partial(encode_video, kind="mkv")
encode_webm = partial(encode_video, kind="webm")
encode_avi = partial(encode_video, kind="avi")
