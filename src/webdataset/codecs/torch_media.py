"""Video and audio to tensors, through PyAV.

Flows in: the bytes of one media file. Flows out: the tuples that upstream's handlers gave: frames, sound and rates.
"""

import io
from typing import Any

from webdataset.ground.extras import require

Rates = dict[str, float]


def _opened(data: bytes, purpose: str) -> tuple[Any, Any, Any]:
    torch = require("torch", extra="torch", purpose=purpose)
    av = require("av", extra="media", purpose=purpose)
    return torch, av, av.open(io.BytesIO(data))


def video(data: bytes) -> tuple[Any, Any, Rates]:
    """Decode a video file.

    Args:
        data: its bytes.

    Returns:
        Frames uint8[T, H, W, 3], sound float32[channels, samples] (1 x 0 where there is none) and a dict with
        ``video_fps`` and, where there is sound, ``audio_fps``.

    Raises:
        MissingExtra: PyAV or torch is not installed.
        OSError: not a video.
    """
    torch, av, container = _opened(data, "decoding video")
    rates: Rates = {}
    frames = torch.empty((0, 1, 1, 3), dtype=torch.uint8)
    with container:
        if container.streams.video:
            rates["video_fps"] = float(container.streams.video[0].average_rate or 0)
            pictures = [torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
            frames = torch.stack(pictures) if pictures else frames
        sound, rate = torch.empty((1, 0)), 0
        if container.streams.audio:
            container.seek(0)
            sound, rate = _sound(torch, av, container)
            rates["audio_fps"] = rate
    return frames, sound, rates


def audio(data: bytes) -> tuple[Any, int]:
    """Decode an audio file.

    Args:
        data: its bytes.

    Returns:
        Sound float32[channels, samples] in [-1, 1], and its rate in Hz.

    Raises:
        MissingExtra: PyAV or torch is not installed.
        OSError: not an audio file.
    """
    torch, av, container = _opened(data, "decoding audio")
    with container:
        return _sound(torch, av, container)


def _sound(torch: Any, av: Any, container: Any) -> tuple[Any, int]:
    resampler = av.AudioResampler(format="fltp")
    pieces: list[Any] = []
    rate = 0
    for frame in container.decode(audio=0):
        rate = frame.sample_rate
        pieces += [torch.from_numpy(piece.to_ndarray()) for piece in resampler.resample(frame)]
    pieces += [torch.from_numpy(piece.to_ndarray()) for piece in resampler.resample(None)] if pieces else []
    return (torch.cat(pieces, dim=1) if pieces else torch.empty((1, 0))), rate
