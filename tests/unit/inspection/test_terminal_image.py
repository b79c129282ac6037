"""Images for terminals hold the pixels of the image, in each protocol."""

import base64
import io
import re

import pytest

from webdataset.core.errors import DecodingError
from webdataset.inspection.terminal_image import choose_protocol, render_image

Image = pytest.importorskip("PIL.Image")
PIXELS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (0, 0, 0), (255, 255, 255), (255, 255, 0)]


def png(size=(2, 3), pixels=PIXELS):
    """A PNG of these pixels."""
    image = Image.new("RGB", size)
    image.putdata(pixels)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def test_blocks():
    """Two pixels a character, the last row of an odd height alone, colours reset at the end of each line."""
    lines = render_image(png(), "blocks").split("\n")
    assert len(lines) == 2
    colours = re.findall(r"38;2;(\d+);(\d+);(\d+);(?:48;2;(\d+);(\d+);(\d+)|49)m\u2580", "".join(lines))
    assert [tuple(map(int, found[:3])) for found in colours] == [PIXELS[0], PIXELS[1], PIXELS[4], PIXELS[5]]
    assert [tuple(map(int, found[3:])) for found in colours[:2]] == [PIXELS[2], PIXELS[3]]
    assert all(line.endswith("\x1b[0m") for line in lines)


def test_kitty():
    """The chunks joined are a PNG of the image; each is short enough, and all but the last say that more come."""
    noise = [(number * 7 % 256, number * 13 % 256, number * 29 % 256) for number in range(120 * 90)]
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", render_image(png((120, 90), noise), "kitty"))
    assert parts[0][0].startswith("a=T,f=100")
    assert [options[-1] for options, _ in parts] == ["1"] * (len(parts) - 1) + ["0"]
    assert all(len(text) <= 4096 for _, text in parts)
    with Image.open(io.BytesIO(base64.b64decode("".join(text for _, text in parts)))) as image:
        assert image.convert("RGB").tobytes() == bytes(part for pixel in noise for part in pixel)


def decode_sixel(text):
    """The pixels of a sixel text, by the definition of the format."""
    head, body = re.fullmatch(r'\x1bPq"1;1;(\d+;\d+)(.*)\x1b\\', text, re.DOTALL).groups()
    width, height = map(int, head.split(";"))
    colours, pixels, colour, column, top = {}, {}, None, 0, 0
    for match in re.finditer(r"#(\d+);2;(\d+);(\d+);(\d+)|#(\d+)|!(\d+)(.)|([$-])|([?-~])", body):
        define, red, green, blue, choose, count, repeated, control, single = match.groups()
        if define:
            colours[int(define)] = tuple(round(int(part) * 2.55) for part in (red, green, blue))
        elif choose:
            colour = int(choose)
        elif control:
            column, top = 0, top + 6 * (control == "-")
        else:
            for _ in range(int(count or 1)):
                for bit in range(6):
                    if (ord(repeated or single) - 63) >> bit & 1:
                        pixels[column, top + bit] = colours[colour]
                column += 1
    return [pixels[column, row] for row in range(height) for column in range(width)]


def test_sixel():
    """A decoder written from the format's definition finds the pixels."""
    assert decode_sixel(render_image(png(), "sixel")) == PIXELS
    striped = [PIXELS[column // 5 % 6] for _ in range(14) for column in range(30)]
    assert decode_sixel(render_image(png((30, 14), striped), "sixel")) == striped


def test_ascii():
    """Without colour: light pixels are dense characters, and there is no escape."""
    text = render_image(
        png((4, 2), [(0, 0, 0)] * 2 + [(255, 255, 255)] * 2 + [(0, 0, 0)] * 2 + [(255,) * 3] * 2), "ascii"
    )
    assert text == "  @@"


@pytest.mark.parametrize("protocol", ["blocks", "ascii"])
def test_large_images_are_scaled_down(protocol):
    """No line is longer, and there are no more lines, than allowed."""
    lines = render_image(png((300, 200), [(9, 9, 9)] * 60_000), protocol, columns=20, rows=8).split("\n")
    assert len(lines) <= 8
    assert all(line.count("\u2580") <= 20 for line in lines)


def test_what_is_no_image():
    """Bytes that do not decode are a typed error."""
    for payload in (b"", b"\xff\xd8\xff", png()[:40]):
        with pytest.raises(DecodingError):
            render_image(payload, "blocks")


@pytest.mark.parametrize(
    ("asked", "protocol"),
    [
        ({"terminal": "xterm-kitty"}, "kitty"),
        ({"kitty": "1"}, "kitty"),
        ({"program": "WezTerm"}, "kitty"),
        ({"terminal": "foot"}, "sixel"),
        ({"program": "mintty"}, "sixel"),
        ({"terminal": "xterm-256color"}, "blocks"),
        ({"terminal": "xterm-kitty", "colour": False}, "ascii"),
    ],
)
def test_choice(asked, protocol):
    """The terminal says what it can, as far as its names tell."""
    assert choose_protocol(**{"terminal": "", "program": "", "kitty": "", "colour": True, **asked}) == protocol
