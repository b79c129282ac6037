"""Decodes and encodes sound: soundfile for lossless formats and Vorbis, PyAV for the rest.

Decoding gives float32[channels, frames] and a rate, from an audio file or the audio track of a video. On WAV, FLAC and
AIFF both libraries agree to the bit (on Vorbis to 1e-6); where only one is installed, it decodes every format.
Encoding takes pairs of samples and a rate. WAV keeps every sample unchanged, FLAC 24 bits; the others lose. Nothing is
resampled or clipped silently.
"""

import io
import itertools
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from webdataset.codecs.media.container import check_decoded_size, check_whole, open_container
from webdataset.core.errors import DecodingError, EncodingError, MissingExtra, describe_error
from webdataset.core.optional_imports import import_if_available, install_command, require

if TYPE_CHECKING:
    from av.container import InputContainer

_LOSSLESS = (b"RIFF", b"RF64", b"fLaC", b"FORM")


def sound_loads(data: bytes) -> tuple[npt.NDArray[np.float32], int]:
    """Decode an audio file (WAV, FLAC, MP3, Ogg, M4A …) to float32[channels, frames] in [-1, 1], and its rate in Hz.

    Raises:
        MissingExtra: neither soundfile nor PyAV is installed.
        FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
        DecodingError: cut short, or no sound in it.
        OSError: not an audio file; ``ValueError`` for some.
    """
    library = import_if_available("soundfile")
    if library is not None and (_is_for_soundfile(data) or import_if_available("av") is None):
        found = _decode_with_soundfile(library, data)
        if found is not None:
            return found
    try:
        container = open_container(data, "decoding audio")
    except MissingExtra as error:
        raise MissingExtra(
            "decoding audio needs soundfile (WAV, FLAC, Ogg, MP3; the extra audio) or av (all formats; the extra "
            f"media): {install_command('audio,media')}"
        ) from error
    with container:
        if not container.streams.audio:
            raise DecodingError("the file has no audio track")
        return decode_track(container)


def _is_for_soundfile(data: bytes) -> bool:
    return data[:4] in _LOSSLESS or (data[:4] == b"OggS" and b"\x01vorbis" in data[:64])


def _decode_with_soundfile(library: ModuleType, data: bytes) -> tuple[npt.NDArray[np.float32], int] | None:
    """Decode with soundfile, or return None where it does not know what is in the file and PyAV might."""
    check_whole(data)
    try:
        file = library.SoundFile(io.BytesIO(data))
    except library.LibsndfileError as error:
        if import_if_available("av") is None:
            hint = f"PyAV knows more formats: {install_command('media')}"
            raise DecodingError(f"soundfile does not know this audio ({describe_error(error)}); {hint}") from error
        return None
    with file:
        check_decoded_size(file.frames * file.channels * 4)
        samples = file.read(dtype="float32", always_2d=True)
        if len(samples) < file.frames:
            raise DecodingError(f"the audio file is cut short: {len(samples)} frames of {file.frames}")
        return np.ascontiguousarray(samples.T), file.samplerate


def decode_track(
    container: "InputContainer", start_seconds: float = 0.0, stop_seconds: float | None = None
) -> tuple[npt.NDArray[np.float32], int]:
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
    pieces: list[np.ndarray] = []
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
                check_decoded_size(size)
    if not pieces:
        return np.empty((1, 0), np.float32), rate
    samples = np.concatenate(pieces, axis=1)
    before = max(0, round(start_seconds * rate) - (passed - samples.shape[1]))
    length = None if stop_seconds is None else before + round(stop_seconds * rate) - round(start_seconds * rate)
    return np.ascontiguousarray(samples[:, before:length]), rate


_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_SUBTYPES = {"i2": "PCM_16", "i4": "PCM_32", "u1": "PCM_U8", "f4": "FLOAT", "f8": "DOUBLE"}
_PCM = {"i2": "pcm_s16le", "i4": "pcm_s32le", "u1": "pcm_u8", "f4": "pcm_f32le", "f8": "pcm_f64le"}
_FORMATS = {"i2": "s16", "i4": "s32", "u1": "u8", "f4": "flt", "f8": "dbl"}
_LOSSY = {"mp3": ("mp3", "libmp3lame"), "m4a": ("mp4", "aac"), "opus": ("ogg", "libopus")}
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_BITS_A_SAMPLE = 4
# samples given to an encoder at once
_PORTION = 1 << 15


def encode_sound(value: object, kind: str) -> bytes:
    """Encode sound.

    Args:
        value: a pair of samples and a rate in Hz; samples [channels, frames] or [frames], an array or tensor of
            float32 or float64 in [-1, 1], int16, int32 or uint8.
        kind: wav, flac, ogg, mp3, m4a or opus. Opus takes only the rates 8, 12, 16, 24 and 48 kHz.

    Raises:
        EncodingError: not such a pair, or the format cannot hold it.
        MissingExtra: the package that writes this format is not installed.
    """
    samples, rate = check_sound(value)
    if kind == "flac":
        samples = _to_24_bits(samples)
    elif kind not in ("wav", "ogg"):
        return _encode_with_pyav(to_float32(samples), rate, *_LOSSY[kind])
    library = import_if_available("soundfile")
    if library is not None:
        return _encode_with_soundfile(library, samples, rate, kind)
    if kind == "ogg":
        require("soundfile", extra="audio", purpose="writing ogg fields")
    return _encode_with_pyav(samples, rate, kind, "flac" if kind == "flac" else _PCM[samples.dtype.str[1:]])


def check_sound(value: object) -> tuple[np.ndarray, int]:
    """Return samples as an array [channels, frames], and the rate.

    Raises:
        EncodingError: not a pair of samples and a rate.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise EncodingError(f"sound is a pair (samples, rate), not {type(value).__name__}")
    samples = np.asarray(value[0].detach().cpu() if hasattr(value[0], "detach") else value[0])
    rate = int(value[1])
    samples = samples[None] if samples.ndim == 1 else samples
    if samples.ndim != 2 or not 1 <= samples.shape[0] <= max(_LAYOUTS):
        raise EncodingError(f"samples of shape {samples.shape} are no sound: [channels, frames] is, of 1 to 8 channels")
    if samples.dtype.str[1:] not in _SUBTYPES:
        raise EncodingError(f"samples of {samples.dtype} are no sound: float32, float64, int16, int32 and uint8 are")
    if rate != value[1] or rate <= 0:
        raise EncodingError(f"{value[1]!r} is no rate in Hz")
    return samples.astype(samples.dtype.newbyteorder("="), copy=False), rate


def to_float32(samples: np.ndarray) -> npt.NDArray[np.float32]:
    """Return samples as float32.

    Raises:
        EncodingError: floats beyond [-1, 1].
    """
    if samples.dtype.kind == "f":
        # NaN fails, too
        if not (np.abs(samples) <= 1).all():
            raise EncodingError("samples must lie in [-1, 1]; WAV takes others")
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)


def _to_24_bits(samples: np.ndarray) -> np.ndarray:
    """Return int16 as it is, all else as int32 whose last 8 bits are 0."""
    if samples.dtype == np.int16:
        return samples
    if samples.dtype == np.uint8:
        return (samples.astype(np.int16) - 128) << 8
    if samples.dtype == np.int32:
        if (samples & 255).any():
            raise EncodingError("FLAC holds 24 bits of a sample, these use 32: use WAV")
        return samples
    to_float32(samples)
    steps = np.rint(samples.astype(np.float64) * 2**23).clip(-(2**23), 2**23 - 1)
    return steps.astype(np.int32) << 8


def _encode_with_soundfile(library: ModuleType, samples: np.ndarray, rate: int, kind: str) -> bytes:
    subtype = _SUBTYPES[samples.dtype.str[1:]]
    if kind == "ogg":
        samples, subtype = to_float32(samples), "VORBIS"
    elif kind == "flac" and subtype == "PCM_32":
        subtype = "PCM_24"
    elif subtype == "PCM_U8":
        samples = (samples.astype(np.int16) - 128) << 8
    stream = io.BytesIO()
    try:
        with library.SoundFile(
            stream, "w", rate, len(samples), subtype=subtype, format="WAV" if kind == "wav" else kind.upper()
        ) as file:
            for start in range(0, samples.shape[1], _PORTION):
                file.write(samples[:, start : start + _PORTION].T)
    except (library.LibsndfileError, ValueError, TypeError) as error:
        raise EncodingError(
            f"{len(samples)} channels at {rate} Hz cannot be written as {kind}: {describe_error(error)}"
        ) from error
    return stream.getvalue()


def _encode_with_pyav(samples: np.ndarray, rate: int, container: str, codec: str) -> bytes:
    library = require("av", extra="media", purpose="writing audio")
    if codec == "libopus" and rate not in _OPUS_RATES:
        raise EncodingError(f"Opus has the rates {_OPUS_RATES}, not {rate} Hz: resample first")
    stream = io.BytesIO()
    try:
        with library.open(stream, "w", format=container, container_options={"fflags": "+bitexact"}) as file:
            mux_sound(library, file, samples, rate, codec)()
    except (library.FFmpegError, ValueError) as error:
        raise EncodingError(
            f"{len(samples)} channels at {rate} Hz cannot be written as {container}: {describe_error(error)}"
        ) from error
    return stream.getvalue()


def mux_sound(library: ModuleType, file: Any, samples: np.ndarray, rate: int, codec: str) -> Callable[[], None]:
    """Add an audio track to an output container.

    Args:
        library: PyAV.
        file: an open output container.
        samples: [channels, frames].
        rate: Hz.
        codec: ffmpeg's name of the encoder.

    Returns:
        A function that encodes all samples; other tracks are added before it is called.
    """
    layout = _LAYOUTS[len(samples)]
    track = file.add_stream(codec, rate=rate, layout=layout)
    if not codec.startswith(("pcm", "flac")):
        track.bit_rate = min(max(32_000, rate * len(samples) * _BITS_A_SAMPLE), 256_000 * len(samples))
    format_name = _FORMATS[samples.dtype.str[1:]]
    if codec == "flac":
        track.codec_context.format = format_name

    def write() -> None:
        for start in range(0, samples.shape[1], _PORTION):
            packed = np.ascontiguousarray(samples[:, start : start + _PORTION].T).reshape(1, -1)
            frame = library.AudioFrame.from_ndarray(packed, format=format_name, layout=layout)
            frame.sample_rate, frame.pts = rate, start
            file.mux(track.encode(frame))
        file.mux(track.encode(None))

    return write


encode_wav = partial(encode_sound, kind="wav")
encode_flac = partial(encode_sound, kind="flac")
encode_ogg = partial(encode_sound, kind="ogg")
encode_mp3 = partial(encode_sound, kind="mp3")
encode_m4a = partial(encode_sound, kind="m4a")
encode_opus = partial(encode_sound, kind="opus")
