"""Sound and video: decodes media files to samples and frames, and encodes them.

``handlers`` has what ``decode`` is given. ``audio_codec`` decodes and encodes sound, ``video_decode`` decodes videos,
``video_encode`` encodes them; ``container`` opens files with PyAV and finds cut ones. ``frame_table`` says what to
decode for some frames, ``frame_seek`` decodes them out of an open file. ``ranged_video`` decodes parts of a video of
which only ranges are read: ``mp4_boxes``, ``mp4_samples`` and ``mp4_fragments`` read its tables, ``mp4_clip_file``
writes a file of some frames; ``matroska_clusters`` does both for Matroska and WebM. Only ``handlers`` is loaded before
the first such field.
"""

from webdataset.codecs.media.handlers import (
    AUDIO_EXTENSIONS,
    VIDEO_EXTENSIONS,
    MediaHandler,
    RandomClips,
    VideoClips,
    audio,
    random_clips,
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
    "RandomClips",
    "VideoClips",
    "audio",
    "random_clips",
    "torch_audio",
    "torch_safetensors",
    "torch_video",
    "video",
    "video_clips",
]
