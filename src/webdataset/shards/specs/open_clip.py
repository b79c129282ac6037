"""open_clip's lists of shards: ``--train-data 'a::b' --train-data-upsampling-factors 1::2``.

Theory. open_clip draws shards, not samples: each shard of a source weighs as much as the source's factor. A source is
therefore drawn with factor x number of shards; a source of twice as many shards gives twice as much. That is what is
kept here, as weights of samples (with equally large shards the same). Its draws are with replacement; here each source
gives all its shards before it begins again.

Flows in: the two arguments. Flows out: a specification; and back.
"""

from webdataset.ground.errors import UsageError

from .context import Context, numbered
from .description import DatasetSpec, Mix, Source
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
    expressions = train_data.split("::")
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


def exported(mix: Mix) -> dict[str, str]:
    """Return a mix as open_clip's arguments.

    Args:
        mix: an interleaving of plain lists of shards.

    Returns:
        ``train_data`` and ``train_data_upsampling_factors``, the least factor 1.

    Raises:
        UsageError: something that open_clip cannot say; the message says what.
    """
    _need(mix.how == "interleave" and mix.exhausted == "restart", f"mix: {mix.how} with exhausted: {mix.exhausted}")
    factors, expressions = [], []
    plain = Source()
    for source, share in zip(mix.sources, mix.shares(), strict=True):
        for name in ("mix", "repeat", "choose", "resample", "subset", "subsample", "rename", "keep", "extensions",
                     "tags", "decode", "transforms", "preshuffle", "shuffle", "cache"):  # fmt: skip
            _need(getattr(source, name) == getattr(plain, name), f"'{name}' of {source.name!r}")
        _need(share > 0, f"the weight 0 of {source.name!r}")
        _need(
            len(source.shards) == 1, f"the {len(source.shards)} expressions of {source.name!r}: write one with braces"
        )
        factors.append(share / len(source.urls()))
        expressions.append(source.shards[0])
    least = min(factors)
    return {
        "train_data": "::".join(expressions),
        "train_data_upsampling_factors": "::".join(f"{factor / least:.10g}" for factor in factors),
    }


def _need(sayable: bool, what: str) -> None:  # noqa: FBT001  a condition
    if not sayable:
        raise UsageError(f"open_clip cannot say {what}: take it out of the specification first")
