"""Real fields of every kind that the viewer shows, small, and hostile ones that ask for much memory or time."""

import base64
import functools
import io
import json
import struct
import wave
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image


def encode_image(kind: str, mode: str = "RGB", size: tuple[int, int] = (40, 24), **options: object) -> bytes:
    """Return an image file with a gradient in it."""
    rows = np.linspace(0, 255, size[0] * size[1]).reshape(size[1], size[0]).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(rows).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def encode_npy(values: object, *, pickled: bool = False) -> bytes:
    """Return an npy file."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(values, dtype=object if pickled else None), allow_pickle=pickled)
    return stream.getvalue()


def encode_npz(**arrays: Any) -> bytes:
    """Return a compressed npz file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def encode_safetensors(header: Mapping[str, object], content: bytes) -> bytes:
    """Return a safetensors file with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def encode_wav(samples: np.ndarray, rate: int = 8000) -> bytes:
    """Return a WAV file of int16[frames, channels]."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return stream.getvalue()


def encode_sound(kind: str, samples: np.ndarray, rate: int = 8000) -> bytes:
    """Return a sound file of float32[channels, frames] as this library writes it."""
    from webdataset.codecs.media.audio_codec import encode_sound as encode

    return encode((samples, rate), kind)


def encode_video(kind: str = "mp4", frames: int = 5, size: tuple[int, int] = (64, 48)) -> bytes:
    """Return a video of one colour a frame."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track = container.add_stream("mpeg4" if kind == "mp4" else "vp8", rate=10)
        track.width, track.height, track.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            pixels = np.full((size[1], size[0], 3), (40 * number + 40) % 256, np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(track.encode())
    return stream.getvalue()


def document_json() -> bytes:
    """Return a document with one image in base64 and one of another name."""
    return json.dumps(
        {
            "text_list": ["First.", "Second."],
            "image_info": [
                {"image_name": "x.jpg", "matched_text_index": 1, "matched_sim": 0.5, "caption": "a picture"},
                {
                    "image_name": "in.png",
                    "matched_text_index": 0,
                    "image_base64": base64.b64encode(encode_image("PNG")).decode(),
                },
            ],
        }
    ).encode()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@functools.cache
def huge_png(width: int = 50_000, height: int = 50_000) -> bytes:
    """Return a whole, valid PNG of one colour: 2.5 gigapixels of one bit in 300 KB."""
    row = b"\0" * (1 + (width + 7) // 8)
    engine = zlib.compressobj(9)
    content = bytearray()
    for _ in range(height):
        content += engine.compress(row)
    content += engine.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", bytes(content)) + _chunk(b"IEND", b"")


def endless_gif(frames: int = 20_000) -> bytes:
    """Return an animation of many frames and no end."""
    whole = encode_image("GIF", "P", (16, 16))
    start = whole.index(b"\x2c\0\0\0\0")
    return whole[:start] + whole[start:-1] * frames


@functools.cache
def npz_bomb(size_bytes: int = 600 << 20) -> bytes:
    """Return an npz of few bytes whose one array grows to so many."""
    stream = io.BytesIO()
    head = encode_npy(np.zeros(0, np.uint8)).replace(b"(0,), }", b"(%d,), }" % size_bytes)
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as out,
    ):
        out.write(head)
        for _ in range(size_bytes >> 24):
            out.write(bytes(1 << 24))
    return stream.getvalue()


def lying_npz() -> bytes:
    """Return an npz whose directory states far fewer bytes than its member has."""
    whole = bytearray(encode_npz(x=np.zeros(1 << 22)))
    at = whole.rfind(b"PK\1\2")
    whole[at + 24 : at + 28] = struct.pack("<I", 200)
    return bytes(whole)


FIELDS: dict[str, Callable[[], bytes]] = {
    "jpg": lambda: encode_image("JPEG"),
    "exif.jpg": lambda: encode_image("JPEG", exif=Image.Exif()),
    "cmyk.jpg": lambda: encode_image("JPEG", "CMYK"),
    "png": lambda: encode_image("PNG", "RGBA"),
    "deep.png": lambda: encode_image("PNG", "I;16"),
    "mask.png": lambda: encode_image("PNG", "P"),
    "gif": lambda: encode_image("GIF", "P", save_all=True, append_images=[Image.new("P", (40, 24), 3)]),
    "webp": lambda: encode_image("WEBP"),
    "avif": lambda: encode_image("AVIF"),
    "tiff": lambda: encode_image("TIFF", save_all=True, append_images=[Image.new("RGB", (9, 30), 3)]),
    "ppm": lambda: encode_image("PPM"),
    "bmp": lambda: encode_image("BMP"),
    "npy": lambda: encode_npy(np.arange(600, dtype=np.float32).reshape(20, 30)),
    "npz": lambda: encode_npz(a=np.arange(600).reshape(20, 30), b=np.array([1, np.nan], np.float16)),
    "safetensors": lambda: encode_safetensors(
        {"t": {"dtype": "F32", "shape": [10, 10], "data_offsets": [0, 400]}}, np.arange(100, dtype="<f4").tobytes()
    ),
    "wav": lambda: encode_wav(np.arange(-2000, 2000).reshape(-1, 2)),
    "flac": lambda: encode_sound("flac", np.linspace(-1, 1, 4000, dtype=np.float32).reshape(2, -1)),
    "mp3": lambda: encode_sound("mp3", np.linspace(-1, 1, 8000, dtype=np.float32).reshape(1, -1)),
    "ogg": lambda: encode_sound("ogg", np.linspace(-1, 1, 8000, dtype=np.float32).reshape(1, -1)),
    "mp4": encode_video,
    "webm": lambda: encode_video("webm"),
    "json": document_json,
    "txt": lambda: "A text \N{SNOWMAN}".encode(),
    "html": lambda: b"<!doctype html><script>alert(1)</script>",
    "svg": lambda: b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "cls": lambda: b"7",
    "pkl": lambda: b"\x80\x04N.",
    "json.gz": lambda: zlib.compress(b'{"a": 1}', wbits=31),
}
"""Name of a field to what makes its bytes."""
