"""The loader: a dataset, workers that decode into batches, and the state of what was received.

Flows in: a dataset. Flows out: batches (numpy arrays, or torch tensors where a device is named), in an order that an
elastic dataset's seed and epoch determine, whatever the number and kind of workers. Nothing runs before the first
iteration, and nothing after ``close`` (or when the loader is forgotten).
"""

import time
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, Self, SupportsIndex

from webdataset.flow.elastic_state import Received
from webdataset.flow.epoch_ends import at_start, ended, warn_of_another
from webdataset.ground.errors import FlowError, StateMismatch, UsageError
from webdataset.ground.topology import place
from webdataset.stages.base import Json

from .batches import END, Batching, Mark, singles
from .crews import Inline, Threads
from .elastic_shares import Elastic, origin_of
from .epoch_checks import End, compare_length
from .iteration import Iteration
from .loader_arguments import check_arguments, check_single_samples, device_mover
from .shares import Beginning
from .statistics import LoaderStats
from .windows import Windows, weight

_GIGABYTE = 1 << 30
_OFTEN = 50  # batches between two states


class Loader:
    """Loads batches of a dataset with threads or processes.

    Args:
        dataset: a pipeline (``dataset.elastic()`` for an order and states that do not depend on the workers), a
            sequence, or an iterable.
        batch_size: samples in a batch, on this rank; None delivers what the dataset gives.
        workers: threads or processes that read and decode; 0 does so in this thread.
        mode: ``threads`` or ``processes``.
        start_method: of processes: ``fork``, ``forkserver``, ``spawn``; None is Python's own choice.
        prefetch: batches that workers may be ahead by (without a batch size, samples of each worker).
        prefetch_bytes: the memory that these may take; one batch is always allowed.
        drop_last: leave out a last batch that is smaller.
        collate: from a list of samples to a batch, called here; None makes columns: arrays of one shape are joined,
            numbers become arrays, all else lists. Only without it do workers write into the batch.
        ragged: arrays of different shapes in one batch become a list; False makes them an error.
        exact: where streams have ended, leave batches smaller instead of filling them up from the next ones: then all
            ranks' batches together are the same for any number of ranks to the end of the epoch.
        device: where torch tensors are wanted: ``"cpu"`` (no copy), ``"cuda:0"`` (copied ahead, asynchronously);
            None leaves numpy arrays.
        pin_memory: copy through page-locked memory on the way to a device.
        timings: time the dataset's stages on a few samples, for ``stats().stages``.

    Raises:
        UsageError: arguments that cannot mean anything.
        MissingExtra: a device is named, and torch is not installed.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        workers: int = 0,
        mode: str = "threads",
        start_method: str | None = None,
        prefetch: int = 3,
        prefetch_bytes: int = _GIGABYTE,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        ragged: bool = True,
        exact: bool = False,
        device: Any = None,
        pin_memory: bool = False,
        timings: bool = True,
    ) -> None:
        check_arguments(batch_size, workers, mode, prefetch)
        if batch_size is None:
            check_single_samples(collate=collate is not None, drop_last=drop_last, exact=exact, ragged=not ragged)
        self.dataset = dataset
        self.batch_size = batch_size
        self.workers = workers
        self.mode = mode
        self.start_method = start_method
        self.epoch = int(getattr(dataset, "epoch", 0) or 0)
        self._origin = origin_of(dataset)
        self._ahead = prefetch, prefetch_bytes
        self._batching = Batching(batch_size or 1, collate, ragged, drop_last, exact)
        self._timings = timings
        self._stats = LoaderStats(workers=workers)
        self._crew: Any = None
        self._windows: Windows | None = None
        self._current: weakref.ref[Iteration] | None = None
        self._state: Json = None  # to begin the next epoch with
        self._chosen = False  # set_epoch has named that state's epoch: its rest is given, though nothing be left
        self._resumed: Json = None  # what the present epoch began with, where the next one follows behind its end
        self._ending: Any = None  # closes the crew when the loader is forgotten
        self._beginning: Beginning | None = None
        self._received: Received | None = None
        self._beyond = 0
        self._until = 0  # all indices below this one have been received, from where the epoch began
        self._untold: dict[int, int] = {}  # turns received of each worker since it said its state
        self._saved = 0  # batches when a state was asked for last; as if one had been at the beginning
        self._device = device_mover(device, pin_memory=pin_memory)

    # -- iteration

    def __iter__(self) -> Iterator[Any]:
        """Load an epoch; one that still runs is given up, and raises where it is asked for more."""
        self._give_up("another one was begun")
        epoch = Iteration(self._epoch())
        self._current = weakref.ref(epoch)
        return epoch

    def _give_up(self, reason: str) -> None:
        running = self._current() if self._current is not None else None
        if running is not None:
            running.give_up(reason)
        self._current = None

    def _epoch(self) -> Generator[Any]:
        marked = self._marked() if self._device is None else self._device.moved(self._marked())
        stats = self._stats
        began = time.perf_counter()
        before_epoch = stats.samples
        stats.epochs += 1
        given = stats.batches
        try:
            while True:
                before = time.perf_counter()
                batch, mark = next(marked)
                now = time.perf_counter()
                stats.waiting_seconds += now - before
                stats.running_seconds += now - began
                began = now
                self._take(mark)
                if batch is END:
                    if stats.batches > given or not self._goes_on():
                        self._compare(stats.samples - before_epoch)
                        return
                    marked.close()
                    marked = self._marked() if self._device is None else self._device.moved(self._marked())
                    continue
                stats.batches += 1
                if self._windows is not None and not self._often():
                    self._windows.eager = False
                stats.samples += mark.samples
                stats.bytes += weight(batch)
                yield batch
                del batch
        except Exception:  # counted and raised again
            stats.failures += 1
            self._count_failed()
            raise
        finally:
            stats.running_seconds += time.perf_counter() - began
            marked.close()

    def _count_failed(self) -> None:
        """Count what stood before a failure, unless a run goes on behind the last state and counts it then."""
        failed = self._windows.failed if self._windows is not None else []
        if not self._origin.elastic:
            self._stats.receive(failed)
        failed.clear()

    def _marked(self) -> Generator[tuple[Any, Mark]]:
        state = self._next_state()
        continue_epochs = not (self._chosen or self._origin.chosen())
        if state is not None and continue_epochs and ended(state, place()):
            state = at_start(state, state["epoch"] + 1, place())
        beginning = replace(self._origin.begin(self.epoch, state), timed=self._timings)
        if self._batching.exact:  # windows are the same whatever was received of them
            beginning = replace(beginning, start=beginning.start - beginning.start % self._batching.size)
        windows = self._started()
        self._crew.begin(beginning)
        self._forget()  # not before: what could not start is tried again from there
        self._resumed = state if continue_epochs else None
        self.epoch = beginning.epoch + 1
        self._beginning = beginning
        self._beyond = self._until = 0
        self._untold = {}
        if beginning.state is not None:
            self._received = Received({**beginning.state, "memories": dict(beginning.state["memories"])})
        found = windows.epoch()
        try:
            for delivered in singles(found) if self.batch_size is None else self._batching.batches(found):
                yield delivered
                del delivered
        finally:
            found.close()

    def _compare(self, samples: int) -> None:
        """Raise or warn at the end of an epoch that all workers together did not make as it is meant."""
        if self._beginning is not None and self._windows is not None:
            End(self._origin, self._beginning, self._windows.outcomes).judge(samples)
            if not self._batching.drop_last:
                compare_length(self.dataset, self._beginning, samples)

    def _goes_on(self) -> bool:
        """Prepare for the next epoch where nothing was left of a state's; tell whether that was so."""
        state, beginning = self._resumed, self._beginning
        if state is None or beginning is None or not self._origin.over(state, beginning):
            return False
        self._state = at_start(state, beginning.epoch + 1, beginning.place)
        return True

    def _forget(self) -> None:
        self._state, self._chosen = None, False
        self._origin.forget()

    def _started(self) -> Windows:
        if self._windows is None or self._crew is None or not self._crew.living:
            span = self.batch_size or max(1, self.workers)  # without batches, about one sample of each worker
            self._dismiss()
            crew = self._crew = self._hired(span)
            self._ending = weakref.finalize(self, crew.close)
            placing = self.batch_size is not None and self._batching.collate is None
            ahead, ahead_bytes = self._ahead
            self._windows = Windows(
                crew, span=span, ahead=ahead if self.workers else 0, ahead_bytes=ahead_bytes, placing=placing
            )
            self._windows.watch = self._stats.count
            self._windows.eager = self._often()
        return self._windows

    def _dismiss(self) -> None:
        """End the crew, and keep nothing of it."""
        if self._ending is not None:
            self._ending()  # once; and it refers to the crew no more
        self._crew = self._windows = self._ending = None

    def _hired(self, span: int) -> Any:
        if not self.workers:
            return Inline(self._origin, span)
        if self.mode == "threads":
            return Threads(self._origin, span, self.workers)
        from .processes import Processes  # noqa: PLC0415  only where there are processes

        return Processes(self._origin, span, self.workers, self.start_method)

    def _take(self, mark: Mark) -> None:
        self._beyond, self._until = mark.beyond, mark.until
        if mark.counted:
            self._stats.receive(mark.counted)
        if self._received is not None:
            for worker, turns, progress in mark.progress:
                if progress is None:
                    self._untold[worker] = self._untold.get(worker, 0) + turns
                else:
                    self._received.take(progress)
                    self._untold[worker] = 0

    # -- epochs and states

    def _next_state(self) -> Json:
        """Return the state that was loaded, here or into the dataset, and not used yet."""
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
        if not isinstance(epoch, SupportsIndex) or int(epoch) < 0:
            raise UsageError(f"set_epoch({epoch!r}): epochs are numbered from 0")
        state = self._next_state()
        if state is not None:
            self._chosen = state["epoch"] == epoch
            if not self._chosen:
                self._forget()
                warn_of_another(state, int(epoch), place())
        self.epoch = int(epoch)
        running = self._current() if self._current is not None else None
        if running is None or not running.begun:
            self._received = None  # the state is the beginning of that epoch from now on

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the batch received last: that of this rank; see ``merge_states``.

        Raises:
            FlowError: the dataset is not elastic.
        """
        if not isinstance(self._origin, Elastic):
            raise FlowError("only a loader over an elastic dataset has a state: write dataset.elastic()")
        if (begins := self._next_state()) is not None:
            return dict(begins)
        if self._received is None or self._beginning is None:
            return dict(self._origin.begin(self.epoch, None).state)
        if self._windows is not None:  # who saves often makes workers say their states always
            self._windows.eager = self._windows.eager or self._often()
        self._saved = self._stats.batches
        state = self._received.state_dict()
        if not self._beyond and not any(self._untold.values()):
            return state
        further: dict[str, Any] = self._origin.advanced(state, self._beginning, self._beginning.start + self._until)
        return further

    def _often(self) -> bool:
        """Tell whether the last state was asked for a few batches ago, so that another one soon is likely."""
        return self._stats.batches - self._saved < _OFTEN

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue behind a state with the next iteration; behind the last batch of its epoch, with the next epoch.

        Args:
            state: what ``state_dict`` returned, of this rank or merged from all, under any number of workers.

        Raises:
            StateMismatch: a state of another dataset, or the dataset is not elastic; the message says what differs.
        """
        if not isinstance(state, dict):
            raise StateMismatch(f"a state is what state_dict() returned, a dictionary, and not {type(state).__name__}")
        self._give_up("load_state_dict was called")
        self._origin.begin(self.epoch, state)
        self._state, self._chosen = state, False
        self.epoch = int(state["epoch"])

    # -- the rest

    @property
    def ahead(self) -> tuple[int, int]:
        """How many batches workers may be ahead by, and how many bytes these may take."""
        return self._ahead

    def explain(self) -> str:
        """Describe the dataset, its bounds of memory, the workers, and what waits between them and the consumer.

        Returns:
            Lines of text. Nothing is read, and no worker started.
        """
        from webdataset.flow.explaining import explain  # noqa: PLC0415  it knows all stages, and is seldom asked

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
        self._dismiss()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without workers, and behind what was received."""
        fresh = self._received is None and self._next_state() is None
        state = self.state_dict() if isinstance(self._origin, Elastic) and not fresh else None
        gone = {"_ending": None, "_crew": None, "_windows": None, "_current": None, "_received": None, "_state": state}
        return {**self.__dict__, **gone, "_beyond": 0}

    def __repr__(self) -> str:
        how = f"{self.workers} {self.mode}" if self.workers else "no workers"
        return f"Loader({type(self.dataset).__name__}, batch_size={self.batch_size}, {how})"
