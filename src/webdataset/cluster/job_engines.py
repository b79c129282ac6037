"""Engines: what carries tasks to where they run. An engine decides nothing; the receipts do.

An engine has a ``name`` and ``run(job, numbers, retries)``, which yields the result of each output once, as they end,
in any order. To add one, copy :class:`SerialEngine`: send ``job.only(number)``, ``number`` and ``attempt`` to wherever
:func:`~webdataset.cluster.shard_tasks.run_task` is to be called, give back what it returns, and let
:class:`~webdataset.cluster.task_results.TaskRetries` say whether a result is the last one of its output.
"""

import importlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import Final, Protocol, cast, runtime_checkable

from webdataset.cluster.mapped_functions import close_functions
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.shard_tasks import run_task
from webdataset.cluster.task_results import TaskResult, TaskRetries
from webdataset.core.errors import UsageError


@runtime_checkable
class JobEngine(Protocol):
    """Carries tasks to where they run.

    Attributes:
        name: of it, for receipts and reports.
    """

    name: str

    def run(self, job: ShardJob, numbers: Iterable[int], retries: int) -> Iterator[TaskResult]:
        """Yield the last result of each output, as they end.

        Args:
            job: the job.
            numbers: of the outputs to make.
            retries: how often a task is tried again after an error that may pass.
        """
        ...


class SerialEngine:
    """Runs the tasks one after the other in this process.

    Args:
        jobs: taken for the sake of one form of all engines; there is one.
    """

    name = "serial"

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    def run(self, job: ShardJob, numbers: Iterable[int], retries: int) -> Iterator[TaskResult]:
        """Yield the last result of each output, in order; arguments as for :class:`JobEngine`."""
        book = TaskRetries(retries)
        try:
            for number in numbers:
                result = run_task(job, number, book.attempt(number))
                while not book.is_last(result):
                    result = run_task(job, number, book.attempt(number))
                yield result
        finally:
            close_functions()


ENGINES: Final = {
    "serial": "webdataset.cluster.job_engines:SerialEngine",
    "processes": "webdataset.cluster.process_engine:ProcessEngine",
    "dask": "webdataset.cluster.executor_engines:DaskEngine",
    "ray": "webdataset.cluster.executor_engines:RayEngine",
}
"""Name to the class of the engine, which is called with ``jobs``."""


def open_engine(engine: object, jobs: int | None = None) -> JobEngine:
    """Return an engine.

    Args:
        engine: a name of :data:`ENGINES`; an object with ``name`` and ``run``; an executor of ``concurrent.futures``,
            or a function that makes one; or a client of Dask.
        jobs: how many processes; by default one a processor.

    Raises:
        UsageError: none of these.
        MissingExtra: the package of the engine is not installed.
    """
    if isinstance(engine, str) and engine in ENGINES:
        module, _, name = ENGINES[engine].partition(":")
        made: JobEngine = getattr(importlib.import_module(module), name)(jobs=jobs)
        return made
    is_client = type(engine).__module__.startswith("distributed.") and hasattr(engine, "submit")
    if isinstance(engine, JobEngine) and not is_client and not isinstance(engine, type):
        return engine
    if is_client or isinstance(engine, Executor) or (callable(engine) and not isinstance(engine, type)):
        from webdataset.cluster.executor_engines import DaskEngine, ExecutorEngine  # noqa: PLC0415  of others alone

        return DaskEngine(engine, jobs) if is_client else ExecutorEngine(cast("Executor", engine), jobs)
    known = ", ".join(map(repr, ENGINES))
    raise UsageError(
        f"engine={engine!r} is none of {known}, no executor of concurrent.futures or function that makes one, no "
        "client of Dask, and no object with name and run()"
    )
