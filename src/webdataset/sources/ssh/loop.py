"""One event loop in one thread for everything that speaks ssh: asyncssh wants one, and readers must not wait.

Flows in: coroutines, from any thread. Flows out: their results. The thread is started by the first of them. A forked
child begins anew: what it inherited is kept as it is, untouched, since closing it would close its parent's.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from webdataset.ground.redaction import redacted

log = logging.getLogger("webdataset")
T = TypeVar("T")

_inherited: list[Any] = []
_running: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_lock = threading.Lock()


def _forget() -> None:
    global _lock, _running, _thread  # a child has neither this thread nor its lock
    _inherited.append(_running)
    _lock, _running, _thread = threading.Lock(), None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop, running."""
    global _running, _thread  # noqa: PLW0603  one for the process
    with _lock:
        if _running is None:
            _running = asyncio.new_event_loop()
            _running.set_exception_handler(_unheard)
            _thread = threading.Thread(target=_running.run_forever, name="webdataset-ssh", daemon=True)
            _thread.start()
        return _running


def _unheard(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Take note of what asyncssh's own tasks have to say when a connection is lost: their reader knows it already."""
    error = context.get("exception")
    log.debug("ssh: %s", redacted(f"{context.get('message')}: {type(error).__name__}: {error}"))


def submitted(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine; return its future.

    Args:
        work: the coroutine.
    """
    return asyncio.run_coroutine_threadsafe(work, loop())


def done(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run a coroutine to its end.

    Args:
        work: the coroutine.
        seconds: how long it may take.

    Raises:
        TimeoutError: it took longer, and was stopped.
        Exception: what it raises.
    """
    future = submitted(work)
    try:
        return future.result(seconds)
    except BaseException:  # an interrupt, too, must not leave it running
        future.cancel()
        raise


@atexit.register
def _end() -> None:
    """Stop the thread before the interpreter goes away below it."""
    running, thread = _running, _thread
    if running is None or thread is None or running.is_closed():
        return
    with contextlib.suppress(Exception):  # nothing is left to tell it to
        asyncio.run_coroutine_threadsafe(_cancelled(), running).result(2)
    running.call_soon_threadsafe(running.stop)
    thread.join(2)


async def _cancelled() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=1) if tasks else None
