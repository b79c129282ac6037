"""Finds samples whose members do not stand next to each other: a key that comes again in its shard.

Theory. A sample is the members of one key in a row, so that a shard with ``0.a 1.a 0.b 1.b`` gives half samples; the
keys of a shard reveal that. In most shards keys rise: a key that is greater than the one before is new, and one
comparison is enough, a list of samples at a time. Where keys do not rise, a set holds them. When a key comes again,
the fields of the samples before decide: with *other* fields it is a part of a sample that was delivered without it;
with the *same* fields it is another sample of that name, as in archives that were joined.

What is not needed as long as keys rise, or are new, is looked up on demand: the headers of a source that can seek are
read again. Of other sources keys and fields are kept. Memory is bounded: of a shard with more keys than fit, the
newest are known. A payload is never kept.

A reader that resumes in the middle of a shard has not seen the keys before, and would take the second part of a split
sample for a new one, where an unbroken run does not. The headers before that offset name them: a local file is walked
from header to header on demand, and a stream that has to be read up to that offset shows its headers in passing. An
object of a store allows neither, since its start is not requested: there, only what comes is compared.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, repeat
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from webdataset.core.errors import SplitSample, UsageError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.samples.grouping import Grouper, Sample
from webdataset.tar.member_assembly import Member
from webdataset.tar.walker import TarWalker

if TYPE_CHECKING:
    from webdataset.samples.links import LinkResolver
    from webdataset.samples.reading_rules import TarReadingRules

POLICIES = ("error", "warn", "ignore")
MOST_BYTES = 16 << 20
# of a key, besides its characters
_STRING_BYTES = 64
# of its entry in a dict
_ENTRY_BYTES = 80

_key_of = itemgetter("__key__")
Fields = frozenset[str]


class SplitSampleRules(Protocol):
    """What the rules of reading say about keys."""

    @property
    def split_samples(self) -> str:
        """What to do about parts of samples."""
        ...

    @property
    def keys(self) -> object:
        """Splits a name into key and extension."""
        ...


def check_policy(policy: str) -> None:
    """Raise unless a text says what to do about parts of samples: ``error``, ``warn`` or ``ignore``.

    Raises:
        UsageError: it is none of these.
    """
    if policy not in POLICIES:
        raise UsageError(f"split_samples={policy!r} is not one of {', '.join(POLICIES)}")


def track_keys(url: str, rules: SplitSampleRules, grouper: Grouper) -> "FinishedKeys | None":
    """Return what remembers the keys of a shard, or None where no rule asks for it.

    A rule of keys that remembers members (of interleaved documents) judges them itself.
    """
    if rules.split_samples == "ignore" or hasattr(rules.keys, "restart"):
        return None
    return FinishedKeys(url, grouper, refuse=rules.split_samples == "error")


class _Repeats(NamedTuple):
    """What came again: how often, and where first."""

    times: int
    key: object
    offset: int

    def describe(self) -> str:
        """Return it in words."""
        place = f" at byte {self.offset}" if self.offset >= 0 else ""
        return f"{self.times} keys come again (the first is {self.key!r}{place})"


LookUp = Callable[[int], "FinishedKeys"]


class FinishedKeys:
    """The keys of one shard's samples so far.

    Args:
        url: the shard.
        grouper: makes the samples.
        refuse: parts of samples are errors; otherwise they are counted.
        most_bytes: about how much memory keys may take; the oldest are forgotten beyond it.

    Attributes:
        repeats: samples whose key came before with the same fields, or None.
        parts: samples whose key came before with other fields, where these are no errors, or None.
        last: key of the last sample, or an empty text.
        silent: whether another reader of the same samples reports them.
        look_up: gives what is before an offset, where the shard's headers can be read again; or None.
    """

    def __init__(self, url: str, grouper: Grouper, *, refuse: bool = True, most_bytes: int = MOST_BYTES) -> None:
        self.url = url
        self.repeats: _Repeats | None = None
        self.parts: _Repeats | None = None
        self.silent = False
        self.look_up: LookUp | None = None
        self._grouper = grouper
        self._refuse = refuse
        self._most_bytes = most_bytes
        self._bytes = 0
        self.last: object = ""
        # key of the sample before those that this reader gives, once it has been looked up
        self._preceding: object = ""
        self._rising: deque[tuple[list[object], list[Fields] | Fields]] = deque()
        # without fields, once keys do not rise
        self._new: set[object] | None = None
        self._older: set[object] = set()
        self._known: dict[object, Fields] | None = None
        self._fields: dict[tuple[str, ...], Fields] = {}

    @property
    def rising(self) -> bool:
        """Whether each key so far is greater than the one before."""
        return self._known is None and self._new is None

    def add(self, samples: list[Sample], offsets: list[int]) -> list[tuple[int, SplitSample]]:
        """Take the next complete samples, at least one, and where each starts.

        Returns:
            The index of each that is a part of a sample delivered before, and the error to raise; none, unless parts
                are errors.
        """
        keys = list(map(_key_of, samples))
        previous, self.last = self.last, keys[-1]
        known = self._known
        if known is None:
            if self._new is None and _keys_rise(previous, keys):
                if self.look_up is None:
                    self._keep(keys, samples)
                return []
            if self.look_up is not None and self._all_new(keys, offsets[0]):
                return []
            known = self.load_all_keys(offsets[0])
        return self._compare_keys(known, previous or self._preceding, keys, samples, offsets)

    def follow(self, look_up: "LookUp", offset: int | None = None) -> None:
        """Note that the shard's headers can be read again, or have been.

        Args:
            look_up: called with an offset, gives what is before it; called once a key does not rise.
            offset: begin with what is before it now, since it may not rise itself; it is not asked again.
        """
        self.look_up = look_up
        if offset is not None:
            self.load_all_keys(offset)

    def load_all_keys(self, offset: int) -> dict[object, Fields]:
        """Return the keys before the sample at an offset, with their fields, and continue with these."""
        if self._known is not None:
            return self._known
        known: dict[object, Fields] = {}
        if self.look_up is not None:
            before = self.look_up(offset)
            known, self._preceding = before.load_all_keys(offset), before.last
        for keys, fields in self._rising:
            known.update(_pair_fields(keys, fields))
        self._rising.clear()
        self._new, self._older, self.look_up = None, set(), None
        self._bytes = sum(_estimate_bytes([key]) + _ENTRY_BYTES for key in known)
        self._known = known
        return known

    def _keep(self, keys: list[object], samples: list[Sample]) -> None:
        """Keep keys that rise, with their fields: they cannot be looked up."""
        self._rising.append((keys, self._fields_of(samples)))
        self._bytes += _estimate_bytes(keys)
        while self._bytes > self._most_bytes and len(self._rising) > 1:
            self._bytes -= _estimate_bytes(self._rising.popleft()[0])

    def _all_new(self, keys: list[object], offset: int) -> bool:
        """Tell whether no key came before; their fields can be looked up."""
        new = self._new
        if new is None:
            new = self._new = set() if self.look_up is None else set(self.look_up(offset).load_all_keys(offset))
            self._bytes = sum(_estimate_bytes([key]) + _ENTRY_BYTES for key in new)
        count = len(new) + len(keys)
        if not (new.isdisjoint(keys) and self._older.isdisjoint(keys)):
            return False
        new.update(keys)
        self._bytes += _estimate_bytes(keys) + _ENTRY_BYTES * len(keys)
        if 2 * self._bytes > self._most_bytes and len(new) == count:
            self._older, self._new, self._bytes = new, set(), 0
        return len(new) == count

    def _compare_keys(
        self,
        known: dict[object, Fields],
        previous: object,
        keys: list[object],
        samples: list[Sample],
        offsets: list[int],
    ) -> list[tuple[int, SplitSample]]:
        """Compare keys and fields with those before."""
        fields = self._fields_of(samples)
        fresh = dict.fromkeys(keys, fields) if isinstance(fields, frozenset) else dict(zip(keys, fields, strict=True))
        found: list[tuple[int, SplitSample]] = []
        if len(fresh) == len(keys) and known.keys().isdisjoint(fresh):
            known.update(fresh)
        else:
            found = self._judge_samples(known, previous, _pair_fields(keys, fields), offsets)
        self._bytes += _estimate_bytes(keys) + _ENTRY_BYTES * len(keys)
        if self._bytes > self._most_bytes:
            self._known = dict(islice(known.items(), len(known) // 2, None))
            self._bytes //= 2
        return found

    def _judge_samples(
        self, known: dict[object, Fields], previous: object, pairs: Iterable[tuple[object, Fields]], offsets: list[int]
    ) -> list[tuple[int, SplitSample]]:
        """Judge samples one by one, since the key of some came before."""
        found: list[tuple[int, SplitSample]] = []
        for index, (key, names) in enumerate(pairs):
            before = known.get(key)
            if before is None:
                known[key] = names
            # begun anew on purpose, under duplicates="new"
            elif key == previous:
                pass
            elif before == names:
                self.repeats = _count_repeat(self.repeats, key, offsets[index])
            elif self._refuse:
                found.append((index, _split_sample_error(key, before, names, self.url, offsets[index])))
            else:
                self.parts = _count_repeat(self.parts, key, offsets[index])
            previous = key
        return found

    def _fields_of(self, samples: list[Sample]) -> list[Fields] | Fields:
        """Return the fields of each sample, or of all of them where they are alike."""
        every = self._grouper.every_field()
        # none can be longer
        if every is not None and sum(map(len, samples)) == every[1] * len(samples):
            return every[0]
        known = self._fields
        found = []
        for names in map(tuple, samples):
            fields = known.get(names)
            if fields is None:
                fields = frozenset(names) - self._grouper.stamped
                if len(known) < 1 << 10:
                    known[names] = fields
            found.append(fields)
        return found

    def tell(self) -> None:
        """Warn of what came again, once, when the shard is left."""
        repeats, self.repeats = self.repeats, None
        parts, self.parts = self.parts, None
        if self.silent:
            return
        if repeats is not None:
            warn_user(
                f"{redact(self.url)}: {repeats.describe()} with the same fields; all are delivered. If that is meant, "
                "pass split_samples='ignore'",
            )
        if parts is not None:
            warn_user(
                f"{redact(self.url)}: {parts.describe()} with other fields: these are parts of samples, and are "
                "delivered as samples of their own",
            )


def _pair_fields(keys: list[object], fields: list[Fields] | Fields) -> Iterable[tuple[object, Fields]]:
    return zip(keys, repeat(fields) if isinstance(fields, frozenset) else fields, strict=False)


def _keys_rise(previous: object, keys: list[Any]) -> bool:
    """Tell whether all keys are greater than those before; only ``duplicates="new"`` gives one twice in a row."""
    try:
        return bool(keys[0] > previous) and sorted(keys) == keys
    # a user's rule makes keys of another kind
    except TypeError:
        return False


def _estimate_bytes(keys: list[object]) -> int:
    """Return about how much memory keys take: those of one list are of about one length."""
    longest = max(
        len(key) if isinstance(key, str) else _STRING_BYTES for key in (keys[0], keys[len(keys) // 2], keys[-1])
    )
    return (_STRING_BYTES + longest) * len(keys)


def _count_repeat(seen: _Repeats | None, key: object, offset: int) -> _Repeats:
    return _Repeats(1, key, offset) if seen is None else seen._replace(times=seen.times + 1)


def _split_sample_error(key: object, before: Fields, names: Fields, url: str, offset: int) -> SplitSample:
    return SplitSample(
        f"a sample in parts: {_format_names(names)} does not stand next to {_format_names(before)}, which was "
        "delivered before as "
        "a sample of its own. Write the members of a sample one after another (tar --sort=name), or pass "
        "split_samples='warn' or 'ignore' to read parts as samples",
        key=cast("str", key), url=url, offset=offset if offset >= 0 else None,
    )  # fmt: skip


def _format_names(names: Fields) -> str:
    shown = sorted(names)
    return ", ".join(map(repr, shown[:5])) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "") or "no field"


_LARGE = 1 << 18
# between two headers: what lies between them is not read
_FAR = 1 << 14


class PassedHeaders:
    """The headers before the offset ``stop`` of a shard."""

    def __init__(self, url: str, reading: "TarReadingRules", stop: int) -> None:
        self._walk = TarWalker(reading.admit(), reading.limits)
        self._grouper = reading.grouper()
        self._grouper.open({"__url__": url})
        self._finished = FinishedKeys(url, self._grouper, refuse=False)
        self._stop = stop
        self._url, self._reading = url, reading
        # what is walked, where it can be read anywhere
        self._stream: IO[bytes] | None = None
        self._links: LinkResolver | None = None

    def feed(self, piece: bytes, offset: int) -> None:
        """Take bytes of the tar stream, from an offset on that is at most where the next header starts."""
        places = self._walk.walk(piece[: self._stop - offset], offset)
        members: list[Member] = [(place.name, b"", place.offset) for place in places]
        # a link that is read is a field as any other
        linked = self._walk.payloadless
        for some in self._open_links().resolve(members, linked, self._grouper) if linked else (members,):
            self._add(some)

    def _open_links(self) -> "LinkResolver":
        if self._links is None:
            from webdataset.samples.links import LinkResolver, make_read_at  # noqa: PLC0415  most shards have no links

            stream, rename = self._stream, getattr(self._reading, "rename_files", None)
            read_at = None if stream is None else make_read_at(stream, stream.tell)
            self._links = LinkResolver(self._url, self._reading.limits, lambda: read_at, rename, places=True)
        return self._links

    def _add(self, members: list[Member]) -> None:
        samples = self._grouper.add(members)
        while True:
            if samples:
                self._finished.add(samples, self._grouper.offsets)
            if self._grouper.fault is None:
                return
            samples = self._grouper.add(members, self._grouper.taken)

    def keys(self) -> FinishedKeys:
        """Return the keys: all samples before the stop are complete."""
        samples = self._grouper.close()
        if samples:
            self._finished.add(samples, self._grouper.offsets)
        return self._finished

    def walk_headers(self, stream: IO[bytes]) -> FinishedKeys:
        """Return the keys, found by going from header to header of a shard that is not compressed.

        The seekable stream stands afterwards where it stood.
        """
        place = stream.tell()
        self._stream = stream
        size = _LARGE
        try:
            while self._walk.error is None:
                offset, least = self._walk.wants
                if offset >= self._stop:
                    break
                stream.seek(offset)
                piece = stream.read(min(max(size, least), self._stop - offset))
                if not piece:
                    break
                self.feed(piece, offset)
                size = least if self._walk.wants[0] - offset > _FAR + size else min(2 * size, _LARGE)
        finally:
            stream.seek(place)
        return self.keys()
