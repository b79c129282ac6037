"""A loader whose batches are made by data servers (``wds serve``), with the state of a local one.

Theory. :class:`RemoteLoader` is :class:`~webdataset.loading.loader.Loader` with another source of batches: the server
makes whole batches, by the same code as a local loader does, and says with each what changed in the state. So epochs,
states, statistics and devices are those of ``Loader``, and a state moves between local and remote runs. What a state
means is known to the servers alone: they are asked where the trainer cannot tell.
"""

import os
import queue
import time
import weakref
from collections.abc import Callable, Generator, Sequence

from webdataset.core.distributed import WorkerContext, worker_context
from webdataset.core.errors import SourceError, UsageError
from webdataset.core.logs import log
from webdataset.flow.elastic import streams_of_worker
from webdataset.flow.elastic_state import (
    SUM_KEY,
    build_state,
    check_same_dataset,
    check_state,
    select_stream_states,
    warn_other_functions,
)
from webdataset.loading.batching import END, BatchMark, ReceivedSamples
from webdataset.loading.loader import Loader
from webdataset.loading.partition import (
    ElasticAdapter,
    EpochStart,
    count_indices_before,
    find_next_position,
)
from webdataset.serving.curve_keys import load_key_pair, load_public_key
from webdataset.serving.lane_client import LaneClient
from webdataset.serving.lane_progress import LaneItem, LaneOrder
from webdataset.serving.zmq_transport import Channel, ZmqChannel, check_server_url
from webdataset.shards.expand import expand_urls
from webdataset.stages.base import Json

_WARN_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_GIGABYTE = 1 << 30


class RemoteAdapter(ElasticAdapter):
    """The dataset of some servers, as a loader sees it.

    Args:
        urls: of the servers.
        connect: makes a line to one of them.
        timeout: seconds without any server until an error; None waits.
        silence_seconds: after which a server is left for the next one.
        hedge_seconds: after which a second server is asked; None waits.
    """

    def __init__(
        self,
        urls: Sequence[str],
        connect: Callable[[str], Channel],
        timeout: float | None,
        silence_seconds: float,
        hedge_seconds: float | None = None,
    ) -> None:
        self.urls, self._connect = list(urls), connect
        self._timeout, self._silence, self._hedge = timeout, silence_seconds, hedge_seconds
        self._lane: LaneClient | None = None
        # closes the lane when the loader is forgotten
        self._ending: weakref.finalize[[], RemoteAdapter] | None = None
        self._owner = 0
        self._header: dict[str, Json] | None = None

    def __getstate__(self) -> dict[str, Json]:
        return {**self.__dict__, "_lane": None, "_ending": None}

    # -- the lane

    @property
    def lane(self) -> LaneClient:
        """The lane of this process, started at the first use."""
        lane = self._lane
        if lane is None or not lane.is_alive() or lane.failure is not None or self._owner != os.getpid():
            self.close()
            place = worker_context()
            name = f"{place.rank}/{place.world_size}/{place.worker}"
            self._lane = lane = LaneClient(self.urls, self._connect, name, self._silence, self._hedge)
            lane.header = self._header
            self._owner = os.getpid()
            self._ending = weakref.finalize(self, lane.close)
            lane.start()
        return lane

    def close(self) -> None:
        """End the lane."""
        lane, self._lane = self._lane, None
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.detach()
        if lane is not None and self._owner == os.getpid():
            lane.close()

    def wait(self, lane: LaneClient, look: Callable[[float], Json]) -> Json:
        """Return what is waited for; warn while no server is heard.

        Args:
            lane: that is waited for.
            look: waits for so many seconds, and returns what there is, or raises ``queue.Empty``.

        Raises:
            SourceError: no server was heard within the timeout.
            StateMismatch: no server takes this run.
        """
        began = warned = time.monotonic()
        while True:
            try:
                return look(_LOOK_SECONDS)
            except queue.Empty:
                pass
            if lane.failure is not None:
                raise lane.failure
            now = time.monotonic()
            silent = now - max(lane.alive, began)
            if self._timeout is not None and silent > self._timeout:
                raise SourceError(
                    f"no data server was heard for {silent:.0f} s ({lane.describe_servers()}): start one with "
                    "'wds serve', or name the servers that run (one with other keys or --plain does not answer)"
                )
            if now - warned > _WARN_SECONDS:
                warned = now
                log.warning("RemoteLoader: waits since %.0f s for a batch (%s)", now - began, lane.describe_servers())

    def describe(self) -> dict[str, Json]:
        """Return the servers' dataset: a state at the start of an epoch."""
        if self._header is None:
            lane = self.lane
            lane.want()

            def look(seconds: float) -> dict[str, Json]:
                if lane.header is None:
                    time.sleep(seconds / 50)
                    raise queue.Empty
                return lane.header

            self._header = self.wait(lane, look)
        return self._header

    def ask(self, beginning: EpochStart, state: Json, what: str, until: int = 0) -> tuple[bool, Json]:
        """Ask a server about a state.

        Raises:
            FlowError: it could not tell.
        """
        lane = self.lane
        answers = lane.ask(beginning, state, what, until)
        answer = self.wait(lane, lambda seconds: answers.get(timeout=seconds))
        if isinstance(answer, BaseException):
            raise answer
        found: tuple[bool, Json] = answer
        return found

    # -- what a loader asks of a dataset

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins, or continues.

        Raises:
            StateMismatch: the state belongs to another dataset than the servers'.
            UsageError: more ranks than streams.
        """
        here = self.describe()
        claimed = worker_context()
        place = WorkerContext(claimed.rank, claimed.world_size, 0, 1)
        own = streams_of_worker(here["streams"], place)
        header = {name: part for name, part in here.items() if name not in ("received", "memories", SUM_KEY)}
        chosen: dict[int, Json] = dict.fromkeys(own)
        if state is not None:
            checked = check_state(state)
            check_same_dataset(checked, here)
            warn_other_functions(checked, here)
            epoch, chosen = checked["epoch"], select_stream_states(checked, own)
        begun = build_state(
            {**header, "epoch": epoch}, {str(number): stream_state for number, stream_state in chosen.items()}
        )
        found = find_next_position(begun, own)
        start = 0 if found is None else count_indices_before(found, int(begun["streams"]), own)
        return EpochStart(int(begun["epoch"]), start, begun, place=place, seed=int(begun["seed"]))

    def pending(self) -> Json:
        """Return None: states are loaded into the loader."""
        return None

    def chosen(self) -> bool:
        """Return False, as no state is pending."""
        return False

    def forget(self) -> None:
        """Do nothing: no state is pending."""

    def over(self, state: Json, beginning: EpochStart) -> bool:
        """Tell whether no other rank has anything left after a state, where it knows them."""
        return self.ask(beginning, state, "over")[0]

    def check(self, beginning: EpochStart) -> None:
        """Do nothing: the server has judged the epoch."""

    def advance_state(self, state: Json, beginning: EpochStart, until: int) -> dict[str, Json]:
        """Return the state of a rank further on.

        Raises:
            FlowError: the server's answer is none.
        """
        found = self.ask(beginning, state, "advance", until)[1]
        advanced = check_state(found)
        check_same_dataset(advanced, state)
        return advanced


class RemoteLoader(Loader):
    """Loads batches that data servers make.

    Its order and its state are those of a :class:`~webdataset.loading.loader.Loader` over the dataset that is served.
    A server that is lost costs time only: the next one continues after the batch that came last.

    Args:
        servers: urls ``tcp://host:port``; a list, or one text with braces (``tcp://data{0..3}:5600``). Each rank uses
            one of them, and the others where that one does not answer.
        batch_size: samples in a batch, on this rank; None delivers what the dataset gives.
        key: the secret file of this trainer (``wds serve keygen``).
        server_key: the public key of the servers, or its file.
        plain: do not encrypt; needed for servers that were started with ``--plain``, or on this machine.
        prefetch: batches that may wait here.
        prefetch_bytes: the memory that these may take; one batch is always allowed.
        drop_last: leave out a last batch that is smaller; ``stats().drops`` counts its samples.
        ragged: arrays of different shapes in one batch become a list; False makes them an error.
        exact: as of ``Loader``: batches stay smaller where streams have ended.
        device: where torch tensors are wanted, as of ``Loader``.
        pin_memory: copy through page-locked memory on the way to a device.
        timeout: seconds without any server until an error; None waits, and warns every 30 seconds.
        silence_seconds: after which a server that says nothing is left for the next one.
        hedge_seconds: after which, at the earliest, a server that lives and sends no batch is raced by another one: the
            first batch wins. It waits five times as long as batches usually take, if that is longer. None waits.

    Raises:
        UsageError: arguments that cannot mean anything, or neither keys nor ``plain``.
        ConfigError: a key that cannot be read.
        MissingExtra: pyzmq is not installed.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        batch_size: int | None = None,
        *,
        key: str | os.PathLike[str] | None = None,
        server_key: str | os.PathLike[str] | None = None,
        plain: bool = False,
        prefetch: int = 3,
        prefetch_bytes: int = _GIGABYTE,
        drop_last: bool = False,
        ragged: bool = True,
        exact: bool = False,
        device: object = None,
        pin_memory: bool = False,
        timeout: float | None = None,
        silence_seconds: float = 3.0,
        hedge_seconds: float | None = 1.0,
    ) -> None:
        urls = expand_urls(servers)
        if not urls:
            raise UsageError("servers=[]: name at least one, tcp://host:5600")
        connect = _Connection(urls, key, server_key, plain=plain)
        self._remote = RemoteAdapter(urls, connect, timeout, silence_seconds, hedge_seconds)
        super().__init__(
            self._remote,
            batch_size,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            drop_last=drop_last,
            ragged=ragged,
            exact=exact,
            device=device,
            pin_memory=pin_memory,
            timings=False,
        )
        # servers make them
        self._make_batches = _pass_on

    def _start_windows(self, beginning: EpochStart) -> Generator[tuple[object, BatchMark]]:
        """Let a server begin an epoch, and return what it delivers: whole batches with their marks."""
        ahead, _, ahead_bytes = self.ahead
        batching = self.batching
        flags = {"drop_last": batching.drop_last, "exact": batching.exact, "ragged": batching.ragged}
        lane = self._remote.lane
        items = lane.begin(LaneOrder(beginning, self.batch_size or 0, flags, ahead, ahead_bytes))
        return self._receive(lane, items)

    def _receive(self, lane: LaneClient, items: "queue.SimpleQueue[LaneItem]") -> Generator[tuple[object, BatchMark]]:
        try:
            while True:
                item: LaneItem = self._remote.wait(lane, lambda seconds: items.get(timeout=seconds))
                lane.wake()
                if item.error is not None:
                    raise item.error
                batch, mark = item.batch, item.mark
                del item
                yield batch, mark
                if batch is END:
                    return
                del batch
        finally:
            lane.stop()

    def close(self) -> None:
        """Leave the servers. May be called twice; iterating again connects anew."""
        super().close()
        self._remote.close()

    def explain(self) -> str:
        """Say where batches come from; the servers know the stages."""
        size = "as the dataset gives them" if self.batch_size is None else f"of {self.batch_size} samples"
        return f"batches {size}, made by the data servers {', '.join(self._remote.urls)} (wds serve)"

    def __repr__(self) -> str:
        return f"RemoteLoader({self._remote.urls}, batch_size={self.batch_size})"


def _pass_on(
    delivered: Generator[tuple[object, BatchMark]], _before: ReceivedSamples
) -> Generator[tuple[object, BatchMark]]:
    return delivered


class _Connection:
    """Makes lines to servers; it can be pickled, and its secrets are read where it is used."""

    def __init__(
        self,
        urls: Sequence[str],
        key: str | os.PathLike[str] | None,
        server_key: str | os.PathLike[str] | None,
        *,
        plain: bool,
    ) -> None:
        for url in urls:
            check_server_url(url)
        if (key is None) != (server_key is None):
            raise UsageError("key= and server_key= belong together: the trainer's secret file, the server's public key")
        if plain and key is not None:
            raise UsageError("plain=True means no encryption: leave out key= and server_key=")
        if key is None and not plain:
            raise UsageError(
                "a RemoteLoader encrypts: give key= and server_key= (wds serve keygen makes them), or plain=True for "
                "servers started with --plain"
            )
        self._key, self._server_key = key, server_key
        self._check()

    def _check(self) -> None:
        if self._key is not None and self._server_key is not None:
            load_key_pair(self._key)
            load_public_key(self._server_key)

    def __call__(self, url: str) -> ZmqChannel:
        if self._key is None or self._server_key is None:
            return ZmqChannel(url)
        return ZmqChannel(url, load_key_pair(self._key), load_public_key(self._server_key))
