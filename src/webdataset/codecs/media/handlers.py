"""Handlers of video, audio and tensor fields, which decode only if named, as upstream's do.

They give tensors (``torch_video``, ``torch_audio``), arrays (``audio``), videos that decode on demand (``video``), or
clips (``video_clips``; at random places ``random_clips``). The decoding modules are loaded with the first such field.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webdataset.codecs.handlers import KeyHandler
from webdataset.codecs.registry import BytesDecoder, LazyCodec
from webdataset.core.errors import DecodingError, UsageError

if TYPE_CHECKING:
    import random

    from webdataset.codecs.decoder import Sample
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


@dataclass(frozen=True)
class RandomClips:
    """Cuts clips at random places out of a video field; made by :func:`random_clips`, which says what these are."""

    field: str
    frames: int
    stride: int
    count: int
    size: int | tuple[int, int] | None
    partial: bool

    def __post_init__(self) -> None:
        if min(self.frames, self.stride, self.count) < 1:
            raise UsageError(
                f"{self.count} clips of {self.frames} frames, stride {self.stride}: all must be at least 1"
            )

    def __call__(self, sample: "Sample", generator: "random.Random") -> "Sample":
        """Return a sample with clips in place of its video.

        Args:
            sample: its field holds bytes, or what ``wds.video`` gives.
            generator: the sample's own.
        """
        found = sample.get(self.field)
        video = _video(bytes(found)) if isinstance(found, bytes | memoryview) else found
        if video is None or not hasattr(video, "clips_at") or not hasattr(generator, "randrange"):
            raise UsageError(
                f"random_clips needs a field {self.field!r} and a generator of Python's: write "
                f"dataset.map(wds.random_clips({self.field!r}, {self.frames}), rng=True)"
            )
        span, length = (self.frames - 1) * self.stride + 1, video.count_frames()
        if length < span and not (self.partial and length):
            raise DecodingError(
                f"the video has {length} frames, and a clip spans {span}: pass partial=True for clips of fewer",
                field=self.field,
            )
        starts = [generator.randrange(max(1, length - span + 1)) for _ in range(self.count)]
        clips = video.clips_at(starts, self.frames, stride=self.stride, size=self.size)
        return {**sample, self.field: clips}


def random_clips(
    field: str,
    frames: int,
    *,
    stride: int = 1,
    count: int = 1,
    size: int | tuple[int, int] | None = None,
    partial: bool = False,
) -> RandomClips:
    """Return a function for ``dataset.map(..., rng=True)`` that cuts clips at random places out of a video field.

    The places depend on the run's seed, the epoch and the sample's name alone, so they are the same on any number of
    workers and after a resume. The field's value becomes a list of clips, in the order in which they were drawn; each
    has ``frames`` uint8[T, H, W, 3] and ``seconds`` float64[T]. Only what a clip needs is decoded.

    Args:
        field: name of the field; it holds bytes, or what ``wds.video`` gives.
        frames: frames in a clip.
        stride: every n-th frame of the video is in the clip.
        count: clips of each video; they may overlap.
        size: of the frames, (height, width) or the length of the shorter side; None leaves it.
        partial: of a video that is too short give clips of the frames that there are; else it is an error.

    Raises:
        UsageError: a number below 1; when it runs, no such field, or another generator than ``rng=True`` gives.
        DecodingError: when it runs: the video is too short, or damaged.
        MissingExtra: when it runs: PyAV is not installed.
    """
    return RandomClips(field, frames, stride, count, size, partial)


_video = LazyCodec("media.video_decode", "Video")
VIDEO_EXTENSIONS = "mp4 ogv mjpeg avi mov h264 mpg webm wmv mkv mpeg m4v"
AUDIO_EXTENSIONS = "flac mp3 sox wav m4a ogg wma opus aac oga aif aiff"
torch_video = MediaHandler(VIDEO_EXTENSIONS, LazyCodec("torch_codecs", "video"))
torch_audio = MediaHandler(AUDIO_EXTENSIONS, LazyCodec("torch_codecs", "audio"))
video = MediaHandler(VIDEO_EXTENSIONS, _video)
audio = MediaHandler(AUDIO_EXTENSIONS, LazyCodec("media.audio_codec", "sound_loads"))
torch_safetensors = MediaHandler("safetensors", LazyCodec("torch_codecs", "tensors_loads"))
