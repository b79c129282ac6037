"""A worker process: what runs in it.

Flows in: orders through a pipe. Flows out: parts. It ends when it is told to, when its pipe breaks, or when its parent
is gone, and says nothing then. Ctrl-C is its parent's business.
"""

import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from typing import Any, NoReturn

import numpy as np

from webdataset.ground import topology
from webdataset.ground.errors import FlowError, said
from webdataset.ground.extras import loaded
from webdataset.ground.redaction import redacted
from webdataset.ground.seeds import fold

from .board import Board
from .layout import Layout
from .parcels import NotShared, Sender, receive_block
from .parts import Filling, GivenUp, Grant, Part, Share, Work
from .rows import Lender
from .shares import Beginning, Origin

_LOOK_SECONDS = 0.05  # how often a worker looks for orders while it works
_PARENT_SECONDS = 1.0  # how often it looks for its parent
_ALONE_SECONDS = 1.5  # to notice by its pipe that the parent is gone, and to close what is open
_GRACE_SECONDS = 2.0  # for the same when it was told


@dataclass
class Duty:
    """What a worker process is told when it starts; pickled under spawn and forkserver.

    Args:
        origin: the dataset.
        span: indices in a window.
        number: the worker's.
        workers: how many there are.
        pipe: to the consumer.
        others: the consumer's ends of pipes, which a fork has inherited.
    """

    origin: Origin
    span: int
    number: int
    workers: int
    pipe: Any
    others: list[Any]


def run(duty: Duty) -> None:
    """Work until there is nothing to do any more.

    Args:
        duty: what to do.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminated)
    for pipe in duty.others:
        pipe.close()
    threading.Thread(target=_watch_parent, name="webdataset-parent", daemon=True).start()
    topology.standing.worker = duty.number, duty.workers
    try:
        Child(duty).work()
    except (EOFError, OSError, SystemExit):  # the consumer is gone, or wants nothing more
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pipeline is closed after this, and not in the midst of it


def _terminated(number: int, frame: Any) -> NoReturn:  # noqa: ARG001  what signal handlers get
    sys.exit(0)


def _watch_parent() -> None:
    """End this process soon after its parent."""
    parent = parent_process()
    if parent is None:
        return
    here = os.getppid()
    while os.getppid() == here and not connection.wait([parent.sentinel], _PARENT_SECONDS):
        pass
    time.sleep(_ALONE_SECONDS)  # what interrupts a pipeline that is being closed is lost, and printed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


class Child:
    """The worker.

    Args:
        duty: what to do.
    """

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._pipe = duty.pipe
        heard = select.poll()
        heard.register(duty.pipe, select.POLLIN)
        self._poll = heard.poll
        self._sender = Sender(duty.pipe)
        self._board: Board | None = None
        self._layouts: dict[int, Layout] = {}
        self._blocks: dict[int, tuple[Layout, list[Any]]] = {}
        self._grants: list[Grant] = []
        self._beginning: Beginning | None = None
        self._running = self._stopped = False
        self._lender = Lender()
        self._looked = 0.0
        self._share: Share | None = None
        self._reading = b""

    def work(self) -> None:
        """Work on one epoch after the other."""
        while True:
            try:
                self._hear()
            except NotShared as error:  # without the block, samples travel beside it
                self._failed(error, 0)
            if self._beginning is not None:
                beginning, self._beginning = self._beginning, None
                self._running, self._stopped = True, False
                self._epoch(beginning)
                self._running = False

    def _hear(self) -> None:
        """Wait for an order and take note of it."""
        kind, *rest = self._pipe.recv()
        if kind == "begin":
            (self._beginning,) = rest
            self._grants.clear()
        elif kind == "grant":
            window, number, eager = rest
            layout, columns = self._blocks.get(number, (None, []))
            self._grants.append(Grant(window, number, layout, columns, eager))
        elif kind == "stop":
            self._stopped = True
        elif kind == "free":
            self._sender.freed(rest[0])
        elif kind == "layout":
            self._blocks.clear()
            self._layouts = {rest[0]: rest[1]}
        elif kind == "block":
            number, size, layout_number = rest
            block = receive_block(self._pipe, number, size)
            layout = self._layouts[layout_number]
            self._blocks[number] = layout, layout.views(block.lend())
        elif kind == "board":
            self._board = Board(receive_block(self._pipe, 0, rest[0]).lend(), self._duty.number)
        elif kind == "end":
            sys.exit(0)

    def _hear_all(self) -> None:
        while self._poll(0):
            self._hear()

    def _epoch(self, beginning: Beginning) -> None:
        duty = self._duty
        _seed(fold("loader", beginning.seed, beginning.epoch, beginning.place.rank, duty.number))
        sent = 0
        filling: Filling | None = None
        try:
            share = self._share = duty.origin.share(beginning, duty.number, duty.workers)
            work = Work(share, duty.span, beginning.start, duty.number, self._leave, self._look, self._lender)
            filling = Filling(work)
            for part in filling.parts():
                sent = part.window
                self._send(part)
        except (EOFError, OSError, SystemExit) as error:
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError | ConnectionError):
                self._failed(error, sent)
                return
            raise
        except BaseException as error:  # noqa: BLE001  user code: it goes to the consumer, who raises it
            self._failed(error, sent if filling is None else max(sent, filling.window))

    def _failed(self, error: BaseException, window: int) -> None:
        self._send(Part(self._duty.number, window, over=True, busy=self._lender.busy(), error=error))

    def _send(self, part: Part) -> None:
        if part.error is not None:
            part.error = _portable(part.error, self._duty.number)
        self._sender.send(part)

    def _leave(self, window: int) -> Grant:
        while True:
            while self._grants:
                grant = self._grants.pop(0)
                if grant.window == window:
                    return grant
            if self._stopped:
                raise GivenUp
            self._hear()
            self._hear_all()  # a pipe full of orders would let the consumer wait

    def _look(self, index: int, sample: Any) -> None:
        """Say what was read last, and look for orders now and then."""
        now = time.monotonic()
        due = now - self._looked > _LOOK_SECONDS
        if due and self._share is not None:
            self._reading = self._share.reading().encode("utf-8", "replace")
        if self._board is not None:
            self._board.write(index, sample, self._reading)
        if due:
            self._looked = now
            self._hear_all()
            if self._stopped:
                raise GivenUp


def _seed(seed: int) -> None:
    """Give this worker global generators of its own: forked ones would all draw the same."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  what users' functions may draw from
    if loaded("torch") is not None:
        from .torch_batches import settle  # noqa: PLC0415  torch is loaded already, this module not

        settle(seed)


def _portable(error: BaseException, worker: int) -> BaseException:
    """Return an error that can be pickled, with a note of where it was raised."""
    import pickle  # noqa: PLC0415  only where something failed

    text = redacted("".join(traceback.format_exception(error)))
    try:
        copied = pickle.loads(pickle.dumps(error))  # noqa: S301  what was just pickled here
        fits = type(copied) is type(error) and str(copied) == str(error)
    except Exception:  # noqa: BLE001  whatever a user's exception does when it is pickled
        fits = False
    found = error if fits else FlowError(f"a worker process failed: {said(error)}")
    found.__cause__ = found.__context__ = None
    found.add_note(f"in worker {worker} (process {os.getpid()}):\n{text}")
    return found
