"""Opens shards one after another: ``{"url"}`` dicts become the same dicts, in the same order, with ``stream``.

While a remote shard is read, threads open the next ones (:class:`~webdataset.storage.prefetch.ShardPrefetcher`); order,
errors and their positions are those of a list that is opened one shard at a time. The list of shards is advanced by a
few more than are read, only while such a shard is read, and only from the reading thread; what the list raises is
raised when its turn comes. Local files, objects that are open and urls with a user's own opener are never prefetched.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from webdataset.core import settings
from webdataset.core.error_handlers import Handler, reraise_exception, should_continue, with_location
from webdataset.core.errors import UsageError
from webdataset.samples.grouping import Shard
from webdataset.storage.open_url import ResolvedUrl, resolve_url

if TYPE_CHECKING:
    from webdataset.storage.prefetch import ShardPrefetcher

FEWEST_BYTES = 2
_END: Any = object()


def open_shards(
    shards: Iterable[Shard],
    handler: Handler = reraise_exception,
    *,
    resolve: Callable[..., ResolvedUrl] = resolve_url,
    prefetch: int | None = None,
    **options: object,
) -> Iterator[Shard]:
    """Open each shard.

    Args:
        shards: dicts with ``url``: a str, a path, or an open file object.
        handler: asked where one cannot be opened; true continues with the next.
        resolve: says what a url leads to; called once for each shard.
        prefetch: bytes of the next shards that may be read ahead; 0 opens a shard when the one before it has ended;
            None is ``WDS_PREFETCH_BYTES``.
        **options: passed on to ``resolve``.

    Yields:
        The dicts with ``stream`` added.

    Raises:
        SourceError: what the handler does not step over.
        UsageError: ``WDS_PREFETCH_BYTES`` is no number.
    """
    if options:
        resolve = functools.partial(resolve, **options)
    most = settings.PREFETCH_BYTES.get()
    limit_bytes = most if prefetch is None else min(prefetch, most)
    first = True
    listed: Iterator[Any] = iter(shards)
    ahead: ShardPrefetcher | None = None
    try:
        while True:
            shard, resolved, task = (next(listed, _END), None, None) if ahead is None else ahead.take(_END)
            if shard is _END:
                return
            try:
                resolved = resolved or _resolve_shard(shard, resolve)
                if ahead is None and limit_bytes >= FEWEST_BYTES and resolved.remote:
                    ahead = _make_prefetcher(listed, resolve, limit_bytes)
                if ahead is None or not resolved.remote:
                    stream = resolved.open_stream()
                else:
                    stream = ahead.open(resolved, task, look=not first)
            except Exception as error:  # noqa: BLE001  the handler decides
                if not _should_continue(handler, error, shard):
                    return
            else:
                first = False
                yield {**shard, "stream": stream}
    finally:
        if ahead is not None:
            ahead.close()


def _should_continue(handler: Handler, error: Exception, shard: object) -> bool:
    url = shard.get("url") if isinstance(shard, dict) else None
    located = with_location(error, url=str(url) if url is not None else None, stage="url_opener")
    return should_continue(handler, located, "opening")


def _resolve_shard(shard: object, resolve: Callable[..., ResolvedUrl]) -> ResolvedUrl:
    if not isinstance(shard, dict) or "url" not in shard:
        raise UsageError(f"expected a shard as {{'url': …}}, got {shard!r}")
    return resolve(shard["url"])


def _make_prefetcher(shards: Iterator[Any], resolve: Callable[..., ResolvedUrl], limit_bytes: int) -> "ShardPrefetcher":
    from webdataset.storage.prefetch import ShardPrefetcher  # noqa: PLC0415  local files need none of it

    return ShardPrefetcher(shards, resolve, limit_bytes)
