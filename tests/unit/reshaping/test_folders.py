"""Folders of files: what is written, what is refused, classes as folders."""

import errno
import os
from pathlib import Path

import pytest

from webdataset.core.errors import AlreadyExists, MissingField, SampleError, UsageError
from webdataset.reshaping.creation import make_member
from webdataset.reshaping.folders import FolderWriter, find_loose_files, read_folder
from webdataset.samples.raw_samples import RawSample


def sample(key, **fields):
    """A sample."""
    members = tuple(make_member(f"{key}.{name}", content) for name, content in fields.items())
    return RawSample(key, members, tuple(fields), "x.tar", 0)


def files(folder):
    """Name and bytes of every file."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    "key", ["../x", "/x", "a/../../x", "a//b", "a/./b", "x\\y", "c\n", "n" * 256, "a/" + "ä" * 130]
)
def test_unsafe_names(key, tmp_path):
    """A key cannot lead out of the folder, and nothing is left behind."""
    with pytest.raises(SampleError, match="no safe name"):
        FolderWriter(str(tmp_path / "d")).write_all([sample("ok", txt=b"1"), sample(key, txt=b"2")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "second", [sample("A", txt=b"2"), sample("a", TXT=b"2"), sample("a.txt/b", txt=b"2"), sample("a", txt=b"2")]
)
def test_names_that_meet(second, tmp_path):
    """Two files of one name, also by case, and a file that is a folder too, are errors; nothing is overwritten."""
    told = []
    writer = FolderWriter(str(tmp_path / "d"), failed=lambda key, _: told.append(key))
    writer.write_all([sample("a", txt=b"1"), second])
    assert files(tmp_path / "d") == {"a.txt": b"1"}
    assert (told, writer.samples) == ([second.key], 1)
    with pytest.raises(SampleError):
        FolderWriter(str(tmp_path / "e")).write_all([sample("a", txt=b"1"), second])


@pytest.mark.parametrize("first", ["d.txt/1", "d.txt/1/2"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_sample_that_is_left_out_is_left_out_whole(first, dry_run, tmp_path):
    """Where one of its files cannot be beside the others, none of its files is written; trying says the same."""
    told = []
    writer = FolderWriter(str(tmp_path / "d"), failed=lambda key, _: told.append(key), dry_run=dry_run)
    writer.write_all([sample(first, txt=b"1"), sample("d", cls=b"2", txt=b"3"), sample("d.txt", cls=b"4")])
    assert (told, writer.samples) == (["d"], 2)
    if not dry_run:
        assert files(tmp_path / "d") == {f"{first}.txt": b"1", "d.txt.cls": b"4"}


def test_what_is_there_stays(tmp_path):
    """A folder with files is refused; with force, files are added, but never through a link out of it."""
    place = tmp_path / "d"
    place.mkdir()
    (place / "mine.txt").write_bytes(b"mine")
    with pytest.raises(AlreadyExists, match="--force"):
        FolderWriter(str(place))
    FolderWriter(str(place), force=True).write_all([sample("sub/a", txt=b"1"), sample("mine", txt=b"new")])
    assert files(place) == {"mine.txt": b"new", "sub/a.txt": b"1"}
    (tmp_path / "other").mkdir()
    (place / "link").symlink_to(tmp_path / "other")
    with pytest.raises(AlreadyExists, match="in the way"):
        FolderWriter(str(place), force=True).write_all([sample("link/a", txt=b"1")])
    assert files(tmp_path / "other") == {}
    (tmp_path / "file").touch()
    with pytest.raises(AlreadyExists, match="a file is there"):
        FolderWriter(str(tmp_path / "file"), force=True)
    with pytest.raises(UsageError, match="local folder"):
        FolderWriter("s3://bucket/x")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("step", range(1, 5))
def test_an_interrupt_while_the_files_get_their_names(tmp_path, monkeypatch, there, step):
    """Ctrl-C in the middle leaves a folder that was there as it was, but for a file that was to be replaced."""
    place = tmp_path / "d"
    place.mkdir()
    if there:
        (place / "mine.txt").write_bytes(b"mine")
    replace, moved = Path.replace, []

    def interrupt(self, target):
        moved.append(replace(self, target))
        if len(moved) == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    given = [sample("sub/a", txt=b"1"), sample("b", txt=b"2", cls=b"3"), sample("sub/deep/a", txt=b"1")]
    with pytest.raises(KeyboardInterrupt):
        FolderWriter(str(place), force=there).write_all(given)
    assert [each.name for each in place.iterdir()] == ["mine.txt"] * there
    assert [each.name for each in tmp_path.iterdir()] == ["d"]


def test_a_failure_leaves_nothing(tmp_path):
    """Where the samples end with an error, there is no folder; a dry run writes none either, and finds bad names."""

    def broken():
        yield sample("a", txt=b"1")
        raise SampleError("no more")

    with pytest.raises(SampleError):
        FolderWriter(str(tmp_path / "d")).write_all(broken())
    FolderWriter(str(tmp_path / "d"), dry_run=True).write_all([sample("a", txt=b"1")])
    with pytest.raises(SampleError):
        FolderWriter(str(tmp_path / "d"), dry_run=True).write_all([sample("../a", txt=b"1")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "field", "values"),
    [
        (["cat", "dog"], "cls", [b"0", b"1"]),
        (["cat", "dog"], "class.txt", [b"cat", b"dog"]),
        (["2", "10"], "cls", [b"2", b"10"]),
        (["-1", "0", "7"], "cls", [b"-1", b"0", b"7"]),
        (["-", "1"], "cls", [b"0", b"1"]),
    ],
)
def test_classes(names, field, values, tmp_path):
    """The first folder is a field: its name, or its number where the extension is one of numbers; and back."""
    FolderWriter(str(tmp_path / "d"), classes="c").write_all(
        [sample(f"k{n}", jpg=b"j%d" % n, c=name.encode()) for n, name in enumerate(names)]
    )
    assert files(tmp_path / "d") == {f"{name}/k{n}.jpg": b"j%d" % n for n, name in enumerate(names)}
    found = {each.key: each.payload(field) for each in read_folder(str(tmp_path / "d"), field)}
    assert found == {f"{name}/k{n}": values[n] for n, name in enumerate(names)}


def test_classes_that_cannot_be(tmp_path):
    """A class is one safe name of a folder; files outside of the classes' folders are errors."""
    for name in (b"", b"..", b"a/b", b".x"):
        with pytest.raises(SampleError, match="names no class"):
            FolderWriter(str(tmp_path / "d"), classes="c").write_all([sample("k", jpg=b"", c=name)])
    with pytest.raises(MissingField):
        FolderWriter(str(tmp_path / "d"), classes="c").write_all([sample("k", jpg=b"")])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").touch()
    with pytest.raises(SampleError, match="no folder of a class"):
        list(read_folder(str(tmp_path / "in"), "cls"))
    with pytest.raises(UsageError, match="no folder"):
        list(read_folder(str(tmp_path / "none")))


def test_loose_files(tmp_path):
    """Hidden files and those without an extension are found, to be told of."""
    for name in ("a.txt", ".hidden.txt", "README"):
        (tmp_path / name).touch()
    assert sorted(find_loose_files(str(tmp_path))) == [".hidden.txt", "README"]
    assert [each.key for each in read_folder(str(tmp_path))] == ["a"]


@pytest.mark.parametrize("there", [False, True])
def test_two_writers_of_one_folder(tmp_path, there):
    """A folder that another writer completes meanwhile is neither mixed nor replaced; the new one is kept and named."""
    place = tmp_path / "d"
    if there:
        place.mkdir()

    def samples():
        yield sample("a", txt=b"mine")
        FolderWriter(str(place)).write_all([sample("a", txt=b"theirs"), sample("b", txt=b"theirs")])

    with pytest.raises(AlreadyExists, match="another writer") as caught:
        FolderWriter(str(place)).write_all(samples())
    kept = next(each for each in (place if there else tmp_path).iterdir() if each.name.endswith(".partial"))
    assert str(kept) in str(caught.value)
    assert files(kept) == {"a.txt": b"mine"}
    whole = {name: content for name, content in files(place).items() if ".partial" not in name}
    assert whole == {"a.txt": b"theirs", "b.txt": b"theirs"}


def test_an_empty_folder_is_filled_from_within(tmp_path, monkeypatch):
    """A folder that is there may be a file system of its own: nothing is renamed into it from beside it."""
    place = tmp_path / "mounted"
    place.mkdir()
    (place / ".mounted.12-0123abcd.partial").mkdir()  # of a process that was killed
    move = os.rename
    monkeypatch.setattr(Path, "replace", lambda self, target: move(_same_device(self, target, place), target))
    monkeypatch.setattr(Path, "rename", lambda self, target: move(_same_device(self, target, place), target))
    FolderWriter(str(place)).write_all([sample("sub/a", txt=b"1"), sample("b", txt=b"2")])
    assert files(place) == {"sub/a.txt": b"1", "b.txt": b"2"}
    assert [each.name for each in tmp_path.iterdir()] == ["mounted"]
    assert sorted(each.name for each in place.iterdir()) == [".mounted.12-0123abcd.partial", "b.txt", "sub"]


def _same_device(source, target, mount):
    """Return a path; refuse, as a system does, to rename a mounted folder, or to rename something into it."""
    if source == mount or target == mount or source.is_relative_to(mount) != Path(target).is_relative_to(mount):
        raise OSError(errno.EXDEV, "Invalid cross-device link")
    return source
