"""Reads opened shards as samples, and keeps the reader's position.

``{"url", "stream"}`` dicts feed the tar scanner and the grouper. The :class:`Position` holds the address of the
sample given last, and what tells whether the shard is still the same when that address is used. It takes the lists of
samples that a reader makes, and the offsets of their first headers; nothing is counted per sample.

Each stream is closed when its shard ends, fails or is left. The reader never gives a sample that an error
interrupted, and never joins two shards.
"""

import functools
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast
from zlib import crc32

from webdataset.core.error_handlers import Handler, make_handler_error, reraise_exception, should_continue
from webdataset.core.errors import StaleIndex, UsageError
from webdataset.core.json_types import JsonValue, SplitJson
from webdataset.core.seeds import hash_seed
from webdataset.core.trust import trust_level
from webdataset.core.upstream_utils import check_flags
from webdataset.samples.address import Address, CheckedAddress
from webdataset.samples.grouping import (
    COMMON_FIELDS,
    Grouper,
    Keys,
    Sample,
    Shard,
    base_plus_ext,
    is_meta,
)
from webdataset.samples.reading_rules import ReadingRules, SampleListReader, Watch
from webdataset.samples.shard_identity import CHECK, ShardIdentity, sum_size, sum_text
from webdataset.samples.shard_reader import ShardReader, SmallShardReader, StopReading
from webdataset.samples.split_samples import check_policy
from webdataset.storage.local_files import LocalFileStream
from webdataset.storage.profile_pickling import PicklesProfiles
from webdataset.storage.streams import stream_identity
from webdataset.tar import scanner
from webdataset.tar.header import Limits

if TYPE_CHECKING:
    from webdataset.samples.sample_selection import SampleFilter

T = TypeVar("T")

_MEMBER_FUNCTIONS = {
    "select_files": "such as lambda name: name.endswith('.jpg')",
    "rename_files": "that returns another",
}


class Position:
    """Where a reader is: the shard, and how far its present list of samples has been given.

    Args:
        tracked: addresses are asked for, so that keys are remembered as long as their list of samples.
        chained: ``chain`` is asked for, so that all keys are summed.

    Attributes:
        shard: index of the present shard.
        ordinal: index in the shard of the first sample of the present list.
        offsets: where the samples of the present list start.
        pending: samples of the present list that have not been given, the next one last; how many are left tells which
            one was given last, so that nothing has to be counted. Given samples are let go at once.
        failures: errors that a handler stepped over so far.
        reader: of the present shard, whose ``stream`` tells which object is read; None before the first.
        resumed: what ``split_snapshot`` returned for the run that this one continues.
        left_out: samples that ``where`` left out so far.
        kept_any: whether it kept one.
    """

    def __init__(self, *, tracked: bool = False, chained: bool = True) -> None:
        self.shard = 0
        self.ordinal = 0
        self.offsets: list[int] = []
        self.pending: list[Any] = []
        self.failures = 0
        self.reader: Any = None
        self.resumed: SplitJson = [None, None]
        self.left_out = 0
        self.kept_any = False
        self.tracked = tracked
        self._chained = tracked and chained
        # of the present list, None for a sample without one
        self._keys: list[str | None] = []
        # sum of the keys before the present list, of all shards of the run
        self._chain = 0
        self._identity: ShardIdentity | None = None
        self._size_sum: int | None = None
        self._rises: bool | None = None  # up to the present list
        self._lasting: list[JsonValue] | None = None  # see split_snapshot; None until it is known
        self._url = ""
        self._url_hash: int | None = None

    def address(self) -> CheckedAddress:
        """Return the address of the sample given last."""
        index = len(self.offsets) - len(self.pending) - 1
        offset = self.offsets[index]
        key = self._keys[index] if self._keys else None
        if key is None:
            return CheckedAddress(self.shard, self.ordinal + index, offset)
        size_sum = self._size_sum
        if size_sum is None:
            size_sum = self._size_sum = sum_size(self.identity().size)
        return CheckedAddress(self.shard, self.ordinal + index, offset, (sum_text(str(key)) ^ size_sum) & CHECK)

    def key_sum(self) -> int:
        """Return the sum of the key of the sample given last; 0 where it has none."""
        key = self._keys[len(self.offsets) - len(self.pending) - 1] if self._keys else None
        return 0 if key is None else sum_text(str(key))

    def chain(self) -> int:
        """Return a sum of the keys of all samples given so far, in their order."""
        return _chain_keys(self._chain, self._keys[: len(self.offsets) - len(self.pending)])

    def identity(self) -> ShardIdentity:
        """Return which object the present shard is read from."""
        if self._identity is None:
            known = getattr(self.reader, "file_identity", None)
            found = ShardIdentity.of(*(known or stream_identity(getattr(self.reader, "stream", None))))
            if found.size is None:
                return found
            self._identity = found
        return self._identity

    @property
    def present_url(self) -> str:
        """The present shard's url, for messages about this process; nothing before the first shard."""
        return self._url

    @property
    def rising(self) -> bool:
        """Whether the keys of the present shard rise so far; a state keeps it, see ``ShardReader.rising``."""
        if self._rises is None:
            self._rises = bool(getattr(self.reader, "rising", True))
        return self._rises

    def split_snapshot(self) -> SplitJson:
        """Return where the sample given last stands, and what tells that the shard is the same, for a state.

        Called at every step for every stream, so it does all by itself.
        """
        offsets, keys = self.offsets, self._keys
        if not offsets:
            return self.resumed
        index = len(offsets) - len(self.pending) - 1
        try:
            # here first: nearly all keys are text without surrogates
            key_sum = crc32(keys[index].encode())  # type: ignore[union-attr]
        except (IndexError, AttributeError, UnicodeEncodeError):
            key_sum = self.key_sum()
        place = [self.shard, self.ordinal + index, offsets[index], key_sum]
        return [place, self._lasting or self._describe_shard()]

    def _describe_shard(self) -> list[JsonValue]:
        """Return what tells that the shard is the same: it holds for the present list of samples."""
        size, validator = self.identity()
        lasting: list[JsonValue] = [self.url, size, validator, int(self.rising)]
        # an identity that is not known yet is asked for again
        self._lasting = None if self._identity is None else lasting
        return lasting

    @property
    def url(self) -> int:
        """A hash of the present shard's url, for snapshots (a url may hold secrets)."""
        if self._url_hash is None:
            self._url_hash = hash_url(self._url)
        return self._url_hash

    def begin(self, shard: int, url: str) -> None:
        """Enter a shard."""
        self._url, self._url_hash = url, None
        self._close_list()
        self.reader = self._identity = self._size_sum = self._rises = self._lasting = None
        self.shard, self.ordinal, self.offsets, self.pending = shard, 0, [], []

    def present(self, samples: list[Sample], offsets: list[int]) -> list[Sample]:
        """Take the next list of samples of the shard; return it in the order in which to pop them."""
        self.ordinal += len(self.offsets)
        self.offsets = offsets
        self._rises = self._lasting = None
        if self.tracked:
            if self._chained:
                self._close_list()
            self._keys = _list_keys(samples)
        samples.reverse()
        self.pending = samples
        return samples

    def extend(self, samples: list[Sample], offsets: list[int]) -> None:
        """Add the next samples of the shard to the present list, in place: what pops it continues with them.

        Args:
            samples: those that follow; the list is given away.
            offsets: where they start.
        """
        pending, places = self.pending, self.offsets
        # the sample given last stays: a state tells where it stands
        passed = max(0, len(places) - len(pending) - 1)
        if self.tracked:
            keys = self._keys
            if self._chained:
                self._chain = _chain_keys(self._chain, keys[:passed])
            self._keys = keys[passed:] + _list_keys(samples)
        self.ordinal += passed
        self.offsets = places[passed:] + offsets
        self._rises = self._lasting = None
        samples.reverse()
        pending[:0] = samples

    def _close_list(self) -> None:
        self._chain, self._keys = _chain_keys(self._chain, self._keys), []


def _list_keys(samples: list[Sample]) -> list[str | None]:
    try:
        return [sample["__key__"] for sample in samples]
    # records need not be samples
    except (KeyError, TypeError, IndexError):
        return [sample.get("__key__") if isinstance(sample, dict) else None for sample in samples]


def _chain_keys(chain: int, keys: list[str | None]) -> int:
    if not keys:
        return chain
    try:
        joined = "\0".join(keys) + "\0"  # type: ignore[arg-type]
    except TypeError:  # a sample without a key
        joined = "".join(f"{key}\0" for key in keys)
    return crc32(joined.encode("utf-8", "surrogatepass"), chain)


def take_share(
    lists: Iterator[tuple[list[T], list[int]]], shard: Shard, resumed: int | None
) -> Iterator[tuple[list[T], list[int]]]:
    """Return the lists of samples that a reader makes, without those that belong to other streams or workers.

    Args:
        lists: samples and where they start.
        shard: ``share``, where the shard is shared by sample: (number of the first sample, step to the next); or
            ``part``, where it is cut: (number of the first sample, number after the last, samples in the shard).
        resumed: the lists begin with this sample of the share; None: with the shard's first.
    """
    if "part" in shard:
        start, stop, count = shard["part"]
        return _take_range(lists, start, stop, count, resumed)
    share = shard.get("share")
    return lists if share is None else _take_every(lists, share[0] if resumed is None else 0, share[1])


def _take_range(
    lists: Iterator[tuple[list[T], list[int]]], start: int, stop: int, count: int, resumed: int | None
) -> Iterator[tuple[list[T], list[int]]]:
    """Yield the samples ``[start, stop)``; the last ones only once the shard's count is seen to be ``count``."""
    here = 0 if resumed is None else start + resumed
    held: list[tuple[list[T], list[int]]] = []
    try:
        for samples, offsets in lists:
            low, high = max(start - here, 0), max(stop - here, 0)
            here += len(samples)
            kept = samples[low:high], offsets[low:high]
            del samples
            if here > count:
                break
            if here == count == stop:
                held += [kept] if kept[0] else []
            elif kept[0]:
                yield kept
            if here >= stop and stop < count:
                return
    except Exception:  # its samples are good, however the shard ends
        yield from held
        raise
    if here != count:
        holds = "more" if here > count else f"{here}"
        raise StaleIndex(f"the shard is said to hold {count} samples, and holds {holds}: count them again")
    yield from held


def _take_every(
    lists: Iterator[tuple[list[T], list[int]]], first: int, step: int
) -> Iterator[tuple[list[T], list[int]]]:
    for samples, offsets in lists:
        kept = samples[first::step]
        starts = offsets[first::step]
        first = (first - len(samples)) % step
        del samples
        if kept:
            yield kept, starts


def hash_url(url: str) -> int:
    """Return a number that tells shards apart (53 bits, exact in JSON everywhere); signatures do not enter it."""
    from webdataset.caching.names import object_key  # noqa: PLC0415  most runs keep no addresses

    return hash_seed("url", object_key(url)) >> 11


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
    storage_options: object
    prefetch: int | None
    where: str | None
    memory_map: bool


_DEFAULT_LIMITS = Limits()
_USUAL_GROUPING = base_plus_ext, "error", "error"


@dataclass(frozen=True)
class Reading(PicklesProfiles):
    """How shards are read.

    Args:
        handler: asked when a shard or sample fails; true continues with the next shard.
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
        cache: a :class:`webdataset.caching.shard_cache.ShardCache` to open shards through; None opens their sources.
        observer: called with the url and these rules for each shard that is read from its start; what it returns sees
            the shard's bytes. See :class:`webdataset.index.publish.IndexWhileReading`.
        storage_options: what S3 urls are opened with: ``{"profile": NAME}``, or fields of a profile.
        prefetch: bytes of the next shards that may be read ahead, where they are not local; 0 for none, None is
            ``WDS_PREFETCH_BYTES``.
        where: tells which samples are given; None gives all. The others count on: what a stream's share is, and the
            number of a sample in its shard, do not depend on it.
        memory_map: give fields as read-only memoryviews, of a map of the file where a shard is local or in the cache,
            and plain; else of copied bytes. See docs/performance-details.md.
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
    storage_options: object = None
    prefetch: int | None = None
    where: "SampleFilter | None" = None
    memory_map: bool = False

    def __post_init__(self) -> None:
        # what is wrong in a rule would show in the first shard, in a worker
        grouping = self.keys, self.duplicates, self.split_samples
        if grouping != _USUAL_GROUPING or self.suffixes is not None:
            check_policy(self.split_samples)
            # it checks what it takes
            self.grouper()
        if (self.select_files, self.rename_files, self.trust, self.memory_map) != (None, None, None, False):
            self._check_rare_rules()
        if not isinstance(self.limits, Limits):
            raise UsageError(f"limits={self.limits!r:.60}: it is a webdataset.tar.header.Limits")
        if self.where is not None and not hasattr(self.where, "holds"):
            raise UsageError(f"where={self.where!r}: an expression, as in wds.WebDataset(urls, where='json.width > 5')")
        if cast("Handler | None", self.handler) is None:
            # as programs write it that mean the default
            object.__setattr__(self, "handler", reraise_exception)
        elif not callable(self.handler):
            raise make_handler_error(self.handler)
        if self.missing_end is not None and self.missing_end not in ENDS:
            raise UsageError(f"missing_end={self.missing_end!r} is not one of {', '.join(ENDS)}")
        if self.prefetch is not None and (not isinstance(self.prefetch, int) or self.prefetch < 0):
            raise UsageError(f"prefetch={self.prefetch!r} is a number of bytes, 0 for none")
        if self.storage_options is not None:
            from webdataset.storage.storage_options import check_storage_options  # noqa: PLC0415  local files need none of it

            object.__setattr__(self, "storage_options", check_storage_options(self.storage_options))

    def _check_rare_rules(self) -> None:
        check_flags(memory_map=self.memory_map)
        for name, returns in _MEMBER_FUNCTIONS.items():
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise UsageError(f"{name}={function!r:.60}: it is a function of a member's name, {returns}, or None")
        if self.trust is not None:
            trust_level(self.trust)

    def reader(self, shard: Shard, start: Address | None = None) -> "ShardReader":
        """Return the reader of one shard, which begins at the sample at ``start``."""
        stream = shard["stream"]
        if self.memory_map:
            from webdataset.samples.mapped_shard import MappedShardReader  # noqa: PLC0415  few runs map files

            return MappedShardReader(shard, self, start)
        if type(stream) is LocalFileStream and start is None and stream.identity and not self.observer:
            common = self._common_fields() if stream.identity.length <= scanner.FIRST_CHUNK else None
            if common is not None:
                return SmallShardReader(shard, self, common)
        return ShardReader(shard, self, start)

    def grouper(self) -> Grouper:
        """Return a grouper under these rules."""
        return Grouper(keys=self.keys, lcase=self.lcase, suffixes=self.suffixes, duplicates=self.duplicates)

    def _common_fields(self) -> dict[str, str] | None:
        """Return extensions seen before, and their fields, where these rules judge no member by its name or size."""
        chosen = self.suffixes is not None or self.select_files is not None or self.rename_files is not None
        if chosen or self.keys is not base_plus_ext or self.limits != _DEFAULT_LIMITS:
            return None
        return COMMON_FIELDS[bool(self.lcase)]

    def admit(self) -> Callable[[str], str | None] | None:
        """Return the rule that names or leaves out a member, or None where all keep their names."""
        rename, select = self.rename_files, self.select_files
        if rename is None and select is None:
            return None

        def admit_name(name: str) -> str | None:
            if rename is not None:
                # metadata is known by the name in the archive
                if is_meta(name):
                    return None
                name = rename(name)
            return name if select is None or select(name) else None

        return admit_name


@functools.cache
def configure_allocator() -> None:
    """Let malloc keep blocks of up to 16 MB for reuse instead of returning each to the system.

    glibc raises its thresholds once a large block has been freed. Until then every large chunk is mapped, faulted in
    page by page and unmapped again, which takes longer than reading it. The block is never touched, so this costs
    nothing: bytes come zeroed from the system, while a bytearray would write its zeros.
    """
    bytes(16 << 20)


def read_samples(
    shards: Iterable[Shard],
    reading: ReadingRules,
    position: Position | None = None,
    start: Address | None = None,
) -> Iterator[Sample]:
    """Read opened shards one after the other.

    Args:
        shards: dicts with ``url`` and ``stream`` (an object with ``read(n)`` and ``close()``) or ``reader``, and
            perhaps ``number``, the shard's place in the run where some could not be opened.
        reading: how to read.
        position: kept up to date for the caller.
        start: the address of the sample to start at; ``shards`` begins with its shard.

    Yields:
        Samples: ``__key__``, ``__url__``, and one field of bytes for each member.

    Raises:
        WebDatasetError: what ``reading.handler`` does not step over, with url, key and offset.
    """
    configure_allocator()
    position = position or Position()
    first = start.shard if start is not None else 0
    where: SampleFilter | None = getattr(reading, "where", None)
    for index, shard in enumerate(shards, first):
        position.begin(shard.get("number", index), str(shard["url"]))
        # one that several streams share has a reader already
        reader = shard.get("reader") or reading.reader(shard, start if index == first else None)
        position.reader = reader
        resumed = start.ordinal if start is not None and index == first else None
        if resumed is not None:
            position.ordinal = resumed
        try:
            lists = take_share(_list_samples(reader, reading), shard, resumed)
            if where is not None:
                from webdataset.samples.sample_selection import select_samples  # noqa: PLC0415  few runs select

                lists = select_samples(lists, where, reading, position)
            for samples, offsets in lists:
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
            if not should_continue(reading.handler, reader.explain_error(error), "reading"):
                return
        finally:
            reader.close()


def _list_samples(reader: SampleListReader, reading: ReadingRules) -> Iterator[tuple[list[Any], list[int]]]:
    """Return the lists of samples of a shard, whose fields are memoryviews where that was asked for."""
    if not getattr(reading, "memory_map", False):
        return reader.lists()
    from webdataset.samples.mapped_shard import view_lists  # noqa: PLC0415  few runs map files

    return view_lists(reader.lists(), reader)


def _stamp_addresses(samples: list[Sample], offsets: list[int], position: Position) -> None:
    ordinal = position.ordinal + len(position.offsets)
    for index, (sample, offset) in enumerate(zip(samples, offsets, strict=True)):
        sample["__address__"] = Address(position.shard, ordinal + index, offset)
