"""The arithmetic of a request budget, on a clock of its own."""

import heapq
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.storage.rate_limit import (
    FIRST_LEAST_RATE,
    GROWTH_SECONDS,
    LEAST_RATE,
    LONGEST_PAUSE,
    LONGEST_QUEUE,
    RequestRate,
)

RATES = st.floats(0.1, 1000)


def windows(times, rate):
    """Return by how much any window has more requests than ``rate`` a second."""
    pairs = itertools.combinations_with_replacement(range(len(times)), 2)
    return max(last - first + 1 - rate * (times[last] - times[first]) for first, last in pairs)


@given(RATES, st.lists(st.floats(0, 3), min_size=1, max_size=60), st.floats(0, 1e6))
def test_no_window_has_more_than_its_share(rate, gaps, start):
    """In any t seconds at most rate * t + burst requests are sent, and each is sent after a bounded time."""
    state, now, sent = RequestRate(), start, []
    for number, gap in enumerate(gaps):
        now += gap
        state, wait = state.reserve(now, rate)
        assert 0 <= wait <= number / rate + 1e-6
        sent.append(now + wait)
    assert sent == sorted(sent)
    assert windows(sent, rate) <= max(rate, 1) + 1e-3


@given(RATES, st.integers(2, 40), st.integers(2, 8))
def test_no_process_starves(rate, rounds, processes):
    """Processes that ask again as soon as they were served take turns, in the order of asking."""
    state = RequestRate()
    waiting = [(0.0, number) for number in range(processes)]
    served = []
    while len(served) < rounds * processes:
        now, number = heapq.heappop(waiting)
        state, wait = state.reserve(now, rate)
        served.append(number)
        heapq.heappush(waiting, (now + wait, number))
    counts = [served.count(number) for number in range(processes)]
    # those served within the burst may come in any order
    assert max(counts) - min(counts) <= max(rate, 1) + 1


def run(state, seconds, demand, limit, start):
    """Send as fast as the budget and ``demand`` allow to a service that refuses above a limit; count both answers."""
    now, tokens, last, served, refused = start, limit / 4, start, [], 0
    while now < start + seconds:
        state, wait = state.reserve(now)
        now += max(wait, 1 / demand)
        tokens, last = min(limit / 4, tokens + (now - last) * limit), now
        if tokens >= 1:
            tokens -= 1
            served.append(now)
        else:
            refused += 1
            state = state.refuse(now, state.generation)
    return state, served, refused


@pytest.mark.parametrize(("demand", "limit"), [(1000, 100), (200, 100), (5000, 20), (101, 100)])
def test_refusals_stay_few_and_the_service_busy(demand, limit):
    """The rate goes up and down below what the service bears: few refusals, and most of what it could serve."""
    _, served, refused = run(RequestRate(), 300, demand, limit, 10.0)
    assert refused <= 300 / 5
    assert len(served) >= 0.6 * limit * 300


def test_without_refusals_there_is_no_bound():
    """Nothing waits before a service refuses."""
    state, waits = RequestRate(), set()
    for number in range(10_000):
        state, wait = state.reserve(1 + number / 1e6)
        waits.add(wait)
    assert waits == {0.0}


def test_one_decrease_for_requests_that_were_under_way():
    """A hundred refusals of requests that were sent before the first of them halve the rate once."""
    state = RequestRate(window_start=0.0)
    for number in range(200):
        state, _ = state.reserve(number / 100)
    before = state.generation
    for _ in range(100):
        state = state.refuse(2.0, before)
    assert (state.generation, state.cut) == (before + 1, pytest.approx(50, rel=0.1))


def test_a_small_program_is_slowed_little_at_first():
    """A lone refusal, which happens for other reasons too, leaves five requests a second."""
    assert RequestRate().refuse(1.0, 0.0).cut == FIRST_LEAST_RATE


def test_further_refusals_go_down_to_the_least_rate():
    """Refusals in a row halve the rate each time, and never stop requests for ever."""
    state, now = RequestRate(), 1.0
    for _ in range(20):
        state, wait = state.reserve(now)
        now += wait
        state = state.refuse(now, state.generation)
    assert state.cut == LEAST_RATE


def test_the_rate_comes_back():
    """Ten seconds after a decrease it is what it was, and later there is no bound."""
    state = RequestRate(window_start=0.0, counted=100.0).refuse(0.5, 0.0)
    assert state.cut == 50
    assert state.rate_at(state.cut_at + GROWTH_SECONDS) == 100
    assert state.rate_at(state.cut_at + 3 * GROWTH_SECONDS) is None
    assert state.reserve(state.cut_at + 3 * GROWTH_SECONDS)[0].cut == 0


def test_the_bound_of_the_user_holds_all_the_time():
    """It bounds from the first request, and what grows after a decrease ends there."""
    state = RequestRate(window_start=0.0, counted=100.0).refuse(0.5, 0.0, bound=10)
    assert state.cut == 5
    assert [state.rate_at(state.cut_at + passed, 10) for passed in (0, 10, 25, 100)] == [5, 10, 10, 10]


@pytest.mark.parametrize(("wish", "pause"), [(None, 0.1), (7, 7), (1e9, LONGEST_PAUSE)])
def test_what_the_service_asks_for_is_heard(wish, pause):
    """No process sends within the pause of ``Retry-After``, up to two minutes."""
    state = RequestRate().refuse(10.0, 0.0, wish)
    assert state.reserve(10.0)[1] == pytest.approx(pause)


def test_a_longer_pause_of_an_older_request_counts():
    """Also where it brings no second decrease."""
    state = RequestRate().refuse(10.0, 0.0, 1).refuse(10.0, 0.0, 30)
    assert (state.generation, state.reserve(10.0)[1]) == (1, pytest.approx(30))


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=7, max_size=7),
    st.floats(0, 1e7),
    st.none() | RATES,
)
def test_any_numbers_are_survived(numbers, now, bound):
    """What a damaged file says, or one of before a restart of the machine, lasts no longer than a queue can."""
    state, wait = RequestRate(*numbers), 0.0
    for _ in range(3):
        state, wait = state.reserve(now, bound)
        assert math.isfinite(wait)
        assert wait <= LONGEST_QUEUE + 10 / LEAST_RATE + (3 / bound if bound else 0)
        state = state.refuse(now, state.generation, None, bound)
    assert all(math.isfinite(number) for number in vars(state).values())


def test_a_clock_that_goes_back():
    """After a restart of the machine the clock begins anew: what was is forgotten."""
    state = RequestRate()
    for now in itertools.chain((1e6 + number / 100 for number in range(500)), (number / 100 for number in range(500))):
        state, wait = state.reserve(now, 100)
        assert wait < 1


@pytest.mark.parametrize("rate", [1e-3, 1e-5, 1e-320])
def test_a_tiny_rate_is_a_bound(rate):
    """A queue of more than a day does not let all requests pass."""
    state, waits = RequestRate(), []
    for _ in range(200):
        state, wait = state.reserve(1e6, rate)
        waits.append(wait)
    assert [wait for wait in waits if wait < min(1 / rate, 80_000)] == [0]
