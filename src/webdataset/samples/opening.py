"""Shard urls to opened shards, one after the other.

Flows in: ``{"url"}`` dicts. Flows out: the same dicts with ``stream``. While a shard is read that lies on another
machine or behind a command, the next ones are opened already (``upcoming``); order, errors and their places are those
of a list that is opened one at a time.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.ground.skips import goes_on
from webdataset.sources.ahead import AheadStream
from webdataset.sources.ahead_filling import Filling
from webdataset.sources.ahead_list import Next
from webdataset.sources.open import open_stream

from .upcoming import Upcoming


def open_shards(
    shards: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    opener: Callable[..., Any] = open_stream,
    *,
    prefetch: int | None = None,
    **kw: Any,
) -> Iterator[dict[str, Any]]:
    """Open each shard.

    Args:
        shards: dicts with ``url``: a str, a path, or an open file object.
        handler: asked where one cannot be opened; true goes on with the next.
        opener: url to stream; only ours is called in threads.
        prefetch: bytes of the next shards that may be read ahead; 0 opens a shard when the one before it has ended;
            None is ``WDS_PREFETCH_BYTES``.
        **kw: passed on to ``opener``.

    Yields:
        The dicts with ``stream`` added.

    Raises:
        SourceError: what the handler does not step over.
    """
    ours = getattr(opener, "__module__", "").startswith("webdataset.")
    opened = functools.partial(opener, **kw)
    coming = Upcoming(iter(shards), opened, prefetch if ours else 0, kw.get("trust", kw.get("level")))
    first = True
    try:
        while (place := coming.next()) is not None:
            shard = place.shard
            try:
                if not isinstance(shard, dict) or "url" not in shard:
                    raise UsageError(f"expected a shard as {{'url': …}}, got {shard!r}")  # noqa: TRY301  to the handler
                ahead = coming.opens_ahead(shard)
                if place.begun is not None:
                    place.begun.claim()
                if ahead and not first:
                    coming.look()
                stream = _taken(place, opened, coming) if ahead else opened(shard["url"])
            except Exception as error:  # noqa: BLE001  the handler decides
                url = shard.get("url") if isinstance(shard, dict) else None
                told = located(error, url=str(url) if url is not None else None, stage="url_opener")
                if not goes_on(handler, told, "opening"):
                    return
            else:
                first = False
                yield {**shard, "stream": stream}
    finally:
        coming.close()


def _taken(place: Next[Filling], opened: Callable[[Any], Any], coming: Upcoming) -> Any:
    """Return the stream of a shard that may have been opened ahead of its turn.

    One that could not be opened then is opened now: whatever it says now is what it says.
    """
    began = time.monotonic()
    filling, stream = place.begun, None
    if filling is not None:
        stream = filling.take()
        coming.pace.latency_seconds = filling.latency_seconds or coming.pace.latency_seconds
        if stream is None:
            filling.release()
            filling = None
    if stream is None:
        stream = opened(place.shard["url"])
    ended = time.monotonic()
    coming.pace.note(began, began, ended, 0)
    return AheadStream(stream, coming.pace, coming.look, began, filling)
