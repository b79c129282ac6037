"""Raw members: the bytes that stand in a shard, whatever wrote it; new headers only where the old would mislead."""

import io
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.core.errors import DuplicateField, SplitSample, TarError
from webdataset.samples.raw_samples import RawSamples, read_members, read_samples, rename_member
from webdataset.tar.builder import END_MARK, format_extension_member, format_pax_records
from webdataset.testing import archives


def members_of(content):
    """The raw members of an archive in memory."""
    return list(read_members(io.BytesIO(content)))


def bytes_of(members):
    """An archive of members."""
    return b"".join(piece for member in members for piece in member.pieces()) + END_MARK


def read_back(content):
    """What the standard library finds in an archive: name, bytes and metadata of each file."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [
            (each.name, archive.extractfile(each).read(), each.mode, each.mtime, each.uid, each.uname)
            for each in archive
            if each.isfile()
        ]


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=120)


@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=2000), st.floats(0, 2e9), st.integers(0, 0o777)), max_size=6),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_bytes_stay(files, kind):
    """The members of an archive, written again, are the archive, up to its end mark."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, payload, mtime, mode in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode, info.uname = len(payload), mtime, mode, "someone"
            archive.addfile(info, io.BytesIO(payload))
    whole = out.getvalue()
    again = bytes_of(members_of(whole))
    assert whole.startswith(again[: -len(END_MARK)])
    assert not whole[len(again) :].strip(b"\0")


def test_small_chunks_and_compression_make_no_difference():
    """However the bytes come, the members are the same."""
    whole = archives.by_hand([(f"k{n}.txt", b"%d" % n * 3000) for n in range(5)])

    class Drops(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 700) if size > 0 else size)

    assert list(read_members(Drops(whole))) == members_of(whole)
    import gzip

    assert members_of(gzip.compress(whole)) == members_of(whole)


def test_hard_links_become_files(tmp_path):
    """A hard link has the bytes of its target, in a header of its own."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
        link = tarfile.TarInfo("a.copy")
        link.type, link.linkname, link.mode, link.mtime = tarfile.LNKTYPE, "a.txt", 0o600, 77
        archive.addfile(link)
    (tmp_path / "s.tar").write_bytes(out.getvalue())
    content = bytes_of(read_members(str(tmp_path / "s.tar")))
    assert [(name, payload) for name, payload, *_ in read_back(content)] == [("a.txt", b"hello"), ("a.copy", b"hello")]
    assert read_back(content)[1][2:4] == (0o600, 77)


def test_sparse_members_are_written_out(tmp_path):
    """Sparse files, in each format of GNU tar, become files with their zeros."""
    if shutil.which("tar") is None:
        pytest.skip("no tar here")
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(100_000)
        file.seek(50_000)
        file.write(b"middle")
    payload = (tmp_path / "a.bin").read_bytes()
    for options in (
        ["--format=gnu"],
        ["--format=pax", "--sparse-version=1.0"],
        ["--format=pax", "--sparse-version=0.1"],
    ):
        subprocess.run(["tar", "-cSf", "s.tar", *options, "a.bin"], cwd=tmp_path, check=True)
        content = bytes_of(read_members(str(tmp_path / "s.tar")))
        assert [found[:2] for found in read_back(content)] == [("a.bin", payload)]


def test_global_records_go_into_the_members_they_are_about():
    """A global mtime reaches each member after it, and none of another archive; a comment is left out."""
    plain = archives.by_hand([("a.txt", b"1"), ("b.txt", b"2")])[:-1024]
    body = format_pax_records([(b"mtime", b"1234"), (b"comment", b"from git")])
    member_of_globals = format_extension_member(b"pax_global_header", b"g", body)
    content = bytes_of(members_of(member_of_globals + plain + END_MARK))
    assert [found[3] for found in read_back(content)] == [1234, 1234]
    assert b"from git" not in content
    joined = members_of(member_of_globals + plain + END_MARK + plain + END_MARK)
    assert joined[2:] == members_of(plain + END_MARK)
    # what is taken out of the middle still has it
    assert [found[3] for found in read_back(bytes_of(joined[1:2]))] == [1234]


def test_rename_keeps_everything_else():
    """Under a new name, also a long or non-ASCII one, a member has the mode, owner and times that it had."""
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
            info = tarfile.TarInfo("d/" + "x" * 90 + ".txt")
            info.size, info.mode, info.uid, info.uname, info.mtime = 3, 0o604, 77, "me", 5
            archive.addfile(info, io.BytesIO(b"abc"))
        (before,) = members_of(out.getvalue())
        for name in ("short.txt", "y" * 200 + ".txt", "é/ü.txt", "d/" + "z" * 97 + ".t"):
            (found,) = read_back(bytes_of([rename_member(before, name)]))
            assert found == (name, b"abc", 0o604, 5, 77, "me")


def test_samples_and_loose_files():
    """Members of one key are a sample; files without a key, and metadata, are counted."""
    content = archives.by_hand(
        [("__x__/a.txt", b""), ("a.TXT", b"1"), ("a.seg.png", b"2"), ("README", b""), ("b.txt", b"3")]
    )
    samples = RawSamples(io.BytesIO(content))
    found = list(samples)
    assert [(sample.key, sample.fields) for sample in found] == [("a", ("txt", "seg.png")), ("b", ("txt",))]
    assert (samples.loose_count, samples.loose) == (2, ["__x__/a.txt", "README"])
    assert found[0].payloads() == {"txt": b"1", "seg.png": b"2"}


def test_verdicts_are_those_of_the_reader():
    """Duplicate fields, split samples and damage are errors here, too, after the samples before them."""
    with pytest.raises(DuplicateField):
        list(read_samples(io.BytesIO(archives.by_hand([("a.txt", b""), ("a.TXT", b"")]))))
    with pytest.raises(SplitSample):
        list(read_samples(io.BytesIO(archives.by_hand([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")]))))
    whole = archives.by_hand([("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3" * 1000)])
    given_before = []
    with pytest.raises(TarError):
        given_before.extend(
            sample.key for sample in read_samples(io.BytesIO(whole[:3000])) if given_before.append(sample.key)
        )
    assert given_before == ["a", "b"]
