"""Outlines of sound for the page, and what headers of sound and videos say.

Runs in the limited process alone. Sound is decoded piece by piece and only its peaks are kept. Of what is long, a short
stretch of each column is decoded where the format allows that, else decoding ends after some seconds of CPU time. The
answer says which, and how many seconds it shows.
"""

import contextlib
import io
import itertools
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from webdataset.core.optional_imports import import_if_available
from webdataset.inspection.media_header import MediaHeader, read_media_header
from webdataset.viewer.plain_values import JsonObject, bound_json, explain_failure
from webdataset.viewer.preview_content import NoPreview, open_media, strip_compression
from webdataset.viewer.sound_pieces import SoundPieces, read_pieces

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer

_PIECE: Final = 1 << 16
_STRETCH: Final = 2048
# frames times channels: ten minutes of stereo at 48 kHz
_LONG: Final = 48_000 * 2 * 600
_CPU_SECONDS: Final = 8.0
_MOST_CHANNELS: Final = 8
# of all channels, so that one piece stays small
_MOST_TRACKS: Final = 256
_FINE: Final = 64
_MOST_FINE: Final = 1 << 16


def make_waveform(name: str, payload: bytes, columns: int) -> JsonObject:
    """Return duration, rate, channels and peaks of a sound, or of the sound of a video.

    Args:
        name: the field's name.
        payload: its bytes.
        columns: how many peaks.

    Raises:
        NoPreview: no sound.
        OSError: damaged; decoders raise ``ValueError`` and others, too.
    """
    _, content = strip_compression(name, payload)
    library = import_if_available("soundfile")
    if library is not None and content[:4] in (b"RIFF", b"RF64", b"fLaC", b"FORM", b"OggS"):
        try:
            return _outline_with_soundfile(library, content, columns)
        except library.LibsndfileError:
            if import_if_available("av") is None:
                raise
    return _outline_with_pyav(content, columns)


def _outline_with_soundfile(library: ModuleType, content: bytes, columns: int) -> JsonObject:
    with library.SoundFile(io.BytesIO(content)) as file:
        frames, rate, channels = int(file.frames), int(file.samplerate), int(file.channels)
        if channels > _MOST_TRACKS:
            raise NoPreview(f"a sound of {channels} channels")
        # a stated length that the bytes cannot hold is one that is not known
        if frames <= 0 or frames > len(content) * 1000:
            raise NoPreview("the sound has no frames, or states a length that its bytes cannot hold")
        columns = min(columns, frames)
        edges = [number * frames // columns for number in range(columns + 1)]
        lowest = np.zeros((columns, channels), np.float32)
        highest = np.zeros((columns, channels), np.float32)
        sampled = frames * channels > _LONG
        done = _read_columns(file, edges, lowest, highest, stretch=_STRETCH if sampled else None)
    found = _describe_peaks(lowest[:done], highest[:done], channels)
    found |= {"duration_seconds": round(frames / rate, 6) if rate else None, "rate": rate, "channels": channels}
    shown = min(done * _STRETCH, frames) if sampled else edges[done]
    return {**found, **_describe_extent(shown, rate, truncated=done < columns, sampled=sampled)}


def _describe_extent(frames: int, rate: int, *, truncated: bool, sampled: bool) -> JsonObject:
    """Return how much of a sound is shown, and whether it is its beginning or stretches of all of it."""
    shown = round(frames / rate, 6) if rate else None
    return {"shown_seconds": shown, "truncated": truncated, "sampled": sampled}


def _read_columns(
    file: Any,
    edges: list[int],
    lowest: np.ndarray,
    highest: np.ndarray,
    stretch: int | None,
) -> int:
    """Fill in the peaks of each column, or of a stretch at its beginning; return how many could be read."""
    deadline = time.process_time() + _CPU_SECONDS
    for column, (start, stop) in enumerate(itertools.pairwise(edges)):
        if time.process_time() > deadline:
            return column
        if stretch is not None:
            file.seek(start)
        left = stop - start if stretch is None else min(stretch, stop - start)
        low, high = np.inf, -np.inf
        while left:
            piece = file.read(min(_PIECE, left), dtype="float32", always_2d=True)
            if not len(piece):
                return column
            low, high = np.minimum(low, piece.min(axis=0)), np.maximum(high, piece.max(axis=0))
            left -= len(piece)
        lowest[column], highest[column] = low, high
    return len(edges) - 1


def _describe_peaks(lowest: np.ndarray, highest: np.ndarray, channels: int) -> JsonObject:
    lowest = np.nan_to_num(lowest, posinf=1, neginf=-1).clip(-1, 1)
    highest = np.nan_to_num(highest, posinf=1, neginf=-1).clip(-1, 1)
    found: JsonObject = {"peaks": _pair(lowest.min(axis=1), highest.max(axis=1)) if channels else []}
    if 1 < channels <= _MOST_CHANNELS:
        found["by_channel"] = [_pair(lowest[:, number], highest[:, number]) for number in range(channels)]
    return found


def _pair(lowest: np.ndarray, highest: np.ndarray) -> list[list[float]]:
    return [[round(float(low), 4), round(float(high), 4)] for low, high in zip(lowest, highest, strict=True)]


def _outline_with_pyav(content: bytes, columns: int) -> JsonObject:
    def read(start: int, stop: int) -> bytes:
        return content[start:stop]

    header = read_media_header(read(0, 1 << 16), len(content), read)
    if header.get("duration_seconds", 0) * header.get("rate", 0) * header.get("channels", 0) > _LONG:
        sound = read_pieces(len(content), read)
        if sound is not None:
            return outline_pieces(sound, header)
    with open_media(content) as container:
        if not container.streams.audio:
            raise NoPreview("the file has no sound")
        stream = container.streams.audio[0]
        if stream.codec_context is None:
            raise NoPreview("the sound is damaged, or of a kind that ffmpeg does not know")
        stream.codec_context.thread_type = "NONE"
        stated = container.duration / 1e6 if container.duration else None
        fine = _FinePeaks()
        complete, rate, problem = fine.decode(container, stream)
    lowest, highest = fine.columns(columns)
    channels = lowest.shape[1]
    found = _describe_peaks(lowest, highest, channels)
    seconds = fine.frames / rate if rate else None
    if not complete and stated is not None:
        seconds = stated
    found |= {"duration_seconds": None if seconds is None else round(seconds, 6), "rate": rate, "channels": channels}
    if problem is not None:
        found["note"] = problem
    found |= _describe_extent(fine.frames, rate, truncated=not complete, sampled=False)
    return bound_json(found)[0]  # type: ignore[no-any-return]


class _FinePeaks:
    """Peaks of short stretches of a sound whose length is not known beforehand; stretches grow with it."""

    def __init__(self) -> None:
        self.frames = 0
        self._stretch = _FINE
        self._lowest: list[np.ndarray] = []
        self._highest: list[np.ndarray] = []
        # samples [channels, frames] of a stretch that is not whole yet
        self._rest: np.ndarray | None = None

    def decode(self, container: "InputContainer", stream: "AudioStream") -> tuple[bool, int, str | None]:
        """Decode a track; return whether to its end, its rate in Hz, and what stopped it."""
        from av import AudioResampler  # noqa: PLC0415  the container is PyAV's
        from av.error import FFmpegError  # noqa: PLC0415

        deadline = time.process_time() + _CPU_SECONDS
        planes = AudioResampler(format="fltp")
        rate = 0
        try:
            for frame in itertools.chain(container.decode(stream), [None]):
                rate = rate if frame is None else frame.sample_rate
                if frame is None and not rate:
                    break
                for piece in planes.resample(frame):
                    self._add(piece.to_ndarray())
                if time.process_time() > deadline:
                    return False, rate, None
        except (FFmpegError, ValueError) as error:
            if not self.frames:
                raise
            return False, rate, f"only a part decodes: {explain_failure(error)[:200]}"
        return True, rate, None

    def _add(self, samples: np.ndarray) -> None:
        """Add samples [channels, frames]."""
        if self._rest is not None:
            if len(samples) != len(self._rest):
                raise ValueError("the number of channels changes")
            samples = np.concatenate([self._rest, samples], axis=1)
            self.frames -= self._rest.shape[1]
        self.frames += samples.shape[1]
        whole = samples.shape[1] // self._stretch
        parts = samples[:, : whole * self._stretch].reshape(len(samples), whole, self._stretch)
        self._lowest.extend(parts.min(axis=2).T if whole else ())
        self._highest.extend(parts.max(axis=2).T if whole else ())
        self._rest = samples[:, whole * self._stretch :].copy()
        if len(self._lowest) > _MOST_FINE:
            self._merge()

    def _merge(self) -> None:
        """Make stretches twice as long."""
        if len(self._lowest) % 2:
            # of an odd number the last is as long as two; one in thousands does not show
            self._lowest.append(self._lowest[-1])
            self._highest.append(self._highest[-1])
        self._lowest = list(np.minimum(self._lowest[::2], self._lowest[1::2]))
        self._highest = list(np.maximum(self._highest[::2], self._highest[1::2]))
        self._stretch *= 2

    def columns(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the peaks of each column, [columns, channels] each."""
        lowest, highest = list(self._lowest), list(self._highest)
        if self._rest is not None and self._rest.shape[1]:
            lowest.append(self._rest.min(axis=1))
            highest.append(self._rest.max(axis=1))
        if not lowest:
            raise NoPreview("the sound has no frames")
        count = min(count, len(lowest))
        starts = np.arange(count) * len(lowest) // count
        return np.minimum.reduceat(lowest, starts), np.maximum.reduceat(highest, starts)


def outline_pieces(sound: SoundPieces, header: MediaHeader) -> JsonObject:
    """Return duration, rate, channels and peaks of a sound, one column for each piece of it.

    Args:
        sound: its pieces.
        header: what its headers say.

    Raises:
        NoPreview: none of the pieces decodes.
    """
    deadline = time.process_time() + _CPU_SECONDS
    found: list[_PiecePeaks | None] = []
    for piece in sound.pieces:
        if time.process_time() > deadline:
            break
        found.append(_decode_piece(sound.head + piece, sound.format))
    first = next((each for each in found if each is not None), None)
    if first is None:
        raise NoPreview("the sound does not decode in the middle of the file")
    channels = len(first.lowest)
    gap = _PiecePeaks(np.zeros(channels, np.float32), np.zeros(channels, np.float32), 0, first.rate)
    fitting = [gap if each is None or len(each.lowest) != channels else each for each in found]
    answer = _describe_peaks(
        np.array([each.lowest for each in fitting]), np.array([each.highest for each in fitting]), channels
    )
    answer |= {"duration_seconds": header.get("duration_seconds"), "rate": first.rate, "channels": channels}
    failed = sum(each is gap for each in fitting)
    if failed:
        answer["note"] = f"{failed} of {len(fitting)} stretches do not decode"
    frames = sum(each.frames for each in fitting)
    truncated = len(found) < len(sound.pieces)
    return {**answer, **_describe_extent(frames, first.rate, truncated=truncated, sampled=True)}


class _PiecePeaks(NamedTuple):
    """The least and greatest values of a piece by channel, its frames, and its rate in Hz."""

    lowest: np.ndarray
    highest: np.ndarray
    frames: int
    rate: int


def _decode_piece(content: bytes, form: str) -> _PiecePeaks | None:
    """Return the peaks of what decodes of a piece; None if nothing does."""
    from av import AudioResampler  # noqa: PLC0415  an extra
    from av.error import FFmpegError  # noqa: PLC0415

    planes = AudioResampler(format="fltp")
    parts: list[np.ndarray] = []
    rate = 0
    with contextlib.suppress(FFmpegError, ValueError, OSError), open_media(content, form) as container:
        for packet in container.demux(container.streams.audio[:1]):
            # a piece begins in the middle of a frame
            with contextlib.suppress(FFmpegError, ValueError):
                for frame in packet.decode():
                    rate = frame.sample_rate
                    parts += [piece.to_ndarray() for piece in planes.resample(frame)]
    parts = [part for part in parts if len(part) == len(parts[0]) and part.shape[1]]
    if not parts:
        return None
    samples = np.concatenate(parts, axis=1)
    return _PiecePeaks(samples.min(axis=1), samples.max(axis=1), samples.shape[1], rate)


def describe_media(name: str, payload: bytes) -> JsonObject:
    """Return what the headers of a video or sound say.

    Args:
        name: the field's name.
        payload: its bytes.

    Returns:
        ``duration_seconds``, ``container``, ``video`` (width, height, frame_rate, codec), ``audio`` (rate, channels,
        codec); absent where not known.
    """
    _, content = strip_compression(name, payload)
    with open_media(content) as container:
        found: JsonObject = {"container": container.format.name}
        if container.duration:
            found["duration_seconds"] = round(container.duration / 1e6, 6)
        for video in container.streams.video[:1]:
            rate = video.average_rate
            found["video"] = {
                "width": video.width,
                "height": video.height,
                "frame_rate": round(float(rate), 3) if rate else None,
                "codec": video.codec_context.name if video.codec_context else None,
            }
        for audio in container.streams.audio[:1]:
            context = audio.codec_context
            found["audio"] = {
                "rate": audio.rate if context else None,
                "channels": audio.channels if context else None,
                "codec": context.name if context else None,
            }
    return bound_json(found)[0]  # type: ignore[no-any-return]
