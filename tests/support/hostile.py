"""A corpus of fields made to do harm, and a measurement of what decoding them does.

Each payload that holds code creates a marker file if it is executed, and does nothing else. Use it to check a decoder,
a handler or a whole pipeline of your own::

    for outcome in measured(cases(marker), marker, Decoder(["auto"])):
        print(outcome)

Run the measurement in a process of its own, such as :func:`call_limited` makes: a payload may get through a decoder
that is not ours, or take all memory.
"""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from support.hostile_bombs import exhausting
from support.hostile_fields import (
    array_fields,
    binary_fields,
    compressed_fields,
    image_fields,
    text_fields,
    torch_fields,
)
from support.hostile_pickles import executing
from support.hostile_shards import hostile_shards
from webdataset.core.errors import WebDatasetError

GROUPS = ("pickles", "text", "binary", "arrays", "compressed", "images", "torch", "shards")


class Case(NamedTuple):
    """One hostile field.

    Args:
        name: what it tries, unique in the corpus.
        field: the extension under which it is decoded.
        content: its bytes.
    """

    name: str
    field: str
    content: bytes


class Outcome(NamedTuple):
    """What became of one hostile field.

    Args:
        name: the case's.
        error: the error's class, or None where a value came out.
        typed: the error is one of this library.
        cpu_seconds: time that the decoding took.
        peak_bytes: largest resident memory of the process meanwhile; 0 where the system does not tell.
        executed: the marker is there.
    """

    name: str
    error: str | None
    typed: bool
    cpu_seconds: float
    peak_bytes: int
    executed: bool


def cases(marker: str, groups: Iterable[str] = GROUPS) -> Iterator[Case]:
    """Yield the corpus, made as it is asked for.

    Args:
        marker: path of the file that payloads with code create.
        groups: which parts: ``pickles``, ``text``, ``binary``, ``arrays``, ``compressed``, ``images``, ``torch``, and
            ``shards``, which are no fields but files: ``tar``, ``cbors`` and ``msgpack``.
    """
    makers: dict[str, Callable[[str], Iterator[tuple[str, str, bytes]]]] = {
        "pickles": lambda marker: (
            (name, "pyd", content) for name, content in (*executing(marker).items(), *exhausting().items())
        ),
        "text": text_fields,
        "binary": binary_fields,
        "arrays": array_fields,
        "compressed": compressed_fields,
        "images": image_fields,
        "torch": torch_fields,
        "shards": hostile_shards,
    }
    for group in groups:
        for name, field, content in makers[group](marker):
            yield Case(f"{field}: {name}", field, content)


def measured(corpus: Iterable[Case], marker: str, decode: Callable[[dict[str, Any]], Any]) -> Iterator[Outcome]:
    """Decode each field in this process and tell what happened.

    Args:
        corpus: the cases.
        marker: path of the file that payloads with code create; it must not exist yet.
        decode: sample to anything, such as a :class:`webdataset.Decoder`.

    Yields:
        One outcome a case.
    """
    for case in corpus:
        _forget_peak()
        error: Exception | None = None
        value: Any = None
        started = time.process_time()
        try:
            value = decode({"__key__": "k", case.field: case.content})
        except Exception as raised:  # noqa: BLE001  what it raises is what is asked for
            error = raised
        took = time.process_time() - started
        peak = _peak_bytes()
        kind, typed = None if error is None else type(error).__name__, isinstance(error, WebDatasetError)
        del value, error  # and with the error the frames that hold what was made of the field
        yield Outcome(case.name, kind, typed, took, peak, Path(marker).exists())


class LimitedCallFailed(AssertionError):
    """What was called in a process with limits raised an error, or the process ended before it was done."""


def limit_process(more_bytes: int, cpu_seconds: int) -> None:
    """Limit what this process takes from now on: beyond, memory is refused, and processor time ends the process.

    Args:
        more_bytes: address space beyond what it has.
        cpu_seconds: processor time beyond what it has used, in whole seconds, rounded up.

    Raises:
        OSError: the system does not tell how much the process has (it is not Linux).
    """
    import resource  # noqa: PLC0415  not on every system

    taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    used = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for kind, limit in ((resource.RLIMIT_AS, taken + more_bytes), (resource.RLIMIT_CPU, used + cpu_seconds)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def call_limited(function: Callable[[], Any], more_bytes: int = 1 << 30, cpu_seconds: int = 120) -> Any:
    """Call a function in a copy of this process that has limits, so that no input can take the whole machine.

    Args:
        function: what to call; it returns what JSON can say.
        more_bytes: memory that it may take.
        cpu_seconds: processor time that it may take.

    Returns:
        What it returned.

    Raises:
        LimitedCallFailed: it raised an error, whose traceback is told; or a limit ended it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(function, more_bytes, cpu_seconds, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise LimitedCallFailed(f"ended by {signal.Signals(-code).name}: {cpu_seconds} s, {more_bytes >> 20} MiB")
    if code or not answer:
        raise LimitedCallFailed(f"ended with {code} and did not say what became of it")
    returned, report = json.loads(answer)
    if not returned:
        raise LimitedCallFailed(report)
    return report


def _answer(function: Callable[[], Any], more_bytes: int, cpu_seconds: int, pipe: int) -> NoReturn:
    """Call a function under limits in a process of its own, write what became of it to a pipe, and end."""
    code = 1
    try:
        limit_process(more_bytes, cpu_seconds)
        try:
            answer = json.dumps((True, function()))
        except BaseException as error:  # noqa: BLE001  whatever it raises is told to who called
            answer = json.dumps((False, "".join(traceback.format_exception(error))))
        with os.fdopen(pipe, "w", encoding="ascii") as stream:
            stream.write(answer)
        code = 0
    finally:
        os._exit(code)


def _forget_peak() -> None:
    """Let the system count the peak of resident memory anew, where it can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return


def _peak_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
