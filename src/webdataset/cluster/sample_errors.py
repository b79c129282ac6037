"""What a task does about samples for which the function fails: fails, leaves them out, or keeps them aside.

A quarantine is two files in the manifest of the job: ``N.jsonl`` with one line a failed sample (ordinal, key, shard,
offset, error), and ``N.tar.quarantined`` with their files as they stood. Both are in the order of the samples, and
equal after every retry. They are written before the output's receipt, which names them.
"""

import hashlib
import traceback

from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.stored_files import (
    DIGEST_BYTES,
    Record,
    format_record,
    hash_object,
    make_folder,
    remove_local_file,
    write_small_file,
)
from webdataset.core.errors import AlreadyExists, SampleError
from webdataset.core.redaction import redact
from webdataset.reshaping.raw_writer import RawShardWriter
from webdataset.samples.raw_samples import RawSample

_SHOWN = 500


class SampleErrors:
    """The failed samples of one output.

    Args:
        job: with this output.
        number: of the output.

    Attributes:
        count: how many failed.
    """

    def __init__(self, job: ShardJob, number: int) -> None:
        self._job = job
        base = f"{job.manifest}/quarantine/{number:06d}"
        self.lines_url, self.samples_url = f"{base}.jsonl", f"{base}.tar.quarantined"
        self._lines: list[bytes] = []
        self._writer: RawShardWriter | None = None
        self.count = 0

    def add(self, ordinal: int, sample: RawSample, error: Exception) -> None:
        """Take note of a sample that failed.

        Args:
            ordinal: of the sample in the output's inputs.
            sample: as it stands.
            error: what the function raised.

        Raises:
            SampleError: the job says that this is an error, or there are too many.
        """
        if self._job.on_sample_error == "raise":
            raise error
        self.count += 1
        most = self._job.max_errors
        if most is not None and not (isinstance(most, float) and most < 1) and self.count > most:
            raise SampleError(
                f"{self.count} samples failed, and max_errors={most:g} allows no more: the function may be wrong. The "
                f"last one: {error}",
                key=sample.key,
                url=sample.url,
            ) from error
        if self._job.on_sample_error == "quarantine":
            self._keep(ordinal, sample, error)

    def _keep(self, ordinal: int, sample: RawSample, error: Exception) -> None:
        cause = error.__cause__ or error
        frames = [(frame.name, frame.line) for frame in traceback.extract_tb(cause.__traceback__)]
        record = {
            "ordinal": ordinal,
            "key": sample.key,
            "url": redact(sample.url),
            "offset": sample.offset,
            "size": sample.size_bytes,
            "type": type(cause).__name__,
            "message": redact(str(cause))[:_SHOWN],
            "traceback": hashlib.blake2b(repr(frames).encode("utf-8", "replace"), digest_size=8).hexdigest(),
        }
        self._lines.append(format_record(record) + b"\n")
        if self._writer is None:
            make_folder(self.samples_url)
            self._writer = RawShardWriter(self.samples_url, compress=False)
        self._writer.write(sample)

    def finish(self) -> Record | None:
        """Complete the quarantine; return what the receipt says of it, or None where nothing is in it.

        Raises:
            SourceError: it cannot be written.
        """
        if self._writer is None:
            remove_local_file(self.lines_url)
            remove_local_file(self.samples_url)
            return None
        try:
            self._writer.close()
        except AlreadyExists:  # another task of this output wrote it meanwhile
            self._remove_partial()
        content = b"".join(self._lines)
        write_small_file(self.lines_url, content)
        return {
            "url": redact(self.lines_url),
            "blake2b": hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest(),
            "samples": redact(self.samples_url),
            "samples_blake2b": hash_object(self.samples_url),
        }

    def _remove_partial(self) -> None:
        partial = getattr(getattr(self._writer, "_output", None), "partial", None)
        if partial is not None:
            remove_local_file(partial)

    def abort(self) -> None:
        """Give up what is not complete."""
        if self._writer is not None:
            self._writer.abort()
