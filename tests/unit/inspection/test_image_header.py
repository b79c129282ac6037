"""Width and height of images by their headers equal what Pillow says."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.inspection.image_header import read_image_size, read_image_size_in

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("pillow_jxl")


def encode(kind, size, mode="RGB", **options):
    """An image file."""
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (37, 21), (640, 480), (160, 90), (256, 256), (3000, 17)])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"exif": b"Exif\0\0" + bytes(3000)}), ("PNG", {}),
        ("GIF", {"mode": "P"}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("WEBP", {"mode": "RGBA"}), ("BMP", {}),
        ("PPM", {}), ("AVIF", {}), ("TIFF", {}), ("TIFF", {"mode": "I;16B"}), ("TIFF", {"compression": "tiff_lzw"}),
        ("JXL", {}), ("JXL", {"lossless": True}), ("JXL", {"exif": b"Exif\0\0" + bytes(3000)}), ("JPEG2000", {}),
        ("JPEG2000", {"no_jp2": True}), ("JPEG2000", {"mode": "RGBA"}),
    ],
)  # fmt: skip
def test_sizes(kind, options, size):
    """Each format, each of its variants."""
    if kind == "AVIF" and not Image.registered_extensions().get(".avif"):
        pytest.skip("this Pillow writes no AVIF")
    whole = encode(kind, size, **options)
    assert read_image_size(whole) == size
    assert read_image_size_in(lambda start, stop: whole[start:stop], len(whole)) == size


def test_tiff_whose_directory_stands_at_the_end():
    """The pixels of a large TIFF are not read."""
    whole = encode("TIFF", (400, 300))
    offset = int.from_bytes(whole[4:8], "little")
    count = int.from_bytes(whole[offset : offset + 2], "little")
    directory = whole[offset : offset + 6 + 12 * count]
    moved = whole[:4] + len(whole).to_bytes(4, "little") + whole[8:] + directory
    assert Image.open(io.BytesIO(moved)).size == (400, 300)
    read = []

    def read_range(start, stop):
        read.append(stop - start)
        return moved[start:stop]

    assert read_image_size_in(read_range, len(moved)) == (400, 300)
    assert sum(read) < 5000
    assert read_image_size_in(lambda start, stop: moved[start:stop], len(whole)) is None


STARTS = [b"\xff\xd8", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"GIF89a", b"RIFFxxxxWEBP", b"BM", b"xxxxftyp", b"P6 ", b""]
STARTS += [b"II*\0", b"MM\0*", b"II*\0\x08\0\0\0", b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x4f\xff\x51"]
STARTS += [b"\0\0\0\x0cjP  \r\n\x87\n", b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x10jp2hihdr"]


@given(st.binary(max_size=200), st.sampled_from(STARTS))
def test_hostile_headers(rest, start):
    """Whatever follows a magic number, there is an answer or None."""
    for size in (
        read_image_size(start + rest),
        read_image_size_in(lambda first, last: (start + rest)[first:last], len(start + rest)),
    ):
        assert size is None or all(isinstance(side, int) for side in size)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "JXL", "JPEG2000"])
def test_cut_files(kind):
    """A file that is cut anywhere gives its size or None, never another size."""
    whole = encode(kind, (37, 21))
    assert {read_image_size(whole[:stop]) for stop in range(len(whole))} == {None, (37, 21)}
