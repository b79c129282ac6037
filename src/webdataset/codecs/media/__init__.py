"""Sound and video: media files to samples and frames, and back.

``handlers`` has what ``decode`` is given. ``sound_decoding`` and ``video_decoding`` decode, over ``containers`` (PyAV)
and ``whole`` (cut files); ``sound_encoding`` and ``video_encoding`` encode. Only ``handlers`` is loaded before there is
such a field.
"""

from .handlers import (
    AUDIO_EXTENSIONS,
    VIDEO_EXTENSIONS,
    MediaHandler,
    VideoClips,
    audio,
    torch_audio,
    torch_safetensors,
    torch_video,
    video,
    video_clips,
)

__all__ = [
    "AUDIO_EXTENSIONS",
    "VIDEO_EXTENSIONS",
    "MediaHandler",
    "VideoClips",
    "audio",
    "torch_audio",
    "torch_safetensors",
    "torch_video",
    "video",
    "video_clips",
]
