"""Archives made by programs, and the second opinions."""

import pytest

from webdataset.testing import archives

MEMBERS = archives.members_of(archives.samples(4))


def test_samples_are_reproducible_and_distinct():
    """The same seed makes the same samples; keys are unique; payloads hold no zero byte."""
    made = archives.samples(30, seed=3)
    assert made == archives.samples(30, seed=3)
    assert len({key for key, _ in made}) == 30
    payloads = [payload for _, payload in archives.members_of(made)]
    assert len(set(payloads)) == len(payloads)
    assert all(payload and 0 not in payload for payload in payloads)
    assert {len(fields) for _, fields in made} == {2, 3}


def test_by_hand_is_read_by_tarfile():
    """The hand-made archive holds what was asked for."""
    assert archives.members_by_tarfile(archives.by_hand(MEMBERS)) == MEMBERS


@pytest.mark.parametrize("format", archives.TARFILE_FORMATS)
def test_by_tarfile(format):
    """Each format of tarfile reads back."""
    assert archives.members_by_tarfile(archives.by_tarfile(MEMBERS, format=format)) == MEMBERS


@pytest.mark.oracle
@pytest.mark.parametrize("format", archives.GNU_FORMATS)
def test_by_gnu_tar(format, tmp_path):
    """GNU tar writes the members in the order given."""
    if not archives.has("tar"):
        pytest.skip("GNU tar is not installed")
    assert archives.members_by_tarfile(archives.by_gnu_tar(MEMBERS, tmp_path, format=format)) == MEMBERS


@pytest.mark.oracle
@pytest.mark.parametrize("format", archives.BSD_FORMATS)
def test_by_bsdtar(format, tmp_path):
    """Bsdtar writes the members in the order given."""
    if not archives.has("bsdtar"):
        pytest.skip("bsdtar is not installed")
    assert archives.members_by_tarfile(archives.by_bsdtar(MEMBERS, tmp_path, format=format)) == MEMBERS


@pytest.mark.oracle
@pytest.mark.parametrize("program", ["tar", "bsdtar"])
def test_members_by_program(program, tmp_path):
    """Extraction by a program gives the members, those of a second archive too."""
    if not archives.has(program):
        pytest.skip(f"{program} is not installed")
    data = archives.by_hand(MEMBERS[:3]) + archives.by_hand(MEMBERS[3:])
    found = archives.members_by_program(data, tmp_path, program=program)
    assert found == {name.encode(): payload for name, payload in MEMBERS}


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_compressed(kind, pieces):
    """Each compression, in one stream or several."""
    data = archives.compressed(archives.by_hand(MEMBERS), kind, pieces=pieces)
    assert archives.members_by_tarfile(data) == MEMBERS


def test_compressed_zst():
    """Zstandard frames, one after the other."""
    zstandard = pytest.importorskip("zstandard")
    data = archives.compressed(b"abc" * 100, "zst", pieces=2)
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    assert reader.read() == b"abc" * 100


def test_unknown_compression_is_refused():
    """A name that is no compression is an error."""
    with pytest.raises(ValueError, match="no compression"):
        archives.compressed(b"", "rar")


def test_write_sparsely_keeps_the_contents(tmp_path):
    """Holes do not change what is read."""
    payload = b"a" + bytes(20000) + b"b" + bytes(9000)
    archives.write_sparsely(tmp_path / "x", payload)
    assert (tmp_path / "x").read_bytes() == payload
