"""The server: makes batches for trainers that ask for them, and tells them that it lives.

Theory. One thread owns the line. It reads messages, hands orders to lanes (:mod:`webdataset.serving.server_lane`) and
sends what lanes have made. A trainer has one lane; a new OPEN takes the place of the former one. A message about a
lane that is not known (the server was restarted, say) is answered with NO, never ignored. A malformed message is
dropped and counted; it closes the lane of its sender. The server keeps no state: a trainer brings its own.
"""

import contextlib
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from webdataset.core.errors import UsageError
from webdataset.core.logs import log
from webdataset.core.seeds import hash_seed
from webdataset.serving.lane_progress import count_allowed_hedges
from webdataset.serving.server_lane import Lane, LaneSettings, Question, copy_dataset
from webdataset.serving.wire_format import (
    PROTOCOL_VERSION,
    Frame,
    Header,
    WireError,
    decode_message,
    encode_json,
    encode_message,
)
from webdataset.serving.zmq_transport import Listener, check_server_url

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline

_KINDS = ("HELLO", "OPEN", "ASK", "CREDIT", "CLOSE", "BEAT")
# how often the server looks whether trainers live, and how often it tries a line that is full
_LOOK_SECONDS = 0.5
_FULL_SECONDS = 0.01
_SILENCE_SECONDS = 10.0
_MOST_QUESTIONS = 8


class DataServer:
    """Serves the batches of a dataset.

    Args:
        dataset: an elastic dataset with a seed.
        listener: the lines.
        how: how lanes make batches.
        most_lanes: trainers at once.

    Raises:
        UsageError: a dataset that is not elastic, or has no seed: two servers of it would not be equal.
    """

    def __init__(
        self, dataset: "ElasticPipeline", listener: Listener, how: LaneSettings | None = None, *, most_lanes: int = 64
    ) -> None:
        if not getattr(dataset, "streams", None):
            raise UsageError(
                f"only an elastic dataset can be served, not {type(dataset).__name__}: write dataset.elastic(streams); "
                "where shards are named, give --streams and --seed"
            )
        if dataset.seed is None:
            raise UsageError(
                "a dataset that is served needs a seed, which all servers of it have: WebDataset(seed=…), or --seed"
            )
        self._dataset = copy_dataset(dataset)
        self._listener = listener
        self._how = how or LaneSettings()
        self._most_lanes = most_lanes
        self._boot = hash_seed("boot", time.time_ns(), id(self)) >> 1
        self._lanes: dict[bytes, Lane] = {}
        # lanes that were closed, and may not have ended yet: they hold worker processes
        self._ending: list[Lane] = []
        self._outbox: deque[tuple[bytes, int, list[Frame]]] = deque()
        self._questions: list[Question] = []
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._ended = threading.Event()
        self._drain_until: float | None = None
        self._looked = 0.0
        self.counts: Counter[str] = Counter()
        self._description = encode_json(self._dataset.state_dict())

    @property
    def is_draining(self) -> bool:
        """True once the server was told to end."""
        return self._drain_until is not None or self._ended.is_set()

    @property
    def lanes(self) -> int:
        """Number of trainers that are served."""
        return len(self._lanes)

    def serve(self) -> None:
        """Serve until ``stop``, or until all trainers have left after ``drain``."""
        try:
            while not self._ended.is_set():
                blocked = self._flush()
                got = self._listener.receive(_FULL_SECONDS if blocked else _LOOK_SECONDS, self._ours)
                if got is not None:
                    self._handle(*got)
                self._look()
        finally:
            for peer in list(self._lanes):
                self._drop(peer)
            self._listener.close()
            self._ours.close()
            self._theirs.close()

    def drain(self, seconds: float) -> None:
        """Let trainers go to other servers, and end when they have left; safe in a signal handler.

        Args:
            seconds: after which the server ends in any case.
        """
        self._drain_until = time.monotonic() + seconds
        self._wake()

    def stop(self) -> None:
        """End now; safe in a signal handler and from other threads."""
        self._ended.set()
        self._wake()

    def _wake(self) -> None:
        # a full pipe wakes too, and a closed one has nothing to be woken
        with contextlib.suppress(OSError):
            self._theirs.send(b"w")

    # -- lines

    def _post(self, peer: bytes, nonce: int, frames: list[Frame]) -> None:
        """Take what a lane has made; called in its thread."""
        lane = self._lanes.get(peer)
        if lane is not None and lane.nonce == nonce:
            lane.unsent.append(frames)
            self._wake()

    def _flush(self) -> bool:
        """Send what there is; return whether a line is full."""
        blocked = False
        for _ in range(len(self._outbox)):
            peer, nonce, frames = self._outbox.popleft()
            if not self._send(peer, frames):
                self._outbox.append((peer, nonce, frames))
                blocked = True
        for peer, lane in list(self._lanes.items()):
            while lane.unsent and self._lanes.get(peer) is lane:
                if not self._send(peer, lane.unsent[0]):
                    blocked = True
                    break
                lane.unsent.popleft()
                lane.wake()
        return blocked

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send a message; one to a trainer that is gone counts as sent."""
        try:
            return self._listener.send(peer, frames)
        except ConnectionError:
            self._drop(peer)
            return True

    def _answer(self, peer: bytes, *frames: Frame) -> None:
        """Send a short message; where a line is full it is dropped: the trainer asks again."""
        self._send(peer, frames)

    def _refuse(self, peer: bytes, nonce: int, code: str, words: str) -> None:
        self._answer(peer, encode_message("NO", nonce=nonce, code=code, words=words))

    # -- messages

    def _handle(self, peer: bytes, frames: Sequence[Frame]) -> None:
        try:
            header, state = decode_message(frames, _KINDS)
        except WireError as error:
            self.counts["malformed"] += 1
            log.warning("serve: a message was dropped: %s", error)
            self._drop(peer)
            return
        self.counts["messages"] += 1
        getattr(self, f"_handle_{header['kind'].lower()}")(peer, header, state)

    def _handle_hello(self, peer: bytes, header: Header, state: object) -> None:  # noqa: ARG002  as all of them
        if header["version"] != PROTOCOL_VERSION:
            words = f"this server speaks version {PROTOCOL_VERSION}, the trainer {header['version']}: update the older"
            self._refuse(peer, 0, "version", words)
            return
        self._answer(peer, encode_message("WELCOME", version=PROTOCOL_VERSION, boot=self._boot), self._description)
        if self.is_draining:
            self._say_bye(peer)

    def _handle_open(self, peer: bytes, header: Header, state: object) -> None:
        nonce = header["nonce"]
        before = self._lanes.get(peer)
        if before is not None and before.nonce == nonce:
            return
        self._drop(peer)
        if self.is_draining:
            self._refuse(peer, nonce, "busy", "this server ends soon")
            return
        self._ending = [each for each in self._ending if each.is_alive()]
        if max(len(self._lanes), len(self._ending)) >= self._most_lanes:
            self._refuse(peer, nonce, "busy", f"this server serves {self._most_lanes} trainers already")
            return
        if header["hedge"]:
            # a slow store makes all lanes slow: what they ask for a second time must not double the work
            allowed = count_allowed_hedges(len(self._lanes))
            if sum(lane.hedge for lane in self._lanes.values()) >= allowed:
                self._refuse(peer, nonce, "busy", f"this server has {allowed} second lanes of other trainers already")
                return
            self.counts["hedged"] += 1
        self.counts["opened"] += 1
        lane = Lane(copy_dataset(self._dataset), self._how, peer, header, state, self._post)
        lane.heard = time.monotonic()
        self._lanes[peer] = lane
        lane.start()

    def _handle_ask(self, peer: bytes, header: Header, state: object) -> None:
        self._questions = [each for each in self._questions if each.is_alive()]
        if len(self._questions) >= _MOST_QUESTIONS or header["what"] not in ("over", "advance"):
            self._refuse(peer, header["nonce"], "busy", "this server answers other questions")
            return
        self.counts["asked"] += 1

        def answer(frames: Sequence[Frame]) -> None:
            self._outbox.append((peer, 0, list(frames)))
            self._wake()

        question = Question(copy_dataset(self._dataset), header, state, answer)
        self._questions.append(question)
        question.start()

    def _find(self, peer: bytes, header: Header) -> Lane | None:
        lane = self._lanes.get(peer)
        if lane is None or lane.nonce != header["nonce"]:
            self._refuse(peer, header["nonce"], "unknown", "this server has no such lane")
            return None
        lane.heard = time.monotonic()
        return lane

    def _handle_credit(self, peer: bytes, header: Header, state: object) -> None:  # noqa: ARG002  as all of them
        lane = self._find(peer, header)
        if lane is not None:
            # it is the trainer's lane from now on
            lane.hedge = False
            lane.allow(header["to"])

    def _handle_beat(self, peer: bytes, header: Header, state: object) -> None:  # noqa: ARG002  as all of them
        if not header["nonce"] or self._find(peer, header) is not None:
            self._answer(peer, encode_message("BEAT", nonce=header["nonce"]))

    def _handle_close(self, peer: bytes, header: Header, state: object) -> None:  # noqa: ARG002  as all of them
        lane = self._lanes.get(peer)
        if lane is not None and lane.nonce == header["nonce"]:
            self._drop(peer)

    def _drop(self, peer: bytes) -> None:
        lane = self._lanes.pop(peer, None)
        if lane is not None:
            self.counts["samples"] += lane.samples
            self.counts["bytes"] += lane.bytes
            lane.close()
            self._ending.append(lane)

    def _say_bye(self, peer: bytes) -> None:
        left = 0.0 if self._drain_until is None else max(0.0, self._drain_until - time.monotonic())
        self._answer(peer, encode_message("BYE", seconds=int(left)))

    # -- time

    def _look(self) -> None:
        """Drop trainers that are silent, and see whether the server is to end."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        for peer, lane in list(self._lanes.items()):
            if now - lane.heard > _SILENCE_SECONDS:
                self.counts["silent"] += 1
                self._drop(peer)
        if self._drain_until is not None:
            for peer in list(self._lanes):
                self._say_bye(peer)
            if not self._lanes or now > self._drain_until:
                self._ended.set()

    def read_counts(self) -> dict[str, int]:
        """Return the counters as they are now, for metrics."""
        found = dict(self.counts)
        lanes = list(self._lanes.values())
        found["samples"] = found.get("samples", 0) + sum(lane.samples for lane in lanes)
        found["bytes"] = found.get("bytes", 0) + sum(lane.bytes for lane in lanes)
        return {**found, "lanes": len(lanes), "draining": int(self.is_draining)}


def check_address(url: str, *, encrypted: bool, anywhere: bool) -> None:
    """Refuse to listen in the open without keys.

    Args:
        url: to bind.
        encrypted: lines are.
        anywhere: the user knows that everyone in the network may connect.

    Raises:
        UsageError: no address; or lines that are not encrypted, off the loopback address.
    """
    check_server_url(url)
    scheme, _, rest = url.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    local = scheme == "ipc" or host in ("127.0.0.1", "::1", "localhost")
    if not encrypted and not local and not anywhere:
        raise UsageError(
            f"{url} can be reached from other machines, and lines are not encrypted (--plain): give --key and --allow "
            "(wds serve keygen makes keys), or --bind-any where the network is private"
        )
