"""Archives written by GNU tar, bsdtar and tarfile, in every format, read back equal; so do archives no tool writes.

Each archive is read as members (name and payload) in chunks of several sizes, and compared with what went in and with
what another party reads from it.
"""

import io
import os
import subprocess
import warnings

import pytest

import webdataset as wds
from webdataset import tariterators
from webdataset.core.errors import BadHeader, TarError, Truncated
from webdataset.testing import archives
from webdataset.testing.sources import FaultyStream

pytestmark = pytest.mark.oracle

LONG = "d" * 60 + "/" + "e" * 60 + "/" + "n" * 90 + ".txt"
LONGER = "/".join(["x" * 200] * 4) + "/" + "y" * 200 + ".txt"
SPLIT = "p" * 100 + "/" + "n" * 96 + ".txt"
SHORT = [("a.txt", b"first"), ("a.cls", b""), ("sub.d/b.jpg", bytes(range(256)) * 5), ("sub.d/b.json", b"{}" * 256)]
ODD = [
    ("with space.txt", b"1"),
    ("-dash.txt", b"2"),
    ("star*[a]?.txt", b"3"),
    ("back\\slash.txt", b"4"),
    ("new\nline.txt", b"5"),
    ("quote'\".txt", b"6"),
    ("tab\t.txt", b"7"),
    ("a=b,c;d#e.txt", b"8"),
    ("caf\u00e9.txt", b"9"),
    ("\u65e5\u672c\u8a9e.txt", b"10"),
    ("\U0001f600.txt", b"11"),
    (os.fsdecode(b"latin\xe9\xff.txt"), b"12"),
    ("100%.txt", b"13"),
    ("...dots...txt", b"14"),
]
HUNDRED = [("h" * 96 + ".txt", b"exactly one hundred bytes of name")]
SPARSE_PAYLOAD = b"".join(bytes([index % 255 + 1]) * 4096 + bytes(12288) for index in range(40)) + bytes(50000)


def needs(program):
    """Skip where a program is not installed."""
    if not archives.has(program):
        pytest.skip(f"{program} is not installed")


def read(data, **kw):
    """Names and payloads as this library gives them, from a file object."""
    return [(member["fname"], member["data"]) for member in tariterators.tar_file_iterator(io.BytesIO(data), **kw)]


def read_in_small_pieces(data, seed=1):
    """The same from a stream that gives a few bytes at a time."""
    stream = FaultyStream(data, seed=seed)
    return [(member["fname"], member["data"]) for member in tariterators.tar_file_iterator(stream)]


def agree(data, members):
    """Check that all ways of reading give these members."""
    assert read(data) == members
    assert read_in_small_pieces(data) == members


def members_for(format):
    """The members that a format can hold."""
    if format == "v7":
        return SHORT + HUNDRED
    if format == "ustar":
        return [*SHORT, *HUNDRED, (SPLIT, b"prefix and name")]
    return [*SHORT, *HUNDRED, (LONG, b"long"), (LONGER, b"longer" * 300)]


@pytest.mark.parametrize("format", archives.GNU_FORMATS)
def test_gnu_tar(format, tmp_path):
    """Every format of GNU tar, long names included where it can hold them."""
    needs("tar")
    members = members_for(format)
    data = archives.by_gnu_tar(members, tmp_path, format=format)
    agree(data, members)
    assert archives.members_by_tarfile(data) == members


@pytest.mark.parametrize("format", ["gnu", "posix", "ustar"])
def test_gnu_tar_odd_names(format, tmp_path):
    """Names in any script or in none: the bytes come through, undecodable ones as surrogate escapes."""
    needs("tar")
    data = archives.by_gnu_tar(ODD, tmp_path, format=format)
    agree(data, ODD)


def test_gnu_tar_of_a_folder_sorted_by_name(tmp_path):
    """What people run: ``tar --sort=name -cf shard.tar folder``, directories skipped, names with ./ kept."""
    needs("tar")
    (tmp_path / "folder").mkdir()
    for name, payload in (("b.cls", b"1"), ("a.jpg", b"x" * 600), ("a.cls", b"0"), ("b.jpg", b"y")):
        (tmp_path / "folder" / name).write_bytes(payload)
    command = ["tar", "--sort=name", "-C", tmp_path / "folder", "-cf", tmp_path / "s.tar", "."]
    subprocess.run(command, check=True)
    samples = list(wds.WebDataset(str(tmp_path / "s.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == ["./a", "./b"]
    assert [(sample["cls"], len(sample["jpg"])) for sample in samples] == [(b"0", 600), (b"1", 1)]


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0"])
def test_gnu_tar_sparse_posix(version, tmp_path):
    """Sparse members in the three PAX forms, holes and all."""
    needs("tar")
    members = [("a.bin", SPARSE_PAYLOAD), ("a.cls", b"7"), ("hole.bin", bytes(100_000))]
    options = ("-S", f"--sparse-version={version}")
    data = archives.by_gnu_tar(members, tmp_path, format="posix", options=options)
    stored_whole = len(data) > len(SPARSE_PAYLOAD)
    agree(data, members)
    if stored_whole:
        pytest.skip("this file system keeps no holes: the members were stored whole")


@pytest.mark.parametrize("format", ["gnu", "oldgnu"])
def test_gnu_tar_sparse_old(format, tmp_path):
    """Old GNU sparse members, with more pieces than the header holds."""
    needs("tar")
    members = [("a.bin", SPARSE_PAYLOAD), ("a.cls", b"7"), ("hole.bin", bytes(100_000))]
    data = archives.by_gnu_tar(members, tmp_path, format=format, options=("-S",))
    agree(data, members)


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
@pytest.mark.parametrize("pieces", [0, 1, 3, 4, 5, 25, 26, 60])
def test_sparse_by_hand(form, pieces):
    """Any number of pieces: none, as many as a header or an extension block holds, and one more."""
    content = b"".join(bytes([65 + index % 26]) * 512 + bytes(1024) for index in range(pieces)) + bytes(700)
    segments = [(index * 1536, 512) for index in range(pieces)] + [(len(content), 0)]
    part = (
        archives.old_gnu_sparse(b"s.bin", content, segments)
        if form == "old"
        else archives.pax_sparse(b"s.bin", content, segments, version=form)
    )
    data = archives.archive(archives.member(b"a.txt", b"1"), part, archives.member(b"z.txt", b"2"))
    agree(data, [("a.txt", b"1"), ("s.bin", content), ("z.txt", b"2")])


@pytest.mark.parametrize("lie", [(0, 10**6), (2**62, 512), (600, 512)])
@pytest.mark.parametrize("form", ["old", "0.1", "1.0"])
def test_sparse_maps_that_lie_are_errors(form, lie):
    """Pieces beyond the stored bytes or the stated size do not make up contents."""
    content = bytes(1024)
    part = (
        archives.old_gnu_sparse(b"s.bin", content, [lie])
        if form == "old"
        else archives.pax_sparse(b"s.bin", content, [lie], version=form)
    )
    with pytest.raises(TarError) as caught:
        read(archives.archive(part, archives.member(b"z.txt", b"2")))
    assert caught.value.offset is not None


@pytest.mark.limited
def test_sparse_bombs_are_errors():
    """A few bytes that claim to be terabytes are refused before memory is taken."""
    for form in ("0.0", "0.1", "1.0"):
        part = archives.pax_sparse(b"s.bin", b"x", [(0, 1)], version=form)
        size = b"1"
        assert size in part
        huge = archives.pax_header([(b"GNU.sparse.size", b"%d" % 2**50), (b"GNU.sparse.map", b"0,1")])
        data = archives.archive(huge + archives.member(b"s.bin", b"x"))
        with pytest.raises(TarError):
            read(data)


def test_gnu_tar_concatenated(tmp_path):
    """``tar -A``, ``cat a.tar b.tar`` and updated archives (``tar -r``): all members of all archives."""
    needs("tar")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = SHORT[:2], SHORT[2:]
    first, second = archives.by_gnu_tar(one, tmp_path / "a"), archives.by_gnu_tar(two, tmp_path / "b", format="posix")
    agree(first + second, SHORT)
    (tmp_path / "a.tar").write_bytes(first)
    (tmp_path / "b.tar").write_bytes(second)
    subprocess.run(["tar", "-A", "-f", tmp_path / "a.tar", tmp_path / "b.tar"], check=True)
    agree((tmp_path / "a.tar").read_bytes(), SHORT)
    (tmp_path / "b" / "later.txt").write_bytes(b"appended")
    subprocess.run(["tar", "-r", "-C", tmp_path / "b", "-f", tmp_path / "a.tar", "later.txt"], check=True)
    agree((tmp_path / "a.tar").read_bytes(), [*SHORT, ("later.txt", b"appended")])


def test_gnu_tar_skips_what_is_no_file(tmp_path):
    """Directories and pipes are stepped over; a hard link has its target's bytes, a symbolic link is told of."""
    needs("tar")
    (tmp_path / "x" / "d").mkdir(parents=True)
    (tmp_path / "x" / "a.txt").write_bytes(b"a")
    (tmp_path / "x" / "l.txt").symlink_to("a.txt")
    (tmp_path / "x" / "m.txt").symlink_to("q" * 200)
    os.link(tmp_path / "x" / "a.txt", tmp_path / "x" / "h.txt")
    os.mkfifo(tmp_path / "x" / "p.txt")
    (tmp_path / "x" / "z.txt").write_bytes(b"z")
    for format in archives.GNU_FORMATS:
        if format in ("v7", "ustar"):
            (tmp_path / "x" / "m.txt").unlink(missing_ok=True)
    names = ["a.txt", "d", "h.txt", "l.txt", "p.txt", "z.txt"]
    for format in ("oldgnu", "gnu", "ustar", "posix"):
        command = ["tar", "-c", "-f", "-", f"--format={format}", "-C", tmp_path / "x", *names]
        data = subprocess.run(command, check=True, capture_output=True).stdout
        with pytest.warns(UserWarning, match=": 1 symbolic links"):
            assert read(data) == [("a.txt", b"a"), ("h.txt", b"a"), ("z.txt", b"z")]
        with pytest.warns(UserWarning, match="1 hard links .*, 1 symbolic links"):
            assert read_in_small_pieces(data) == [("a.txt", b"a"), ("z.txt", b"z")]


def test_gnu_tar_extended_headers(tmp_path):
    """Times with fractions, owners, comments, labels and access lists in extended headers say nothing about members."""
    needs("tar")
    for options in (
        ("--pax-option=exthdr.name=%d/PaxHeaders/%f,globexthdr.name=/tmp/g,comment=a comment",),
        ("--pax-option=comment:=every member has one",),
        ("--label=a volume",),
        ("--pax-option=delete=mtime", "--atime-preserve"),
    ):
        for name, _ in SHORT:
            (tmp_path / name).unlink(missing_ok=True)
        data = archives.by_gnu_tar(SHORT, tmp_path, format="posix", options=options)
        agree(data, SHORT)


@pytest.mark.parametrize("factor", [1, 20, 200])
def test_gnu_tar_blocking_factors(factor, tmp_path):
    """However many zero blocks fill the last record, they are the end."""
    needs("tar")
    data = archives.by_gnu_tar(SHORT, tmp_path, options=(f"--blocking-factor={factor}",))
    assert len(data) % (factor * 512) == 0
    agree(data, SHORT)


@pytest.mark.parametrize("format", archives.BSD_FORMATS)
def test_bsdtar(format, tmp_path):
    """Every format of bsdtar."""
    needs("bsdtar")
    members = SHORT if format == "v7" else members_for({"gnutar": "gnu"}.get(format, format))  # v7: 99 bytes of name
    data = archives.by_bsdtar(members, tmp_path, format=format)
    agree(data, members)
    assert archives.members_by_tarfile(data) == members


@pytest.mark.parametrize("format", ["pax", "gnutar"])
def test_bsdtar_odd_names(format, tmp_path):
    """Names that are not UTF-8 come with hdrcharset=BINARY in PAX archives."""
    needs("bsdtar")
    data = archives.by_bsdtar(ODD, tmp_path, format=format)
    agree(data, ODD)
    if format == "pax":
        assert b"hdrcharset=BINARY" in data


@pytest.mark.parametrize("format", archives.TARFILE_FORMATS)
@pytest.mark.parametrize("mtime", [0, 1234567890, 1234567890.25])
def test_tarfile(format, mtime):
    """Every format of tarfile, with times whole and broken (an extended header for each member)."""
    members = members_for(format)
    if format != "ustar":
        members = members + ODD
    data = archives.by_tarfile(members, format=format, mtime=mtime)
    agree(data, members)


@pytest.mark.parametrize("kind", archives.COMPRESSIONS)
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_compressed(kind, pieces, tmp_path):
    """Each compression in one stream or several, by magic bytes: the name of the file says nothing."""
    if kind == "zst":
        pytest.importorskip("zstandard")
    data = archives.compressed(archives.by_tarfile(SHORT), kind, pieces=pieces)
    agree(data, SHORT)
    (tmp_path / "shard.dat").write_bytes(data)
    samples = list(wds.WebDataset(str(tmp_path / "shard.dat"), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == ["a", "sub.d/b"]


@pytest.mark.parametrize(
    ("program", "options"), [("gzip", ("-9",)), ("bzip2", ()), ("xz", ("-T2",)), ("zstd", ("-19", "--check"))]
)
def test_compressed_by_programs(program, options):
    """What the command-line programs write."""
    needs(program)
    if program == "zstd":
        pytest.importorskip("zstandard")
    plain = archives.by_tarfile(SHORT)
    data = subprocess.run([program, "-c", *options], input=plain, check=True, capture_output=True).stdout
    agree(data, SHORT)


HAND = {
    "v7": archives.member(b"a.txt", b"x", magic=archives.V7),
    "gnu": archives.member(b"a.txt", b"x", magic=archives.GNU),
    "base-256": archives.member(b"a.txt", b"x", binary=True),
    "old type": archives.member(b"a.txt", b"x", kind=b"\0"),
    "contiguous": archives.member(b"a.txt", b"x", kind=b"7"),
    "signed": archives.with_checksum(archives.header(b"a.txt", 1), signed=True) + archives.padded(b"x"),
    "GNU L": archives.long_name(b"a.txt", b"x"),
    "GNU L and K": archives.long_name(b"a.txt", b"x", linkname=b"k" * 300),
    "path record": archives.pax_member(b"a.txt", b"x"),
    "size record": archives.sized_by_pax(b"a.txt", b"x"),
    "size record against header": archives.sized_by_pax(b"a.txt", b"x", claimed=99999),
    "global comment": archives.pax_header([(b"comment", b"c")], everywhere=True) + archives.member(b"a.txt", b"x"),
    "binary charset": archives.pax_member(b"a.txt", b"x", hdrcharset=b"BINARY"),
    "utf-8 charset": archives.pax_member(b"a.txt", b"x", hdrcharset=b"ISO-IR 10646 2000 UTF-8"),
    "last record wins": archives.pax_header([(b"path", b"b.txt"), (b"path", b"a.txt")]) + archives.member(b"q", b"x"),
    "local over global": archives.pax_header([(b"path", b"g.txt")], everywhere=True)
    + archives.pax_member(b"a.txt", b"x")
    + archives.pax_header([(b"path", b"z.txt")], everywhere=True),
    "long pax comment": archives.pax_member(b"a.txt", b"x", comment=b"c" * 3000),
}


@pytest.mark.parametrize("form", HAND)
def test_by_hand(form):
    """Forms that only some program, somewhere, writes; a global name, which others ignore, is warned of."""
    data = archives.archive(HAND[form], archives.member(b"z.txt", b"last"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agree(data, [("a.txt", b"x"), ("z.txt", b"last")])
    assert ["global PAX header at byte 0" in str(each.message) for each in caught] == [True] * 2 * (
        "global" in form and "path" in str(HAND[form])
    )


def test_signed_checksum_of_a_name_with_high_bytes():
    """The two sums differ here; both kinds of programs are believed."""
    name = b"caf\xc3\xa9.txt"
    for signed in (False, True):
        block = archives.header(name, 1, signed=signed)
        agree(archives.archive(block + archives.padded(b"x")), [(name.decode(), b"x")])


def test_sizes_over_8_gib(tmp_path):
    """A 9 GiB member (a hole on disk) is stepped over by seeking, and the sample behind it read; base-256 and PAX."""
    size = 9 * 2**30
    pax = archives.pax_header([(b"size", b"%d" % size)]) + archives.header(b"a.bin", 0)
    for block in (archives.header(b"a.bin", size), pax):
        path = tmp_path / "huge.tar"
        with path.open("wb") as stream:
            stream.write(block)
            stream.seek(len(block) + size)
            stream.write(archives.archive(archives.member(b"z.txt", b"behind")))
        dataset = wds.WebDataset(str(path), shardshuffle=False, select_files=lambda name: name.endswith("txt"))
        assert [(sample["__key__"], sample["txt"]) for sample in dataset] == [("z", b"behind")]
        path.unlink()


def test_a_member_cut_short_names_member_and_size():
    """A size that the stream does not keep: the error says which member and how much is missing."""
    data = archives.member(b"a.txt", b"1") + archives.header(b"b.bin", 9 * 2**30) + bytes(5000)
    with pytest.raises(Truncated) as caught:
        read(data)
    assert caught.value.field == "b.bin"
    assert caught.value.offset == 1024
    assert str(9 * 2**30 - 5000) in str(caught.value)


def test_negative_sizes_are_bad_headers():
    """Base-256 can say minus one; no member has that size."""
    block = bytearray(archives.header(b"a.txt", 0))
    block[124:136] = archives.number(-1, 12)
    with pytest.raises(BadHeader) as caught:
        read(archives.archive(archives.member(b"z.txt", b""), archives.with_checksum(bytes(block))))
    assert caught.value.offset == 512


@pytest.mark.limited
def test_header_chains_and_names_have_limits():
    """Endless extended headers and names of megabytes are refused, with the offset."""
    chain = archives.pax_header([(b"comment", b"c")]) * 5000 + archives.member(b"a.txt", b"x")
    name = archives.pax_member(b"n" * 5_000_000 + b".txt", b"x")
    record = archives.header(b"x", 9 * 2**30, kind=b"x")
    for part in (chain, name, record):
        with pytest.raises(TarError) as caught:
            read(archives.archive(archives.member(b"first.txt", b""), part))
        assert caught.value.offset == 512


def test_an_extended_header_without_member_is_an_error():
    """Records that describe nothing are the trace of something lost."""
    with pytest.raises(TarError):
        read(archives.archive(archives.member(b"a.txt", b"x"), archives.pax_header([(b"path", b"b.txt")])))


def test_random_archives_agree_with_tarfile(tmp_path):
    """Sixty archives of random makers, formats and sizes: the same members as Python's tarfile sees."""
    for seed in range(60):
        members = archives.members_of(archives.samples(seed % 7, seed=seed, largest=3000))
        format = list(archives.TARFILE_FORMATS)[seed % 3]
        data = archives.by_tarfile(members, format=format, mtime=seed / 4)
        assert read(data) == read_in_small_pieces(data, seed) == archives.members_by_tarfile(data) == members


def test_missing_end_as_other_tools_leave_it(tmp_path):
    """An archive without its end mark, which all tools read: an error, and on demand one warning and every member."""
    data = archives.by_hand(SHORT, end=b"")
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(Truncated):
        list(wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = list(wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False, missing_end="warn"))
    assert [sample["__key__"] for sample in samples] == ["a", "sub.d/b"]
    assert [warning.category for warning in caught] == [UserWarning]
