"""Errors in users' functions say which function failed on which sample."""

import pytest

from webdataset.core.errors import MissingField, WebDatasetError
from webdataset.stages.base import describe_function, with_blame
from webdataset.stages.map import map as mapped
from webdataset.stages.map import map_tuple
from webdataset.stages.select import select


def broken(sample):
    """Always fails."""
    raise ZeroDivisionError("as planned")


SAMPLE = {"__key__": "k7", "__url__": "http://me:secret@host/a.tar", "a": 1}


@pytest.mark.parametrize("maker", [mapped, select])
def test_a_foreign_error_gets_a_note(maker):
    """The error itself is kept; stage, function, file, key and url are noted, secrets removed."""
    with pytest.raises(ZeroDivisionError, match="as planned") as caught:
        list(maker(broken)([SAMPLE]))
    (note,) = caught.value.__notes__
    assert "broken (" in note
    assert "test_blame.py:" in note
    assert "key='k7'" in note
    assert "host/a.tar" in note
    assert "secret" not in note


def test_an_error_of_ours_gets_attributes():
    """What is known already is kept."""
    error = with_blame(MissingField("gone", key="other"), "to_tuple", SAMPLE)
    assert isinstance(error, WebDatasetError)
    assert (error.key, error.url, error.stage) == ("other", SAMPLE["__url__"], "to_tuple")


def test_samples_that_are_no_dictionaries_have_no_key():
    """A tuple's place is its stage only."""
    error = with_blame(ValueError("x"), "map", (1, 2), broken)
    assert error.__notes__ == [f"in stage={'map: ' + describe_function(broken)!r}"]


def test_map_tuple_says_which_position():
    """The position and its function are named, once."""
    with pytest.raises(ZeroDivisionError) as caught:
        list(map_tuple(None, broken)([(1, 2)]))
    assert any("map_tuple: position 1: broken (" in note for note in caught.value.__notes__)


def test_callables_without_code_are_named_too():
    """Classes, builtins and instances have no file and line."""
    assert describe_function(len) == "len"
    assert describe_function(str) == "str"
    assert describe_function(object()).startswith("<object object")
