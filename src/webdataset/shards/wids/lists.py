"""The shards of a wids index as the first stage of a pipeline.

Flows in: an index. Flows out, on each pass: ``{"url": url}`` for one shard after another.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.errors import NoShards
from webdataset.ground.redaction import redacted
from webdataset.shards.lists import Shard, ShardList

from .document import WidsIndex
from .reading import read_wids_json


class WidsShardList(ShardList):
    """The shards of an index, in its order, the same in every pass.

    Args:
        source: an index as for :func:`~webdataset.shards.wids.reading.read_wids_json`, or a :class:`WidsIndex`.
        base: what relative urls of the index are joined to, in place of its own.
        trust: ``full`` lets an index from the network name commands and local files.

    Attributes:
        index: the index.
        urls: the shards' urls.
        nsamples: number of samples in all shards, as the index says.

    Raises:
        NoShards: an index without shards.
        NotFound: no such index.
        FormatError: it is no index.
        UsageError: it names what it may not name.
    """

    def __init__(self, source: Any, *, base: str | None = None, trust: str | None = None) -> None:
        self.index = source if isinstance(source, WidsIndex) else read_wids_json(source, base=base, trust=trust)
        self.urls = self.index.urls
        self.nsamples = self.index.nsamples
        if not self.urls:
            raise NoShards("an index without shards", url=self.index.place)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.urls)

    def __repr__(self) -> str:
        place = redacted(self.index.place or "")
        return f"{type(self).__name__}({place!r}, {len(self.urls)} shards, {self.nsamples} samples)"

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield each shard once."""
        for url in self.urls:
            yield {"url": url}
