"""Local files: names that no file can have, and the errors of the system."""

import pytest

from webdataset.core.errors import NotFound, UsageError
from webdataset.storage.local_files import open_buffered, open_raw
from webdataset.storage.streams import is_nameable


@pytest.mark.parametrize("name", ["a\0.tar", "\ud800.tar"])
@pytest.mark.parametrize("opened", [open_raw, open_buffered])
def test_no_file_has_this_name(opened, name):
    """A null byte or half a surrogate pair in a path is the user's mistake, and named as one."""
    assert not is_nameable(name)
    with pytest.raises(UsageError, match="no file can be called") as caught:
        opened(name)
    str(caught.value).encode()


def test_a_name_of_any_length_is_shown_short():
    """It may be a whole file that was taken for a list of names."""
    with pytest.raises(UsageError, match="no file can be called") as caught:
        open_raw("\0" * 100_000)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("name", ["a.tar", "\udcff.tar", "ä b#?.tar"])
def test_any_other_name_may_be(tmp_path, name):
    """Names that are no UTF-8 are names all the same; absent files are told apart."""
    assert is_nameable(name)
    with pytest.raises(NotFound):
        open_raw(tmp_path / name)
    (tmp_path / name).write_bytes(b"x")
    with open_raw(tmp_path / name) as stream:
        assert stream.read(9) == b"x"
