"""Functions that are pickled by value."""

from types import CodeType

import cloudpickle
import pytest

from webdataset.flow.pickling import pickle_by_value


def make_function(n):
    """Return a function with one inside it."""
    return lambda x: list(map(lambda y: y + n + x, range(3)))


@pytest.mark.parametrize("named", [True, False])
def test_functions_keep_the_names_of_their_files(monkeypatch, named):
    """Those inside them, too, whatever cloudpickle calls them."""
    table = cloudpickle.Pickler.dispatch_table
    usual = table[CodeType]
    if not named:
        monkeypatch.setitem(table, CodeType, lambda code: usual(code.replace(co_filename="<dynamic-code>")))
    function = make_function(5)
    again = cloudpickle.loads(pickle_by_value(function))
    assert again(2) == function(2)
    inner = [each for each in again.__code__.co_consts if isinstance(each, CodeType)]
    assert {each.co_filename for each in (again.__code__, *inner)} == {__file__}
    assert inner
    assert again.__code__.co_firstlineno == function.__code__.co_firstlineno
