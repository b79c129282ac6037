"""Compatibility import path of the shard cache; the code lives in :mod:`webdataset.caching`.

The stages of the published versions that read through a cache; they open urls by ``tariterators.url_opener``, as it is
when a shard is opened. Late-bound: replacing ``FileCache`` or ``StreamingOpen`` in this module changes how datasets
open shards, and replacing ``default_cache_dir`` or ``default_cache_size`` where, and up to which size, shards are kept.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from webdataset import tariterators
from webdataset.caching.download import check_tar_format, get_filetype
from webdataset.caching.download import get_filetype as magic_filetype
from webdataset.caching.eviction import LRUCleanup
from webdataset.caching.names import pipe_cleaner, url_to_cache_name
from webdataset.caching.shard_cache import ShardCache, download
from webdataset.core import settings
from webdataset.core.error_handlers import Handler, reraise_exception
from webdataset.core.lazy_modules import lazy_attributes
from webdataset.samples.grouping import Sample
from webdataset.samples.sample_reader import Reading
from webdataset.storage.open_url import is_local as islocal
from webdataset.storage.open_url import local_path

__all__ = [
    "FileCache", "LRUCleanup", "ShardCache", "StreamingOpen", "cached_tarfile_samples", "cached_tarfile_to_samples",
    "cached_url_opener", "check_tar_format", "download", "get_file_cached", "get_filetype", "islocal", "lru_cleanup",
    "magic_filetype", "maybe_cached_tarfile_to_samples", "pipe_cleaner", "url_to_cache_name",
]  # fmt: skip

_served = lazy_attributes(
    __name__,
    "filters gopen",
    group_by_keys="tariterators",
    obsolete="utils",
    tar_file_expander="tariterators",
    tarfile_to_samples="tariterators",
)


def __getattr__(name: str) -> Any:
    """Return a default as the environment has it now, or a name that lives elsewhere."""
    if name == "default_cache_dir":
        return settings.CACHE.get() or "./_cache"
    if name == "default_cache_size":
        size = settings.CACHE_SIZE.get()
        return 1e18 if size is None else size
    if name == "verbose_cache":
        return int(settings.VERBOSE_CACHE.get())
    return _served(name)


class StreamingOpen:
    """A stage that opens shards without a cache: ``{"url"}`` to ``{"url", "stream", "local_path"}``.

    Args:
        verbose: accepted for compatibility; ``GOPEN_VERBOSE`` logs what is opened.
        handler: asked where one cannot be opened.
    """

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:  # noqa: FBT001, FBT002
        self.verbose = verbose
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Open each shard.

        Args:
            urls: urls, or dicts with ``url``.

        Yields:
            The dicts with ``stream``, and with the path of a local file.
        """
        for shard in tariterators.url_opener(_as_shards(urls), handler=self.handler):
            yield {**shard, "local_path": local_path(shard.get("url"))}


class FileCache:
    """A stage that opens shards through a cache: ``{"url"}`` to ``{"url", "stream", "local_path"}``.

    Args:
        cache_dir: the directory, made where it is not there; None is ``default_cache_dir``.
        url_to_name: url to file name in the cache. The default keeps each url under a name of its own, and reads what
            the user put there under the shard's plain name.
        verbose: log what the cache does.
        validator: path to bool: whether a download may be kept; by default, whether it is a tar archive.
        handler: asked where one cannot be opened.
        cache_size: bound on the cache in bytes; not above 0 for none.
        cache_cleanup_interval: accepted for compatibility; the bound is kept after every download.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        url_to_name: Callable[..., str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], Any] | None = check_tar_format,
        handler: Handler = reraise_exception,
        cache_size: float = -1,
        cache_cleanup_interval: float = 30,  # noqa: ARG002
    ) -> None:
        self.handler = handler
        self.cache = _cache(cache_size, cache_dir, url_to_name, validator, verbose=verbose, complete=True)
        self.cache_dir = self.cache.folder

    def get_file(self, url: str) -> str:
        """Return the path of a file with a url's bytes: a local file itself, or the copy in the cache.

        Args:
            url: the url.

        Raises:
            SourceError: it cannot be had or kept.
            FormatError: the validator refuses it.
        """
        return self.cache.fetch(url, _source)

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Open each shard.

        Args:
            urls: urls, or dicts with ``url``.

        Yields:
            The dicts with ``stream``, and with the path of the file that it reads, if it is one.
        """
        for shard in self.cache.open_shards(_as_shards(urls), _source, self.handler):
            yield {**shard, "local_path": shard.get("__local_path__") or local_path(shard.get("url"))}


_own = (FileCache, StreamingOpen)


class Replaced:
    """A program's own ``FileCache`` or ``StreamingOpen``, where datasets expect a cache.

    Args:
        opener: ``{"url"}`` dicts to dicts with ``stream``.
    """

    def __init__(self, opener: Callable[[Iterable[dict[str, Any]]], Iterable[dict[str, Any]]]) -> None:
        self.opener = opener

    def open_shards(self, shards: Iterable[dict[str, Any]], *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        """Open each shard.

        Args:
            shards: dicts with ``url``.
        """
        return iter(self.opener(shards))


def replacement(handler: Handler, folder: str | None = None, **options: Any) -> Replaced | None:
    """Return what a program has put in the place of ``FileCache`` or, without a folder, of ``StreamingOpen``.

    Args:
        handler: asked where a shard cannot be opened.
        folder: the cache directory, or None.
        **options: further arguments of ``FileCache``.

    Returns:
        None where it is still ours.
    """
    if folder is None:
        return None if StreamingOpen is _own[1] else Replaced(StreamingOpen(handler=handler))
    return None if FileCache is _own[0] else Replaced(FileCache(folder, handler=handler, **options))


def _as_shards(urls: Iterable[Any]) -> Iterator[Any]:
    """Yield a dict for each url; anything else as it is."""
    for url in urls:
        yield {"url": url} if isinstance(url, str | os.PathLike) else url


def _source(shards: Iterable[dict[str, Any]], handler: Handler) -> Iterator[dict[str, Any]]:
    return tariterators.url_opener(shards, handler=handler)


def cached_tarfile_to_samples(  # noqa: PLR0917  upstream's signature
    handler: Handler = reraise_exception,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,  # noqa: FBT001, FBT002
    url_to_name: Callable[[str], str] | None = pipe_cleaner,
    always: bool = False,  # noqa: FBT001, FBT002
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> tariterators.TarSamples:
    """Return the stage that reads samples from a stream of shard urls, through a cache.

    Args:
        handler: asked where a shard or sample fails.
        cache_size: bound on the cache in bytes; not above 0 for none.
        cache_dir: the directory, made where it is not there; None is ``WDS_CACHE``, or ``./_cache``.
        verbose: log what the cache does.
        url_to_name: url to file name in the cache.
        always: keep copies of local files too.
        select_files: member name to bool.
        rename_files: member name to member name, applied first.
    """
    cache = _cache(cache_size, cache_dir, url_to_name, verbose=verbose, always=always)
    return tariterators.tarfile_to_samples(handler, select_files, rename_files, cache=cache)


def cached_tarfile_samples(src: Iterable[dict[str, Any]], *arguments: Any, **options: Any) -> Iterator[Sample]:
    """Read samples from a stream of shard urls; arguments as :func:`cached_tarfile_to_samples`."""
    return cached_tarfile_to_samples(*arguments, **options)(src)


cached_tarfile_samples.as_stage = cached_tarfile_to_samples  # type: ignore[attr-defined]  # used uncalled, the stage


def maybe_cached_tarfile_to_samples(  # noqa: PLR0917  upstream's signature
    src: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,  # noqa: FBT001, FBT002
    url_to_name: Callable[[str], str] | None = pipe_cleaner,
    always: bool = False,  # noqa: FBT001, FBT002
) -> Iterator[Sample]:
    """Read samples from a stream of shard urls, through a cache unless ``cache_size`` is 0.

    Args:
        src: dicts with ``url``.
        handler: asked where a shard or sample fails.
        cache_size: 0 for no cache; else as in :func:`cached_tarfile_to_samples`, and so are the rest.
        cache_dir: the directory.
        verbose: log what the cache does.
        url_to_name: url to file name.
        always: keep copies of local files too.
    """
    if cache_size == 0:
        return tariterators.tarfile_to_samples(handler)(src)
    return cached_tarfile_to_samples(handler, cache_size, cache_dir, verbose, url_to_name, always)(src)


def cached_url_opener(  # noqa: PLR0917  upstream's signature
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    url_to_name: Callable[[str], str] | None = pipe_cleaner,
    validator: Callable[[str], Any] | None = check_tar_format,
    verbose: bool = False,  # noqa: FBT001, FBT002
    always: bool = False,  # noqa: FBT001, FBT002
) -> Iterator[dict[str, Any]]:
    """Open each shard through a cache: ``{"url"}`` dicts to ``{"url", "stream"}``.

    Args:
        data: dicts with ``url``.
        handler: asked where one cannot be opened.
        cache_size: as in :func:`cached_tarfile_to_samples`, and so are the rest.
        cache_dir: the directory.
        url_to_name: url to file name.
        validator: path to bool: whether a download may be kept; by default, whether it is a tar archive.
        verbose: log what the cache does.
        always: keep copies of local files too.
    """
    cache = _cache(cache_size, cache_dir, url_to_name, validator, verbose=verbose, always=always)
    return tariterators.TarSamples(Reading(handler=handler, cache=cache)).open_shards(data)


def get_file_cached(
    spec: str,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    url_to_name: Callable[[str], str] | None = pipe_cleaner,
    verbose: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return the path of a file with a url's bytes: a local file itself, or the copy in the cache.

    Args:
        spec: the url.
        cache_size: as in :func:`cached_tarfile_to_samples`, and so are the rest.
        cache_dir: the directory.
        url_to_name: url to file name.
        verbose: log what the cache does.

    Raises:
        SourceError: it cannot be had or kept.
        FormatError: it is no tar archive.
    """
    return _cache(cache_size, cache_dir, url_to_name, verbose=verbose).fetch(spec, _source)


def lru_cleanup(
    cache_dir: str | os.PathLike[str],
    cache_size: float,
    keyfn: Callable[[str], Any] = os.path.getctime,
    verbose: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Delete the oldest files of a directory, now; arguments as :class:`LRUCleanup`."""
    LRUCleanup(cache_dir, cache_size, keyfn, verbose, interval=None).cleanup()


def _cache(
    cache_size: float,
    cache_dir: str | os.PathLike[str] | None,
    url_to_name: Callable[..., str] | None,
    validator: Callable[[str], Any] | None = None,
    *,
    verbose: bool,
    always: bool = False,
    complete: bool = False,
) -> ShardCache:
    module = sys.modules[__name__]
    folder = os.fspath(cache_dir or module.default_cache_dir)
    if cache_size < 0 and "default_cache_size" in vars(module):
        cache_size = module.default_cache_size
    Path(folder).mkdir(parents=True, exist_ok=True)
    return ShardCache(
        folder, cache_size, url_to_name, verbose=verbose, always=always, validator=validator, complete=complete
    )
