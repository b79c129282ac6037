"""Sound to samples: soundfile for what is stored without loss and for Vorbis, PyAV for the rest.

Flows in: the bytes of one audio file, or the audio track of a video. Flows out: float32[channels, frames] and a rate.
On WAV, FLAC and AIFF both libraries agree to the bit (on Vorbis to 1e-6); soundfile is several times faster. Where
only one of them is installed it is asked for everything.
"""

import io
import itertools
from typing import Any

import numpy as np

from webdataset.ground.errors import DecodingError, MissingExtra, said
from webdataset.ground.extras import available

from .containers import check_total, opened
from .whole import check_whole

_LOSSLESS = (b"RIFF", b"RF64", b"fLaC", b"FORM")


def sound_loads(data: bytes) -> tuple[Any, int]:
    """Decode an audio file.

    Args:
        data: its bytes: WAV, FLAC, MP3, Ogg, Opus, M4A, AAC, WMA, AIFF …

    Returns:
        float32[channels, frames] in [-1, 1], and the rate in Hz.

    Raises:
        MissingExtra: neither soundfile nor PyAV is installed.
        FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
        DecodingError: cut short, or no sound in it.
        OSError: not an audio file; ``ValueError`` for some.
    """
    library = available("soundfile")
    if library is not None and (_is_for_soundfile(data) or available("av") is None):
        found = _by_soundfile(library, data)
        if found is not None:
            return found
    try:
        container = opened(data, "decoding audio")
    except MissingExtra as error:
        raise MissingExtra(
            "decoding audio needs soundfile (WAV, FLAC, Ogg, MP3) or av (all formats): pip install 'webdataset[audio]' "
            "or 'webdataset[media]'"
        ) from error
    with container:
        if not container.streams.audio:
            raise DecodingError("the file has no audio track")
        return track(container)


def _is_for_soundfile(data: bytes) -> bool:
    return data[:4] in _LOSSLESS or (data[:4] == b"OggS" and b"\x01vorbis" in data[:64])


def _by_soundfile(library: Any, data: bytes) -> tuple[Any, int] | None:
    """Decode with soundfile, or return None where it does not know what is in the file and PyAV might."""
    check_whole(data)
    try:
        file = library.SoundFile(io.BytesIO(data))
    except library.LibsndfileError as error:
        if available("av") is None:
            hint = "PyAV knows more formats: pip install 'webdataset[media]'"
            raise DecodingError(f"soundfile does not know this audio ({said(error)}); {hint}") from error
        return None
    with file:
        check_total(file.frames * file.channels * 4)
        samples = file.read(dtype="float32", always_2d=True)
        if len(samples) < file.frames:
            raise DecodingError(f"the audio file is cut short: {len(samples)} frames of {file.frames}")
        return np.ascontiguousarray(samples.T), file.samplerate


def track(container: Any, start_seconds: float = 0.0, stop_seconds: float | None = None) -> tuple[Any, int]:
    """Decode the first audio track of an open container, or a part of it.

    Args:
        container: at its beginning; left where decoding ended.
        start_seconds: where the part begins.
        stop_seconds: where it ends; None means the end of the track.

    Returns:
        float32[channels, frames] in [-1, 1] ([1, 0] where there is none), and the rate in Hz.

    Raises:
        FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
        DecodingError: ffmpeg does not know its codec.
    """
    from av import AudioResampler  # noqa: PLC0415  the container is PyAV's: it is loaded

    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise DecodingError("the audio track is damaged, or of a kind that ffmpeg does not know")
    planes = AudioResampler(format="fltp")
    pieces: list[Any] = []
    rate = passed = size = 0
    for frame in itertools.chain(container.decode(stream), [None]):
        rate = rate if frame is None else frame.sample_rate
        if rate == 0 or (stop_seconds is not None and passed >= round(stop_seconds * rate)):
            break
        for piece in planes.resample(frame):
            samples = piece.to_ndarray()
            passed += samples.shape[1]
            if passed > round(start_seconds * rate):
                pieces.append(samples)
                size += samples.nbytes
                check_total(size)
    if not pieces:
        return np.empty((1, 0), np.float32), rate
    samples = np.concatenate(pieces, axis=1)
    before = max(0, round(start_seconds * rate) - (passed - samples.shape[1]))
    length = None if stop_seconds is None else before + round(stop_seconds * rate) - round(start_seconds * rate)
    return np.ascontiguousarray(samples[:, before:length]), rate
