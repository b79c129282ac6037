"""What one viewer shows: its sides, their shards, and what was named beside them on the command line.

Nothing is read before it is asked for. Shards are known to clients by number alone, so that nothing beyond the inputs
can be read.
"""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from webdataset.core.errors import NoSuchSample
from webdataset.core.redaction import redact
from webdataset.samples.sample_reader import Reading
from webdataset.storage.open_url import local_path
from webdataset.viewer.shard_bytes import BlockCache
from webdataset.viewer.shard_pages import ShardView

_MOST_OPEN: Final = 64


class DatasetView:
    """The shards of one side.

    Args:
        name: as typed; secrets are removed here.
        urls: of the shards.
        reading: the rules of reading.
        cache: of the blocks of remote shards.
        indexes: paths of their indexes; empty looks for one beside each.

    Attributes:
        name: for people.
        urls: never leave the server as they are.
        reading: as given.
    """

    def __init__(
        self, name: str, urls: Sequence[str], reading: Reading, cache: BlockCache, indexes: Sequence[str] = ()
    ) -> None:
        self.name = redact(name)
        self._indexes = tuple(indexes)
        self.urls = tuple(urls)
        self.reading = reading
        self._cache = cache
        self._lock = threading.Lock()
        self._open: OrderedDict[int, ShardView] = OrderedDict()
        # of shards that were looked at, however long ago
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.urls)

    @property
    def short_name(self) -> str:
        """The last part of the first shard's name, and how many other shards there are."""
        first = redact(self.urls[0]) if self.urls else self.name
        last = first.partition("?")[0].rstrip("/").rpartition("/")[2] or first
        return last if len(self.urls) < 2 else f"{last} and {len(self.urls) - 1} more"

    def shard(self, number: int) -> ShardView:
        """Return a shard.

        Args:
            number: from 0 on.

        Raises:
            NoSuchSample: there is none of this number.
        """
        if not 0 <= number < len(self.urls):
            raise NoSuchSample(f"there is no shard {number}: there are {len(self.urls)}")
        with self._lock:
            view = self._open.get(number)
            if view is None:
                index = self._indexes[number] if self._indexes else None
                view = ShardView(number, self.urls[number], self.reading, self._cache, index)
                self._open[number] = view
            self._open.move_to_end(number)
            self._drop_old()
            return view

    def _drop_old(self) -> None:
        """Let go of shards that were not looked at for long; standard input cannot be opened again."""
        for number in [number for number in self._open if self.urls[number] != "-"]:
            if len(self._open) <= _MOST_OPEN:
                return
            view = self._open.pop(number)
            if view.count is not None:
                self._counts[number] = view.count
            view.close()

    def known_counts(self) -> dict[int, int]:
        """Return the numbers of samples of the shards of which it is known."""
        with self._lock:
            found = dict(self._counts)
            found.update({number: view.count for number, view in self._open.items() if view.count is not None})
            return found

    def describe(self, start: int, count: int) -> list[dict[str, Any]]:
        """Return what is known of some shards; none is opened.

        Args:
            start: number of the first.
            count: how many.
        """
        counts = self.known_counts()
        with self._lock:
            views = dict(self._open)
        rows = []
        for number in range(start, min(start + count, len(self.urls))):
            view = views.get(number)
            rows.append(
                {
                    "shard": number,
                    "name": redact(self.urls[number]),
                    "samples": counts.get(number),
                    "size_bytes": (view and view.size_bytes) or _find_size(self.urls[number]),
                    "indexed": view is not None and view.indexed,
                }
            )
        return rows

    @property
    def count(self) -> int | None:
        """Number of samples of all shards, where that is known."""
        counts = self.known_counts()
        return sum(counts.values()) if len(counts) == len(self.urls) else None

    def close(self) -> None:
        """Let go of all shards."""
        with self._lock:
            for view in self._open.values():
                view.close()
            self._open.clear()


def _find_size(url: str) -> int | None:
    """Return the bytes of a local file; None for other urls, which are not asked before they are looked at."""
    path = local_path(url)
    try:
        found = None if path is None else os.stat(path)  # noqa: PTH116  as the user wrote it
    except (OSError, ValueError):
        return None
    return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None


@dataclass(frozen=True)
class SavedState:
    """A state that was named on the command line.

    Args:
        name: of the file, without secrets.
        content: the state.
    """

    name: str
    content: dict[str, Any]


@dataclass(frozen=True)
class DatasetArguments:
    """The run whose batches can be looked at.

    Args:
        load: makes the dataset, or a loader over one; None where none was named and the shards are not enough.
        name: ``module:function``, or None.
        states: in the order of the command line.
        seed: of the run, or None.
        batch_size: samples in a batch, or None where the dataset says it.
    """

    load: Callable[[], Any] | None = None
    name: str | None = None
    states: tuple[SavedState, ...] = ()
    seed: int | None = None
    batch_size: int | None = None


@dataclass
class Session:
    """What one server shows.

    Args:
        sides: ``a``, and ``b`` where two are compared.
        pipeline: ``module:function`` of the user's, or None.
        tags: the file of tags, or None.
        dataset_arguments: the run whose batches can be looked at.
        close_with: called when the server ends.
    """

    sides: dict[str, DatasetView]
    pipeline: str | None = None
    tags: Any = None
    dataset_arguments: DatasetArguments = field(default_factory=DatasetArguments)
    close_with: list[Callable[[], None]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What is shown, in one line: the name of the first shard, and how many others there are."""
        return " | ".join(side.short_name for side in self.sides.values())

    def side(self, name: str) -> DatasetView:
        """Return a side.

        Args:
            name: ``a`` or ``b``.

        Raises:
            NoSuchSample: there is none of this name.
        """
        if name not in self.sides:
            raise NoSuchSample(f"there is no side {name[:20]!r}: there are {', '.join(self.sides)}")
        return self.sides[name]

    def close(self) -> None:
        """Let go of everything."""
        for close in self.close_with:
            close()
        for side in self.sides.values():
            side.close()


def make_view(name: str, urls: Sequence[str], reading: Reading | None = None) -> DatasetView:
    """Return a side of some shards, with a cache of its own.

    Args:
        name: for people.
        urls: of the shards.
        reading: the rules of reading.
    """
    return DatasetView(name, urls, reading or Reading(), BlockCache())
