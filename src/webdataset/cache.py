"""Door and hinge: keeping shards near.

The stages of webdataset 0.2 that read through a cache. They open urls by ``tariterators.url_opener``, as it is when a
shard is opened.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from . import tariterators
from .caching.cleanup import LRUCleanup
from .caching.names import pipe_cleaner
from .caching.shards import ShardCache
from .ground import settings
from .ground.policies import Handler, reraise_exception
from .samples.grouping import Sample
from .samples.reading import Reading

__all__ = [
    "LRUCleanup", "ShardCache", "cached_tarfile_samples", "cached_tarfile_to_samples", "cached_url_opener",
    "lru_cleanup", "pipe_cleaner",
]  # fmt: skip


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


def cached_url_opener(  # noqa: PLR0917  upstream's signature
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    url_to_name: Callable[[str], str] | None = pipe_cleaner,
    validator: Any = None,  # noqa: ARG001  downloads are always checked
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
        validator: not used: downloads are always checked.
        verbose: log what the cache does.
        always: keep copies of local files too.
    """
    cache = _cache(cache_size, cache_dir, url_to_name, verbose=verbose, always=always)
    return tariterators.TarSamples(Reading(handler=handler, cache=cache)).opened(data)


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
    url_to_name: Callable[[str], str] | None,
    *,
    verbose: bool,
    always: bool,
) -> ShardCache:
    folder = os.fspath(cache_dir or settings.CACHE.get() or "_cache")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return ShardCache(folder, cache_size, url_to_name, verbose=verbose, always=always)
