"""Video and audio as tensors.

Flows in: the bytes of one media file. Flows out: the tuples that torchvision's and torchaudio's readers gave: frames,
sound and rates. Decoding is in the room ``media``; nothing is copied here.
"""

from typing import Any

from webdataset.ground.extras import require

from .media.sound_decoding import sound_loads
from .media.video_decoding import video_loads

torch: Any = require("torch", extra="torch", purpose="decoding video and audio to tensors")


def video(data: bytes) -> tuple[Any, Any, dict[str, float]]:
    """Decode a video file.

    Args:
        data: its bytes.

    Returns:
        Frames uint8[T, H, W, 3], sound float32[channels, samples] ([1, 0] where there is none) and a dict with
        ``video_fps`` and, where there is sound, ``audio_fps``.

    Raises:
        MissingExtra: PyAV is not installed.
        FieldTooLarge: frames or sound beyond the limits.
        OSError: not a video; ``ValueError`` for some.
    """
    frames, sound, rates = video_loads(data)
    return torch.from_numpy(frames), torch.from_numpy(sound), rates


def audio(data: bytes) -> tuple[Any, int]:
    """Decode an audio file.

    Args:
        data: its bytes.

    Returns:
        Sound float32[channels, frames] in [-1, 1], and its rate in Hz.

    Raises:
        MissingExtra: neither soundfile nor PyAV is installed.
        OSError: not an audio file; ``ValueError`` for some.
    """
    samples, rate = sound_loads(data)
    return torch.from_numpy(samples), rate
