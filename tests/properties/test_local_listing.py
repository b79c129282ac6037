"""Finding files by a pattern: the same as Python's ``glob``, over folders that can be listed."""

import glob
import os
import shutil
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.storage.local_listing import find_files

NAMES = st.sampled_from(["a", "b", "ab", ".h", "a-0.tar", "a-1.tar", "[x]", "**", "b c", "\udcff"])
KINDS = ["file", "folder", "link", "dangling"]
PIECES = st.sampled_from(
    [
        "*",
        "**",
        "?",
        "a*",
        "*.tar",
        "[ab]*",
        "[!a]*",
        ".*",
        "a",
        "b",
        ".h",
        "[[]x]",
        "a-?.tar",
        ".",
        "..",
        "a**",
        "",
        "*b*",
    ]
)


@pytest.fixture(scope="module")
def place():
    """A folder to work in, which is the working directory."""
    before = os.getcwd()
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    yield folder
    os.chdir(before)
    shutil.rmtree(folder)


@given(
    st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from(KINDS))),
    # glob takes ages over more of **
    st.lists(PIECES, min_size=1, max_size=4).filter(lambda pieces: pieces.count("**") < 3),
    st.sampled_from(["relative", "absolute", "here"]),
)
def test_the_same_as_glob(place, entries, pieces, kind):
    """Files, folders, links, names that look like patterns or are no UTF-8, hidden ones, and trailing slashes."""
    root = tempfile.mkdtemp(dir=place)
    for names, what in entries:
        path = os.path.join(root, *names)
        try:
            if what == "folder":
                os.makedirs(path, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if what == "file":
                with open(path, "x"):
                    pass
            # never to a folder above: glob follows these forty times
            elif what == "link":
                os.symlink(__file__, path)
            else:
                os.symlink("nowhere", path)
        # there is something else already
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            continue
    head = {"relative": f"{os.path.basename(root)}/", "absolute": f"{root}/", "here": ""}[kind]
    if kind == "here":
        os.chdir(root)
    try:
        pattern = head + "/".join(pieces)
        # the glob of Python 3.11 names folders before ** that are not there
        wanted = {name for name in glob.glob(pattern, recursive=True) if os.path.lexists(name)}
        assert find_files(pattern) == sorted(wanted)
    finally:
        os.chdir(place)
        shutil.rmtree(root)


def test_links_that_lead_up(tmp_path):
    """They are not followed: each file is found once, where glob finds it forty times."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x.tar").touch()
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    assert find_files(f"{tmp_path}/**/*.tar") == [f"{tmp_path}/a/x.tar"]
    # a wildcard that names it is followed, once
    assert find_files(f"{tmp_path}/a/b/*/*.tar") == [f"{tmp_path}/a/b/up/x.tar"]


def test_names_that_nothing_can_have(tmp_path):
    """They match nothing."""
    assert find_files(f"{tmp_path}/a\0/*") == []
    assert find_files(f"{tmp_path}/{'n' * 5000}/*") == []
    (tmp_path / "file").touch()
    assert find_files(f"{tmp_path}/file/*") == []
    assert find_files(f"{tmp_path}/*/*") == []
