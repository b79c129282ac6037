"""The files of a task: its inputs, checked to be those that were planned, and its output, with their digests."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice

from webdataset.cluster.shard_jobs import InputPart, InputShard
from webdataset.cluster.stored_files import DIGEST_BYTES
from webdataset.core.errors import ShardChanged
from webdataset.samples.raw_samples import RawSample, RawSamples
from webdataset.samples.sample_reader import Reading
from webdataset.storage.open_url import local_path, resolve_url
from webdataset.storage.streams import Stream, stream_identity
from webdataset.writing.local_file import Buffer, LocalFileOutput
from webdataset.writing.outputs import BorrowedOutput, open_output

_PIECE_BYTES = 1 << 20


class DigestedOutput(BorrowedOutput):
    """The output of a shard, and the size and digest of what was written to it.

    Args:
        url: where it is written.
        overwrite: replace a local file that is there already.

    Attributes:
        size: bytes written so far.

    Raises:
        SourceError: it cannot be opened.
    """

    def __init__(self, url: str, *, overwrite: bool) -> None:
        self._inner = open_output(url, overwrite=overwrite or local_path(url) is None)
        super().__init__(self._inner.stream)
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.size = 0

    def write(self, pieces: Sequence[Buffer], size: int) -> None:
        """Write pieces.

        Args:
            pieces: what to write, in order.
            size: sum of their lengths in bytes.

        Raises:
            SourceError: the output fails.
        """
        for piece in pieces:
            self._digest.update(piece)
        self.size += size
        self._inner.write(pieces, size)

    def commit(self) -> None:
        """Complete it."""
        self._inner.commit()

    def abort(self) -> None:
        """Give it up."""
        self._inner.abort()

    def abandon(self) -> None:
        """Give it up: a task's output is made again."""
        self._inner.abort()

    def hexdigest(self) -> str:
        """Return the digest of what was written."""
        return self._digest.hexdigest()

    def remove_partial(self) -> None:
        """Remove the complete file of this task whose name another one took."""
        if isinstance(self._inner, LocalFileOutput):
            with contextlib.suppress(OSError):
                os.unlink(self._inner.partial)  # noqa: PTH108  bytes of names stay


class _DigestedStream:
    """A stream of a local file, and the digest of what was read."""

    def __init__(self, stream: Stream, url: str) -> None:
        self._stream, self._url = stream, url
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.length = getattr(stream, "length", None)
        self.identity = getattr(stream, "identity", None)
        self.name = url

    def __str__(self) -> str:
        return self._url

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes."""
        content: bytes = self._stream.read(size)
        self.digest.update(content)
        return content

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class InputReader:
    """Reads a part of an input as samples, and checks that it is the input that was planned.

    Args:
        shard: the input.
        part: which samples.
        storage_options: what it is opened with.

    Raises:
        SourceError: it cannot be opened.
        ShardChanged: it is another object than was planned.
    """

    def __init__(self, shard: InputShard, part: InputPart, storage_options: object = None) -> None:
        self._shard, self._part = shard, part
        resolved = resolve_url(shard.url, storage_options=storage_options)
        stream: Stream = resolved.open_stream()
        try:
            self._compare(stream)
        except BaseException:  # raised again, with nothing left open
            stream.close()
            raise
        self._source = stream
        self._stream = _DigestedStream(stream, shard.url)
        self._whole = part.stop is None and part.start == 0 and resolved.local
        self._samples = RawSamples(self._stream, Reading())

    def _compare(self, stream: Stream) -> None:
        size, validator = stream_identity(stream)
        planned = self._shard.identity
        expected = planned.etag or planned.version or planned.modified or planned.mtime_ns
        if planned.size is not None and size is not None and size != planned.size:
            raise make_changed_error(self._shard.url)
        if expected is not None and validator is not None and validator != str(expected):
            raise make_changed_error(self._shard.url)

    def __iter__(self) -> Iterator[RawSample]:
        """Yield the samples.

        Raises:
            ShardChanged: there are fewer or more than were counted.
            WebDatasetError: the shard is damaged.
        """
        part, count = self._part, 0
        samples = iter(self._samples)
        for sample in islice(samples, part.start, part.stop):
            yield sample
            count += 1
        if part.stop is not None and count < part.stop - part.start:
            raise self._make_count_error()
        # an index may count fewer samples than there are
        if part.stop is not None and part.stop == self._shard.samples and next(samples, None) is not None:
            raise self._make_count_error()

    def _make_count_error(self) -> ShardChanged:
        return ShardChanged(
            f"the input has more or fewer samples than the {self._shard.samples} that were counted: it was replaced, "
            "or the index or sizes.json beside it is wrong; write it anew, and run the job again",
            url=self._shard.url,
        )

    def finish(self) -> str | None:
        """Return the digest of a local input that was read whole; None for any other.

        Raises:
            ShardChanged: it was another object than was planned.
        """
        self._compare(self._source)
        if not self._whole:
            return None
        while self._stream.read(_PIECE_BYTES):
            pass
        return self._stream.digest.hexdigest()

    @property
    def loose_count(self) -> int:
        """Files that belong to no sample, so far."""
        return self._samples.loose_count

    def close(self) -> None:
        """Close the input."""
        self._stream.close()


def make_changed_error(url: str) -> ShardChanged:
    """Return the error about an input that is not the one that was planned."""
    return ShardChanged("the input was replaced after the job was planned: run the job again", url=url)
