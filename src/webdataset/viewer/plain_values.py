"""Makes values and texts fit for the page: plain JSON of bounded size and depth that any browser can read.

Texts hold no lone surrogates (they cannot be written as UTF-8), numbers are finite and within what JavaScript's numbers
tell apart, and nothing is deeper or longer than the page can show.
"""

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from webdataset.core.errors import describe_error

JsonObject = dict[str, Any]
"""An object of JSON, as it is sent to the page."""

_DEEPEST: Final = 64
_MOST_VALUES: Final = 50_000
_MOST_CHARACTERS: Final = 20_000
# the largest integer that JavaScript's numbers tell from its neighbours
_LARGEST_INTEGER: Final = (1 << 53) - 1
_EXPLAINED_CHARACTERS: Final = 500
_OBJECT: Final = re.compile(r"<[^<>]* object at 0x[0-9a-f]+>")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def dump_json(content: object) -> bytes:
    """Return a value as JSON that any browser can read.

    Args:
        content: anything that JSON can say; numbers that JSON has no words for become null.
    """
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_replace_odd_numbers(content), allow_nan=False, separators=(",", ":")).encode()


def _replace_odd_numbers(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _replace_odd_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_odd_numbers(each) for each in value]
    return value


def clean_text(text: str) -> str:
    """Return a text that can be written as UTF-8: lone surrogates are replaced."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def explain_failure(error: BaseException) -> str:
    """Return what an exception says, for people: no addresses of objects, at most 500 characters.

    Args:
        error: of this library, or whatever a decoder raised.
    """
    text = getattr(error, "message", None) or describe_error(error)
    return clean_text(_OBJECT.sub("the field", str(text)))[:_EXPLAINED_CHARACTERS]


def decode_text(payload: bytes, *, whole: bool = True) -> tuple[str, str | None]:
    """Decode bytes as text whatever they are.

    Args:
        payload: the text, or its beginning.
        whole: these are all bytes; else a character that is cut at the end is left out.

    Returns:
        The text, and what to tell of its encoding: None for UTF-8.
    """
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if payload.startswith(mark):
            decoder = codecs.getincrementaldecoder(encoding)("replace")
            return clean_text(decoder.decode(payload[2:], final=whole)), encoding.upper()
    body = payload.removeprefix(codecs.BOM_UTF8)
    try:
        return codecs.getincrementaldecoder("utf-8")("strict").decode(body, final=whole), None
    except UnicodeDecodeError:
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(body, final=whole)
        return text, "not UTF-8: what does not decode is shown as \N{REPLACEMENT CHARACTER}"


def parse_scalar(text: str) -> int | float | str:
    """Return the number that a text is, else the text; numbers that JavaScript cannot hold stay texts."""
    stripped = text.strip()
    if not re.fullmatch(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?", stripped, re.ASCII):
        return stripped
    if re.fullmatch(r"[+-]?\d+", stripped, re.ASCII):
        number = int(stripped)
        return number if abs(number) <= _LARGEST_INTEGER else stripped
    value = float(stripped)
    return value if math.isfinite(value) else stripped


def bound_json(record: object) -> tuple[Any, bool]:
    """Return a value that can be written as JSON for the page.

    Args:
        record: what a JSON parser gave.

    Returns:
        The value, cut at 64 levels, 50 000 parts and 20 000 characters a text; integers beyond 2**53 and numbers that
        are not finite become texts. And whether nothing was cut.
    """
    bounds = _JsonBounds()
    return bounds.copy(record, _DEEPEST), not bounds.cut


class _JsonBounds:
    """Copies a value within bounds."""

    def __init__(self) -> None:
        self.cut = False
        self._left = _MOST_VALUES

    def copy(self, value: object, depth: int) -> Any:
        """Return a copy of a value, at most so deep."""
        self._left -= 1
        if isinstance(value, dict | list):
            if depth == 0:
                self.cut = True
                return "\N{HORIZONTAL ELLIPSIS}"
            if isinstance(value, dict):
                chosen = self._take(value.items())
                return {self._cut_text(str(name)): self.copy(part, depth - 1) for name, part in chosen}
            return [self.copy(part, depth - 1) for part in self._take(value)]
        return self._cut_text(value) if isinstance(value, str) else _copy_leaf(value)

    def _cut_text(self, text: str) -> str:
        if len(text) > _MOST_CHARACTERS:
            self.cut = True
            text = text[:_MOST_CHARACTERS] + "\N{HORIZONTAL ELLIPSIS}"
        return clean_text(text)

    def _take(self, parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            if self._left <= 0:
                self.cut = True
                return
            yield part


def _copy_leaf(value: object) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # str() refuses more than 4300 digits
        return value if abs(value) <= _LARGEST_INTEGER else str(value) if value.bit_length() < 8192 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return clean_text(str(value))
