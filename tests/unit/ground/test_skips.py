"""Counting what handlers let pass."""

import threading

import pytest

from webdataset.ground.policies import ignore_and_continue, ignore_and_stop, reraise_exception
from webdataset.ground.skips import Skips, counting, goes_on


def test_what_a_handler_lets_pass_is_counted():
    """True is counted under the stage's name; false and errors are not."""
    skips = Skips()
    with counting(skips):
        assert goes_on(ignore_and_continue, ValueError(), "map") is True
        assert goes_on(lambda error: 1, ValueError(), "map") is True
        assert goes_on(ignore_and_stop, ValueError(), "map") is False
        with pytest.raises(ValueError, match="this"):
            goes_on(reraise_exception, ValueError("this"), "map")
    assert goes_on(ignore_and_continue, ValueError(), "map") is True
    assert skips == {"map": 2}


def test_counts_are_of_this_thread_and_the_innermost():
    """Other threads do not count here; what counts within counts alone."""
    outer, inner = Skips(), Skips()
    within = counting(inner)
    with counting(outer):
        for _ in range(2):
            with within:
                goes_on(ignore_and_continue, ValueError(), "inner")
        goes_on(ignore_and_continue, ValueError(), "outer")
        thread = threading.Thread(target=goes_on, args=(ignore_and_continue, ValueError(), "thread"))
        thread.start()
        thread.join()
    assert (outer, inner) == ({"outer": 1}, {"inner": 2})
