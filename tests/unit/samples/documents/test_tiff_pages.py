"""Pages of TIFF files, taken out without decoding."""

import io
import struct

import pytest

from webdataset.core.errors import FormatError
from webdataset.samples.documents.tiff_pages import split_tiff_pages

pillow = pytest.importorskip("PIL.Image")


def frames(count, size=(8, 5)):
    """Images that differ."""
    return [pillow.effect_noise(size, 90 + number).convert("RGB") for number in range(count)]


def stacked(images, **options):
    """A TIFF file of several pages."""
    stream = io.BytesIO()
    images[0].save(stream, "TIFF", save_all=True, append_images=images[1:], **options)
    return stream.getvalue()


def pixels(file):
    """The pixels of a file's first page."""
    with pillow.open(io.BytesIO(file)) as image:
        return image.convert("RGB").tobytes()


def test_a_file_of_one_page_is_given_as_it_is():
    """Not even copied."""
    file = stacked(frames(1))
    assert split_tiff_pages(file)[0] is file


def test_pages_are_small_files_of_their_own():
    """A page holds its own strips only, byte for byte as they were compressed."""
    images = frames(9, (64, 64))
    file = stacked(images)
    pages = split_tiff_pages(file)
    assert [pixels(page) for page in pages] == [image.tobytes() for image in images]
    assert max(map(len, pages)) < len(file) / 8
    assert all(image.tobytes()[:100] in page for image, page in zip(images, pages, strict=True))


def big_tiff(images, order="<"):
    """A BigTIFF file of grey images, one strip each."""
    out = bytearray((b"II" if order == "<" else b"MM") + struct.pack(order + "HHHQ", 43, 8, 0, 0))
    link = 8
    for image in images:
        strip = len(out)
        out += image.tobytes()
        start = len(out)
        struct.pack_into(order + "Q", out, link, start)
        tags = [
            (256, 4, image.width), (257, 4, image.height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 16, strip),
            (277, 3, 1), (278, 4, image.height), (279, 16, image.width * image.height),
        ]  # fmt: skip
        out += struct.pack(order + "Q", len(tags))
        for tag, kind, value in tags:
            packed = struct.pack(order + {3: "H", 4: "I", 16: "Q"}[kind], value).ljust(8, b"\0")
            out += struct.pack(order + "HHQ", tag, kind, 1) + packed
        link = len(out)
        out += struct.pack(order + "Q", 0)
    return bytes(out)


def test_pages_of_other_kinds_are_the_whole_file_with_another_first_page():
    """BigTIFF is split just as rightly."""
    images = [image.convert("L") for image in frames(3)]
    file = big_tiff(images)
    pages = split_tiff_pages(file)
    assert [pixels(page) for page in pages] == [image.convert("RGB").tobytes() for image in images]
    assert all(len(page) == len(file) for page in pages)


def test_big_endian_files_are_split_too():
    """Classic TIFF and BigTIFF in the other byte order (which Pillow does not read as BigTIFF)."""
    image = frames(1)[0].convert("L")
    pages = split_tiff_pages(big_tiff([image, image], ">"))
    starts = [struct.unpack_from(">Q", page, 8)[0] for page in pages]
    assert len(set(starts)) == 2
    assert [page[16:] for page in pages] == [pages[0][16:]] * 2
    stream = io.BytesIO()
    sixteen = [pillow.frombytes("I;16B", (8, 5), bytes(range(number, number + 80))) for number in range(3)]
    sixteen[0].save(stream, "TIFF", save_all=True, append_images=sixteen[1:])
    assert stream.getvalue()[:2] == b"MM"
    for page, expected in zip(split_tiff_pages(stream.getvalue()), sixteen, strict=True):
        with pillow.open(io.BytesIO(page)) as one:
            assert one.mode == "I;16B"
            assert one.tobytes() == expected.tobytes()


def test_pages_that_refer_elsewhere_are_whole():
    """A page with a directory of its own inside (EXIF) stays in the file, so that it keeps it."""
    images = frames(3)
    file = bytearray(stacked(images))
    _retagged(file, 284, 34665)
    pages = split_tiff_pages(bytes(file))
    assert [len(page) == len(file) for page in pages] == [True, False, False]
    assert [pixels(page) for page in pages] == [image.tobytes() for image in images]


def _retagged(file, old, new):
    """Give an entry of the first directory another tag."""
    (start,) = struct.unpack_from("<I", file, 4)
    for place in range(start + 2, start + 2 + 12 * _count(file), 12):
        if struct.unpack_from("<H", file, place)[0] == old:
            struct.pack_into("<H", file, place, new)


def test_strips_that_lie_upon_each_other_are_refused():
    """Many strips that are all the whole file would make a page of any size out of nothing."""
    order, count = "<", 50
    values = 8 + 2 + 12 * 3 + 4
    offsets, lengths = struct.pack(f"{order}{count}I", *[0] * count), struct.pack(f"{order}{count}I", *[400] * count)
    tags = [(256, 4, 1, 1), (273, 4, count, values), (279, 4, count, values + 4 * count)]
    directory = struct.pack(order + "H", 3) + b"".join(struct.pack(order + "HHII", *tag) for tag in tags)
    second = values + 8 * count
    file = b"II*\0" + struct.pack(order + "I", 8) + directory + struct.pack(order + "I", second) + offsets + lengths
    file += struct.pack(order + "HI", 0, 0)
    with pytest.raises(FormatError, match="upon each other"):
        split_tiff_pages(file)


def test_pages_are_bounded_together():
    """A small file that is all the same large page is refused before it fills the memory."""
    file = big_tiff([image.convert("L") for image in frames(5)])
    assert len(split_tiff_pages(file, limit_bytes=5 * len(file))) == 5
    with pytest.raises(FormatError, match="5 pages are larger"):
        split_tiff_pages(file, limit_bytes=3 * len(file))


@pytest.mark.parametrize(
    "file",
    [b"", b"II*\0", b"\x89PNG" + bytes(20), b"II*\0" + bytes(12), b"II*\0" + struct.pack("<I", 8) + b"\xff" * 8,
     b"II*\0" + struct.pack("<IHI", 8, 0, 8) + bytes(6), b"MM\0*" + struct.pack(">I", 5000) + bytes(20)],
)  # fmt: skip
def test_what_is_no_whole_tiff_file_is_refused(file):
    """Not a TIFF file, no page, a directory outside of the file, a loop of directories."""
    with pytest.raises(FormatError):
        split_tiff_pages(file)


def test_a_file_cut_short_is_refused():
    """Strips or values beyond the end are an error, not empty pixels."""
    file = stacked(frames(2))
    (second,) = struct.unpack_from("<I", file, struct.unpack_from("<I", file, 4)[0] + 2 + 12 * _count(file))
    damaged = bytearray(file)
    for place in range(second + 2, second + 2 + 12 * struct.unpack_from("<H", file, second)[0], 12):
        if struct.unpack_from("<H", file, place)[0] == 279:
            struct.pack_into("<I", damaged, place + 8, 1 << 30)
    with pytest.raises(FormatError, match="beyond its end"):
        split_tiff_pages(bytes(damaged))


def _count(file):
    return struct.unpack_from("<H", file, struct.unpack_from("<I", file, 4)[0])[0]


def test_values_of_a_page_stand_at_even_places():
    """As the format wants them: strips of odd lengths are padded."""
    images = frames(3, (3, 3))  # 27 bytes
    pages = split_tiff_pages(stacked(images, dpi=(72, 72)))
    assert [pixels(page) for page in pages] == [image.tobytes() for image in images]
    for page in pages[1:]:
        (start,) = struct.unpack_from("<I", page, 4)
        sizes = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8}
        for place in range(start + 2, start + 2 + 12 * _count(page), 12):
            tag, kind, count, value = struct.unpack_from("<HHII", page, place)
            assert value % 2 == 0 or (sizes[kind] * count <= 4 and tag != 273), tag


def test_offsets_that_are_no_whole_numbers_are_refused():
    """Strips are found by numbers of two or four bytes."""
    file = bytearray(stacked(frames(2)))
    (second,) = struct.unpack_from("<I", file, struct.unpack_from("<I", file, 4)[0] + 2 + 12 * _count(file))
    for place in range(second + 2, second + 2 + 12 * struct.unpack_from("<H", file, second)[0], 12):
        if struct.unpack_from("<H", file, place)[0] == 273:
            struct.pack_into("<H", file, place + 2, 11)  # a number with a fraction
    with pytest.raises(FormatError, match="tag 273 .* not of whole numbers"):
        split_tiff_pages(bytes(file))
