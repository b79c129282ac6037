"""What is decoded for some frames: compared with a plain model over random orders of frames."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from webdataset.codecs.media.frame_table import FrameTable


@st.composite
def tables(draw):
    """A video in the order of its file: groups of a key frame and others, some shown before the key frame."""
    times, keys, clock = [], [], 0
    for group in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 6))
        leading = draw(st.integers(0, size - 1)) if group else 0
        shown = [clock + step for step in range(size)]
        rest = draw(st.permutations(shown[leading + 1 :]))
        times += [shown[leading], *shown[:leading], *rest]
        keys += [True] + [False] * (size - 1)
        clock += size
    return np.array(times) * 10, np.array(keys)


@given(tables(), st.data())
def test_every_frame_comes_with_what_it_needs_and_little_else(table, data):
    """Each wanted frame is decoded from the last key frame shown no later; segments rise and do not touch."""
    times, keys = table
    frames = FrameTable(times, keys, None, int(times[0]), 10.0)
    assert len(frames) == len(times)
    assert frames.seconds.tolist() == sorted(((times - times[0]) / 10).tolist())
    numbers = sorted(data.draw(st.sets(st.integers(0, len(times) - 1))))
    segments = frames.plan_segments(numbers)
    assert [number for segment in segments for number in segment.numbers] == numbers
    decoded = [place for segment in segments for place in range(segment.start, segment.stop)]
    assert decoded == sorted(set(decoded))
    needed = set()
    for number in numbers:
        place = int(np.flatnonzero(times == number * 10)[0])
        start = max(key for key in np.flatnonzero(keys[: place + 1]) if times[key] <= times[place])
        needed |= set(range(start, place + 1))
    # a whole run is decoded where groups run into each other, and nothing else
    assert needed == set(decoded)


@given(tables(), st.floats(-1, 30), st.floats(-1, 30), st.integers(1, 4))
def test_spans_of_time_are_those_of_their_seconds(table, start, length, stride):
    """Frames of a span are those whose times lie in it; times within a millionth of a second are the same."""
    times, keys = table
    frames = FrameTable(times, keys, None, 0, 10.0)
    for stop in (start + length, None):
        wanted = [
            number
            for number, seconds in enumerate(frames.seconds)
            if seconds >= start - 1e-6 and (stop is None or seconds < stop - 1e-6)
        ]
        assert frames.numbers_between(start, stop, stride) == wanted[::stride]


def test_key_frames_out_of_order_are_not_relied_on():
    """Where key frames are shown in another order than they are stored in, decoding begins at the first frame."""
    frames = FrameTable(np.array([0, 50, 20, 60]), np.array([True, True, True, False]), None, 0, 1.0)
    assert [segment.start for segment in frames.plan_segments([1])] == [0]
    none = FrameTable(np.array([0, 10]), np.array([False, False]), None, 0, 1.0)
    assert none.plan_segments([1]) == [(0, 2, [1])]


def test_frames_that_are_not_shown_have_no_number():
    """An edit list hides frames: they are decoded for others, and not counted."""
    shown = np.array([False, True, True])
    frames = FrameTable(np.array([0, 10, 20]), np.array([True, False, False]), shown, 10, 10.0)
    assert frames.seconds.tolist() == [0.0, 1.0]
    assert frames.plan_segments([0]) == [(0, 2, [0])]
