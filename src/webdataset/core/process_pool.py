"""Runs tasks in processes and gives what they send in the order of the tasks, with bounded memory.

Theory. The processes are started by ``spawn``, so that none inherits a thread's lock, and they get the name of a
function and plain values, never a function of the caller. An idle process gets one task: a few items, one after the
other. Of each item it sends any number of messages, then a last one. The consumer reads the process whose item is next
in turn, and the others too until :data:`HELD_BYTES` of their messages wait: then these block at their pipes. A process
that dies has sent the last messages of the items that it was done with, so the first one without is the one it died at.
The others of its task go to a new process.
"""

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple, Self

from webdataset.core.errors import FlowError, UsageError, WorkerDied, describe_error, shorten_pickling_error
from webdataset.core.redaction import redact

HELD_BYTES: Final = 64 << 20
"""Bytes of messages that wait for their turn, before processes are kept from sending more."""

# tasks that may be ahead of the one whose turn it is, for each process
_AHEAD: Final = 4
# how often it is looked whether a process lives whose pipe another one holds open
_ALIVE_SECONDS: Final = 1.0
# for a process to end by itself, and again after SIGTERM
_PATIENCE_SECONDS: Final = 2.0
_READY, _MESSAGE, _LAST, _ERROR = b"r", b"m", b"l", b"e"


class ItemMessage(NamedTuple):
    """What a process sent of an item.

    Args:
        item: it.
        content: of the message; of the last one, what the function returned, or a ``WorkerDied``.
        last: no other comes of this item.
    """

    item: Any
    content: Any
    last: bool


class _Ticket:
    """An item on its way.

    Args:
        item: it.
        ends: it is the last one of its task.
    """

    def __init__(self, item: object, *, ends: bool) -> None:
        self.item = item
        self.ends = ends
        self.messages: deque[bytes] = deque()
        self.died: WorkerDied | None = None


class _Process:
    """A process and its end of the pipe.

    Args:
        number: of the process, for messages.
        function: ``module:name`` of what makes the function of the items.
        values: pickled arguments of it.
    """

    def __init__(self, number: int, function: str, values: bytes) -> None:
        self.number = number
        self.ready = False
        self.tickets: deque[_Ticket] = deque()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_work, args=(function, values, theirs), name=f"webdataset-{number}", daemon=True
        )
        try:
            with _blocked_interrupts():
                self.process.start()
        except BaseException:  # raised again, with no pipe left open
            self.pipe.close()
            raise
        finally:
            theirs.close()

    def send(self, tickets: Sequence[_Ticket]) -> None:
        """Send a task; the process waits for one, and has sent all that it had to."""
        self.tickets.extend(tickets)
        # a process that has just died is found when it is read
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(pickle.dumps([ticket.item for ticket in tickets], 5))

    def collect_exit(self) -> WorkerDied:
        """Return how the process ended."""
        self.process.join(_PATIENCE_SECONDS)
        error = WorkerDied(f"the process {self.process.pid} {describe_exit(self.process.exitcode)}")
        error.worker, error.exit_code = self.number, self.process.exitcode
        end_processes([self.process])
        self.pipe.close()
        return error


class ProcessPool:
    """Processes that work on items; close it, or use it as a context manager.

    Args:
        jobs: how many processes, at most.
        function: ``module:name`` of a function of this library. Called with ``values`` in each process, it returns the
            function of the items: ``work(item, send)``, which sends messages and returns the last one.
        values: arguments that pickle can move.

    Raises:
        UsageError: a value that cannot be pickled, or this process may have no children.
    """

    def __init__(self, jobs: int, function: str, values: tuple[object, ...]) -> None:
        if multiprocessing.current_process().daemon:
            raise UsageError("this process is a worker itself and may have no children: use one job here")
        try:
            self._values = pickle.dumps(values, 5)
        except Exception as error:  # whatever pickling a caller's object raises
            raise UsageError(
                f"what the processes need cannot be sent to them: {shorten_pickling_error(error)}. Use one job, or "
                "give options of plain values"
            ) from error
        self._function = function
        self._jobs = jobs
        self._processes: list[_Process] = []
        self._started = 0
        self._held = 0
        self._ahead = 0
        self._order: deque[_Ticket] = deque()
        self._again: deque[_Ticket] = deque()

    def run(self, tasks: Iterable[Sequence[object]]) -> Iterator[ItemMessage]:
        """Yield the messages of all items, in their order.

        Args:
            tasks: items that one process works on, one after the other; read as processes are free.

        Raises:
            WorkerDied: a process ended before it began.
            Exception: what the function raised at an item, when its turn comes.
        """
        waiting = iter(tasks)
        while True:
            self._dispatch(waiting)
            if not self._order:
                return
            ticket = self._order[0]
            if ticket.messages:
                yield self._take(ticket)
            elif ticket.died is not None:
                self._leave()
                yield ItemMessage(ticket.item, ticket.died, last=True)
            else:
                self._receive(ticket)

    def _take(self, ticket: _Ticket) -> ItemMessage:
        """Return the next message of the item whose turn it is."""
        message = ticket.messages.popleft()
        self._held -= len(message)
        kind, content = message[:1], pickle.loads(memoryview(message)[1:])  # noqa: S301  of a process of this pool
        if kind == _ERROR:
            raise content
        if kind == _LAST:
            self._leave()
        return ItemMessage(ticket.item, content, kind == _LAST)

    def _leave(self) -> None:
        """Take note that the item whose turn it is has sent all."""
        self._ahead -= self._order.popleft().ends

    def _dispatch(self, waiting: Iterator[Sequence[object]]) -> None:
        """Give idle processes their next task."""
        while True:
            idle = next((each for each in self._processes if not each.tickets), None)
            if idle is None and len(self._processes) >= self._jobs:
                return
            if self._again:
                tickets = [self._again.popleft()]
            elif self._order and (self._held >= HELD_BYTES or self._ahead >= self._jobs * _AHEAD):
                return
            else:
                items = next(waiting, None)
                if items is None:
                    return
                tickets = [_Ticket(item, ends=place == len(items)) for place, item in enumerate(items, 1)]
                self._order.extend(tickets)
                self._ahead += 1
            if idle is None:
                idle = _Process(self._started, self._function, self._values)
                self._started += 1
                self._processes.append(idle)
            idle.send(tickets)

    def _receive(self, ticket: _Ticket) -> None:
        """Wait for messages: of all processes, or of the one whose turn it is where many messages wait."""
        heard = [each for each in self._processes if each.tickets]
        if self._held >= HELD_BYTES:
            # none, where its process died and no other one is free
            heard = [each for each in heard if each.tickets[0] is ticket] or heard
        ready = connection.wait([each.pipe for each in heard], _ALIVE_SECONDS)
        for each in heard:
            if each.pipe in ready or not (each.process.is_alive() or each.pipe.poll()):
                self._receive_from(each)

    def _receive_from(self, process: _Process) -> None:
        try:
            message = process.pipe.recv_bytes()
        except (EOFError, OSError):
            self._replace(process)
            return
        if message == _READY:
            process.ready = True
            return
        ticket = process.tickets[0]
        ticket.messages.append(message)
        self._held += len(message)
        if message[:1] != _MESSAGE:
            process.tickets.popleft()

    def _replace(self, process: _Process) -> None:
        """Take note that a process died; the items after the one that it died at are for another one.

        Raises:
            WorkerDied: it had not begun.
        """
        self._processes.remove(process)
        error = process.collect_exit()
        if not process.ready:
            raise WorkerDied(
                f"{error} before it began: a script that uses processes calls the library under "
                "'if __name__ == \"__main__\":'"
            )
        process.tickets.popleft().died = error
        self._again.extend(process.tickets)

    def close(self) -> None:
        """End the processes: those that wait for work by themselves, so that they write what they have printed."""
        processes, self._processes = self._processes, []
        working = any(each.tickets for each in processes)
        for each in processes:
            each.pipe.close()
        end_processes([each.process for each in processes], at_once=working)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end_processes(processes: Sequence[BaseProcess], *, at_once: bool = False) -> None:
    """End processes: one that does not end by itself is terminated, and then killed.

    Args:
        processes: of ``multiprocessing``.
        at_once: do not wait for them to end by themselves.
    """
    for end in ("terminate", "kill") if at_once else (None, "terminate", "kill"):
        until = time.monotonic() + _PATIENCE_SECONDS
        for process in processes:
            if end is not None and process.is_alive():
                getattr(process, end)()
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        if not any(process.is_alive() for process in processes):
            break
    for process in processes:
        # the system has not ended it yet
        with contextlib.suppress(ValueError):
            process.close()


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from a process that is being started: it inherits the mask, and ignores the signal later."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(function: str, values: bytes, pipe: Connection) -> None:
    """Work on tasks until the pipe ends; the target of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_watch_parent, name="webdataset-parent", daemon=True).start()
    # the parent is gone, or wants nothing more
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        pipe.send_bytes(_READY)
        tasks = _receive_tasks(pipe)
        items = (item for task in tasks for item in task)
        try:
            module, _, name = function.partition(":")
            work = getattr(importlib.import_module(module), name)(*pickle.loads(values))  # noqa: S301  of the parent
            for item in items:
                _send(pipe, _LAST, work(item, lambda message: _send(pipe, _MESSAGE, message)))
        except (EOFError, BrokenPipeError, ConnectionError):
            raise
        except BaseException as error:  # noqa: BLE001  it goes to the consumer, who raises it
            _send(pipe, _ERROR, make_portable(error))
            pipe.recv_bytes()


def _receive_tasks(pipe: Connection) -> Iterator[list[object]]:
    while True:
        yield pickle.loads(pipe.recv_bytes())  # noqa: S301  of the parent


def _send(pipe: Connection, kind: bytes, message: object) -> None:
    pipe.send_bytes(kind + pickle.dumps(message, 5))


def _watch_parent() -> None:
    """End this process with its parent."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def make_portable(error: BaseException, where: str | None = None) -> BaseException:
    """Return an error that can be pickled.

    Args:
        error: any.
        where: where it was raised; it becomes a note, with the traceback.
    """
    text = redact("".join(traceback.format_exception(error)))
    try:
        copied = pickle.loads(pickle.dumps(error))  # noqa: S301  what was just pickled here
        fits = type(copied) is type(error) and str(copied) == str(error)
    except Exception:  # noqa: BLE001  whatever a user's exception does when it is pickled
        fits = False
    found = error if fits else FlowError(f"a worker process failed: {describe_error(error)}")
    found.__cause__ = found.__context__ = None
    if where is not None:
        found.add_note(f"{where}:\n{text}")
    return found


def describe_exit(code: int | None) -> str:
    """Return how a process ended, in words.

    Args:
        code: its exit code; negative where a signal ended it, None where it still runs.
    """
    if code is None:
        return "closed its pipe and still runs"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the system does where memory is short" if name == "SIGKILL" else ""
    return f"was killed by {name} (exit code {code}{hint})"


def count_processors() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
