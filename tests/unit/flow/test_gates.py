"""What items pass between two stages that are timed: the native core's gates do what Python's do."""

import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.flow.timing import pass_gate, pass_outlet
from webdataset.samples.native_core import load_native

CORE = load_native()[0]
pytestmark = pytest.mark.skipif(CORE is None, reason="the native core is not compiled")


class Source:
    """Gives what a script says: a number, its end, or an error; it goes on after each."""

    def __init__(self, script):
        self.script = list(script)
        self.asked = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.asked += 1
        found = self.script.pop(0) if self.script else "end"
        if found == "end":
            raise StopIteration
        if found == "error":
            raise ValueError("of the source")
        return found


SCRIPTS = st.lists(st.one_of(st.integers(0, 9), st.sampled_from(["end", "error"])), max_size=12)


def draw_all(gate, steps):
    """Return what each step gives: an item, the end, or an error."""
    found = []
    for step in range(steps):
        try:
            found.append(next(gate))
        except StopIteration:
            found.append("end")
        except ValueError as error:
            found.append(str(error))
        yield step
    yield found


@given(script=SCRIPTS, timed=st.lists(st.booleans(), min_size=14, max_size=14))
def test_a_gate_lets_the_same_items_pass(script, timed):
    """And asks for each once, in the way that its byte says at that moment; ends and errors end it for good."""
    outcomes = []
    for make in (CORE.Gate, pass_gate):
        source, timing, drawn = Source(script), bytearray(1), []

        def draw(items, drawn=drawn):
            drawn.append(items.asked)
            return next(items)

        steps = draw_all(make(source, draw, timing), len(timed))
        for each in timed:
            timing[0] = each
            next(steps)
        outcomes.append((next(steps), source.asked, drawn))
    assert outcomes[0] == outcomes[1]


@given(script=SCRIPTS, gaps=st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_an_outlet_times_the_same_items(script, gaps):
    """The first, those after each gap, and the one that finds the end."""
    outcomes = []
    for make in (CORE.Outlet, pass_outlet):
        source, drawn, left = Source(script), [], list(gaps)

        def draw(items, drawn=drawn, left=left):
            drawn.append(items.asked)
            return next(items), left.pop(0)

        *_, found = draw_all(make(source, draw), 14)
        outcomes.append((found, source.asked, drawn))
    assert outcomes[0] == outcomes[1]


def test_a_pipeline_that_is_drawn_from_twice_at_once_says_so():
    """By what it draws from, and by another thread; it goes on afterwards."""
    inner = []

    def items():
        for n in range(4):
            try:
                inner.append(next(gate))
            except ValueError as error:
                inner.append(str(error))
            yield n

    gate = CORE.Gate(items(), next, bytearray(1))
    assert list(gate) == [0, 1, 2, 3]
    assert inner == ["a pipeline is drawn from twice at once"] * 4

    entered, leave = threading.Event(), threading.Event()

    def slow():
        entered.set()
        leave.wait(10)
        yield 1

    outlet = CORE.Outlet(slow(), lambda items: (next(items), 0))
    found = []
    thread = threading.Thread(target=lambda: found.extend(outlet))
    thread.start()
    entered.wait(10)
    with pytest.raises(ValueError, match="twice at once"):
        next(outlet)
    leave.set()
    thread.join()
    assert found == [1]


@pytest.mark.parametrize("step", [lambda items: 1, lambda items: (1,), lambda items: (1, "2"), lambda items: [1, 2]])
def test_a_step_that_gives_something_else_is_an_error(step):
    """Of this library: not of the data."""
    with pytest.raises(TypeError):
        next(CORE.Outlet(iter([1]), step))


def test_what_is_no_iterator_is_refused():
    """A list, say; and a byte that is not there."""
    with pytest.raises(TypeError, match="iterator"):
        CORE.Gate([1], next, bytearray(1))
    with pytest.raises(ValueError, match="byte"):
        CORE.Gate(iter([1]), next, bytearray())
    with pytest.raises(TypeError):
        CORE.Gate(iter([1]), next, b"\0")
    with pytest.raises(TypeError, match="iterator"):
        CORE.Outlet([1], next)


def test_gates_in_a_circle_are_released():
    """The collector sees what they refer to; and at its end a gate lets go of its source."""

    class Items:
        def __iter__(self):
            return self

        def __next__(self):
            raise StopIteration

    items = Items()
    items.gate = CORE.Gate(items, next, bytearray(1))
    watched = weakref.ref(items)
    del items
    gc.collect()
    assert watched() is None
    ended = Items()
    watched, gate = weakref.ref(ended), CORE.Outlet(ended, lambda items: (next(items), 0))
    del ended
    assert list(gate) == []
    assert watched() is None
