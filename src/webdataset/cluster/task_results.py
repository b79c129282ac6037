"""How a task ended, in a kilobyte that travels; and whether it is tried again."""

import errno
import os
import traceback
from collections import Counter
from typing import Final, NamedTuple

from webdataset.cluster.stored_files import Record, file_name
from webdataset.core.errors import AlreadyExists, NotFound, ShardChanged, WebDatasetError, WorkerDied, describe_error
from webdataset.core.redaction import redact
from webdataset.writing.local_file import host_tag

_SHOWN: Final = 400
_DEATHS_A_RETRY: Final = 4
_LASTING: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}


class TaskResult(NamedTuple):
    """How a task ended.

    Args:
        number: of its output.
        state: ``done``, ``skipped`` (it was done already) or ``failed``.
        reason: of making it, or what failed.
        again: a later attempt may succeed.
        counts: samples in, out, dropped and failed, loose files.
        seconds: that it took.
        host: where it ran.
        pid: of the process.
        attempt: which one it was, from 1.
        key: of the sample at which it failed.
    """

    number: int
    state: str
    reason: str = ""
    again: bool = False
    counts: dict[str, int] = {}  # noqa: RUF012  never changed
    seconds: float = 0.0
    host: str = ""
    pid: int = 0
    attempt: int = 1
    key: str | None = None

    def to_json(self) -> Record:
        """Return the result as JSON."""
        return self._asdict()

    @classmethod
    def from_json(cls, record: Record) -> "TaskResult":
        """Return the result that :meth:`to_json` described."""
        return cls(**record)


def fail_result(result: TaskResult, error: BaseException) -> TaskResult:
    """Return the result of a task that ended with an error.

    Args:
        result: with the number, attempt and host.
        error: what ended it.
    """
    reason = redact(describe_error(error))
    if not isinstance(error, WebDatasetError):
        frames = traceback.extract_tb(error.__traceback__)
        reason += f" at {file_name(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    key = getattr(error, "key", None)
    return result._replace(
        state="failed", reason=reason[:_SHOWN], again=_may_pass(error), key=None if key is None else str(key)[:100]
    )


def _may_pass(error: BaseException) -> bool:
    """Tell whether an error may be gone at the next attempt: those of storage, not those of functions."""
    if not isinstance(error, OSError) or isinstance(error, NotFound | AlreadyExists | ShardChanged):
        # one that names a sample is about a sample that was found out
        return isinstance(error, WorkerDied) and error.key is None
    return error.errno not in _LASTING


def host_name() -> str:
    """Return the name of this host, and what tells it from another of the same name."""
    named = getattr(os, "uname", lambda: ("", "windows"))()[1]
    return f"{named[:64]}-{host_tag()}"


class TaskRetries:
    """Counts attempts.

    Args:
        retries: attempts after the first one, for errors that may pass; a process that dies, which may be no fault of
            the shard, is forgiven four times as often.
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
