"""Limits of this process: raises that of open files when needed, and knows errors that come from limits.

Systems give a process a low limit of open files (often 1024), and let it raise that up to a second, hard one. It is
raised here when a shard cannot be opened without, and not before: a program that never needs more keeps the limit that
it was given. Where even the hard limit is too low, or a command or a thread cannot be started since there are too many,
no handler is asked: that says nothing about a shard, and to continue with the next one would leave out shard after
shard.
"""

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from webdataset.core.errors import SourceError
from webdataset.core.logs import log

# imported now: it is a file, too, and is needed when none can be opened
try:
    import resource
except ImportError:  # Windows
    _limits = None
else:
    _limits = resource

Opened = TypeVar("Opened")

RAISE_TO = 65_536
"""The number of open files that is asked for; the hard limit where that is lower."""
FILES_HINT = f"; raise the limit of the process: ulimit -n {RAISE_TO}"
_NO_FILE = (errno.EMFILE, errno.ENFILE)
_NO_PROCESS = "; this user, or the container, may have no more processes, or no memory is left: look at 'ulimit -u'"
# what Python says, whatever the reason
_NO_THREAD = "can't start new thread"


def suggest_for_command(error: OSError) -> str:
    """Return what to do where a command could not be started, to stand after the error."""
    if error.errno in _NO_FILE:
        return FILES_HINT
    return _NO_PROCESS if error.errno in (errno.EAGAIN, errno.ENOMEM) else ""


def find_file_limits() -> tuple[int | None, int | None]:
    """Return how many files this process may have open, and how far it may raise that; None where there is no bound."""
    if _limits is None:
        return None, None
    soft, hard = _limits.getrlimit(_limits.RLIMIT_NOFILE)
    endless = _limits.RLIM_INFINITY
    return None if soft == endless else soft, None if hard == endless else hard


def raise_file_limit() -> bool:
    """Let this process have more files open, 65 536 at most; tell whether the system allows any more."""
    soft, hard = find_file_limits()
    wanted = RAISE_TO if hard is None else min(RAISE_TO, hard)
    if _limits is None or soft is None or soft >= wanted:
        return False
    try:
        _limits.setrlimit(_limits.RLIMIT_NOFILE, (wanted, _limits.RLIM_INFINITY if hard is None else hard))
    except (OSError, ValueError):  # some systems have a third limit
        return False
    log.info("raised the number of files that this process may have open from %d to %d", soft, wanted)
    return True


def open_with_raised_limit(opener: Callable[[], Opened]) -> Opened:
    """Call a function that opens files; where the process may have no more, raise its limit and call it once more.

    Raises:
        OSError: what the function raises.
    """
    try:
        return opener()
    except OSError as error:
        # another thread may have raised it, or closed something
        if error.errno != errno.EMFILE or not (raise_file_limit() or can_open_files()):
            raise
    return opener()


def is_out_of_resources(error: BaseException) -> bool:
    """Tell whether a source could not be read because the process, or the system, has no more files or processes.

    Few libraries say so of their own files, as sockets are: so it is tried whether any can be opened now.
    """
    if isinstance(error, OSError) and error.errno in _NO_FILE:
        return True
    if isinstance(error, SourceError | RuntimeError) and any(said in str(error) for said in (_NO_THREAD, _NO_PROCESS)):
        return True
    return isinstance(error, SourceError) and not can_open_files()


def can_open_files() -> bool:
    """Tell whether this process can open one more file at present."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in _NO_FILE
    return True
