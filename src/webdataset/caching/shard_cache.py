"""The shard cache: opens shards through a directory, prefetches the next ones, downloads one url to one file.

:class:`ShardCache` takes ``{"url"}`` dicts and gives them with ``stream``, and with ``__local_path__`` where the
shard is, or becomes, a file of the cache. A shard is read while it arrives; all processes of a host together fetch it
once (:mod:`webdataset.caching.entry` tells how). Local files are read in place. Where the directory cannot take a
file, shards are streamed from their sources.

Prefetch: while a shard is read, threads open the next two: their downloads begin, or downloads of other processes are
followed, or the copies are revalidated. This takes space in the directory, within its quota, not memory. What fails,
or finds no space, is opened again at its turn, and its error is raised then. Nothing is prefetched for a reader that
leaves before it has read a megabyte.

Never loses a sample because of the cache.
"""

import dataclasses
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webdataset.caching import metadata, names
from webdataset.caching.download import Validator, check_tar_format
from webdataset.caching.entry import CacheEntry, SourceOpener, open_directly
from webdataset.caching.eviction import Quota, remove_leftovers
from webdataset.caching.locks import TemporaryDownload, Unwritable
from webdataset.caching.names import EntryPaths
from webdataset.core import settings
from webdataset.core.error_handlers import Handler, should_continue, with_location
from webdataset.core.errors import SourceError, UsageError, describe_error
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.storage.local_files import is_transient, retry_local
from webdataset.storage.open_url import ResolvedUrl, local_path, open_stream, resolve_url
from webdataset.storage.prefetch import Lookahead, Resolver, Shard, UpcomingShard

if TYPE_CHECKING:
    from webdataset.caching.reader import CachedStream

DEPTH = 2

# directory that refused a file: the monotonic time from which this process tries it again, since disks are emptied
_failed_folders: dict[str, float] = {}
_FAILED_SECONDS = 600.0
# a user's file to the url for which it was read; to nothing after a warning about a second url
_plain_names: dict[str, str] = {}

log = logging.getLogger("webdataset")


class OpeningTask:
    """A shard that a thread opens.

    Args:
        opening: gives the stream of the shard, or None; called in the thread.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(self, opening: "Callable[[], CachedStream | None]") -> None:
        self._owner = os.getpid()
        self._opened: CachedStream | None = None
        self._warning: Warning | None = None
        self._left = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(opening,), name="webdataset-cache-ahead", daemon=True)
        self._thread.start()

    def _run(self, opening: "Callable[[], CachedStream | None]") -> None:
        opened = None
        try:
            opened = opening()
        except Warning as warning:  # where warnings are errors; it would not be given a second time
            self._warning = warning
        except Exception:  # noqa: BLE001  it is opened again, and raises, when its turn comes
            opened = None
        with self._lock:
            self._opened = opened
            left = self._left
        if left:
            self.close()

    def take(self) -> "CachedStream | None":
        """Return the stream, once; None where the shard has to be opened now. Waits for the thread.

        Raises:
            Warning: where warnings are errors.
        """
        self._thread.join()
        if self._warning is not None:
            raise self._warning
        opened, self._opened = self._opened, None
        return opened

    def close(self) -> None:
        """Close the stream, now or as soon as it is open; never waits."""
        if self._owner != os.getpid():
            self._lock = threading.Lock()
        with self._lock:
            self._left = True
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


class CachePrefetcher(Lookahead[OpeningTask]):
    """A list of shards, of which the next are opened before their turn.

    Args:
        shards: the list. Only the thread that reads asks it, and while it reads.
        opening: opens a shard through the cache; called in threads.
        prefetch: 0: open nothing before its turn; None is ``WDS_PREFETCH_BYTES``.
        resolve: says what the url of a shard leads to.
    """

    def __init__(
        self,
        shards: Iterator[Shard],
        opening: "Callable[[Shard, ResolvedUrl | None], CachedStream | None]",
        prefetch: int | None,
        resolve: Resolver,
    ) -> None:
        super().__init__(shards, resolve)
        self._wanted = prefetch != 0 and settings.PREFETCH_BYTES.get() > 0
        self.opening = opening
        self._first = True

    def watch(self, stream: "CachedStream") -> None:
        """Begin what follows the shard of ``stream``: of a first shard when a megabyte has been read, else at once."""
        if self._first:
            self._first = False
            stream.look = self.look
        else:
            self.look()

    def look(self) -> None:
        """Begin what comes next; never waits, and raises nothing."""
        if self._wanted:
            self._alone(self._look)

    def close(self) -> None:
        """Leave what was begun."""
        for begun in self._left():
            begun.close()

    def _look(self) -> None:
        waiting = self._waiting
        for number in range(DEPTH):
            if number == len(waiting) and self._look_further() is None:
                return
            coming = waiting[number]
            if coming.begun is None:
                if not coming.remote:
                    return
                try:
                    begun = OpeningTask(functools.partial(self._open_shard, coming.shard, coming.resolved))
                except RuntimeError:  # no more threads
                    return
                self._note(waiting, number, begun)

    def _open_shard(self, shard: Shard, resolved: ResolvedUrl | None) -> "CachedStream | None":
        """Open a shard; in a thread."""
        stream = self.opening(shard, resolved)
        if stream is not None and stream.kept:
            return stream
        # the directory is full of what is being read, or takes nothing
        self._wanted = False
        if stream is not None:
            stream.close()
        return None


@dataclass(frozen=True)
class ShardCache:
    """A directory of shards.

    A download is kept as ``name.url-HASH.tar``, or as ``url_to_name`` says. A file that the user puts there under the
    shard's plain name, where webdataset 0.2 would keep it, or where ``url_to_name`` says, is read instead of the url.

    Args:
        folder: the directory; it has to exist.
        size_bytes: bound on all files in it, downloads under way included. Downloads that were used least recently are
            deleted, except those that a process of this host reads; what then finds no room is streamed and not kept.
            Files that users put there are never deleted. Not above 0: no bound.
        url_to_name: url to relative path. Where it gives one name to two shards, the second gets one of its own.
        verbose: log every hit, download and deletion; ``WDS_VERBOSE_CACHE`` does so too.
        always: copy local files too.
        validator: path to bool, asked whether a download may be kept, instead of looking whether it is a shard. It is
            asked before anything is read.
        complete: give only shards that are there completely, so that ``__local_path__`` can be opened at once;
            otherwise it can be once the shard has been read to its end.
        revalidate: when the store is asked whether a cached shard is still the same: ``never``, ``once`` in each
            process, ``always``; None is ``WDS_CACHE_REVALIDATE``.

    Raises:
        UsageError: the directory cannot be made, or ``revalidate`` is something else.
        SourceError: a mounted file system does not answer, not after several attempts either.
    """

    folder: str
    size_bytes: float = -1
    url_to_name: Callable[[str], str] | None = None
    verbose: bool = False
    always: bool = False
    validator: Validator | None = None
    complete: bool = False
    revalidate: str | None = None

    def __post_init__(self) -> None:
        if not self.folder:
            raise UsageError("the cache directory has an empty name")
        make = functools.partial(Path(self.folder).mkdir, parents=True, exist_ok=True)
        try:
            make()
        except OSError as error:
            if not is_transient(error, self.folder):
                raise UsageError(f"cannot make the cache directory {self.folder!r}: {describe_error(error)}") from error
            retry_local(make, error, self.folder, "make")
        number = hasattr(self.size_bytes, "__float__") and not isinstance(self.size_bytes, bool)
        # the latter: NaN
        if not number or not (self.size_bytes > 0 or self.size_bytes <= 0):
            raise UsageError(f"cache_size is a number of bytes, not {self.size_bytes!r}")
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))
        # upstream's defaults
        if self.url_to_name in (names.pipe_cleaner, names.url_to_cache_name):
            object.__setattr__(self, "url_to_name", None)
        if self.validator is check_tar_format:
            object.__setattr__(self, "validator", None)
        if self.revalidate is not None:
            metadata.parse_policy(self.revalidate)

    def open_shards(
        self,
        shards: Iterable[dict[str, Any]],
        source: SourceOpener,
        handler: Handler,
        *,
        level: str | None = None,
        storage_options: object = None,
        prefetch: int | None = 0,
        archives: bool = True,
        resolve: Resolver | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Open each shard, from the cache where it can be.

        Args:
            shards: dicts with ``url``.
            source: opens shards without the cache.
            handler: asked where one cannot be opened; true continues with the next.
            level: the trust level that a dataset names.
            storage_options: what ``source`` opens urls with: they tell one service's shards from another's.
            prefetch: 0: open nothing before its turn; anything else, and None where ``WDS_PREFETCH_BYTES`` is not 0:
                bring the next two shards while one is read. ``source`` is called in threads then.
            archives: whether shards are tar archives: what does not begin as one is an error, and not kept. Others
                are kept where their length is told.
            resolve: says what a url leads to, once for each shard; what it leads to is opened in place of calling
                ``source``.

        Yields:
            The dicts with ``stream``.

        Raises:
            WebDatasetError: what the handler does not step over.
        """
        answers = [True]

        def asked(error: Exception) -> bool:
            answers.append(bool(handler(error)))
            return answers[-1]

        bare = source if resolve is None else None
        resolve = resolve or functools.partial(resolve_url, level=level, storage_options=storage_options)
        opening = functools.partial(self._open, source=bare, archives=archives)
        coming = CachePrefetcher(iter(shards), opening, 0 if self.complete or self.validator else prefetch, resolve)
        try:
            while (place := coming.next()) is not None:
                try:
                    found = self._open_next(place, coming, resolve, direct=bare is None)
                except Exception as error:  # noqa: BLE001  the handler decides
                    error = with_location(error, url=str(place.shard["url"]), stage="cache")
                    if not should_continue(handler, error, "opening"):
                        return
                    continue
                yield from source([place.shard], asked) if found is None else (found,)
                if not answers[-1]:
                    return
        finally:
            coming.close()

    def _open_next(
        self, place: UpcomingShard[OpeningTask], coming: CachePrefetcher, resolve: Resolver, *, direct: bool
    ) -> dict[str, object] | None:
        """Return a shard whose turn has come with its stream; None where the source is to open it."""
        shard = place.shard
        resolved = place.resolved or _resolve(shard, resolve)
        stream = (place.begun and place.begun.take()) or coming.opening(shard, resolved)
        if stream is not None:
            coming.watch(stream)
            return {**shard, "stream": stream, **({"__local_path__": stream.path} if stream.kept else {})}
        return {**shard, "stream": open_directly(resolved)} if direct and resolved is not None else None

    def fetch(self, url: str | os.PathLike[str], source: SourceOpener, *, level: str | None = None) -> str:
        """Return the path of a file with a url's bytes: a local file itself, or the copy in the cache.

        Args:
            url: what to fetch.
            source: opens shards without the cache.
            level: the trust level in force.

        Raises:
            SourceError: it cannot be had, or the directory cannot keep it.
            FormatError: what came is no shard.
        """
        shard: dict[str, object] = {"url": url}
        resolved = _resolve(shard, functools.partial(resolve_url, level=level))
        stream = self._open(shard, resolved, source, complete=True)
        if stream is not None:
            stream.close()
        if stream is not None and stream.kept:
            return stream.path
        path = local_path(url, level=level)
        if path is None:
            raise SourceError(
                f"cannot be kept in {self.folder}: the directory takes no files, or nothing vouches that what came is "
                "whole; read it as a stream instead",
                url=str(url),
            )
        return path

    def _open(
        self,
        shard: dict[str, object],
        resolved: ResolvedUrl | None,
        source: SourceOpener | None,
        *,
        complete: bool = False,
        archives: bool = True,
    ) -> "CachedStream | None":
        """Open a shard through the cache; None where its source has to be read."""
        if resolved is None or (resolved.local and not self.always):
            return None
        if os.name == "nt":
            self._complain("it is not supported on Windows")
            return None
        own = EntryPaths(self.folder, names.cache_name(resolved.url, resolved.target, resolved.service_id()))
        chosen = None if self.url_to_name is None else names.custom_names(resolved.url, self.url_to_name)[-1]
        entry = CacheEntry(
            place=own if chosen is None else EntryPaths(self.folder, chosen),
            shard=shard,
            source=source,
            resolved=resolved,
            quota=Quota(self.folder, self.size_bytes, self._is_verbose()),
            complain=self._complain,
            complete=complete or self.complete,
            validator=self.validator,
            other=None if chosen is None else own,
            archives=archives,
        )
        return self._open_user_file(entry) or self._open_entry(entry)

    def _open_user_file(self, entry: CacheEntry) -> "CachedStream | None":
        """Open what the user has put into the directory for a url."""
        url = entry.url
        if self.url_to_name is None:
            candidates = names.user_file_names(url)
        else:
            candidates = names.custom_names(url, self.url_to_name)[:-1]
        for name in dict.fromkeys(candidates):
            if name == entry.place.name:
                continue
            stream = self._hit(dataclasses.replace(entry, place=EntryPaths(self.folder, name)))
            if stream is not None:
                if self.url_to_name is None:
                    _warn_of_two_urls(stream.path, names.canonical_url(names.pipe_cleaner(url)))
                return stream
        return None

    def _open_entry(self, entry: CacheEntry) -> "CachedStream | None":
        """Open a copy, or make one; None where the source has to be read."""
        remove_leftovers(self.folder)
        entry.avoid_another()
        entry.quota.trim(entry.place)
        entry.now = metadata.fetch_version(entry.place, entry.resolved, metadata.parse_policy(self.revalidate))
        stream = self._hit(entry)
        if stream is not None or _failed_folders.get(self.folder, 0.0) > time.monotonic():
            return stream
        self._tell("download to", entry.place.final, entry.url)
        stream = entry.open()
        if stream is None or not stream.kept:
            self._tell("not kept:", entry.place.final, entry.url)
        return stream

    def _hit(self, entry: CacheEntry) -> "CachedStream | None":
        """Open an entry that is whole."""
        try:
            stream = entry.open_whole()
        except PermissionError as error:
            self._complain(error.strerror)
            return None
        if stream is not None:
            self._tell("read from", stream.path, entry.url)
        return stream

    def _is_verbose(self) -> bool:
        return self.verbose or settings.VERBOSE_CACHE.get()

    def _tell(self, verb: str, path: str, url: str) -> None:
        if self._is_verbose():
            log.warning("cache: %s %s: %s", verb, path, redact(url))

    def _complain(self, reason: object) -> None:
        """Put nothing more into the directory for ten minutes, and warn the first time."""
        warned = self.folder in _failed_folders
        _failed_folders[self.folder] = time.monotonic() + _FAILED_SECONDS
        if not warned:
            warn_user(
                f"cache directory {self.folder} cannot be used: {reason}. Shards that are not in it are streamed from "
                "their sources and not kept; it is tried again every ten minutes, without a further warning",
            )


def _resolve(shard: Shard, resolve: Resolver) -> ResolvedUrl | None:
    """Resolve the url of a shard; None for an open object and for stdin."""
    url = shard.get("url") if isinstance(shard, dict) else None
    return resolve(url) if isinstance(url, str | os.PathLike) and url != "-" else None


def _warn_of_two_urls(path: str, url: str) -> None:
    """Warn where one user's file is read for two urls."""
    first = _plain_names.setdefault(path, url)
    if first not in ("", url):
        _plain_names[path] = ""
        warn_user(
            f"{path} is read for two urls, {redact(first)} and {redact(url)}, since both have its name. If they "
            "are two shards, rename the file or pass url_to_name",
        )


def download(
    url: str,
    dest: str | os.PathLike[str],
    chunk_size: int = 1 << 20,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> None:
    """Copy what a url gives into a file, which gets its name when it is complete.

    Args:
        url: the url.
        dest: the file; one that is there is replaced.
        chunk_size: bytes to read at a time.
        verbose: log the download.

    Raises:
        NotFound: nothing is there.
        SourceError: the source failed, ended early, or the file cannot be written.
    """
    if verbose:
        log.warning("download %s to %s", redact(str(url)), dest)
    stream = open_stream(url)
    try:
        with TemporaryDownload(Path(dest).absolute()) as target:
            while piece := stream.read(chunk_size):
                target.write(piece)
            target.publish().close()
    except Unwritable as trouble:
        raise SourceError(f"cannot write {os.fspath(dest)!r}: {trouble}", url=str(url)) from trouble
    finally:
        stream.close()
