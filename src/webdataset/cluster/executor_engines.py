"""Engines of other projects: executors of Python, Dask and Ray. Each carries a task to a process, and its result back.

Theory. All three share one loop: a bounded window of submitted tasks, results as they come, and
:class:`~webdataset.cluster.task_results.TaskRetries`, which says whether a result is the last one of its output. A
task is the job with one output, its number and its attempt; the function travels by value where it has no import name.
What comes back is a kilobyte. A process that dies on the way is an attempt that failed; the receipts of the outputs
say what is done, whatever the engine believes.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from functools import partial
from types import ModuleType
from typing import ClassVar, Final, NamedTuple, Protocol, cast

from webdataset.cluster.death_records import forget_interruptions
from webdataset.cluster.mapped_functions import close_functions
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.shard_tasks import run_task
from webdataset.cluster.stored_files import Record
from webdataset.cluster.task_results import TaskResult, TaskRetries, fail_result
from webdataset.core.errors import UsageError, WorkerDied, describe_error
from webdataset.core.optional_imports import require
from webdataset.core.process_pool import count_processors

_LEAST_WINDOW: Final = 4


def run_carried_task(job: ShardJob, number: int, attempt: int) -> Record:
    """Make one output where the engine wants it; return the result as JSON.

    Args:
        job: with this output.
        number: of the output.
        attempt: which one this is, from 1.
    """
    return run_task(job, number, attempt).to_json()


class _Task(NamedTuple):
    number: int
    attempt: int


Done = tuple[object, Callable[[], Record]]
"""What stands for a task that has ended, and what returns its result, or raises."""


class _CarryingEngine:
    """What the engines of this module have in common.

    Attributes:
        died: errors that say that the process of a task ended; any other is no fault of a process.
        window: how many tasks may be submitted and not done.
    """

    died: tuple[type[BaseException], ...] = ()
    window = _LEAST_WINDOW

    def submit(self, job: ShardJob, task: _Task) -> object:
        """Send a task; return what stands for it.

        Args:
            job: with the output of the task.
            task: number of the output, and the attempt.
        """
        raise NotImplementedError

    def wait(self, submitted: list[object]) -> Iterator[Done]:
        """Wait until one or more tasks are done; yield these.

        Args:
            submitted: what stands for them.
        """
        raise NotImplementedError

    def repair(self, job: ShardJob, numbers: Iterable[int]) -> bool:  # noqa: ARG002  most replace processes themselves
        """Make it usable after a process died; tell whether it is.

        Args:
            job: the job.
            numbers: of the outputs whose tasks ended with the process.
        """
        return True


class _CarriedTasks:
    """The tasks of a job at an engine.

    Args:
        engine: carries them.
        job: the job.
        numbers: of the outputs.
        retries: as for ``JobEngine``.
    """

    def __init__(self, engine: _CarryingEngine, job: ShardJob, numbers: Iterable[int], retries: int) -> None:
        self._engine, self._job = engine, job
        self._book = TaskRetries(retries)
        self._waiting = iter(numbers)
        self._again: deque[int] = deque()
        self._submitted: dict[object, _Task] = {}
        self._usable = True

    def results(self) -> Iterator[TaskResult]:
        """Yield the last result of each output, as they end."""
        while True:
            self._fill_window()
            if not self._submitted:
                break
            interrupted: list[int] = []
            for token, get in self._engine.wait(list(self._submitted)):
                task = self._submitted.pop(token)
                result, died = self._take_result(task, get)
                if died:
                    interrupted.append(task.number)
                if self._book.is_last(result, died=died):
                    yield result
                else:
                    self._again.append(task.number)
            if interrupted:
                self._usable = self._engine.repair(self._job, interrupted) and self._usable
        for number in (*self._again, *self._waiting):
            broken = WorkerDied(
                "the executor broke: run the job again, or give a function that makes executors as the engine"
            )
            yield fail_result(TaskResult(number, "failed"), broken)

    def _fill_window(self) -> None:
        while self._usable and len(self._submitted) < self._engine.window:
            number = self._again.popleft() if self._again else next(self._waiting, None)
            if number is None:
                return
            task = _Task(number, self._book.attempt(number))
            try:
                self._submitted[self._engine.submit(self._job.only(number), task)] = task
            except self._engine.died:
                # it broke between two tasks: this one did not begin
                self._again.appendleft(number)
                self._usable = self._engine.repair(self._job, [number])

    def _take_result(self, task: _Task, get: Callable[[], Record]) -> tuple[TaskResult, bool]:
        failed = TaskResult(task.number, "failed", attempt=task.attempt)
        try:
            return TaskResult.from_json(get()), False
        except self._engine.died as error:
            gone = WorkerDied(f"a process of the engine died, or was lost: {describe_error(error)}")
            return fail_result(failed, gone), True
        except Exception as error:  # noqa: BLE001  what cannot be sent, or an engine that refuses: it says why
            return fail_result(failed, error), False


class ExecutorEngine(_CarryingEngine):
    """Runs tasks in an executor of :mod:`concurrent.futures`, or in what has its form.

    A pool that breaks when one of its processes dies ends the tasks of the others as well. So nothing is known of the
    sample that was to blame; ``engine="processes"`` finds it out.

    Args:
        executor: the executor, which is not shut down; or a function that makes one, which is called again where one
            breaks, and whose executors are shut down.
        jobs: how many tasks it works on at once; by default what it says itself, else one a processor.
    """

    name = "executor"
    died = (BrokenExecutor,)

    def __init__(self, executor: Executor | Callable[[], Executor], jobs: int | None = None) -> None:
        self._make = None if isinstance(executor, Executor) else executor
        self._executor = executor if isinstance(executor, Executor) else None
        self._jobs = jobs

    def run(self, job: ShardJob, numbers: Iterable[int], retries: int) -> Iterator[TaskResult]:
        """Yield the last result of each output; arguments as for ``JobEngine``."""
        if self._make is not None:
            self._executor = self._make()
        jobs = self._jobs or getattr(self._executor, "_max_workers", None) or count_processors()
        self.window = max(_LEAST_WINDOW, 2 * jobs)
        try:
            yield from _CarriedTasks(self, job, numbers, retries).results()
        finally:
            # of threads of this process; other processes close theirs when they end
            close_functions()
            if self._make is not None and self._executor is not None:
                self._executor.shutdown(cancel_futures=True)

    def submit(self, job: ShardJob, task: _Task) -> object:
        """Send a task; arguments as for all engines of this module.

        Raises:
            UsageError: it was closed.
        """
        if self._executor is None:
            raise UsageError("the executor was closed")
        return self._executor.submit(run_carried_task, job, task.number, task.attempt)

    def wait(self, submitted: list[object]) -> Iterator[Done]:
        """Wait until one or more are done; arguments as for all engines of this module."""
        done, _ = wait(cast("list[Future[Record]]", submitted), return_when=FIRST_COMPLETED)
        yield from ((future, future.result) for future in done)

    def repair(self, job: ShardJob, numbers: Iterable[int]) -> bool:
        """Make another executor, where a function does; arguments as for all engines of this module."""
        broken = self._executor
        if self._make is not None and broken is not None and getattr(broken, "_broken", True):
            broken.shutdown(cancel_futures=True)
            self._executor = self._make()
        # its other processes were ended on purpose: no sample of theirs is to blame
        forget_interruptions(job, numbers)
        return self._make is not None


class _DaskFuture(Protocol):
    def result(self) -> Record: ...


class _DaskFutures(Protocol):
    def add(self, future: _DaskFuture) -> None: ...
    def next_batch(self, *, block: bool) -> list[_DaskFuture]: ...


class _DaskClient(Protocol):
    loop: object

    def ncores(self) -> dict[str, int]: ...
    def submit(self, function: object, *arguments: object, pure: bool, priority: int) -> _DaskFuture: ...


class _RayTask(Protocol):
    def remote(self, *arguments: object) -> object: ...


class DaskEngine(_CarryingEngine):
    """Runs tasks on a cluster of Dask.

    Args:
        client: a ``distributed.Client``, or the address of a scheduler; None takes the client of this process where
            there is one, and else starts processes on this machine.
        jobs: how many processes are started, in the last case; by default one a processor.
    """

    name = "dask"

    def __init__(self, client: object = None, jobs: int | None = None) -> None:
        self._dask = require("distributed", extra="dask", purpose="engine='dask'")
        self._given = client
        self._jobs = jobs

    def run(self, job: ShardJob, numbers: Iterable[int], retries: int) -> Iterator[TaskResult]:
        """Yield the last result of each output; arguments as for ``JobEngine``."""
        dask = self._dask
        self.died = (dask.scheduler.KilledWorker, dask.comm.core.CommClosedError)
        with contextlib.ExitStack() as opened:
            self._client: _DaskClient = self._open_client(dask, opened)
            self._completed: _DaskFutures = dask.as_completed(loop=self._client.loop)
            cores = sum(self._client.ncores().values())
            # tasks wait at the workers, so that none waits for the next one
            self.window = max(_LEAST_WINDOW, 3 * cores)
            yield from _CarriedTasks(self, job, numbers, retries).results()

    def _open_client(self, dask: ModuleType, opened: contextlib.ExitStack) -> "_DaskClient":
        if isinstance(self._given, str):
            return cast("_DaskClient", opened.enter_context(dask.Client(self._given, set_as_default=False)))
        if self._given is not None:
            return cast("_DaskClient", self._given)
        with contextlib.suppress(ValueError):
            client: _DaskClient = dask.get_client()
            return client
        count = self._jobs or count_processors()
        cluster = opened.enter_context(dask.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None))
        return cast("_DaskClient", opened.enter_context(dask.Client(cluster, set_as_default=False)))

    def submit(self, job: ShardJob, task: _Task) -> object:
        """Send a task; arguments as for all engines of this module."""
        # a key of its own: a pure task of an earlier job would be answered from memory, without a look at receipts
        future = self._client.submit(run_carried_task, job, *task, pure=False, priority=-task.number)
        self._completed.add(future)
        return future

    def wait(self, submitted: list[object]) -> Iterator[Done]:  # noqa: ARG002  it remembers what was submitted
        """Wait until one or more are done; arguments as for all engines of this module."""
        yield from ((future, future.result) for future in self._completed.next_batch(block=True))


class RayEngine(_CarryingEngine):
    """Runs tasks on Ray.

    Args:
        jobs: how many processors Ray gets where it is not running; by default all.
        **options: of each task, such as ``num_cpus`` or ``num_gpus``.
    """

    name = "ray"
    _given: ClassVar[dict[str, object]] = {"max_retries": 0, "scheduling_strategy": "SPREAD"}

    def __init__(self, jobs: int | None = None, **options: object) -> None:
        self._ray = require("ray", extra="ray", purpose="engine='ray'")
        self._jobs = jobs
        self._options = {**self._given, **options}

    def run(self, job: ShardJob, numbers: Iterable[int], retries: int) -> Iterator[TaskResult]:
        """Yield the last result of each output; arguments as for ``JobEngine``."""
        ray = self._ray
        self.died = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.RaySystemError)
        started = not ray.is_initialized()
        if started:
            ray.init(num_cpus=self._jobs, include_dashboard=False, log_to_driver=False)
        try:
            self._task: _RayTask = ray.remote(run_carried_task).options(**self._options)
            self.window = max(_LEAST_WINDOW, 4 * int(ray.cluster_resources().get("CPU", 1)))
            yield from _CarriedTasks(self, job, numbers, retries).results()
        finally:
            if started:
                ray.shutdown()

    def submit(self, job: ShardJob, task: _Task) -> object:
        """Send a task; arguments as for all engines of this module."""
        return self._task.remote(job, *task)

    def wait(self, submitted: list[object]) -> Iterator[Done]:
        """Wait until one or more are done; arguments as for all engines of this module."""
        done, _ = self._ray.wait(submitted, num_returns=1)
        yield from ((token, partial(self._ray.get, token)) for token in done)
