"""Payloads of every format that a check decodes, good and bad ones, from a random generator."""

import gzip
import io
import json
import pickle
import random
import struct
import wave
from collections.abc import Callable
from typing import Any

import numpy as np

from webdataset.core.optional_imports import require


def _image(rng: random.Random, kind: str) -> bytes:
    from PIL import Image

    pixels = np.frombuffer(rng.randbytes(24 * 20 * 3), np.uint8).reshape(20, 24, 3)
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, kind)
    return made.getvalue()


def _array(rng: random.Random) -> Any:
    return np.frombuffer(rng.randbytes(400), np.int16)


def _npy(rng: random.Random) -> bytes:
    made = io.BytesIO()
    np.save(made, _array(rng))
    return made.getvalue()


def _npz(rng: random.Random) -> bytes:
    made = io.BytesIO()
    np.savez(made, a=_array(rng), b=_array(rng))
    return made.getvalue()


def _wav(rng: random.Random) -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(rng.randbytes(4000))
    return made.getvalue()


def _flac(rng: random.Random) -> bytes:
    made = io.BytesIO()
    samples = np.frombuffer(rng.randbytes(8000), np.int16)
    require("soundfile", extra="audio", purpose="tests").write(made, samples, 8000, format="FLAC")
    return made.getvalue()


def _mp4(rng: random.Random) -> bytes:
    av, made = require("av", extra="media", purpose="tests"), io.BytesIO()
    with av.open(made, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for _ in range(5):
            pixels = np.frombuffer(rng.randbytes(32 * 32 * 3), np.uint8).reshape(32, 32, 3)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return made.getvalue()


def _safetensors(rng: random.Random) -> bytes:
    head = json.dumps({"a": {"dtype": "U8", "shape": [10], "data_offsets": [0, 10]}}).encode()
    return struct.pack("<Q", len(head)) + head + rng.randbytes(10)


def _structure(rng: random.Random) -> Any:
    return {"n": rng.randrange(100), "text": "word", "list": [1, 2.5, None]}


def good(extension: str, rng: random.Random) -> bytes:
    """Return a payload that decodes.

    Args:
        extension: of the field.
        rng: decides the content.
    """
    makers: dict[str, Callable[[], bytes]] = {
        "jpg": lambda: _image(rng, "JPEG"),
        "png": lambda: _image(rng, "PNG"),
        "webp": lambda: _image(rng, "WEBP"),
        "json": lambda: json.dumps(_structure(rng)).encode(),
        "jsonl": lambda: b"".join(json.dumps(_structure(rng)).encode() + b"\n" for _ in range(3)),
        "yaml": lambda: b"a: 1\nb: [1, 2]\n",
        "txt": lambda: "some w\u00f6rds ".encode() * rng.randint(1, 40),
        "cls": lambda: b"%d" % rng.randrange(1000),
        "npy": lambda: _npy(rng),
        "npz": lambda: _npz(rng),
        "bin": lambda: rng.randbytes(rng.choice((1, 511, 512, 513, 4000, 60_000))),
        "msgpack": lambda: require("msgpack", extra="records", purpose="tests").packb(_structure(rng)),
        "cbor": lambda: require("cbor2", extra="records", purpose="tests").dumps(_structure(rng)),
        "pkl": lambda: pickle.dumps(_structure(rng)),
        "wav": lambda: _wav(rng),
        "flac": lambda: _flac(rng),
        "mp4": lambda: _mp4(rng),
        "safetensors": lambda: _safetensors(rng),
        "json.gz": lambda: gzip.compress(json.dumps(_structure(rng)).encode()),
    }
    return makers[extension]()


def flipped(payload: bytes, rng: random.Random) -> bytes:
    """Return the payload with one byte of its first half changed."""
    at = rng.randrange(len(payload) // 2)
    return payload[:at] + bytes([payload[at] ^ 0xFF]) + payload[at + 1 :]


def cut(payload: bytes, rng: random.Random) -> bytes:
    """Return the first half of a payload, about."""
    return payload[: max(1, len(payload) * rng.randint(30, 60) // 100)]
