"""Duration, rate, channels and size of sound and videos from their headers, without a decoder.

Formats: WAV (RIFF, RF64), FLAC, AIFF, Ogg (Vorbis, Opus), MP3, MP4 and MOV, Matroska and WebM. Hostile bytes reach no
library here. Each walk moves forward and ends after a fixed number of steps. What a header does not tell is left out.
"""

import math
import struct
from collections.abc import Callable, Iterator
from typing import Final

from webdataset.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS

MEDIA_FIELDS: Final = frozenset((*AUDIO_EXTENSIONS.split(), *VIDEO_EXTENSIONS.split()))
"""Last components of the fields that hold sound or videos."""

MediaHeader = dict[str, float]
"""``duration_seconds``, ``rate`` (Hz), ``channels``, ``width``, ``height`` (pixels), as far as they are known."""

_Header = dict[str, float | None]
_MOST_STEPS: Final = 256
_HEAD_BYTES: Final = 4 << 10
_TAIL_BYTES: Final = 64 << 10
# what programs write that do not know the size beforehand, or more
_UNKNOWN_RIFF: Final = 0x7FFF0000
_MOST_BOX_BYTES: Final = 1 << 20
_OPUS_RATE: Final = 48_000
Read = Callable[[int, int], bytes]


def read_media_header(head: bytes, size_bytes: int, read: Read | None) -> MediaHeader:
    """Return what headers tell: ``duration_seconds``, ``rate`` (Hz), ``channels``, ``width``, ``height`` (pixels).

    Args:
        head: the first bytes.
        size_bytes: of the payload.
        read: reads a range of it; without it only the head is looked at.
    """
    reader = _Ranges(head, size_bytes, read)
    for is_kind, describe in (
        (head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE", _read_wav),
        (head[:4] == b"fLaC", _read_flac),
        (head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"), _read_aiff),
        (head[:4] == b"OggS", _read_ogg),
        (head[4:8] == b"ftyp", _read_boxes),
        (head[:4] == _EBML, _read_matroska),
        (head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2), _read_mp3),
    ):
        if is_kind:
            try:
                return {name: value for name, value in describe(reader).items() if value is not None}
            except (struct.error, IndexError, ZeroDivisionError, OverflowError):
                return {}
    return {}


def read_media_duration(read: Read, size_bytes: int) -> float | None:
    """Return how long a sound or video is in seconds by its header; None where that does not tell.

    Args:
        read: returns the bytes from a start to a stop of the payload.
        size_bytes: of the payload.
    """
    head = read(0, min(size_bytes, _HEAD_BYTES))
    return read_media_header(head, size_bytes, read).get("duration_seconds")


class _Ranges:
    """A payload whose head is known.

    Args:
        head: its first bytes.
        size_bytes: of all of it.
        read: reads a range, or None.
    """

    def __init__(self, head: bytes, size_bytes: int, read: Read | None) -> None:
        self.head = head
        self.size_bytes = size_bytes
        self._read = read

    def get(self, start: int, count: int) -> bytes:
        """Return bytes; fewer where they are not there, or may not be read."""
        stop = min(start + count, self.size_bytes)
        if start >= stop:
            return b""
        if stop <= len(self.head) or self._read is None:
            return self.head[start:stop]
        return self._read(start, stop)

    def tail(self) -> bytes:
        """Return the last 64 KiB, or nothing where they may not be read."""
        return self.get(max(0, self.size_bytes - _TAIL_BYTES), _TAIL_BYTES)


def _seconds(frames: int, rate: int) -> float | None:
    return round(frames / rate, 6) if rate > 0 else None


def _read_wav(reader: _Ranges) -> _Header:
    found: _Header = {}
    position, rate, block = 12, 0, 0
    for _ in range(_MOST_STEPS):
        name, size = struct.unpack("<4sI", reader.get(position, 8))
        if name == b"fmt ":
            _, channels, rate, _, block = struct.unpack("<HHIIH", reader.get(position + 8, 14))
            found |= {"rate": rate, "channels": channels}
        elif name == b"data":
            there = reader.size_bytes - position - 8
            size = there if size >= _UNKNOWN_RIFF else min(size, there)
            found["duration_seconds"] = _seconds(size // block, rate) if block else None
            break
        position += 8 + size + size % 2
    return found


def _read_flac(reader: _Ranges) -> _Header:
    bits = int.from_bytes(reader.get(18, 8), "big")
    rate, frames = bits >> 44, bits & ((1 << 36) - 1)
    return {
        "rate": rate,
        "channels": (bits >> 41 & 7) + 1,
        "duration_seconds": _seconds(frames, rate) if frames else None,
    }


def _read_aiff(reader: _Ranges) -> _Header:
    position = 12
    for _ in range(_MOST_STEPS):
        name, size = struct.unpack(">4sI", reader.get(position, 8))
        if name == b"COMM":
            channels, frames, _, exponent, mantissa = struct.unpack(">HIHHQ", reader.get(position + 8, 18))
            # an 80-bit float (IEEE 754 extended)
            rate = int(mantissa * 2.0 ** (exponent - 16383 - 63)) if exponent < 16383 + 63 else 0
            return {"rate": rate, "channels": channels, "duration_seconds": _seconds(frames, rate)}
        position += 8 + size + size % 2
    return {}


def _read_ogg(reader: _Ranges) -> _Header:
    """Read the first packet, and the time stamp of the last page (RFC 3533, RFC 7845, Vorbis I 4.2.2)."""
    start = 27 + reader.head[26]
    packet = reader.get(start, 30)
    skipped = 0
    if packet.startswith(b"\x01vorbis"):
        channels, rate = struct.unpack("<BI", packet[11:16])
    elif packet.startswith(b"OpusHead"):
        channels, skipped = struct.unpack("<BH", packet[9:12])
        rate = _OPUS_RATE
    else:
        return {}
    tail = reader.tail()
    at = tail.rfind(b"OggS")
    frames = int.from_bytes(tail[at + 6 : at + 14], "little", signed=True) - skipped if at >= 0 else -1
    whole = len(tail) == min(_TAIL_BYTES, reader.size_bytes)
    return {
        "rate": rate,
        "channels": channels,
        "duration_seconds": _seconds(frames, rate) if frames > 0 and whole else None,
    }


_MP3_RATES: Final = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_MP3_KILOBITS: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_LOW_KILOBITS: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


def _read_mp3(reader: _Ranges) -> _Header:
    """Read the first frame of layer III, with the count of frames that encoders of varying rates write there."""
    start = 0
    if reader.head[:3] == b"ID3":
        size = reader.head[6:10]
        start = 10 + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3])
    frame = reader.get(start, 200)
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xE6 != 0xE2:
        return {}
    version = frame[1] >> 3 & 3
    rate = _MP3_RATES[version][frame[2] >> 2 & 3] if version in _MP3_RATES and frame[2] >> 2 & 3 < 3 else 0
    if rate == 0:
        return {}
    mono = frame[3] >> 6 == 3
    samples = 1152 if version == 3 else 576
    at = next((found for found in map(frame.find, (b"Xing", b"Info")) if found > 0), -1)
    if at > 0 and frame[at + 7] & 1:
        seconds = _seconds(int.from_bytes(frame[at + 8 : at + 12], "big") * samples, rate)
    else:
        number = frame[2] >> 4
        kilobits = (_MP3_KILOBITS if version == 3 else _MP3_LOW_KILOBITS)[number] if number < 15 else 0
        seconds = round((reader.size_bytes - start) / (125 * kilobits), 3) if kilobits else None
    return {"rate": rate, "channels": 1 if mono else 2, "duration_seconds": seconds}


def _read_boxes(reader: _Ranges) -> _Header:
    """Find the movie box of an MP4 or MOV file, wherever it stands (ISO/IEC 14496-12)."""
    position = 0
    for _ in range(_MOST_STEPS):
        header = reader.get(position, 16)
        if len(header) < 8:
            break
        size, start = int.from_bytes(header[:4], "big"), 8
        if size == 1:
            size, start = int.from_bytes(header[8:16], "big"), 16
        if header[4:8] == b"moov":
            end = min(size or _MOST_BOX_BYTES, _MOST_BOX_BYTES)
            return _read_movie(reader.get(position + start, end - start))
        if size < start:
            break
        position += size
    return {}


def _read_movie(movie: bytes) -> _Header:
    found: _Header = {}
    at = movie.find(b"mvhd")
    if at >= 4:
        form, first = (">IQ", at + 24) if movie[at + 4] == 1 else (">II", at + 16)
        scale, duration = struct.unpack_from(form, movie, first)
        found["duration_seconds"] = _seconds(duration, scale)
    sides = []
    at = movie.find(b"tkhd")
    for _ in range(_MOST_STEPS):
        if at < 0:
            break
        place = at + (96 if movie[at + 4] == 1 else 84) - 4
        if place + 8 <= len(movie):
            width, height = struct.unpack_from(">II", movie, place)
            sides.append((width >> 16, height >> 16))
        at = movie.find(b"tkhd", at + 4)
    largest = max(sides, key=lambda each: each[0] * each[1], default=(0, 0))
    if all(largest):
        found |= {"width": largest[0], "height": largest[1]}
    return found


_EBML: Final = b"\x1aE\xdf\xa3"
_SEGMENT: Final = 0x18538067
_INFO: Final = 0x1549A966
_TRACKS: Final = 0x1654AE6B
_CLUSTER: Final = 0x1F43B675
_MOST_ELEMENT_BYTES: Final = 64 << 10


def _read_matroska(reader: _Ranges) -> _Header:
    """Read the information and the tracks of the first segment (RFC 8794, RFC 9559)."""
    found: _Header = {}
    position, seen = 0, False
    for _ in range(_MOST_STEPS):
        element = _read_element(reader.get(position, 12))
        if element is None:
            break
        name, start, size = element
        if name == _SEGMENT:
            position += start
            continue
        if name == _CLUSTER or size is None:
            break
        if name in (_INFO, _TRACKS):
            content = reader.get(position + start, min(size, _MOST_ELEMENT_BYTES))
            found |= _read_matroska_info(content) if name == _INFO else _read_matroska_tracks(content)
            if seen:
                break
            seen = True
        position += start + size
    return found


def _read_matroska_info(content: bytes) -> _Header:
    values = dict(_list_elements(content))
    duration = _read_float(values.get(0x4489, b""))
    scale = int.from_bytes(values.get(0x2AD7B1, b"\x0f\x42\x40"), "big")  # nanoseconds; a millisecond by default
    return {"duration_seconds": None if duration is None else round(duration * scale / 1e9, 6)}


def _read_matroska_tracks(content: bytes) -> _Header:
    found: _Header = {}
    for name, track in _list_elements(content):
        if name != 0xAE:
            continue
        values = dict(_list_elements(track))
        picture = dict(_list_elements(values.get(0xE0, b"")))
        if {0xB0, 0xBA} <= picture.keys() and "width" not in found:
            found |= {side: int.from_bytes(picture[number], "big") for side, number in _SIDES}
        sound = dict(_list_elements(values.get(0xE1, b"")))
        rate = _read_float(sound.get(0xB5, b""))
        if rate is not None and "rate" not in found:
            found |= {"rate": round(rate), "channels": int.from_bytes(sound.get(0x9F, b"\x01"), "big")}
    return found


_SIDES: Final = (("width", 0xB0), ("height", 0xBA))


def _read_float(content: bytes) -> float | None:
    """Return a positive number of four or eight bytes."""
    if len(content) not in (4, 8):
        return None
    number: float = struct.unpack(">f" if len(content) == 4 else ">d", content)[0]
    return number if math.isfinite(number) and number > 0 else None


def _read_element(head: bytes) -> tuple[int, int, int | None] | None:
    """Return the name of an element, where its content starts, and its bytes; None of bytes: until its parent ends."""
    if len(head) < 2 or not head[0] >> 4:
        return None
    name_bytes = 9 - head[0].bit_length()
    if len(head) <= name_bytes or not head[name_bytes]:
        return None
    size_bytes = 9 - head[name_bytes].bit_length()
    start = name_bytes + size_bytes
    if len(head) < start:
        return None
    mask = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(head[name_bytes:start], "big") & mask
    return int.from_bytes(head[:name_bytes], "big"), start, None if size == mask else size


def _list_elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the name and the content of each element."""
    position = 0
    for _ in range(_MOST_STEPS):
        element = _read_element(content[position : position + 12])
        if element is None:
            return
        name, start, size = element
        if size is None:
            return
        yield name, content[position + start : position + start + size]
        position += start + size
