"""Engines: what carries tasks to where they run. An engine decides nothing; the receipts do.

An engine has a ``name`` and ``run(job, numbers, retries)``, which yields the result of each output once, as they end,
in any order. :class:`TaskRetries` says whether a result is the last one of its output. To add an engine, copy
:class:`SerialEngine`: send ``job.only(number)``, ``number`` and ``attempt`` to wherever
:func:`~webdataset.cluster.shard_tasks.run_task` is to be called, and give back what it returns.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, Protocol, runtime_checkable

from webdataset.cluster.mapped_functions import close_functions
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.shard_tasks import TaskResult, run_task
from webdataset.core.errors import UsageError

_DEATHS_A_RETRY = 4


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


class TaskRetries:
    """Counts attempts.

    Args:
        retries: attempts after the first one, for errors that may pass; a process that dies, which may be nobody's
            fault, is forgiven four times as often.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._errors: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()

    def attempt(self, number: int) -> int:
        """Return which attempt at an output is next, from 1."""
        return 1 + self._errors[number] + self._deaths[number]

    def is_last(self, result: TaskResult, *, died: bool = False) -> bool:
        """Tell whether a result is the last one of its output, and take note of it.

        Args:
            result: of a task.
            died: the process died.
        """
        if result.state != "failed" or not result.again:
            return True
        counted, most = (self._deaths, _DEATHS_A_RETRY * self._retries) if died else (self._errors, self._retries)
        if counted[result.number] >= most:
            return True
        counted[result.number] += 1
        return False


class SerialEngine:
    """Runs the tasks one after the other in this process."""

    name = "serial"

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


def open_engine(engine: Any, jobs: int | None = None) -> JobEngine:
    """Return an engine.

    Args:
        engine: ``serial``, ``processes``, or an object with ``name`` and ``run``.
        jobs: how many processes; by default one a processor.

    Raises:
        UsageError: none of these.
    """
    if engine == "serial":
        return SerialEngine()
    if engine == "processes":
        from webdataset.cluster.process_engine import ProcessEngine  # noqa: PLC0415  for several processes alone

        return ProcessEngine(jobs)
    if isinstance(engine, JobEngine) and not isinstance(engine, str | Executor):
        return engine
    raise UsageError(f"engine={engine!r} is neither 'serial' nor 'processes', nor an object with name and run()")
