"""Damage operators: reproducible, where they say, and judged by the layout."""

import pytest

from webdataset.testing import archives, damage
from webdataset.testing.damage import flaw, regions, size_of

ARCHIVE = archives.by_hand(archives.members_of(archives.samples(8)))
LONG = archives.archive(
    archives.long_name(b"n" * 150, b"one"), archives.pax_member(b"p" * 150, b"two"), archives.member(b"c", b"three")
)


@pytest.mark.parametrize("archive", [ARCHIVE, LONG], ids=["plain", "long"])
def test_regions_cover_the_archive_without_gaps(archive):
    """Each byte belongs to exactly one region."""
    found = regions(archive)
    assert found[0].start == 0
    assert found[-1].stop == len(archive)
    assert all(before.stop == after.start for before, after in zip(found, found[1:], strict=False))
    assert flaw(archive) is None


def test_regions_tell_records_from_members():
    """Long names and extended headers are not members."""
    kinds = [(region.kind, region.member) for region in regions(LONG) if "padding" not in region.kind]
    assert kinds == [
        ("record header", 0), ("record", 0), ("header", 0), ("payload", 0),
        ("record header", 1), ("record", 1), ("header", 1), ("payload", 1),
        ("header", 2), ("payload", 2), ("end", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("name", damage.OPERATORS)
def test_operators_repeat_from_their_seed(name):
    """Two numbers, archive and seed, say everything; another seed says something else."""
    operator = damage.OPERATORS[name]
    assert operator(ARCHIVE, 7) == operator(ARCHIVE, 7)
    assert len({operator(ARCHIVE, seed) for seed in range(20)}) > 10
    assert all(operator(ARCHIVE, seed).data != ARCHIVE for seed in range(20))


def test_flips_stay_in_their_regions():
    """One bit differs, in a header or in a payload."""
    for seed in range(50):
        for operator, kind in ((damage.flip_header_bit, "header"), (damage.flip_payload_bit, "payload")):
            damaged = operator(ARCHIVE, seed)
            places = [index for index, pair in enumerate(zip(ARCHIVE, damaged.data, strict=True)) if pair[0] != pair[1]]
            assert len(places) == 1
            assert [region.kind for region in regions(ARCHIVE) if region.start <= places[0] < region.stop] == [kind]
            assert f"offset {places[0]} ({kind}" in damaged.description


def test_blocks_change_the_length_as_they_should():
    """Insertion adds a block, deletion takes one, zeroing keeps the length."""
    assert len(damage.insert_zeros(ARCHIVE, 1).data) == len(ARCHIVE) + 512
    assert len(damage.insert_noise(ARCHIVE, 1).data) == len(ARCHIVE) + 512
    assert len(damage.delete_block(ARCHIVE, 1).data) == len(ARCHIVE) - 512
    assert len(damage.zero_block(ARCHIVE, 1).data) == len(ARCHIVE)


@pytest.mark.parametrize("place", damage.CUTS)
def test_cuts_fall_where_they_say(place):
    """A cut leaves the last region unfinished; on a boundary it leaves whole members only."""
    for seed in range(30):
        data = damage.cut(ARCHIVE, seed, place=place).data
        assert ARCHIVE.startswith(data)
        if place == "boundary":
            assert len(data) in {region.start for region in regions(ARCHIVE) if region.kind in ("header", "end")}
        else:
            assert [r.kind for r in regions(ARCHIVE) if r.start < len(data) < r.stop] == [place]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "end"),
        (ARCHIVE[:-1024], "end"),
        (ARCHIVE[:-512], None),
        (ARCHIVE[:-900], "cut"),
        (ARCHIVE[:300], "cut"),
        (ARCHIVE + b"x" * 512, "header"),
        (ARCHIVE + ARCHIVE, None),
        (bytes(512) + ARCHIVE, "header"),
        (ARCHIVE + bytes(8000), None),
        (archives.archive(archives.member(b"x", b"", kind=b"L"), archives.member(b"a")), "record"),
        (archives.archive(archives.member(b"x", b"9 path=a\n", kind=b"x"), archives.member(b"a")), None),
        (archives.archive(archives.member(b"x", b"8 path=a\n", kind=b"x"), archives.member(b"a")), "record"),
        (archives.archive(archives.header(b"a" * 100, signed=True)), None),
        (archives.archive(archives.with_checksum(archives.header(b"a")[:124] + b"9" * 12 + bytes(376))), "header"),
    ],
)
def test_flaw(data, reason):
    """Each reason why bytes are no archive, and what is one all the same."""
    assert flaw(data) == reason


def test_size_of_reads_both_forms():
    """Octal and base-256 sizes."""
    assert size_of(archives.header(b"a", 1234)) == 1234
    assert size_of(archives.header(b"a", 1234, binary=True)) == 1234
    assert size_of(archives.header(b"a", 9 * 2**30)) == 9 * 2**30


def test_flip_any_bit_changes_one_byte():
    """For bytes of any kind."""
    damaged = damage.flip_any_bit(b"abc", 5).data
    assert sum(a != b for a, b in zip(b"abc", damaged, strict=True)) == 1
