"""wids shard indexes as specifications and as sources.

Flows in: an index's url, or its document. Flows out: sources with known numbers of samples. Where the datasets of an
index have weights they are interleaved by them; otherwise they stand one behind the other, as ``ShardListDataset`` has
them.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.shards import places
from webdataset.shards.wids.document import WidsIndex, WidsShard
from webdataset.shards.wids.reading import read_wids_json

from .context import Context
from .description import DatasetSpec
from .mixes import Mix, Source
from .trees import Tree


def wids_source(made: Source, tree: Tree, name: str, context: Context) -> Source:
    """Return a source with the shards of an index.

    Args:
        made: the source without shards.
        tree: where the index is named.
        name: its url or path.
        context: the specification.
    """
    url = context.place_of(tree, name)
    shards = context.attempt(tree, lambda: _index(url, context).shards) if url is not None else None
    if not shards:
        return made
    return _of_shards(made, shards, tree, context)


def _of_shards(made: Source, shards: Sequence[WidsShard], tree: Tree, context: Context) -> Source:
    sizes = [shard.filesize for shard in shards]
    nbytes = sum(size for size in sizes if size is not None) if None not in sizes else None
    urls = context.taken(tree, (shard.url for shard in shards))
    nsamples = sum(shard.nsamples for shard in shards)
    return replace(made, shards=urls, nsamples=nsamples, nbytes=nbytes)


def read(tree: Tree, context: Context, document: Any) -> DatasetSpec:
    """Return the specification that an index stands for.

    Args:
        tree: the whole document.
        context: where it came from.
        document: what to read the index from: its url, or the document itself.

    Raises:
        FormatError: it is no index.
        UsageError: it names what it may not.
    """
    shards = _index(document, context, base=_base(document, context)).shards
    sources, weighted = [], False
    for (name, weight), group in groupby(shards, key=lambda shard: (shard.dataset, shard.weight)):
        part = _of_shards(Source(name=name or "", weight=weight, origin=context.origin), list(group), tree, context)
        weighted = weighted or weight is not None
        sources.append(part)
    named = tuple(replace(part, name=_distinct(part.name, n, sources)) for n, part in enumerate(sources))
    if not named:
        raise UsageError("an index without shards")
    made = Mix("interleave", named, "restart") if weighted else Mix("concat", named, "drop")
    return DatasetSpec({"train": made}, "wids", context.origin)


def _index(source: Any, context: Context, base: str | None = None) -> WidsIndex:
    """Read an index; one that a specification from the network names, or is, gets no more for being trusted."""
    network = context.origin.network
    trust = "safe" if network and context.trust == "full" else context.trust
    return read_wids_json(source, base=base, trust=trust, network=network)


def _distinct(name: str, number: int, sources: Sequence[Source]) -> str:
    alone = name and sum(source.name == name for source in sources) == 1
    return name if alone else f"{name or 'source'}-{number}"


def _base(document: Any, context: Context) -> str | None:
    """Return what the urls of an index that stands within a specification are relative to; None: itself."""
    if not isinstance(document, dict) or not context.origin.base:
        return None
    own = document.get("base")
    return places.joined(context.origin.base, own) if isinstance(own, str) else context.origin.base
