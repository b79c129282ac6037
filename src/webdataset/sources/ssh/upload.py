"""Uploads by SFTP: a file appears when it is complete, and never before.

Flows in: bytes. Flows out: a file. They are written beside it, under a name of their own that begins with a dot, a few
requests at a time, and renamed by the last one. What the server has not confirmed is kept: where the connection drops,
it is written again, over another one, to the same place.
"""

import collections
import contextlib
import os
import posixpath
from concurrent.futures import Future
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.seeds import fresh
from webdataset.sources.objects import Again
from webdataset.sources.patience import ATTEMPTS, Patience
from webdataset.sources.publishing import Publication

from . import loop, sessions
from .errors import translated
from .places import place_of, split

PIECE_BYTES = 1 << 20
AT_ONCE = 4


class SshUpload(Publication):
    """A stream to a new file, in a folder that is there.

    Args:
        url: the file.
        storage_options: options of this store.
        attempts: failures in a row after which the upload is given up.

    Raises:
        UsageError: the url names no file.
        NotFound: no such folder.
        SourceError: the server refuses.
        MissingExtra: asyncssh is not installed.
    """

    def __init__(self, url: str, storage_options: Any = None, *, attempts: int = ATTEMPTS, **_options: Any) -> None:
        self._login, self._path = place_of(url, storage_options)
        if self._path.endswith("/") or not split(url)[1]:
            raise UsageError("names no file: write ssh://[user@]host[:port]/path", url=url)
        folder, name = posixpath.split(self._path)
        self._beside = posixpath.join(folder, f".{name[:200]}.{fresh():016x}.part")
        self._failures = sessions.failures()
        self._patience, self._attempts = Patience(attempts), attempts
        self._buffer = bytearray()
        self._pending: collections.deque[tuple[int, bytes, Future[None]]] = collections.deque()
        self._handle: Any = None
        super().__init__(url)
        self._insist(self._begin, "xb")

    def _taken(self, view: memoryview) -> None:
        """Take bytes; a full piece is sent while the next one fills."""
        for start in range(0, len(view), PIECE_BYTES):
            self._buffer += view[start : start + PIECE_BYTES]
            if len(self._buffer) >= PIECE_BYTES:
                self._send()

    def _send(self) -> None:
        """Hand the buffer over; wait where enough pieces are on their way."""
        offset = self._pending[-1][0] + len(self._pending[-1][1]) if self._pending else self._confirmed
        body, self._buffer = bytes(self._buffer), bytearray()
        self._pending.append((offset, body, self._written(offset, body)))
        while len(self._pending) > AT_ONCE:
            self._confirm()

    _confirmed = 0

    def _written(self, offset: int, body: bytes) -> Future[None]:
        return loop.submitted(_written(self._handle, offset, body))

    def _confirm(self) -> None:
        """Wait until the oldest piece is there; after a drop, write everything unconfirmed again."""
        again = False

        def attempt() -> None:
            nonlocal again
            if again:
                self._begin("r+b")
                self._pending = collections.deque(
                    (offset, body, self._written(offset, body)) for offset, body, _ in self._pending
                )
            again = True
            self._pending[0][2].result(sessions.READ_SECONDS)

        self._insist(attempt)
        offset, body, _ = self._pending.popleft()
        self._confirmed = offset + len(body)
        self._patience.progress(self._confirmed)

    def _begin(self, mode: str) -> None:
        self._handle = loop.done(_opened(self._login, self._beside, mode), sessions.READ_SECONDS)

    def _insist(self, attempt: Any, *words: Any) -> Any:
        """Do something until it works, with patience.

        Raises:
            SourceError: the server refuses, or does not answer.
        """
        while True:
            try:
                return attempt(*words)
            except self._failures as error:
                failure = translated(error, self.name, self._login)
            if not isinstance(failure, Again):
                self._broken = failure
                raise failure
            if self._patience.spent():
                self._broken = SourceError(f"no answer after {self._attempts} attempts: {failure}", url=self.name)
                raise self._broken
            loop.submitted(sessions.dropped(self._login))
            self._patience.pause()

    def close(self) -> None:
        """Publish the file.

        Raises:
            SourceError: the server refuses, now or earlier; nothing is published.
        """
        if self.closed:
            return
        if self._owner != os.getpid():  # a copy in a forked process: the upload belongs to its parent
            super().close()
            return
        try:
            self._finish()
        except BaseException:  # an interrupt, too, must not leave anything behind
            self.abort()
            raise
        super().close()

    def _finish(self) -> None:
        """Send what is left, and publish."""
        if self._broken is not None:
            raise self._broken
        if self._buffer:
            self._send()
        while self._pending:
            self._confirm()
        self._insist(self._publish)

    def _publish(self) -> None:
        done = _published(self._login, self._handle, (self._beside, self._path), self._size)
        loop.done(done, sessions.READ_SECONDS)

    def abort(self) -> None:
        """Stop the upload; nothing is published, and what was sent is removed."""
        if self.closed:
            return
        if self._owner == os.getpid() and self._handle is not None:
            for _, _, future in self._pending:
                future.cancel()
            with contextlib.suppress(*self._failures):
                loop.done(_removed(self._login, self._handle, self._beside), sessions.CONNECT_SECONDS)
        super().close()


async def _opened(login: Any, path: str, mode: str) -> Any:
    session = await sessions.session_for(login)
    try:
        return await session.files.open(path, mode, encoding=None)
    except sessions.asyncssh().SFTPFileAlreadyExists:  # an answer was lost, and this is our own
        return await session.files.open(path, "r+b", encoding=None)


async def _written(handle: Any, offset: int, body: bytes) -> None:
    await handle.write(body, offset)


async def _published(login: Any, handle: Any, paths: tuple[str, str], size: int) -> None:
    """Give the file its name, once all of it is there.

    Raises:
        Exception: one of ``sessions.failures()``.
    """
    known = sessions.asyncssh()
    beside, path = paths
    session = await sessions.session_for(login)
    with contextlib.suppress(known.Error, OSError):  # of a connection that is gone, or a server that cannot
        await handle.fsync()
    with contextlib.suppress(known.Error, OSError):
        await handle.close()
    try:
        there = (await session.files.stat(beside)).size
    except known.SFTPNoSuchFile:
        if (await session.files.stat(path)).size == size:  # renamed already: the answer was lost
            return
        raise
    if there != size:
        raise ValueError(f"{there} bytes are there instead of {size}")
    try:
        await session.files.posix_rename(beside, path)
    except known.SFTPOpUnsupported:
        with contextlib.suppress(known.SFTPNoSuchFile):
            await session.files.remove(path)
        await session.files.rename(beside, path)


async def _removed(login: Any, handle: Any, path: str) -> None:
    session = await sessions.session_for(login)
    with contextlib.suppress(sessions.asyncssh().Error, OSError):
        await handle.close()
    await session.files.remove(path)
