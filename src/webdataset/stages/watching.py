"""Looking at samples as they pass: info, log_keys.

Flows in: samples. Flows out: the same samples. What is seen goes to a text stream or a log file.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

from .base import observation


def _info(  # noqa: PLR0917  upstream's
    source: Iterator[Any],
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: TextIO | None = None,
    name: str = "",
) -> Iterator[Any]:
    """Show the first samples, and every so many after them.

    Args:
        source: samples of any type.
        fmt: a format string over the sample's fields; without one, each field is shown on a line.
        n: how many of the first samples to show.
        every: show also every so many; below 1 none.
        width: characters of a field to show.
        stream: where to write; standard error where it is not given.
        name: shown with each sample.

    Yields:
        The samples, untouched.

    Flow: in order; holds nothing; resumes exactly.
    """
    for number, sample in enumerate(source, 1):
        if number <= n or (every > 0 and number % every == 0):
            (stream or sys.stderr).write(_shown(sample, fmt, width, name) + "\n")
        yield sample


def _shown(sample: Any, fmt: str | None, width: int, name: str) -> str:
    fields = (
        sample
        if isinstance(sample, dict)
        else dict(enumerate(sample if isinstance(sample, tuple | list) else [sample]))
    )
    if fmt is not None:
        return fmt.format(**sample) if isinstance(sample, dict) else fmt.format(*fields.values())
    return "\n".join([f"--- {name}", *(f"{field} {repr(value)[:width]}" for field, value in fields.items())])


def _log_keys(source: Iterator[Any], logfile: str | os.PathLike[str] | None = None) -> Iterator[Any]:
    """Write down which sample went where.

    Args:
        source: samples that are dictionaries.
        logfile: appended to, one line a sample: its number here, ``__worker__``, ``__rank__`` and ``__key__``, joined
            by tabs. The file is locked for each line. None or "" writes nothing.

    Yields:
        The samples, untouched.

    Raises:
        OSError: the file cannot be written.

    Flow: in order; holds nothing; resumes exactly.
    """
    if not logfile:
        yield from source
        return
    for number, sample in enumerate(source):
        known = sample if isinstance(sample, dict) else {}
        places = [number, *(known.get(name) for name in ("__worker__", "__rank__", "__key__"))]
        with open(logfile, "a", encoding="utf-8") as log:  # noqa: PTH123  any path-like
            _lock(log)
            log.write("\t".join(str(place) for place in places) + "\n")
        yield sample


def _lock(file: TextIO) -> None:
    """Lock a file until it is closed; on systems without ``fcntl`` single short appends must do."""
    with suppress(ImportError):
        import fcntl  # noqa: PLC0415  absent on Windows

        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


info = observation(_info)
log_keys = observation(_log_keys)
