"""Shards kept in a directory.

Flows in: ``{"url"}`` dicts. Flows out: the same with ``stream``, and with ``__local_path__`` where it is, or becomes, a
file of the cache. A shard is read while it comes; all processes of a host together fetch it once (``obtaining`` tells
how). Local files are read in place. Where the directory cannot take a file, shards are streamed from their sources;
never a sample is lost for the cache's sake.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import SourceError, UsageError, said
from webdataset.ground.policies import Handler, located
from webdataset.ground.redaction import redacted
from webdataset.ground.skips import goes_on
from webdataset.ground.tracebacks import warn_user
from webdataset.sources.files import path_of
from webdataset.sources.open import is_local
from webdataset.sources.rewrite import rewritten
from webdataset.sources.stores import service_of

from . import freshness, names
from .ahead import Coming
from .content import check_tar_format
from .eviction import Room, tidy
from .finding import Source
from .growing import NearStream
from .obtaining import Wanted
from .places import Place

_given_up: set[str] = set()  # directories that refused a file: this process puts nothing more there
_plain: dict[str, str] = {}  # user's file to the url it was read for; to nothing once somebody was told of a second

log = logging.getLogger("webdataset")


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
    """

    folder: str
    size_bytes: float = -1
    url_to_name: Callable[[str], str] | None = None
    verbose: bool = False
    always: bool = False
    validator: Callable[[str], Any] | None = None
    complete: bool = False
    revalidate: str | None = None

    def __post_init__(self) -> None:
        if not self.folder:
            raise UsageError("the cache directory has an empty name")
        try:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the cache directory {self.folder!r}: {said(error)}") from error
        number = hasattr(self.size_bytes, "__float__") and not isinstance(self.size_bytes, bool)
        if not number or not (self.size_bytes > 0 or self.size_bytes <= 0):  # the latter: NaN
            raise UsageError(f"cache_size is a number of bytes, not {self.size_bytes!r}")
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))
        if self.url_to_name in (names.pipe_cleaner, names.url_to_cache_name):  # upstream's defaults
            object.__setattr__(self, "url_to_name", None)
        if self.validator is check_tar_format:
            object.__setattr__(self, "validator", None)
        if self.revalidate is not None:
            freshness.policy_named(self.revalidate)

    def opened(
        self,
        shards: Iterable[dict[str, Any]],
        source: Source,
        handler: Handler,
        *,
        level: str | None = None,
        storage_options: Any = None,
        prefetch: int | None = 0,
        archives: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Open each shard, from the cache where it can be.

        Args:
            shards: dicts with ``url``.
            source: opens shards without the cache.
            handler: asked where one cannot be opened; true goes on with the next.
            level: the trust level that a dataset names.
            storage_options: what ``source`` opens urls with: they tell one service's shards from another's.
            prefetch: 0: open nothing before its turn; anything else, and None where ``WDS_PREFETCH_BYTES`` is not 0:
                bring the next two shards while one is read. ``source`` is called in threads then.
            archives: whether shards are tar archives: what does not begin as one is an error, and not kept. Others
                are kept where their length is told.

        Yields:
            The dicts with ``stream``.

        Raises:
            WebDatasetError: what the handler does not step over.
        """
        answers = [True]

        def asked(error: Exception) -> bool:
            answers.append(bool(handler(error)))
            return answers[-1]

        opening = functools.partial(self._near, source=source, level=level, options=storage_options, archives=archives)
        coming = Coming(iter(shards), opening, 0 if self.complete or self.validator else prefetch, level)
        try:
            while (place := coming.next()) is not None:
                shard = place.shard
                try:
                    near = (place.begun and place.begun.taken()) or opening(shard)
                except Exception as error:  # noqa: BLE001  the handler decides
                    if not goes_on(handler, located(error, url=str(shard["url"]), stage="cache"), "opening"):
                        return
                    continue
                if near is None:
                    yield from source([shard], asked)
                else:
                    coming.watch(near["stream"])
                    yield near
                if not answers[-1]:
                    return
        finally:
            coming.close()

    def fetched(self, url: str | os.PathLike[str], source: Source, *, level: str | None = None) -> str:
        """Return the path of a file with a url's bytes: a local file itself, or the copy in the cache.

        Args:
            url: what to fetch.
            source: opens shards without the cache.
            level: the trust level in force.

        Raises:
            SourceError: it cannot be had, or the directory cannot keep it.
            FormatError: what came is no shard.
        """
        near = self._near({"url": url}, source, level, complete=True)
        if near is not None:
            near["stream"].close()
        if near is not None and "__local_path__" in near:
            return str(near["__local_path__"])
        path = local_path(url, level=level)
        if path is None:
            raise SourceError(
                f"cannot be kept in {self.folder}: the directory takes no files, or nobody vouches that what came is "
                "whole; read it as a stream instead",
                url=str(url),
            )
        return path

    def _near(
        self,
        shard: Any,
        source: Source,
        level: str | None,
        options: Any = None,
        *,
        complete: bool = False,
        archives: bool = True,
    ) -> dict[str, Any] | None:
        """Return a shard opened from the cache, or None where its source has to be read."""
        url = shard.get("url") if isinstance(shard, dict) else None
        if not isinstance(url, str | os.PathLike) or url == "-":
            return None
        given = os.fsdecode(url)
        target = rewritten(given, level=level)
        if (is_local(target) or (target == given and not isinstance(url, str))) and not self.always:
            return None
        wanted = self._wanted({**shard, "url": given}, target, source, options)
        wanted.shard, wanted.complete, wanted.archives = shard, complete or self.complete, archives
        stream = self._placed(wanted, given) or self._obtained(wanted)
        if stream is None:
            return None
        return {**shard, "stream": stream, **({"__local_path__": stream.path} if stream.kept else {})}

    def _wanted(self, shard: dict[str, Any], target: str, source: Source, options: Any) -> Wanted:
        given = shard["url"]
        own = Place(self.folder, names.stored_name(given, target, service_of(target, options)))
        chosen = None if self.url_to_name is None else names.chosen_names(given, self.url_to_name)[-1]
        return Wanted(
            place=own if chosen is None else Place(self.folder, chosen),
            shard=shard,
            source=source,
            target=target,
            options=options,
            room=Room(self.folder, self.size_bytes, self._verbose()),
            complete=self.complete,
            validator=self.validator,
            complain=self._give_up,
            other=None if chosen is None else own,
        )

    def _placed(self, wanted: Wanted, url: str) -> NearStream | None:
        """Open what the user has put into the directory for a url."""
        if self.url_to_name is None:
            candidates = names.placed_names(url)
        else:
            candidates = names.chosen_names(url, self.url_to_name)[:-1]
        for name in dict.fromkeys(candidates):
            if name == wanted.place.name:
                continue
            stream = self._hit(dataclasses.replace(wanted, place=Place(self.folder, name)), url)
            if stream is not None:
                if self.url_to_name is None:
                    _beware_of_two(stream.path, names.canonical(names.pipe_cleaner(url)))
                return stream
        return None

    def _obtained(self, wanted: Wanted) -> Any:
        """Open a download, or make one; None where the source has to be read."""
        url = wanted.url
        tidy(self.folder)
        wanted.avoid_another()
        wanted.room.trim(wanted.place)
        policy = freshness.policy_named(self.revalidate)
        wanted.now = freshness.answer_about(wanted.place, wanted.target, wanted.options, policy)
        stream = self._hit(wanted, url)
        if stream is not None or self.folder in _given_up:
            return stream
        self._tell("download to", wanted.place.final, url)
        obtained = wanted.obtained()
        if obtained is None or not obtained.kept:
            self._tell("not kept:", wanted.place.final, url)
        return obtained

    def _hit(self, wanted: Wanted, url: str) -> NearStream | None:
        try:
            stream = wanted.opened_whole()
        except PermissionError as error:
            self._give_up(error.strerror)
            return None
        if stream is not None:
            self._tell("read from", stream.path, url)
        return stream

    def _verbose(self) -> bool:
        return self.verbose or settings.VERBOSE_CACHE.get()

    def _tell(self, verb: str, path: object, url: str) -> None:
        if self._verbose():
            log.warning("cache: %s %s: %s", verb, path, redacted(url))

    def _give_up(self, reason: object) -> None:
        if self.folder not in _given_up:
            _given_up.add(self.folder)
            warn_user(
                f"cache directory {self.folder} cannot be used: {reason}. Shards that are not in it are streamed from "
                "their sources and not kept",
            )


def local_path(url: Any, *, level: str | None = None) -> str | None:
    """Return the path of a local file that a url names, or None for anything else.

    Args:
        url: a url or path.
        level: the trust level in force.
    """
    if not isinstance(url, str | os.PathLike) or url == "-":
        return None
    given = os.fsdecode(url)
    target = rewritten(given, level=level)
    if target == given and not isinstance(url, str):
        return given
    if not is_local(target):
        return None
    return path_of(target) if target[:5].lower() == "file:" else target


def _beware_of_two(path: str, url: str) -> None:
    """Warn where one user's file is read for two urls."""
    first = _plain.setdefault(path, url)
    if first not in ("", url):
        _plain[path] = ""
        warn_user(
            f"{path} is read for two urls, {redacted(first)} and {redacted(url)}, since both have its name. If they "
            "are two shards, rename the file or pass url_to_name",
        )
