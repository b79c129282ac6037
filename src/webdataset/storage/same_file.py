"""Tells whether two urls lead to the same file or object, so that no output replaces an input.

A file is known by its folder and its name in it, links resolved, whatever the spelling of the path is; an object by its
url after rewriting. Another hard link to a file is another file here: an output is renamed into place, and leaves what
the other name leads to as it is.
"""

import glob
import os
import re
from collections.abc import Iterable

from webdataset.core.errors import UsageError
from webdataset.storage.open_url import find_backend, local_path, rewrite_url

_NUMBER = re.compile(r"%0?\d*d")
_MARK = "7" * 19

Place = tuple[object, ...]


def find_place(url: str) -> Place:
    """Return where a url leads: equal for two urls that lead to the same file or object.

    Args:
        url: a path or url, as it is opened; nothing needs to be there.
    """
    path = local_path(url)
    if path is None:
        return (rewrite_url(url),)
    if os.path.islink(path):  # noqa: PTH114  bytes of names stay
        path = os.path.realpath(path)
    folder, name = os.path.split(path)
    return *_identify_folder(folder), name


def _identify_folder(folder: str) -> Place:
    """Return what tells a folder from others, also where it is mounted twice."""
    try:
        found = os.stat(folder or ".")  # noqa: PTH116
    except OSError:
        return (os.path.realpath(folder),)
    return found.st_dev, found.st_ino


class InputFiles:
    """What a program reads, so that it is not replaced by what the program writes.

    Args:
        urls: of the inputs: files, objects, or folders of files.
    """

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = [url for url in urls if url != "-"]
        self._places = {find_place(url): url for url in self._urls}
        self._inodes: dict[tuple[int, int], str] = {}
        self._folders: list[str] = []
        for url in self._urls:
            path = local_path(url)
            if path is None:
                continue
            if os.path.isdir(path):  # noqa: PTH112  bytes of names stay
                self._folders.append(os.path.realpath(path))
            elif (inode := _identify_file(path)) is not None:
                self._inodes[inode] = url

    def find(self, target: str) -> str | None:
        """Return the input that a file written to a url would replace; None where there is none.

        Args:
            target: a path or url.
        """
        found = self._places.get(find_place(target))
        path = local_path(target)
        if found is not None or path is None:
            return found
        # a file system in which case does not count, or a folder that is mounted twice
        inode = _identify_file(path)
        if inode in self._inodes:
            return self._inodes[inode]
        inside = os.path.lexists(path) and any(_is_inside(os.path.realpath(path), each) for each in self._folders)
        return path if inside else None

    def find_inside(self, folder: str) -> str | None:
        """Return an input that lies in a folder; None where there is none.

        Args:
            folder: its path.
        """
        place = os.path.realpath(folder)
        paths = ((url, local_path(url)) for url in self._urls)
        return next(
            (url for url, path in paths if path is not None and _is_inside(os.path.realpath(path), place)), None
        )

    def refuse(self, target: str) -> None:
        """Refuse a target that would replace an input.

        Args:
            target: a path or url.

        Raises:
            UsageError: it would.
        """
        self._refuse(self.find(target), target)

    def refuse_folder(self, folder: str) -> None:
        """Refuse to replace a folder that holds an input.

        Args:
            folder: its path.

        Raises:
            UsageError: it does.
        """
        self._refuse(self.find_inside(folder), folder)

    def refuse_pattern(self, pattern: str) -> None:
        """Refuse a pattern whose names, for any number, are those of inputs.

        A single target that is no pattern appears when all inputs have been read, and may replace one of them; but not
        where it is written in place.

        Args:
            pattern: a path or url with one ``%d``, or without.

        Raises:
            UsageError: such a name.
        """
        number = _NUMBER.search(pattern)
        if number is None:
            if find_backend(rewrite_url(pattern)) == "fsspec_store":
                self.refuse(pattern)
            return
        for name in self._list_names(pattern, number):
            self.refuse(name)

    def _list_names(self, pattern: str, number: "re.Match[str]") -> list[str]:
        """Return the names of a pattern that are those of files that are there, or of inputs."""
        # rewriting, and the escapes of a file: url, are those of a name, not of the pattern
        name = f"{pattern[: number.start()]}{_MARK}{pattern[number.end() :]}"
        path = local_path(name)
        head, _, tail = (rewrite_url(name) if path is None else path).rpartition(_MARK)
        there = (
            map(rewrite_url, self._urls)
            if path is None
            else glob.iglob(f"{glob.escape(head)}*{glob.escape(tail)}", include_hidden=True)  # noqa: PTH207  as typed
        )
        return [name for name in there if _fits_pattern(name, head, number[0], tail)]

    @staticmethod
    def _refuse(found: str | None, target: str) -> None:
        if found is not None:
            raise UsageError(
                f"an output would replace an input ({found}), which may not have been read yet: write it to "
                "another folder, or under another name",
                url=target,
            )


def _identify_file(path: str) -> tuple[int, int] | None:
    """Return what tells a file from others; None where none is there, or where it has several names."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_nlink == 1 and found.st_ino else None


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _fits_pattern(name: str, head: str, number: str, tail: str) -> bool:
    """Tell whether a name is one that a pattern gives for some number."""
    digits = name[len(head) : len(name) - len(tail)]
    return (
        name.startswith(head)
        and name.endswith(tail)
        and re.fullmatch(" *[0-9]{1,20}", digits) is not None
        and number % int(digits) == digits
    )
