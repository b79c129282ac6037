"""The owner's side of a shared stream: one loader, and the trainers that receive its batches.

Theory. Each trainer says at which position of the stream (epoch, samples received) it wants to continue, with the state
there. The server makes the batch at the lowest of these positions, and sends it to the trainers that stand there. A
trainer that is ahead (its owner died when others had not received a batch yet) thus waits, and one that joins a little
late is waited for: the loader continues from its state. A trainer that lags far is told to read alone. A batch is
kept until every trainer that received it has given it back. The server holds nothing that cannot be made again: where
its process ends, the first trainer to take the lock continues from its own state.

Never sends a trainer a batch twice, nor one that is not the next one of its position.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from webdataset.core import errors
from webdataset.core.errors import FlowError, StateMismatch, UsageError, WebDatasetError, describe_error
from webdataset.core.logs import log
from webdataset.loading.loader import Loader
from webdataset.loading.loader_checks import EXACT
from webdataset.loading.stats import LoaderStats
from webdataset.serving.shared_batches import SharedBlocks, encode_batch
from webdataset.serving.unix_channel import (
    MOST_WAITING,
    ChannelError,
    Message,
    StreamLock,
    UnixChannel,
    close_in_children,
    listen,
)

Position = tuple[int, int]

VERSION = 1
_POLICIES = ("lockstep", "drop", "detach")
# batches that a trainer may have received and not begun
QUEUED = 2
# a trainer that joins as many batches behind is caught up with
_BEHIND = 64
# batches between two states that trainers hold in case the owner dies
_STATES = 16
_HELLO_SECONDS = 10.0
_WARN_SECONDS = 30.0
_MESSAGES = 64
_MOST_TRAINERS = 256


@dataclass(frozen=True)
class StreamPolicy:
    """How trainers wait for each other.

    Args:
        name: ``lockstep``, ``drop`` or ``detach``.
        window: batches that a trainer may be behind by.
        trainers: the stream begins when as many are there.

    Raises:
        UsageError: values that cannot mean anything.
    """

    name: str = "lockstep"
    window: int = 8
    trainers: int = 1

    def __post_init__(self) -> None:
        if self.name not in _POLICIES:
            raise UsageError(f"policy={self.name!r}: there are {', '.join(map(repr, _POLICIES))}")
        if type(self.window) is not int or self.window < 3:
            raise UsageError(f"window={self.window!r}: batches that a trainer may be behind by, at least 3")
        if type(self.trainers) is not int or self.trainers < 1:
            raise UsageError(f"trainers={self.trainers!r}: how many the stream waits for, at least 1")


@dataclass(eq=False)
class _Trainer:
    """A connection, and what is known of the trainer at its other end."""

    channel: UnixChannel
    since: float
    greeted: bool = False
    # that it wants to continue from; None: it wants nothing now
    position: Position | None = None
    # where it will continue, if it does: it has received an epoch to its end
    expected: Position | None = None
    # a state, and the position that it is of
    state: tuple[Position, Message] | None = None
    sent: int = 0
    unread: set[int] = field(default_factory=set)
    held: dict[int, object] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    last: int | None = None


class SharedServer:
    """Makes batches in a thread, and sends them to trainers.

    Args:
        loader: makes them; nothing else uses it.
        path: of the socket.
        lock: of the stream, held.
        policy: how trainers wait for each other.
        terms: what all trainers must have in common.
    """

    def __init__(self, loader: Loader, path: Path, lock: StreamLock, policy: StreamPolicy, terms: Message) -> None:
        self._loader, self._path, self._lock, self._policy, self._terms = loader, path, lock, policy, terms
        self._listener = listen(path)
        self._blocks = SharedBlocks()
        loader.publish_blocks(self._blocks.publish)
        self._trainers: dict[int, _Trainer] = {}
        self._batches: Iterator[object] | None = None
        # of the loader; None before it has begun
        self._position: Position | None = None
        self._sequence = 0
        # after each batch that a trainer may ask about
        self._states: dict[int, Message] = {}
        self._begun = False
        self._awaited = policy.trainers
        self._quiet = time.monotonic()
        self._stopping = False
        self._owner = os.getpid()
        self._wake, self._woken = socket.socketpair()
        for resource in (self._wake, self._woken):
            close_in_children(resource)
        self._thread = threading.Thread(target=self._run, name="webdataset-shared", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; trainers that still read continue by themselves. May be called twice, and in a forked child."""
        if os.getpid() != self._owner or self._stopping:
            return
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._wake.close()

    def read_stats(self) -> LoaderStats:
        """Return the counters of the loader as they are now."""
        return self._loader.stats()

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._serve(0.0 if self._find_receivers() else 1.0)
                if not self._stopping and (receivers := self._find_receivers()):
                    self._advance(receivers)
                    self._quiet = time.monotonic()
        except Exception as error:  # noqa: BLE001  trainers see that the owner is gone, and continue; the log says why
            if not is_program_ending():
                log.warning("the owner of the shared stream %s stops: %s", self._path, describe_error(error))
        finally:
            self._close_all()

    def _close_all(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._listener.close()
        for trainer in list(self._trainers.values()):
            self._drop(trainer)
        self._batches = None
        try:
            # at the program's end, its exit handlers close the workers meanwhile
            if not is_program_ending():
                self._loader.close()
        finally:
            self._blocks.close()
            self._woken.close()
            # last: who takes it finds nothing of this server
            self._lock.close()

    def _serve(self, timeout_seconds: float) -> None:
        """Read what trainers say."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        for descriptor, trainer in self._trainers.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if trainer.channel.has_waiting else 0))
            if trainer.channel.alive is not None:
                poll.register(trainer.channel.alive, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_seconds * 1000)}
        if self._listener.fileno() in ready:
            self._accept()
        now = time.monotonic()
        for descriptor, trainer in list(self._trainers.items()):
            if descriptor in ready or trainer.channel.alive in ready:
                self._read(trainer)
            elif not trainer.greeted and now - trainer.since > _HELLO_SECONDS:
                self._drop(trainer)
        self._warn(now)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        # of each batch that a trainer may lag by: itself, its blocks, a state
        waiting = MOST_WAITING + 4 * self._policy.window
        channel = UnixChannel(connection, waits=False, most_waiting=waiting)
        if channel.user != os.getuid() or len(self._trainers) >= _MOST_TRAINERS:
            with contextlib.suppress(OSError):
                words = f"this stream is user {os.getuid()}'s, with up to {_MOST_TRAINERS} trainers"
                channel.send({"kind": "no", "error": "UsageError", "words": words})
            channel.close()
            return
        self._trainers[channel.fileno()] = _Trainer(channel, time.monotonic())

    def _read(self, trainer: _Trainer) -> None:
        try:
            trainer.channel.flush()
            for _ in range(_MESSAGES):
                received = trainer.channel.receive()
                if received is None:
                    break
                for each in received[1]:
                    os.close(each)
                self._hear(trainer, received[0])
        except (OSError, EOFError):
            self._drop(trainer)
            return
        except Exception as error:  # noqa: BLE001  whatever a hostile message leads to: this trainer alone gets it
            self._refuse(trainer, error)
            return
        if trainer.channel.has_ended:
            self._drop(trainer)

    def _hear(self, trainer: _Trainer, message: Message) -> None:
        kind = message["kind"]
        if kind != "free":
            # which trainers that wait say every second
            self._quiet = time.monotonic()
        if kind == "hello":
            self._greet(trainer, message)
        elif not trainer.greeted:
            raise ChannelError("a trainer says hello first")
        elif kind == "join":
            self._join(trainer, message)
        elif kind == "leave":
            trainer.position = trainer.expected = None
        elif kind in ("begun", "free"):
            if kind == "begun":
                trainer.unread.discard(message["seq"])
            for sequence in message["free"]:
                trainer.held.pop(sequence, None)
        elif kind == "state":
            trainer.channel.send({"kind": "told", "state": self._states.get(message["seq"])})
        else:
            raise ChannelError(f"a trainer says {str(kind)[:40]!r}, which means nothing")

    def _greet(self, trainer: _Trainer, message: Message) -> None:
        if message["version"] != VERSION:
            raise StateMismatch("this stream's owner runs another version of webdataset: use one for all trainers")
        different = sorted(name for name, value in self._terms.items() if message["terms"].get(name) != value)
        if different:
            said = ", ".join(f"{each}={str(message['terms'].get(each))[:60]}" for each in different)
            raise StateMismatch(
                f"this trainer differs from the owner of the stream {self._path.name}: {said}; the owner has "
                + ", ".join(f"{each}={self._terms[each]}" for each in different)
                + ". Give all trainers the same arguments, or this one another name"
            )
        trainer.greeted = True

    def _join(self, trainer: _Trainer, message: Message) -> None:
        state = self._loader.begin_state(0, message["state"])
        position = int(state["epoch"]), int(state["received"])
        trainer.expected = None
        trainer.unread.clear()
        if message["started"]:
            # the stream has begun at another owner, and of those who were there some may have ended
            self._awaited = 1
        if message["late"] and self._position is not None and self._begun:
            # with the last state that is known at a border: that of the loader now
            state = self._loader.begin_state(0, self._loader.state_dict())
            position = self._position
        elif (why := self._why_alone(position, rejoins=bool(message["rejoins"]))) is not None:
            kind = "dropped" if self._policy.name == "drop" and message["member"] else "alone"
            trainer.channel.send({"kind": kind, "words": why})
            return
        trainer.position, trainer.state = position, (position, state)
        trainer.channel.send({"kind": "joined", "state": state})

    def _why_alone(self, position: Position, *, rejoins: bool) -> str | None:
        """Return why a trainer at a position cannot join; None where it can."""
        now = self._position
        if now is None or not self._begun or position >= now:
            return None
        size = self._terms["batch_size"] or 1
        late = now[1] - position[1]
        if not self._terms["exact"] and position[0] == now[0] and late % size:
            return "its batches have other borders than the stream's"
        if rejoins or (position[0] == now[0] and late <= max(_BEHIND, self._policy.window) * size):
            return None
        if position[0] == now[0]:
            return f"it lags by {late} samples"
        return f"it is in epoch {position[0]}, and the stream in epoch {now[0]}"

    def _drop(self, trainer: _Trainer) -> None:
        """Forget a trainer; what it held is free."""
        self._trainers.pop(trainer.channel.fileno(), None)
        trainer.held.clear()
        trainer.channel.close()

    def _refuse(self, trainer: _Trainer, error: Exception) -> None:
        with contextlib.suppress(OSError, ChannelError):
            trainer.channel.send({"kind": "no", "error": type(error).__name__, "words": _describe(error)[:2000]})
        self._drop(trainer)

    def _warn(self, now: float) -> None:
        """Log which trainer the stream waits for."""
        if now - self._quiet < _WARN_SECONDS:
            return
        self._quiet = now
        waiting = [each for each in self._trainers.values() if each.position is not None]
        slow = [each.channel.process for each in self._trainers.values() if each.unread or each.expected is not None]
        if waiting and slow and self._policy.name == "lockstep":
            log.warning("the shared stream %s waits for process %s", self._path.name, ", ".join(map(str, slow)))
        elif waiting and not self._begun:
            there, asked = len(waiting), self._awaited
            log.warning(
                "the shared stream %s waits for its trainers: %d of %d are there", self._path.name, there, asked
            )

    # -- batches

    def _find_receivers(self) -> list[_Trainer]:
        """Return the trainers that get the next batch; none, where it is not made now."""
        joined = [each for each in self._trainers.values() if each.position is not None]
        if not joined or (not self._begun and len(joined) < self._awaited):
            return []
        lowest = min(each.position for each in joined if each.position is not None)
        here = [each for each in joined if each.position == lowest]
        hungry = [each for each in here if len(each.unread) < QUEUED]
        if self._policy.name == "lockstep":
            late = any(each.expected is not None and each.expected <= lowest for each in self._trainers.values())
            return here if len(hungry) == len(here) and not late else []
        return here if hungry else []

    def _advance(self, receivers: list[_Trainer]) -> None:
        """Make a batch, and send it."""
        self._drop_slow(receivers)
        receivers = [each for each in receivers if each.position is not None]
        try:
            if not self._go_to(receivers):
                return
            if self._batches is None:
                self._batches = iter(self._loader)
            batch = next(self._batches)
            self._send_batch(receivers, batch)
        except StopIteration:
            self._end_epoch(receivers)
        except BaseException as error:  # a dataset's, SystemExit too: each trainer raises it
            if is_program_ending():
                raise
            self._batches = self._position = None
            for each in receivers:
                each.position = None
                self._send(each, {"kind": "error", "error": type(error).__name__, "words": _describe(error)})

    def _drop_slow(self, receivers: list[_Trainer]) -> None:
        """Drop or detach the trainers that are behind by the window."""
        if self._policy.name == "lockstep":
            return
        for each in receivers:
            if len(each.unread) >= self._policy.window:
                each.position = None
                words = f"it is {len(each.unread)} batches behind the others"
                self._send(each, {"kind": "dropped" if self._policy.name == "drop" else "alone", "words": words})

    def _go_to(self, receivers: list[_Trainer]) -> bool:
        """Let the loader stand where these trainers do; where no state of that is known, they are asked for theirs."""
        self._begun = True
        wanted = receivers[0].position
        if self._position == wanted:
            return True
        for each in receivers:
            if each.state is not None and each.state[0] == wanted:
                self._batches = None
                self._loader.load_state_dict(each.state[1])
                self._position = wanted
                return True
        for each in receivers:
            each.position = None
            self._send(each, {"kind": "rejoin"})
        return False

    def _send_batch(self, receivers: list[_Trainer], batch: object) -> None:
        epoch, received, index = self._loader.position
        self._position = epoch, received
        encoded = encode_batch(batch, self._blocks)
        del batch
        self._sequence += 1
        sequence = self._sequence
        self._states[sequence] = state = self._loader.state_dict()
        message = {
            "kind": "batch", "seq": sequence, "epoch": epoch, "received": received, "index": index,
            "blocks": encoded.blocks, "node": encoded.node,
        }  # fmt: skip
        gone = self._blocks.take_removals()
        for each in list(self._trainers.values()):
            if gone and not each.known.isdisjoint(gone):
                each.known.difference_update(gone)
                self._send(each, {"kind": "gone", "blocks": gone})
        for each in receivers:
            each.held[sequence] = encoded.keep
            each.unread.add(sequence)
            each.position = self._position
            each.last = sequence
            each.sent += 1
            self._send(each, message, encoded.blocks)
            if sequence % _STATES == 0:
                each.state = self._position, state
                self._send(each, {"kind": "state", "state": state, "index": index})
        self._prune_states()

    def _prune_states(self) -> None:
        """Forget the states that no trainer can ask about any more."""
        needed = set()
        for each in self._trainers.values():
            needed |= each.unread
            begun = [sequence for sequence in self._states if each.last is not None and sequence <= each.last]
            needed |= {max((sequence for sequence in begun if sequence not in each.unread), default=0)}
        for sequence in self._states.keys() - needed:
            del self._states[sequence]

    def _end_epoch(self, receivers: list[_Trainer]) -> None:
        epoch = self._loader.position[0]
        state = self._loader.state_dict()
        self._batches, self._position = None, (epoch + 1, 0)
        for each in receivers:
            each.position, each.expected = None, self._position
            self._send(each, {"kind": "end", "epoch": epoch, "state": state})

    def _send(self, trainer: _Trainer, message: Message, blocks: list[int] | None = None) -> None:
        try:
            for number in blocks or ():
                if number not in trainer.known:
                    descriptor, size = self._blocks.file(number)
                    trainer.channel.send({"kind": "block", "block": number, "size": size}, [descriptor])
                    trainer.known.add(number)
            trainer.channel.send(message)
        except (OSError, ChannelError):
            self._drop(trainer)


def is_program_ending() -> bool:
    """Tell whether only daemon threads are left: workers and blocks are closed then, while the server still runs."""
    return all(each.daemon or not each.is_alive() for each in threading.enumerate())


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, WebDatasetError) else describe_error(error)


def rebuild_error(message: Message) -> Exception:
    """Return the owner's error as one of the same class, where that is this library's."""
    name, words = str(message.get("error")), str(message.get("words"))
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.WebDatasetError):
        return kind(words)
    return FlowError(f"the owner of the shared stream failed: {words}")


def make_stream_loader(source: object, options: Message) -> Loader:
    """Return the loader of a stream.

    Args:
        source: an elastic dataset; a ``Loader`` over one; or a function without arguments that returns a ``Loader``.
        options: of ``Loader``, where ``source`` is a dataset.

    Raises:
        UsageError: a loader that cannot be shared, or options beside a ``Loader``.
    """
    make: Callable[[], object] | None = source if callable(source) and not hasattr(source, "__iter__") else None
    found = make() if make is not None else source
    if isinstance(found, Loader):
        if options:
            raise UsageError(f"{', '.join(options)}: these are arguments of the Loader that is given: write them there")
    else:
        found = Loader(found, **options)
    if not found.elastic:
        raise UsageError(
            "SharedLoader needs an elastic dataset, whose state says where each trainer continues if another ends: "
            "write dataset.elastic()"
        )
    if found.order != EXACT:
        raise UsageError(
            f"SharedLoader continues with the next batch where a trainer ends, and with order={found.order!r} batches "
            "depend on time: leave order= out"
        )
    if found.on_device:
        raise UsageError(
            "SharedLoader gives batches in memory: move them to the device in the trainer, without device="
        )
    found.shared = True
    return found
