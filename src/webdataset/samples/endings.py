"""What is said about the end of a shard: a missing end mark, or archives joined in an odd way.

Theory. Every program that writes tar ends it with blocks of zeros. An archive that ends on a member boundary without
one was cut there, or its writer did not live to close it: nobody can tell whether its last sample is whole, also where
the file or the server vouches for its length. So it is an error, and the sample in progress is not delivered. One zero
block is enough: some programs write no second one, and some fill their last record of 10240 bytes.

Flows in: where and how the tar stream ended. Flows out: nothing, a warning, or Truncated. One judge for all readers, so
that a shard has one verdict, whether it is streamed, walked or indexed.
"""

import warnings

from webdataset.ground import errors, settings
from webdataset.ground.redaction import redacted


def judge_missing_end(url: str, offset: int, *, chosen: str | None) -> None:
    """Judge a tar stream that ended on a member boundary without an end mark.

    Args:
        url: the shard.
        offset: where it ended, in bytes.
        chosen: ``warn``, ``error``, ``ignore``; None asks ``WDS_MISSING_END``, and is an error where that is not set.

    Raises:
        Truncated: under ``error``.
    """
    message = f"the tar stream ends at byte {offset} without its end-of-archive mark: it was cut, or never finished"
    chosen = chosen or settings.MISSING_END.get()
    if chosen in (None, "error"):
        raise errors.Truncated(
            f"{message}; write it again, or accept what there is with missing_end='warn' or WDS_MISSING_END=warn",
            url=url,
            offset=offset,
        )
    if chosen != "ignore":
        warnings.warn(
            f"{redacted(url)}: {message}; its last sample may lack fields, and others may be missing behind it",
            stacklevel=3,
        )


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
