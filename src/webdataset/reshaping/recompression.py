"""Writes a shard in another compression: the tar stream stays byte for byte, end mark and padding included.

The shard reader reads the shard on the way, so that a damaged one is an error, and gives no output.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from webdataset.core.errors import UsageError
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import ShardReader
from webdataset.storage.open_url import open_stream
from webdataset.storage.same_file import InputFiles, Place, find_place
from webdataset.writing.compression import ArchiveOutput, CompressedOutput, make_compressor
from webdataset.writing.outputs import open_output

_ENDING = re.compile(r"(?:\.tar(?:\.(?:gz|bz2|xz|zst))?|\.t(?:gz|bz2?|xz|zst))$", re.IGNORECASE)
KINDS = ("gz", "bz2", "xz", "zst", "none")


def make_target_name(url: str, kind: str) -> str:
    """Return the name of a shard in another compression: ``a/x.tgz`` becomes ``x.tar.zst``.

    Args:
        url: the shard.
        kind: ``gz``, ``bz2``, ``xz``, ``zst`` or ``none``.

    Raises:
        UsageError: the name does not end as shards do.
    """
    name = url.partition("?")[0].rpartition("/")[2]
    stem, count = _ENDING.subn("", name)
    if not count or not stem:
        raise UsageError("the name does not end with .tar, .tar.gz, .tgz or such, so that no new name follows", url=url)
    return f"{stem}.tar" if kind == "none" else f"{stem}.tar.{kind}"


def refuse_replacements(urls: Sequence[str], targets: Sequence[str]) -> None:
    """Refuse targets that would replace another shard than their own, or each other, by a link in their folder.

    Args:
        urls: the shards.
        targets: one for each.

    Raises:
        UsageError: it says which.
    """
    inputs = InputFiles(urls)
    places: dict[Place, str] = {}
    for url, target in zip(urls, targets, strict=True):
        if inputs.find(target) not in (None, url):
            inputs.refuse(target)
        first = places.setdefault(find_place(target), target)
        if first != target:
            raise UsageError(f"this is the same file as {first}, by a link: remove the link", url=target)


class _CopyWatch:
    """Hands the tar stream that a reader passes to an output."""

    def __init__(self, output: ArchiveOutput) -> None:
        self._output = output
        self.size_bytes = 0

    def feed(self, piece: bytes, offset: int) -> None:  # noqa: ARG002  a watch's signature
        """Write the next bytes."""
        self._output.write((piece,), len(piece))
        self.size_bytes += len(piece)

    def finish(self, length: int | None, compression: str | None) -> None:
        """Do nothing at the end of the shard."""


def recompress_shard(
    url: str, target: Any, kind: str, *, level: int | None = None, reading: Reading | None = None
) -> int:
    """Write a shard in another compression.

    Args:
        url: the shard.
        target: a path, a url or a file object.
        kind: ``gz``, ``bz2``, ``xz``, ``zst`` or ``none``.
        level: of the compression.
        reading: the rules of reading.

    Returns:
        Bytes of the tar stream.

    Raises:
        SourceError: the shard cannot be read, or the target cannot be written.
        TarError: the shard is damaged; no target appears.
        UsageError: a kind or level that there is not.
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    engine = None if kind == "none" else make_compressor(kind, level)
    rules = reading or Reading()
    stream = open_stream(url, level=rules.trust, storage_options=rules.storage_options)
    try:
        plain = open_output(target)
    except BaseException:  # whatever it is: the stream is closed
        stream.close()
        raise
    output = plain if engine is None else CompressedOutput(plain, engine)
    watch = _CopyWatch(output)
    reader: ShardReader | None = None
    try:
        reader = ShardReader({"url": url, "stream": stream}, dataclasses.replace(rules, observer=lambda *_: watch))
        for _ in reader.member_lists():
            reader.scanner.payloadless = []
        output.commit()
    except BaseException as error:  # whatever it is: nothing may be left over
        output.abort()
        if reader is not None and isinstance(error, Exception):
            raise reader.explain_error(error) from error.__cause__
        raise
    finally:
        stream.close()
    return watch.size_bytes
