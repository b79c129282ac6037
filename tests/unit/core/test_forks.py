"""What no fork inherits."""

import os
import threading

from webdataset.core.fork_safety import PerProcessCache


def test_made_once_and_forgotten():
    """One for each key, until it is forgotten."""
    kept, made = PerProcessCache(), iter(range(10))
    assert [kept.get(key, lambda: next(made)) for key in "aab"] == [0, 0, 1]
    kept.forget("a")
    kept.forget("absent")
    assert [kept.get(key, lambda: next(made)) for key in "ab"] == [2, 1]


def test_a_child_makes_its_own_even_while_a_thread_makes_one():
    """The child of a fork neither sees what its parent has nor waits for a thread that it does not have."""
    kept, began, free = PerProcessCache(), threading.Event(), threading.Event()
    kept.get("a", lambda: "of the parent")
    thread = threading.Thread(target=lambda: kept.get("b", lambda: began.set() or free.wait(60)))
    thread.start()
    began.wait(60)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if kept.get("a", lambda: "own") == "own" else 1)
        except BaseException:
            os._exit(2)
    free.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert kept.get("a", lambda: "another") == "of the parent"
