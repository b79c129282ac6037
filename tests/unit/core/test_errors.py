"""One tree of errors, with places, without secrets."""

import pickle

import pytest

from webdataset.core import errors
from webdataset.core.errors import DecodingError, MissingField, NotFound, Truncated, WebDatasetError

LEAVES = [
    kind
    for kind in (getattr(errors, name) for name in dir(errors))
    if isinstance(kind, type) and issubclass(kind, WebDatasetError) and kind is not WebDatasetError
]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error(kind):
    """Each is in the drawn tree, says its places, survives pickling, and is caught as a builtin too."""
    assert kind.__name__ in errors.__doc__
    error = kind("went wrong") if kind is not DecodingError else kind(message="went wrong")
    error.locate(url="u.tar", key="k", offset=7)
    text = str(error)
    assert "went wrong" in text
    assert "u.tar" in text
    assert "offset=7" in text
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.key) == (kind, text, "k")
    assert len([base for base in kind.__mro__ if base.__module__ == "builtins"]) > 3


def test_first_place_wins():
    """What is known first is the nearest to the fault."""
    assert Truncated("x", offset=3).locate(offset=9, url="u").offset == 3


def test_secrets_are_removed():
    """Passwords and signatures never show."""
    error = NotFound("gone", url="https://me:pw@host/x.tar?X-Amz-Signature=abc&n=1")
    assert "pw" not in str(error) + repr(error.args)
    assert "abc" not in str(error)
    assert "n=1" in str(error)


def test_what_is_said_is_never_empty():
    """An error without words is quoted by its class."""
    assert errors.describe_error(ValueError()) == "ValueError()"
    assert errors.describe_error(ValueError("x")) == "ValueError: x"


def test_compatible_constructor():
    """``DecodingError(url, key, k, sample)`` as upstream's."""
    error = DecodingError("u", "key", "jpg", {"a": 1})
    assert (error.url, error.key, error.k, error.sample) == ("u", "key", "jpg", {"a": 1})
    assert "jpg" in str(error)
    assert str(DecodingError("a message")) == "a message"


def test_missing_fields_read_well():
    """A KeyError would show its message in quotes."""
    assert str(MissingField("no field 'a'")) == "no field 'a'"


def test_an_error_of_pickling_says_where_and_keeps_no_list_of_places():
    """Python 3.14 adds a note for each object on the way; other notes stay."""
    error = TypeError("cannot pickle '_thread.lock' object")
    assert errors.shorten_pickling_error(error) == "TypeError: cannot pickle '_thread.lock' object"
    for note in ("when serializing dict item 'LOCK'", "in worker 1", "when serializing tuple item 2"):
        error.add_note(note)
    said = "TypeError: cannot pickle '_thread.lock' object (dict item 'LOCK')"
    assert errors.shorten_pickling_error(error) == said
    assert error.__notes__ == ["in worker 1"]
