"""Headers as they are built, read back by Python's tarfile and by our own header parser."""

import io
import math
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webdataset.core.errors import SampleError, UsageError
from webdataset.tar import builder
from webdataset.tar.builder import make_number_records
from webdataset.tar.header import is_checksum_right

NAMES = [
    "a.txt",
    "n" * 100,
    "n" * 101,
    "p/" + "n" * 100,
    "p" * 155 + "/" + "n" * 100,
    "p" * 156 + "/" + "n" * 100,
    "/" + "n" * 100,
    "/" * 3 + "n" * 99,
    "d/" * 60 + "x",
    "n" * 1000,
    "d/" * 2000 + "x",
    "ü.txt",
    "日本語/" * 60 + "x",
    "bad\udcff.txt",
    "bad\udcff" * 60,
    "with space and\nnewline.txt",
    "emoji 🎈.txt",
]
FORMATS = [None, "pax", "gnu"]


def read(header, payload=b""):
    """Return what tarfile makes of a header followed by its payload."""
    archive = header + payload + bytes(-len(payload) % 512) + builder.END_MARK
    with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as opened:
        (member,) = opened.getmembers()
        return member, opened.extractfile(member).read() if len(payload) == member.size else None


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_every_name_reads_back(name, format):
    """Names of any length and script survive, in whole blocks, with the payload in its place."""
    header = builder.member_header(name, 3, format=format)
    member, payload = read(header, b"abc")
    assert (member.name, payload) == (name.rstrip("/"), b"abc")
    assert len(header) % 512 == 0


@pytest.mark.parametrize("name", ["a.txt", "n" * 100, "p" * 155 + "/" + "n" * 100, "p/" + "n" * 100])
def test_names_that_fit_need_one_block(name):
    """A ustar header alone is 512 bytes and says ustar."""
    header = builder.member_header(name, 1)
    assert len(header) == 512
    assert header[257:265] == b"ustar\x0000"
    assert read(header)[0].name == name


def test_fields_are_those_of_tarfile():
    """A plain header equals the one that tarfile builds, byte for byte."""
    wanted = tarfile.TarInfo("dir/key.jpg")
    wanted.size, wanted.mtime, wanted.mode = 12345, 1_700_000_000, 0o640
    wanted.uid, wanted.gid, wanted.uname, wanted.gname = 1000, 100, "me", "users"
    built = builder.member_header(
        "dir/key.jpg", 12345, mtime=1_700_000_000, mode=0o640, uid=1000, gid=100, uname="me", gname="users"
    )
    reference = wanted.tobuf(tarfile.USTAR_FORMAT)
    assert built[:148] == reference[:148]
    assert built[156:329] == reference[156:329]
    assert is_checksum_right(built)
    assert is_checksum_right(reference)


@given(
    name=st.text(st.characters(min_codepoint=1, max_codepoint=126), min_size=1, max_size=100).filter(
        lambda name: name[-1] != "/"
    ),
    size=st.integers(0, 0o77777777777),
)
@example(name="~" * 100, size=0o77777777777)
@example(name="\x01", size=0)
def test_template_equals_the_slow_way(name, size):
    """The fast maker gives what building the block field by field gives, checksum included."""
    style = builder.MemberStyle(uname="bigdata", gname="bigdata")
    header = builder.make_header_maker(style)(name, size)
    assert header == builder.format_header_block(
        name.encode(), size, mode=0o444, mtime=builder.EPOCH, uname=b"bigdata", gname=b"bigdata"
    )
    assert is_checksum_right(header)


@pytest.mark.parametrize("size", [0o77777777777, 0o77777777777 + 1, 1 << 40])
@pytest.mark.parametrize("format", FORMATS)
def test_sizes_beyond_eight_gibibytes(size, format):
    """A size that octal digits cannot hold is said by a record or in base-256."""
    header = builder.member_header("big.bin", size, format=format)
    member = tarfile.TarFile(fileobj=io.BytesIO(header + builder.END_MARK), mode="r").firstmember
    assert member.size == size
    assert (len(header) == 512) == (size <= 0o77777777777 or format == "gnu")


def test_ustar_refuses_what_it_cannot_hold():
    """With format=ustar a long name or a large member is an error that says what to do."""
    with pytest.raises(SampleError, match="leave format out"):
        builder.member_header("n" * 101, 1, format="ustar")
    with pytest.raises(SampleError, match="leave format out"):
        builder.member_header("n", 1 << 40, format="ustar")
    with pytest.raises(UsageError, match="format='pax'"):
        builder.member_header("n", 1, uid=1 << 22, format="ustar")
    with pytest.raises(UsageError, match="format='pax'"):
        builder.member_header("n", 1, mtime=-1, format="ustar")
    with pytest.raises(UsageError, match="31 bytes"):
        builder.member_header("n", 1, uname="u" * 32, format="ustar")


def test_ustar_keeps_raw_names():
    """With format=ustar a short name that is not ASCII is kept as its bytes."""
    assert read(builder.member_header("ü\udcff", 1, format="ustar"))[0].name == "ü\udcff"


@pytest.mark.parametrize("name", ["", "a\0b", "dir/", "\ud800", "n" * 70_000])
@pytest.mark.parametrize("format", [*FORMATS, "ustar"])
def test_what_is_no_name_is_refused(name, format):
    """Empty names, names with NUL, names of folders, lone surrogates and endless names are errors in every format."""
    with pytest.raises(SampleError):
        builder.member_header(name, 1, format=format)


def test_longest_name_is_within_the_limits_of_our_reader():
    """The longest name that is written has the most bytes that our reader accepts, less one."""
    name = "n" * builder.MAX_NAME_BYTES
    assert read(builder.member_header(name, 0))[0].name == name
    assert builder.MAX_NAME_BYTES == 65_535


@pytest.mark.parametrize("format", [None, "gnu"])
def test_fractions_of_a_second_are_floored(format):
    """Without format=pax a float mtime costs no extra blocks."""
    header = builder.member_header("a.x", 0, mtime=5.75, format=format)
    assert len(header) == 512
    assert read(header)[0].mtime == 5


def test_pax_keeps_fractions_of_a_second():
    """With format=pax a float mtime is kept, a whole one needs no record."""
    assert read(builder.member_header("a.x", 0, mtime=5.75, format="pax"))[0].mtime == 5.75
    assert len(builder.member_header("a.x", 0, mtime=5.0, format="pax")) == 512


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mtime", [-1, -5_000_000_000, 0o77777777777, 0o77777777777 + 1])
def test_times_out_of_the_ordinary(mtime, format):
    """Times before 1970 and after 2242 survive."""
    assert read(builder.member_header("a.x", 0, mtime=mtime, format=format))[0].mtime == mtime


@pytest.mark.parametrize("mtime", [math.nan, math.inf])
def test_times_that_are_none(mtime):
    """Infinite times are errors."""
    with pytest.raises(UsageError, match="no time"):
        builder.member_header("a.x", 0, mtime=mtime)


@pytest.mark.parametrize("format", FORMATS)
def test_large_owner_numbers(format):
    """Numbers of users beyond seven octal digits survive."""
    member, _ = read(builder.member_header("a.x", 0, uid=1 << 22, gid=1 << 23, format=format))
    assert (member.uid, member.gid) == (1 << 22, 1 << 23)


@pytest.mark.parametrize("format", [None, "pax"])
@pytest.mark.parametrize("owner", ["u" * 40, "jürgen", "ü" * 40])
def test_owner_names_out_of_the_ordinary(owner, format):
    """Long names of owners and such in other scripts survive."""
    member, _ = read(builder.member_header("a.x", 0, uname=owner, gname=owner, format=format))
    assert (member.uname, member.gname) == (owner, owner)


def test_owner_names_in_gnu_archives():
    """In the GNU format a short name of any script is kept, a long one refused, as is NUL in every format."""
    assert read(builder.member_header("a.x", 0, uname="jürgen", format="gnu"))[0].uname == "jürgen"
    with pytest.raises(UsageError, match="31 bytes"):
        builder.member_header("a.x", 0, uname="u" * 32, format="gnu")
    with pytest.raises(UsageError, match="NUL"):
        builder.member_header("a.x", 0, uname="a\0")


def test_names_that_are_not_utf8_beside_long_owners():
    """Where GNU's way cannot hold the owner, a binary PAX record holds the name."""
    member, _ = read(builder.member_header("bad\udcff", 0, uname="u" * 40))
    assert (member.name, member.uname) == ("bad\udcff", "u" * 40)
    assert member.pax_headers["hdrcharset"] == "BINARY"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (None, "auto"),
        (tarfile.USTAR_FORMAT, "ustar"),
        (tarfile.GNU_FORMAT, "gnu"),
        (tarfile.PAX_FORMAT, "pax"),
        ("USTAR_FORMAT", "ustar"),
        ("GNU", "gnu"),
        ("pax", "pax"),
    ],
)
def test_format_spellings(spec, wanted):
    """Constants of tarfile, their names and short words all work."""
    assert builder.parse_format(spec) == wanted


@pytest.mark.parametrize("spec", [3, -1, "zip", ""])
def test_unknown_formats(spec):
    """Anything else is an error that lists what there is."""
    with pytest.raises(UsageError, match="'ustar', 'gnu', 'pax'"):
        builder.parse_format(spec)


def test_numbers_that_cannot_be():
    """Negative sizes and impossible modes are errors."""
    with pytest.raises(UsageError, match="-1 bytes"):
        builder.member_header("ü", -1)
    with pytest.raises(UsageError, match="no file mode"):
        builder.member_header("a.x", 0, mode=1 << 30)


@given(st.binary(max_size=1200))
def test_record_lengths_count_themselves(text):
    """The decimal number before a record is the record's length, around every change of digits."""
    record = builder.format_pax_record(b"path", text)
    assert int(record.split(b" ", 1)[0]) == len(record)
    assert record.endswith(b" path=" + text + b"\n")


def test_padding_fills_blocks():
    """Padding of each size completes a block and never adds an empty one."""
    assert [len(builder.PADDING[size & 511]) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]


def test_no_records_for_a_plain_style():
    """The default style needs no records at all."""
    assert make_number_records(builder.MemberStyle()) == []
