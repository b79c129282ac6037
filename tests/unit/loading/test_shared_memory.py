"""Memory that is lent, and comes back when nobody looks at it any more."""

import gc
import mmap
import sys

import numpy as np
import pytest

from webdataset.loading.shared_memory import PAGE_BYTES, Leases, MemoryBlock, WorkerProgressPage


def block(number=0):
    """A block of one page."""
    return MemoryBlock(number, mmap.mmap(-1, mmap.PAGESIZE))


def test_a_block_is_back_with_the_last_array_over_it():
    """A view is as good as the array; blocks come back with what was noted, the last first, once each."""
    loans, blocks = Leases(), [block(number) for number in range(2)]
    arrays = [one.lend(loans, note=f"note {one.number}") for one in blocks]
    view = arrays[0][10:20].reshape(2, 5)
    arrays.clear()
    assert loans.back() == "note 1"
    assert loans.back() is None
    del view
    assert loans.back() == "note 0"
    assert loans.back() is None


def test_a_block_in_a_circle_of_references_is_back_when_that_is_collected():
    """As where a batch hangs on a traceback."""
    loans, circle = Leases(), []
    circle += [circle, block().lend(loans, note=0)]
    del circle
    assert loans.back() is None
    gc.collect()
    assert loans.back() == 0


def test_who_has_lent_may_be_gone_first():
    """The array lives on, and nothing is left of it afterwards."""
    loans, one = Leases(), block()
    array = one.lend(loans, note=0)
    del loans, one
    array[:] = 7
    assert array.sum() == 7 * mmap.PAGESIZE


def test_no_interrupt_can_be_lost_where_a_block_comes_back():
    """Python drops a KeyboardInterrupt that is raised in a finaliser: so no code of Python's runs in this one."""
    loans = Leases()
    array, called = block().lend(loans, note=0), []
    sys.setprofile(lambda frame, event, _argument: called.append((event, frame.f_code.co_name)))
    del array
    sys.setprofile(None)
    assert [name for event, name in called if event == "call"] == []
    assert loans.back() == 0


@pytest.mark.parametrize(
    ("sample", "shown"),
    [
        ({"__key__": "k", "__url__": "a.tar"}, ("k", "a.tar")),
        ({"__key__": 7}, ("7", "reading.tar")),
        (["no dictionary"], ("", "reading.tar")),
        ({"__key__": "\udcff", "__url__": "\udcff.tar"}, ("?", "?.tar")),
        # a cut may fall into a character
        (
            {"__key__": "x" + "é" * 200, "__url__": "x" + "é" * 800},
            ("x" + "é" * 99 + "\ufffd", "x" + "é" * 399 + "\ufffd"),
        ),
    ],
    ids=["plain", "no url", "no dictionary", "not Unicode", "cut"],
)
def test_what_a_worker_noted_can_be_read(sample, shown):
    """Whatever key and url are: the page is read after the worker has died, to say what it died of."""
    memory = np.zeros(3 * PAGE_BYTES, np.uint8)
    pages = [WorkerProgressPage(memory, number) for number in range(3)]
    assert pages[1].load() == (None, "", "")
    pages[1].write(0, sample, b"reading.tar")
    assert pages[1].load() == (0, *shown)
    # the url stands there already
    same = isinstance(sample, dict) and "__url__" in sample
    pages[1].write(1, {"__key__": "other", "__url__": sample["__url__"]} if same else 5, b"reading.tar")
    assert pages[1].load()[:2] == (1, "other" if same else "")
    pages[1].write(2, sample, b"reading.tar")
    assert pages[1].load() == (2, *shown)
    pages[1].write(3, {"__key__": "x" * 70_000, "__url__": "b.tar"}, b"reading.tar")
    assert pages[1].load() == (3, "x" * 200, "b.tar")
    pages[1].write(4, sample, b"reading.tar")
    assert pages[1].load() == (4, *shown)
    assert [pages[0].load(), pages[2].load()] == [(None, "", "")] * 2
