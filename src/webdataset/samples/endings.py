"""What is said about the end of a shard: a missing end mark, or archives joined in an odd way.

Flows in: where and how the tar stream ended. Flows out: nothing, a warning, or Truncated. One judge for all readers, so
that a shard has one verdict, whether it is streamed, walked or indexed.
"""

import warnings

from webdataset.ground import errors, settings
from webdataset.ground.redaction import redacted


def judge_missing_end(url: str, offset: int, *, chosen: str | None, known: bool) -> None:
    """Judge a tar stream that ended on a member boundary without an end mark.

    Args:
        url: the shard.
        offset: where it ended, in bytes.
        chosen: ``warn``, ``error``, ``ignore``; None asks ``WDS_MISSING_END``, then ``known``.
        known: whether the source knew its length and has given all of it.

    Raises:
        Truncated: under ``error``, and by default where the length is unknown.
    """
    message = (
        f"the tar stream ends at byte {offset} without its end-of-archive mark: whole members may be missing behind it"
    )
    chosen = chosen or settings.MISSING_END.get()
    if chosen == "error" or (chosen is None and not known):
        raise errors.Truncated(f"{message}; pass missing_end='warn' to accept such shards", offset=offset)
    if chosen != "ignore":
        warnings.warn(f"{redacted(url)}: {message}", stacklevel=3)


def tell_doubt(url: str, offset: int, zeros: int, *, chosen: str | None) -> None:
    """Warn of zero blocks inside a shard that no usual writer leaves.

    Args:
        url: the shard.
        offset: where members go on behind them, in bytes.
        zeros: how many blocks.
        chosen: ``ignore`` says nothing.
    """
    if chosen != "ignore":
        warnings.warn(
            f"{redacted(url)}: {zeros} zero blocks stand before byte {offset}, with members behind them: "
            "archives were joined there with unusual padding, or members were overwritten with zeros and are lost",
            stacklevel=3,
        )
