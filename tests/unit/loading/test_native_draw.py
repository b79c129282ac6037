"""Drawing samples in C: all that can be seen is what Python does."""

import contextlib
import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.flow.virtual_stream import END
from webdataset.loading.rows import RowAllocator
from webdataset.loading.shared_memory import PAGE_BYTES, WorkerProgressPage
from webdataset.loading.worker import NEVER, EpochWork, WindowCredit, WorkerLoop
from webdataset.samples.native_core import load_native

pytestmark = pytest.mark.skipif(load_native()[0] is None, reason="the native core is not compiled")

URLS = ["a.tar", "b.tar", ""]
SAMPLES = st.sampled_from(
    [{"__key__": key, "__url__": url} for key in ["k", "\udcff", "é", "x" * 201, "", 7, None] for url in URLS]
    + [{"__key__": "no url"}, {"__url__": URLS[0]}, {}, (1, "tuple"), None, 5]
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["sample"] * 6 + ["end", "skip", "drop"]), SAMPLES, st.integers(1, 3)), max_size=14
)


class ScriptedShare:
    """Gives what a script says, and remembers what a page said when the next sample was asked for."""

    turn = 1
    stepwise = False

    def __init__(self, script, page, end):
        self.script, self.page, self.end = script, page, end
        self.following = 0
        self.seen = []
        self.loop = None
        self.closed = 0

    def __iter__(self):
        index = 0
        for kind, sample, step in self.script:
            self.seen.append(self.page and self.page.load())
            if kind in ("skip", "drop"):
                counts = self.loop.notes.skips if kind == "skip" else self.loop.notes.drops
                counts[kind] += 1
            index += step
            yield (END if kind == "end" else sample), index
        if self.end == "raise":
            raise ValueError("of the share")
        if self.end == "skip":
            self.loop.notes.skips["end"] += 1
        if self.end == "never" and self.script:
            yield 5, NEVER

    def reading(self):
        """Return the url of the shard that is read."""
        return "reading.tar"

    def progress(self):
        """Return None."""

    def take_steps(self):
        """Return nothing."""
        return []

    def close(self):
        """Count."""
        self.closed += 1


def run(core, script, end, *, noting, often, stop_at):
    """Return all that a worker gave, and what the page said on the way."""
    page = WorkerProgressPage(np.zeros(PAGE_BYTES, np.uint8), 0) if noting else None
    watched = []

    def watch(index, sample):
        watched.append((index, sample))
        if index >= stop_at:
            raise KeyError(index)
        if page is not None:
            page.write(index, sample, b"reading.tar")
            page.look_again = 0.0 if often else math.inf

    share: Any = ScriptedShare(script, page, end)
    work = EpochWork(share, 4, 0, 0, lambda window: WindowCredit(window), watch, RowAllocator(), page)
    share.loop = loop = WorkerLoop(work)
    loop._core = core
    parts = [
        (p.window, list(p.rows), p.beside, p.counted, p.turns, p.over, repr(p.error), share.following)
        for p in loop.parts()
    ]
    return parts, share.seen, share.closed, page and page.load(), watched


@given(STEPS, st.sampled_from(["", "raise", "skip", "never"]), st.booleans(), st.integers(0, 30))
def test_the_core_draws_as_python_does(script, end, often, stop_at):
    """Parts, counts, errors, and where a share stands; each sample is watched where there is no page."""
    core, python = (
        run(each, script, end, noting=False, often=often, stop_at=stop_at) for each in (load_native()[0], None)
    )
    assert core == python


@given(STEPS, st.sampled_from(["", "raise"]), st.booleans())
def test_the_page_says_what_was_drawn_last(script, end, often):
    """By C or by Python: when the next sample is made, which may end the process, the one before stands there."""
    core, python = (
        run(each, script, end, noting=True, often=often, stop_at=math.inf) for each in (load_native()[0], None)
    )
    assert core[:4] == python[:4]
    if often:
        assert core == python


def test_usual_samples_are_noted_without_a_call_of_python():
    """But for the first sample of each shard; and not a moment longer than the page says."""
    script = [("sample", {"__key__": f"{n}", "__url__": URLS[n // 10 % 2]}, 1) for n in range(40)]
    core = load_native()[0]
    watched = run(core, script, "", noting=True, often=False, stop_at=math.inf)[-1]
    # elsewhere the clock is another one, and Python writes all
    assert [index for index, _ in watched] == ([0, 10, 20, 30] if sys.platform == "linux" else list(range(40)))
    assert len(run(core, script, "", noting=True, often=True, stop_at=math.inf)[-1]) == 40


def test_what_is_no_share_is_refused():
    """Mistakes of a caller must not break memory."""
    draw = load_native()[0].draw
    counts: Any = ({}, {})
    page = SimpleNamespace(memory=bytearray(PAGE_BYTES), url="", look_again=math.inf)
    for samples, place, given_page in [
        ([(1, 2)], [0, 0], None),
        (iter([5]), [0, 0], None),
        (iter([(1, 2, 3)]), [0, 0], None),
        (iter([(1, "2")]), [0, 0], None),
        (iter([(1, 2)]), [0], None),
        (iter([(1, 2)]), ["0", 0], None),
        (iter([(1, 2)]), [0, 0], 5),
        (iter([(1, 2)]), [0, 0], SimpleNamespace(memory=bytearray(5), url="", look_again=0.0)),
        (iter([(1, 2)]), [0, 0], SimpleNamespace(memory=bytes(PAGE_BYTES), url="", look_again=0.0)),
        (iter([(1, 2)]), [0, 0], SimpleNamespace(memory=bytearray(PAGE_BYTES), url="", look_again="soon")),
    ]:
        with pytest.raises((TypeError, ValueError, AttributeError, BufferError)):
            draw(samples, place, 9, END, counts, [], [], print, None, given_page)
    indices: list[int] = []
    beside: list[Any] = []
    assert draw(iter([(1, 5), (2, 9)]), [3, 0], 9, END, counts, indices, beside, print, None, page)
    assert (indices, beside) == ([3, 5], [1, 2])
    # nothing holds the page's memory any more
    page.memory.clear()


def test_the_core_keeps_nothing_of_what_it_draws():
    """Whether it reaches its end, there are no more, or it raises; through its own notes and a watch's."""
    draw = load_native()[0].draw

    def refuse(*_):
        raise KeyError

    # numbers and texts of their own, that are referenced nowhere else
    key, url, end, first = str(10**9), str(10**8), object(), 10**9
    sample = {"__key__": key, "__url__": url}
    page = SimpleNamespace(memory=bytearray(PAGE_BYTES), url=url, look_again=math.inf)
    held = [key, url, end, first, sample, page, page.memory, refuse]
    before = list(map(sys.getrefcount, held))
    for watch, given_page, counts in [
        (None, page, ({}, {})),
        (None, None, ({}, {})),
        (refuse, None, ({}, {})),
        (None, page, ({"a": 1}, {})),
    ]:
        for pairs in ([(sample, first)], [(end, first)], [(sample, 1), (end, 2)], [(sample, "wrong")], [5], []):
            for _ in range(50):
                place: list[Any] = [0, 0]
                beside: list[Any] = []
                with contextlib.suppress(KeyError, TypeError):
                    draw(iter(pairs), place, first, end, counts, [], beside, refuse, watch, given_page)
                del place, beside
    del pairs, watch, given_page
    assert list(map(sys.getrefcount, held)) == before
