"""Resolves members without bytes of their own: finds the targets of hard links, and counts members that are left out.

Theory. Programs that make archives store a file that has several names once, and a hard link for each further name. A
hard link has the bytes of the last member of its target's name before it, in the same shard, where they are
available:

1. where the target is a field of the same sample;
2. elsewhere in the shard, where the shard is not compressed and its source supports random access (a local file,
   bytes in memory, an object of a store). At the first such link the headers from the shard's start are walked, once.

Other hard links, symbolic links and payloads of unknown types are left out, counted, and reported by one warning a
shard. Names that belong to no sample, and those that ``select_files`` leaves out, are skipped without a warning. The
reader, the index and random access all use this module, so that a sample has the same fields whichever way it is
read. Bytes are read once for links to one member that follow each other closely.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Protocol

from webdataset.core.errors import NoRandomAccess, SourceError, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.samples.member_sizes import check_member_size
from webdataset.tar.compression import detect_compression
from webdataset.tar.header import HARD_LINK, SYMBOLIC_LINK, Limits
from webdataset.tar.member_assembly import Member, PayloadlessMember
from webdataset.tar.scanner import TarScanner
from webdataset.tar.walker import MemberPosition, TarWalker

MOST_NAMES = 1 << 20
CACHED_BYTES = 16 << 20
_SMALLEST, _LARGEST = 64 * 1024, 1 << 20

ReadAt = Callable[[int, int], bytes]
"""Returns some bytes of a shard: at an offset, so many, fewer at the end alone."""


class MemberNames(Protocol):
    """What knows the samples' names; see :class:`~webdataset.samples.grouping.Grouper`."""

    def split(self, name: str) -> tuple[str, str] | None:
        """Return key and field of a member, or None where it belongs to no sample."""
        ...

    def get_content(self, name: str, key: str) -> object:
        """Return what the sample in progress has of a member, or None; also where its key is another."""
        ...


class LinkTargets:
    """Finds the members that hard links lead to; ``read_at`` reads the shard."""

    def __init__(self, read_at: ReadAt, limits: Limits) -> None:
        self._read_at = read_at
        self._limits = limits
        self._begin()

    def _begin(self) -> None:
        self._walk = TarWalker(None, self._limits)
        self._reached = 0
        # hashes of names, to where the member of the name starts
        self._found: dict[int, int] = {}

    def place(self, target: str, before: int) -> MemberPosition | None:
        """Return where the last member of a name lies before a link's first header, or None where there is none.

        Raises:
            SourceError: the shard cannot be read.
        """
        if before < self._reached:
            self._begin()
        if not self._walk_to(before):
            return None
        offset = self._found.get(hash(target))
        return None if offset is None else self._place_at(offset)

    def _walk_to(self, before: int) -> bool:
        """Take note of all members before an offset; tell whether a member may start there."""
        walk, size = self._walk, _SMALLEST
        while walk.error is None and walk.wants[0] < before:
            offset, least = walk.wants
            wanted = min(max(size, least), before - offset)
            chunk = self._read_at(offset, wanted)
            self._note(walk.walk(chunk, offset), walk.payloadless)
            if len(chunk) < wanted:
                return False
            size = _SMALLEST if walk.wants[0] > offset + wanted else min(2 * size, _LARGEST)
        self._reached = before
        return walk.error is None and walk.wants[0] == before

    def _note(self, places: list[MemberPosition], payloadless: list[PayloadlessMember]) -> None:
        found, first = self._found, 0
        for entry in payloadless:
            found.update((hash(place.name), place.offset) for place in places[first : entry.place])
            first = entry.place
            offset = found.get(hash(entry.target)) if entry.kind == HARD_LINK else None
            if offset is None:
                found.pop(hash(entry.name), None)
            else:
                found[hash(entry.name)] = offset
        found.update((hash(place.name), place.offset) for place in places[first:])
        for name in list(itertools.islice(found, max(0, len(found) - MOST_NAMES))):
            del found[name]

    def _place_at(self, offset: int) -> MemberPosition | None:
        walk = TarWalker(None, self._limits)
        walk.position = offset
        while walk.error is None:
            start, least = walk.wants
            chunk = self._read_at(start, least)
            places = walk.walk(chunk, start)
            if places:
                return places[0]
            if len(chunk) < least:
                break
        return None

    def payload(self, place: MemberPosition) -> bytes | None:
        """Return the bytes of a member, or None where they are not whole.

        Raises:
            SourceError: the shard cannot be read.
        """
        if not place.sparse:
            content = self._read_at(place.payload, place.size)
            return content if len(content) == place.size else None
        scanner = TarScanner(None, self._limits)
        scanner.weigh = check_member_size
        scanner.restart(place.offset)
        while scanner.error is None:
            piece = self._read_at(scanner.offset, scanner.want)
            for _, payload, _ in scanner.feed(piece):
                return payload
            if not piece:
                break
        return None


class LinkResolver:
    """What the links of one shard lead to, and what is left out.

    Args:
        url: the shard.
        limits: bounds on headers and sparse members.
        source: called at the first link that leads out of its sample; gives what reads the shard anywhere, or None.
        rename: the rule that renames members, or None.
        places: give places in place of bytes, as members of an index are given.
    """

    def __init__(
        self,
        url: str,
        limits: Limits,
        source: Callable[[], ReadAt | None],
        rename: Callable[[str], str] | None = None,
        *,
        places: bool = False,
    ) -> None:
        self.url = url
        self._limits = limits
        self._source = source
        self._rename = rename
        self._places = places
        self._targets: LinkTargets | None = None
        self._asked = False
        self._left: Counter[int] = Counter()
        self._first: PayloadlessMember | None = None
        self._read: dict[int, bytes] = {}
        self._key: str | None = None

    def resolve(
        self, members: list[Member], payloadless: Sequence[PayloadlessMember], names: MemberNames
    ) -> Iterator[list[Member]]:
        """Yield lists of members with those that links lead to, each list before the next link is looked at."""
        first = 0
        for entry in payloadless:
            if entry.place > first:
                yield members[first : entry.place]
                first = entry.place
            found = self._resolve(entry, names)
            if found is not None:
                yield [(entry.name, found, entry.offset)]
        if first < len(members):
            yield members[first:]

    def _resolve(self, entry: PayloadlessMember, names: MemberNames) -> Any:
        """Return what a member without payload stands for, or None where it is left out."""
        named = names.split(entry.name)
        if named is None:
            return None
        found = None
        if entry.kind == HARD_LINK:
            target = entry.target if self._rename is None else self._rename(entry.target)
            found = names.get_content(target, named[0])
            if found is None:
                found = self._elsewhere(entry, named[0])
            if found is not None and target == entry.name:
                # a file that was packed twice under one name: the link says nothing
                return None
        if found is None:
            self._left[entry.kind] += 1
            self._first = self._first or entry
        return found

    def _elsewhere(self, entry: PayloadlessMember, key: str) -> Any:
        """Return the target's bytes, or place, from elsewhere in the shard; None where they are not at hand.

        Raises:
            SourceError: the shard cannot be read there.
        """
        if not self._asked:
            self._asked = True
            read_at = self._source()
            self._targets = None if read_at is None else LinkTargets(read_at, self._limits)
        if self._targets is None:
            return None
        try:
            place = self._targets.place(entry.target, entry.offset)
            if place is None or self._places:
                return place
            return self._bytes(place, key, self._targets)
        except (OSError, WebDatasetError) as error:
            if isinstance(error, SourceError) and not isinstance(error, NoRandomAccess):
                raise
            # the warning counts it as left out
            return None

    def _bytes(self, place: MemberPosition, key: str, targets: LinkTargets) -> bytes | None:
        """Return a member's bytes; one sample never holds the bytes of one member twice."""
        if key != self._key and sum(map(len, self._read.values())) > CACHED_BYTES:
            self._read = {}
        self._key = key
        payload = self._read.get(place.offset)
        if payload is None:
            payload = targets.payload(place)
            if payload is not None:
                self._read[place.offset] = payload
        return payload

    def tell(self) -> None:
        """Warn of what was left out since the last time, if anything was."""
        left, first = self._left, self._first
        if first is None:
            return
        self._left, self._first = Counter(), None
        kinds = {
            f"{left.pop(HARD_LINK, 0)} hard links whose target cannot be read again": HARD_LINK,
            f"{left.pop(SYMBOLIC_LINK, 0)} symbolic links": SYMBOLIC_LINK,
            f"{left.total()} payloads of unknown type": 0,
        }
        counts = ", ".join(text for text in kinds if not text.startswith("0 "))
        warn_user(
            f"{redact(self.url)}: members are left out: {counts}; the first is {first.name!r} at byte {first.offset}. "
            "Pack the files themselves (tar --dereference --hard-dereference), or leave these out with select_files",
        )


def open_random_access(url: str | os.PathLike[str], reading: object, length: int | None = None) -> ReadAt | None:
    """Open a shard once more, to read it anywhere; None where it is compressed, or read front to back only.

    None, too, where it is not ``length`` bytes long: another length is another shard.
    """
    from webdataset.storage.random_access import open_ranges  # noqa: PLC0415  most shards have no links

    try:
        options = getattr(reading, "storage_options", None)
        ranges = open_ranges(url, level=getattr(reading, "trust", None), storage_options=options)
        if detect_compression(ranges.read_at(0, 512)) is None and length in (None, ranges.length):
            return ranges.read_at
        ranges.close()
    except (OSError, WebDatasetError):
        pass
    return None


def make_read_at(stream: IO[bytes], here: Callable[[], int]) -> ReadAt:
    """Return what reads a seekable stream anywhere, and leaves it where ``here`` says that it stands."""

    def read_at(offset: int, size: int) -> bytes:
        stood = here()
        pieces: list[bytes] = []
        try:
            stream.seek(offset)
            while size > 0 and (piece := stream.read(size)):
                pieces.append(piece)
                size -= len(piece)
        finally:
            stream.seek(stood)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    return read_at
