"""What is said about the end of a shard: a missing end mark, or archives joined in an odd way.

Theory. Every program that writes tar ends it with blocks of zeros. An archive that ends on a member boundary without
one was cut there, or its writer did not live to close it: nobody can tell whether its last sample is whole, also where
the file or the server vouches for its length. So it is an error, and the sample in progress is not delivered. One zero
block is enough: some programs write no second one, and some fill their last record of 10240 bytes.

Flows in: where and how the tar stream ended. Flows out: nothing, a warning, or Truncated. One judge for all readers, so
that a shard has one verdict, whether it is streamed, walked or indexed.
"""

from webdataset.ground import errors, settings
from webdataset.ground.redaction import redacted
from webdataset.ground.tracebacks import warn_user
from webdataset.tar.assembly import Assembly
from webdataset.tar.compression import Decompressor


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
        warn_user(
            f"{redacted(url)}: {message}; its last sample may lack fields, and others may be missing behind it",
        )


def warn_unusual(url: str, archive: Assembly, *, chosen: str | None) -> None:
    """Warn of what no usual writer leaves in an archive, and what other programs read differently.

    Args:
        url: the shard.
        archive: what read it, to its end.
        chosen: ``ignore`` says nothing of zero blocks.
    """
    if archive.doubt is not None and chosen != "ignore":
        offset, zeros = archive.doubt
        blocks = "a single zero block stands" if zeros == 1 else f"{zeros} zero blocks stand"
        warn_user(
            f"{redacted(url)}: {blocks} before byte {offset}, with members behind: archives were joined there with "
            "unusual padding, or members were overwritten with zeros and are lost",
        )
    if archive.global_override is not None:
        warn_user(
            f"{redacted(url)}: the global PAX header at byte {archive.global_override} gives all members after it a "
            "name or a size; it is obeyed, as GNU tar does, and others ignore it: write the shard without it",
        )


def warn_trailing(url: str, decompressor: Decompressor) -> None:
    """Warn of bytes after a compressed stream that are not part of it, and were ignored.

    Args:
        url: the shard.
        decompressor: what decompressed it, to its end.
    """
    if decompressor.trailing is not None:
        warn_user(
            f"{redacted(url)}: the {decompressor.kind} stream ends before compressed byte {decompressor.trailing}; the "
            f"{decompressor.taken - decompressor.trailing} bytes after it are ignored. If the shard was joined from "
            "several files, it is damaged there",
        )
