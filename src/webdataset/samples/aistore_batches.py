"""Makes samples of AIStore batches: each entry is a field, entries in a row with one key are a sample.

The samples come in the order of the entries. When a stream breaks off, the rest is requested again, from the first
entry that has not arrived. An entry that does not exist is reported together with the sample that lacks it; it is
never left out silently.
"""

from collections.abc import Callable, Iterable, Iterator

from webdataset.core.error_handlers import Handler
from webdataset.core.errors import BadHeader, NotFound, ShortRead, UsageError
from webdataset.core.redaction import redact
from webdataset.samples.grouping import Keys, Sample
from webdataset.storage import http_client
from webdataset.storage.backends.aistore import MISSING, AistoreBatch, BatchEntry
from webdataset.storage.object_store import LosslessBody
from webdataset.storage.retries import ATTEMPTS, RetryableError, RetryBudget
from webdataset.tar.scanner import TarScanner

_PIECE = 1 << 18

Field = tuple[BatchEntry, str, str]
"""An entry, its key and its extension."""


def group_entries(entries: Iterable[BatchEntry], keys: Keys) -> Iterator[list[Field]]:
    """Yield the entries of one sample after the other: those in a row with one object or folder, and one key.

    Args:
        entries: in the order wanted.
        keys: splits a name into key and extension.

    Raises:
        UsageError: a name without extension, which would be no field.
    """
    sample: list[Field] = []
    for entry in entries:
        key, extension = keys(entry.name)
        if key is None or not extension:
            raise UsageError("an entry's name has no extension, by which its field would be called", url=entry.url)
        field = (entry, key, extension.lower())
        if sample and not _continues_sample(field, sample):
            yield sample
            sample = []
        sample.append(field)
    if sample:
        yield sample


def _continues_sample(field: Field, sample: list[Field]) -> bool:
    """Tell whether a field continues with a sample; one that it has already begins the same sample once more."""
    (entry, key, extension), (first, first_key, _) = field, sample[0]
    if key != first_key or entry.place.bucket != first.place.bucket or bool(entry.member) != bool(first.member):
        return False
    if entry.member and entry.place != first.place:
        return False
    return all(extension != other for _, _, other in sample)


def batch_samples(samples: list[list[Field]], storage_options: object, handler: Handler) -> Iterator[Sample]:
    """Read samples by one batch.

    Args:
        samples: the fields of each.
        storage_options: what the cluster is asked with.
        handler: asked about a sample of which something does not exist; true leaves it out.

    Raises:
        NotFound: something does not exist, and the handler does not step over it.
        ShortRead: the stream broke off, several times.
        SourceError: the cluster refuses, or does not answer.
    """
    batch = AistoreBatch([entry for sample in samples for entry, _, _ in sample], storage_options)
    contents = batch_contents(batch)
    for fields in samples:
        came = [next(contents) for _ in fields]
        missing = [entry for (entry, _, _), content in zip(fields, came, strict=True) if content is None]
        if not missing:
            first, key, _ = fields[0]
            yield _make_sample(
                first, key, {field: content for (_, _, field), content in zip(fields, came, strict=True)}
            )
            continue
        names = ", ".join(entry.name for entry in missing)
        if not handler(NotFound(f"AIStore does not have {names}", url=missing[0].url, key=fields[0][1])):
            return


def _make_sample(first: BatchEntry, key: str, fields: dict[str, bytes | None]) -> Sample:
    return {"__key__": key, "__url__": first.url, **fields}


def batch_contents(
    batch: AistoreBatch, attempts: int = ATTEMPTS, scanner: Callable[[], TarScanner] = TarScanner
) -> Iterator[bytes | None]:
    """Yield the content of each entry of a batch, None for what does not exist.

    Args:
        batch: the entries.
        attempts: failures in a row, without progress between them, after which it is given up.
        scanner: makes what reads a tar stream.

    Raises:
        ShortRead: the stream broke off, several times.
        TarError: what comes is no tar stream, or not of what was requested.
        SourceError: the cluster refuses, or does not answer.
    """
    patience, done, received = RetryBudget(attempts, batch.url), 0, 0
    while done < len(batch.entries):
        try:
            for name, content, size in _members(batch, done, scanner()):
                entry = batch.entries[done]
                if not name.endswith(entry.name):
                    raise BadHeader(f"{name!r} came in the place of {entry.name!r}", url=entry.url)
                done, received = done + 1, received + size
                yield None if name.startswith(MISSING) else content
                if done == len(batch.entries):
                    return
            raise batch.broken(f"the stream ended after {done} of {len(batch.entries)} entries")
        except RetryableError as error:
            failure = error
        patience.progress(received)
        if patience.spent():
            raise ShortRead(
                f"{patience.describe()} to read a batch gave {done} of {len(batch.entries)} entries; the last time: "
                f"{failure}{patience.hint()}",
                url=batch.url,
            )
        patience.pause(failure.wait_seconds)


def _members(batch: AistoreBatch, done: int, scanner: TarScanner) -> Iterator[tuple[str, bytes, int]]:
    """Give the members of one stream, and how many bytes each is of."""
    failures = http_client.failures()
    stream = LosslessBody(batch.open_from(done), failures)
    try:
        while True:
            try:
                piece = stream.read(_PIECE)
            except failures as error:
                raise batch.broken(redact(f"{type(error).__name__}: {error}")) from None
            if not piece:
                return
            for name, content, _ in scanner.feed(piece):
                yield name, content, 512 + len(content)
            if scanner.error is not None:
                raise scanner.error
    finally:
        stream.close()
