"""The workers of a loader as processes.

Theory. Batches are made in files in memory that have no name (memfd): every worker maps the same file and writes its
rows there, and the consumer's arrays are that memory. Descriptors go through the workers' pipes. So there is nothing in
/dev/shm to be left behind or to be too small, and the memory is free when the last process that maps it is gone,
however it ended. A worker that dies closes its pipe: the consumer knows at once, or, where something else holds the
pipe open, within a second or two.

Flows in: an origin and its beginning. Flows out: parts. POSIX only.
"""

import contextlib
import mmap
import multiprocessing
import os
import select
import selectors
import signal
import sys
import time
from collections import deque
from typing import Any

from webdataset.flow.explaining_values import function
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.travel import packed
from webdataset.ground.errors import UsageError, WorkerDied, said
from webdataset.ground.redaction import redacted

from .board import Board
from .buffers import Block, Blocks, shared_file
from .child import Duty, run
from .crews import Crewed
from .layout import Layout
from .parcels import NotShared, Receiver, send_block, sharing
from .parts import Grant, Part
from .shares import Beginning, Origin

_MOST_BLOCKS = 64  # each costs a descriptor; a consumer that keeps more batches than these gets copies
_ALIVE_SECONDS = 1.0  # how often it is looked whether workers live
_FULL_SECONDS = 0.01  # how often it is looked whether a full pipe is full no more
_PATIENCE_SECONDS = 2.0  # for a process to end by itself, and again after SIGTERM


class Processes(Crewed):
    """Workers that are processes; they live until the crew is closed.

    Args:
        origin: the dataset.
        span: indices in a window.
        workers: how many.
        start_method: ``fork``, ``forkserver`` or ``spawn``; None is Python's choice.

    Raises:
        UsageError: this system has no such start method, or this process may have no children.
    """

    def __init__(self, origin: Origin, span: int, workers: int, start_method: str | None) -> None:
        if sys.platform == "win32":
            raise UsageError("mode='processes' needs descriptors that can be sent: on Windows, use mode='threads'")
        super().__init__()
        self.workers = workers
        self._layout_number = self._block_number = 0
        self._ready: deque[Part] = deque()
        self._selector = selectors.DefaultSelector()
        self._polls: list[Any] = []
        self._receivers: list[Receiver] = []
        self._processes: list[Any] = []
        self._boards: list[Board] = []
        try:
            self._start(origin, span, _context(start_method))
        except BaseException:  # raised again, with no process left behind
            self.close()
            raise

    def _start(self, origin: Origin, span: int, context: Any) -> None:
        forked = context.get_start_method() == "fork"
        origin = origin if forked else _Travelling(origin)  # type: ignore[assignment]
        for number in range(self.workers):
            ours, theirs = context.Pipe()
            self._receivers.append(Receiver(ours, self.workers))
            self._polls.append(select.poll())
            self._polls[-1].register(ours, select.POLLOUT)
            others = [each.pipe for each in self._receivers] if forked else []
            duty = Duty(origin, span, number, self.workers, theirs, others)
            process = context.Process(target=run, args=(duty,), name=f"webdataset-loader-{number}", daemon=True)
            try:
                process.start()
            finally:
                theirs.close()
            self._processes.append(process)
            self._selector.register(ours, selectors.EVENT_READ, number)
        self._hang_boards()

    def _hang_boards(self) -> None:
        """Give the workers a page to note on what they read."""
        size = Board.size_bytes(self.workers)
        with sharing():
            descriptor = shared_file(size)
        try:
            with sharing():
                memory = Block(0, mmap.mmap(descriptor, size)).lend()
            self._boards = [Board(memory, number) for number in range(self.workers)]
            self._send_all(("board", size), descriptor)
        finally:
            os.close(descriptor)

    # -- orders

    def _send_all(self, order: Any, descriptor: int | None = None) -> None:
        for number in range(self.workers):
            self._send(number, order, descriptor)

    def _send(self, number: int, order: Any, descriptor: int | None = None) -> None:
        """Send an order. Who waits for a full pipe reads meanwhile: the worker may be waiting for that."""
        pipe = self._receivers[number].pipe
        while not self._polls[number].poll(0):
            self._look(_FULL_SECONDS)
        try:
            if descriptor is None:
                pipe.send(order)
            else:
                send_block(pipe, order, descriptor)
        except OSError:
            self._died(number)
        except BaseException as error:  # raised again, with no half message left
            self._interrupted(error)
            raise

    def _interrupted(self, error: BaseException) -> None:
        """End workers whose pipes may hold half a message (Ctrl-C came), or speak of memory that is not there."""
        if not isinstance(error, Exception) or isinstance(error, NotShared):
            self.close()

    def begin(self, beginning: Beginning) -> None:
        """Start an epoch."""
        self._ready.clear()
        self._send_all(("begin", beginning))

    def stop(self) -> None:
        """Give up the epoch."""
        if self.living:
            self._send_all(("stop",))

    def grant(self, grant: Grant) -> None:
        """Let all workers write the window."""
        for number, receiver in enumerate(self._receivers):
            while (freed := receiver.freed()) is not None:
                self._send(number, ("free", freed))
        self._send_all(("grant", grant.window, grant.block, grant.eager))

    def blocks(self, layout: Layout) -> Blocks:
        """Return memory that all workers map."""
        self._layout_number += 1
        number = self._layout_number
        self._send_all(("layout", number, layout))
        return Blocks(layout.size_bytes, lambda _: self._shared(layout.size_bytes, number), most=_MOST_BLOCKS)

    def _shared(self, size: int, layout_number: int) -> Block:
        number, self._block_number = self._block_number, self._block_number + 1
        with sharing():
            descriptor = shared_file(size)
        try:
            with sharing():
                block = Block(number, mmap.mmap(descriptor, size))
            self._send_all(("block", number, size, layout_number), descriptor)
        finally:
            os.close(descriptor)
        return block

    # -- parts

    def receive(self, timeout_seconds: float | None = None) -> Part | None:
        """Wait for a part.

        Args:
            timeout_seconds: how long; None for as long as it takes.

        Returns:
            The part; None where the time is over.

        Raises:
            WorkerDied: a worker process has ended.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._ready:
            left = _ALIVE_SECONDS if until is None else min(_ALIVE_SECONDS, max(0.0, until - time.monotonic()))
            if not self._look(left) and until is not None and time.monotonic() >= until:
                return None
        return self._ready.popleft()

    def _look(self, seconds: float) -> bool:
        """Read what there is, or comes in time; return whether there was something."""
        found = self._selector.select(seconds)
        for key, _ in found:
            self._read(key.data)
        if not found:
            # a process that a dead worker's functions have started can hold its pipe open
            for number, process in enumerate(self._processes):
                if not process.is_alive() and not self._receivers[number].pipe.poll():
                    self._died(number)
        return bool(found)

    def _read(self, number: int) -> None:
        receiver = self._receivers[number]
        try:
            part = receiver.receive()
        except (EOFError, OSError):
            self._died(number)
        except BaseException as error:  # raised again, with no half message left
            self._interrupted(error)
            raise
        else:
            if part is not None:
                self._ready.append(part)

    def _died(self, number: int) -> None:
        """End the others, and say what happened.

        Raises:
            WorkerDied: always.
        """
        process = self._processes[number]
        process.join(_PATIENCE_SECONDS)
        code, pid = process.exitcode, process.pid
        index, key, url = self._boards[number].read() if self._boards else (None, "", "")
        self.close()
        error = WorkerDied(
            f"worker {number} of {self.workers} (process {pid}) {_ending(code)} {_where(index)}; "
            "iterate again to start new workers, from the state behind the last batch if the dataset is elastic",
            url=url or None,
            key=key or None,
        )
        error.worker, error.exit_code = number, code
        raise error

    def last_read(self, worker: int) -> str:
        """Return words on what a worker read last, and which process it is."""
        index, key, url = self._boards[worker].read()
        read = f"{key!r} " * bool(key) + f"of {redacted(url)} " * bool(url)
        return f" (process {self._processes[worker].pid}, {read}{_where(index)})"

    def close(self) -> None:
        """End the processes; one that does not listen is terminated, and then killed."""
        if not self.living:
            return
        self._living = False
        self._selector.close()
        for receiver in self._receivers:
            with contextlib.suppress(OSError):
                receiver.pipe.send(("end",))
        for end in (None, "terminate", "kill"):
            until = time.monotonic() + _PATIENCE_SECONDS
            for process in self._processes:
                if end is not None and process.is_alive():
                    getattr(process, end)()
            for process in self._processes:
                process.join(max(0.0, until - time.monotonic()))
            if not any(process.is_alive() for process in self._processes):
                break
        for receiver in self._receivers:
            receiver.pipe.close()
        for process in self._processes:
            with contextlib.suppress(ValueError):  # the system has not ended it yet
                process.close()
        self._processes = []


def _context(start_method: str | None) -> Any:
    if multiprocessing.current_process().daemon:
        raise UsageError(
            "this process is a worker itself (of a torch DataLoader, say) and may have no children: use "
            "workers=0 or mode='threads' here"
        )
    try:
        return multiprocessing.get_context(start_method)
    except ValueError as error:
        known = ", ".join(multiprocessing.get_all_start_methods())
        raise UsageError(f"start_method={start_method!r}: this system has {known}") from error


class _Travelling:
    """An origin that is pickled with lambdas and local functions."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _arrived, (packed(self.origin),)
        except Exception as error:  # whatever pickling a user's object raises
            stage = _unpicklable(self.origin)
            raise UsageError(
                f"the dataset cannot be sent to worker processes, since {stage} cannot be pickled: {said(error)}. Make "
                "what it holds (a lock, an open file, a connection) in the worker, when the function is first called; "
                "or use mode='threads', or start_method='fork'"
            ) from error


def _unpicklable(origin: Any) -> str:
    """Return the stage of a dataset that cannot be pickled, in words."""
    for dataset in (part for part in vars(origin).values() if isinstance(part, DataPipeline)):
        for number, stage in enumerate(dataset.pipeline):
            try:
                packed(stage)
            except Exception:  # noqa: BLE001  whatever pickling a user's object raises
                given = [part for part in getattr(stage, "args", ()) if callable(part)]
                about = f" with {function(given[0])}" if given else ""
                return f"its stage {number}, {function(getattr(stage, 'f', stage)).lstrip('_')}{about},"
    return "it"


def _arrived(parcel: bytes) -> Any:
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    return cloudpickle.loads(parcel)


def _ending(code: int | None) -> str:
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


def _where(index: int | None) -> str:
    return "before its first sample" if index is None else f"after the sample of index {index}"
