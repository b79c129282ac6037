"""Changes samples one by one: by a shell command in a folder of its own, or by a Python function; several at a time.

The order of the samples stays. At most a few samples for each job are in memory. Commands run in threads. A function
runs in threads too, or in processes, which get its name and import it: Python code of one process runs one thread at a
time. A function sees
``{"__key__", "__url__", field: bytes}`` and returns such a dictionary, several of them, or None to leave the sample
out; fields that it returns unchanged are written as they stood, others are encoded by their names.
"""

import contextlib
import importlib
import os
import re
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

from webdataset.core import settings
from webdataset.core.errors import AllDropped, CommandFailed, SampleError, UsageError, WorkerDied, describe_error
from webdataset.reshaping.creation import make_member
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.raw_samples import RawMember, RawSample
from webdataset.storage.backends.pipe import ChildProcess, end_child

OnError = Literal["stop", "skip", "keep"]
Results = Generator[tuple[RawSample, list[RawSample] | Exception], None, None]
_AHEAD = 2
_PAUSE_SECONDS = 0.02
_WAIT_SECONDS = 1.0
_TASK_BYTES = 1 << 18
_TASK_SAMPLES = 64
_SHOWN = 500
_STEM = "sample"
_KEY = "__key__"
_SINGLE = re.compile(r"sample(?P<number>)\.(?P<field>.+)", re.DOTALL)
_SEVERAL = re.compile(r"sample-(?P<number>\d{1,18})\.(?P<field>.+)", re.DOTALL)


def map_in_order(function: Callable[[RawSample], list[RawSample]], samples: Iterable[RawSample], jobs: int) -> Results:
    """Yield each sample with what a function makes of it, in order, several at a time.

    Args:
        function: runs in threads. When the results were read, or are left, its ``stop`` is called, if it has one: what
            it began need not be finished.
        samples: as they stand.
        jobs: how many run at a time.
    """
    executor: Executor = ThreadPoolExecutor(jobs)
    running: deque[tuple[RawSample, Future[list[RawSample]]]] = deque()
    try:
        for sample in samples:
            running.append((sample, executor.submit(function, sample)))
            if len(running) >= jobs * _AHEAD:
                yield _result(*running[0])
                running.popleft()
        while running:
            yield _result(*running[0])
            running.popleft()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        # not by the futures: an interrupt may have come while a thread was being started
        stop: Callable[[], None] | None = getattr(function, "stop", None)
        if stop is not None:
            stop()
        executor.shutdown()


def map_in_processes(name: str, samples: Iterable[RawSample], jobs: int) -> Results:
    """Yield each sample with what a Python function makes of it, in order, by several processes.

    A process that dies is an error of the sample that it was at.

    Args:
        name: of the function, ``module:function``; each process imports it.
        samples: as they stand.
        jobs: how many processes.

    Raises:
        WorkerDied: a process ended before it began.
    """
    from webdataset.core.process_pool import ProcessPool  # noqa: PLC0415  only where there are several jobs

    with ProcessPool(jobs, f"{__name__}:{_prepare_process.__name__}", (name, settings.FULL_TRACEBACKS.get())) as pool:
        for sample, made, _ in pool.run(_make_tasks(samples)):
            if isinstance(made, WorkerDied):
                told = f"{made} while the function worked on the sample"
                yield sample, WorkerDied(told, key=sample.key, url=sample.url)
            elif isinstance(made, Exception):
                yield sample, made
            else:
                yield sample, [_put_back(sample, each) for each in made]


def _make_tasks(samples: Iterable[RawSample]) -> Iterator[list[RawSample]]:
    """Yield lists of samples, each for a process to work on: a large one alone, small ones together."""
    task: list[RawSample] = []
    size = 0
    for sample in samples:
        task.append(sample)
        size += sample.size_bytes
        if size >= _TASK_BYTES or len(task) >= _TASK_SAMPLES:
            yield task
            task, size = [], 0
    if task:
        yield task


def _prepare_process(name: str, traced: bool) -> Callable[[RawSample, object], list[RawSample] | BaseException]:  # noqa: FBT001  pickled by place
    """Return what a process does with a sample; members that stay are their places among the sample's."""
    from webdataset.core.process_pool import make_portable  # noqa: PLC0415  as above

    function = SampleFunction(load_function(name))

    def work(sample: RawSample, send: object) -> list[RawSample] | BaseException:  # noqa: ARG001  one message a sample
        try:
            return [_take_out(sample, each) for each in function(sample)]
        except Exception as error:  # noqa: BLE001  the caller decides
            return make_portable(error, f"in process {os.getpid()}" if traced else None)

    return work


def _take_out(sample: RawSample, made: RawSample) -> RawSample:
    """Return a result whose members that stand in the sample are places."""
    places: dict[int, Any] = {id(member): place for place, member in enumerate(sample.members)}
    return made._replace(members=tuple(places.get(id(member), member) for member in made.members))


def _put_back(sample: RawSample, made: RawSample) -> RawSample:
    members: tuple[Any, ...] = made.members
    return made._replace(members=tuple(sample.members[each] if isinstance(each, int) else each for each in members))


def _result(sample: RawSample, future: "Future[list[RawSample]]") -> tuple[RawSample, list[RawSample] | Exception]:
    while not future.done():
        # a signal that came just before the wait is handled after it
        wait((future,), _WAIT_SECONDS)
    try:
        return sample, future.result()
    except Exception as error:  # noqa: BLE001  the caller decides
        return sample, error


def process_samples(
    samples: Iterable[RawSample],
    function: Callable[[RawSample], list[RawSample]],
    *,
    jobs: int = 1,
    on_error: OnError = "stop",
    failed: Callable[[RawSample, Exception], None] = lambda *_: None,
) -> Iterator[RawSample]:
    """Yield what a function makes of samples.

    Args:
        samples: as they stand.
        function: see :class:`ShellCommand` and :class:`SampleFunction`.
        jobs: how many run at a time, in threads.
        on_error: ``stop``, ``skip`` the sample, or ``keep`` it as it was.
        failed: called with each sample that is skipped or kept.

    Raises:
        SampleError: the function failed for a sample, and ``on_error`` is ``stop``.
    """
    return judge_results(map_in_order(function, samples, jobs), on_error, failed)


def judge_results(
    results: Results,
    on_error: OnError,
    failed: Callable[[RawSample, Exception], None],
    dropped: Callable[[int, int], None] = lambda *_: None,
) -> Generator[RawSample, None, None]:
    """Yield the samples that were made, and do what is to be done where none could be made.

    Args:
        results: of :func:`map_in_order` or :func:`map_in_processes`.
        on_error: ``stop``, ``skip`` the sample, or ``keep`` it as it was.
        failed: called with each sample that is skipped or kept.
        dropped: called at the end, where the function gave nothing for some samples: for how many, and of how many.

    Raises:
        AllDropped: the function gave nothing for every sample.
        SampleError: the function failed for a sample, and ``on_error`` is ``stop``.
        WorkerDied: a process died at a sample, likewise.
    """
    count = empty = 0
    # threads and processes end here, not when a traceback is let go
    with contextlib.closing(results):
        for sample, made in results:
            count += 1
            if not isinstance(made, Exception):
                empty += not made
                yield from made
                continue
            if on_error == "stop":
                raise made
            failed(sample, made)
            if on_error == "keep":
                yield sample
    if empty == count > 0:
        raise AllDropped(
            f"the function returned None, or nothing, for every one of the {count} samples, so that nothing is "
            "written: does it lack a return? ('wds select --where' keeps the samples for which an expression holds)"
        )
    if empty:
        dropped(empty, count)


class ShellCommand:
    """Runs a command in a folder that holds a sample's fields as ``sample.FIELD``; what it leaves there is the result.

    Fields that it does not touch stay as they stand. Its standard output goes nowhere; the end of its standard error
    is part of the error. ``WDS_KEY`` is the sample's key.

    Args:
        command: for ``bash``, or for ``sh`` where there is no bash.
        environment: what it sees, besides.
        folder: where the folders are made; the system's for temporary files by default.
        shell: another program that runs the command after ``-c``.
    """

    def __init__(
        self, command: str, environment: Mapping[str, str], *, folder: str | None = None, shell: str | None = None
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._folder = folder
        self._shell = shell or ("/bin/bash" if Path("/bin/bash").exists() else "/bin/sh")
        self._calls: set[object] = set()
        self._running: set[ChildProcess] = set()
        self._stopped = False

    def stop(self) -> None:
        """End the commands that run, with all that they started, and wait until their folders are gone; none begins."""
        self._stopped = True
        while self._calls:
            for child in list(self._running):
                end_child(child)
            time.sleep(_PAUSE_SECONDS)

    def __call__(self, sample: RawSample) -> list[RawSample]:
        """Run the command.

        Args:
            sample: as it stands.

        Raises:
            CommandFailed: it ended with an error status, was stopped, or there is no such shell.
            SampleError: it leaves no field.
        """
        call = object()
        self._calls.add(call)
        try:
            if self._stopped:
                raise CommandFailed("the command was stopped", url=sample.url, key=sample.key)
            with tempfile.TemporaryDirectory(prefix="wds-proc-", dir=self._folder) as scratch:
                self._unpack(sample, Path(scratch))
                self._run(sample, scratch)
                return self._collect(sample, Path(scratch))
        finally:
            self._calls.discard(call)

    def _unpack(self, sample: RawSample, scratch: Path) -> None:
        for field, member in zip(sample.fields, sample.members, strict=True):
            if "/" in field or "\0" in field:
                raise SampleError(f"the field {field!r} cannot be a file", key=sample.key, url=sample.url)
            Path(scratch, f"{_STEM}.{field}").write_bytes(member.payload)

    def _run(self, sample: RawSample, scratch: str) -> None:
        child = subprocess.Popen(  # noqa: S603  running the user's command is what this is for
            [self._shell, "-c", self._command],
            cwd=scratch,
            env={**self._environment, "WDS_KEY": sample.key},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._running.add(child)
        if self._stopped:
            end_child(child)
        try:
            _, complaint = child.communicate()
        except BaseException:  # an interrupt, too, leaves no command
            end_child(child)
            raise
        finally:
            self._running.discard(child)
        if child.returncode:
            said = complaint.decode("utf-8", "replace").strip()[-_SHOWN:]
            status = f"status {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
            raise CommandFailed(f"the command ended with {status}: {said}".rstrip(": "), url=sample.url, key=sample.key)

    def _collect(self, sample: RawSample, scratch: Path) -> list[RawSample]:
        found = {path.name[len(_STEM) + 1 :]: path for path in scratch.iterdir() if _is_field(path)}
        return [_pack(sample, sample.key, found, "sample.FIELD")]


class TarpCommand(ShellCommand):
    """Runs a command as ``tarp proc`` does: ``sample.__key__`` holds the key, and what the command leaves there counts.

    Args:
        command: for the shell.
        environment: what it sees, besides.
        several: the command leaves any number of samples, as ``sample-000000.FIELD``, ``sample-000001.FIELD``; their
            keys are in ``sample-000000.__key__``, or else ``KEY/000000``.
        shell: another program than ``bash`` that runs the command after ``-c``.
        folder: where the folders are made; the system's for temporary files by default.
    """

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        *,
        several: bool = False,
        folder: str | None = None,
        shell: str | None = None,
    ) -> None:
        super().__init__(command, environment, folder=folder, shell=shell)
        self._several = several

    def _unpack(self, sample: RawSample, scratch: Path) -> None:
        super()._unpack(sample, scratch)
        Path(scratch, f"{_STEM}.{_KEY}").write_bytes(os.fsencode(sample.key))

    def _collect(self, sample: RawSample, scratch: Path) -> list[RawSample]:
        found: dict[int, dict[str, Path]] = {}
        for path in sorted(scratch.iterdir()):
            match = (_SEVERAL if self._several else _SINGLE).fullmatch(path.name)
            if match is not None and path.is_file():
                fields = found.setdefault(int(match["number"] or 0) if self._several else 0, {})
                if match["field"] in fields:
                    raise SampleError(f"the command leaves {path.name!r} twice", key=sample.key, url=sample.url)
                fields[match["field"]] = path
        wanted = f"{_STEM}-000000.FIELD" if self._several else f"{_STEM}.FIELD"
        if not found:
            raise SampleError(f"the command leaves no file {wanted}", key=sample.key, url=sample.url)
        made = []
        for number, fields in sorted(found.items()):
            named = fields.pop(_KEY, None)
            key = f"{sample.key}/{number:06}" if self._several else sample.key
            if named is not None:
                key = os.fsdecode(named.read_bytes().rstrip(b"\n"))
            if base_plus_ext(f"{key}.x") != (key, "x"):
                raise SampleError(f"{key!r} cannot be a key: it would end at a dot", key=sample.key, url=sample.url)
            made.append(_pack(sample, key, fields, wanted))
        return made


def _pack(sample: RawSample, key: str, found: Mapping[str, Path], wanted: str) -> RawSample:
    """Return what a command made of a sample: fields that it did not touch as they stood, then new ones by name."""
    fields = [field for field in sample.fields if field in found]
    fields += sorted(field for field in found if field.lower() not in sample.fields)
    if not fields:
        raise SampleError(f"the command leaves no file {wanted}", key=sample.key, url=sample.url)
    before = dict(zip(sample.fields, sample.members, strict=True))
    members = tuple(_keep_or_make(key, field, found[field].read_bytes(), before) for field in fields)
    return sample._replace(key=key, fields=tuple(field.lower() for field in fields), members=members)


def _is_field(path: Path) -> bool:
    return path.is_file() and path.name.startswith(f"{_STEM}.") and len(path.name) > len(_STEM) + 1


def _keep_or_make(key: str, field: str, payload: bytes, before: Mapping[str, RawMember]) -> RawMember:
    """Return the member as it stood where its bytes are the same, else a new one."""
    member = before.get(field)
    if member is not None and member.payload == payload and base_plus_ext(member.name)[0] == key:
        return member
    return make_member(f"{key}.{field}", payload)


def load_function(name: str) -> Callable[[dict[str, Any]], Any]:
    """Import a function.

    Args:
        name: ``module:function``.

    Raises:
        UsageError: it is not of this form, or there is no such function.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{name!r} is not of the form module:function")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        hint = f"; a module is named without .py: {module[:-3]}:{attribute}" if module.endswith(".py") else ""
        raise UsageError(f"there is no {name}: {error}{hint}") from error
    if not callable(found):
        raise UsageError(f"{name} is no function")
    return found  # type: ignore[no-any-return]


class SampleFunction:
    """Calls a Python function with a sample as a dictionary.

    Args:
        function: takes ``{"__key__", "__url__", field: bytes}``; returns such a dictionary, an iterable of them, or
            None.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        from webdataset.codecs import make_encoder  # noqa: PLC0415  for functions alone

        self._function = function
        self._encode = make_encoder(True)

    def __call__(self, sample: RawSample) -> list[RawSample]:
        """Call the function.

        Args:
            sample: as it stands.

        Raises:
            SampleError: it fails, or what it returns is no sample.
            EncodingError: a value cannot be encoded.
        """
        try:
            made = self._function({"__key__": sample.key, "__url__": sample.url, **sample.payloads()})
            listed = isinstance(made, Iterable) and not isinstance(made, Mapping)
            # a generator runs here
            several = [] if made is None else list(made) if listed else [made]
        except Exception as error:  # whatever it is: it is the function's, and is chained
            raise SampleError(f"the function fails: {describe_error(error)}", key=sample.key, url=sample.url) from error
        return [self._to_raw(sample, each) for each in several]

    def _to_raw(self, sample: RawSample, made: Any) -> RawSample:
        if not isinstance(made, Mapping):
            raise SampleError(
                f"the function gives {type(made).__name__}: it must return a dictionary of fields, a list of such, or "
                "None to leave the sample out",
                key=sample.key,
                url=sample.url,
            )
        key = str(made.get("__key__", sample.key))
        if base_plus_ext(f"{key}.x") != (key, "x"):
            raise SampleError(f"{key!r} cannot be a key: it would end at a dot", key=sample.key, url=sample.url)
        fields = {name: value for name, value in made.items() if not name.startswith("_")}
        if not fields:
            raise SampleError("the function gives a sample without fields", key=sample.key, url=sample.url)
        encoded = self._encode({"__key__": key, **fields})
        before = dict(zip(sample.fields, sample.members, strict=True))
        members = tuple(_keep_or_make(key, name, bytes(encoded[name]), before) for name in fields)
        return sample._replace(key=key, fields=tuple(fields), members=members)
