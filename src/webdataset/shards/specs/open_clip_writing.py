"""Mixes as open_clip's arguments; see :mod:`webdataset.shards.specs.open_clip` for what its weights mean.

Flows in: a mix. Flows out: the two arguments. What open_clip cannot say is refused with the reason.
"""

from webdataset.ground.errors import UsageError

from .mixes import Mix, Source


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
