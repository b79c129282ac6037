"""One loader for several trainers on one host: every trainer receives every batch, without a copy.

Theory. The first trainer of a stream takes its lock and becomes the owner: a thread of it runs the loader
(:mod:`webdataset.serving.shared_server`). All trainers, the owner's own too, receive batches over a Unix socket as
descriptions of memory that they map. A trainer holds the state after the batch that it received last; so where the
owner ends, by ``close`` or by a kill, the first trainer to take the lock continues from its own state and the others
attach: each one continues with its next batch.

No batch is lost, and none comes twice, whichever process ends and when.
"""

import contextlib
import copy
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self, cast

from webdataset.core.distributed import worker_context
from webdataset.core.errors import FlowError, UsageError
from webdataset.core.logs import log
from webdataset.core.seeds import read_epoch
from webdataset.flow.elastic_state import check_state
from webdataset.flow.virtual_stream import warn_of_other_epoch
from webdataset.loading.batching import END
from webdataset.loading.columns import estimate_bytes
from webdataset.loading.loader_progress import LoaderIterator
from webdataset.loading.stats import LoaderStats
from webdataset.serving.shared_batches import ReceivedBatches
from webdataset.serving.shared_server import VERSION, SharedServer, StreamPolicy, make_stream_loader, rebuild_error
from webdataset.serving.unix_channel import (
    ChannelError,
    Message,
    StreamLock,
    UnixChannel,
    connect,
    find_socket_path,
    take_lock,
)
from webdataset.stages.base import Json

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline

_RETRY_SECONDS = 0.02
_LOOK_SECONDS = 1.0
_WARN_SECONDS = 30.0
# of a trainer; all others are of the loader that makes the batches
_OWN_COUNTERS = ("epochs", "batches", "samples", "bytes", "failures", "running_seconds", "waiting_seconds")


class TrainerDropped(FlowError):
    """This trainer was too slow for a shared stream with ``policy="drop"``, and receives nothing more."""


class SharedLoader:
    """Shares one loader between trainers on one host: each receives every batch of the same stream.

    For several models on one stream (sweeps, ablations, teacher and student). Ranks of one job receive different
    samples: give each its own :class:`~webdataset.loading.loader.Loader`; ranks of sweeps have a stream for each rank.
    Arrays are read-only unless ``writable=True``; then each trainer writes to its own copy of a page. Linux only.

    Args:
        source: an elastic dataset; a ``Loader`` over one; or a function without arguments that returns a ``Loader``.
        name: of the stream, the same in all trainers: letters, digits, ``_.-``; or a path with a ``/``, of the socket.
        policy: what a slow trainer does to the others: ``lockstep``: they wait; ``drop``: when it lags by
            ``window`` batches, its iteration raises ``TrainerDropped``; ``detach``: then it reads alone, with a loader
            of its own.
        window: batches that a trainer may lag by, of ``drop`` and ``detach``; from 3.
        trainers: how many the stream waits for before it begins.
        late: where a new trainer begins that finds the stream begun: ``own``: at its own state, alone where that is far
            behind the stream, until the next epoch; ``current``: with the stream's next batch.
        writable: arrays may be written to; other trainers do not see it.
        options: of ``Loader``, where ``source`` is a dataset: ``batch_size``, ``workers``, ``mode`` …

    Raises:
        UsageError: arguments that cannot mean anything; not on Linux; a dataset that is not elastic.
    """

    def __init__(
        self,
        source: object,
        name: str | os.PathLike[str],
        *,
        policy: str = "lockstep",
        window: int = 8,
        trainers: int = 1,
        late: str = "own",
        writable: bool = False,
        **options: Json,
    ) -> None:
        _check(late)
        self._policy = StreamPolicy(policy, window, trainers)
        self._loader = make_stream_loader(source, options)
        self._path = find_socket_path(name)
        self._late = late == "current"
        self._writable = writable
        self.epoch = self._loader.epoch
        self._state: Message | None = self._loader.take_pending()
        # a state, the index that it is of, and the index received last
        self._base: tuple[Message, int] | None = None
        self._index = -1
        # number of the batch received last, at the owner that sent it
        self._sequence: int | None = None
        self._alone = self._member = self._begun = False
        # an owner has answered: a stream that continues waits for no other trainer
        self._started = False
        self._channel: UnixChannel | None = None
        self._server: SharedServer | None = None
        self._received = ReceivedBatches(writable=writable)
        self._early: deque[tuple[Message, list[int]]] = deque()
        # a message is waited for: what a signal's handler would read meanwhile is missed there
        self._reads = False
        self._process = os.getpid()
        self._current: weakref.ref[LoaderIterator[Json]] | None = None
        self._stats = LoaderStats(workers=self._loader.workers)
        # epoch, and samples received of it in all
        self._counted = 0, 0
        self._ending: weakref.finalize[[], SharedLoader] | None = None

    # -- iteration

    def __iter__(self) -> Iterator[Json]:
        """Receive an epoch; one that still runs is given up, and raises where it is asked for more."""
        self._give_up("another one was begun")
        dataset = cast("ElasticPipeline", self._loader.dataset)
        dataset._present.reader = weakref.ref(self)  # noqa: SLF001  its state is ours
        epoch = LoaderIterator(self._count_batches(self._epoch()))
        self._current = weakref.ref(epoch)
        return epoch

    def _give_up(self, reason: str) -> None:
        running = self._current() if self._current is not None else None
        if running is not None:
            running.give_up(reason)
        self._current = None

    def _count_batches(self, batches: Generator[Json]) -> Generator[Json]:
        """Yield the batches of an epoch, and count what came and how long it was waited for."""
        stats, began = self._stats, time.perf_counter()
        stats.epochs += 1
        try:
            while True:
                before = time.perf_counter()
                batch = next(batches, END)
                now = time.perf_counter()
                stats.waiting_seconds += now - before
                stats.running_seconds += now - began
                began = now
                if batch is END:
                    return
                stats.batches += 1
                stats.bytes += estimate_bytes(batch)
                yield batch
                del batch
        except Exception:  # counted and raised again
            stats.failures += 1
            raise
        finally:
            stats.running_seconds += time.perf_counter() - began
            batches.close()

    def _count_samples(self, epoch: int, received: int) -> None:
        """Take note of how many samples of an epoch were received in all."""
        before = self._counted[1] if self._counted[0] == epoch else 0
        self._stats.samples += max(0, received - before)
        self._counted = epoch, received

    def _epoch(self) -> Generator[Json]:
        if os.getpid() != self._process:
            raise FlowError("this SharedLoader was made before a fork: make one in each process that reads")
        state = self._loader.begin_state(self.epoch, self._state)
        fresh = self._state is None and self._base is None
        self._base, self._index, self._sequence = (state, -1), -1, None
        self._state, self._alone = None, False
        self._counted = int(state["epoch"]), int(state["received"])
        self.epoch = int(state["epoch"]) + 1
        self._begun = finished = False
        try:
            self._join(state, late=self._late and fresh)
            finished = yield from self._receive_batches()
        except GeneratorExit:
            raise
        except BaseException:  # Ctrl-C, say: the answer that still comes is not one to a later question
            self._disconnect()
            raise
        finally:
            if not finished and not self._alone:
                self._leave()

    def _receive_batches(self) -> Generator[Json, None, bool]:
        """Yield the batches of an epoch; return whether it ended in the stream, and not alone."""
        while not self._alone:
            message = self._next_message()
            if message is None or message["kind"] == "rejoin":
                state = self._exact_state()
                if self._is_next_epoch(int(self._loader.begin_state(0, state)["epoch"])):
                    self._state = state
                    return True
                self._join(state, rejoins=True)
            elif message["kind"] == "batch":
                if self._is_next_epoch(int(message["epoch"])):
                    self._early.appendleft((message, []))
                    return True
                yield self._take(message)
            elif self._hear(message):
                return True
        for batch in self._read_alone():
            yield batch
            del batch
        return False

    def _read_alone(self) -> Generator[Json]:
        """Continue with a loader of this trainer's own."""
        self._loader.load_state_dict(self._exact_state())
        for batch in self._loader:
            if self._is_next_epoch(self._loader.position[0]):
                self._alone = False
                return
            self._base = None
            self._count_samples(*self._loader.position[:2])
            yield batch
            del batch
        self._base = None
        self._state = self._loader.state_dict()
        self._alone = False
        self.epoch = int(self._state["epoch"]) + 1

    def _is_next_epoch(self, epoch: int) -> bool:
        """Tell whether what comes next is of another epoch than the one that this iteration has given batches of.

        So it is where an owner ended after the last batch of an epoch, and before it said that this was the last.
        """
        if not self._begun or epoch < self.epoch:
            return False
        self._state, self._base, self._sequence = self._loader.begin_state(epoch, None), None, None
        self.epoch = epoch
        return True

    def _take(self, message: Message) -> object:
        """Return the batch of a message, and tell the owner that it has begun."""
        sequence = int(message["seq"])
        batch = self._received.decode(sequence, message["node"], message["blocks"])
        self._index, self._sequence, self._begun = int(message["index"]), sequence, True
        self._count_samples(int(message["epoch"]), int(message["received"]))
        if self._base is not None and message["epoch"] != self._base[0]["epoch"]:
            # nothing was left of the epoch before
            self._base = self._loader.begin_state(int(message["epoch"]), None), -1
            self.epoch = int(message["epoch"]) + 1
        self._tell({"kind": "begun", "seq": sequence, "free": list(self._received.collect_returns())})
        return batch

    def _hear(self, message: Message) -> bool:
        """Act on what the owner says; return True at the end of the epoch."""
        kind = message["kind"]
        if kind == "state":
            self._base = message["state"], int(message["index"])
        elif kind == "end":
            self._state, self._base, self._sequence = message["state"], None, None
            self.epoch = int(message["epoch"]) + 1
            return True
        elif kind == "alone":
            log.warning("this trainer reads alone to the end of the epoch, since %s", message["words"])
            self._alone = True
        elif kind == "dropped":
            raise TrainerDropped(
                f"this trainer was dropped from the shared stream {self._path.name}, since {message['words']}: make it "
                "faster, give a larger window, or use policy='detach' (it continues alone) or 'lockstep' (others wait)"
            )
        elif kind in ("error", "no"):
            if kind == "no":
                self._disconnect()
            raise rebuild_error(message)
        else:
            raise ChannelError(f"the owner of the stream says {str(kind)[:40]!r}, which means nothing")
        return False

    # -- the connection

    def _join(self, state: Message, *, late: bool = False, rejoins: bool = False) -> None:
        """Ask the stream to continue from a state; connect before, and become its owner where there is none."""
        while True:
            if self._channel is None:
                self._connect()
            # of an epoch that was given up
            self._clear()
            about = {"late": late, "rejoins": rejoins, "member": self._member, "started": self._started}
            self._tell({"kind": "join", "state": state, **about})
            while (message := self._next_message()) is not None:
                self._started = self._started or message["kind"] in ("joined", "alone")
                if message["kind"] == "joined":
                    self._counted = int(message["state"]["epoch"]), int(message["state"]["received"])
                    self._base, self._member = (message["state"], -1), True
                    self._index = -1
                    self.epoch = int(message["state"]["epoch"]) + 1
                    return
                if message["kind"] == "batch":
                    self._give_back(message)
                elif message["kind"] not in ("state", "end", "error", "rejoin") and self._hear(message):
                    return
                if self._alone:
                    return

    def _clear(self) -> None:
        """Give back what came for an epoch that was given up."""
        while self._early:
            message, descriptors = self._early.popleft()
            self._accept(message, descriptors)
            if message["kind"] == "batch":
                self._give_back(message)

    def _give_back(self, message: Message) -> None:
        self._tell({"kind": "begun", "seq": message["seq"], "free": [message["seq"]]})

    def _connect(self) -> None:
        """Attach to the stream, as its owner where the lock is free."""
        rank, world_size, _, _ = worker_context()
        batching = self._loader.batching
        terms = {
            "rank": rank, "world_size": world_size, "batch_size": self._loader.batch_size, "exact": batching.exact,
            "drop_last": batching.drop_last, "ragged": batching.ragged, "policy": self._policy.name,
        }  # fmt: skip
        warned = time.monotonic()
        while self._channel is None:
            lock = take_lock(self._path)
            if lock is not None:
                self._own(lock, terms)
            self._channel = connect(self._path)
            if self._channel is None:
                if time.monotonic() - warned > _WARN_SECONDS:
                    warned = time.monotonic()
                    log.warning("the owner of the shared stream %s does not answer; waiting for it", self._path)
                time.sleep(_RETRY_SECONDS)
        self._received = ReceivedBatches(writable=self._writable)
        self._tell({"kind": "hello", "version": VERSION, "terms": terms})

    def _own(self, lock: StreamLock, terms: Message) -> None:
        """Become the stream's owner; free its lock where that fails, for the next one to try."""
        try:
            self._end_server()
            self._server = SharedServer(copy.copy(self._loader), self._path, lock, self._policy, terms)
        except BaseException:  # raised again, with the lock free
            lock.close()
            raise
        self._ending = weakref.finalize(self, self._server.close)

    def _end_server(self) -> None:
        if self._ending is not None:
            self._ending()
        self._ending = self._server = None

    def _disconnect(self) -> None:
        if self._channel is not None:
            for _, descriptors in self._early:
                for each in descriptors:
                    os.close(each)
            self._early.clear()
            self._channel.close()
            self._channel = None
            self._sequence = None
            self._received.close()

    def _tell(self, message: Message) -> None:
        """Send a message; where the owner is gone, that is seen when its messages end."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(message)

    def _next_message(self) -> Message | None:
        """Return the next message that is not about blocks; None where the owner is gone."""
        if os.getpid() != self._process:
            raise FlowError("this SharedLoader was made before a fork: make one in each process that reads")
        self._reads = True
        try:
            while True:
                received = self._early.popleft() if self._early else self._read()
                if received is None:
                    self._disconnect()
                    return None
                if self._accept(*received):
                    return received[0]
        finally:
            self._reads = False

    def _accept(self, message: Message, descriptors: list[int]) -> bool:
        """Map a block that came; return False where the message was about blocks."""
        try:
            kind = message.get("kind")
            if kind == "block" and descriptors:
                self._received.map_block(message.get("block"), message["size"], descriptors[0])
                return False
            if kind == "gone":
                self._received.forget_blocks(message.get("blocks"))
                return False
            return True
        finally:
            for each in descriptors:
                os.close(each)

    def _read(self) -> tuple[Message, list[int]] | None:
        """Wait for a message; None where the owner is gone."""
        channel = self._channel
        if channel is None:
            return None
        try:
            while not channel.wait(_LOOK_SECONDS):
                self._tell({"kind": "free", "free": list(self._received.collect_returns())})
            return channel.receive()
        except EOFError:
            return None

    def _leave(self) -> None:
        """Tell the stream that this trainer wants nothing more of the epoch."""
        if os.getpid() == self._process:
            self._tell({"kind": "leave"})

    # -- states

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which with the dataset's seed decides the order.

        Args:
            epoch: from 0.

        Raises:
            UsageError: no such epoch.
        """
        epoch = read_epoch(epoch)
        self._give_up("set_epoch was called")
        if self._state is not None and self._state["epoch"] != epoch:
            warn_of_other_epoch(self._state, epoch, worker_context())
            self._state = None
        self._base = None
        self.epoch = epoch

    def state_dict(self) -> Message:
        """Return the state after the batch received last: a ``Loader`` over the same dataset continues from it too."""
        if self._alone and self._base is None:
            return self._loader.state_dict()
        if self._base is None:
            return dict(self._state or self._loader.begin_state(self.epoch, None))
        return self._exact_state()

    def _exact_state(self) -> Message:
        if self._base is None:
            return self.state_dict()
        state, index = self._base
        if self._index <= index:
            return dict(state)
        told = self._ask_state()
        if told is None:
            # the owner is gone, or a signal's handler asks while a batch is waited for: samples are made once more
            told = self._loader.state_at(state, self._index)
        self._base = told, self._index
        return dict(told)

    def _ask_state(self) -> Message | None:
        """Return the state after the batch received last, as the owner knows it; None where it cannot be asked."""
        if self._channel is None or self._sequence is None or self._reads or os.getpid() != self._process:
            return None
        self._reads = True
        try:
            self._tell({"kind": "state", "seq": self._sequence})
            while (received := self._read()) is not None:
                if received[0].get("kind") == "told":
                    told: Message | None = received[0]["state"]
                    return told
                self._early.append(received)
        except BaseException:  # as in an epoch
            self._disconnect()
            raise
        finally:
            self._reads = False
        return None

    def load_state_dict(self, state: Message) -> None:
        """Continue after a state with the next iteration; after the last batch of its epoch, with the next epoch.

        Args:
            state: what ``state_dict`` of this class or of ``Loader`` returned.

        Raises:
            StateMismatch: a state of another dataset; the message says what differs.
        """
        check_state(state)
        self._give_up("load_state_dict was called")
        self.epoch = int(self._loader.begin_state(self.epoch, state)["epoch"])
        self._state, self._base, self._alone = state, None, False

    # -- the rest

    def stats(self) -> LoaderStats:
        """Return the counters as they are now: what this trainer received, and how long it waited.

        Times of workers, losses and memory are those of the stream's loader, and are known to its owner; to another
        trainer those of its own loader, where it has read alone.
        """
        inner = self._loader.stats() if self._server is None else self._server.read_stats()
        return replace(
            inner,
            **{name: getattr(self._stats, name) for name in _OWN_COUNTERS},
        )

    @property
    def owner(self) -> bool:
        """True where this trainer runs the stream's loader."""
        return self._server is not None

    def close(self) -> None:
        """Leave the stream. Where this trainer owns it, another one takes over. May be called twice."""
        if os.getpid() != self._process:
            return
        self._give_up("the loader was closed")
        # a state is asked for while the owner can tell
        if self._base is not None:
            self._base = self._exact_state(), self._index
        self._disconnect()
        self._end_server()
        self._loader.close()

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *failure: object) -> None:
        """Leave the stream."""
        self.close()

    def __repr__(self) -> str:
        return f"SharedLoader({str(self._path)!r}, {self._loader!r})"


def _check(late: str) -> None:
    if sys.platform != "linux":
        raise UsageError("SharedLoader needs Linux (memfd, SO_PEERCRED): use a Loader in each trainer")
    if late not in ("own", "current"):
        raise UsageError(f"late={late!r}: there are 'own' and 'current'")
