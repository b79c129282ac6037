"""Door: CBOR and msgpack record shards; the CBOR names are where code for webdataset 0.2 imports them from."""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.policies import Handler, reraise_exception
from webdataset.stages.records import cbors_to_samples, msgpacks_to_samples, read_cbors

__all__ = [
    "cbor2_iterator",
    "cbor_iterator",
    "cbors2_samples",
    "cbors2_to_samples",
    "cbors_samples",
    "cbors_to_samples",
    "msgpacks_to_samples",
    "reraise_exception",
]


def cbor_iterator(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    info: Any = None,  # noqa: ARG001  accepted and not used, as ever
) -> Iterator[Any]:
    """Yield the items of opened shards.

    Args:
        data: dicts with ``url`` and ``stream``.
        handler: asked where a shard fails; true goes on with the next one.
        info: not used.
    """
    return read_cbors(data, handler)


def cbors_samples(src: Iterable[dict[str, Any]], handler: Handler = reraise_exception) -> Iterator[Any]:
    """Yield the items of shards.

    Args:
        src: dicts with ``url``.
        handler: asked where a shard cannot be opened or read; true goes on with the next one.
    """
    return cbors_to_samples(handler)(src)


cbor2_iterator, cbors2_samples, cbors2_to_samples = cbor_iterator, cbors_samples, cbors_to_samples
