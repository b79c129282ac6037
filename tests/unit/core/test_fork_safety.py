"""Locks that a fork cannot leave locked."""

import os
import pickle
import threading
import weakref

import pytest

from webdataset.core.fork_safety import ForkSafeLock, ForkSafeRLock, PerProcessCache

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
        os._exit(0 if lock.lock.acquire(timeout=5) else 1)
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
        thread = threading.Thread(target=lambda: taken.append(lock.lock.acquire(timeout=0.05)))
        thread.start()
        thread.join()
        assert taken == [False]


def test_a_cache_keeps_what_was_used_last():
    """Clients of credentials that change every hour do not add up; one that is in use stays."""

    class Client:
        """Can be referred to weakly."""

    cache, made = PerProcessCache(), []

    def make():
        client = Client()
        made.append(weakref.ref(client))
        return client

    first = cache.get("used", make)
    for hour in range(1000):
        cache.get(hour, make)
        assert cache.get("used", make) is first
    alive = [client for client in made if client() is not None]
    assert 1 < len(alive) <= 64
    assert alive[-1] is made[-1]
    assert cache.get(999, make) is made[-1]()
