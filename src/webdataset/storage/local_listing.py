"""Lists local folders, and finds the files that a pattern matches; nothing is left out in silence.

Python's ``glob`` takes a folder that cannot be listed for an empty one: its shards would be missing without a word.
Here a folder that a mounted file system refuses for a moment is listed again (see
:mod:`webdataset.storage.local_files`), then an error ends the search. Folders for which there is no permission are
left out with a warning where a wildcard led to them, as ``lost+found`` at the top of a disk is.
"""

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator

from webdataset.core.errors import SourceError
from webdataset.core.tracebacks import warn_user
from webdataset.storage.local_files import retry_local

_MAGIC = re.compile(r"[*?[]")
_FORBIDDEN = (errno.EACCES, errno.EPERM)
# there is no folder of this name
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def list_folder(
    folder: str, *, mark_folders: bool = True, forbidden: Callable[[str], object] | None = None
) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether each is a folder, or a link to one.

    Args:
        folder: its path; ``""`` is the working directory.
        mark_folders: where it is false, no name is said to be a folder: it may cost a look at each.
        forbidden: told the path of each link that may not be followed; it is no folder.

    Raises:
        NotFound: there is no such folder.
        SourceError: it cannot be listed, for good or after several attempts.
    """

    def scan() -> list[os.DirEntry[str]]:
        with os.scandir(folder or os.curdir) as entries:
            return list(entries)

    try:
        found = scan()
    except OSError as error:
        found = retry_local(scan, error, folder or os.curdir, "list")
    return [(entry.name, mark_folders and _is_folder(entry, forbidden)) for entry in found]


def _is_folder(entry: os.DirEntry[str], forbidden: Callable[[str], object] | None) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return stat.S_ISDIR(_find_mode(entry.path, forbidden=forbidden))


def walk_folder(folder: str, *, warn: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and each one below it, with the names of its files, in sorted order.

    Links to folders are followed, but for those that lead to a folder they stand in. Pipes, sockets and devices are
    left out: reading one would wait without end.

    Args:
        folder: its path.
        warn: say at the end how many were left out.

    Raises:
        SourceError: a folder cannot be listed.
    """
    left_out: list[str] = []
    for place, names in _walk(folder, (), lambda _: True):
        paths = {name: os.path.join(place, name) for name, is_below in names if not is_below}  # noqa: PTH118  bytes of names stay
        special = dict.fromkeys(path for path in paths.values() if is_device(path))
        left_out += special
        yield place, [name for name, path in paths.items() if path not in special]
    if left_out and warn:
        warn_user(f"{folder}: {len(left_out)} pipes, sockets or devices are left out, {left_out[0]!r} first")


def _walk(
    folder: str,
    above: tuple[str, ...],
    enters: Callable[[str], bool],
    listed: Callable[[str], list[tuple[str, bool]]] = list_folder,
) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Yield a folder, and each one below it that is entered by its name, with sorted names of what is in it.

    A folder that is one of those above it, by a link, is not entered, and not among the names.
    """
    entered = (*above, os.path.realpath(folder))
    names, inside = [], []
    for name, is_below in sorted(listed(folder)):
        path = os.path.join(folder, name)  # noqa: PTH118  bytes of names stay
        if is_below and os.path.realpath(path) in entered:
            continue
        names.append((name, is_below))
        if is_below and enters(name):
            inside.append(path)
    yield folder, names
    for path in inside:
        yield from _walk(path, entered, enters, listed)


def is_folder(path: str) -> bool:
    """Tell whether a folder is at a path, itself or by a link.

    Raises:
        SourceError: the system does not say, not after several attempts either.
    """
    return stat.S_ISDIR(_find_mode(path))


def is_there(path: str | os.PathLike[str]) -> bool:
    """Tell whether anything has a path, be it a link that leads nowhere.

    Raises:
        SourceError: the system does not say, not after several attempts either: it must not be replaced unseen.
    """
    return _find_mode(os.fspath(path), follow_links=False) != 0


def _find_mode(path: str, *, follow_links: bool = True, forbidden: Callable[[str], object] | None = None) -> int:
    """Return what is at a path, as ``stat`` numbers it; 0 where nothing is there, or permission is lacking.

    Then ``forbidden`` is told the path.
    """

    def look() -> int:
        try:
            return os.stat(path, follow_symlinks=follow_links).st_mode  # noqa: PTH116  bytes of names stay
        except OSError as error:
            if error.errno in _FORBIDDEN and forbidden is not None:
                forbidden(path)
            if error.errno in (*_NOTHING, *_FORBIDDEN):
                return 0
            raise
        # a null byte in the name
        except ValueError:
            return 0

    try:
        return look()
    except OSError as error:
        return retry_local(look, error, path, "look at")


def is_device(path: str) -> bool:
    """Tell whether a pipe, socket or device is at a path, itself or by a link.

    Args:
        path: what cannot be looked at (a link that leads nowhere) is none: opening it says why.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  bytes of names stay
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def find_files(pattern: str) -> list[str]:
    """Return what matches a pattern, each once, in sorted order, as ``glob.glob(pattern, recursive=True)`` finds it.

    A folder that cannot be listed is an error, or left out with a warning where a wildcard led to it and there is no
    permission. Links that lead to a folder they stand in are not followed.

    Args:
        pattern: a path with ``*``, ``?``, ``[…]`` and ``**``.

    Raises:
        SourceError: a folder cannot be listed.
    """
    search = _Search()
    found = sorted({path for path in search.find(pattern) if path})
    if search.forbidden:
        first = next(iter(search.forbidden))
        warn_user(
            f"{pattern}: no permission to look into {len(search.forbidden)} places, {first!r} first: what is there is "
            "left out"
        )
    return found


class _Search:
    """One search by a pattern.

    Attributes:
        forbidden: paths that were left out.
    """

    def __init__(self) -> None:
        self.forbidden: dict[str, None] = {}

    def find(self, pattern: str, *, only_folders: bool = False) -> Iterator[str]:
        """Yield the paths that match, and ``""`` where the working directory does."""
        head, name = os.path.split(pattern)
        if not _MAGIC.search(pattern):
            if is_folder(head) if not name else _find_mode(pattern, follow_links=False):
                yield pattern
            return
        chosen = _MAGIC.search(head) is not None
        # each once, however many ** lead to it
        for folder in dict.fromkeys(self.find(head, only_folders=True)) if chosen else (head,):
            if name == "**":
                yield from self._find_below(folder, only_folders=only_folders)
            elif _MAGIC.search(name):
                yield from self._find_in(folder, name, only_folders=only_folders, chosen=chosen)
            elif is_folder(folder) if not name else self._is_there(os.path.join(folder, name)):  # noqa: PTH118
                yield os.path.join(folder, name)  # noqa: PTH118

    def _is_there(self, path: str) -> bool:
        return _find_mode(path, follow_links=False, forbidden=self._leave_out) != 0

    def _leave_out(self, path: str) -> None:
        self.forbidden[path] = None

    def _find_in(self, folder: str, name: str, *, only_folders: bool, chosen: bool) -> Iterator[str]:
        matches = re.compile(fnmatch.translate(os.path.normcase(name))).match
        hidden = name.startswith(".")
        for found, is_below in self._list(folder, mark_folders=only_folders, chosen=chosen):
            wanted = (is_below or not only_folders) and (hidden or not found.startswith("."))
            if wanted and matches(os.path.normcase(found)):
                yield os.path.join(folder, found)  # noqa: PTH118

    def _find_below(self, folder: str, *, only_folders: bool) -> Iterator[str]:
        """Yield a folder, and what is in it and in the folders below, but for hidden ones."""
        if folder and not is_folder(folder):
            return
        yield os.path.join(folder, "")  # noqa: PTH118
        for place, names in _walk(folder, (), lambda name: not name.startswith("."), self._list):
            for name, is_below in names:
                if not name.startswith(".") and (is_below or not only_folders):
                    yield os.path.join(place, name)  # noqa: PTH118

    def _list(self, folder: str, *, mark_folders: bool = True, chosen: bool = True) -> list[tuple[str, bool]]:
        """List a folder that may not be there; ``chosen``: by a wildcard."""
        try:
            return list_folder(folder, mark_folders=mark_folders, forbidden=self._leave_out)
        except SourceError as error:
            if chosen and error.errno in _FORBIDDEN:
                self._leave_out(folder)
            elif error.errno not in _NOTHING:
                raise
        # a null byte in the name
        except ValueError:
            pass
        return []
