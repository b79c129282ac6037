"""Documents in archives that GNU tar made from folders, in the order of names and in that of the command line."""

import random

import pytest

import webdataset as wds
from webdataset.testing import archives, documents
from webdataset.testing.documents import Picture, Spec

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(not archives.has("tar"), reason="GNU tar is not installed")]

SPECS = [
    Spec(key, ["x", "y"], [Picture(f"{name}.jpg", n % 2, f"{key}{name}".encode()) for n, name in enumerate(names)])
    for key, names in [("000", "ab"), ("001", ""), ("d/002-x", "c"), ("d/002", "pqr"), ("d/002-x-1", "a"), ("z", "q")]
]


def read(archive, path, **options):
    """What is read, by key."""
    path.write_bytes(archive)
    return {d["__key__"]: documents.shown(d) for d in wds.WebDataset(str(path)).interleaved(**options)}


@pytest.mark.parametrize("options", [("--sort=name",), ()])
@pytest.mark.parametrize("layout", ["siblings", "inline", "fields"])
def test_archives_of_gnu_tar(tmp_path, layout, options):
    """Tar --sort=name puts images before their JSON; without it the order is that of the files given."""
    members = [member for spec in SPECS for member in getattr(documents, layout)(spec)]
    if options:
        members.sort()  # --sort orders what tar finds in folders, and leaves names that it is given alone
    folder = tmp_path / "files"
    folder.mkdir()
    found = read(archives.by_gnu_tar(members, folder, options=options), tmp_path / "a.tar")
    assert found == {spec.key: documents.expected(spec) for spec in SPECS}


def test_a_folder_packed_by_name(tmp_path):
    """The command of the manual: tar --sort=name over a folder."""
    import subprocess

    for name, payload in (member for spec in SPECS for member in documents.siblings(spec)):
        file = tmp_path / "files" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(payload)
    command = ["tar", "--sort=name", "-cf", str(tmp_path / "a.tar"), "-C", str(tmp_path / "files"), "."]
    subprocess.run(command, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    found = read((tmp_path / "a.tar").read_bytes(), tmp_path / "a.tar")
    assert found == {f"./{spec.key}": documents.expected(spec) for spec in SPECS}


def test_an_archive_in_no_order(tmp_path):
    """Files in the order of the disk: the whole shard is searched on demand."""
    members = [member for spec in SPECS for member in documents.siblings(spec)]
    random.Random(3).shuffle(members)
    (tmp_path / "files").mkdir()
    archive = archives.by_gnu_tar(members, tmp_path / "files")
    assert read(archive, tmp_path / "a.tar", adjacent=False) == {s.key: documents.expected(s) for s in SPECS}
