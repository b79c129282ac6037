"""Writes raw samples to one shard, or to numbered ones: header blocks and payloads as they stood where they came from.

A shard appears under its name when it is complete, as for every writer of this library. A pattern such as
``out-%06d.tar`` begins the next shard when the present one has so many samples or would exceed so many bytes.

Readers take members of one key that stand next to each other for one sample: two samples of one key are never written
so.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, ClassVar, Self

from webdataset.core.errors import SampleError, UsageError
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.samples.raw_samples import RawMember, RawSample
from webdataset.tar.builder import END_MARK
from webdataset.writing.compression import CompressedOutput, choose_compression, make_compressor
from webdataset.writing.outputs import open_output
from webdataset.writing.tar_writer import GATHERED_BYTES, GATHERED_PIECES, ShardOutput

_NUMBER = re.compile(r"%0?(\d*)d")
_MOST_DIGITS = 20


def name_numbered(target: str, number: int) -> str | None:
    """Return the name of a numbered file; None where the target is no pattern.

    Args:
        target: a pattern with one ``%d`` such as ``out-%06d.tar``, or a name.
        number: of the file, from 0.

    Raises:
        UsageError: a pattern with several numbers, or with a number that is wider than 20 digits.
    """
    numbers = _NUMBER.findall(target)
    if len(numbers) > 1:
        raise UsageError(f"the pattern {target!r} has several numbers: write one, such as out-%06d.tar")
    # of a longer width, the name alone may take all memory; int() refuses thousands of digits
    if numbers and (len(width := numbers[0].lstrip("0")) > 2 or int(width or 0) > _MOST_DIGITS):
        raise UsageError(
            f"the pattern {target!r} asks for a number of more than {_MOST_DIGITS} digits: write fewer, such as %06d"
        )
    return _NUMBER.sub(lambda found: found[0] % number, target) if numbers else None


class RawShardWriter(ShardOutput):
    """A writer of one shard.

    Args:
        target: a path, a url, ``-`` or a file object.
        overwrite: replace a local file that is there already.
        compress: ``gz``, ``bz2``, ``xz``, ``zst``; False for none; None goes by the name.
        level: of the compression.

    Attributes:
        samples: how many have been written.

    Raises:
        UsageError: an unknown compression.
        AlreadyExists: a file is there, and ``overwrite`` is false.
        SourceError: the target cannot be opened.
    """

    _end: ClassVar[bytes] = END_MARK

    def __init__(
        self, target: Any, *, overwrite: bool = True, compress: bool | str | None = None, level: int | None = None
    ) -> None:
        self.url = target if isinstance(target, str) else None
        kind = choose_compression(compress, self.url)
        engine = make_compressor(kind, level) if kind else None
        output = open_output(target, overwrite=overwrite)
        self.stream = output.stream
        self.samples = 0
        self._begin(output if engine is None else CompressedOutput(output, engine))

    def write_members(self, members: Iterable[RawMember]) -> None:
        """Write some files.

        Args:
            members: as they stand.

        Raises:
            SourceError: the output failed.
        """
        for member in members:
            self._pieces += member.pieces()
            self._gathered += member.size_bytes
            if self._gathered >= GATHERED_BYTES or len(self._pieces) >= GATHERED_PIECES:
                self._hand_on()

    def write(self, sample: RawSample) -> None:
        """Write a sample.

        Args:
            sample: as it stands.

        Raises:
            SourceError: the output failed.
        """
        self.write_members(sample.members)
        self.samples += 1


class _Nowhere:
    """A file object that forgets what is written to it."""

    def write(self, content: Any) -> int:
        """Take bytes; return how many."""
        return len(content)


class RawShardSeries:
    """A writer of one shard, or of numbered shards where the target is a pattern.

    Args:
        target: ``out.tar``, ``-``, a url, or a pattern with one ``%d`` such as ``out-%06d.tar``.
        max_samples: samples in a shard of a pattern; None for no bound.
        max_bytes: bytes of a shard of a pattern before compression, end mark included; a single larger sample gets a
            shard of its own.
        overwrite: replace what is there already.
        compress: as for :class:`RawShardWriter`.
        level: of the compression.
        check: called with the name of each shard before it is opened.
        completed: called with the name of each shard when it is complete.
        dry_run: write nothing, but count as if.

    Attributes:
        shards: the names of the shards that are complete, and their samples.
        samples: how many have been written.

    Raises:
        UsageError: bounds without a pattern, or a pattern with several numbers.
    """

    def __init__(
        self,
        target: str,
        *,
        max_samples: int | None = None,
        max_bytes: int | None = None,
        overwrite: bool = True,
        compress: bool | str | None = None,
        level: int | None = None,
        check: Callable[[str], None] = lambda _: None,
        completed: Callable[[str], None] | None = None,
        dry_run: bool = False,
    ) -> None:
        self.numbered = name_numbered(target, 0) is not None
        if (max_samples or max_bytes) and not self.numbered:
            raise UsageError(f"several shards need a pattern such as out-%06d.tar for their names, not {target!r}")
        self.target = target
        self.shards: list[tuple[str, int]] = []
        self.samples = 0
        self._bounds = max_samples, max_bytes
        self._options: dict[str, Any] = {"overwrite": overwrite, "compress": compress, "level": level}
        self._check = check
        self._completed = completed
        self._dry_run = dry_run
        self._writer: RawShardWriter | None = None
        # of what was written last to the present shard
        self._last_key: str | None = None
        self.check_next()

    def _name(self) -> str:
        return name_numbered(self.target, len(self.shards)) or self.target

    def check_next(self) -> None:
        """Check that the next shard may be written."""
        self._check(self._name())

    def write(self, sample: RawSample) -> None:
        """Write a sample.

        Args:
            sample: as it stands.

        Raises:
            SampleError: the sample before it in this shard has the same key.
            SourceError: the output failed.
        """
        writer = self._writer
        if writer is not None and self._is_full(writer, sample):
            self.end_shard()
            writer = None
        if sample.key == self._last_key:
            raise _same_key_error(sample.key, sample.url)
        (writer or self._open()).write(sample)
        self._last_key = sample.key
        self.samples += 1

    def write_members(self, members: Iterable[RawMember]) -> None:
        """Write files to the present shard; neighbours of one key count as a sample.

        Args:
            members: as they stand in one shard.

        Raises:
            SampleError: the last sample before them has the key of their first.
            SourceError: the output failed.
        """
        writer = self._writer or self._open()
        writer.write_members(self._check_border(members, writer))

    def _check_border(self, members: Iterable[RawMember], writer: RawShardWriter) -> Iterator[RawMember]:
        first = True
        for member in members:
            key = base_plus_ext(member.name)[0]
            if key is not None and not is_meta(member.name):
                if key != self._last_key:
                    writer.samples += 1
                    self.samples += 1
                elif first:
                    raise _same_key_error(key, None)
                first, self._last_key = False, key
            yield member

    def _is_full(self, writer: RawShardWriter, sample: RawSample) -> bool:
        most, most_bytes = self._bounds
        if most is not None and writer.samples >= most:
            return True
        end = len(END_MARK)
        return most_bytes is not None and writer.samples > 0 and writer.offset + sample.size_bytes + end > most_bytes

    def _open(self) -> RawShardWriter:
        name = self._name()
        if self.shards:
            self._check(name)
        target, options = (_Nowhere(), {}) if self._dry_run else (name, self._options)
        self._writer = RawShardWriter(target, **options)
        return self._writer

    def end_shard(self) -> None:
        """Complete the present shard; the next sample begins another."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._last_key = None
            name = self._name()
            writer.close()
            self.shards.append((name, writer.samples))
            if self._completed is not None:
                self._completed(name)

    def close(self) -> None:
        """Complete the last shard; an empty one where no sample came and the target is no pattern."""
        if self._writer is None and not self.shards and not self.numbered:
            self._open()
        self.end_shard()

    def abort(self) -> None:
        """Give up the present shard; those that are complete stay."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the last shard, or give it up if an exception passes."""
        if kind is None:
            self.close()
        else:
            self.abort()


def _same_key_error(key: str, url: str | None) -> SampleError:
    return SampleError(
        "two samples of one key would stand next to each other, and be read as one: give the samples new keys "
        "(--rekey)",
        key=key,
        url=url,
    )


def write_evenly(samples: Iterable[RawSample], total: int, shards: int, series: RawShardSeries) -> None:
    """Write samples to so many shards, in their order, whose counts differ by at most one.

    Args:
        samples: as they stand.
        total: how many there are.
        shards: how many shards to write; where there are fewer samples, the last ones are empty.
        series: what they are written to; its target is a pattern.

    Raises:
        UsageError: there are more or fewer samples than ``total``.
    """
    taken = 0
    iterator = iter(samples)
    for shard in range(shards):
        series.write_members(())
        for _ in range(total * shard // shards, total * (shard + 1) // shards):
            sample = next(iterator, None)
            if sample is None:
                raise UsageError(f"{total} samples were counted, and there are {taken}: the shards have changed")
            series.write(sample)
            taken += 1
        if shard == shards - 1 and next(iterator, None) is not None:
            raise UsageError(f"{total} samples were counted, and there are more: the shards have changed")
        series.end_shard()
