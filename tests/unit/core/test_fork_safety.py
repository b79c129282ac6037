"""Locks that a fork cannot leave locked."""

import os
import pickle
import threading

import pytest

from webdataset.core.fork_safety import ForkSafeLock, ForkSafeRLock

kinds = pytest.mark.parametrize("kind", [ForkSafeLock, ForkSafeRLock])


@kinds
def test_it_excludes(kind):
    """A second thread waits until the first has left."""
    lock, order = kind(), []

    def second():
        with lock:
            order.append(2)

    with lock:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.05)
        order.append(1)
    thread.join()
    assert order == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@kinds
def test_it_is_free_in_a_child(kind):
    """Though a thread of the parent holds it."""
    lock, held, done = kind(), threading.Event(), threading.Event()

    def holder():
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=holder)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock._lock.acquire(timeout=5) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


@kinds
def test_it_pickles(kind):
    """As a lock of its own, free, of the same kind."""
    lock = kind()
    with lock, pickle.loads(pickle.dumps(lock)) as copy:
        assert copy is not lock
        assert type(copy) is kind


def test_one_may_be_taken_again():
    """By the thread that holds it, and by nobody else until it has left as often as it came."""
    lock = ForkSafeRLock()
    with lock:
        with lock:
            pass
        taken = []
        thread = threading.Thread(target=lambda: taken.append(lock._lock.acquire(timeout=0.05)))
        thread.start()
        thread.join()
        assert taken == [False]
