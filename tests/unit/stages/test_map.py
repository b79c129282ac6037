"""map, map_dict, map_tuple, transform_with."""

import pytest

from webdataset.core.error_handlers import ignore_and_continue, ignore_and_stop
from webdataset.core.errors import UsageError
from webdataset.stages.map import map as mapped
from webdataset.stages.map import map_dict, map_tuple, transform_with

SAMPLES = [{"__key__": "a", "n": 1}, {"__key__": "b", "n": 0}, {"__key__": "c", "n": 2}]


def inverse(value):
    """Fails at 0."""
    return 1 / value


def test_map_drops_none():
    """None is no sample."""
    assert list(mapped(lambda n: n or None)([0, 1, 0, 2])) == [1, 2]


def test_map_gives_results_the_samples_key():
    """A new dictionary takes the key of the sample that it was made of."""
    assert list(mapped(lambda sample: {"x": 1})([{"__key__": "a"}])) == [{"x": 1, "__key__": "a"}]
    assert list(mapped(lambda sample: {"__key__": "own"})([{"__key__": "a"}])) == [{"__key__": "a"}]


def test_map_does_not_invent_keys():
    """Where the sample has none, the result's own is kept, and none is made."""
    assert list(mapped(lambda sample: {"__key__": "own"})([{"n": 1}])) == [{"__key__": "own"}]
    assert list(mapped(lambda sample: {"x": 1})([{"n": 1}])) == [{"x": 1}]


def test_map_may_leave_dictionaries():
    """From a dictionary to anything."""
    assert list(mapped(lambda sample: sample["n"])(SAMPLES)) == [1, 0, 2]


@pytest.mark.parametrize(("handler", "results"), [(ignore_and_continue, [1, 0.5]), (ignore_and_stop, [1])])
def test_map_asks_the_handler(handler, results):
    """True skips the sample, false ends the stage."""
    assert list(mapped(lambda sample: inverse(sample["n"]), handler=handler)(SAMPLES)) == results


def test_the_handler_sees_the_located_error():
    """It may look at the error's notes."""
    seen = []
    list(mapped(inverse, handler=lambda error: seen.append(error) or True)([0]))
    assert "inverse" in seen[0].__notes__[0]


def test_map_leaves_errors_of_its_source_alone():
    """What fails before this stage is not this stage's to handle."""

    def source():
        yield 1
        raise OSError("upstream")

    with pytest.raises(OSError, match="upstream"):
        list(mapped(str, handler=ignore_and_continue)(source()))


def test_map_dict_updates_in_place():
    """Code relies on it that the dictionary stays the same object."""
    sample = {"__key__": "a", "n": 1, "m": 5}
    (result,) = map_dict(n=str, m=float)([sample])
    assert result is sample
    assert result == {"__key__": "a", "n": "1", "m": 5.0}


def test_map_dict_tells_a_missing_field():
    """A KeyError that names stage and sample."""
    with pytest.raises(KeyError, match="no field 'zz'") as caught:
        list(map_dict(zz=str)(SAMPLES))
    assert caught.value.stage == "map_dict"


def test_map_dict_refuses_tuples():
    """And says what to use."""
    with pytest.raises(UsageError, match="map_tuple"):
        list(map_dict(n=str)([(1, 2)]))


def test_map_tuple_leaves_none_and_the_rest_alone():
    """Functions by position; lists become tuples; functions too many are ignored."""
    assert list(map_tuple(str, None, float)([(1, 2, 3, 4), [5, 6]])) == [("1", 2, 3.0, 4), ("5", 6)]


def test_map_tuple_asks_the_handler():
    """A failing function skips the sample."""
    assert list(map_tuple(inverse, handler=ignore_and_continue)([(0,), (1,)])) == [(1.0,)]


def test_transform_with():
    """By position, None for identity, shorter is fine, none at all gives the sample itself."""
    assert transform_with((1, 2, 3), [str, None]) == ["1", 2, 3]
    assert transform_with((1, 2), None) == (1, 2)
    with pytest.raises(UsageError, match="3 functions for 1 values"):
        transform_with((1,), [str] * 3)
