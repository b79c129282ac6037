"""The scanner: bytes in, members out, whatever the chunks."""

import io
import tarfile
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset.core.errors import BadHeader, LimitExceeded, Truncated
from webdataset.tar import builder, member_assembly
from webdataset.tar.header import Limits, describe_content
from webdataset.tar.scanner import CHUNK, TarScanner
from webdataset.tar.walker import TarWalker
from webdataset.testing import archives
from webdataset.testing.archives import archive, long_name, member, old_gnu_sparse, pax_header, pax_member, pax_sparse


def scan(data, chunks=None, **kw):
    """Feed ``data`` in chunks (a list of sizes, repeated) or as the scanner wants; return scanner and members."""
    scanner = TarScanner(**kw)
    found = []
    stream = io.BytesIO(data)
    turn = 0
    while True:
        size = chunks[turn % len(chunks)] if chunks else scanner.want
        piece = stream.read(size)
        if not piece:
            break
        found += scanner.feed(piece)
        turn += 1
    scanner.ended = scanner.finish()
    return scanner, found


RICH = archive(
    member(b"a.txt", b"one"),
    member(b"a.cls", b"7"),
    archives.prefixed(b"folder/b.txt", b"two"),
    long_name(b"n" * 150 + b".txt", b"three"),
    pax_member(b"p" * 300 + b".txt", b"four"),
    pax_header([(b"mtime", b"1.5")]) + member(b"c.txt", b"five"),
    pax_header([(b"mtime", b"1.5")]) + member(b"d.txt", b"six"),
    pax_header([(b"mtime", b"1.5"), (b"path", b"e.txt")]) + member(b"stored", b"seven"),
    archives.sized_by_pax(b"f.txt", b"eight" * 300),
    old_gnu_sparse(b"g.bin", bytes(5000) + b"end", [(5000, 3)]),
    pax_sparse(b"h.bin", b"start" + bytes(4000), [(0, 5)], version="1.0"),
    member(b"big.bin", bytes(range(256)) * 1200),
    member(b"empty.txt", b""),
)
NAMES = [
    "a.txt", "a.cls", "folder/b.txt", "n" * 150 + ".txt", "p" * 300 + ".txt", "c.txt", "d.txt", "e.txt", "f.txt",
    "g.bin", "h.bin", "big.bin", "empty.txt",
]  # fmt: skip


def test_all_kinds_of_members():
    """Names and payloads of every kind of header come out whole."""
    scanner, found = scan(RICH)
    assert scanner.error is None
    assert scanner.ended
    assert [name for name, _, _ in found] == NAMES
    payloads = {name: payload for name, payload, _ in found}
    assert payloads["f.txt"] == b"eight" * 300
    assert payloads["g.bin"] == bytes(5000) + b"end"
    assert payloads["h.bin"] == b"start" + bytes(4000)
    assert payloads["big.bin"] == bytes(range(256)) * 1200


@settings(deadline=None)
@given(st.lists(st.integers(60, 5000), min_size=1, max_size=6))
def test_chunks_do_not_matter(chunks):
    """Any cutting of the stream gives the same members, offsets included."""
    _, whole = scan(RICH)
    scanner, found = scan(RICH, chunks)
    assert found == whole
    assert scanner.error is None


def test_one_byte_at_a_time():
    """Even single bytes."""
    assert scan(RICH, [1])[1] == scan(RICH)[1]


def test_offsets_are_where_headers_start():
    """A member's offset is that of its first header block, extended headers included."""
    parts = [member(b"a.txt", b"x" * 600), long_name(b"n" * 150, b"y"), member(b"b.txt", b"z")]
    _, found = scan(archive(*parts))
    assert [offset for _, _, offset in found] == [0, len(parts[0]), len(parts[0]) + len(parts[1])]


def test_scanning_from_an_offset():
    """The stream may be entered at any member's offset."""
    _, whole = scan(RICH)
    for start in range(0, len(whole), 3):
        _, found = scan(RICH[whole[start][2] :])
        assert [(n, p) for n, p, _ in found] == [(n, p) for n, p, _ in whole[start:]]


@pytest.mark.parametrize("at", [0, 1, 99, 100, 124, 148, 153, 156, 257, 345, 511])
def test_flipped_header_byte_is_an_error(at):
    """Any changed byte of a header is found, on the first header and on the fast path."""
    block = member(b"a.txt", b"12345")
    for broken_at in (0, 2):
        data = bytearray(archive(block, member(b"b.txt", b"12345"), member(b"c.txt", b"12345")))
        place = broken_at * 1024 + at
        data[place] ^= 1
        scanner, found = scan(bytes(data))
        assert isinstance(scanner.error, BadHeader)
        assert scanner.error.offset == broken_at * 1024
        assert len(found) == broken_at


def test_signed_checksums_are_accepted():
    """Headers of early writers, whose checksums summed signed bytes, are read."""
    name = "ä.txt".encode("latin-1")
    block = archives.with_checksum(archives.header(name, 3), signed=True) + archives.padded(b"abc")
    scanner, found = scan(archive(block, block))
    assert scanner.error is None
    assert [payload for _, payload, _ in found] == [b"abc", b"abc"]


@pytest.mark.parametrize("keep", [1, 511, 513, 700, 1023])
def test_cut_is_truncated(keep):
    """A stream that ends inside a header, a payload or its padding is an error that names the member."""
    data = member(b"a.txt", b"x" * 300)[:keep]
    scanner, _ = scan(data)
    assert isinstance(scanner.error, Truncated)
    assert isinstance(scanner.error, tarfile.ReadError)
    assert isinstance(scanner.error, EOFError)
    if 512 <= keep < 812:
        assert scanner.error.field == "a.txt"


def test_cut_after_an_extended_header():
    """An extended header without its member is an error, on the fast path too."""
    lead = pax_header([(b"mtime", b"1.5")])
    whole = lead + member(b"a.txt", b"x")
    for data in (lead, whole + lead, whole + whole + lead):
        scanner, _ = scan(data)
        assert isinstance(scanner.error, Truncated)


def test_empty_stream():
    """Nothing at all is an error."""
    assert isinstance(scan(b"")[0].error, Truncated)


def test_end_marks():
    """One zero block at the very end is enough; none at all, or a part of one, is told."""
    data = member(b"a.txt", b"x")
    for end, marked in (
        (b"", False),
        (bytes(100), False),
        (bytes(512), True),
        (bytes(1024), True),
        (bytes(10240), True),
    ):
        scanner, found = scan(data + end)
        assert (scanner.ended, scanner.error) == (marked, None)
        assert len(found) == 1


def test_concatenated_archives_are_read_on():
    """What follows a complete end mark is read, until the bytes end."""
    one = archive(member(b"a.txt", b"x"))
    two = archive(member(b"b.txt", b"y"), end=bytes(10240))
    scanner, found = scan(one + two + one)
    assert [name for name, _, _ in found] == ["a.txt", "b.txt", "a.txt"]
    assert scanner.error is None


def test_doubtful_seams():
    """Zero blocks between members are a seam of joined archives where one would stand; elsewhere they are doubtful."""
    one = member(b"a.txt", b"x")
    for zeros, doubtful in ((2, False), (18, False), (3, True), (8, True), (17, True), (38, False)):
        scanner, found = scan(archive(one, bytes(512 * zeros) + one))
        assert (scanner.error, len(found)) == (None, 2)
        assert (scanner.doubt == (1024 + 512 * zeros, zeros)) is doubtful


@pytest.mark.parametrize("zeros", [2, 20, 39, 40, 41, 60])
@pytest.mark.parametrize("chunk", [512, 700, 4096, 1 << 20])
def test_many_zero_blocks_are_counted(zeros, chunk):
    """However many there are at once, at the end and before another archive, and wherever chunks end."""
    one = member(b"a.txt", b"x")
    scanner, found = scan(archive(one, bytes(512 * zeros) + one, end=bytes(512 * zeros)), [chunk])
    assert (scanner.error, len(found), scanner.ended) == (None, 2, True)
    expected = zeros != 2 and (1024 + 512 * zeros) % 10240
    assert scanner.doubt == ((1024 + 512 * zeros, zeros) if expected else None)


@pytest.mark.parametrize("same_tail", [True, False])
def test_lone_zero_block_is_doubted(same_tail):
    """It may be a zeroed header; what stands behind it is read, whether its header looks like the last or not."""
    after = member(b"b.txt", b"y") if same_tail else archives.prefixed(b"folder/b.txt", b"y")
    scanner, found = scan(archive(member(b"a.txt", b"x"), bytes(512) + after))
    assert (scanner.error, len(found)) == (None, 2)
    assert scanner.doubt == (1536, 1)


def test_lone_zero_block_before_junk_is_an_error():
    """A zeroed header, with its payload behind it."""
    scanner, found = scan(archive(member(b"a.txt", b"x"), bytes(512) + b"junk" * 128))
    assert isinstance(scanner.error, BadHeader)
    assert scanner.error.offset == 1024
    assert len(found) == 1


def test_junk_after_the_end_mark_is_an_error():
    """Bytes after the end mark that are no header are not ignored."""
    scanner, found = scan(archive(member(b"a.txt", b"x")) + b"junk" * 128)
    assert isinstance(scanner.error, BadHeader)
    assert len(found) == 1


def test_links_and_folders_are_stepped_over():
    """Directories, links, devices and unknown types give no member."""
    parts = [member(b"x", b"", kind=kind) for kind in (b"1", b"2", b"3", b"4", b"5", b"6")]
    parts += [member(b"old/", b"", kind=b"\0"), member(b"odd", b"payload", kind=b"D")]
    scanner, found = scan(archive(*parts, member(b"a.txt", b"x")))
    assert [name for name, _, _ in found] == ["a.txt"]
    assert scanner.error is None


def test_v7_archives():
    """Headers without magic are read; their tails are not taken for zero blocks."""
    v7 = [archives.header(b"%c.txt" % c, 1, kind=b"\0", magic=archives.V7) + archives.padded(b"x") for c in b"abc"]
    scanner, found = scan(archive(*v7))
    assert [name for name, _, _ in found] == ["a.txt", "b.txt", "c.txt"]
    assert scanner.error is None


def test_admit_names_and_leaves_out():
    """``admit`` sees every name once; what it leaves out is skippable where it is large."""
    seen = []

    def admit(name):
        seen.append(name)
        return None if name.endswith(".big") else name.upper()

    data = archive(member(b"a.big", bytes(3 * CHUNK)), member(b"a.txt", b"x"))
    scanner = TarScanner(admit)
    found = scanner.feed(data[:2048])
    assert scanner.skippable == 3 * CHUNK - 1536
    found += scanner.feed(data[2048:])
    assert [name for name, _, _ in found] == ["A.TXT"]
    assert seen == ["a.big", "a.txt"]


def test_stepping_over():
    """A source that seeks says how far it went."""
    data = archive(member(b"a.big", bytes(9000)), member(b"a.txt", b"x"))
    scanner = TarScanner(lambda name: None if name.endswith(".big") else name)
    scanner.feed(data[:1024])
    scanner.step_over(5000)
    assert [name for name, _, _ in scanner.feed(data[6024:])] == ["a.txt"]
    assert scanner.finish()
    assert scanner.offset == len(data)


def test_admit_that_raises_is_kept_for_later():
    """An error in the user's function comes after the members before it."""

    def admit(name):
        if name == "b.txt":
            raise KeyError(name)
        return name

    scanner, found = scan(archive(member(b"a.txt", b"x"), member(b"b.txt", b"y")), admit=admit)
    assert [name for name, _, _ in found] == ["a.txt"]
    assert isinstance(scanner.error, KeyError)


def test_large_members_are_not_copied():
    """In a series of large members, each payload is the very object that was fed."""
    scanner = TarScanner()
    stream = io.BytesIO(archive(*(member(b"%d.bin" % n, bytes([n]) * 300_000) for n in range(5))))
    same = []
    while piece := stream.read(scanner.want):
        same += [payload is piece for _, payload, _ in scanner.feed(piece)]
    assert same == [False, True, True, True, True]


@pytest.mark.limited
def test_limits():
    """Header chains, records and names beyond the limits are errors, not memory."""
    chain = pax_header([(b"comment", b"x")]) * 70 + member(b"a.txt", b"x")
    assert isinstance(scan(archive(chain))[0].error, LimitExceeded)
    long = pax_member(b"n" * 70_000, b"x")
    assert isinstance(scan(archive(long))[0].error, LimitExceeded)
    record = pax_header([(b"comment", b"x" * (1 << 20))])
    assert isinstance(scan(archive(record, member(b"a", b"")))[0].error, LimitExceeded)
    sparse = old_gnu_sparse(b"g.bin", bytes(5000) + b"end", [(5000, 3)])
    assert isinstance(scan(archive(sparse), limits=Limits(expanded_bytes=100))[0].error, LimitExceeded)


@pytest.mark.parametrize("chunk", [512, 1024, 1536, 1 << 16])
@pytest.mark.parametrize("kind", [TarScanner, TarWalker])
def test_the_limit_of_a_chain_is_exact(kind, chunk):
    """As many extended headers as the limit says may stand before any member, wherever a chunk ends among them."""
    header = pax_header([(b"comment", b"x")])
    first = header + member(b"a.txt", b"one")
    for count, good in ((1, True), (2, True), (3, True), (4, False)):
        reader = kind(limits=Limits(chain=3))
        data = archive(first, first, header * count + member(b"b.txt", b"two"), first)
        found = []
        for start in range(0, len(data), chunk):
            piece = data[start : start + chunk]
            found += reader.feed(piece) if kind is TarScanner else reader.walk(piece, start)
        names = ["a.txt", "a.txt", "b.txt", "a.txt"] if good else ["a.txt", "a.txt"]
        assert [name for name, *_ in found] == names
        assert reader.error is None if good else isinstance(reader.error, LimitExceeded)


def test_a_sparse_map_has_a_limit():
    """Its extension blocks name no more pieces than the limit allows, however many blocks there are."""
    places = [(1024 * number, 1) for number in range(24)]
    content = b"".join(b"x" + bytes(1023) for _ in places)[: 1024 * 23 + 1]
    data = archive(old_gnu_sparse(b"g.bin", content, places))
    assert [payload for _, payload, _ in scan(data)[1]] == [content]
    pieces = 25  # an empty one ends the map
    assert scan(data, limits=Limits(record_bytes=pieces))[0].error is None
    scanner, found = scan(data, limits=Limits(record_bytes=20))
    assert isinstance(scanner.error, LimitExceeded)
    assert found == []


def test_a_large_body_is_not_there_twice(monkeypatch):
    """What comes in small parts is put together as it comes, and not joined at the end."""
    monkeypatch.setattr(member_assembly, "GATHERED", 1 << 20)
    payload = bytes(range(256)) * (1 << 15)
    scanner = TarScanner()
    assert scanner.coming is None
    scanner.feed(archives.header(b"large.bin", len(payload)))
    tracemalloc.start()
    try:
        found = []
        for start in range(0, len(payload), 1 << 16):
            assert found == []
            found += scanner.feed(payload[start : start + (1 << 16)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(name, body == payload) for name, body, _ in found] == [("large.bin", True)]
    assert peak < 1.5 * len(payload)


def test_numbers_beyond_octal():
    """A base-256 size is read: a member of 3 GiB and a little asks for just that, 64 MiB at once at most."""
    scanner = TarScanner(lambda name: None)
    scanner.feed(archives.header(b"huge.bin", (3 << 30) + 200_000))
    for _ in range(48):
        assert scanner.want == 64 << 20
        scanner.step_over(scanner.want)
    assert scanner.want == 200_000


def test_negative_size_is_an_error():
    """A size below zero makes no sense."""
    block = bytearray(archives.header(b"a.txt", 0))
    block[124:136] = b"\xff" * 12
    scanner, _ = scan(archives.with_checksum(bytes(block)) + bytes(1024))
    assert isinstance(scanner.error, BadHeader)


def test_malformed_pax_records():
    """A record that is not "length keyword=value" is an error."""
    for body in (b"99 path=a\n", b"path=a\n", b"10 path a\n", b"9 path=ab"):
        data = archive(archives.header(b"x", len(body), kind=b"x") + archives.padded(body), member(b"a", b""))
        assert isinstance(scan(data)[0].error, BadHeader), body


def test_global_pax_records_hold_on():
    """A global header says something about all members after it, until the next archive."""
    first = pax_header([(b"path", b"g.txt")], everywhere=True) + member(b"a.txt", b"x") + member(b"b.txt", b"y")
    _, found = scan(archive(first) + archive(member(b"c.txt", b"z")))
    assert [name for name, _, _ in found] == ["g.txt", "g.txt", "c.txt"]


def test_multi_volume_continuation_is_refused():
    """The rest of a file from another volume is not taken for a member."""
    assert isinstance(scan(archive(member(b"a.txt", b"x", kind=b"M")))[0].error, BadHeader)


def spelled(size, checksum):
    """Return two members; the second's header has its size and checksum (from its sum) spelled by two functions."""
    first, second = (
        bytearray(builder.format_header_block(name, 10) + b"0123456789".ljust(512, b"\0")) for name in (b"a.x", b"b.x")
    )
    second[124:136] = size(10)
    second[148:156] = b" " * 8
    second[148:156] = checksum(sum(second[:512]))
    return bytes(first + second) + bytes(1024)


USUAL_SIZE, USUAL_SUM = (lambda number: b"%011o\0" % number), (lambda total: b"%06o\0 " % total)


@pytest.mark.parametrize(
    "size",
    [
        USUAL_SIZE,
        lambda number: b"%011o " % number,
        lambda number: b"%12o" % number,
        lambda number: (b"%o" % number).ljust(12, b"\0"),
        lambda number: (b"%o " % number).ljust(12, b"\0"),
        lambda number: b"\x80" + number.to_bytes(11, "big"),
    ],
)
@pytest.mark.parametrize(
    "checksum",
    [
        USUAL_SUM,
        lambda total: b"%06o \0" % total,
        lambda total: b"%07o\0" % total,
        lambda total: b"%6o\0 " % total,
        lambda total: b"%8o" % total,
    ],
)
def test_numbers_spelled_in_other_ways(size, checksum):
    """What early and odd writers put into size and checksum is read behind a usual header as at the start."""
    _, members = scan(spelled(size, checksum))
    assert [(name, payload) for name, payload, _ in members] == [("a.x", b"0123456789"), ("b.x", b"0123456789")]


@pytest.mark.parametrize(
    ("size", "checksum", "message"),
    [
        (lambda number: b"%010o8\0" % number, USUAL_SUM, "for its size"),
        (lambda number: b"%09o_1\0" % number, USUAL_SUM, "for its size"),
        (lambda number: b"+%010o\0" % number, USUAL_SUM, "for its size"),
        (lambda number: b"-%010o\0" % number, USUAL_SUM, "negative size"),
        (USUAL_SIZE, lambda total: b"00%03o8\0 " % (total // 64), "checksum"),
        (USUAL_SIZE, lambda total: b"%06o\0 " % (total + 1), "checksum"),
        (USUAL_SIZE, lambda total: b"+%05o\0 " % total, "checksum"),
    ],
)
def test_numbers_that_are_none(size, checksum, message):
    """What is no number, or not the sum, behind a usual header, is damage; what came before is given."""
    scanner, members = scan(spelled(size, checksum))
    assert [name for name, _, _ in members] == ["a.x"]
    assert isinstance(scanner.error, BadHeader)
    assert message in str(scanner.error)


def test_a_sparse_name_wins():
    """GNU tar writes the name of a sparse member's stand-in as ``path``, before or behind the real one."""
    numbers = [(b"GNU.sparse.size", b"6"), (b"GNU.sparse.map", b"3,3")]
    names = [(b"GNU.sparse.name", b"real.bin"), (b"path", b"GNUSparseFile.0/x")]
    for ordered in (names, names[::-1]):
        part = pax_header([*numbers, *ordered]) + member(b"x", b"end")
        assert [found[:2] for found in scan(archive(part))[1]] == [("real.bin", b"\0\0\0end")]


@pytest.mark.parametrize("hole", [1, 2, 600])
def test_a_hole_at_the_end(hole):
    """A sparse member may end with a hole, of one byte too: its zeros are a part of it."""
    content = b"abc" + bytes(hole)
    (found,) = scan(archive(old_gnu_sparse(b"g.bin", content, [(0, 3)])))[1]
    assert bytes(found[1]) == content


def test_a_sparse_member_that_stores_more_than_its_map():
    """Bytes that the map gives no place to are an error, not left out."""
    part = pax_header([(b"GNU.sparse.size", b"6"), (b"GNU.sparse.map", b"3,3")]) + member(b"x", b"ending")
    with pytest.raises(BadHeader, match="stores 6 bytes, its map 3"):
        raise scan(archive(part))[0].error


def test_signed_sums():
    """Early writers summed signed bytes: those above 127, and none below, count less by 256."""
    for name in (b"\x7f\xe9.txt", b"\xff\x80.txt"):
        block = bytearray(member(name, b"one"))
        counted = block[:148] + b" " * 8 + block[156:512]
        block[148:156] = b"%06o\0 " % (sum(byte - 256 if byte >= 0x80 else byte for byte in counted) % (1 << 18))
        scanner, found = scan(archive(bytes(block)))
        assert scanner.error is None
        assert [payload for _, payload, _ in found] == [b"one"]


def test_a_record_that_is_cut_is_no_record():
    """The record of a header like those before it ends with a line feed, or is refused as in a first header."""
    bad = pax_header([(b"comment", b"xy")])
    assert bad.count(b"14 comment=xy\n") == 1
    bad = bad.replace(b"14 comment=xy\n", b"14 comment=x\ny")
    good = pax_header([(b"comment", b"xy")]) + member(b"a.txt", b"one")
    for before in ([], [good, good]):
        scanner, found = scan(archive(*before, bad + member(b"b.txt", b"two")))
        assert isinstance(scanner.error, BadHeader)
        assert len(found) == len(before)


def test_only_the_first_block_says_what_the_file_is():
    """Text at the start is another kind of file; later it is damage."""
    block = b"<!DOCTYPE html><html>".ljust(512, b"\n")
    with pytest.raises(BadHeader, match="not a tar archive: its content is an HTML page"):
        raise scan(block)[0].error
    with pytest.raises(BadHeader, match="fails its checksum at byte 1024: the shard is damaged"):
        raise scan(archive(member(b"a.txt", b"one"))[:1024] + block)[0].error


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"\xef\xbb\xbf\r\n <!DOCTYPE html><html>", "an HTML page"),
        (b"<Error><Code>AccessDenied</Code></Error>", "XML"),
        (b"<?xml version='1.0'?>", "XML"),
        (b'{"error": 1}', "JSON"),
        (b"PK\3\4\x14", "a zip archive"),
        (b"PAR1\x15", "a Parquet file"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"\x89PNG\r\n", "a PNG image"),
        (b"\xff\xd8\xff\xe0", "a JPEG image"),
        (b"%PDF-1.7", "a PDF document"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b"{\0", None),
        (b"plain", None),
        (b"\x82\xa7__key__\xa10\xa3txt\xa1a", "a record shard of msgpack maps"),
        (b"\xde\x00\x20\xa7__key__\xa10", "a record shard of msgpack maps"),
        (b"\xa2g__key__a0ctxtaa", "a record shard of CBOR maps"),
        (b"\x82__key_", None),
        (b"a/__key__.txt", None),
    ],
)
def test_what_is_no_archive_is_named(start, message):
    """By its first bytes."""
    found = describe_content(start.ljust(400, b"\n"))
    assert found is None if message is None else found.startswith(message)


@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!doctype html><p>Sign in", "an HTML page"),
        (b'{"error": "not found"}', "JSON"),
        (b"\x81\xa7__key__\xa10", "msgpack"),
    ],
)
def test_what_is_shorter_than_a_header_is_named(chunk, content, words):
    """A small answer in place of a shard is told by its content; other short streams are cut archives."""
    scanner, _ = scan(content, [chunk])
    assert isinstance(scanner.error, BadHeader)
    assert words in str(scanner.error)
    scanner, _ = scan(b"x" * 40, [chunk])
    assert isinstance(scanner.error, Truncated)


@pytest.mark.parametrize("chunk", [100, 512, 700, 1 << 20])
def test_members_that_are_left_out(chunk):
    """A large one takes no memory, and the blocks of a sparse map are read all the same, wherever a chunk ends."""
    places = [(1024 * number, 1) for number in range(60)]
    content = b"".join(b"x" + bytes(1023) for _ in places)[: 1024 * 59 + 1]
    large = member(b"large.bin", bytes(1 << 21))
    data = archive(member(b"a.txt", b"one"), old_gnu_sparse(b"g.bin", content, places), large, member(b"b.txt", b"two"))
    scanner, found = TarScanner(lambda name: name if name.endswith(".txt") else None), []
    tracemalloc.start()
    try:
        for start in range(0, len(data), chunk):
            found += scanner.feed(data[start : start + chunk])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert scanner.error is None
    assert [(name, payload) for name, payload, _ in found] == [("a.txt", b"one"), ("b.txt", b"two")]
    assert chunk > 1000 or peak < 1 << 20


def test_what_is_wanted_next_ends_on_a_block():
    """However the bytes before were cut: blocks need not be put together then."""
    data = archive(*[member(b"%d.txt" % number, b"x" * 700) for number in range(2000)])
    scanner = TarScanner()
    taken = 0
    for first in (100, 1000, 512, 77):
        scanner.feed(data[taken : taken + first])
        taken += first
        wanted = scanner.want
        assert (taken + wanted) % 512 == 0
        scanner.feed(data[taken : taken + wanted])
        taken += wanted
    assert scanner.error is None
