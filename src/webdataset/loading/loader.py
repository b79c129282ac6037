"""The loader: a dataset, workers that decode into batches, and the state after the batch received last.

The order of batches follows from an elastic dataset's seed and epoch, whatever the number and kind of workers. Nothing
runs before the first iteration, nor after ``close`` or garbage collection. A loader runs one epoch at a time; the
iterator of an epoch that was cancelled for another one raises, and never ends as if the epoch were complete.
"""

import time
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, Never, Self

from webdataset.core.distributed import worker_context
from webdataset.core.errors import StateMismatch, WorkerDied
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.core.seeds import read_epoch
from webdataset.core.upstream_utils import check_flags
from webdataset.flow.elastic_state import ReceivedState, has_progress, held_states
from webdataset.flow.virtual_stream import is_epoch_over, rewind_state, warn_of_other_epoch
from webdataset.loading.batching import (
    END,
    NOTHING_RECEIVED,
    BatchMaker,
    BatchMark,
    ReceivedSamples,
    iterate_samples,
)
from webdataset.loading.columns import estimate_bytes
from webdataset.loading.loader_checks import (
    EXACT,
    READY,
    EpochEnd,
    check_arguments,
    check_options,
    check_restarts,
    check_single_samples,
    compare_length,
    make_device_prefetcher,
    missing_loader_state,
    read_order,
    warn_of_unequal_ranks,
)
from webdataset.loading.loader_progress import EpochProgress, LoaderIterator, RestartPoint
from webdataset.loading.partition import ElasticAdapter, EpochStart, adapt_dataset
from webdataset.loading.ready_order import ReadyAssembler
from webdataset.loading.stats import LoaderStats
from webdataset.loading.thread_workers import InlineWorkers, ThreadWorkers
from webdataset.loading.windows import AheadLimits, PublishBlock, WindowAssembler, WorkerPool
from webdataset.stages.base import Json

_GIGABYTE = 1 << 30
# batches between two states
_OFTEN = 50


class Loader:
    """Loads batches of a dataset with threads or processes.

    Args:
        dataset: a pipeline (``dataset.elastic()`` for an order and states that do not depend on the workers), a
            sequence, or an iterable.
        batch_size: samples in a batch, on this rank; None delivers what the dataset gives.
        workers: threads or processes that read and decode; 0 does so in this thread.
        mode: ``threads`` or ``processes``.
        start_method: of processes: ``fork``, ``forkserver``, ``spawn``; None is Python's own choice.
        prefetch: batches that workers may be ahead by (without a batch size, samples of each worker); None: 3, or up to
            16 where these take no more than 16 MiB.
        prefetch_bytes: the memory that these may take; one batch is always allowed.
        drop_last: leave out a last batch that is smaller; ``stats().drops`` counts its samples.
        collate: from a list of samples to a batch, called here; None makes columns: arrays of one shape are joined,
            numbers become arrays, all else lists. Only without it do workers write into the batch.
        ragged: arrays of different shapes in one batch become a list; False makes them an error.
        exact: where streams have ended, leave batches smaller instead of filling them up from the next ones: then all
            ranks' batches together are the same for any number of ranks to the end of the epoch.
        device: where torch tensors are wanted: ``"cpu"`` (no copy), ``"cuda:0"`` (copied ahead, asynchronously);
            None leaves numpy arrays.
        pin_memory: copy through page-locked memory on the way to a device.
        timings: time the dataset's stages on a few samples, for ``stats().stages``.
        timeout: seconds; a worker process that the program waits for, and that makes no sample for so long, is killed,
            and ``WorkerTimeout`` raised. Longer than it takes to start and to fill the dataset's shuffle buffers.
            None waits.
        order: ``exact``: it depends on seed and epoch alone. ``ready``: slow samples do not hold up those of other
            workers. Each sample of the epoch comes once, also over stops and resumes, and on each rank there are as
            many batches; in which order they come depends on time.
        window: of ``order="ready"``: a sample comes at most so many batches early, 64 if None. (Without a batch size,
            so many samples, and at least one of each worker.)
        max_restarts: how often in a row, without a batch between, worker processes are started again when one has died
            or was killed. The epoch continues after the batch received last: nothing is lost or comes twice. The log
            tells of each, and ``stats().restarts`` counts them. Only for elastic datasets.

    Raises:
        UsageError: arguments that cannot mean anything.
        TypeError: an argument that there is not; it names the one that takes its place.
        MissingExtra: a device is named, and torch is not installed.
    """

    # what to continue from with new workers
    _restart: RestartPoint | None = None
    # since the batch received last
    _restarts = 0
    # an epoch that has failed, and the one after it
    _following: tuple[int, int] | None = None
    # set_epoch has named the epoch of the state: its rest is given, though nothing be left
    _chosen = False
    # batches when a state was asked for last; as if one had been at the beginning
    _saved = 0
    # another loader passes these batches on, and has the state
    shared = False

    def __init__(
        self,
        dataset: object,
        batch_size: int | None = None,
        *,
        workers: int = 0,
        mode: str = "threads",
        start_method: str | None = None,
        prefetch: int | None = None,
        prefetch_bytes: int = _GIGABYTE,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        ragged: bool = True,
        exact: bool = False,
        device: object = None,
        pin_memory: bool = False,
        timings: bool = True,
        timeout: float | None = None,
        order: str = EXACT,
        window: int | None = None,
        max_restarts: int = 0,
        **unknown: Never,
    ) -> None:
        check_arguments(batch_size, workers, mode, prefetch, unknown=unknown, loader=Loader)
        check_flags(drop_last=drop_last, ragged=ragged, exact=exact, pin_memory=pin_memory, timings=timings)
        ahead_bytes = check_options(dataset, workers, collate, start_method, prefetch_bytes)
        if batch_size is None:
            check_single_samples(collate=collate is not None, drop_last=drop_last, exact=exact, ragged=not ragged)
        # batches that samples may come early by
        self._most_early = None if order == EXACT and window is None else read_order(order, window, exact=exact)
        self.dataset, self.batch_size, self.order = dataset, batch_size, order
        self.workers, self.mode, self.start_method = workers, mode, start_method
        self.epoch = int(getattr(dataset, "epoch", 0) or 0)
        self._origin = adapt_dataset(dataset)
        if max_restarts or timeout is not None:
            check_restarts(self._origin, max_restarts, timeout, processes=mode == "processes" and workers > 0)
        self.timeout, self.max_restarts = timeout, max_restarts
        self._ahead = AheadLimits(*((3, 16) if prefetch is None else (prefetch, prefetch)), ahead_bytes)
        self._batching = BatchMaker(batch_size or 1, collate, ragged, drop_last, exact)
        # of what `_start_windows` returns
        self._make_batches: Callable[[Generator[Json], ReceivedSamples], Generator[tuple[object, BatchMark]]] = (
            iterate_samples if batch_size is None else self._batching.batches
        )
        self._timings, self._stats = timings, LoaderStats(workers=workers)
        self._pool: WorkerPool | None = None
        self._windows: WindowAssembler | None = None
        self._current: weakref.ref[LoaderIterator[Any]] | None = None
        # to begin the next epoch with
        self._state: Json = None
        # workers have begun the present epoch, so that its state is of use
        self._begun = False
        # what the present epoch began with, where the next one follows at its end
        self._resumed: Json = None
        # closes the worker pool when the loader is forgotten
        self._ending: weakref.finalize[[], Loader] | None = None
        self._beginning: EpochStart | None = None
        self._received: ReceivedState | None = None
        self._progress = EpochProgress()
        self._publish: PublishBlock | None = None
        self._device = make_device_prefetcher(device, pin_memory=pin_memory)

    # -- iteration

    def __iter__(self) -> Iterator[Any]:
        """Load an epoch; one that still runs is given up, and raises where it is asked for more."""
        self._give_up("another one was begun")
        epoch = LoaderIterator(self._epoch())
        self._current = weakref.ref(epoch)
        return epoch

    def _give_up(self, reason: str) -> None:
        running = self._current() if self._current is not None else None
        if running is not None:
            running.give_up(reason)
        self._current = None

    def _epoch(self) -> Generator[Any]:
        marked = self._load_batches()
        stats = self._stats
        began = time.perf_counter()
        before_epoch, given = stats.samples, stats.batches
        stats.epochs += 1
        self._restarts = 0
        try:
            while True:
                before = time.perf_counter()
                try:
                    batch, mark = next(marked)
                except WorkerDied as error:
                    self._note_following()
                    self._prepare_restart(error, given)
                    # what came before is in the state
                    before_epoch = stats.samples - (self._restart.beyond if self._restart is not None else 0)
                    marked = self._load_batches()
                    continue
                now = time.perf_counter()
                stats.waiting_seconds += now - before
                stats.running_seconds += now - began
                began = now
                self._take(mark)
                if batch is END:
                    if stats.batches > given or not self._continue_epochs():
                        self._compare(stats.samples - before_epoch)
                        return
                    marked.close()
                    marked = self._load_batches()
                    continue
                stats.batches += 1
                self._restarts = 0
                if self._windows is not None and not self._often():
                    self._windows.eager = False
                stats.samples += mark.samples
                stats.bytes += estimate_bytes(batch) if mark.size_bytes is None else mark.size_bytes
                held = [batch]
                del batch
                # nothing here refers to what the program lets go of
                yield held.pop()
        except Exception:  # counted and raised again
            stats.failures += 1
            self._count_failure()
            self._note_following()
            raise
        finally:
            stats.running_seconds += time.perf_counter() - began
            marked.close()

    def _note_following(self) -> None:
        """Keep which epoch follows one that fails, for who continues it: ``set_epoch`` may have named it meanwhile."""
        if self._following is None and self._begun and self._beginning is not None:
            self._following = self._beginning.epoch, self.epoch

    def _prepare_restart(self, error: WorkerDied, given: int) -> None:
        """Prepare to continue with new workers after the batch received last.

        Args:
            error: what happened to a worker.
            given: batches before this iteration.

        Raises:
            WorkerDied: the error, if workers were started again often enough.
        """
        if self._restarts >= self.max_restarts:
            raise error
        self._restarts += 1
        if self._begun:
            # at the end of an epoch of which batches came here, the next one does not follow
            chosen = self._stats.batches > given or self._resumed is None
            self._choose_restart_point()
            self._chosen = chosen
        self._stats.restarts += 1
        read = f" (last read {error.key or 'a sample'} of {redact(error.url)})" if error.url else ""
        log.warning(
            "loader: %s%s. Workers start again after batch %d (restart %d of at most %d in a row)",
            str(error).partition("; iterate again")[0],
            read,
            self._stats.batches,
            self._restarts,
            self.max_restarts,
        )

    def _choose_restart_point(self) -> None:
        """Choose what to continue from; this process makes no samples for it, since one may end a process."""
        progress = self._progress
        if not progress.beyond or any(progress.untold.values()) or self._received is None or self._beginning is None:
            self._state = self.state_dict()
        else:
            until = self._beginning.start + progress.until
            self._restart = RestartPoint(self._received.state_dict(), progress.beyond, until)

    def _load_batches(self) -> Generator[tuple[object, BatchMark]]:
        """Return the batches of an epoch, on the device where one is named."""
        marked = self._mark_batches()
        return marked if self._device is None else self._device.move_batches(marked)

    def _count_failure(self) -> None:
        """Count what stood before a failure, unless a run continues after the last state and counts it then."""
        failed = self._windows.failed if self._windows is not None else []
        if not self._origin.elastic:
            self._stats.receive(failed)
        failed.clear()

    def _mark_batches(self) -> Generator[tuple[object, BatchMark]]:
        self._begun, restart = False, self._restart
        state = self._next_state() if restart is None else restart.state
        continue_epochs = not (self._chosen or self._origin.chosen())
        epoch, following = self._following or (None, 0)
        if state is not None and continue_epochs and is_epoch_over(state, worker_context()):
            following = following if state["epoch"] == epoch else state["epoch"] + 1
            state = rewind_state(state, following, worker_context())
        stepwise = self._most_early is not None
        beginning = replace(self._origin.begin(self.epoch, state), timed=self._timings, stepwise=stepwise)
        if state is not None and restart is None and beginning.place.world_size > 1:
            warn_of_unequal_ranks(self.dataset, state, beginning.place, self.batch_size or 1)
        # windows are the same whatever was received of them
        if self._batching.exact:
            beginning = replace(beginning, start=beginning.start - beginning.start % self._batching.size)
        found = self._start_windows(beginning)
        # not before: what could not start is tried again from there
        self._forget()
        self._begun = True
        if type(self._origin) is ElasticAdapter and not self.shared:
            self._origin.dataset._present.reader = weakref.ref(self)  # noqa: SLF001  its state is ours
        self._resumed = state if continue_epochs else None
        self.epoch = following if state is not None and beginning.epoch == epoch else beginning.epoch + 1
        self._beginning, self._following = beginning, None
        before = NOTHING_RECEIVED
        if restart is not None:
            before = ReceivedSamples(restart.beyond, restart.until - beginning.start)
        self._progress = EpochProgress(before.count, before.until, before.count)
        if beginning.state is not None:
            self._received = ReceivedState({**beginning.state, "memories": dict(beginning.state["memories"])})
        try:
            yield from self._make_batches(found, before)
        finally:
            found.close()

    def _compare(self, samples: int) -> None:
        """Raise or warn at the end of an epoch that all workers together did not make as it is meant."""
        if self._beginning is not None and self._windows is not None:
            EpochEnd(self._origin, self._beginning, self._windows.outcomes, self._batching).judge(samples)
            if not self._batching.drop_last:
                compare_length(self.dataset, self._beginning, samples)

    def _continue_epochs(self) -> bool:
        """Prepare for the next epoch where nothing was left of a state's; tell whether that was so."""
        state, beginning = self._resumed, self._beginning
        if state is None or beginning is None or not self._origin.over(state, beginning):
            return False
        self._state = rewind_state(state, self.epoch, beginning.place)
        return True

    def _forget(self) -> None:
        self._state, self._chosen, self._restart = None, False, None
        self._origin.forget()

    def _start_windows(self, beginning: EpochStart) -> Generator[Json]:
        """Let workers begin an epoch, and return its windows."""
        windows = self._windows
        # workers of an epoch whose beginning or end was interrupted would give its samples, too
        if windows is None or windows.begun or self._pool is None or not self._pool.living:
            # without batches, about one sample of each worker
            span = self.batch_size or max(1, self.workers)
            self._stop_pool()
            pool = self._pool = self._start_pool(span)
            pool.publish = self._publish
            self._ending = weakref.finalize(self, pool.close)
            placing = self.batch_size is not None and self._batching.collate is None
            ahead = self._ahead if self.workers else AheadLimits(0, 0, self._ahead.size_bytes)
            if self._most_early is None:
                windows = WindowAssembler(pool, span=span, ahead=ahead, placing=placing)
            else:
                windows = self._make_ready_assembler(pool, span, ahead, self._most_early)
            self._windows = windows
            windows.watch = self._stats.count
            windows.eager = self._often()
        windows.begun = True
        self._pool.begin(beginning)
        return windows.epoch()

    def _make_ready_assembler(self, pool: WorkerPool, span: int, ahead: AheadLimits, most: int) -> ReadyAssembler:
        if self.batch_size is None:
            # a window is an item of each worker
            most = max(0, (most + 1) // span - 1)
        collating = self.batch_size is not None and self._batching.collate is None
        return ReadyAssembler(pool, span=span, ahead=ahead, collating=collating, most_early=most)

    def _stop_pool(self) -> None:
        """Close the worker pool, and keep nothing of it."""
        if self._ending is not None:
            # once; and it refers to the pool no more
            self._ending()
        self._pool = self._windows = self._ending = None

    def _start_pool(self, span: int) -> WorkerPool:
        if not self.workers:
            return InlineWorkers(self._origin, span)
        if self.mode == "threads":
            return ThreadWorkers(self._origin, span, self.workers)
        from webdataset.loading.process_workers import ProcessWorkers  # noqa: PLC0415  only where there are processes

        return ProcessWorkers(self._origin, span, self.workers, self.start_method, self.timeout)

    def _take(self, mark: BatchMark) -> None:
        now = self._progress
        now.beyond, now.until = mark.beyond, mark.until
        now.samples += mark.samples
        self._stats.overtakes += mark.early
        if mark.counted:
            self._stats.receive(mark.counted)
        if self._received is not None:
            for worker, turns, progress in mark.progress:
                if progress is None:
                    now.untold[worker] = now.untold.get(worker, 0) + turns
                else:
                    self._received.take(progress)
                    now.untold[worker] = 0

    # -- epochs and states

    def _next_state(self) -> Json:
        """Return the state that was loaded, here or into the dataset, and not used yet; or that of a restart."""
        if self._restart is not None:
            self._state = self.state_at(self._restart.state, self._restart.until)
            self._restart = None
        return self._origin.pending() if self._state is None else self._state

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which with the dataset's seed decides the order.

        Of the epoch of a state that was loaded, the rest comes. Any other one begins at its start, and a warning says
        that the state is not used, unless its epoch is over and the next one was named.

        Args:
            epoch: from 0.

        Raises:
            UsageError: no such epoch.
        """
        epoch = read_epoch(epoch)
        state = self._next_state()
        if state is not None:
            self._chosen = state["epoch"] == epoch
            if not self._chosen:
                self._forget()
                warn_of_other_epoch(state, epoch, worker_context())
        self.epoch, self._following = epoch, None
        running = self._current() if self._current is not None else None
        if running is None or not running.begun:
            # the state is the beginning of that epoch from now on
            self._received = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch received last: that of this rank; see ``merge_states``.

        Raises:
            FlowError: the dataset is not elastic.
        """
        if not isinstance(self._origin, ElasticAdapter):
            raise missing_loader_state(self.dataset)
        if (ask := held_states.get(self)) is not None:
            return ask()
        if (begins := self._next_state()) is not None:
            return dict(begins)
        if self._received is None or self._beginning is None:
            return dict(self._origin.begin(self.epoch, None).state)
        # who saves often makes workers say their states always
        if self._windows is not None:
            self._windows.eager = self._windows.eager or self._often()
        self._saved = self._stats.batches
        state = self._received.state_dict()
        # in the ready order, each sample has told
        if self.order == READY or not (self._progress.beyond or any(self._progress.untold.values())):
            return state
        return self._origin.advance_state(state, self._beginning, self._beginning.start + self._progress.until)

    def continues_state(self) -> bool:
        """Tell whether the next iteration continues after a state."""
        state = self._next_state()
        return state is not None and has_progress(state)

    def _often(self) -> bool:
        """Tell whether the last state was asked for a few batches ago, or can be needed any time."""
        return self.max_restarts > 0 or self._stats.batches - self._saved < _OFTEN

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after a state with the next iteration; after the last batch of its epoch, with the next epoch.

        Args:
            state: what ``state_dict`` returned, of this rank or merged from all, under any number of workers.

        Raises:
            StateMismatch: a state of another dataset, or the dataset is not elastic; the message says what differs.
        """
        if not isinstance(state, dict):
            raise StateMismatch(f"a state is what state_dict() returned, a dictionary, and not {type(state).__name__}")
        self._give_up("load_state_dict was called")
        self._origin.begin(self.epoch, state)
        self._state, self._chosen, self._restart = state, False, None
        if self._following is not None and self._following[0] != state["epoch"]:
            self._following = None
        _, following = self._following or (0, state["epoch"] + 1)
        self.epoch = following if is_epoch_over(state, worker_context()) else state["epoch"]

    # -- for those who pass batches on

    @property
    def elastic(self) -> bool:
        """True where the dataset is elastic, so that there are states."""
        return self._origin.elastic

    @property
    def on_device(self) -> bool:
        """True where batches are moved to a device."""
        return self._device is not None

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, samples of it received in all, and the index that comes next, after the batch received last."""
        if self._beginning is None:
            return self.epoch, 0, 0
        before = 0 if self._beginning.state is None else int(self._beginning.state["received"])
        return self._beginning.epoch, before + self._progress.samples, self._beginning.start + self._progress.until

    def take_pending(self) -> Json:
        """Return the state that was loaded here or into the dataset and not used yet, and forget it."""
        state = self._next_state()
        self._forget()
        return state

    def begin_state(self, epoch: int, state: Json) -> dict[str, Json]:
        """Return the state that an iteration begins with: of the next epoch, where that of the given one is over.

        Args:
            epoch: where there is no state.
            state: what ``state_dict`` returned, or None.

        Raises:
            StateMismatch: a state of another dataset.
        """
        if state is not None and is_epoch_over(state, worker_context()):
            state = rewind_state(state, state["epoch"] + 1, worker_context())
        return dict(self._origin.begin(epoch, state).state or {})

    def state_at(self, state: dict[str, Json], index: int) -> dict[str, Json]:
        """Return the state at an index of the epoch of an earlier state; the samples between are made once more.

        Raises:
            FlowError: the dataset is not elastic.
        """
        if not isinstance(self._origin, ElasticAdapter):
            raise missing_loader_state(self.dataset)
        return self._origin.advance_state(state, self._origin.begin(self.epoch, state), index)

    def publish_blocks(self, publish: PublishBlock) -> None:
        """Make blocks of columns memory files, and tell of each; before the first iteration.

        Args:
            publish: called with the block, and a descriptor that is open during the call.
        """
        self._publish = publish

    # -- the rest

    @property
    def ahead(self) -> AheadLimits:
        """How far workers may be ahead."""
        return self._ahead

    @property
    def batching(self) -> BatchMaker:
        """How batches are made."""
        return self._batching

    def explain(self) -> str:
        """Describe the dataset, its memory bounds and the workers in lines of text; read nothing, start no worker."""
        from webdataset.flow.explain import explain  # noqa: PLC0415  it knows all stages, and is seldom asked

        return explain(self)

    def stats(self) -> LoaderStats:
        """Return the counters as they are now."""
        windows = self._windows
        return replace(
            self._stats.copy(),
            ready_windows=windows.waiting if windows is not None else 0,
            memory_bytes=windows.memory_bytes if windows is not None else 0,
        )

    def close(self) -> None:
        """End all workers. May be called twice; iterating again starts new ones."""
        self._give_up("the loader was closed")
        self._stop_pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without workers, with the state after the batch received last."""
        fresh = self._received is None and self._next_state() is None
        state = self.state_dict() if isinstance(self._origin, ElasticAdapter) and not fresh else None
        gone = {"_ending": None, "_pool": None, "_windows": None, "_current": None, "_received": None, "_state": state}
        return {**self.__dict__, **gone, "_progress": EpochProgress()}

    def __repr__(self) -> str:
        how = f"{self.workers} {self.mode}" if self.workers else "no workers"
        return f"Loader({type(self.dataset).__name__}, batch_size={self.batch_size}, {how})"
