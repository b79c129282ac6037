"""Streams of bytes to samples: the tar scanner and the grouper, fed.

Flows in: opened shards, ``{"url", "stream"}``. Flows out: samples; where they stand is in the :class:`Position`. Each
stream is closed when its shard ends, fails or is left. Never gives a sample that an error interrupted, and never joins
two shards.
"""

import functools
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from webdataset.ground.errors import UsageError
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.ground.skips import goes_on
from webdataset.sources.carrying import CarriesProfiles
from webdataset.tar.header import Limits

from .address import Address
from .grouping import Grouper, Keys, Sample
from .names import base_plus_ext, is_meta
from .position import Position, shared_out, url_hash
from .rules import Rules, Watch
from .shard_reader import ShardReader, StopReading
from .split_samples import check_policy

__all__ = [
    "Position",
    "Reading",
    "ReadingOptions",
    "ShardReader",
    "Watch",
    "read_samples",
    "settle_allocator",
    "url_hash",
]

ENDS = ("warn", "error", "ignore")


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments that datasets pass on to :class:`Reading`, whose documentation explains them."""

    keys: Keys
    lcase: bool
    suffixes: Container[str] | None
    duplicates: Literal["error", "first", "last", "new"]
    split_samples: Literal["error", "warn", "ignore"]
    missing_end: Literal["error", "warn", "ignore"] | None
    addresses: bool
    limits: Limits
    observer: Callable[[str, Any], Watch] | None
    storage_options: Any
    prefetch: int | None


@dataclass(frozen=True)
class Reading(CarriesProfiles):
    """How shards are read.

    Args:
        handler: asked when a shard or sample fails; true goes on with the next shard.
        select_files: full member name to bool; members for which it is false are stepped over.
        rename_files: full member name to full member name; applied before ``select_files``.
        keys: splits a name into key and extension.
        lcase: lower-case extensions.
        suffixes: keep only these full extensions; None keeps all.
        duplicates: ``error``, ``first``, ``last`` or ``new``; see :class:`~webdataset.samples.grouping.Grouper`.
        split_samples: ``error``, ``warn`` or ``ignore`` a key that comes again in its shard with other fields: a part
            of a sample whose members do not stand next to each other. The handler is asked about each part; true
            leaves it out. One that comes again with the same fields is delivered, with a warning for each shard unless
            it is ``ignore``.
        missing_end: ``error``, ``warn`` or ``ignore`` a tar stream without its end mark. An error withholds the sample
            in progress; the others deliver it. None is ``WDS_MISSING_END``, and else ``error``.
        addresses: add ``__address__`` (:class:`Address`) to every sample.
        trust: trust level under which shards are opened; None is the process's.
        limits: bounds on headers and sparse members.
        cache: a :class:`webdataset.caching.shards.ShardCache` to open shards through; None opens their sources.
        observer: called with the url and these rules for each shard that is read from its start; what it returns sees
            the shard's bytes. See :class:`webdataset.index.recording.IndexWhileReading`.
        storage_options: what S3 urls are opened with: ``{"profile": NAME}``, or fields of a profile.
        prefetch: bytes of the next shards that may be read ahead, where they are not local; 0 for none, None is
            ``WDS_PREFETCH_BYTES``.
    """

    handler: Handler = reraise_exception
    select_files: Callable[[str], bool] | None = None
    rename_files: Callable[[str], str] | None = None
    keys: Keys = base_plus_ext
    lcase: bool = True
    suffixes: Container[str] | None = None
    duplicates: str = "error"
    split_samples: str = "error"
    missing_end: str | None = None
    addresses: bool = False
    trust: str | None = None
    limits: Limits = field(default_factory=Limits)
    cache: Any = None
    observer: Callable[[str, Any], Watch] | None = None
    storage_options: Any = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        check_policy(self.split_samples)
        if self.missing_end is not None and self.missing_end not in ENDS:
            raise UsageError(f"missing_end={self.missing_end!r} is not one of {', '.join(ENDS)}")
        if self.prefetch is not None and (not isinstance(self.prefetch, int) or self.prefetch < 0):
            raise UsageError(f"prefetch={self.prefetch!r} is a number of bytes, 0 for none")
        if self.storage_options is not None:
            from webdataset.sources import profiles  # noqa: PLC0415  local files need none of it

            object.__setattr__(self, "storage_options", profiles.storage_options(self.storage_options))

    def reader(self, shard: dict[str, Any], start: Address | None = None) -> "ShardReader":
        """Return the reader of one shard, which begins at the sample at ``start``."""
        return ShardReader(shard, self, start)

    def grouper(self) -> Grouper:
        """Return a grouper under these rules."""
        return Grouper(keys=self.keys, lcase=self.lcase, suffixes=self.suffixes, duplicates=self.duplicates)

    def admit(self) -> Callable[[str], str | None] | None:
        """Return the rule that names or leaves out a member, or None where all keep their names."""
        rename, select = self.rename_files, self.select_files
        if rename is None and select is None:
            return None

        def admitted(name: str) -> str | None:
            if rename is not None:
                if is_meta(name):  # metadata is known by the name in the archive
                    return None
                name = rename(name)
            return name if select is None or select(name) else None

        return admitted


@functools.cache
def settle_allocator() -> None:
    """Let malloc keep blocks of up to 16 MB for reuse instead of returning each to the system.

    glibc raises its thresholds once a large block has been freed. Until then every large chunk is mapped, faulted in
    page by page and unmapped again, which takes longer than reading it. The block is never touched, so this costs
    nothing.
    """
    bytearray(16 << 20)


def read_samples(
    shards: Iterable[dict[str, Any]], reading: Rules, position: Position | None = None, start: Address | None = None
) -> Iterator[Sample]:
    """Read opened shards one after the other.

    Args:
        shards: dicts with ``url`` and ``stream`` (an object with ``read(n)`` and ``close()``), and perhaps ``number``,
            the shard's place in the run where some could not be opened.
        reading: how to read.
        position: kept up to date for the caller.
        start: the address of the sample to start at; ``shards`` begins with its shard.

    Yields:
        Samples: ``__key__``, ``__url__``, and one field of bytes for each member.

    Raises:
        WebDatasetError: what ``reading.handler`` does not step over, with url, key and offset.
    """
    settle_allocator()
    position = position or Position()
    first = start.shard if start is not None else 0
    for index, shard in enumerate(shards, first):
        position.begin(shard.get("number", index), str(shard["url"]))
        position.reader = reader = reading.reader(shard, start if index == first else None)
        resumed = start.ordinal if start is not None and index == first else None
        if resumed is not None:
            position.ordinal = resumed
        try:
            for samples, offsets in shared_out(reader.lists(), shard, resumed):
                if reading.addresses:
                    _stamp_addresses(samples, offsets, position)
                pending = position.present(samples, offsets)
                pop = pending.pop
                while pending:
                    yield pop()
        except StopReading:
            return
        except Exception as error:  # noqa: BLE001  the handler decides, whatever a source or a user's function raised
            position.failures += 1
            if not goes_on(reading.handler, reader.explained(error), "reading"):
                return
        finally:
            reader.close()


def _stamp_addresses(samples: list[Sample], offsets: list[int], position: Position) -> None:
    ordinal = position.ordinal + len(position.offsets)
    for index, (sample, offset) in enumerate(zip(samples, offsets, strict=True)):
        sample["__address__"] = Address(position.shard, ordinal + index, offset)
