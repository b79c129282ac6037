"""A pool of processes: order, bounds, errors, and processes that die."""

import itertools
import os
import signal

import pytest

from support import pool_workers
from webdataset.core import process_pool
from webdataset.core.errors import UsageError, WorkerDied
from webdataset.core.process_pool import ProcessPool

REPEAT = f"{pool_workers.__name__}:repeat"


def finals(tasks, jobs=2, factor=2):
    """The last message of each item, in the order in which they come."""
    with ProcessPool(jobs, REPEAT, (factor,)) as pool:
        return [(item, content) for item, content, last in pool.run(tasks) if last]


def test_messages_come_in_order():
    """Items of tasks of any length, and each item's messages, in the order of the items."""
    tasks = [list(range(start, start + length)) for start, length in ((0, 3), (3, 1), (4, 0), (4, 5), (9, 2))]
    with ProcessPool(3, REPEAT, (2,)) as pool:
        found = list(pool.run(tasks))
    assert found == [
        (item, content, last)
        for item in range(11)
        for content, last in (((item, 0), False), ((item, 1), False), (item, True))
    ]


def test_it_reads_ahead_a_few_tasks():
    """Of endless tasks so many are taken as processes work on, and a few more."""
    numbers = itertools.count()
    with ProcessPool(2, REPEAT, (0,)) as pool:
        found = pool.run([number] for number in numbers)
        assert [next(found).item for _ in range(50)] == list(range(50))
        assert next(numbers) < 50 + 2 * 4 + 3
        found.close()


def test_messages_that_wait_are_bounded(monkeypatch):
    """While an item is in turn that takes long, others send no more than the bound, and each process one more."""
    monkeypatch.setattr(process_pool, "HELD_BYTES", 1 << 20)
    most = 0
    with ProcessPool(3, REPEAT, (20,)) as pool:
        for message in pool.run([("large", 200_000)] for _ in range(12)):
            most = max(most, pool._held)
            assert message.last or len(message.content) == 200_000
    assert most < (1 << 20) + 3 * 210_000


@pytest.mark.parametrize(
    ("item", "told"), [(("die", 3), "exit code 3"), (("kill", 9), "SIGKILL"), (("kill", 11), "SIGSEGV")]
)
def test_an_item_at_which_a_process_dies(item, told):
    """The item gets the error; those before and after it, also of its own task, get what is theirs."""
    found = finals([[0, 1], [2, item, 3, 4], [5], [item], [6]])
    assert [each for each, _ in found] == [0, 1, 2, item, 3, 4, 5, item, 6]
    for each, content in found:
        if each == item:
            assert isinstance(content, WorkerDied)
            assert told in str(content)
        else:
            assert content == each


def test_every_item_kills():
    """As many processes as items die, and the pool ends."""
    found = finals([[("die", 1)]] * 5)
    assert [type(content) for _, content in found] == [WorkerDied] * 5


def test_an_error_is_raised_in_its_turn():
    """What the function raises comes after the items before."""
    with ProcessPool(2, REPEAT, (0,)) as pool:
        found = pool.run([[0, 1], [2, ("raise", "no"), 3], [4]])
        assert [next(found).item for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="^no$"):
            next(found)


def test_a_process_that_cannot_begin():
    """What the function of the start raises is raised; an import that fails, too."""
    for function, kind in ((f"{pool_workers.__name__}:fail", LookupError), ("support.nowhere:f", ImportError)):
        with ProcessPool(2, function, ()) as pool, pytest.raises(kind):
            list(pool.run([[1]]))


def test_values_that_cannot_be_sent():
    """A lock among the values is a mistake of the call."""
    import threading  # noqa: PLC0415  for its lock

    with pytest.raises(UsageError, match="cannot be sent"):
        ProcessPool(2, REPEAT, (threading.Lock(),))


def test_close_ends_processes_at_work(tmp_path):
    """Closing does not wait for what processes are at."""
    pool = ProcessPool(2, REPEAT, (1,))
    found = pool.run([[0], [("sleep", str(tmp_path / "a"))]])
    assert next(found).item == 0
    processes = [each.process for each in pool._processes]
    pids = [process.pid for process in processes]
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_killed_from_outside(tmp_path):
    """A process that the system kills loses its item alone; a new one takes the rest of the task."""
    mark = tmp_path / "mark"
    found = finals([[1, ("once", str(mark)), ("once", str(mark)), 2]], jobs=1)
    assert [type(content).__name__ for _, content in found] == ["int", "WorkerDied", "str", "int"]
    assert found[1][1].exit_code == -signal.SIGKILL
