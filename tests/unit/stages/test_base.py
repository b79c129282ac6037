"""Stages as values: called, printed, compared, pickled; makers check their arguments; refetch is checked."""

import inspect
import pickle

import pytest

from webdataset.core.errors import FlowError
from webdataset.stages.base import FilterFunction, Run, Stage, TransparentFunction, pipelinefilter, transform
from webdataset.stages.map import map as mapped
from webdataset.stages.select import select


def doubled(source, factor=2):
    """Multiply."""
    for value in source:
        yield value * factor


def picked(source, /, **fields):
    """Show the arguments."""
    for value in source:
        yield value, fields


times = pipelinefilter(doubled)


def test_a_stage_is_called_with_any_iterable():
    """Lists are fine, not only iterators."""
    assert list(mapped(str)([1, 2])) == ["1", "2"]


def test_pipelinefilter_fixes_all_arguments_but_the_first():
    """The maker's call gives a stage that can be used again."""
    stage = times(factor=3)
    assert list(stage([1, 2])) == list(stage([1, 2])) == [3, 6]
    assert isinstance(stage, FilterFunction)


def test_pipelinefilter_keeps_the_functions_name_and_docstring():
    """help(times) is of use."""
    assert (times.__name__, times.__doc__) == ("doubled", "Multiply.")


def test_repr_names_function_and_arguments():
    """What is printed is what was written."""
    assert repr(times(3)) == "doubled(3)"
    assert repr(times(factor=3)) == "doubled(factor=3)"
    assert "map(<built-in function len>)" in str(mapped(len))


def test_stages_are_compared_by_value():
    """Two stages of the same function and arguments are equal."""
    assert mapped(len) == mapped(len)
    assert mapped(len) != mapped(str)
    assert mapped(len) != select(len)


def test_stages_pickle():
    """A stage of module functions reaches a worker and works there."""
    assert list(pickle.loads(pickle.dumps(mapped(str)))([1])) == ["1"]
    assert list(pickle.loads(pickle.dumps(times(3)))([1])) == [3]


def test_makers_check_their_arguments_at_once():
    """A wrong argument is an error where it is written, not in a worker an hour later."""
    with pytest.raises(TypeError, match="handler"):
        select(len, handler=print)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'f'"):
        mapped()  # type: ignore[call-arg]


def test_makers_show_the_signature_without_the_source():
    """help(map) tells what to write."""
    assert list(inspect.signature(mapped).parameters) == ["f", "handler"]
    assert mapped.__name__ == "map"
    assert "None drops the sample" in mapped.__doc__


def test_keyword_arguments_may_have_any_name():
    """A field may be called source, function or self."""
    stage = transform(picked)(source=1, function=2, self=3)
    assert list(stage([0])) == [(0, {"source": 1, "function": 2, "self": 3})]
    assert list(pipelinefilter(picked)(source=1, function=2, self=3)([0])) == list(stage([0]))


def test_refetch_refuses_another_number_of_items():
    """A map that drops an item now which it gave before cannot be restored, and says so."""
    stage = mapped(lambda value: value if value > 1 else None)
    assert stage.refetch([5, 6], lambda addresses: addresses) == [5, 6]
    with pytest.raises(FlowError, match="1 of 2 buffered items"):
        stage.refetch([1, 6], lambda addresses: addresses)


def test_transparent_functions_are_told_apart():
    """Only functions declared so pass addresses through."""
    assert isinstance(mapped(len), TransparentFunction)
    assert mapped(len).transparent
    assert not times(2).transparent


def test_a_stage_must_have_a_flow():
    """Stage is abstract."""
    with pytest.raises(TypeError, match="flow"):
        Stage()  # type: ignore[abstract]


def test_random_depends_on_seed_epoch_position_and_names_only():
    """Equal runs draw alike, others do not."""

    def draw(*names, **run):
        return Run(**run).random(*names).random()

    first = draw(seed=1)
    assert first == draw(seed=1)
    others = [draw(seed=2), draw(seed=1, epoch=1), draw(seed=1, position=1), draw("mix", seed=1)]
    assert len({first, *others}) == 5


def test_random_differs_between_workers_unless_shared(monkeypatch):
    """Before the split all workers draw alike, behind it each its own."""

    def draws(worker, **run):
        monkeypatch.setenv("WORKER", str(worker))
        monkeypatch.setenv("NUM_WORKERS", "2")
        return Run(seed=1, **run).random().random()

    assert draws(0, shared=True) == draws(1, shared=True)
    assert draws(0) != draws(1)
