"""A lane: what a data server makes for one trainer, in a thread with worker processes of its own.

Theory. A lane gets a state and makes the batches that follow it, by a loader of its own. Which batches these are
follows from the dataset and the state alone, so a trainer that lost its server continues at any other one. The lane
makes batch ``n`` only when the trainer has allowed it (``credit``), and keeps nothing that matters: it can end at any
time.

What a lane makes is read by a worker process (``workers`` of the server), whose death ends this lane alone.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import FlowError, StateMismatch, UsageError, WebDatasetError, describe_error
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.flow.elastic_state import check_same_dataset, check_state, select_stream_states
from webdataset.loading.batching import END, NOTHING_RECEIVED, BatchMark
from webdataset.loading.loader import Loader
from webdataset.loading.loader_checks import EpochEnd
from webdataset.loading.partition import (
    ElasticAdapter,
    EpochStart,
    count_indices_before,
    find_next_position,
)
from webdataset.serving.batch_format import encode_part
from webdataset.serving.wire_format import Frame, Header, encode_json, encode_message
from webdataset.stages.base import Json

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline

# samples that are made again to find a position within a window
_MOST_REPLAYED = 1 << 20
_MOST_STREAMS_ASKED = 1 << 16
_LONGEST_WORDS = 4000
# of a text as JSON: a header of 64 KiB holds four of them
_LONGEST_JSON_BYTES = 12_000
# batches that wait for the line
_MOST_UNSENT = 2

Post = Callable[[bytes, int, list[Frame]], None]


@dataclass(frozen=True)
class LaneSettings:
    """How a server makes batches.

    Args:
        workers: of each lane; 0 makes batches in the lane's thread.
        mode: ``processes`` or ``threads``.
        start_method: of processes.
        prefetch: batches that workers of a lane are ahead by.
        most_credit: batches that a trainer may ask for ahead.
        most_batch: samples in a batch.
    """

    workers: int = 1
    mode: str = "processes"
    start_method: str | None = "forkserver"
    prefetch: int = 2
    most_credit: int = 64
    most_batch: int = 1 << 20


class LaneLoader(Loader):
    """The loader of a lane: every part says what changed in the state."""

    def _often(self) -> bool:
        return True

    def deliver(self, beginning: EpochStart) -> Generator[tuple[object, BatchMark]]:
        """Yield the batches after a beginning with their marks; END comes last."""
        found = self._start_windows(beginning)
        samples = 0
        try:
            for batch, mark in self._make_batches(found, NOTHING_RECEIVED):
                samples += mark.samples
                if batch is END and self._windows is not None:
                    EpochEnd(self._origin, beginning, self._windows.outcomes).judge(samples)
                yield batch, mark
                del batch
        finally:
            found.close()


def prepare_beginning(dataset: "ElasticPipeline", header: Header, state: Json) -> EpochStart:
    """Return where a trainer's epoch begins or continues.

    Args:
        dataset: an elastic dataset.
        header: the trainer's OPEN or ASK.
        state: that came with it.

    Raises:
        StateMismatch: it is no state of this dataset.
        UsageError: ranks that cannot be.
    """
    rank, ranks = header["rank"], header["ranks"]
    if not rank < ranks <= dataset.streams:
        raise UsageError(f"rank {rank} of {ranks}, where {dataset.streams} streams are shared out between the ranks")
    place = WorkerContext(rank, ranks, 0, 1)
    checked = check_state(state)
    here = dataset.begin_state()
    check_same_dataset(checked, here)
    own = list(range(rank, dataset.streams, ranks))
    select_stream_states(checked, own)
    found = find_next_position(checked, own)
    start = 0 if found is None else count_indices_before(found, dataset.streams, own)
    if header["until"] and found is not None and header["until"] - start > _MOST_REPLAYED:
        raise StateMismatch(
            f"a position {header['until'] - start} samples after its state: send the state nearer to it"
        )
    return EpochStart(int(checked["epoch"]), start, checked, place=place, seed=int(checked["seed"]))


def advance_beginning(dataset: "ElasticPipeline", beginning: EpochStart, until: int) -> Json:
    """Return a beginning's state, further on: before the first index that was not received.

    Args:
        dataset: an elastic dataset.
        beginning: of a state.
        until: that index; 0 where the state is meant as it is.
    """
    if not until:
        return beginning.state
    return ElasticAdapter(dataset).advance_state(beginning.state, beginning, until)


class Lane(threading.Thread):
    """One trainer's batches.

    Args:
        dataset: an elastic dataset; a copy of the server's.
        how: how batches are made.
        peer: the trainer.
        header: its OPEN.
        state: that came with it.
        post: is given what is to be sent: trainer, nonce, frames.
    """

    def __init__(  # noqa: PLR0917  one value each
        self, dataset: "ElasticPipeline", how: LaneSettings, peer: bytes, header: Header, state: Json, post: Post
    ) -> None:
        super().__init__(name=f"webdataset-lane-{header['rank']}", daemon=True)
        self.peer, self.nonce = peer, int(header["nonce"])
        self._dataset, self._how, self._header, self._state = dataset, how, header, state
        self._post_frames = post
        self._seq = 0
        self._credit = 0
        self._changed = threading.Condition()
        self._closed = False
        # of messages, until they are handed to the line
        self.unsent: deque[list[Frame]] = deque()
        self.samples = self.bytes = 0
        # set by the server: when the trainer was heard last; whether it has another lane, at a server that is slow
        self.heard = 0.0
        self.hedge = bool(header.get("hedge"))
        self.allow(int(header["credit"]))

    @property
    def rank(self) -> int:
        """The rank of the trainer."""
        return int(self._header["rank"])

    def allow(self, credit: int) -> None:
        """Take note that batches up to a number may be made; an older message changes nothing."""
        with self._changed:
            self._credit = max(self._credit, min(credit, self._seq + self._how.most_credit))
            self._changed.notify_all()

    def close(self) -> None:
        """Let the lane end; it does so by itself."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Take note that a message went to the line."""
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Make batches until the epoch is over, or the lane is closed."""
        try:
            self._serve()
        except (StateMismatch, UsageError) as error:
            code = "refused" if not self._seq else "failed"
            self._post_failure(error, code)
        except BaseException as error:  # noqa: BLE001  code of the dataset, SystemExit too: the trainer raises it
            self._post_failure(error, "failed")

    def _serve(self) -> None:
        beginning = prepare_beginning(self._dataset, self._header, self._state)
        until = self._header["until"]
        if until:
            state = advance_beginning(self._dataset, beginning, until)
            beginning = prepare_beginning(self._dataset, {**self._header, "until": 0}, state)
        batch, how = self._header["batch"], self._how
        if batch > how.most_batch:
            raise UsageError(f"a batch of {batch} samples: this server makes at most {how.most_batch}")
        if self._header["exact"] and batch:
            beginning = replace(beginning, start=beginning.start - beginning.start % batch)
        flags = {name: self._header[name] for name in ("drop_last", "exact", "ragged")} if batch else {}
        loader = LaneLoader(
            self._dataset,
            batch or None,
            workers=how.workers,
            mode=how.mode,
            start_method=how.start_method if how.mode == "processes" and how.workers else None,
            prefetch=how.prefetch,
            timings=False,
            **flags,
        )
        with loader:
            delivered = loader.deliver(beginning)
            try:
                self._send_batches(delivered, beginning.start)
            finally:
                delivered.close()

    def _send_batches(self, delivered: Generator[tuple[object, BatchMark]], start: int) -> None:
        while self._await_credit():
            batch, mark = next(delivered)
            over = batch is END
            frames = encode_part(self.nonce, self._seq + 1, None if over else batch, mark, start, over=over)
            self._seq += 1
            self._post(frames)
            self.samples += mark.samples
            del batch, frames
            if over:
                return

    def _await_credit(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._credit > self._seq and len(self.unsent) < _MOST_UNSENT)
            )
            return not self._closed

    def _post(self, frames: list[Frame]) -> None:
        if not self._closed:
            self.bytes += sum(map(len, frames))
            self._post_frames(self.peer, self.nonce, frames)

    def _post_failure(self, error: BaseException, code: str) -> None:
        log.warning("serve: rank %d: %s", self.rank, redact(describe_error(error)))
        words = redact(str(error.message if isinstance(error, WebDatasetError) else describe_error(error)))
        if code == "refused":
            self._post([encode_message("NO", nonce=self.nonce, code=code, words=fit_into_header(words))])
            return
        places = {name: str(getattr(error, name, None) or "") for name in ("url", "key", "field")}
        kind = type(error).__name__ if isinstance(error, WebDatasetError) else FlowError.__name__
        places = {name: fit_into_header(redact(text) if name == "url" else text) for name, text in places.items()}
        self._post(
            [
                encode_message(
                    "FAILURE", nonce=self.nonce, seq=self._seq + 1, type=kind, words=fit_into_header(words), **places
                )
            ]
        )


class Question(threading.Thread):
    """Answers a trainer's question about a state.

    Args:
        dataset: an elastic dataset; a copy of the server's.
        header: the trainer's ASK.
        state: that came with it.
        answer: is given the frames.
    """

    def __init__(
        self, dataset: "ElasticPipeline", header: Header, state: Json, answer: Callable[[Sequence[Frame]], None]
    ) -> None:
        super().__init__(name="webdataset-question", daemon=True)
        self._dataset, self._header, self._state, self._answer = dataset, header, state, answer

    def run(self) -> None:
        """Find the answer and give it."""
        header = self._header
        try:
            beginning = prepare_beginning(self._dataset, header, self._state)
            if header["what"] == "over":
                answer = bool(ElasticAdapter(self._dataset).over(beginning.state, beginning))
                found: Json = {}
            else:
                answer, found = True, advance_beginning(self._dataset, beginning, header["until"])
            frames: list[Frame] = [
                encode_message("ANSWER", nonce=header["nonce"], answer=answer, state=bool(found)),
                encode_json(found),
            ]
        except BaseException as error:  # noqa: BLE001  code of the dataset, SystemExit too: the trainer gets its words
            words = fit_into_header(redact(describe_error(error)))
            frames = [encode_message("NO", nonce=header["nonce"], code="question", words=words)]
        self._answer(frames)


def fit_into_header(text: str) -> str:
    """Return the beginning of a text, which fits into a header whatever its characters are."""
    beginning = text[:_LONGEST_WORDS]
    # a character has up to twelve bytes as JSON
    return beginning if len(encode_json(beginning)) <= _LONGEST_JSON_BYTES else beginning[: _LONGEST_JSON_BYTES // 12]


def copy_dataset(dataset: "ElasticPipeline") -> "ElasticPipeline":
    """Return a copy of a dataset, whose runs do not change the original."""
    copied = copy.copy(dataset)
    copied.in_streams(dataset.streams)
    return copied
