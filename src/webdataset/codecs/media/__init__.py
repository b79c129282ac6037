"""Sound and video: decodes media files to samples and frames, and encodes them.

``handlers`` has what ``decode`` is given. ``audio_codec`` decodes and encodes sound, ``video_decode`` decodes videos,
``video_encode`` encodes them; ``container`` opens files with PyAV and finds cut ones. Only ``handlers`` is loaded
before the first such field.
"""

from webdataset.codecs.media.handlers import (
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
