"""Several steps as one: compose, compose2, pipeline."""

import pickle

from webdataset.stages.base import Stage, compose, compose2, pipeline
from webdataset.stages.map import map as mapped
from webdataset.stages.shuffle import shuffle


def test_compose_applies_from_left_to_right():
    """compose(f, g)(x) is g(f(x)), for values and for sources."""
    assert compose(str, len)(12345) == 5
    assert compose2(str, len)(123) == 3
    assert list(compose(mapped(str), mapped(len))([1, 22])) == [1, 2]


def test_composing_nothing_is_the_identity():
    """No special case for callers that build lists of steps."""
    assert compose()(7) == 7


def test_compositions_flatten():
    """A composition within a composition is taken apart, so that a pipeline sees every stage."""
    inner = compose(str, len)
    assert compose(inner, float).steps == (str, len, float)


def test_a_composition_is_a_stage():
    """It prints, pickles, compares; and passes addresses through only where all its steps do."""
    stage = compose(mapped(str), mapped(len))
    assert isinstance(stage, Stage)
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert repr(stage).startswith("compose(map(")
    assert stage.transparent
    assert not compose(mapped(str), shuffle(3)).transparent
    assert not compose(mapped(str), iter).transparent


def test_pipeline_runs_a_source_through_steps():
    """The function of that name, not the class."""
    assert list(pipeline([1, 2], mapped(str), mapped(len))) == [1, 1]
    assert pipeline([1]) == [1]
