"""Lists of files on another machine, found by walking through folders.

Flows in: a url up to its path, and the text that paths begin with. Flows out: paths, without the slash at their
beginning. Names that begin with a dot are left out, as by shells. Links to files count as files; links to folders are
followed only where the depth is bounded.
"""

import stat
from collections.abc import Iterator
from typing import Any

from webdataset.ground.errors import SourceError
from webdataset.sources.objects import Again
from webdataset.sources.patience import ATTEMPTS, Patience

from . import loop, sessions
from .errors import translated
from .places import Login, login_of, path_of, split

LISTING_SECONDS = 600.0


def keys(stem: str, prefix: str, storage_options: Any = None, *, depth: int | None = None) -> Iterator[str]:
    """Give the paths that begin with a text.

    Args:
        stem: ``ssh://host/``, as the user writes it.
        prefix: what paths begin with.
        storage_options: options of this store.
        depth: slashes that a path may have after the prefix; None for any number.

    Raises:
        NotFound: no such folder.
        SourceError: the server refuses, or does not answer.
        MissingExtra: asyncssh is not installed.
    """
    login, patience = login_of(stem, storage_options), Patience()
    known = sessions.failures()
    while True:
        try:
            return iter(loop.done(_found(login, prefix, depth), LISTING_SECONDS))
        except known as error:
            failure = translated(error, stem + prefix, login)
        if not isinstance(failure, Again):
            raise failure
        if patience.spent():
            raise SourceError(f"no answer after {ATTEMPTS} attempts: {failure}", url=stem + prefix)
        patience.pause()


async def _found(login: Login, prefix: str, depth: int | None) -> list[str]:
    session = await sessions.session_for(login)
    folder, slash, name = prefix.rpartition("/")
    found: list[str] = []
    folders = [(folder + slash, name, depth)]
    while folders:
        inside, beginning, left = folders.pop()
        for entry in await session.files.readdir(path_of(inside) if inside != "~/" else "."):
            called = str(entry.filename)
            if called.startswith(".") > beginning.startswith(".") or not called.startswith(beginning):
                continue
            if called in (".", ".."):
                continue
            mode = entry.attrs.permissions or 0
            linked = stat.S_ISLNK(mode)
            if linked:
                mode = await _target(session, path_of(inside + called))
            if stat.S_ISDIR(mode):
                if left is None and not linked:
                    folders.append((f"{inside}{called}/", "", None))
                elif left:
                    folders.append((f"{inside}{called}/", "", left - 1))
            elif stat.S_ISREG(mode):
                found.append(inside + called)
    return found


async def _target(session: sessions.Session, path: str) -> int:
    """Return the mode of what a link leads to; 0 where that is nothing."""
    try:
        return (await session.files.stat(path)).permissions or 0
    except sessions.asyncssh().SFTPError:
        return 0


__all__ = ["keys", "split"]
