"""The messages between a data server and its trainers: kinds, closed schemas, bounds.

Theory. A message is a list of frames. The first is a header: one JSON object of at most 64 KiB with a ``kind`` and
exactly the entries of :data:`SCHEMAS`. Some kinds have a second frame with JSON of its own (a state, or what describes
a batch), and a part has frames of raw bytes after it (:mod:`webdataset.serving.batch_format`). JSON is parsed only
after its length and its depth are known to be small. Nothing is ever unpickled.

What the kinds say is told in ``docs/serving.md``.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from webdataset.core.errors import FormatError
from webdataset.stages.base import Json

Frame: TypeAlias = "bytes | memoryview"
Header: TypeAlias = dict[str, Json]

PROTOCOL_VERSION: Final = 2
LARGEST_HEADER_BYTES: Final = 1 << 16
# a state has about 1 KB for each stream with a buffer of 10 000 samples
LARGEST_STATE_BYTES: Final = 1 << 23
LARGEST_DESCRIPTION_BYTES: Final = 1 << 25
LARGEST_BATCH_BYTES: Final = 1 << 31
MOST_FRAMES: Final = 64
_DEEPEST_JSON = 64
_LARGEST_NUMBER = 1 << 63
_LONGEST_TEXT = 8192
# of JSON without escapes: a repetition of one class takes no memory of its own
_STRING = re.compile(rb'"[^"]*"')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_TEXTS = ("code", "words", "type", "url", "key", "field", "what")
_FLAGS = ("hedge", "drop_last", "exact", "ragged", "over", "answer", "state")
SCHEMAS: Final[dict[str, tuple[str, ...]]] = {
    # of a trainer
    "HELLO": ("version",),
    "OPEN": (
        "nonce",
        "rank",
        "ranks",
        "batch",
        "start",
        "until",
        "credit",
        "hedge",
        "drop_last",
        "exact",
        "ragged",
    ),
    "ASK": ("nonce", "what", "rank", "ranks", "start", "until"),
    "CREDIT": ("nonce", "to"),
    "CLOSE": ("nonce",),
    "BEAT": ("nonce",),
    # of a server; BEAT too
    "WELCOME": ("version", "boot"),
    "NO": ("nonce", "code", "words"),
    "PART": ("nonce", "seq", "samples", "beyond", "until", "over"),
    "FAILURE": ("nonce", "seq", "type", "words", "url", "key", "field"),
    "ANSWER": ("nonce", "answer", "state"),
    "BYE": ("seconds",),
}
"""Kind to the names of its entries; all of them must be there, and no other."""

WITH_JSON: Final = frozenset({"OPEN", "ASK", "WELCOME", "PART", "ANSWER"})
"""Kinds that have JSON in their second frame."""


class WireError(FormatError):
    """A message that does not keep to the protocol."""


def encode_json(value: object, largest_bytes: int = LARGEST_STATE_BYTES) -> bytes:
    """Return a JSON value as a frame.

    Raises:
        WireError: it is larger than allowed.
    """
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if len(encoded) > largest_bytes:
        raise WireError(f"{len(encoded)} bytes of JSON, and {largest_bytes} are allowed in this message")
    return encoded


def decode_json(frame: Frame, largest_bytes: int) -> Json:
    """Return the JSON value of a frame.

    Raises:
        WireError: too long, too deep, or no JSON.
    """
    if len(frame) > largest_bytes:
        raise WireError(f"a frame of {len(frame)} bytes where {largest_bytes} of JSON are allowed")
    encoded = bytes(frame)
    _check_depth(encoded)
    try:
        return json.loads(encoded, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError("a frame that should be JSON is none") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _check_depth(encoded: bytes) -> None:
    """Refuse JSON that is nested too deeply; of what is no JSON, the parser says so."""
    plain = encoded.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _STRING.sub(b"", plain).translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(_DEEPEST_JSON):
        # the innermost ones
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return
    if brackets:
        raise WireError(f"JSON nested deeper than {_DEEPEST_JSON}, or with brackets that do not match")


def encode_message(kind: str, **entries: object) -> bytes:
    """Return a header.

    Raises:
        WireError: entries that the kind does not have.
    """
    header = {"kind": kind, **entries}
    _check_header(header)
    return encode_json(header, LARGEST_HEADER_BYTES)


def decode_message(frames: Sequence[Frame], kinds: Sequence[str]) -> tuple[Header, Json]:
    """Return the header of a message, and the JSON of its second frame, or None where its kind has none.

    Args:
        frames: of the message.
        kinds: that may come here.

    Raises:
        WireError: the message does not keep to the protocol.
    """
    if not 1 <= len(frames) <= MOST_FRAMES:
        raise WireError(f"a message of {len(frames)} frames")
    header = decode_json(frames[0], LARGEST_HEADER_BYTES)
    if not isinstance(header, dict) or header.get("kind") not in kinds:
        raise WireError("a message of a kind that may not come here")
    _check_header(header)
    kind = header["kind"]
    if kind not in WITH_JSON:
        if len(frames) != 1:
            raise WireError(f"{kind} has one frame, and came with {len(frames)}")
        return header, None
    if len(frames) < 2 or (kind != "PART" and len(frames) > 2):
        raise WireError(f"{kind} came with {len(frames)} frames")
    largest = LARGEST_DESCRIPTION_BYTES if kind == "PART" else LARGEST_STATE_BYTES
    return header, decode_json(frames[1], largest)


def _check_header(header: Header) -> None:
    kind = header.get("kind")
    names = SCHEMAS.get(kind) if isinstance(kind, str) else None
    if names is None or header.keys() != {"kind", *names}:
        raise WireError("a message whose entries are not those of its kind")
    for name in names:
        _check_entry(name, header[name])


def _check_entry(name: str, value: object) -> None:
    if name in _TEXTS:
        fits = isinstance(value, str) and len(value) <= _LONGEST_TEXT
    elif name in _FLAGS:
        fits = type(value) is bool
    else:
        fits = type(value) is int and 0 <= value < _LARGEST_NUMBER
    if not fits:
        raise WireError(f"a message whose entry {name!r} has a wrong value")
