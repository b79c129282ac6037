"""Runs tasks in processes of this machine; one that dies is replaced, and the others continue.

Theory. Each process is a fresh Python that imports this library and the function, and nothing of the program that
started it: a script without ``if __name__ == "__main__":`` is not run again. Tasks go to its standard input, one JSON
line each; results come back on what was its standard output, which becomes standard error for all that the function
prints. A thread for each process reads the results, so that the end of a process is seen at once. A process whose
standard input ends has lost its parent, and ends too.
"""

import base64
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from webdataset.cluster.death_records import collect_deaths, deaths_folder, withdraw_death, withdraw_deaths
from webdataset.cluster.mapped_functions import close_functions
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.shard_tasks import remove_task_files, run_task
from webdataset.cluster.stored_files import Record
from webdataset.cluster.task_results import TaskResult, TaskRetries, fail_result, host_name
from webdataset.core.errors import WorkerDied
from webdataset.core.process_pool import count_processors, describe_exit

_PATIENCE_SECONDS = 10.0
# processes that may be killed one after the other before one begins
_STILLBORN = 10
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from webdataset.cluster.process_engine import work; work()"
)
_Message = tuple["_TaskProcess", Record | None]


class ProcessEngine:
    """Runs tasks in processes.

    Args:
        jobs: how many; by default one a processor.
    """

    name = "processes"

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or count_processors()
        self._processes: list[_TaskProcess] = []
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._stillborn = 0

    def run(self, job: ShardJob, numbers: Iterable[int], retries: int) -> Iterator[TaskResult]:
        """Yield the last result of each output, as they end; arguments as for ``JobEngine``.

        Raises:
            WorkerDied: no process could begin.
        """
        waiting, again = iter(numbers), deque[int]()
        book = TaskRetries(retries)
        objects = job.pickle_objects()
        try:
            while True:
                self._dispatch(job, objects, waiting, again, book)
                if not any(process.number is not None for process in self._processes):
                    break
                process, message = self._messages.get()
                if message is not None and message.get("ready"):
                    process.ready, self._stillborn = True, 0
                    continue
                result = self._take_result(job, process, message)
                if result is None:
                    continue
                if book.is_last(result, died=message is None):
                    yield result
                else:
                    again.append(result.number)
            self._end_orderly()
        finally:
            self._kill(job)

    def _dispatch(
        self, job: ShardJob, objects: bytes, waiting: Iterator[int], again: deque[int], book: TaskRetries
    ) -> None:
        """Give idle processes a task; start processes while there are fewer than there may be."""
        while True:
            idle = next((process for process in self._processes if process.number is None), None)
            if idle is None and len(self._processes) >= self.jobs:
                return
            number = again.popleft() if again else next(waiting, None)
            if number is None:
                return
            if idle is None:
                idle = _TaskProcess(objects, self._messages)
                self._processes.append(idle)
            idle.send(job, number, book.attempt(number))

    def _take_result(self, job: ShardJob, process: "_TaskProcess", message: Record | None) -> TaskResult | None:
        """Return a result; that of a process that died says so, and the process is replaced by another.

        Raises:
            WorkerDied: it had not begun, and was not killed; or that happened many times.
        """
        number, attempt = process.number, process.attempt
        process.number = None
        if message is not None:
            return TaskResult.from_json(message)
        self._processes.remove(process)
        code = process.collect_exit()
        self._stillborn += not process.ready
        if not process.ready and (code >= 0 or self._stillborn > _STILLBORN):
            raise WorkerDied(f"the process {process.pid} {describe_exit(code)} before it began; it said why above")
        if number is None:
            return None
        collect_deaths(deaths_folder(job), number, pid=process.pid, exit_code=code)
        died = WorkerDied(f"the process {process.pid} {describe_exit(code)} while it worked on this output")
        return fail_result(TaskResult(number, "failed", host=host_name(), pid=process.pid, attempt=attempt), died)

    def _end_orderly(self) -> None:
        """Let the processes end by themselves, so that ``teardown`` of functions is called."""
        for process in self._processes:
            process.say({"end": True})
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(_PATIENCE_SECONDS)

    def _kill(self, job: ShardJob) -> None:
        """End the processes, and remove their unfinished files; that is no death of the samples that they work on."""
        processes, self._processes = self._processes, []
        for process in processes:
            if process.popen.poll() is None:
                process.popen.kill()
            process.collect_exit()
            if process.number is not None:
                withdraw_death(job, process.number, process.pid)
                # the next run would remove them as well, but there may be none
                remove_task_files(job, process.number, again=True)


class _TaskProcess:
    """A process and the task that it works on."""

    def __init__(self, objects: bytes, messages: "queue.SimpleQueue[_Message]") -> None:
        self.number: int | None = None
        self.attempt = 1
        self.ready = False
        command = [sys.executable, "-c", _START, json.dumps(sys.path)]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603  this library
        self.pid = self.popen.pid
        self._reader = threading.Thread(target=self._read, args=(messages,), name="webdataset-results", daemon=True)
        self._reader.start()
        self.say({"objects": base64.b64encode(objects).decode()})

    def _read(self, messages: "queue.SimpleQueue[_Message]") -> None:
        stream = self.popen.stdout
        for line in stream or ():
            # half a line is what a process wrote when it died
            if line.endswith(b"\n"):
                messages.put((self, json.loads(line)))
        messages.put((self, None))

    def say(self, message: Record) -> None:
        """Send a message; one that died is found when it is read."""
        stream = self.popen.stdin
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

    def send(self, job: ShardJob, number: int, attempt: int) -> None:
        """Send a task."""
        self.number, self.attempt = number, attempt
        self.say({"job": job.only(number).to_json(), "number": number, "attempt": attempt})

    def collect_exit(self) -> int:
        """Return the exit code of the process, which has ended or is about to."""
        code = self.popen.wait()
        self._reader.join()
        for stream in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        return code


def work() -> None:
    """Work on tasks until there are no more: what each process runs."""
    import signal  # noqa: PLC0415  for the process alone

    # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[Record] = queue.SimpleQueue()
    source = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  for its descriptor
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_receive_tasks, args=(source, tasks), name="webdataset-tasks", daemon=True).start()
    objects = base64.b64decode(tasks.get()["objects"])
    _say(results, {"ready": True})
    while True:
        task = tasks.get()
        if "end" in task:
            break
        job = ShardJob.from_json(task["job"]).with_objects(objects)
        try:
            result = run_task(job, task["number"], task["attempt"])
        except BaseException as error:  # noqa: BLE001  of the function: Ctrl-C is for the parent
            result = fail_result(TaskResult(task["number"], "failed", host=host_name(), attempt=task["attempt"]), error)
        _say(results, result.to_json())
    close_functions()


def _receive_tasks(source: IO[bytes], tasks: "queue.SimpleQueue[Record]") -> None:
    for line in source:
        message = json.loads(line)
        tasks.put(message)
        if "end" in message:
            return
    # the parent is gone
    withdraw_deaths()
    os._exit(1)


def _say(results: IO[bytes], message: Record) -> None:
    results.write(json.dumps(message).encode() + b"\n")
    results.flush()
