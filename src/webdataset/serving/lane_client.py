"""A trainer's lane: one server after the other, until each batch has come once and in order.

Theory. A thread owns the line to the present server. It opens the lane with the state after the part that it accepted
last, under a new number (*nonce*), and accepts only parts of this nonce in sequence; anything else is dropped, or
opens the lane anew. What follows a state is the same at every server, so the parts that are accepted are those that
one server without faults would have sent. A server that says nothing for some seconds is left for the next one, in an
order that differs from rank to rank and changes little when servers come and go (rendezvous hashing). A part counts as
received by the program when it is handed out, not when it arrives: see :class:`RemoteLoader`.

Without any server the lane waits, and warns.
"""

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from webdataset.core import errors
from webdataset.core.errors import FlowError, StateMismatch, WebDatasetError
from webdataset.core.logs import log
from webdataset.core.seeds import hash_seed
from webdataset.flow.elastic_state import ReceivedState, check_same_dataset, check_state, is_stream_state
from webdataset.loading.batching import END, BatchMark
from webdataset.loading.columns import estimate_bytes
from webdataset.loading.partition import EpochStart
from webdataset.loading.worker import NEVER, RowCounts
from webdataset.serving.batch_format import BatchDecoder
from webdataset.serving.wire_format import (
    PROTOCOL_VERSION,
    Frame,
    Header,
    WireError,
    decode_message,
    encode_json,
    encode_message,
)
from webdataset.serving.zmq_transport import Channel
from webdataset.stages.base import Json

_KINDS = ("WELCOME", "NO", "PART", "FAILURE", "ANSWER", "BEAT", "BYE")
_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.2
_MOST_REFUSALS = 3


class LaneItem(NamedTuple):
    """What a lane hands out: a batch (or END) with its mark, or an error."""

    batch: object
    mark: BatchMark
    error: BaseException | None = None
    size_bytes: int = 0


@dataclass(frozen=True)
class LaneOrder:
    """An epoch as it is asked for.

    Args:
        beginning: of the epoch.
        batch: samples in a batch; 0 for what the dataset gives.
        flags: ``drop_last``, ``exact``, ``ragged``.
        ahead: batches that may wait here.
        ahead_bytes: the memory that these may take; one is always allowed.
    """

    beginning: EpochStart
    batch: int
    flags: dict[str, bool]
    ahead: int
    ahead_bytes: int


@dataclass
class LanePosition:
    """After which part a lane is opened anew."""

    beginning: EpochStart
    received: ReceivedState
    untold: dict[int, int] = field(default_factory=dict)
    until: int = 0
    beyond: int = 0

    def take(self, mark: BatchMark) -> None:
        """Take note of a part that was accepted."""
        for worker, turns, progress in mark.progress:
            if progress is None:
                self.untold[worker] = self.untold.get(worker, 0) + turns
            else:
                self.received.take(progress)
                self.untold[worker] = 0
        self.beyond, self.until = mark.beyond, mark.until

    def find_index(self) -> int:
        """Return the first index that was not accepted where the state is before it; else 0."""
        behind = self.beyond or any(self.untold.values())
        return self.beginning.start + self.until if behind else 0


@dataclass
class _Server:
    """A server as this trainer knows it."""

    url: str
    # not to be asked before; words of what it said last
    pause_until: float = 0.0
    words: str = "not asked yet"
    refusals: int = 0


class LaneClient(threading.Thread):
    """The lane of one trainer.

    Args:
        urls: of servers.
        connect: makes a line.
        name: of the trainer, by which servers are put in order.
        silence_seconds: after which a server is left.
    """

    def __init__(
        self, urls: Sequence[str], connect: Callable[[str], Channel], name: str, silence_seconds: float
    ) -> None:
        super().__init__(name="webdataset-lane", daemon=True)
        ordered = sorted(urls, key=lambda url: hash_seed("lane", name, url))
        self._servers = [_Server(url) for url in ordered]
        self._connect, self._silence = connect, silence_seconds
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended = False
        self._server: _Server | None = None
        self._channel: Channel | None = None
        self._welcome = False
        self._heard = self._beaten = 0.0
        # a description of the dataset is wanted, or answers, or an epoch
        self._wanted = False
        self._order: LaneOrder | None = None
        self._position: LanePosition | None = None
        self._nonce = self._seq = self._granted = 0
        self._items: queue.SimpleQueue[LaneItem] = queue.SimpleQueue()
        self._question: tuple[int, dict[str, Json], Json, queue.SimpleQueue[Json]] | None = None
        self._largest = 0
        self.header: dict[str, Json] | None = None
        self.failure: BaseException | None = None
        # when a server was heard, or asked for nothing, last
        self.alive = time.monotonic()

    # -- for the consumer

    def want(self) -> None:
        """Let the lane connect to a server."""
        self._command(lambda: setattr(self, "_wanted", True))

    def begin(self, order: LaneOrder) -> "queue.SimpleQueue[LaneItem]":
        """Begin an epoch; return what its items come through."""
        items: queue.SimpleQueue[LaneItem] = queue.SimpleQueue()
        self._command(lambda: self._begin(order, items))
        return items

    def stop(self) -> None:
        """Give up the epoch."""
        self._command(self._give_up)

    def ask(self, beginning: EpochStart, state: Json, what: str, until: int) -> "queue.SimpleQueue[Json]":
        """Ask a server about a state; return what the answer comes through: (bool, state), or an error.

        Args:
            beginning: of the epoch.
            state: that the question is about.
            what: ``over`` or ``advance``.
            until: first index that is not received.
        """
        answer: queue.SimpleQueue[Json] = queue.SimpleQueue()
        place = beginning.place
        entries = {"what": what, "rank": place.rank, "ranks": place.world_size, "start": 0, "until": until}
        self._command(lambda: self._put_question(entries, state, answer))
        return answer

    def close(self) -> None:
        """End the lane."""
        self._ended = True
        self.wake()
        if self.is_alive() and self is not threading.current_thread():
            self.join(2.0)

    def describe_servers(self) -> str:
        """Return the servers and what each said last."""
        return "; ".join(f"{server.url}: {server.words}" for server in self._servers)

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self.wake()

    def wake(self) -> None:
        """Let the lane look at its orders, and at how many items wait."""
        # a full pipe wakes too, and a closed one has nothing to be woken
        with contextlib.suppress(OSError):
            self._theirs.send(b"w")

    # -- commands, in the lane's thread

    def _begin(self, order: LaneOrder, items: "queue.SimpleQueue[LaneItem]") -> None:
        self._give_up()
        self._wanted = True
        self._order, self._items, self._largest = order, items, 0
        self._position = LanePosition(order.beginning, ReceivedState(order.beginning.state))
        if self._welcome:
            self._open()

    def _give_up(self) -> None:
        if self._order is not None and self._nonce:
            self._send(encode_message("CLOSE", nonce=self._nonce))
        self._order = self._position = None
        self._nonce = 0

    def _put_question(self, entries: dict[str, Json], state: Json, answer: "queue.SimpleQueue[Json]") -> None:
        self._wanted = True
        self._question = secrets.randbits(62) + 1, entries, state, answer
        if self._welcome:
            self._ask()

    # -- the thread

    def run(self) -> None:
        """Work until the lane is closed."""
        try:
            while not self._ended:
                while not self._commands.empty():
                    self._commands.get()()
                self._step()
        except BaseException as error:  # noqa: BLE001  the consumer raises it
            self._fail(error)
        finally:
            self._disconnect()
            self._ours.close()
            self._theirs.close()

    def _step(self) -> None:
        if self._channel is None and self._wanted and self.failure is None:
            self._choose_server()
        channel = self._channel
        if channel is None:
            self.alive = self.alive if self._wanted else time.monotonic()
            self._sleep(_POLL_SECONDS)
            return
        frames = channel.receive(_POLL_SECONDS, self._ours)
        now = time.monotonic()
        if frames is not None:
            self._take_message(frames)
            self._heard = now
        elif now - self._heard > self._silence:
            self._leave(f"silent for {now - self._heard:.0f} s")
            return
        self._grant()
        if now - self._beaten > min(_BEAT_SECONDS, self._silence / 3) and self._channel is not None:
            self._beaten = now
            self._send(encode_message("BEAT", nonce=self._nonce))

    def _sleep(self, seconds: float) -> None:
        self._ours.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            self._ours.recv(4096)
        self._ours.setblocking(False)

    # -- servers

    def _choose_server(self) -> None:
        now = time.monotonic()
        ready = [server for server in self._servers if server.pause_until <= now]
        if not ready:
            return
        self._server = server = ready[0]
        self._channel = self._connect(server.url)
        self._welcome, self._heard, self._beaten = False, now, now
        server.words = "no answer"
        self._send(encode_message("HELLO", version=PROTOCOL_VERSION))

    def _leave(self, words: str, *, refused: bool = False) -> None:
        """Leave the present server, and continue at the next one."""
        server = self._server
        if server is not None:
            server.words = words
            server.refusals = server.refusals + 1 if refused else 0
            server.pause_until = time.monotonic() + self._silence
            log.warning("RemoteLoader: left %s: %s", server.url, words)
        if self._nonce:
            self._send(encode_message("CLOSE", nonce=self._nonce))
        self._disconnect()
        if all(each.refusals for each in self._servers) and any(
            each.refusals >= _MOST_REFUSALS or len(self._servers) == 1 for each in self._servers
        ):
            self._fail(StateMismatch(f"no data server takes this run: {self.describe_servers()}"))

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        self._welcome, self._nonce = False, 0
        if channel is not None:
            channel.close()

    def _fail(self, error: BaseException) -> None:
        """Hand an error to the consumer, and ask for nothing more."""
        self.failure = error
        self._wanted = False
        if self._question is not None:
            self._question[3].put(error)
            self._question = None
        self._items.put(LaneItem(None, BatchMark(), error))

    def _send(self, *frames: Frame) -> None:
        """Send a message; where the line is full it is lost, and the server is taken for silent."""
        if self._channel is not None:
            self._channel.send(frames)

    # -- messages

    def _take_message(self, frames: Sequence[Frame]) -> None:
        try:
            header, described = decode_message(frames, _KINDS)
            getattr(self, f"_handle_{header['kind'].lower()}")(header, described, frames)
        except WireError as error:
            self._leave(f"sent a malformed message: {error}", refused=True)

    def _handle_welcome(self, header: Header, state: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        try:
            found = check_state(state)
            if self.header is not None:
                check_same_dataset(found, self.header)
        except StateMismatch as error:
            self._leave(f"serves another dataset: {error}", refused=True)
            return
        if self.header is None:
            self.header = found
        self._welcome = True
        if self._server is not None:
            self._server.words = "connected"
        if self._order is not None:
            self._open()
        if self._question is not None:
            self._ask()

    def _open(self) -> None:
        """Open the lane after what was accepted last, under a new nonce."""
        order, position = self._order, self._position
        if order is None or position is None:
            return
        self._nonce, self._seq, self._granted = secrets.randbits(62) + 1, 0, self._find_room()
        place = order.beginning.place
        header = encode_message(
            "OPEN",
            nonce=self._nonce,
            rank=place.rank,
            ranks=place.world_size,
            batch=order.batch,
            start=order.beginning.start,
            until=position.find_index(),
            credit=self._granted,
            **order.flags,
        )
        self._send(header, encode_json(position.received.state_dict()))

    def _ask(self) -> None:
        if self._question is not None:
            nonce, entries, state, _ = self._question
            self._send(encode_message("ASK", nonce=nonce, **entries), encode_json(state))

    def _find_room(self) -> int:
        """Return how many more parts may come."""
        order = self._order
        if order is None:
            return 0
        most = order.ahead
        if self._largest:
            most = min(most, order.ahead_bytes // self._largest - 1)
        return max(0, max(0, most) + 1 - self._items.qsize())

    def _grant(self) -> None:
        if self._nonce and self._order is not None:
            to = self._seq + self._find_room()
            if to > self._granted:
                self._granted = to
                self._send(encode_message("CREDIT", nonce=self._nonce, to=to))

    def _handle_part(self, header: Header, described: Json, frames: Sequence[Frame]) -> None:
        order, position = self._order, self._position
        if header["nonce"] != self._nonce or order is None or position is None:
            return
        if header["seq"] > self._granted:
            raise WireError("a part that was not asked for")
        if header["seq"] != self._seq + 1:
            # one was lost on the way
            self._open()
            return
        batch, mark = decode_part(header, described, frames, order.beginning.start)
        self.alive = time.monotonic()
        self._seq += 1
        position.take(mark)
        if self._server is not None:
            self._server.refusals = 0
        size = estimate_bytes(batch)
        self._largest = max(self._largest, size)
        if header["over"]:
            self._give_up()
        self._items.put(LaneItem(END if header["over"] else batch, mark, None, size))

    def _handle_failure(self, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        if header["nonce"] != self._nonce:
            return
        if header["seq"] != self._seq + 1:
            self._open()
            return
        self._give_up()
        self._items.put(LaneItem(None, BatchMark(), make_error(header)))

    def _handle_no(self, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        code, words = header["code"], header["words"]
        question = self._question
        if question is not None and header["nonce"] == question[0]:
            if code == "question":
                self._question = None
                question[3].put(FlowError(f"the data server could not answer: {words}"))
            else:
                self._leave(words)
        elif code == "unknown":
            if header["nonce"] == self._nonce and self._nonce:
                self._open()
        elif header["nonce"] in (0, self._nonce):
            self._leave(words, refused=code in ("refused", "version"))

    def _handle_answer(self, header: Header, state: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        question = self._question
        if question is not None and header["nonce"] == question[0]:
            self._question = None
            self.alive = time.monotonic()
            question[3].put((header["answer"], state if header["state"] else None))

    def _handle_beat(self, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        """Take note that the server lives, and has not refused this run."""
        self.alive = time.monotonic()

    def _handle_bye(self, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        now = time.monotonic()
        if any(server is not self._server and server.pause_until <= now for server in self._servers):
            self._leave("ends soon")


def decode_part(header: Header, described: Json, frames: Sequence[Frame], start: int) -> tuple[object, BatchMark]:
    """Return the batch of a message, and its mark.

    Args:
        header: of the message.
        described: its description.
        frames: all frames.
        start: index at which the trainer's epoch began.

    Raises:
        WireError: they do not keep to the protocol.
    """
    if not isinstance(described, dict) or described.keys() != {"batch", "progress", "counted"}:
        raise WireError("a part with a malformed description")
    batch = BatchDecoder(frames[2:]).decode(described["batch"])
    until = header["until"]
    mark = BatchMark(
        progress=_check_progress(described["progress"]),
        beyond=header["beyond"],
        samples=header["samples"],
        until=NEVER if until >= NEVER else until - start,
        counted=_check_counts(described["counted"]),
    )
    return batch, mark


def _check_progress(progress: Json) -> list[tuple[int, int, Json]]:
    found = []
    if not isinstance(progress, list):
        raise WireError("a part with malformed progress")
    for each in progress:
        if not isinstance(each, list) or len(each) != 3 or type(each[0]) is not int or type(each[1]) is not int:
            raise WireError("a part with malformed progress")
        worker, turns, states = each
        if states is not None and not (
            isinstance(states, dict) and all(name.isdecimal() and is_stream_state(one) for name, one in states.items())
        ):
            raise WireError("a part with malformed states of streams")
        found.append((worker, turns, states))
    return found


def _check_counts(counted: Json) -> list[RowCounts]:
    found = []
    if not isinstance(counted, list):
        raise WireError("a part with malformed counts")
    for each in counted:
        if not isinstance(each, list) or len(each) != 3 or type(each[0]) is not int:
            raise WireError("a part with malformed counts")
        for counts in each[1:]:
            if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
                raise WireError("a part with malformed counts")
        found.append(RowCounts(*each))
    return found


def make_error(header: Header) -> WebDatasetError:
    """Return what ended a lane at its server as an error of the same class, where this library has it."""
    kind = getattr(errors, header["type"], None) if header["type"].isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, WebDatasetError)):
        kind = FlowError
    error: WebDatasetError = kind.__new__(kind)
    # the classes have arguments of their own
    WebDatasetError.__init__(error, f"at the data server: {header['words']}")
    return error.locate(**{name: header[name] or None for name in ("url", "key", "field")})
