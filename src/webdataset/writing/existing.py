"""Shards of a series that are there already: found by their numbers, wherever they can be listed.

Flows in: a writer's names. Flows out: the numbers of files that the same pattern would give. One listing of one folder,
at the beginning or at the end of a series; nothing for each sample or shard. Never reads or removes a shard.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path

from webdataset.ground.errors import AlreadyExists, UsageError, WebDatasetError
from webdataset.ground.redaction import redacted
from webdataset.ground.tracebacks import warn_user
from webdataset.sources.listing import lists
from webdataset.sources.open import opener_of
from webdataset.sources.rewrite import rewritten
from webdataset.sources.stores import loaded

from .localfile import is_special
from .numbering import Namer
from .outputs import local_path

CHOICES = (None, "warn", "error", "ignore")
_DIGITS = re.compile(r"\d+")
_SHOWN = 3


class ExistingShards:
    """The shards of one series that are not of this run.

    Args:
        name: number to name.
        start: number of this run's first shard.
        exist: ``error`` refuses shards that are there; ``warn`` and None warn at the end of those that stand behind
            this run's; ``ignore`` does neither. None asks local folders only.
        opened: the shards go to an opener of the caller's, who alone knows what is there.
        called: names come from a function of the caller's, which is not asked for others unless ``exist`` is given.

    Raises:
        AlreadyExists: there are shards of this number or a higher one, and they are refused.
        UsageError: another choice; or refusing where nothing can be listed.
    """

    def __init__(self, name: Namer, start: int, exist: str | None, *, opened: bool, called: bool) -> None:
        if exist not in CHOICES:
            raise UsageError(f"exist={exist!r} is not one of 'warn', 'error', 'ignore'")
        self._name, self._start, self._exist = name, start, exist
        self._silent = exist == "ignore" or opened or (called and exist is None)
        self._written: set[str] = set()
        self._since: float | None = None  # when this run completed its first shard, by the clock of its folder
        if exist == "error":
            self._refuse(opened=opened)

    def _refuse(self, *, opened: bool) -> None:
        found = None if opened else self._found()
        if found is None:
            raise UsageError(
                "exist='error' is kept where names can be listed (local folders, stores with lists), and not here: "
                "leave it out",
                url=self._name(self._start),
            )
        there = [number for number in found if number >= self._start]
        if there:
            raise AlreadyExists(
                f"{_told(self._name, there)} there already, and exist='error' refuses to mix them with new ones: "
                "remove them, or choose another pattern or start_shard",
                url=self._name(there[0]),
            )

    def completed(self, name: str) -> None:
        """Take note of a shard that this run has completed.

        Args:
            name: of the shard.
        """
        if not self._silent:
            self._written.add(name)
            if self._since is None:
                self._since = _modified(name)

    def warn(self, following: int) -> None:
        """Warn of shards with higher numbers that are older than this run's: readers of the pattern would mix them.

        Args:
            following: the number behind this run's last shard.
        """
        if self._silent or not self._written:
            return
        found: Mapping[int, str] = {}
        with contextlib.suppress(WebDatasetError, OSError):  # who may write need not be allowed to list
            found = self._found() or {}
        stale = [number for number, name in found.items() if number >= following and self._older(name)]
        if stale:
            warn_user(
                f"{_told(self._name, stale)} there behind the {len(self._written)} of this run, and not written by "
                "it: who reads the pattern mixes old with new. Remove them; exist='error' refuses such a start, "
                "exist='ignore' says nothing",
            )

    def _older(self, name: str) -> bool:
        """Tell whether a shard is of an earlier run, and not of one that writes other numbers at the same time."""
        if name in self._written:
            return False
        modified = _modified(name)
        return modified is None or self._since is None or modified < self._since

    def _found(self) -> dict[int, str] | None:
        """Return the shards of the pattern that are there, by rising number; None where nobody can tell."""
        first = self._name(self._start)
        path = local_path(first)
        if path is not None:
            if is_special(path):
                return None
            head = path[: len(path) - len(Path(path).name)]
            try:
                return self._numbered(head + entry.name for entry in Path(head or ".").iterdir())
            except FileNotFoundError:
                return {}
        if self._exist is None or not lists(rewritten(first)):
            return None
        return self._stored(rewritten(first))

    def _stored(self, url: str) -> dict[int, str] | None:
        """Return the shards that a store has under the part of the key before the number."""
        store = loaded(opener_of(url).store)  # type: ignore[union-attr]
        if not hasattr(store, "keys"):
            return None
        stem, key = store.split(url)
        _, other = store.split(rewritten(self._name(self._start + 1)))
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(key, other, strict=False))
        prefix = "".join(letter for letter, _ in alike).rstrip("0123456789")
        head = url[: len(url) - len(key)]
        return self._numbered(head + each for each in store.keys(stem, prefix))

    def _numbered(self, names: Iterable[str]) -> dict[int, str]:
        """Return those of some names that the pattern gives, by number."""
        found: dict[int, str] = {}
        for name in names:
            for digits in _DIGITS.findall(name.rpartition("/")[2]):
                number = int(digits[:18])
                written = self._name(number)
                if name in (written, local_path(written), rewritten(written)):
                    found[number] = written
        return dict(sorted(found.items()))


def _modified(name: str) -> float | None:
    """Return when a local file was changed last; None for others."""
    path = local_path(name)
    try:
        return None if path is None else Path(path).stat().st_mtime
    except OSError:
        return None


def _told(name: Namer, numbers: list[int]) -> str:
    """Return words on some shards: how many, and the names of the first and last."""
    if len(numbers) == 1:
        return f"1 shard is ({redacted(name(numbers[0]))})"
    shown = [redacted(name(number)) for number in numbers]
    if len(shown) > _SHOWN:
        shown = [shown[0], "…", shown[-1]]
    return f"{len(numbers)} shards are ({', '.join(shown)})"
