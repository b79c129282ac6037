"""Files on other machines, by SFTP: reads, uploads and lists ``ssh:``, ``sftp:`` and ``scp:`` urls.

Some requests are always in flight ahead of the reader, so that a distant server is as fast as a near one. Length and
time of last change, in whole seconds, identify a file: that is all that SFTP says. A file that is replaced while it
is open is read to its end as it was; one that is overwritten in place is noticed by its time, read again at the end.

An upload never appears before it is complete. It is written beside the final path, under a name of its own that
begins with a dot, and renamed by the last request. Pieces that the server has not confirmed are kept: if the
connection drops, they are written again to the same offset, over another connection.

A list leaves out names that begin with a dot, as shells do. Links to files count as files; links to folders are
followed only where the depth is bounded.
"""

import asyncio
import collections
import contextlib
import os
import posixpath
import stat
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from webdataset.core.errors import SourceError, UsageError
from webdataset.core.seeds import random_seed
from webdataset.storage.backends import sftp_client
from webdataset.storage.backends.sftp_client import (
    SftpLocation,
    SshLogin,
    parse_login,
    parse_url,
    server_path,
    translate_error,
)
from webdataset.storage.backends.sftp_client import service_id as service_id
from webdataset.storage.backends.sftp_client import split as split
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, object_changed_error
from webdataset.storage.retries import ATTEMPTS, RetryableError, RetryBudget, retry
from webdataset.storage.uploads import AtomicUpload

if TYPE_CHECKING:
    from asyncssh import SFTPAttrs as SftpAttributes
    from asyncssh import SFTPClientFile as SftpFile

LISTING_SECONDS = 600.0


def list_keys(stem: str, prefix: str, storage_options: object = None, *, depth: int | None = None) -> Iterator[str]:
    """Yield the paths that begin with a prefix."""
    login = parse_login(stem, storage_options)

    def find() -> list[str]:
        try:
            return sftp_client.run_coroutine(_find_paths(login, prefix, depth), LISTING_SECONDS)
        except sftp_client.failures() as error:
            failure = translate_error(error, stem + prefix, login)
        raise failure

    return iter(retry(find, stem + prefix, lambda: None))


async def _find_paths(login: SshLogin, prefix: str, depth: int | None) -> list[str]:
    session = await sftp_client.session_for(login)
    folder, slash, name = prefix.rpartition("/")
    found: list[str] = []
    folders = [(folder + slash, name, depth)]
    while folders:
        inside, beginning, left = folders.pop()
        for entry in await session.files.readdir(server_path(inside)):
            called = str(entry.filename)
            if called.startswith(".") > beginning.startswith(".") or not called.startswith(beginning):
                continue
            if called in (".", ".."):
                continue
            mode = entry.attrs.permissions or 0
            linked = stat.S_ISLNK(mode)
            if linked:
                mode = await _target_mode(session, server_path(inside + called))
            if stat.S_ISDIR(mode):
                if left is None and not linked:
                    folders.append((f"{inside}{called}/", "", None))
                elif left:
                    folders.append((f"{inside}{called}/", "", left - 1))
            elif stat.S_ISREG(mode):
                found.append(inside + called)
    return found


async def _target_mode(session: sftp_client.SftpSession, path: str) -> int:
    """Return the mode of what a link leads to; 0 where that is nothing."""
    try:
        return (await session.files.stat(path)).permissions or 0
    except sftp_client.import_asyncssh().SFTPError:
        return 0


FIRST_BYTES = 1 << 18
PIECE_BYTES = 1 << 20
AHEAD = 6


class SftpObject:
    """One file.

    Raises:
        UsageError: the url names no file.
        MissingExtra: asyncssh is not installed.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        self.url = url
        self.place = parse_url(url, storage_options)
        if self.place.path.endswith("/") or not split(url)[1]:
            raise UsageError("names no file: write ssh://host/path, or ssh://host:port/path", url=url)
        self._failures = sftp_client.failures()

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return self._failures

    def refresh(self) -> None:
        """Log in anew."""
        sftp_client.run_coroutine(sftp_client.drop_session(self.place.login), sftp_client.READ_SECONDS)

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Open the file once; see :class:`~webdataset.storage.object_store.RemoteObject`."""
        patience = sftp_client.CONNECT_SECONDS + sftp_client.READ_SECONDS
        try:
            body, identity = sftp_client.run_coroutine(_open_reader(self.place, offset, size), patience)
        except self._failures as error:
            failure = translate_error(error, self.url, self.place.login)
            if isinstance(failure, RetryableError):
                sftp_client.submit(sftp_client.drop_session(self.place.login))
            raise failure from None
        if known is not None and known.contradicts(identity):
            body.close()
            raise object_changed_error(self.url, offset)
        return ObjectResponse(body, offset, identity, body.size)


class SftpBody:
    """A part of an open file, read front to back; requests for what follows are in flight.

    Args:
        place: the file.
        session: the connection.
        handle: the open file, of asyncssh.
        first: the first piece.
        span: where it begins, and where the part ends.
        whole: whether the part ends with the file.
        identity: the version of the file.
    """

    def __init__(
        self, place: SftpLocation, session: sftp_client.SftpSession, handle: "SftpFile", first: bytes,
        span: tuple[int, int], *, whole: bool, identity: ObjectVersion,
    ) -> None:  # fmt: skip
        self._place = place
        self._session: sftp_client.SftpSession | None = session
        self._handle: SftpFile | None = handle
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
            self._coming.append(sftp_client.submit(self._fetch(self._asked, size)))
            self._asked += size
        if not self._coming:
            return b""
        try:
            piece = self._coming.popleft().result(sftp_client.READ_SECONDS)
        except TimeoutError:
            if self._session is not None:
                sftp_client.submit(sftp_client.drop_session(self._place.login, self._session))
            raise
        return piece

    async def _fetch(self, offset: int, size: int) -> bytes:
        handle = self._handle
        if handle is None:
            raise ConnectionError("the file is closed")
        piece = cast("bytes", await handle.read(size, offset))
        last = self._whole and offset + size == self._end
        # the reader requests it again, and sees how it changed
        if len(piece) < size or (last and _parse_version(await handle.stat()) != self._identity):
            raise ConnectionError("the file changed while it was being read")
        return piece

    def close(self) -> None:
        """Close the file, without waiting."""
        handle, self._handle = self._handle, None
        session, self._session = self._session, None
        if handle is None or self._owner != os.getpid():
            return
        for coming in self._coming:
            coming.cancel()
        self._coming.clear()
        sftp_client.submit(_close_handle(handle, session))


async def _close_handle(handle: "SftpFile", _session: sftp_client.SftpSession | None) -> None:
    """Close a file; its session stays until then."""
    with contextlib.suppress(*sftp_client.failures()):
        await handle.close()


async def _open_reader(place: SftpLocation, offset: int, size: int | None) -> tuple[SftpBody, ObjectVersion]:
    """Open a file; request its first piece and its version together."""
    session = await sftp_client.session_for(place.login)
    handle = await _open_handle(session, place.path)
    try:
        first = FIRST_BYTES if size is None else min(size, PIECE_BYTES)
        facts, piece = await asyncio.gather(handle.stat(), handle.read(first, offset))
    except BaseException:  # cancellation, too
        await _close_handle(handle, session)
        raise
    identity = _parse_version(facts)
    length = identity.length or 0
    whole = size is None or offset + size >= length
    end = length if size is None else min(length, offset + size)
    held = cast("bytes", piece)[: max(0, end - offset)]
    body = SftpBody(place, session, handle, held, (offset, end), whole=whole, identity=identity)
    return body, identity


async def _open_handle(session: sftp_client.SftpSession, path: str) -> "SftpFile":
    """Open a file by its name as it stands, else with percent escapes decoded, as other clients take it."""
    try:
        return await session.files.open(path, "rb", encoding=None)
    except sftp_client.import_asyncssh().SFTPNoSuchFile:
        decoded = urllib.parse.unquote(path, errors="surrogateescape")
        if decoded == path:
            raise
        return await session.files.open(decoded, "rb", encoding=None)


def _parse_version(facts: "SftpAttributes") -> ObjectVersion:
    return ObjectVersion(modified=f"{facts.mtime}.{facts.mtime_ns or 0:09}", length=facts.size)


BY_FOLDER = True


AT_ONCE = 4


class SftpUpload(AtomicUpload):
    """A stream to a new file, in a folder that is there.

    Args:
        url: the file.
        storage_options: login and keys.
        attempts: failures in a row after which to give up.

    Raises:
        UsageError: the url names no file.
        NotFound: no such folder.
        SourceError: the server refuses.
        MissingExtra: asyncssh is not installed.
    """

    def __init__(
        self, url: str, storage_options: object = None, *, attempts: int = ATTEMPTS, **_options: object
    ) -> None:
        self._login, self._path = parse_url(url, storage_options)
        if self._path.endswith("/") or not split(url)[1]:
            raise UsageError("names no file: write ssh://host/path, or ssh://host:port/path", url=url)
        folder, name = posixpath.split(self._path)
        self._beside = posixpath.join(folder, f".{name[:200]}.{random_seed():016x}.part")
        self._failures = sftp_client.failures()
        self._patience, self._attempts = RetryBudget(attempts, url), attempts
        self._buffer = bytearray()
        self._pending: collections.deque[tuple[int, bytes, Future[None]]] = collections.deque()
        self._handle: SftpFile | None = None
        # stays open as long as the file
        self._session: sftp_client.SftpSession | None = None
        super().__init__(url)
        self._retry(lambda: self._begin("xb"))

    def _accept(self, view: memoryview) -> None:
        """Take bytes; a full piece goes out while the next one fills."""
        for start in range(0, len(view), PIECE_BYTES):
            self._buffer += view[start : start + PIECE_BYTES]
            if len(self._buffer) >= PIECE_BYTES:
                self._send()

    def _send(self) -> None:
        """Send the buffer; wait while enough pieces are in flight."""
        offset = self._pending[-1][0] + len(self._pending[-1][1]) if self._pending else self._confirmed
        body, self._buffer = bytes(self._buffer), bytearray()
        self._pending.append((offset, body, self._submit_piece(offset, body)))
        while len(self._pending) > AT_ONCE:
            self._confirm()

    _confirmed = 0

    def _submit_piece(self, offset: int, body: bytes) -> Future[None]:
        return sftp_client.submit(_write_piece(self._current_file(), offset, body))

    def _confirm(self) -> None:
        """Wait until the oldest piece is there; after a drop, write everything unconfirmed again."""
        again = False

        def attempt() -> None:
            nonlocal again
            if again:
                self._begin("r+b")
                self._pending = collections.deque(
                    (offset, body, self._submit_piece(offset, body)) for offset, body, _ in self._pending
                )
            again = True
            self._pending[0][2].result(sftp_client.READ_SECONDS)

        self._retry(attempt)
        offset, body, _ = self._pending.popleft()
        self._confirmed = offset + len(body)
        self._patience.progress(self._confirmed)

    def _begin(self, mode: str) -> None:
        opening = _open_writer(self._login, self._beside, mode)
        self._handle, self._session = sftp_client.run_coroutine(opening, sftp_client.READ_SECONDS)

    def _current_file(self) -> "SftpFile":
        """Return the open file."""
        if self._handle is None:
            raise SourceError("this upload has no open file", url=self.name)
        return self._handle

    def _retry(self, attempt: Callable[[], object]) -> None:
        """Retry something until it works; keep what fails for good, for ``close``."""
        while True:
            try:
                attempt()
            except SourceError as error:
                self._broken = error
                raise
            except self._failures as error:
                failure = translate_error(error, self.name, self._login)
            else:
                return
            if not isinstance(failure, RetryableError):
                self._broken = failure
                raise failure
            if self._patience.spent():
                patience = self._patience
                reason = f"no answer after {patience.describe()}: {failure}{patience.hint()}"
                self._broken = SourceError(reason, url=self.name)
                raise self._broken
            sftp_client.submit(sftp_client.drop_session(self._login))
            self._patience.pause()

    def _publish(self) -> None:
        if self._buffer:
            self._send()
        while self._pending:
            self._confirm()
        self._retry(self._rename)
        self._session = None

    # the complete file, once a rename of it may have been sent
    _complete: ObjectVersion | None = None

    def _rename(self) -> None:
        """Give the file its name, once all of it is there."""
        finding = _find_partial(self._login, self._current_file(), self._beside)
        found = sftp_client.run_coroutine(finding, sftp_client.READ_SECONDS)
        if found is None and self._complete is not None:
            # renamed already, and the response was lost: then the file kept the time of its last change
            named = sftp_client.run_coroutine(_find_file(self._login, self._path), sftp_client.READ_SECONDS)
            if named == self._complete:
                return
        if found is None or found.length != self._size:
            there = "gone" if found is None else f"of {found.length} bytes instead of {self._size}"
            raise SourceError(
                f"what was written beside its place ({self._beside}) is {there}: another program changed it; nothing "
                "is published, write it again",
                url=self.name,
            )
        self._complete = found
        sftp_client.run_coroutine(_move_file(self._login, self._beside, self._path), sftp_client.READ_SECONDS)

    def _discard(self) -> None:
        if self._handle is None:
            return
        for _, _, future in self._pending:
            future.cancel()
        removal = _remove_file(self._login, self._handle, self._beside)
        with contextlib.suppress(*self._failures):
            sftp_client.run_coroutine(removal, sftp_client.CONNECT_SECONDS)
        self._session = None


async def _open_writer(login: SshLogin, path: str, mode: str) -> "tuple[SftpFile, sftp_client.SftpSession]":
    session = await sftp_client.session_for(login)
    known = sftp_client.import_asyncssh()
    try:
        return await session.files.open(path, mode, encoding=None), session
    # a response was lost, and this is our own; OpenSSH has no other word than "failure" for a file that is there
    except (known.SFTPFileAlreadyExists, known.SFTPFailure) as error:
        failure = error
    try:
        return await session.files.open(path, "r+b", encoding=None), session
    except known.Error:
        raise failure from None


async def _write_piece(handle: "SftpFile", offset: int, body: bytes) -> None:
    await handle.write(body, offset)


async def _find_partial(login: SshLogin, handle: "SftpFile", beside: str) -> ObjectVersion | None:
    """Close a file, and return its version; None where it is not there."""
    known = sftp_client.import_asyncssh()
    # the connection is gone, the server cannot, or an earlier attempt has closed it
    with contextlib.suppress(known.Error, OSError, ValueError):
        await handle.fsync()
    with contextlib.suppress(known.Error, OSError):
        await handle.close()
    return await _find_file(login, beside)


async def _find_file(login: SshLogin, path: str) -> ObjectVersion | None:
    """Return the version of a file; None where it is not there."""
    session = await sftp_client.session_for(login)
    try:
        return _parse_version(await session.files.stat(path))
    except sftp_client.import_asyncssh().SFTPNoSuchFile:
        return None


async def _move_file(login: SshLogin, beside: str, path: str) -> None:
    """Give a file its name, in the place of another."""
    known = sftp_client.import_asyncssh()
    session = await sftp_client.session_for(login)
    try:
        await session.files.posix_rename(beside, path)
    except known.SFTPOpUnsupported:
        with contextlib.suppress(known.SFTPNoSuchFile):
            await session.files.remove(path)
        await session.files.rename(beside, path)


async def _remove_file(login: SshLogin, handle: "SftpFile", path: str) -> None:
    session = await sftp_client.session_for(login)
    with contextlib.suppress(sftp_client.import_asyncssh().Error, OSError):
        await handle.close()
    await session.files.remove(path)


remote_object = SftpObject
create_upload = SftpUpload
