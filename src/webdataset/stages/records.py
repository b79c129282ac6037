"""Record shards as a stage: shards of CBOR items in, the items out.

Flows in: ``{"url"}`` dicts. Flows out: one item after the other, whatever it is. Never takes a cut shard for a whole
one.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.policies import Handler, reraise_exception
from webdataset.samples.opening import open_shards
from webdataset.samples.records import read_cbors

from .base import expansion


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
