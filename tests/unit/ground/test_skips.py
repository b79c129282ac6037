"""Counting what handlers let pass, and what functions drop."""

import threading

import pytest

from webdataset.ground.policies import ignore_and_continue, ignore_and_stop, reraise_exception
from webdataset.ground.skips import Skips, count_dropped, counting, goes_on, pass_over


def test_what_a_handler_lets_pass_is_counted():
    """True is counted under the stage's name; false and errors are not."""
    skips = Skips()
    with counting(skips):
        assert goes_on(ignore_and_continue, ValueError(), "map") is True
        assert goes_on(lambda error: 1, ValueError(), "map") is True  # type: ignore[arg-type,return-value]
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


def test_what_is_dropped_has_a_number_of_its_own():
    """Drops are no failures; who counts failures alone is told of none."""
    skips, drops = Skips(), Skips()
    count_dropped("map")
    with counting(skips, drops):
        count_dropped("map")
        with counting(skips):
            count_dropped("map")
        count_dropped("map")
    assert (skips, drops) == ({}, {"map": 2})


def test_what_is_passed_over_was_counted_before():
    """Items that are drawn once more count nothing; the next one does."""
    skips = Skips()

    def items():
        for number in range(4):
            goes_on(ignore_and_continue, ValueError(), "map")
            yield number

    with counting(skips):
        again = items()
        assert pass_over(again, 2) == 2
        assert next(again) == 2
        assert pass_over(again, 5) == 1
    assert skips == {"map": 1}
