"""Keys, extensions and metadata names."""

import pytest

from webdataset.samples.grouping import base_plus_ext, is_meta, last_dot

TABLE = [
    ("a.jpg", ("a", "jpg")),
    ("a.b.c", ("a", "b.c")),
    ("a/b.c/d.tar.gz", ("a/b.c/d", "tar.gz")),
    ("a.b/c.jpg", ("a.b/c", "jpg")),
    ("./a.jpg", ("./a", "jpg")),
    ("a..jpg", ("a", ".jpg")),
    ("a.", ("a", "")),
    (".hidden", (None, None)),
    ("dir/.hidden.jpg", ("dir/", "hidden.jpg")),
    ("a/b/.c", ("a/b/", "c")),
    ("x.y/.c", (None, None)),
    ("noext", (None, None)),
    ("dir.d/file", (None, None)),
    ("x.y/", (None, None)),
    ("", (None, None)),
    ("235342 Track 2.0 (Clean).mp3", ("235342 Track 2", "0 (Clean).mp3")),
]


@pytest.mark.parametrize(("name", "split"), TABLE)
def test_first_dot(name, split):
    """The key ends at the first dot of the last component."""
    assert base_plus_ext(name) == split


@pytest.mark.parametrize(
    ("name", "split"),
    [("a.b.c", ("a.b", "c")), ("d.e/a.b.c", ("d.e/a.b", "c")), (".c", (None, None)), ("a.b/c", (None, None))],
)
def test_last_dot(name, split):
    """The other rule ends it at the last dot."""
    assert last_dot(name) == split


@pytest.mark.parametrize(
    ("name", "meta"),
    [("__meta__/x.txt", True), ("__key__", True), ("____", True), ("__k__.txt", False), ("d/__meta__/x", False)],
)
def test_metadata(name, meta):
    """Metadata stands at the top level, between double underscores."""
    assert is_meta(name) is meta
    assert not is_meta(name, None)
