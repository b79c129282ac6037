"""Door: CBOR record shards, where code for webdataset 0.2 imports them from."""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.policies import Handler, reraise_exception
from webdataset.samples.opening import open_shards
from webdataset.samples.records import read_cbors
from webdataset.stages.base import expansion

__all__ = ["cbors2_to_samples", "cbors_to_samples"]


@expansion
def cbors_to_samples(source: Iterable[Any], handler: Handler = reraise_exception) -> Iterator[Any]:
    """Read samples from shards that are sequences of CBOR items.

    Flow: in shard order; one item in memory; resumed by replay.

    Args:
        source: dicts with ``url``.
        handler: asked where a shard cannot be opened or read.

    Raises:
        MissingExtra: cbor2 is not installed.
    """
    return read_cbors(open_shards(source, handler=handler), handler)


cbors2_to_samples = cbors_to_samples
