"""A directory kept below a size, by deleting its oldest files.

Flows in: a directory that others fill. It may be shared: a file that somebody else deletes first is no error.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from webdataset.ground.errors import UsageError

from .files import busy
from .locks import read_by_somebody
from .places import CONTROL, Place

log = logging.getLogger("webdataset")


class LRUCleanup:
    """Deletes the oldest files of a directory until the rest is no larger than allowed.

    Cached files that a process of this host reads, and downloads under way, stay.

    Args:
        cache_dir: the directory, with everything below it; one that does not exist is empty.
        cache_size: bytes that may stay.
        keyfn: path to age: files with the smallest go first. By default the time of the last change.
        verbose: log each deletion.
        interval: seconds between two cleanups; a call before that does nothing.
        deletable: path to bool: what may be deleted; None is everything.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: float = int(1e12),
        keyfn: Callable[[str], Any] = os.path.getctime,
        verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
        interval: float | None = 30,
        *,
        deletable: Callable[[str], bool] | None = None,
    ) -> None:
        self.cache_dir = cache_dir
        self.cache_size = cache_size
        self.keyfn = keyfn
        self.verbose = verbose
        self.interval = interval
        self.deletable = deletable
        self.last_run = 0.0

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Choose the directory."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Delete what is too much, unless the last cleanup was less than ``interval`` seconds ago.

        Raises:
            UsageError: no directory was named.
        """
        if self.cache_dir is None:
            raise UsageError("LRUCleanup needs a cache_dir")
        now = time.time()
        if self.interval is not None and now - self.last_run < self.interval:
            return
        self.last_run = now
        files = sorted(_files(self.cache_dir, self.keyfn), key=lambda file: file[:2])
        total = sum(size for _, _, size in files)
        for _, path, size in files:
            if total <= self.cache_size:
                return
            if busy(path) or _is_read(path) or (self.deletable is not None and not self.deletable(path)):
                continue
            if self.verbose:
                log.warning("cache: deleting %s", path)
            Path(path).unlink(missing_ok=True)
            Path(Place(str(self.cache_dir), os.path.relpath(path, self.cache_dir)).record).unlink(missing_ok=True)
            total -= size


def _is_read(path: str) -> bool:
    """Tell whether some process has a lease on a file; one that cannot be opened has nobody who could say so."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return read_by_somebody(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: str | os.PathLike[str], keyfn: Callable[[str], Any]) -> Iterator[tuple[Any, str, int]]:
    """Yield age, path and size of each file below a folder; files that vanish meanwhile are left out."""
    for parent, folders, names in os.walk(folder):
        if CONTROL in folders:  # locks, and what only their holders may delete
            folders.remove(CONTROL)
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118  keyfn takes texts
            try:
                yield keyfn(path), path, os.lstat(path).st_size
            except FileNotFoundError:
                continue
