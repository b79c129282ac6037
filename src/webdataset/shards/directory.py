"""A directory in which shards appear, are read and go away, shared by several processes.

Theory. A process claims a shard by renaming ``x.tar`` to ``x.tar._<pid>_``: a rename succeeds for one process only.
When the next shard is requested, the one before has been read and is disposed of; when the reader stops early
instead, the claim is released. The next process that looks undoes the claims of processes that have died. All
processes must be on one machine.
"""

import contextlib
import glob
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from webdataset.core.errors import UsageError
from webdataset.core.tracebacks import warn_user
from webdataset.shards.expand import expand_braces
from webdataset.shards.lists import Shard, ShardList
from webdataset.storage.local_listing import find_files
from webdataset.storage.open_url import is_local, rewrite_url

_CLAIMED = re.compile(r"\._(\d+)_$")


class DirectoryShardList(ShardList):
    """Shards of a directory, as they appear.

    Args:
        path: the directory; its name ends with ``/``.
        pattern: which files are shards; braces give alternatives.
        poll: seconds between two looks into an empty directory; None ends the list there.
        timeout: seconds without a shard after which the list ends.
        mode: what becomes of a shard that has been read: ``resample`` gives it back, ``unlink`` deletes it, ``keep``
            renames it to ``x._done_``, anything else leaves it claimed.
        select: ``random`` or ``oldest``.
        fate: function of the claimed path, called instead of what ``mode`` says.

    Raises:
        UsageError: arguments that cannot mean anything.
    """

    def __init__(  # noqa: PLR0917  upstream's signature
        self,
        path: str | os.PathLike[str],
        pattern: str = "*.{tar,tgz,tar.tgz,tar.gz}",
        poll: float | None = 1,
        timeout: float = 1e12,
        mode: str = "resample",
        select: str = "random",
        fate: Callable[[str], object] | None = None,
    ) -> None:
        if isinstance(path, str) and not path.endswith("/"):
            raise UsageError("the name of a directory of shards ends with '/'", url=path)
        # it would be waited for, without end
        if isinstance(path, str) and not is_local(rewrite_url(path)):
            raise UsageError(
                "this is no directory of this machine, and its scheme has no lists: write the shards' urls out, as in "
                "train-{000..099}.tar",
                url=path,
            )
        if select not in ("random", "oldest"):
            raise UsageError(f"select is 'random' or 'oldest', not {select!r}")
        self.path = os.path.join(os.fspath(path), "")  # noqa: PTH118  keeps a relative name as it is
        self.pattern = pattern
        self.poll = poll
        self.timeout = timeout
        self.mode = mode
        self.select = select
        self.fate = fate

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Claim, yield, and dispose of one shard after another."""
        generator = draw()
        while (claimed := self._next(generator)) is not None:
            try:
                yield {"url": claimed}
            except GeneratorExit:
                _release_claim(Path(claimed))
                raise
            self.recycle(claimed)

    def _next(self, generator: random.Random) -> str | None:
        deadline = time.monotonic() + self.timeout
        if self.poll is not None and not Path(self.path).exists():
            warn_user(f"{self.path}: there is no such directory; waiting until it is made and has shards")
        while True:
            self.cleanup_files_without_processes()
            claimed = self._claim(generator)
            if claimed is not None or self.poll is None or time.monotonic() >= deadline:
                return claimed
            time.sleep(min(self.poll, max(0.0, deadline - time.monotonic())))

    def _claim(self, generator: random.Random) -> str | None:
        """Claim one shard; None where there is none, or where others were faster every time."""
        found = self._list_claimable()
        while found:
            chosen = found.pop(0 if self.select == "oldest" else generator.randrange(len(found)))
            claimed = f"{self.path}{chosen}._{os.getpid()}_"
            with contextlib.suppress(FileNotFoundError):
                Path(self.path + chosen).rename(claimed)
                return claimed
        return None

    def _list_claimable(self) -> list[str]:
        """List the names of shards, oldest first.

        Raises:
            SourceError: the directory cannot be listed; that is no directory without shards.
        """
        paths = {Path(path) for pattern in expand_braces(self.pattern) for path in self._find(pattern)}
        dated = []
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                dated.append((path.stat().st_mtime_ns, path.name))
        return [name for _, name in sorted(dated)]

    def _find(self, pattern: str) -> list[str]:
        return find_files(glob.escape(self.path) + pattern)

    def recycle(self, activename: str) -> None:
        """Dispose of a claimed shard that has been read.

        Args:
            activename: its claimed path.
        """
        with contextlib.suppress(FileNotFoundError):
            if self.fate is not None:
                self.fate(activename)
            elif self.mode == "unlink":
                Path(activename).unlink()
            elif self.mode == "keep":
                Path(activename).rename(_CLAIMED.sub("._done_", activename))
            elif self.mode == "resample":
                _release_claim(Path(activename))

    def cleanup_files_without_processes(self) -> None:
        """Undo the claims of processes that have died."""
        for path in map(Path, self._find("*._*_")):
            claimant = get_pid_from_filename(path.name)
            if claimant is not None and not check_pid_is_running(claimant):
                _release_claim(path)


def _release_claim(claimed: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        claimed.rename(_CLAIMED.sub("", str(claimed)))


def get_pid_from_filename(fname: str) -> int | None:
    """Return the process that has claimed a shard, or None for a file that is not claimed.

    Args:
        fname: the file's name or path.
    """
    claim = _CLAIMED.search(fname)
    return int(claim[1]) if claim is not None else None


def without_last_extension(fname: str) -> str:
    """Return a name up to its last dot.

    Args:
        fname: a name or path; one without a dot in its last part comes back as it is.
    """
    folder, slash, name = fname.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return folder + slash + (stem if dot else name)


def check_pid_is_running(pid: int) -> bool:
    """Tell whether a process lives.

    Args:
        pid: its number.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
