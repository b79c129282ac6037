"""Locks that a fork cannot leave locked."""

import os
import pickle
import threading

import pytest

from webdataset.ground.locks import ForkSafeLock


def test_it_excludes():
    """A second thread waits until the first has left."""
    lock, order = ForkSafeLock(), []

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
def test_it_is_free_in_a_child():
    """Though a thread of the parent holds it."""
    lock, held, done = ForkSafeLock(), threading.Event(), threading.Event()

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


def test_it_pickles():
    """As a lock of its own, free."""
    lock = ForkSafeLock()
    with lock, pickle.loads(pickle.dumps(lock)) as copy:
        assert copy is not lock
