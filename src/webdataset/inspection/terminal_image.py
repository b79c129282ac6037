"""Images as text for terminals: half blocks, Kitty's graphics protocol, Sixel, or characters without colour.

* *blocks*: each character is two pixels, the upper one in the foreground and the lower one in the background (U+2580).
* *kitty*: a PNG in base64, in escape sequences of at most 4096 bytes (the Kitty graphics protocol).
* *sixel*: bands of six pixel rows, a bit for each pixel and colour (DEC, VT330/VT340 Programmer Reference, ch. 14).
* *ascii*: brightness by characters, for terminals without colour and for files.

Images are scaled down to fit; the formats are those that Pillow decodes. A decoder's own bound on pixels holds.
"""

import base64
import io
from collections.abc import Iterator
from typing import Any, Final, Literal

from webdataset.core.errors import DecodingError
from webdataset.core.optional_imports import require

Protocol = Literal["blocks", "kitty", "sixel", "ascii"]
_RAMP = " .:-=+*#%@"
_CHUNK = 4096
_CELL: Final = (8, 16)
_SIXEL_TERMINALS = ("foot", "mlterm", "sixel", "contour", "yaft")
_KITTY_PROGRAMS = ("ghostty", "WezTerm", "kitty")
_SIXEL_PROGRAMS = ("mintty", "iTerm.app")


def choose_protocol(*, terminal: str, program: str, kitty: str, colour: bool) -> Protocol:
    """Return how images are shown on a terminal.

    Args:
        terminal: ``TERM``.
        program: ``TERM_PROGRAM``.
        kitty: ``KITTY_WINDOW_ID``.
        colour: whether colours may be written.
    """
    if not colour:
        return "ascii"
    if kitty or "kitty" in terminal or program in _KITTY_PROGRAMS:
        return "kitty"
    if any(name in terminal for name in _SIXEL_TERMINALS) or program in _SIXEL_PROGRAMS:
        return "sixel"
    return "blocks"


def render_image(payload: bytes, protocol: Protocol, *, columns: int = 60, rows: int = 20) -> str:
    """Return an image as text.

    Args:
        payload: an encoded image.
        protocol: how.
        columns: the most columns that it may take.
        rows: the most rows.

    Raises:
        DecodingError: it cannot be decoded.
        MissingExtra: Pillow is not installed.
    """
    cell = {"blocks": (1, 2), "ascii": (1, 2)}.get(protocol, _CELL)
    image = _load_image(payload, (columns * cell[0], rows * cell[1]))
    if protocol == "kitty":
        return _render_kitty(image)
    if protocol == "sixel":
        return _render_sixel(image)
    return "\n".join(_render_blocks(image) if protocol == "blocks" else _render_ascii(image))


def _load_image(payload: bytes, most: tuple[int, int]) -> Any:
    pillow: Any = require("PIL.Image", extra="images", purpose="showing images")
    try:
        with pillow.open(io.BytesIO(payload)) as image:
            image.draft("RGB", most)
            shown = image.convert("RGB")
    except pillow.UnidentifiedImageError as error:
        # Pillow says the address of the file object
        raise DecodingError(message="the image cannot be decoded: no format that Pillow reads") from error
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DecodingError(message=f"the image cannot be decoded: {error}") from error
    shown.thumbnail(most)
    return shown


def _pixels(image: Any) -> list[list[tuple[int, int, int]]]:
    width, height = image.size
    flat = image.tobytes()
    rows = (flat[3 * width * row : 3 * width * (row + 1)] for row in range(height))
    return [list(zip(row[::3], row[1::3], row[2::3], strict=True)) for row in rows]


def _render_blocks(image: Any) -> Iterator[str]:
    pixels = _pixels(image)
    for upper in range(0, len(pixels), 2):
        line = []
        lowers = pixels[upper + 1] if upper + 1 < len(pixels) else [None] * len(pixels[upper])
        for above, below in zip(pixels[upper], lowers, strict=True):
            back = "49" if below is None else f"48;2;{below[0]};{below[1]};{below[2]}"
            line.append(f"\x1b[38;2;{above[0]};{above[1]};{above[2]};{back}m\u2580")
        yield "".join(line) + "\x1b[0m"


def _render_ascii(image: Any) -> Iterator[str]:
    width, height = image.size
    grey = image.resize((width, max(1, height // 2))).convert("L")
    flat = grey.tobytes()
    for row in range(grey.size[1]):
        yield "".join(_RAMP[value * len(_RAMP) // 256] for value in flat[row * width : (row + 1) * width]).rstrip()


def _render_kitty(image: Any) -> str:
    out = io.BytesIO()
    image.save(out, "PNG")
    text = base64.standard_b64encode(out.getvalue()).decode("ascii")
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    parts = []
    for number, chunk in enumerate(chunks):
        first = "a=T,f=100," if number == 0 else ""
        parts.append(f"\x1b_G{first}m={int(number + 1 < len(chunks))};{chunk}\x1b\\")
    return "".join(parts)


def _render_sixel(image: Any) -> str:
    indexed = image.quantize(255)
    width, height = indexed.size
    flat = indexed.tobytes()
    palette = indexed.getpalette()
    used = sorted(set(flat))
    colours = "".join(
        f"#{colour};2;" + ";".join(str(round(part / 2.55)) for part in palette[3 * colour : 3 * colour + 3])
        for colour in used
    )
    bands = []
    for top in range(0, height, 6):
        rows = [flat[width * row : width * (row + 1)] for row in range(top, min(top + 6, height))]
        lines = []
        for colour in sorted(set().union(*rows)):
            bits = bytearray(width)
            for place, row in enumerate(rows):
                for column, value in enumerate(row):
                    if value == colour:
                        bits[column] |= 1 << place
            lines.append(f"#{colour}" + "".join(_repeat(bits)))
        bands.append("$".join(lines))
    return f'\x1bPq"1;1;{width};{height}{colours}' + "-".join(bands) + "\x1b\\"


def _repeat(bits: bytearray) -> Iterator[str]:
    """Yield sixels, runs of more than three of them by their length."""
    start = 0
    for place in range(1, len(bits) + 1):
        if place == len(bits) or bits[place] != bits[start]:
            count, sixel = place - start, chr(63 + bits[start])
            yield f"!{count}{sixel}" if count > 3 else sixel * count
            start = place
