"""Runs a worker in a process of its own.

The process gets orders through a pipe and sends parts. It ends without a word when it is told to, when its pipe breaks,
or when its parent is gone. Ctrl-C is its parent's business.
"""

import os
import pickle
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from types import FrameType
from typing import NoReturn

import numpy as np

from webdataset.core import distributed
from webdataset.core.errors import FlowError
from webdataset.core.optional_imports import loaded_module
from webdataset.core.process_pool import make_portable
from webdataset.core.seeds import hash_seed
from webdataset.loading.ipc import PartSender, unpack_credits
from webdataset.loading.message_pipe import MessagePipe, SharedMemoryError
from webdataset.loading.partition import DatasetAdapter, EpochStart
from webdataset.loading.rows import RowAllocator
from webdataset.loading.shared_memory import Array, BatchLayout, WorkerProgressPage
from webdataset.loading.worker import EpochCancelled, EpochWork, WindowCredit, WindowPart, WorkerLoop, WorkerShare

# how often a worker looks for orders while it works
_LOOK_SECONDS = 0.05
# how often it looks for its parent
_PARENT_SECONDS = 1.0
# to notice by its pipe that the parent is gone, and to close what is open
_ALONE_SECONDS = 1.5
# for the same when it was told
_GRACE_SECONDS = 2.0


@dataclass
class WorkerConfig:
    """What a worker process is told when it starts; pickled under spawn and forkserver.

    Args:
        origin: the dataset.
        span: indices in a window.
        number: the worker's.
        workers: how many there are.
        pipe: to the consumer.
        others: the consumer's ends of pipes, which a fork has inherited.
        torch: the consumer has loaded torch, so that the dataset may draw from its generators.
    """

    origin: DatasetAdapter
    span: int
    number: int
    workers: int
    pipe: Connection
    others: list[MessagePipe]
    torch: bool = False


def run_worker(duty: WorkerConfig) -> None:
    """Work until there is nothing to do any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    for pipe in duty.others:
        pipe.close()
    threading.Thread(target=_watch_parent, name="webdataset-parent", daemon=True).start()
    distributed.thread_context.worker = duty.number, duty.workers
    try:
        WorkerProcess(duty).work()
    except (EOFError, OSError, SystemExit):  # the consumer is gone, or wants nothing more
        # the pipeline is closed after this, and not in the midst of it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  what signal handlers get
    sys.exit(0)


def _watch_parent() -> None:
    """End this process soon after its parent."""
    parent = parent_process()
    if parent is None:
        return
    here = os.getppid()
    while os.getppid() == here and not connection.wait([parent.sentinel], _PARENT_SECONDS):
        pass
    # what interrupts a pipeline that is being closed is lost, and printed
    time.sleep(_ALONE_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


class WorkerProcess:
    """The worker."""

    def __init__(self, duty: WorkerConfig) -> None:
        self._duty = duty
        self._pipe = MessagePipe(duty.pipe)
        heard = select.poll()
        heard.register(self._pipe, select.POLLIN)
        self._poll = heard.poll
        self._sender = PartSender(self._pipe)
        self._board: WorkerProgressPage | None = None
        self._layouts: dict[int, BatchLayout] = {}
        self._blocks: dict[int, tuple[BatchLayout, list[Array]]] = {}
        self._grants: list[WindowCredit] = []
        self._beginning: EpochStart | None = None
        self._stopped = False
        self._allocator = RowAllocator()
        self._share: WorkerShare | None = None

    def work(self) -> None:
        """Work on one epoch after the other."""
        while True:
            try:
                self._receive_order()
            except SharedMemoryError as error:  # without the block, samples travel beside it
                self._send_failure(error, 0)
            if self._beginning is not None:
                beginning, self._beginning = self._beginning, None
                self._stopped = False
                self._epoch(beginning)

    def _receive_order(self) -> None:
        """Wait for an order and take note of it."""
        message = self._pipe.receive()
        found = unpack_credits(message)
        if found is not None:
            granted, freed = found
            for segment in freed:
                self._sender.release_segment(segment)
            for credit in granted:
                credit.layout, credit.columns = self._blocks.get(credit.block, (None, []))
            self._grants += granted
            return
        kind, *rest = pickle.loads(message)  # noqa: S301  our own consumer's
        if kind == "begin":
            (self._beginning,) = rest
            self._grants.clear()
        elif kind == "stop":
            self._stopped = True
        elif kind == "layout":
            self._blocks.clear()
            self._layouts = {rest[0]: rest[1]}
        elif kind == "block":
            number, size, layout_number = rest
            block = self._pipe.receive_block(number, size)
            layout = self._layouts[layout_number]
            self._blocks[number] = layout, layout.views(block.lend())
        elif kind == "board":
            self._board = WorkerProgressPage(self._pipe.receive_block(0, rest[0]).lend(), self._duty.number)
        elif kind == "end":
            sys.exit(0)

    def _receive_orders(self) -> None:
        while self._poll(0):
            self._receive_order()

    def _epoch(self, beginning: EpochStart) -> None:
        duty = self._duty
        _seed_generators(
            hash_seed("loader", beginning.seed, beginning.epoch, beginning.place.rank, duty.number), torch=duty.torch
        )
        sent = 0
        loop: WorkerLoop | None = None
        try:
            share = self._share = duty.origin.share(beginning, duty.number, duty.workers)
            watch, page = self._watch_samples(), self._board
            work = EpochWork(share, duty.span, beginning.start, duty.number, self._leave, watch, self._allocator, page)
            loop = WorkerLoop(work)
            for part in loop.parts():
                sent = part.window
                self._send(part)
        except (EOFError, OSError, SystemExit) as error:
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError | ConnectionError):
                self._send_failure(error, sent)
                return
            raise
        except BaseException as error:  # noqa: BLE001  user code: it goes to the consumer, who raises it
            self._send_failure(error, sent if loop is None else max(sent, loop.window))

    def _send_failure(self, error: BaseException, window: int) -> None:
        self._send(WindowPart(self._duty.number, window, over=True, busy=self._allocator.busy(), error=error))

    def _send(self, part: WindowPart) -> None:
        if part.error is not None:
            part.error = make_portable(part.error, f"in worker {self._duty.number} (process {os.getpid()})")
        self._sender.send(part)

    def _leave(self, window: int) -> WindowCredit:
        # a pipe full of orders would let the consumer wait; and they name the segments that are free
        self._receive_orders()
        while True:
            while self._grants:
                grant = self._grants.pop(0)
                if grant.window == window:
                    return grant
            if self._stopped:
                raise EpochCancelled
            self._receive_order()

    def _watch_samples(self) -> Callable[[int, object], None]:
        """Return what is called with each sample: it says what was read last, and looks for orders now and then."""
        page, reading, monotonic = self._board, b"", time.monotonic
        if page is None:
            raise FlowError("a worker has no page of progress")
        # the first sample of an epoch asks what is read
        page.look_again = 0.0

        def report_position(index: int, sample: object) -> None:
            nonlocal reading
            now = monotonic()
            if now <= page.look_again:
                page.write(index, sample, reading)
                return
            if self._share is not None:
                reading = self._share.reading().encode("utf-8", "replace")
            page.write(index, sample, reading)
            page.look_again = now + _LOOK_SECONDS
            self._receive_orders()
            if self._stopped:
                raise EpochCancelled

        return report_position


def _seed_generators(seed: int, *, torch: bool) -> None:
    """Give this worker global generators of its own: forked ones would all draw the same.

    Args:
        seed: 64 bits.
        torch: seed its generator also where this process has not loaded it yet: a function may do that later.
    """
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  what users' functions may draw from
    if torch or loaded_module("torch") is not None:
        from webdataset.codecs.torch_codecs import seed_torch_worker  # noqa: PLC0415  where the program uses torch

        seed_torch_worker(seed)
