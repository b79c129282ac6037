"""Handlers of video, audio and tensor fields, which decode only if named, as upstream's do.

They give tensors (``torch_video``, ``torch_audio``), arrays (``audio``), videos that decode on demand (``video``), or
clips (``video_clips``). The decoding modules are loaded with the first such field.
"""

import itertools
from typing import TYPE_CHECKING, Any

from webdataset.codecs.handlers import KeyHandler
from webdataset.codecs.registry import BytesDecoder, LazyCodec

if TYPE_CHECKING:
    from webdataset.codecs.media.video_decode import Clip


class MediaHandler(KeyHandler):
    """Decodes fields with some extensions through one function.

    Args:
        extensions: last components of field names, lower case, separated by spaces.
        decode: takes the bytes.
    """

    final = True

    def __init__(self, extensions: str, decode: BytesDecoder) -> None:
        self.extensions = frozenset(extensions.split())
        self.decode = decode

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:  # noqa: ARG002  media run no code
        """Return the decoder where the key's last extension is one of these."""
        return self.decode if key.rpartition(".")[2].lower() in self.extensions else None

    def __repr__(self) -> str:
        return f"MediaHandler({self.decode!r})"


class VideoClips:
    """Decodes videos into lists of clips.

    Args:
        frames: frames in a clip.
        stride: every n-th frame of the video is in the clip.
        step: frames of the video from the start of one clip to that of the next; default: no overlap, no gap.
        size: of the frames, (height, width) or the length of the shorter side; None leaves it.
        partial: keep clips that the end cuts short, too.
        limit: stop decoding after so many clips; None means all.
    """

    def __init__(
        self,
        frames: int,
        *,
        stride: int = 1,
        step: int | None = None,
        size: int | tuple[int, int] | None = None,
        partial: bool = False,
        limit: int | None = None,
    ) -> None:
        self.frames = frames
        self.options = {"stride": stride, "step": step, "size": size, "partial": partial}
        self.limit = limit

    def __call__(self, data: bytes) -> "list[Clip]":
        """Decode one field."""
        video = _video(data)
        return list(itertools.islice(video.clips(self.frames, **self.options), self.limit))

    def __repr__(self) -> str:
        return f"VideoClips({self.frames}, limit={self.limit}, **{self.options!r})"


def video_clips(frames: int, **options: Any) -> MediaHandler:
    """Return a handler that decodes videos into lists of clips; each has ``frames`` uint8[T, H, W, 3] and ``seconds``.

    Args:
        frames: frames in a clip.
        **options: ``stride``, ``step``, ``size``, ``partial``, ``limit``; see :class:`VideoClips`.
    """
    return MediaHandler(VIDEO_EXTENSIONS, VideoClips(frames, **options))


_video = LazyCodec("media.video_decode", "Video")
VIDEO_EXTENSIONS = "mp4 ogv mjpeg avi mov h264 mpg webm wmv mkv mpeg m4v"
AUDIO_EXTENSIONS = "flac mp3 sox wav m4a ogg wma opus aac oga aif aiff"
torch_video = MediaHandler(VIDEO_EXTENSIONS, LazyCodec("torch_codecs", "video"))
torch_audio = MediaHandler(AUDIO_EXTENSIONS, LazyCodec("torch_codecs", "audio"))
video = MediaHandler(VIDEO_EXTENSIONS, _video)
audio = MediaHandler(AUDIO_EXTENSIONS, LazyCodec("media.audio_codec", "sound_loads"))
torch_safetensors = MediaHandler("safetensors", LazyCodec("torch_codecs", "tensors_loads"))
