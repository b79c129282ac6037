"""The walk: places of members from headers alone, and the scanner's verdict."""

import io
import tarfile

import pytest

from support import zoo
from webdataset.tar.scanner import TarScanner
from webdataset.tar.walker import MemberPosition, TarWalker
from webdataset.testing import archives

EXHIBITS = zoo.exhibits()


def walked(archive, *, piece=None):
    """Walk an archive; each time give what is wanted, or a piece of that many bytes."""
    walk, places, read = TarWalker(), [], 0
    while walk.error is None:
        offset, least = walk.wants
        if offset >= len(archive):
            break
        chunk = archive[offset : offset + (piece or least)]
        read += len(chunk)
        places += walk.walk(chunk, offset)
        if len(chunk) < (piece or least):
            break
    return walk, places, read


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_places_are_those_that_tarfile_finds(exhibit):
    """Names, header offsets, payload offsets and sizes agree with Python's tarfile."""
    _, places, _ = walked(exhibit.archive)
    with tarfile.open(fileobj=io.BytesIO(exhibit.archive), ignore_zeros=True) as archive:
        theirs = [entry for entry in archive if entry.isreg()]
        names = [entry.name for entry in theirs]
        offsets = [entry.offset for entry in theirs]
        inside = [(entry.offset_data, entry.size) for entry in theirs if not entry.issparse()]
    assert [place.name for place in places] == names
    if exhibit.name != "pax_globally":  # tarfile counts a global header to no member, we to the next one
        assert [place.offset for place in places] == offsets
    assert [(place.payload, place.size) for place in places if not place.sparse] == inside


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
@pytest.mark.parametrize("piece", [512, 700, 4096, 1 << 20])
def test_pieces_of_any_size_give_the_same_places(exhibit, piece):
    """How much is read at a time changes nothing."""
    whole, places, _ = walked(exhibit.archive)
    again, others, _ = walked(exhibit.archive, piece=piece)
    assert others == places
    assert again.end_at(len(exhibit.archive)) == whole.end_at(len(exhibit.archive))
    assert again.end == whole.end


def test_bytes_before_the_position_are_passed_over():
    """A stream can be walked as it comes: whole chunks, payloads included."""
    archive = zoo.exhibit("gnu_long").archive
    _, places, _ = walked(archive)
    walk, found = TarWalker(), []
    for start in range(0, len(archive), 777):
        found += walk.walk(archive[start : start + 777], start)
    assert found == places
    assert walk.end_at(len(archive))


def test_payloads_are_not_asked_for():
    """A megabyte of payload costs one header."""
    archive = archives.archive(archives.member(b"a.x", bytes(1 << 20)), archives.member(b"b.x", b"1"))
    _, places, read = walked(archive)
    assert [place.payload for place in places] == [512, (1 << 20) + 1024]
    assert read == 4 * 512


@pytest.mark.parametrize("name", ["plain", "gnu_long", "pax_times", "sparse", "links", "joined", "pax_globally"])
def test_an_archive_that_is_cut_gets_the_scanners_verdict(name):
    """At each cut: the same error with the same words, or none, and the same word on the end mark."""
    archive = zoo.exhibit(name).archive
    for cut in [*range(0, len(archive), 97), *range(0, len(archive), 512)]:
        walk, _, _ = walked(archive[:cut])
        ended = walk.end_at(cut)
        scanner = TarScanner()
        scanner.feed(archive[:cut])
        assert (ended, repr(walk.error)) == (scanner.finish(), repr(scanner.error)), cut


@pytest.mark.parametrize("place", [0, 100, 124, 148, 156, 257, 345])
def test_a_damaged_header_gets_the_scanners_verdict(place):
    """A byte changed in the second member's header is found by its checksum, with the same error."""
    archive = bytearray(archives.archive(*[archives.member(b"%d.x" % n, b"1" * 600) for n in range(3)]))
    archive[1536 + place] ^= 0x41
    walk, places, _ = walked(bytes(archive))
    scanner = TarScanner()
    members = scanner.feed(bytes(archive))
    assert len(places) == len(members) == 1
    assert type(walk.error) is type(scanner.error)
    assert str(walk.error) == str(scanner.error)


def test_members_may_be_left_out():
    """``admit`` names members, or leaves them out."""
    archive = archives.archive(archives.member(b"a.x", b"1"), archives.member(b"b.x", b"22"))
    walk = TarWalker(lambda name: name.upper() if name == "b.x" else None)
    assert walk.walk(archive, 0) == [MemberPosition("B.X", 1024, 1536, 2)]


def test_joined_archives_are_told():
    """Where a further archive starts; nothing where there is one archive."""
    joined = zoo.exhibit("joined").archive
    assert walked(joined)[0].joins == [len(joined) // 2]
    assert walked(zoo.exhibit("plain").archive)[0].joins == []


def test_a_place_counts_as_its_payload():
    """An empty payload is false, as empty bytes are."""
    assert MemberPosition("a.x", 0, 512, 1)
    assert not MemberPosition("a.x", 0, 512, 0)
