"""Streams from files on other machines, by SFTP.

Flows in: a url. Flows out: the file's bytes, through the one resuming reader. Some requests are always on their way
ahead of the reader, so that a distant server is as fast as a near one. Who a file is, is told by its length and the
time of its last change, in whole seconds: that is all that SFTP says. A file that is replaced while it is open is read
to its end as it was; one that is written over in place is noticed by its time, which is asked for again at the end.
"""

import asyncio
import collections
import contextlib
import os
import urllib.parse
from concurrent.futures import Future
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.sources.objects import Again, Answer, Identity, changed

from . import loop, sessions
from .errors import translated
from .places import Place, place_of, split

FIRST_BYTES = 1 << 18
PIECE_BYTES = 1 << 20
AHEAD = 6


class SshObject:
    """One file, as the resuming reader asks for it.

    Args:
        url: the url as the user wrote it.
        storage_options: options of this store.

    Raises:
        UsageError: the url names no file.
        MissingExtra: asyncssh is not installed.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.place = place_of(url, storage_options)
        if self.place.path.endswith("/") or not split(url)[1]:
            raise UsageError("names no file: write ssh://[user@]host[:port]/path", url=url)
        self._failures = sessions.failures()

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return self._failures

    def refresh(self) -> None:
        """Log in anew."""
        loop.done(sessions.dropped(self.place.login), sessions.READ_SECONDS)

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Open the file once; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the file was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another file by now.
            SourceError: the server refuses.
        """
        patience = sessions.CONNECT_SECONDS + sessions.READ_SECONDS
        try:
            body, identity = loop.done(_opened(self.place, offset, size), patience)
        except self._failures as error:
            failure = translated(error, self.url, self.place.login)
            if isinstance(failure, Again):
                loop.submitted(sessions.dropped(self.place.login))
            raise failure from None
        if known is not None and known.contradicts(identity):
            body.close()
            raise changed(self.url, offset)
        return Answer(body, offset, identity, body.size)


class SshBody:
    """A part of an open file, read front to back; the requests for what follows are on their way.

    Args:
        place: the file.
        session: the connection.
        handle: the open file, of asyncssh.
        first: the first piece.
        span: where it begins, and where the part ends.
        whole: whether the part ends with the file.
        identity: who the file is.
    """

    def __init__(
        self, place: Place, session: sessions.Session, handle: Any, first: bytes, span: tuple[int, int], *,
        whole: bool, identity: Identity,
    ) -> None:  # fmt: skip
        self._place, self._session, self._handle = place, session, handle
        self._whole, self._identity = whole, identity
        self._piece, self._used = first, 0
        self._asked = span[0] + len(first)
        self._end = max(span)
        self.size = self._end - span[0]
        self._coming: collections.deque[Future[bytes]] = collections.deque()
        self._owner = os.getpid()

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, ``b""`` at the end.

        Raises:
            Exception: one of ``failures()``.
        """
        if self._used == len(self._piece):
            self._piece, self._used = self._next(), 0
        if self._used == 0 and size >= len(self._piece):
            self._used = len(self._piece)
            return self._piece
        start = self._used
        self._used = min(start + size, len(self._piece))
        return self._piece[start : self._used]

    def _next(self) -> bytes:
        if self._handle is None:
            return b""
        while self._asked < self._end and len(self._coming) < AHEAD:
            size = min(PIECE_BYTES, self._end - self._asked)
            self._coming.append(loop.submitted(self._fetched(self._asked, size)))
            self._asked += size
        if not self._coming:
            return b""
        try:
            piece = self._coming.popleft().result(sessions.READ_SECONDS)
        except TimeoutError:
            loop.submitted(sessions.dropped(self._place.login, self._session))
            raise
        return piece

    async def _fetched(self, offset: int, size: int) -> bytes:
        piece: bytes = await self._handle.read(size, offset)
        last = self._whole and offset + size == self._end
        if len(piece) < size or (last and _identity(await self._handle.stat()) != self._identity):
            raise ConnectionError("the file changed while it was being read")  # the reader asks again, and sees how
        return piece

    def close(self) -> None:
        """Let go of the file; nothing is waited for."""
        handle, self._handle = self._handle, None
        if handle is None or self._owner != os.getpid():
            return
        for coming in self._coming:
            coming.cancel()
        self._coming.clear()
        loop.submitted(_closed(handle))


async def _closed(handle: Any) -> None:
    with contextlib.suppress(*sessions.failures()):
        await handle.close()


async def _opened(place: Place, offset: int, size: int | None) -> tuple[SshBody, Identity]:
    """Open a file; its first piece and who it is are asked for together."""
    session = await sessions.session_for(place.login)
    handle = await _handle(session, place.path)
    try:
        first = FIRST_BYTES if size is None else min(size, PIECE_BYTES)
        facts, piece = await asyncio.gather(handle.stat(), handle.read(first, offset))
    except BaseException:  # also where it was cancelled
        await _closed(handle)
        raise
    identity = _identity(facts)
    length = identity.length or 0
    whole = size is None or offset + size >= length
    end = length if size is None else min(length, offset + size)
    body = SshBody(place, session, handle, piece[: max(0, end - offset)], (offset, end), whole=whole, identity=identity)
    return body, identity


async def _handle(session: sessions.Session, path: str) -> Any:
    """Open a file by its name as it stands, else with percent escapes decoded, as other clients take it."""
    try:
        return await session.files.open(path, "rb", encoding=None)
    except sessions.asyncssh().SFTPNoSuchFile:
        decoded = urllib.parse.unquote(path, errors="surrogateescape")
        if decoded == path:
            raise
        return await session.files.open(decoded, "rb", encoding=None)


def _identity(facts: Any) -> Identity:
    return Identity(modified=f"{facts.mtime}.{facts.mtime_ns or 0:09}", length=facts.size)


def object_of(url: str, storage_options: Any = None) -> SshObject:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return SshObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new file; see :class:`~webdataset.sources.ssh.upload.SshUpload`."""
    from .upload import SshUpload  # noqa: PLC0415  only for uploads

    return SshUpload(url, storage_options, **options)
