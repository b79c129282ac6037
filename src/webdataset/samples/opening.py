"""Shard urls to opened shards, one at a time.

Flows in: ``{"url"}`` dicts. Flows out: the same dicts with ``stream``. A shard is opened when the one before it has
been read.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.sources.open import open_stream


def open_shards(
    shards: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    opener: Callable[..., Any] = open_stream,
    **kw: Any,
) -> Iterator[dict[str, Any]]:
    """Open each shard.

    Args:
        shards: dicts with ``url``: a str, a path, or an open file object.
        handler: asked where one cannot be opened; true goes on with the next.
        opener: url to stream.
        **kw: passed on to ``opener``.

    Yields:
        The dicts with ``stream`` added.

    Raises:
        SourceError: what the handler does not step over.
    """
    for shard in shards:
        try:
            if not isinstance(shard, dict) or "url" not in shard:
                raise UsageError(f"expected a shard as {{'url': …}}, got {shard!r}")  # noqa: TRY301  to the handler
            stream = opener(shard["url"], **kw)
        except Exception as error:  # noqa: BLE001  the handler decides
            url = shard.get("url") if isinstance(shard, dict) else None
            if not handler(located(error, url=str(url) if url is not None else None, stage="url_opener")):
                return
        else:
            yield {**shard, "stream": stream}
