"""Tests for switching garbage collection off in a test."""

import gc
import weakref

import pytest

from support.garbage import no_collector


class Holder:
    """Holds an open file, in a circle of references."""

    def __init__(self, path):
        self.file = path.open("rb", buffering=0)
        self.own = self


def test_what_an_earlier_test_left_is_gone_without_a_word(tmp_path):
    """An open file in a circle of references is closed; collected in the test, its warning would fail it."""
    (tmp_path / "a").touch()
    left = weakref.ref(Holder(tmp_path / "a"))
    assert left() is not None
    with no_collector():
        assert left() is None
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_is_on_again_after_an_error():
    """A test that fails leaves it as it was."""
    with pytest.raises(ValueError, match="fails"), no_collector():
        raise ValueError("fails")
    assert gc.isenabled()
