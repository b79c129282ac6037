"""open_clip's lists of shards: ``--train-data 'a::b' --train-data-upsampling-factors 1::2``.

Theory. open_clip draws shards, not samples: each shard of a source weighs as much as the source's factor. A source is
therefore drawn with factor x number of shards; a source of twice as many shards gives twice as much. That is what is
kept here, as weights of samples (with equally large shards the same). Its draws are with replacement; here each source
gives all its shards before it begins again.

Flows in: the two arguments. Flows out: a specification.
"""

from webdataset.ground.errors import UsageError
from webdataset.shards.expand import parts_of

from .context import Context, numbered
from .description import DatasetSpec
from .mixes import Mix, Source
from .origins import expanded
from .trees import Tree


def read(train_data: str, factors: str | None, context: Context) -> DatasetSpec:
    """Return the specification that the arguments stand for.

    Args:
        train_data: expressions of shards, joined by ``::``.
        factors: one number for each of them, joined by ``::``; None for 1 each.
        context: where they came from.

    Raises:
        UsageError: not one factor for each expression, or factors that are no positive numbers.
    """
    expressions = parts_of(train_data)
    numbers = [_factor(text) for text in factors.split("::")] if factors is not None else [1.0] * len(expressions)
    if len(numbers) != len(expressions):
        raise UsageError(f"{len(numbers)} upsampling factors for {len(expressions)} sources: give one for each")
    tree = Tree(train_data, "train_data")
    sources = []
    for expression, factor in zip(expressions, numbers, strict=True):
        shards = context.shards(tree, (expression,))
        count = sum(len(expanded(part)) for part in shards)
        sources.append(Source(shards=shards, weight=factor * count, shardshuffle=True, origin=context.origin))
    named = numbered(sources, [tree] * len(sources), context.problems)
    return DatasetSpec({"train": Mix("interleave", named, "restart")}, "open_clip", context.origin)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise UsageError(f"an upsampling factor is a number above 0, not {text!r}")
    return factor
