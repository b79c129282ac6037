"""Video and audio fields: handlers that must be asked for by name, as upstream's.

Flows in: encoded video or audio. Flows out: tensors. Decoding is in ``torch_media``, loaded with the first such field.
"""

from typing import Any

from .registry import Codec, Deferred


class MediaHandler:
    """Decodes fields with some extensions through one function.

    Args:
        extensions: last components of field names, lower case, separated by spaces.
        decode: takes the bytes.
    """

    final = True

    def __init__(self, extensions: str, decode: Codec) -> None:
        self.extensions = frozenset(extensions.split())
        self.decode = decode

    def claim(self, key: str, trust: str | None = None) -> Codec | None:  # noqa: ARG002  media run no code
        """Return the decoder where the key's last extension is one of these."""
        return self.decode if key.rpartition(".")[2].lower() in self.extensions else None

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode one field, or return None where its extension is not one of these."""
        return None if self.claim(key) is None else self.decode(data)

    def __repr__(self) -> str:
        return f"MediaHandler({self.decode!r})"


torch_video = MediaHandler("mp4 ogv mjpeg avi mov h264 mpg webm wmv", Deferred("torch_media", "video"))
torch_audio = MediaHandler("flac mp3 sox wav m4a ogg wma", Deferred("torch_media", "audio"))
