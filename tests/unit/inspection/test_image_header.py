"""Width and height of images by their headers equal what Pillow says."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.inspection.image_header import read_image_size

Image = pytest.importorskip("PIL.Image")


def encode(kind, size, mode="RGB", **options):
    """An image file."""
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (37, 21), (640, 480)])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"exif": b"Exif\0\0" + bytes(3000)}), ("PNG", {}),
        ("GIF", {"mode": "P"}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("WEBP", {"mode": "RGBA"}), ("BMP", {}),
        ("PPM", {}), ("AVIF", {}),
    ],
)  # fmt: skip
def test_sizes(kind, options, size):
    """Each format, each of its variants."""
    if kind == "AVIF" and not Image.registered_extensions().get(".avif"):
        pytest.skip("this Pillow writes no AVIF")
    assert read_image_size(encode(kind, size, **options)) == size


STARTS = [b"\xff\xd8", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"GIF89a", b"RIFFxxxxWEBP", b"BM", b"xxxxftyp", b"P6 ", b""]


@given(st.binary(max_size=200), st.sampled_from(STARTS))
def test_hostile_headers(rest, start):
    """Whatever follows a magic number, there is an answer or None."""
    size = read_image_size(start + rest)
    assert size is None or all(isinstance(side, int) for side in size)


def test_cut_files():
    """A file that is cut anywhere gives its size or None, never another size."""
    whole = encode("JPEG", (37, 21))
    assert {read_image_size(whole[:stop]) for stop in range(len(whole))} == {None, (37, 21)}
