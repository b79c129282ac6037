"""Archives made block by block, judged by GNU tar, bsdtar and tarfile: the kit itself must be right."""

import io
import tarfile

import pytest

from webdataset.testing import archives

CONTENT = b"".join(bytes([65 + index]) * 512 + bytes(1536) for index in range(30))
SEGMENTS = [(index * 2048, 512) for index in range(30)] + [(len(CONTENT), 0)]
SPARSE = {
    "old": archives.old_gnu_sparse(b"sparse.bin", CONTENT, SEGMENTS),
    "few": archives.old_gnu_sparse(b"sparse.bin", CONTENT[:4096], [(0, 512), (2048, 512), (4096, 0)]),
    **{
        version: archives.pax_sparse(b"sparse.bin", CONTENT, SEGMENTS, version=version)
        for version in ("0.0", "0.1", "1.0")
    },
}
LONG = b"a/" * 80 + b"b" * 90 + b".txt"


def by_tarfile(data):
    """Names and contents as tarfile sees them."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [
            (entry.name, archive.extractfile(entry).read() if entry.isreg() else entry.linkname) for entry in archive
        ]


@pytest.mark.parametrize("magic", [archives.V7, archives.USTAR, archives.GNU])
@pytest.mark.parametrize("binary", [False, True])
def test_member_is_read_by_tarfile(magic, binary):
    """A plain member of each kind of header, with octal and base-256 sizes."""
    data = archives.archive(archives.member(b"a.txt", b"hello", magic=magic, binary=binary))
    assert by_tarfile(data) == [("a.txt", b"hello")]


@pytest.mark.parametrize(
    "part",
    [
        archives.prefixed(LONG, b"hello"),
        archives.long_name(LONG, b"hello"),
        archives.pax_member(LONG, b"hello"),
        archives.pax_member(LONG, b"hello", stored_name=LONG[:100], comment=b"x" * 90),
    ],
    ids=["ustar", "gnu", "pax", "pax-comment"],
)
def test_long_names_are_read_by_tarfile(part):
    """Names over 100 bytes in the three ways."""
    assert by_tarfile(archives.archive(part, archives.member(b"z", b"1"))) == [(LONG.decode(), b"hello"), ("z", b"1")]


def test_long_link_is_read_by_tarfile():
    """A GNU link name over 100 bytes."""
    data = archives.archive(archives.long_name(b"link", b"", linkname=LONG, kind=b"2"))
    assert by_tarfile(data) == [("link", LONG.decode())]


def test_pax_size_overrides_the_header():
    """The size of the extended header counts, not the member's own."""
    data = archives.archive(archives.sized_by_pax(b"a", b"x" * 700), archives.member(b"b", b"y"))
    assert by_tarfile(data) == [("a", b"x" * 700), ("b", b"y")]


def test_global_records_hold_for_all_members():
    """A global header names every member that follows."""
    part = archives.pax_header([(b"path", b"all")], everywhere=True)
    data = archives.archive(part, archives.member(b"a", b"1"), archives.member(b"b", b"2"))
    assert by_tarfile(data) == [("all", b"1"), ("all", b"2")]


def test_signed_checksum_differs_and_is_accepted_by_tarfile():
    """A header with bytes over 127 has two checksums; old programs wrote the signed one."""
    name = b"\xe9\xe8.txt"
    block = archives.header(name, 2, signed=True)
    assert block != archives.header(name, 2)
    assert by_tarfile(archives.archive(block + archives.padded(b"ok")))[0][1] == b"ok"


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_members_are_read_by_tarfile(form):
    """Sparse members in all forms, one with extension blocks, expand to their contents."""
    whole = CONTENT[:4096] if form == "few" else CONTENT
    assert by_tarfile(archives.archive(SPARSE[form])) == [("sparse.bin", whole)]


@pytest.mark.oracle
@pytest.mark.parametrize("program", ["tar", "bsdtar"])
@pytest.mark.parametrize("form", SPARSE)
def test_sparse_members_are_read_by_programs(form, program, tmp_path):
    """GNU tar and bsdtar agree with us about the sparse forms."""
    if not archives.has(program):
        pytest.skip(f"{program} is not installed")
    whole = CONTENT[:4096] if form == "few" else CONTENT
    found = archives.members_by_program(archives.archive(SPARSE[form]), tmp_path, program=program)
    assert found == {b"sparse.bin": whole}


def test_numbers_take_base_256_where_octal_does_not_fit():
    """8 GiB no longer fits into eleven octal digits; negative numbers never do."""
    assert archives.number(8**11 - 1, 12) == b"7" * 11 + b"\0"
    assert archives.number(8**11, 12) == b"\x80" + (8**11).to_bytes(11, "big")
    assert archives.number(-1, 8) == b"\xff" * 8


def test_pax_record_counts_its_own_length():
    """The length field includes itself, also where that makes it a digit longer."""
    for length in (1, 90, 91, 92, 93, 94, 95, 96, 990, 991, 992):
        record = archives.pax_record(b"k", b"v" * length)
        assert int(record.split(b" ")[0]) == len(record)


def test_what_does_not_fit_is_refused():
    """Names over 100 bytes and unknown sparse versions are errors of the caller."""
    with pytest.raises(ValueError, match="does not fit"):
        archives.header(b"a" * 101)
    with pytest.raises(ValueError, match="no sparse version"):
        archives.pax_sparse(b"a", b"", [], version="2.0")
