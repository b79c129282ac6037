"""The writer of a series of shards: samples in, numbered tar files out, each complete under its name or not there.

``{rank}``, ``{worker}``, ``{world_size}`` and ``{num_workers}`` in a pattern become this process's numbers, so that
parallel writers never share a name. Shards that exist already are found by one listing of one folder, at the beginning
or the end of a series.

Never has more than one shard open, and never reads or removes a shard that exists.
"""

import contextlib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, cast

from webdataset.core.distributed import WorkerContext, worker_context
from webdataset.core.errors import AlreadyExists, UsageError, WebDatasetError, check_keywords
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import trim_traceback, warn_user
from webdataset.storage.listing import can_list
from webdataset.storage.open_url import find_backend, load_backend, local_path, rewrite_url
from webdataset.writing.local_file import is_special, make_child_error
from webdataset.writing.outputs import OwnedOutput
from webdataset.writing.tar_writer import KeyRules, TarWriter

if TYPE_CHECKING:
    from webdataset.storage.object_store import ListableBackend

ShardNamer = Callable[[int], str]

_FIELD = re.compile(r"\{(shard|rank|world_size|worker|num_workers)(:0?\d*d?)?\}")


def make_shard_namer(pattern: str | os.PathLike[str] | ShardNamer) -> ShardNamer:
    """Return ``f(shard) -> name`` for a pattern.

    Args:
        pattern: text with ``%06d`` or ``{shard:06d}`` where the number goes, and any of ``{rank}``, ``{worker}``,
            ``{world_size}``, ``{num_workers}``, each with a format such as ``:03d``; or such a function itself.

    Raises:
        UsageError: a pattern without a place for the number, or that cannot be formatted.
    """
    if callable(pattern) and not isinstance(pattern, os.PathLike):
        return pattern
    text = os.fspath(pattern) if isinstance(pattern, os.PathLike) else pattern
    if not isinstance(text, str):
        raise UsageError(f"a pattern is text with %06d or {{shard:06d}}, or a function of the number, not {pattern!r}")
    here = worker_context()
    fields = {match[1] for match in _FIELD.finditer(text)}
    _warn_of_sharing(text, fields, here)
    by_braces = "shard" in fields
    chosen = text

    def name(shard: int) -> str:
        numbers = {"shard": shard, **here._asdict()}

        def filled(match: re.Match[str]) -> str:
            return format(numbers[match[1]], (match[2] or ":")[1:])

        return _FIELD.sub(filled, chosen if by_braces else _format_percent(chosen, shard))

    # a pattern that cannot be formatted fails here, not after an hour of work
    name(0)
    return name


def _refuse_to_name(_: int) -> str:
    raise UsageError("this ShardWriter has no pattern: a next_stream() of its own names its shards")


def _format_percent(text: str, shard: int) -> str:
    try:
        return text % shard
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"pattern {text!r} has no single place for the shard number: put one %06d or {{shard:06d}} into it"
        ) from error


def _warn_of_sharing(text: str, fields: set[str], here: WorkerContext) -> None:
    missing = [
        word
        for word, count in (("rank", here.world_size), ("worker", here.num_workers))
        if count > 1 and word not in fields
    ]
    if missing:
        wanted = " and ".join(f"{{{word}}}" for word in missing)
        warn_user(
            f"pattern {text!r} names the same shards in every process of this job ({here.world_size} ranks, "
            f"{here.num_workers} workers): put {wanted} into it, unless only one process writes",
        )


CHOICES = (None, "warn", "error", "ignore")
_DIGITS = re.compile(r"\d+")
_SHOWN = 3


class ExistingShards:
    """The shards of one series that are not of this run.

    Args:
        name: number to name.
        start: number of this run's first shard.
        exist: ``error`` refuses shards that are there; ``warn`` and None warn at the end of those that follow
            this run's; ``ignore`` does neither. None asks local folders only.
        opened: the shards go to an opener of the caller's, who alone knows what is there.
        called: names come from a function of the caller's, which is not asked for others unless ``exist`` is given.

    Raises:
        AlreadyExists: there are shards of this number or a higher one, and they are refused.
        UsageError: another choice; or refusing where nothing can be listed.
    """

    def __init__(self, name: ShardNamer, start: int, exist: str | None, *, opened: bool, called: bool) -> None:
        if exist not in CHOICES:
            raise UsageError(f"exist={exist!r} is not one of 'warn', 'error', 'ignore'")
        self._name, self._start, self._exist = name, start, exist
        self._silent = exist == "ignore" or opened or (called and exist is None)
        self._written: set[str] = set()
        # when this run completed its first shard, by the clock of its folder
        self._since: float | None = None
        if exist == "error":
            self._refuse(opened=opened)

    def _refuse(self, *, opened: bool) -> None:
        found = None if opened else self._find_shards()
        if found is None:
            raise UsageError(
                "exist='error' is kept where names can be listed (local folders, stores with lists), and not here: "
                "leave it out",
                url=self._name(self._start),
            )
        there = [number for number in found if number >= self._start]
        if there:
            raise AlreadyExists(
                f"{_describe(self._name, there)} there already, and exist='error' refuses to mix them with new ones: "
                "remove them, or choose another pattern or start_shard",
                url=self._name(there[0]),
            )

    def add_shard(self, name: str) -> None:
        """Take note of a shard that this run has completed."""
        if not self._silent:
            self._written.add(name)
            if self._since is None:
                self._since = _modification_time(name)

    def warn(self, following: int) -> None:
        """Warn of shards with higher numbers that are older than this run's: readers of the pattern would mix them."""
        if self._silent or not self._written:
            return
        found: Mapping[int, str] = {}
        # who may write need not be allowed to list
        with contextlib.suppress(WebDatasetError, OSError):
            found = self._find_shards() or {}
        stale = [number for number, name in found.items() if number >= following and self._older(name)]
        if stale:
            warn_user(
                f"{_describe(self._name, stale)} there after the {len(self._written)} of this run, and not written by "
                "it: who reads the pattern mixes old with new. Remove them; exist='error' refuses such a start, "
                "exist='ignore' says nothing",
            )

    def _older(self, name: str) -> bool:
        """Tell whether a shard is of an earlier run, and not of one that writes other numbers at the same time."""
        if name in self._written:
            return False
        modified = _modification_time(name)
        return modified is None or self._since is None or modified < self._since

    def _find_shards(self) -> dict[int, str] | None:
        """Return the shards of the pattern that are there, by rising number; None where that cannot be known."""
        first = self._name(self._start)
        path = local_path(first)
        if path is not None:
            if is_special(path):
                return None
            head = path[: len(path) - len(Path(path).name)]
            try:
                return self._match_numbers(head + entry.name for entry in Path(head or ".").iterdir())
            except FileNotFoundError:
                return {}
        if self._exist is None or not can_list(rewrite_url(first)):
            return None
        return self._list_store(rewrite_url(first))

    def _list_store(self, url: str) -> dict[int, str] | None:
        """Return the shards that a store has under the part of the key before the number."""
        backend = load_backend(find_backend(url) or "")
        if not hasattr(backend, "list_keys"):
            return None
        store = cast("ListableBackend", backend)
        stem, key = store.split(url)
        _, other = store.split(rewrite_url(self._name(self._start + 1)))
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(key, other, strict=False))
        prefix = "".join(letter for letter, _ in alike).rstrip("0123456789")
        head = url[: len(url) - len(key)]
        return self._match_numbers(head + each for each in store.list_keys(stem, prefix))

    def _match_numbers(self, names: Iterable[str]) -> dict[int, str]:
        """Return those of some names that the pattern gives, by number."""
        found: dict[int, str] = {}
        for name in names:
            for digits in _DIGITS.findall(name.rpartition("/")[2]):
                number = int(digits[:18])
                written = self._name(number)
                if name in (written, local_path(written), rewrite_url(written)):
                    found[number] = written
        return dict(sorted(found.items()))


def _modification_time(name: str) -> float | None:
    """Return when a local file was changed last; None for others."""
    path = local_path(name)
    try:
        return None if path is None else Path(path).stat().st_mtime
    except OSError:
        return None


def _describe(name: ShardNamer, numbers: list[int]) -> str:
    """Return words on some shards: how many, and the names of the first and last."""
    if len(numbers) == 1:
        return f"1 shard is ({redact(name(numbers[0]))})"
    shown = [redact(name(number)) for number in numbers]
    if len(shown) > _SHOWN:
        shown = [shown[0], "…", shown[-1]]
    return f"{len(numbers)} shards are ({', '.join(shown)})"


def check_writer_options(call: str, given: Iterable[str], writer: type) -> None:
    """Refuse arguments that the writers of a series do not have, before its first sample. Raises TypeError."""
    names = {*inspect.signature(ShardWriter).parameters, *inspect.signature(writer).parameters, "check_keys", "index"}
    check_keywords(call, given, sorted(names - {"kw", "fileobj"}), _INSTEAD)


_INSTEAD = {
    "max_count": "write maxcount=",
    "max_size": "write maxsize=, a number of bytes",
    "compression": "write compress='gz', or end the pattern with .tar.gz",
}


class ShardWriter:
    """Write samples to a series of shards.

    A shard is opened by the first sample that goes into it, so an unused writer leaves no file. A full shard is
    completed when the next sample comes. After an exception inside ``with`` the completed shards stay, and the one in
    progress is not there. Names are logged at INFO level, not printed.

    Args:
        pattern: name of the shards, with ``%06d`` or ``{shard:06d}`` where the number goes, and ``{rank}`` or
            ``{worker}`` where several processes write; or a function of the number.
        maxcount: samples per shard at most.
        maxsize: payload bytes per shard; the sample that reaches it is the shard's last.
        post: called with each completed shard's name.
        start_shard: number of the first shard.
        verbose: 0 logs nothing.
        opener: called with a shard's name, gives the file object to write to; it is closed with the shard.
        exist: what to do about shards of this pattern that are there already. ``"error"`` refuses, here, those with
            ``start_shard`` or a higher number. ``"warn"`` warns, on closing, of higher numbers than this run wrote that
            are older: those of a longer series, which readers would mix with the new ones. ``"ignore"`` does neither.
            None warns of local files that a pattern names; the others list an object store, too (one listing), and
            ask a function for names.
        **kw: as for :class:`TarWriter`. ``index`` may name "wids", too (one ``shardindex.json``); with "energon" the
            folder ``.nv-meta`` is written when the series is complete. ``overwrite=False`` raises AlreadyExists where a
            shard is there already; by default it is replaced. In either case a shard that another writer completes
            during the writing of the same name is an error, not a loss.

    Attributes:
        fname: name of the shard in progress, else of the last one (at first, of the first).
        shard: number that the next shard gets; may be set.
        total: samples so far.
        count: samples in the shard in progress, else in the last one.
        size: payload bytes in it.
        tarstream: its TarWriter; None before the first.

    Raises:
        UsageError: a pattern or bound that cannot mean anything; or ``exist="error"`` where nothing can be listed.
        AlreadyExists: shards that ``exist="error"`` refuses.
        TypeError: an argument that there is not.
    """

    # writes one shard
    _shard_writer: type = TarWriter

    def __init__(  # noqa: PLR0917  upstream's order
        self,
        pattern: str | os.PathLike[str] | ShardNamer,
        maxcount: int = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], object] | None = None,
        *,
        exist: str | None = None,
        **kw: Any,
    ) -> None:
        try:
            is_empty = maxcount < 1 or maxsize <= 0
        except TypeError:
            words = f"maxcount={maxcount!r} and maxsize={maxsize!r} are numbers: of samples, and of bytes"
            raise UsageError(words) from None
        if is_empty:
            raise UsageError(f"maxcount={maxcount} and maxsize={maxsize} leave no room for a sample")
        for name, function in ("post", post), ("opener", opener):
            if function is not None and not callable(function):
                raise UsageError(f"{name}={function!r:.60}: it is a function of a shard's name, or None")
        if not isinstance(start_shard, SupportsIndex):
            raise UsageError(f"start_shard={start_shard!r:.60}: it is the number of the first shard")
        # a method of a subclass may pass what it likes to writers of its own, and name shards without the pattern
        own = type(self).next_stream is not ShardWriter.next_stream
        if kw and not own:
            check_writer_options(type(self).__name__, kw, self._shard_writer)
        self.maxcount, self.maxsize = maxcount, maxsize
        self.post, self.verbose, self.opener, self.kw = post, verbose, opener, kw
        named = not own or pattern != ""
        self._name: ShardNamer = make_shard_namer(pattern) if named else _refuse_to_name
        self._pattern, self._start = pattern, start_shard
        called, opened = self._name is pattern, opener is not None or not named
        self._existing = ExistingShards(self._name, start_shard, exist, opened=opened, called=called)
        self._rules = KeyRules(kw.pop("check_keys", "warn"))
        index = kw.pop("index", None)
        self._indexing = None if index is None else _make_series(index, opener)
        self.shard = start_shard
        # without a pattern the None of upstream's, which a method in the place of ours sees
        self.fname: str = self._name(start_shard) if named else None  # type: ignore[assignment]
        self.total = self.count = self.size = 0
        self.tarstream: TarWriter | None = None
        self._closed = False
        self._process: int | None = None

    @property
    def pattern(self) -> str | os.PathLike[str] | ShardNamer:
        """Name of the shards; where it is set, from the next shard on."""
        return self._pattern

    @pattern.setter
    def pattern(self, pattern: str | os.PathLike[str] | ShardNamer) -> None:
        self._name, self._pattern = make_shard_namer(pattern), pattern

    def write(self, obj: Mapping[str, object]) -> int:
        """Write one sample, into a new shard if the present one is full.

        Args:
            obj: fields by extension, and ``__key__``.

        Returns:
            Bytes of payload.

        Raises:
            UsageError: the writer is closed.
            WebDatasetError: as for :meth:`TarWriter.write`.
        """
        writer = self.tarstream
        full = self.count >= self.maxcount or self.size >= self.maxsize
        if writer is None or writer.closed or (full and not _continues_sample(writer, obj)):
            # what programs put in its place returns nothing
            self.next_stream()
            writer = self.tarstream
            if writer is None:
                raise UsageError(
                    "next_stream() has opened no shard: a method in its place calls the one of ShardWriter"
                )
        try:
            size = writer.write(obj)
        except WebDatasetError as error:
            trim_traceback(error)
            raise
        self.count += 1
        self.total += 1
        self.size += size
        return size

    def next_stream(self) -> TarWriter:
        """Complete the present shard and open the next one; return its TarWriter.

        Raises:
            UsageError: the writer is closed, or a process uses it that inherited it.
            SourceError: either shard fails.
        """
        if self._closed:
            raise UsageError("this ShardWriter is closed: no sample can be added", url=self.fname)
        # parent and child would write shards of the same numbers
        if self._process not in (None, os.getpid()):
            raise make_child_error(self.fname)
        self._process = os.getpid()
        self.finish()
        if self.tarstream is not None or self.shard != self._start or self.fname is None:
            self.fname = self._name(self.shard)
        if self.verbose:
            log.info("writing %s (%d samples so far)", self.fname, self.total)
        target = self.fname if self.opener is None else OwnedOutput(self.opener(self.fname))
        writer: TarWriter = self._writer(target)
        self.tarstream = writer
        self.shard += 1
        self.count = self.size = 0
        return writer

    def _writer(self, target: Any) -> Any:
        """Return the writer of the next shard."""
        index = {} if self._indexing is None else {"index": self._indexing.formats}
        return TarWriter(target, check_keys=self._rules, **index, **self.kw)

    def finish(self) -> None:
        """Complete the present shard, if there is one; one without samples is given up instead.

        Raises:
            SourceError: it cannot be completed.
        """
        if self.tarstream is None or self.tarstream.closed:
            return
        if not self.count:
            self.tarstream.abort()
            return
        self.tarstream.close()
        if self._indexing is not None:
            self._indexing.add_shard(self.tarstream.shard_index)
        self._existing.add_shard(self.fname)
        if self.post is not None:
            self.post(self.fname)

    def close(self) -> None:
        """Complete the last shard. Closing again does nothing.

        Raises:
            SourceError: it cannot be completed.
        """
        closed, self._closed = self._closed, True
        try:
            self.finish()
            if self._indexing is not None and not closed:
                self._indexing.close()
            if not closed:
                self._existing.warn(self.shard)
        finally:
            if self._indexing is not None:
                # does nothing to what is complete
                self._indexing.abort()

    def abort(self) -> None:
        """Give up the shard in progress; completed shards stay, and no more are written."""
        self._closed = True
        if self._indexing is not None:
            self._indexing.abort()
        if self.tarstream is not None:
            self.tarstream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the last shard, or give it up if an exception passes."""
        if kind is None:
            self.close()
        else:
            self.abort()


def _continues_sample(writer: TarWriter, obj: Mapping[str, object]) -> bool:
    """Tell whether a sample is a further part of the last one, which stays in its shard."""
    last = getattr(writer, "last_key", None)
    return last is not None and isinstance(obj, Mapping) and obj.get("__key__") == last


def _make_series(index: object, opener: object) -> Any:
    if opener is not None:
        raise UsageError("index= puts files beside local shards: it cannot be combined with opener=")
    # only writers that index pay for it
    indexing = importlib.import_module("webdataset.writing.indexing")
    return indexing.SeriesIndexing(index)
