"""Reading in processes that were forked, or started in another way, after their parent has read.

A child does only what it was given: no test report is written twice, no fixture torn down twice.
"""

import faulthandler
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import webdataset as wds
from webdataset.storage.random_access import open_ranges

NUMBERED = {str(number): bytes([number]) * 100_000 for number in range(8)}
"""Objects by their names, which :func:`read_by_children` reads."""
PATIENCE_SECONDS = 100
"""A child that takes longer waits for ever: it says for what, and ends."""


def read_by_children(stem: str, method: str, environment: Mapping[str, str], *, count: int = 2) -> list[int | None]:
    """Let children read all of :data:`NUMBERED`, twice, as streams and by ranges, all at once.

    Args:
        stem: of the urls; a name follows.
        method: ``fork``, ``forkserver`` or ``spawn``.
        environment: what is set for them; a fork server that was started earlier has that of its own start.
        count: how many children.

    Returns:
        Their exit codes; 0 where all the bytes were right.
    """
    context = multiprocessing.get_context(method)
    given = [(stem, start, dict(environment)) for start in range(count)]
    children = [context.Process(target=_set_and_read, args=arguments) for arguments in given]  # type: ignore[attr-defined]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE_SECONDS + 20)
        child.kill()
    return [child.exitcode for child in children]


def _set_and_read(stem: str, start: int, environment: Mapping[str, str]) -> None:
    _limited()
    with mock.patch.dict("os.environ", environment):
        _read(stem, start)


def _limited() -> None:
    """Let this process end after a while, with its stacks; it is a child, and waits for its own alarm alone."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, file=2, chain=True)  # its own timer would not survive a fork
    signal.alarm(PATIENCE_SECONDS)


def _read(stem: str, start: int) -> None:
    for step in range(2 * len(NUMBERED)):
        name = str((start + step) % len(NUMBERED))
        with wds.gopen(stem + name) as stream:
            if stream.read() != NUMBERED[name]:
                raise SystemExit(3)
        with open_ranges(stem + name) as ranges:
            if ranges.read_at(90_000, 50) != NUMBERED[name][:50]:
                raise SystemExit(4)


def forked(action: Callable[[], object]) -> int:
    """Fork; the child does something, and is gone, whatever happens.

    Args:
        action: what the child does; true is success.

    Returns:
        The child's number, for :func:`ended`.
    """
    child = os.fork()
    if child == 0:
        code = 2
        try:
            _limited()
            code = 0 if action() else 1
        except BaseException:  # noqa: BLE001  said here, since nobody else can: the child must not go on with its test
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """Wait for a child.

    Args:
        child: as :func:`forked` returned it.

    Returns:
        0 for success, 1 for what was not true, 2 for an exception; negative where a signal ended it.
    """
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def closed_by_child(stream: Any) -> bool:
    """Let a child close its copy of a stream; return whether that raised nothing.

    Args:
        stream: an open one.
    """

    def close() -> bool:
        stream.close()
        return True

    return ended(forked(close)) == 0


def read_on_by_both(stream: Any, rest: bytes) -> bool:
    """Read a stream on, here and in a child at once; return whether both got all the rest.

    Args:
        stream: an open one.
        rest: what is still to come.
    """

    def read() -> bool:
        return bool(stream.read() == rest)

    child = forked(read)
    here = read()
    return (here, ended(child)) == (True, 0)
