"""Sound to audio files.

Flows in: pairs of samples and a rate, as the audio handlers give them. Flows out: the bytes of one audio file. WAV
keeps every sample as it is, FLAC keeps 24 bits; the others lose. soundfile writes WAV, FLAC and Ogg where it is
installed, PyAV the rest. Nothing is resampled or clipped silently.
"""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from webdataset.ground.errors import EncodingError, said
from webdataset.ground.extras import available, require

_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_SUBTYPES = {"i2": "PCM_16", "i4": "PCM_32", "u1": "PCM_U8", "f4": "FLOAT", "f8": "DOUBLE"}
_PCM = {"i2": "pcm_s16le", "i4": "pcm_s32le", "u1": "pcm_u8", "f4": "pcm_f32le", "f8": "pcm_f64le"}
_FORMATS = {"i2": "s16", "i4": "s32", "u1": "u8", "f4": "flt", "f8": "dbl"}
_LOSSY = {"mp3": ("mp3", "libmp3lame"), "m4a": ("mp4", "aac"), "opus": ("ogg", "libopus")}
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_BITS_A_SAMPLE = 4
_PORTION = 1 << 15  # samples given to an encoder at once


def encode_sound(value: Any, kind: str) -> bytes:
    """Encode sound.

    Args:
        value: a pair of samples and a rate in Hz; samples [channels, frames] or [frames], an array or tensor of
            float32 or float64 in [-1, 1], int16, int32 or uint8.
        kind: wav, flac, ogg, mp3, m4a or opus. Opus takes only the rates 8, 12, 16, 24 and 48 kHz.

    Returns:
        The audio file.

    Raises:
        EncodingError: not such a pair, or the format cannot hold it.
        MissingExtra: the package that writes this format is not installed.
    """
    samples, rate = checked(value)
    if kind == "flac":
        samples = _in_24_bits(samples)
    elif kind not in ("wav", "ogg"):
        return _by_pyav(floats(samples), rate, *_LOSSY[kind])
    library = available("soundfile")
    if library is not None:
        return _by_soundfile(library, samples, rate, kind)
    if kind == "ogg":
        require("soundfile", extra="audio", purpose="writing ogg fields")
    return _by_pyav(samples, rate, kind, "flac" if kind == "flac" else _PCM[samples.dtype.str[1:]])


def checked(value: Any) -> tuple[Any, int]:
    """Return samples as an array [channels, frames], and the rate.

    Args:
        value: what was given to be encoded.

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


def floats(samples: Any) -> Any:
    """Return samples as float32.

    Args:
        samples: as ``checked`` returns them.

    Raises:
        EncodingError: floats beyond [-1, 1].
    """
    if samples.dtype.kind == "f":
        if not (np.abs(samples) <= 1).all():  # NaN fails, too
            raise EncodingError("samples must lie in [-1, 1]; WAV takes others")
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)


def _in_24_bits(samples: Any) -> Any:
    """Return int16 as it is, all else as int32 whose last 8 bits are 0."""
    if samples.dtype == np.int16:
        return samples
    if samples.dtype == np.uint8:
        return (samples.astype(np.int16) - 128) << 8
    if samples.dtype == np.int32:
        if (samples & 255).any():
            raise EncodingError("FLAC holds 24 bits of a sample, these use 32: use WAV")
        return samples
    floats(samples)
    steps = np.rint(samples.astype(np.float64) * 2**23).clip(-(2**23), 2**23 - 1)
    return steps.astype(np.int32) << 8


def _by_soundfile(library: Any, samples: Any, rate: int, kind: str) -> bytes:
    subtype = _SUBTYPES[samples.dtype.str[1:]]
    if kind == "ogg":
        samples, subtype = floats(samples), "VORBIS"
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
            f"{len(samples)} channels at {rate} Hz cannot be written as {kind}: {said(error)}"
        ) from error
    return stream.getvalue()


def _by_pyav(samples: Any, rate: int, container: str, codec: str) -> bytes:
    library = require("av", extra="media", purpose="writing audio")
    if codec == "libopus" and rate not in _OPUS_RATES:
        raise EncodingError(f"Opus has the rates {_OPUS_RATES}, not {rate} Hz: resample first")
    stream = io.BytesIO()
    try:
        with library.open(stream, "w", format=container, container_options={"fflags": "+bitexact"}) as file:
            mux_sound(library, file, samples, rate, codec)()
    except (library.FFmpegError, ValueError) as error:
        raise EncodingError(
            f"{len(samples)} channels at {rate} Hz cannot be written as {container}: {said(error)}"
        ) from error
    return stream.getvalue()


def mux_sound(library: Any, file: Any, samples: Any, rate: int, codec: str) -> Callable[[], None]:
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


encode_wav: Callable[[Any], bytes] = partial(encode_sound, kind="wav")
encode_flac: Callable[[Any], bytes] = partial(encode_sound, kind="flac")
encode_ogg: Callable[[Any], bytes] = partial(encode_sound, kind="ogg")
encode_mp3: Callable[[Any], bytes] = partial(encode_sound, kind="mp3")
encode_m4a: Callable[[Any], bytes] = partial(encode_sound, kind="m4a")
encode_opus: Callable[[Any], bytes] = partial(encode_sound, kind="opus")
