"""A trainer's lane: one server after the other, until each batch has come once and in order.

Theory. A thread owns the line to the present server. It opens the lane with the state after the part that it accepted
last, under a new number (*nonce*), and accepts only parts of this nonce in sequence; anything else is dropped, or
opens the lane anew. What follows a state is the same at every server, so the parts that are accepted are those that
one server without faults would have sent. A server that says nothing for some seconds is left for the next one, in an
order that differs from rank to rank and changes little when servers come and go (rendezvous hashing). Where a server
lives and sends nothing, the lane is opened a second time elsewhere, and the first part wins
(:mod:`webdataset.serving.lane_progress`). A part counts as received by the program when it is handed out, not when it
arrives: see :class:`RemoteLoader`.

Without any server the lane waits, and warns.
"""

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

from webdataset.core.errors import FlowError, StateMismatch
from webdataset.core.logs import log
from webdataset.core.seeds import hash_seed
from webdataset.flow.elastic_state import ReceivedState, check_same_dataset, check_state
from webdataset.loading.batching import END, BatchMark
from webdataset.loading.columns import estimate_bytes
from webdataset.loading.partition import EpochStart
from webdataset.serving.batch_format import decode_part, make_error
from webdataset.serving.lane_progress import (
    COMPARE_SECONDS,
    HedgedPart,
    HedgeRule,
    LaneItem,
    LaneLine,
    LaneOrder,
    LanePosition,
    LaneServer,
    compare_parts,
)
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
# of two lines in turns
_HEDGED_POLL_SECONDS = 0.01
_MOST_REFUSALS = 3


class LaneClient(threading.Thread):
    """The lane of one trainer.

    Args:
        urls: of servers.
        connect: makes a line.
        name: of the trainer, by which servers are put in order.
        silence_seconds: after which a server is left.
        hedge_seconds: after which, at the earliest, a server that lives and sends nothing is raced by another one; None
            waits for it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        connect: Callable[[str], Channel],
        name: str,
        silence_seconds: float,
        hedge_seconds: float | None = None,
    ) -> None:
        super().__init__(name="webdataset-lane", daemon=True)
        ordered = sorted(urls, key=lambda url: hash_seed("lane", name, url))
        self._servers = [LaneServer(url) for url in ordered]
        self._connect, self._silence = connect, silence_seconds
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended = False
        self._line: LaneLine | None = None
        # at another server, from the same state; the first part wins
        self._second: LaneLine | None = None
        self.hedges = HedgeRule(hedge_seconds)
        # the state from which it was opened; None where that cannot be compared
        self._second_state: dict[str, Json] | None = None
        # the part that was accepted first, while that of the other server is awaited, and until when
        self._won: tuple[HedgedPart, float] | None = None
        # a description of the dataset is wanted, or answers, or an epoch
        self._wanted = False
        self._order: LaneOrder | None = None
        self._position: LanePosition | None = None
        # parts of the epoch
        self._accepted = 0
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
        self._order, self._items, self._largest, self._accepted = order, items, 0, 0
        self._position = LanePosition(order.beginning, ReceivedState(order.beginning.state))
        if self._line is not None and self._line.welcome:
            self._open(self._line)

    def _give_up(self) -> None:
        self._drop_second()
        line = self._line
        if line is not None and line.nonce:
            line.send(encode_message("CLOSE", nonce=line.nonce))
            line.nonce = 0
        self._order = self._position = None

    def _put_question(self, entries: dict[str, Json], state: Json, answer: "queue.SimpleQueue[Json]") -> None:
        self._wanted = True
        self._question = secrets.randbits(62) + 1, entries, state, answer
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
            for line in (self._line, self._second):
                if line is not None:
                    self._close_line(line)
            self._line = self._second = None
            self._ours.close()
            self._theirs.close()

    def _step(self) -> None:
        if self._line is None and self._wanted and self.failure is None:
            self._line = self._choose_server()
        line, second = self._line, self._second
        if line is None:
            self.alive = self.alive if self._wanted else time.monotonic()
            self._sleep(_POLL_SECONDS)
            return
        self._serve_line(line, _POLL_SECONDS if second is None else _HEDGED_POLL_SECONDS)
        if second is not None and second in (self._line, self._second):
            self._serve_line(second, _HEDGED_POLL_SECONDS if second is self._second else 0.0)
        self._hedge()

    def _serve_line(self, line: LaneLine, seconds: float) -> None:
        """Take a message of a line, and tell its server that this trainer lives and what it has room for."""
        frames = line.channel.receive(seconds, self._ours)
        now = time.monotonic()
        if frames is not None:
            line.heard = now
            self._take_message(line, frames)
        elif now - line.heard > self._silence:
            self._leave(line, f"silent for {self._silence:g} s")
            return
        if line is self._line:
            self._grant(line)
        if now - line.beaten > min(_BEAT_SECONDS, self._silence / 3) and line in (self._line, self._second):
            line.beaten = now
            line.send(encode_message("BEAT", nonce=line.nonce))

    def _sleep(self, seconds: float) -> None:
        self._ours.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            self._ours.recv(4096)
        self._ours.setblocking(False)

    # -- servers

    def _choose_server(self) -> LaneLine | None:
        """Connect to the first server that is not to be left alone, and is not asked already."""
        now = time.monotonic()
        for server in self._servers:
            if server.pause_until <= now and (self._line is None or self._line.server is not server):
                line = LaneLine(server, self._connect(server.url), heard=now, beaten=now)
                server.words = "no answer"
                line.send(encode_message("HELLO", version=PROTOCOL_VERSION))
                return line
        return None

    def _leave(self, line: LaneLine, words: str, *, refused: bool = False) -> None:
        """Leave a server; continue at the second one where there is one, else at the next."""
        server = line.server
        server.words = words
        server.refusals = server.refusals + 1 if refused else 0
        server.pause_until = time.monotonic() + self._silence
        if words != server.told:
            # where no server answers they are asked in turn for hours
            server.told = words
            log.warning("RemoteLoader: left %s: %s", server.url, words)
        if line is self._second:
            self._drop_second()
        else:
            self._line, self._second = self._second, None
            self._won = None
            self._close_line(line)
            if self._line is not None and self._line.welcome and not self._continues(self._line):
                self._open(self._line)
        if all(each.refusals for each in self._servers) and any(
            each.refusals >= _MOST_REFUSALS or len(self._servers) == 1 for each in self._servers
        ):
            self._fail(StateMismatch(f"no data server takes this run: {self.describe_servers()}"))

    def _continues(self, line: LaneLine) -> bool:
        """Tell whether the next part of a line is the next one of the epoch."""
        return bool(line.nonce) and line.before + line.seq == self._accepted

    @staticmethod
    def _close_line(line: LaneLine) -> None:
        if line.nonce:
            line.send(encode_message("CLOSE", nonce=line.nonce))
        line.channel.close()

    def _drop_second(self) -> None:
        second, self._second, self._won = self._second, None, None
        if second is not None:
            self._close_line(second)

    def _fail(self, error: BaseException) -> None:
        """Hand an error to the consumer, and ask for nothing more."""
        self.failure = error
        self._wanted = False
        for line in (self._line, self._second):
            if line is not None:
                self._close_line(line)
        self._line = self._second = self._won = None
        if self._question is not None:
            self._question[3].put(error)
            self._question = None
        self._items.put(LaneItem(None, BatchMark(), error))

    # -- a second server

    def _hedge(self) -> None:
        """Open the lane at another server too, where this one lives and sends nothing; end what is decided."""
        line, now = self._line, time.monotonic()
        if self._second is not None:
            if self._won is not None and now > self._won[1]:
                self._drop_second()
            return
        if line is None or not line.nonce or line.seq >= line.granted or not self._items.empty():
            return
        if self.hedges.is_due(now - line.waits_since) and self._question is None:
            self._second = self._choose_server()
            if self._second is not None:
                self.hedges.opened += 1
                words = "RemoteLoader: %s sends nothing for %.1f s; %s is asked too"
                log.info(words, line.server.url, now - line.waits_since, self._second.server.url)

    def _decide(self, line: LaneLine, mark: BatchMark) -> None:
        """Take note of the part that came first of two lines: the other line has lost."""
        second = self._second
        if second is None or self._won is not None:
            return
        if not second.nonce:
            # not needed any more
            self._drop_second()
            return
        part = HedgedPart.of_mark(self._accepted + 1, line.server.url, self._second_state, mark)
        self._won = part, time.monotonic() + COMPARE_SECONDS
        if line is second:
            self.hedges.won += 1
            self._line, self._second = second, self._line
            self._ask()

    def _compare(self, line: LaneLine, number: int, mark: BatchMark) -> None:
        """Compare the part of the loser with that of the winner, and end its lane.

        Raises:
            StateMismatch: the two servers differ.
        """
        won = self._won
        if won is not None and won[0].number == number:
            lost = HedgedPart.of_mark(number, line.server.url, self._second_state, mark)
            compare_parts(won[0], lost, {each.url: each.functions for each in self._servers})
        self._drop_second()

    # -- messages

    def _take_message(self, line: LaneLine, frames: Sequence[Frame]) -> None:
        try:
            header, described = decode_message(frames, _KINDS)
            getattr(self, f"_handle_{header['kind'].lower()}")(line, header, described, frames)
        except WireError as error:
            self._leave(line, f"sent a malformed message: {error}", refused=True)

    def _handle_welcome(self, line: LaneLine, header: Header, state: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        try:
            found = check_state(state)
            if self.header is not None:
                check_same_dataset(found, self.header)
        except StateMismatch as error:
            self._leave(line, f"serves another dataset: {error}", refused=True)
            return
        if self.header is None:
            self.header = found
        line.welcome = True
        line.server.words, line.server.told, line.server.functions = "connected", "", found["functions"]
        self._open(line)
        if line is self._line:
            self._ask()

    def _open(self, line: LaneLine) -> None:
        """Open the lane after what was accepted last, under a new nonce."""
        order, position = self._order, self._position
        if order is None or position is None:
            return
        second = line is self._second
        line.nonce, line.before, line.seq = secrets.randbits(62) + 1, self._accepted, 0
        line.granted = 1 if second else self._find_room()
        line.waits_since = time.monotonic()
        place, until, state = order.beginning.place, position.find_index(), position.received.state_dict()
        if second:
            self._second_state = None if until else state
        header = encode_message(
            "OPEN",
            nonce=line.nonce,
            rank=place.rank,
            ranks=place.world_size,
            batch=order.batch,
            start=order.beginning.start,
            until=until,
            credit=line.granted,
            hedge=second,
            **order.flags,
        )
        line.send(header, encode_json(state))

    def _ask(self) -> None:
        line = self._line
        if self._question is not None and line is not None and line.welcome:
            nonce, entries, state, _ = self._question
            line.send(encode_message("ASK", nonce=nonce, **entries), encode_json(state))

    def _find_room(self) -> int:
        """Return how many more parts may come."""
        order = self._order
        if order is None:
            return 0
        most = order.ahead
        if self._largest:
            most = min(most, order.ahead_bytes // self._largest - 1)
        return max(0, max(0, most) + 1 - self._items.qsize())

    def _grant(self, line: LaneLine) -> None:
        if line.nonce and self._order is not None:
            to = line.seq + self._find_room()
            if to > line.granted:
                if line.granted == line.seq:
                    line.waits_since = time.monotonic()
                line.granted = to
                line.send(encode_message("CREDIT", nonce=line.nonce, to=to))

    def _handle_part(self, line: LaneLine, header: Header, described: Json, frames: Sequence[Frame]) -> None:
        order, position = self._order, self._position
        if header["nonce"] != line.nonce or order is None or position is None:
            return
        if header["seq"] > line.granted:
            raise WireError("a part that was not asked for")
        if header["seq"] != line.seq + 1:
            # one was lost on the way
            self._begin_again(line)
            return
        batch, mark = decode_part(header, described, frames, order.beginning.start)
        now = self.alive = time.monotonic()
        line.seq += 1
        number = line.before + line.seq
        if number <= self._accepted:
            self._compare(line, number, mark)
            return
        if line.seq > 1:
            # the first one of a line is that of a server that restores
            self.hedges.note_part(now - line.waits_since)
        line.waits_since = now
        self._decide(line, mark)
        self._accepted += 1
        position.take(mark)
        line.server.refusals = 0
        size = estimate_bytes(batch)
        self._largest = max(self._largest, size)
        if header["over"]:
            self._give_up()
        self._items.put(LaneItem(END if header["over"] else batch, mark, None, size))

    def _begin_again(self, line: LaneLine) -> None:
        """Open the lane anew where it cannot continue as it is."""
        if line is self._second:
            self._drop_second()
        else:
            self._open(line)

    def _handle_failure(self, line: LaneLine, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        if header["nonce"] != line.nonce:
            return
        if line is self._second:
            # the first server decides
            self._drop_second()
        elif header["seq"] != line.seq + 1:
            self._open(line)
        else:
            self._give_up()
            self._items.put(LaneItem(None, BatchMark(), make_error(header)))

    def _handle_no(self, line: LaneLine, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        code, words = header["code"], header["words"]
        question = self._question
        if question is not None and header["nonce"] == question[0]:
            if code == "question":
                self._question = None
                question[3].put(FlowError(f"the data server could not answer: {words}"))
            elif line is self._line:
                self._leave(line, words)
        elif code == "unknown":
            if header["nonce"] == line.nonce and line.nonce:
                self._begin_again(line)
        elif header["nonce"] in (0, line.nonce):
            if line is self._second and code == "busy":
                # nothing was tried
                self.hedges.opened -= 1
            self._leave(line, words, refused=code in ("refused", "version"))

    def _handle_answer(self, line: LaneLine, header: Header, state: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        question = self._question
        if question is not None and header["nonce"] == question[0]:
            self._question = None
            self.alive = time.monotonic()
            question[3].put((header["answer"], state if header["state"] else None))

    def _handle_beat(self, line: LaneLine, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        """Take note that the server lives, and has not refused this run."""
        self.alive = time.monotonic()

    def _handle_bye(self, line: LaneLine, header: Header, described: Json, frames: Sequence[Frame]) -> None:  # noqa: ARG002  as all
        now = time.monotonic()
        others = (each for each in self._servers if each is not line.server)
        if line is self._second or any(each.pause_until <= now for each in others):
            self._leave(line, "ends soon")
