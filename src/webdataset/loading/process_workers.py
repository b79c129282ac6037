"""The workers of a loader as processes (POSIX only).

Theory. Batches are made in memory files without a name (memfd): every worker maps the same file and writes its rows
there, and the consumer's arrays are that memory. Descriptors go through the workers' pipes. So nothing in /dev/shm can
be left over or too small, and the memory is freed with the last process that maps it, however that ends. The consumer
waits for the worker that its next window needs: it is woken once, by what it waits for. A worker that dies closes its
pipe: the consumer knows at once where it waits for that one, or else within two seconds.
"""

import contextlib
import math
import multiprocessing
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import NoReturn, cast

from webdataset.core.errors import (
    FlowError,
    UsageError,
    WorkerDied,
    WorkerTimeout,
    describe_error,
    shorten_pickling_error,
)
from webdataset.core.optional_imports import finish_imports, loaded_module
from webdataset.core.process_pool import describe_exit, end_processes
from webdataset.core.redaction import redact
from webdataset.flow.explain import format_function
from webdataset.flow.pickling import pickle_by_value
from webdataset.flow.pipeline import DataPipeline
from webdataset.loading import windows
from webdataset.loading.ipc import PartReceiver, pack_credits
from webdataset.loading.message_pipe import (
    MessagePipe,
    SharedMemoryError,
    frame_message,
    share_memory,
)
from webdataset.loading.partition import DatasetAdapter, EpochStart
from webdataset.loading.shared_memory import PAGE_BYTES, BatchLayout, BlockPool, MemoryBlock, WorkerProgressPage
from webdataset.loading.windows import WorkerPool
from webdataset.loading.worker import WindowCredit, WindowPart
from webdataset.loading.worker_process import WorkerConfig, run_worker

# each costs a descriptor; a consumer that keeps more batches than these gets copies
_MOST_BLOCKS = 64
# how often it is looked whether workers live
_ALIVE_SECONDS = 1.0
# how often it is looked whether a full pipe is full no more
_FULL_SECONDS = 0.01
# for a process to end by itself, and again after SIGTERM
_PATIENCE_SECONDS = 2.0


class ProcessWorkers(WorkerPool):
    """Workers that are processes; they live until the worker pool is closed.

    Args:
        origin: the dataset.
        span: indices in a window.
        workers: how many.
        start_method: ``fork``, ``forkserver`` or ``spawn``; None is Python's choice.
        timeout_seconds: a worker that the program waits for is killed when it makes no sample for so long; None: never.

    Raises:
        UsageError: this system has no such start method, or this process may have no children.
        WorkerDied: a worker could not be started.
    """

    # each message costs two system calls, and often a change of processes
    groups_credits = True

    def __init__(
        self,
        origin: DatasetAdapter,
        span: int,
        workers: int,
        start_method: str | None,
        timeout_seconds: float | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise UsageError("mode='processes' needs descriptors that can be sent: on Windows, use mode='threads'")
        super().__init__(workers)
        self._layout_number = self._block_number = 0
        self._ready: deque[WindowPart] = deque()
        self._pipes = select.poll()
        self._numbers: dict[int, int] = {}
        self._receivers: list[PartReceiver] = []
        self._processes: list[BaseProcess] = []
        self._boards: list[WorkerProgressPage] = []
        self._timeout_seconds = timeout_seconds
        # a worker that sends nothing, the index of its last sample, for how long, and when that was seen last
        self._silent: tuple[int, int | None, float, float] | None = None
        try:
            self._start(origin, span, _choose_context(start_method))
        except (OSError, EOFError) as error:  # no process, memory or descriptor is left, or it was killed at once
            self.close()
            raise WorkerDied(
                f"a worker process of {workers} could not be started ({describe_error(error)}): see to ulimit -u, "
                "ulimit -n and memory; iterate again to try once more"
            ) from error
        except BaseException:  # raised again, with no process left over
            self.close()
            raise

    def _start(self, origin: DatasetAdapter, span: int, context: SpawnContext) -> None:
        forked = context.get_start_method() == "fork"
        origin = origin if forked else _PickledAdapter(origin)  # type: ignore[assignment]
        for number in range(self.workers):
            ours, theirs = context.Pipe()
            pipe = MessagePipe(ours, _ALIVE_SECONDS)
            self._receivers.append(PartReceiver(pipe, self.workers))
            others = [each.pipe for each in self._receivers] if forked else []
            duty = WorkerConfig(origin, span, number, self.workers, theirs, others, loaded_module("torch") is not None)
            process = context.Process(target=run_worker, args=(duty,), name=f"webdataset-loader-{number}", daemon=True)
            try:
                if forked:
                    finish_imports()
                process.start()
            except UsageError as error:
                # the dataset cannot be pickled: pickle has added its notes to our error, too
                shorten_pickling_error(error)
                raise
            finally:
                theirs.close()
            self._processes.append(process)
            self._pipes.register(pipe, select.POLLIN)
            self._numbers[pipe.fileno()] = number
        self._attach_progress_pages()

    def _attach_progress_pages(self) -> None:
        """Give the workers a page to note on what they read."""
        size = self.workers * PAGE_BYTES
        with share_memory(size) as (descriptor, shared):
            memory = MemoryBlock(0, shared).lend()
            self._boards = [WorkerProgressPage(memory, number) for number in range(self.workers)]
            self._send_all(_pack_order("board", size), descriptor)

    # -- orders

    def _send_all(self, order: bytes, descriptor: int | None = None) -> None:
        for number in range(self.workers):
            self._send(number, order, descriptor)

    def _send(self, number: int, order: bytes, descriptor: int | None = None) -> None:
        """Send an order. Who waits for a full pipe reads meanwhile: the worker may be waiting for that."""
        pipe = self._receivers[number].pipe
        frame = memoryview(frame_message(order))
        until = time.monotonic() + windows.SILENCE_SECONDS
        try:
            while frame := frame[pipe.send_now(frame) :]:
                until = self._wait_for_room(number, until)
            if descriptor is not None:
                while not pipe.poll(writing=True):
                    until = self._wait_for_room(number, until)
                pipe.send_descriptor(descriptor)
        except ConnectionError:
            self._report_death(number)
        except BaseException:  # raised again, with no half message left
            self.close()
            raise

    def _wait_for_room(self, number: int, until: float) -> float:
        """Read what comes meanwhile; after some time, warn. Return until when not to warn again."""
        self._read_pipes(_FULL_SECONDS)
        if self._timeout_seconds is not None:
            self._check_progress(number, self._timeout_seconds)
        if (now := time.monotonic()) < until:
            return until
        self.warn_of_silence(number, "no order was taken by")
        return now + windows.SILENCE_SECONDS

    def begin(self, beginning: EpochStart) -> None:
        """Start an epoch."""
        self._ready.clear()
        self._send_all(_pack_order("begin", beginning))

    def stop(self) -> None:
        """Give up the epoch."""
        if self.living:
            self._send_all(_pack_order("stop"))

    def grant(self, grants: Sequence[WindowCredit], worker: int | None = None) -> None:
        """Let a worker, or all, write some windows."""
        message = pack_credits(grants)
        for number in range(self.workers) if worker is None else (worker,):
            freed = self._receivers[number].release_segments()
            self._send(number, pack_credits(grants, freed) if freed else message)

    def blocks(self, layout: BatchLayout) -> BlockPool:
        """Return memory that all workers map."""
        self._layout_number += 1
        number = self._layout_number
        self._send_all(_pack_order("layout", number, layout))
        return BlockPool(layout.size_bytes, lambda _: self._share_blocks(layout.size_bytes, number), most=_MOST_BLOCKS)

    def _share_blocks(self, size: int, layout_number: int) -> MemoryBlock:
        number, self._block_number = self._block_number, self._block_number + 1
        with share_memory(size) as (descriptor, shared):
            block = MemoryBlock(number, shared)
            self._send_all(_pack_order("block", number, size, layout_number), descriptor)
            if self.publish is not None:
                self.publish(block, descriptor)
        return block

    # -- parts

    def receive(self, timeout_seconds: float | None = None, worker: int | None = None) -> WindowPart | None:
        """Wait for a part; return None after the timeout (None waits as long as it takes).

        Args:
            timeout_seconds: kept to the second where a worker is named.
            worker: wait for this one; once a second, read what the others have sent, and look whether all live.

        Raises:
            WorkerDied: a worker process has ended.
            WorkerTimeout: the named one was killed, since it makes no samples.
        """
        until = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._ready:
            if worker is None:
                self._read_pipes(min(_ALIVE_SECONDS, max(0.0, until - time.monotonic())))
            elif not self._receive_from(worker):
                # all that the others have sent: a death is known by the end of a pipe
                while self._read_pipes(0.0):
                    pass
                if self._timeout_seconds is not None and not self._ready:
                    self._check_progress(worker, self._timeout_seconds)
            if not self._ready and time.monotonic() >= until:
                return None
        return self._ready.popleft()

    def receive_first(self, timeout_seconds: float, late: int) -> WindowPart | None:
        """Wait for the first part that comes, of any worker; return None after the timeout.

        Args:
            timeout_seconds: of waiting.
            late: the worker that holds the others up.

        Raises:
            WorkerDied: a worker process has ended.
            WorkerTimeout: the late one was killed, since it makes no samples.
        """
        until = time.monotonic() + timeout_seconds
        part = None
        while part is None and (left := until - time.monotonic()) > 0:
            part = self.receive(min(_ALIVE_SECONDS, left))
            if part is None and self._timeout_seconds is not None:
                self._check_progress(late, self._timeout_seconds)
        return part

    def _read_pipes(self, seconds: float) -> bool:
        """Read what there is, or comes in time; return whether there was something."""
        found = self._pipes.poll(math.ceil(seconds * 1000))
        for descriptor, _ in found:
            self._receive_from(self._numbers[descriptor])
        if not found:
            # a process that a dead worker's functions have started can hold its pipe open
            for number, process in enumerate(self._processes):
                if not process.is_alive() and not self._receivers[number].pipe.poll():
                    self._report_death(number)
        return bool(found)

    def _receive_from(self, number: int) -> bool:
        """Read a message of a worker; return whether a part has come in time."""
        receiver = self._receivers[number]
        try:
            part = receiver.receive()
        except (EOFError, ConnectionError):
            self._report_death(number)
        except BaseException as error:  # raised again, with no half message left
            # A signal's handler can raise anything in the midst of a message, TimeoutError too. What cannot be
            # unpickled was a whole message, unless it speaks of memory that is not there.
            if not isinstance(error, FlowError) or isinstance(error, SharedMemoryError):
                self.close()
            raise
        else:
            if part is not None:
                self._ready.append(part)
                self._silent = None
                return True
        return False

    def _check_progress(self, worker: int, timeout_seconds: float) -> None:
        """Kill a worker that has sent nothing and made no sample for too long."""
        now, index = time.monotonic(), self._boards[worker].load()[0]
        if self._silent is None or self._silent[:2] != (worker, index):
            self._silent = worker, index, 0.0, now
            return
        # all processes may have been stopped meanwhile, by Ctrl-Z or a batch system
        seconds = self._silent[2] + min(now - self._silent[3], 2 * _ALIVE_SECONDS)
        self._silent = worker, index, seconds, now
        if seconds >= timeout_seconds:
            self._kill(worker)

    def _kill(self, worker: int) -> NoReturn:
        """Kill a worker that is silent, and say so."""
        self._processes[worker].kill()
        self._report_death(worker, self._timeout_seconds)

    def _report_death(self, number: int, silent_seconds: float | None = None) -> NoReturn:
        """End the others, and say what happened.

        Args:
            number: of the worker.
            silent_seconds: it was killed since it made no sample for so long; None: it ended by itself.
        """
        process = self._processes[number]
        process.join(_PATIENCE_SECONDS)
        code, pid = process.exitcode, process.pid
        index, key, url = self._boards[number].load() if self._boards else (None, "", "")
        self.close()
        kind, ending = WorkerDied, describe_exit(code)
        if silent_seconds is not None:
            kind, ending = WorkerTimeout, f"made no sample for {silent_seconds:g} seconds (timeout=) and was killed"
        error = kind(
            f"worker {number} of {self.workers} (process {pid}) {ending} {_describe_index(index)}; "
            "iterate again to start new workers, and if the dataset is elastic, first "
            "load_state_dict(loader.state_dict()): then the epoch continues after the last batch. "
            "Loader(max_restarts=2) does both",
            url=url or None,
            key=key or None,
        )
        error.worker, error.exit_code = number, code
        try:
            raise error
        finally:
            # its traceback refers to this frame, and so to all memory of these workers
            del error

    def describe_position(self, worker: int) -> str:
        """Return words on what a worker read last, and which process it is."""
        index, key, url = self._boards[worker].load()
        read = f"{key!r} " * bool(key) + f"of {redact(url)} " * bool(url)
        return f" (process {self._processes[worker].pid}, {read}{_describe_index(index)})"

    def close(self) -> None:
        """End the processes; one that does not listen is terminated, and then killed."""
        if not self.living:
            return
        self._living = False
        order = memoryview(frame_message(_pack_order("end")))
        for receiver in self._receivers:
            with contextlib.suppress(OSError):
                receiver.pipe.send_now(order)
        try:
            end_processes(self._processes)
        except BaseException:  # raised again: Ctrl-C, with no process left over that is stopped
            for process in self._processes:
                # it was closed
                with contextlib.suppress(ValueError):
                    process.kill()
            raise
        finally:
            for receiver in self._receivers:
                receiver.pipe.close()
            self._processes = []


def _pack_order(*order: object) -> bytes:
    return bytes(ForkingPickler.dumps(order))


def _choose_context(start_method: str | None) -> SpawnContext:
    if multiprocessing.current_process().daemon:
        raise UsageError(
            "this process is a worker itself (of a torch DataLoader, say) and may have no children: use "
            "workers=0 or mode='threads' here"
        )
    try:
        # a type that knows Process: all contexts have it
        return cast("SpawnContext", multiprocessing.get_context(start_method))
    except ValueError as error:
        known = ", ".join(multiprocessing.get_all_start_methods())
        raise UsageError(f"start_method={start_method!r}: this system has {known}") from error


class _PickledAdapter:
    """An origin that is pickled with lambdas and local functions."""

    def __init__(self, origin: DatasetAdapter) -> None:
        self.origin = origin

    def __reduce__(self) -> tuple[object, ...]:
        try:
            return _restore_adapter, (pickle_by_value(self.origin),)
        except Exception as error:  # whatever pickling a user's object raises
            stage = _find_unpicklable(self.origin)
            raise UsageError(
                f"the dataset cannot be sent to worker processes, since {stage} cannot be pickled: "
                f"{shorten_pickling_error(error)}. Make what it holds (a lock, an open file, a "
                "connection) in the worker, when the function is first called; "
                "or use mode='threads', or start_method='fork'"
            ) from error


def _find_unpicklable(origin: object) -> str:
    """Return the stage of a dataset that cannot be pickled, in words."""
    for dataset in (part for part in vars(origin).values() if isinstance(part, DataPipeline)):
        for number, stage in enumerate(dataset.pipeline):
            try:
                pickle_by_value(stage)
            except Exception:  # noqa: BLE001  whatever pickling a user's object raises
                given = [part for part in getattr(stage, "args", ()) if callable(part)]
                about = f" with {format_function(given[0])}" if given else ""
                return f"its stage {number}, {format_function(getattr(stage, 'f', stage)).lstrip('_')}{about},"
    return "it"


def _restore_adapter(pickled: bytes) -> DatasetAdapter:
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    adapter: DatasetAdapter = cloudpickle.loads(pickled)
    return adapter


def _describe_index(index: int | None) -> str:
    return "before its first sample" if index is None else f"after the sample of index {index}"
