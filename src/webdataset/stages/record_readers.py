"""Reads record shards as a stage: shards of CBOR or msgpack items in, the items out.

Dicts get ``__url__``. The state is one address, as the tar reader's. A shard that was cut is never taken for a whole
one.
"""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

from webdataset.core.error_handlers import Handler, make_handler_error, reraise_exception
from webdataset.samples.records import RecordReading, RecordSplitter
from webdataset.samples.sample_reader import read_samples
from webdataset.samples.shard_opener import open_shards
from webdataset.stages.read_shards import ReaderState, ReadShards, Shard
from webdataset.storage.open_url import resolve_url


def cbor_items(offset: int, limit_bytes: int) -> RecordSplitter:
    """Return what cuts a stream into CBOR items.

    Raises:
        MissingExtra: cbor2 is not installed.
    """
    from webdataset.codecs.record_streams import CborItems  # noqa: PLC0415  brings numpy, which only records need

    return CborItems(offset, limit_bytes)


def msgpack_items(offset: int, limit_bytes: int) -> RecordSplitter:
    """Return what cuts a stream into msgpack items; see :func:`cbor_items`.

    Raises:
        MissingExtra: msgpack is not installed.
    """
    from webdataset.codecs.record_streams import MsgpackItems  # noqa: PLC0415  as above

    return MsgpackItems(offset, limit_bytes)


class ReadRecords(ReadShards):
    """Opens record shards and reads their items.

    Flow: in shard order; memory: the items of one 256 KB chunk, or one item where it is larger; resumes at a byte
    offset.

    Args:
        reading: how to read.
    """

    state_name = "ReadRecords"
    reading: RecordReading  # type: ignore[assignment]

    def __init__(self, reading: RecordReading) -> None:
        if cast("Handler | None", reading.handler) is None:
            reading = replace(reading, handler=reraise_exception)
        elif not callable(reading.handler):
            raise make_handler_error(reading.handler)
        self.reading = reading

    def open_shards(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Open each shard, through the cache if there is one."""
        rules = self.reading
        given = {"level": rules.trust, "storage_options": rules.storage_options, "prefetch": rules.prefetch}
        options: dict[str, Any] = {name: rule for name, rule in given.items() if rule is not None}

        def source(shards: Iterable[Shard], handler: Handler) -> Iterator[Shard]:
            return open_shards(shards, handler=handler, **options)

        if rules.cache is None:
            return source(shards, rules.handler)
        opened: Iterator[Shard] = rules.cache.open_shards(
            shards,
            source,
            rules.handler,
            level=rules.trust,
            storage_options=rules.storage_options,
            prefetch=rules.prefetch,
            resolve=functools.partial(resolve_url, level=rules.trust, storage_options=rules.storage_options),
            archives=False,
        )
        return opened

    def flow(self, upstream: Iterator[Any], state: ReaderState) -> Iterator[Any]:
        """Yield items.

        Raises:
            MissingExtra: the format's library is not installed; no handler is asked.
        """
        self.reading.cut(0, 1)
        return super().flow(upstream, state)

    def __repr__(self) -> str:
        handler = self.reading.handler
        return f"{self.reading.name}({getattr(handler, '__name__', handler)})"


def cbors_to_samples(handler: Handler = reraise_exception, **options: Any) -> ReadRecords:
    """Return the stage that reads shards that are sequences of CBOR items (RFC 8742), compressed or not.

    Args:
        handler: asked where a shard cannot be opened or read; true continues with the next shard.
        **options: ``items`` ("any", the default, or "samples", which takes dicts only), ``addresses``,
            ``limit_bytes`` (of one item), ``trust``, ``cache``, ``storage_options``, ``prefetch``; see
            :class:`~webdataset.samples.records.RecordReading`.

    Raises:
        UsageError: an option that cannot mean anything.
    """
    return ReadRecords(RecordReading(cbor_items, "cbors_to_samples", handler, **options))


def msgpacks_to_samples(handler: Handler = reraise_exception, **options: Any) -> ReadRecords:
    """Return the stage that reads shards that are msgpack items one after the other, compressed or not.

    Args:
        handler: asked where a shard cannot be opened or read; true continues with the next shard.
        **options: as for :func:`cbors_to_samples`; ``items`` is "samples" by default, for nearly any bytes are
            msgpack items of some kind.

    Raises:
        UsageError: an option that cannot mean anything.
    """
    return ReadRecords(RecordReading(msgpack_items, "msgpacks_to_samples", handler, **{"items": "samples", **options}))


def cbor_iterator(
    data: Iterable[Shard],
    handler: Handler = reraise_exception,
    info: object = None,  # noqa: ARG001  accepted and not used, as ever
) -> Iterator[Any]:
    """Read opened shards of CBOR items one after the other.

    Args:
        data: dicts with ``url`` and ``stream``.
        handler: asked where a shard fails; true continues with the next one.
        info: not used.

    Yields:
        The items.

    Raises:
        FormatError: what the handler does not step over.
    """
    return read_samples(data, RecordReading(cbor_items, "cbors_to_samples", handler))


def cbors_samples(src: Iterable[Shard], handler: Handler = reraise_exception) -> Iterator[Any]:
    """Read shards of CBOR items one after the other.

    Args:
        src: dicts with ``url``.
        handler: asked where a shard cannot be opened or read; true continues with the next one.
    """
    return cbors_to_samples(handler)(src)
