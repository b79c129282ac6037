"""Shards kept in a directory.

Flows in: ``{"url"}`` dicts. Flows out: the same with ``stream``, and with ``__local_path__`` where it is a file of the
cache. A shard is downloaded whole before it is read. Local files are read in place. Where the directory cannot take a
file, shards are streamed from their sources; never a sample is lost for the cache's sake.
"""

import contextlib
import logging
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.ground.redaction import redacted
from webdataset.sources.files import path_of
from webdataset.sources.open import is_local
from webdataset.sources.profiles import service_of
from webdataset.sources.rewrite import rewritten

from . import bound, names
from .content import check_tar_format, filled
from .files import CachedFile, Download, Unwritable

Source = Callable[[Iterable[dict[str, Any]], Handler], Iterable[dict[str, Any]]]
"""Shards and a handler to opened shards: what opens them where the cache does not."""

_given_up: set[str] = set()  # directories that refused a file: this process puts nothing more there
_plain: dict[str, str] = {}  # user's file to the url it was read for

log = logging.getLogger("webdataset")


@dataclass(frozen=True)
class ShardCache:
    """A directory of shards.

    A download is kept as ``name.url-HASH.tar``, or as ``url_to_name`` says. A file that the user puts there under the
    shard's plain name, where webdataset 0.2 would keep it, or where ``url_to_name`` says, is read instead of the url.

    Args:
        folder: the directory; it has to exist.
        size_bytes: bound on all files in it. Downloads that were used least recently are deleted, except open ones;
            files that users put there never are. Not above 0: no bound.
        url_to_name: url to relative path; the caller answers for it that no two shards share one.
        verbose: log every hit, download and deletion; ``WDS_VERBOSE_CACHE`` does so too.
        always: copy local files too.
        validator: path to bool, asked whether a download may be kept, instead of looking whether it is a shard.

    Raises:
        UsageError: the directory does not exist.
    """

    folder: str
    size_bytes: float = -1
    url_to_name: Callable[[str], str] | None = None
    verbose: bool = False
    always: bool = False
    validator: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        if not self.folder or not Path(self.folder).is_dir():
            raise UsageError(f"cache directory {self.folder!r} does not exist: make it first")
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))
        if self.url_to_name in (names.pipe_cleaner, names.url_to_cache_name):  # upstream's defaults
            object.__setattr__(self, "url_to_name", None)
        if self.validator is check_tar_format:
            object.__setattr__(self, "validator", None)

    def opened(
        self,
        shards: Iterable[dict[str, Any]],
        source: Source,
        handler: Handler,
        *,
        level: str | None = None,
        storage_options: Any = None,
    ) -> Iterator[dict[str, Any]]:
        """Open each shard, from the cache where it can be.

        Args:
            shards: dicts with ``url``.
            source: opens shards without the cache.
            handler: asked where one cannot be opened; true goes on with the next.
            level: the trust level that a dataset names.
            storage_options: what ``source`` opens S3 urls with: they tell one service's shards from another's.

        Yields:
            The dicts with ``stream``.

        Raises:
            WebDatasetError: what the handler does not step over.
        """
        answers = [True]

        def asked(error: Exception) -> bool:
            answers.append(bool(handler(error)))
            return answers[-1]

        for shard in shards:
            try:
                near = self._near(shard, source, level, storage_options)
            except Exception as error:  # noqa: BLE001  the handler decides
                if not handler(located(error, url=str(shard["url"]), stage="cache")):
                    return
                continue
            if near is not None:
                yield near
            else:
                yield from source([shard], asked)
            if not answers[-1]:
                return

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
        near = self._near({"url": url}, source, level)
        if near is not None:
            near["stream"].close()
            return str(near["__local_path__"])
        path = local_path(url, level=level)
        if path is None:
            raise SourceError(
                f"cannot be kept in {self.folder}: the directory takes no files, or nobody vouches that what came is "
                "whole; read it as a stream instead",
                url=str(url),
            )
        return path

    def _near(self, shard: Any, source: Source, level: str | None, options: Any = None) -> dict[str, Any] | None:
        """Return a shard opened from the cache, or None where its source has to be read."""
        url = shard.get("url") if isinstance(shard, dict) else None
        if not isinstance(url, str | os.PathLike) or url == "-":
            return None
        given = os.fsdecode(url)
        target = rewritten(given, level=level)
        if (is_local(target) or (target == given and not isinstance(url, str))) and not self.always:
            return None
        if self.url_to_name is not None:
            placed = names.chosen_names(given, self.url_to_name)
            stored = placed[-1]
        else:
            placed = names.placed_names(given)
            stored = names.stored_name(given, target, service_of(target, options))
        for name in dict.fromkeys([*placed, stored]):
            path = str(Path(self.folder, name))
            stream = self._hit(path, given, placed=name != stored and self.url_to_name is None)
            if stream is not None:
                self._tell("read from", path, given)
                return {**shard, "stream": stream, "__local_path__": path}
        if self.folder in _given_up:
            return None
        stream = self._downloaded(shard, source, stored)
        return None if stream is None else {**shard, "stream": stream, "__local_path__": stream.path}

    def _hit(self, path: str, url: str, *, placed: bool) -> CachedFile | None:
        """Open a file of the cache and note that it was used; None where there is none."""
        try:
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):
                return None
            if placed:
                _beware_of_two(path, names.canonical(names.pipe_cleaner(url)))
            stream = CachedFile(path)
        except PermissionError as error:
            self._give_up(error.strerror)
            return None
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):  # not our file
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        return stream

    def _downloaded(self, shard: dict[str, Any], source: Source, name: str) -> CachedFile | None:
        """Download a shard; None where it has to be streamed.

        Raises:
            FormatError: what came is no shard.
            SourceError: the source failed.
        """
        path, url = Path(self.folder, name), str(shard["url"])
        self._tell("download to", path, url)
        try:
            with Download(path) as download:
                for opened in source([shard], reraise_exception):
                    if not filled(download, opened["stream"], url, self.validator):
                        self._tell("nobody vouches that it is whole, not kept:", path, url)
                        return None
                    stream = download.publish()
                    self._bound(name)
                    return stream
        except Unwritable as trouble:
            self._give_up(trouble)
            return None
        raise SourceError("the url opener gave no stream")

    def _bound(self, name: str) -> None:
        """Keep to the size after a download."""
        try:
            if self.url_to_name is not None:
                bound.note(self.folder, name)
            if self.size_bytes > 0:
                bound.shrink(self.folder, self.size_bytes, verbose=self._verbose())
        except OSError as error:
            log.warning("cache: cannot clean up %s: %s", self.folder, error)

    def _verbose(self) -> bool:
        return self.verbose or settings.VERBOSE_CACHE.get()

    def _tell(self, verb: str, path: object, url: str) -> None:
        if self._verbose():
            log.warning("cache: %s %s: %s", verb, path, redacted(url))

    def _give_up(self, reason: object) -> None:
        if self.folder not in _given_up:
            _given_up.add(self.folder)
            warnings.warn(
                f"cache directory {self.folder} cannot be used: {reason}. Shards that are not in it are streamed from "
                "their sources and not kept",
                stacklevel=2,
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
    if first != url:
        warnings.warn(
            f"{path} is read for two urls, {redacted(first)} and {redacted(url)}, since both have its name. If they "
            "are two shards, rename the file or pass url_to_name",
            stacklevel=2,
        )
