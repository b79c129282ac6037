"""Headers of JPEGs that are read once for pictures that say the same: never what another picture says."""

import io
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from webdataset.codecs.images import decode
from webdataset.codecs.images.decode import JpegHeaderCache, find_scan

simplejpeg = pytest.importorskip("simplejpeg")


def jpeg(seed, size=(48, 40), **options):
    """Return a JPEG of noise, each seed another one, which all begin with the same bytes."""
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(options.pop("mode", "RGB")).save(stream, "JPEG", **{"quality": 85, **options})
    return stream.getvalue()


class Counting:
    """simplejpeg, and how often it was asked for a header."""

    def __init__(self):
        self.asked = 0

    def decode_jpeg_header(self, data):
        """Ask it."""
        self.asked += 1
        return simplejpeg.decode_jpeg_header(data)


def test_pictures_that_begin_alike_are_asked_about_twice():
    """Two in a row say the same: from then on the bytes before the scan are compared, and nobody is asked."""
    library = Counting()
    headers = JpegHeaderCache(library)
    for seed in range(20):
        assert headers.of(jpeg(seed))[:4] == (40, 48, "YCbCr", "420")
    assert library.asked == 2
    assert headers.of(jpeg(21)).baseline
    assert headers.of(jpeg(22, size=(47, 40)))[:2] == (40, 47)
    assert library.asked == 3


def test_kinds_of_pictures_in_any_order_are_told_apart(pictures):
    """Whatever came before, the answer is the library's."""
    kinds = [data for name, data in pictures.items() if name.startswith("jpg")]
    kinds += [jpeg(3), jpeg(4), jpeg(5, quality=60), jpeg(6, mode="L"), jpeg(7, size=(48, 41))]
    headers = JpegHeaderCache(simplejpeg)
    draws = random.Random(5)
    for _ in range(600):
        data = draws.choice(kinds)
        for _ in range(draws.choice((1, 1, 2, 3))):
            found = headers.of(data)
            assert found[:4] == simplejpeg.decode_jpeg_header(data)
            assert not found.baseline or find_scan(data)[1]


def test_what_does_not_pay_is_tried_ever_more_seldom(monkeypatch):
    """Pictures with tables of their own say the same in other bytes; where some begin alike again, they are found."""
    looked = []
    monkeypatch.setattr(decode, "find_scan", lambda data: looked.append(data) or find_scan(data))
    library = Counting()
    headers = JpegHeaderCache(library)
    for seed in range(40):
        headers.of(jpeg(seed, optimize=True))
    assert library.asked == 40
    assert len(looked) == 6  # the pictures 2, 3, 5, 9, 17 and 33
    for seed in range(100):
        headers.of(jpeg(seed, size=(64, 64)))
    assert library.asked < 40 + 64
    assert len(looked) == 7


def test_colours_said_behind_the_frame_count():
    """A marker between the frame and the scan that changes the colours is before the scan, and so compared."""
    plain = jpeg(1, subsampling=0)
    stop, baseline = find_scan(plain)
    assert baseline
    scan = plain.rindex(b"\xff\xda", 0, stop)
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"  # no transform: the three components are RGB
    without_jfif = plain[:2] + plain[2 + 2 + int.from_bytes(plain[4:6], "big") :]
    shift = len(plain) - len(without_jfif)
    other = without_jfif[: scan - shift] + adobe + without_jfif[scan - shift :]
    said = [simplejpeg.decode_jpeg_header(data)[2] for data in (without_jfif, other)]
    assert said == ["YCbCr", "RGB"]
    headers = JpegHeaderCache(simplejpeg)
    for _ in range(3):
        assert [headers.of(data).colours for data in (without_jfif, without_jfif, other, other)] == [
            "YCbCr",
            "YCbCr",
            "RGB",
            "RGB",
        ]


def test_progressive_pictures_are_never_known_to_be_baseline():
    """Their scans are counted for each of them."""
    headers = JpegHeaderCache(simplejpeg)
    for seed in range(5):
        assert not headers.of(jpeg(seed, progressive=True)).baseline


@given(st.data())
def test_a_changed_byte_is_read_anew(data):
    """Whatever byte of a picture changes behind remembered ones, the answer or the error is the library's."""
    headers = JpegHeaderCache(simplejpeg)
    headers.of(jpeg(1))
    headers.of(jpeg(2))
    changed = bytearray(jpeg(3))
    changed[data.draw(st.integers(0, find_scan(bytes(changed))[0] + 4))] = data.draw(st.integers(0, 255))
    try:
        expected = simplejpeg.decode_jpeg_header(bytes(changed))
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            headers.of(bytes(changed))
    else:
        assert headers.of(bytes(changed))[:4] == expected


def test_limits_hold_for_remembered_pictures(monkeypatch):
    """Pictures that begin alike are still measured against the limit, whatever it was before."""
    for seed in range(4):
        assert decode.decode_pixels(jpeg(seed), "RGB", 40 * 48).shape == (40, 48, 3)
    with pytest.raises(decode.FieldTooLarge, match="48 x 40"):
        decode.decode_pixels(jpeg(9), "RGB", 40 * 48 - 1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(decode.FieldTooLarge, match="100"):
        decode.decode_pixels(jpeg(9), "RGB", None)
