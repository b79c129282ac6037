"""to_tuple, rename, associate, getfirst: fields by name."""

import numpy as np
import pytest

from webdataset.core.error_handlers import ignore_and_continue, ignore_and_stop
from webdataset.core.errors import MissingField, UsageError
from webdataset.stages.fields import associate, getfirst, parse_field_spec, rename, to_tuple

SAMPLES = [{"__key__": str(n), "__url__": "a.tar", "jpg": f"j{n}", "cls": n} for n in range(3)]


def fresh():
    """Copies of the samples."""
    return [dict(sample) for sample in SAMPLES]


@pytest.mark.parametrize("spec", [("jpg", "cls"), ("jpg cls",), ("png;jpg", "cls"), (["png", "jpg"], ("cls",))])
def test_to_tuple_takes_fields(spec):
    """By name, by one string with spaces, by alternatives in either form."""
    assert list(to_tuple(*spec)(fresh())) == [("j0", 0), ("j1", 1), ("j2", 2)]


def test_to_tuple_of_one_field_gives_tuples_of_one():
    """Never the bare value."""
    assert list(to_tuple("cls")(fresh())) == [(0,), (1,), (2,)]


def test_a_missing_field_says_all_that_is_known():
    """Field, key, url, what is there, and the nearest name; caught as ValueError and as KeyError."""
    for kind in (ValueError, KeyError, MissingField):
        with pytest.raises(kind) as caught:
            list(to_tuple("jgp", "cls")(fresh()))
    error = caught.value
    assert (error.field, error.key, error.url, error.stage) == ("jgp", "0", "a.tar", "to_tuple")
    assert "did you mean 'jpg'?" in str(error)
    assert "__key__, __url__, jpg, cls" in str(error)


def test_a_missing_field_may_be_none_or_skipped():
    """missing_is_error=False gives None; a handler skips or stops."""
    samples = [{"a": 1}, {"b": 2}, {"a": 3}]
    assert list(to_tuple("a", missing_is_error=False)(samples)) == [(1,), (None,), (3,)]
    assert list(to_tuple("a", handler=ignore_and_continue)(samples)) == [(1,), (3,)]
    assert list(to_tuple("a", handler=ignore_and_stop)(samples)) == [(1,)]


@pytest.mark.parametrize("spec", [("a",), ("a", "b"), ("a;c", "b")])
def test_a_field_that_is_none_is_there_unless_none_is_an_error(spec):
    """JSON null is None: only none_is_error=True refuses it."""
    samples = [{"a": None, "b": 1}]
    assert next(to_tuple(*spec)(samples))[0] is None
    assert next(to_tuple(*spec, none_is_error=None)(samples))[0] is None
    with pytest.raises(MissingField, match="None"):
        list(to_tuple(*spec, none_is_error=True)(samples))
    with pytest.raises(MissingField):
        list(to_tuple(*spec, missing_is_error=False, none_is_error=True)(samples))
    assert next(to_tuple(*spec, none_is_error=False)(samples))[0] is None
    with pytest.raises(MissingField, match="None"):
        list(to_tuple(*spec, none_is_error=True)([{"a": None, "b": None}]))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_none_in_any_place_is_an_error_where_it_is_one(count):
    """Each of the fields is looked at, however many are taken."""
    names = [f"f{number}" for number in range(count)]
    whole = dict.fromkeys(names, 0)
    assert list(to_tuple(*names, none_is_error=True)([whole])) == [(0,) * count]
    for name in names:
        with pytest.raises(MissingField, match=name):
            list(to_tuple(*names, none_is_error=True)([{**whole, name: None}]))
        with pytest.raises(MissingField, match=name):
            list(to_tuple(*names)([{other: 0 for other in names if other != name}]))


def test_arrays_are_not_compared_with_none():
    """A field that is an array passes."""
    (pair,) = to_tuple("a", "b")([{"a": np.zeros(3), "b": np.ones(2)}])
    assert pair[0].shape == (3,)


def test_names_with_spaces_are_refused():
    """They can only be a mistake, and the message says how alternatives are written."""
    with pytest.raises(UsageError, match="';'"):
        list(to_tuple("a", "b c")(fresh()))
    with pytest.raises(UsageError):
        getfirst({"a": 1}, "b a")


def test_samples_that_are_no_dictionaries_are_named():
    """The error says what came instead."""
    with pytest.raises(MissingField, match="tuple"):
        list(to_tuple("a")([(1, 2)]))


def test_rename_keeps_the_other_fields():
    """All old names go, the first that is there feeds the new one."""
    (sample,) = rename(image="png;jpg;webp", label="cls")([{"__key__": "k", "jpg": 1, "webp": 2, "cls": 3, "x": 4}])
    assert sample == {"__key__": "k", "x": 4, "image": 1, "label": 3}


def test_rename_drops_the_other_fields_with_keep_false():
    """Even the key."""
    assert list(rename(image="jpg", keep=False)(fresh()))[0] == {"image": "j0"}


def test_one_field_may_feed_two():
    """As ControlNet training does."""
    (sample,) = rename(image="jpg", control="jpg", keep=False)([{"jpg": 1}])
    assert sample == {"image": 1, "control": 1}


def test_rename_may_use_the_key():
    """As NeMo does; and any field name, source too."""
    assert list(rename(key="__key__", source="cls")([{"__key__": "k", "cls": 1}])) == [{"key": "k", "source": 1}]


def test_rename_tells_what_is_missing():
    """And a handler may skip it."""
    with pytest.raises(MissingField, match="'png' or 'gif'"):
        list(rename(image="png;gif")(fresh()))
    assert list(rename(image="png", handler=ignore_and_continue)(fresh())) == []


def test_rename_does_not_change_its_input():
    """It makes new dictionaries."""
    sample = {"a": 1}
    assert list(rename(b="a")([sample])) == [{"b": 1}]
    assert sample == {"a": 1}


def test_associate_adds_by_key_in_place():
    """From a table or a function; keys that are not there add nothing."""
    samples = fresh()
    assert list(associate({"1": {"extra": True}})(samples))[1] is samples[1]
    assert samples[1]["extra"]
    assert "extra" not in samples[0]
    assert next(associate(lambda key: {"k": key})(fresh()))["k"] == "0"
    assert next(associate(lambda key: None)(fresh())) == SAMPLES[0]


def test_associate_tells_which_sample_failed():
    """A failing function, and a sample without key."""
    with pytest.raises(KeyError, match="__key__") as caught:
        list(associate({})([{"a": 1}]))
    assert "associate" in caught.value.__notes__[0]
    assert list(associate({}, handler=ignore_and_continue)([{"a": 1}])) == []


def test_getfirst():
    """The first that is there; a default only where missing is no error."""
    assert getfirst({"a": 1, "b": 2}, "c;b;a") == 2
    assert getfirst({"a": 1}, ["b", "a"]) == 1
    assert getfirst({"a": 1}, "b", 5, missing_is_error=False) == 5
    with pytest.raises(MissingField):
        getfirst({"a": 1}, "b", 5)


def test_parse_field_spec():
    """Strings are split at semicolons, lists stay."""
    assert parse_field_spec(["a;b", ["c", "d"]]) == [["a", "b"], ["c", "d"]]
