"""Offsets of indexes, as GNU tar and Python's tarfile see them."""

import os
import re
import subprocess
import tarfile

import pytest

from webdataset.index.build import index_shard
from webdataset.index.formats import energon
from webdataset.testing import archives

pytestmark = pytest.mark.oracle
needs_tar = pytest.mark.skipif(not archives.has("tar"), reason="no GNU tar")

MEMBERS = [
    (f"{name}.{ext}", f"{ext} of {name}".encode() * 30)
    for name in ("a", "d.d/b", f"{'p' * 80}/{'q' * 90}", "x" * 130, "sp ace", "naïve")
    for ext in ("cls", "jpg", "seg.png")
]


@needs_tar
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_gnu_tar_finds_each_sample_at_its_block(tmp_path, form):
    """``tar --block-number`` names the block of each member's header; a sample starts at its first member's."""
    (tmp_path / "files").mkdir()
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_gnu_tar(MEMBERS, tmp_path / "files", format=form))
    command = ["tar", "--list", "--block-number", "--quoting-style=literal", "--file", str(path)]
    shown = subprocess.run(command, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", "PATH": os.defpath})
    blocks = {}
    for line in shown.stdout.decode().splitlines():
        found = re.match(r"block (\d+): (.*)$", line)
        if found and "." in found[2].rpartition("/")[2]:
            blocks[found[2]] = int(found[1]) * 512
    index = index_shard(path)
    assert len(index) == 6
    if form == "gnu":
        assert [entry.offset for entry in index.entries] == [blocks[entry.fields[0].member] for entry in index.entries]
    else:  # a PAX member's block is that of its own header, behind its records
        fields = [field for entry in index.entries for field in entry.fields]
        assert [field.offset for field in fields] == [blocks[field.member] + 512 for field in fields]


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar"])
def test_slices_by_an_energon_index_are_archives_of_one_sample(tmp_path, form):
    """Each slice of the shard, read by tarfile alone, holds the members of one sample with their whole names."""
    members = [member for member in MEMBERS if form != "ustar" or len(member[0]) < 100]
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_tarfile(members, format=form))
    index = index_shard(path)
    offsets = energon.loads(energon.dumps(index))
    content = path.read_bytes()
    found = []
    for start, stop in zip(offsets, offsets[1:], strict=False):
        part = archives.members_by_tarfile(content[start:stop] + bytes(1024))
        assert len(part) == 3
        found += part
    assert found == members
    with tarfile.open(path) as archive:
        archive.getmembers()
        assert archive.offset in (offsets[-1], offsets[-1] + 512, offsets[-1] + 1024)


def test_payloads_lie_where_tarfile_finds_them(tmp_path):
    """Offsets and sizes of payloads in a shard of every kind of name."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_tarfile(MEMBERS, format="pax", mtime=1.5))
    with tarfile.open(path) as archive:
        theirs = [(entry.name, entry.offset_data, entry.size) for entry in archive]
    ours = [field[1:] for entry in index_shard(path).entries for field in entry.fields]
    assert ours == theirs
