"""Checks one shard, front to back, from a stream: the engine under ``check_shards``.

Bytes go through :class:`~webdataset.inspection.header_walk.HeaderWalk` and the reader's own grouper. What the walk
calls damage becomes a finding; the search for the next header continues from there, and the bytes between are told as
not read. Memory: one piece of the stream, one field that is decoded, and the keys (``key_checks``).
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from webdataset.core import errors
from webdataset.core.errors import WebDatasetError, describe_error
from webdataset.inspection.field_checks import FieldCheck, check_field, find_field_check, judge_empty
from webdataset.inspection.findings import FindingList, ShardReport, ShardResult
from webdataset.inspection.header_walk import HeaderWalk, MemberObserver, find_header
from webdataset.inspection.key_checks import ODD_NAME, KeyBatch, KeyCheck, are_plain, judge_name
from webdataset.samples.grouping import Grouper, base_plus_ext, is_meta
from webdataset.tar.compression import Decompressor, detect_compression
from webdataset.tar.header import BLOCK, HARD_LINK, describe_content
from webdataset.tar.member_assembly import MARK
from webdataset.tar.walker import MemberPosition

PIECE_BYTES: Final = 1 << 20
_SKIP_BYTES: Final = 1 << 18  # fewer bytes are read, not stepped over
_MOST_EXTENSIONS: Final = 4096
_SUFFIXES: Final = {"gz": ("gz", "tgz"), "bz2": ("bz2", "tbz", "tbz2"), "xz": ("xz", "txz"), "zst": ("zst", "tzst")}


class CheckRules(NamedTuple):
    """What is checked, and how much is kept.

    Args:
        decode: decode fields.
        most_findings: findings of one code that a shard lists.
        most_keys: keys that are kept to find repetitions.
        most_field_bytes: larger fields are not decoded.
    """

    decode: bool = True
    most_findings: int = 100
    most_keys: int = 5_000_000
    most_field_bytes: int = 256 << 20


class _Pending(NamedTuple):
    """A payload whose bytes are still to come."""

    place: MemberPosition
    check: FieldCheck | None


def _name_damage(error: Exception, walk: HeaderWalk, offset: int) -> str:
    """Return the code of the error at which a walk stopped."""
    if isinstance(error, errors.LimitExceeded):
        return "limit"
    if walk.zero_blocks:
        return "trailing-garbage" if walk.zero_blocks >= MARK else "lone-zero-block"
    return "bad-extension" if offset == walk.chain_start else "bad-header"


class ShardCheck:
    """The check of one shard.

    Args:
        url: the shard.
        rules: what is checked.
        compare: takes batches of keys, to compare them with other shards'.
        observer: takes what is found besides.
    """

    def __init__(
        self,
        url: str,
        rules: CheckRules,
        compare: Callable[[KeyBatch], object] | None = None,
        *,
        observer: MemberObserver | None = None,
    ) -> None:
        self.url = url
        self.findings = FindingList(url, rules.most_findings)
        self.compression: str | None = None
        self._rules = rules
        self._keys = KeyCheck(self.findings, rules.most_keys, compare)
        self._not_checked: dict[str, dict[str, Any]] = {}
        self._observer = observer
        self._grouper = Grouper()
        self._walk = HeaderWalk(self._note)
        self._length = 0
        self._members = 0
        self._unread: list[tuple[int, int | None]] = []
        self._lost: int | None = None  # where the bytes begin in which the next header is searched
        self._tail = b""  # the last bytes of the piece before, where a header may have begun
        self._stopped = False
        self._interrupted: str | None = None
        self._suspect = False  # the next sample follows damage
        self._last: MemberPosition | None = None
        self._pending: _Pending | None = None
        self._parts: list[bytes] = []
        self._checks: dict[str, FieldCheck | None] = {}

    def _note(self, code: str, message: str, **places: Any) -> None:
        member = places.get("member")
        if member is not None and "key" not in places:
            key, field = base_plus_ext(member)
            places |= {"key": key, "field": field}
        self.findings.add(code, message, **places)

    def run(self, stream: Any, *, seek_within: int = 0, taken: Callable[[bytes], None] | None = None) -> None:
        """Check all bytes of a stream.

        Args:
            stream: open, at its first byte.
            seek_within: length of a stream that can seek, whose payloads are stepped over where they are not looked
                at; 0 reads all bytes.
            taken: called with each piece as it is stored.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what decoders say of odd fields
            try:
                for piece in self._pieces(stream, seek_within, taken):
                    self._feed(piece)
            except (OSError, WebDatasetError) as error:
                code = "bad-compression" if isinstance(error, errors.BadCompression) else "unreadable"
                self._note(code, describe_error(error), offset=self._length)
                self._lose(self._length, told=True)
            self._finish()

    def fail(self, error: Exception) -> None:
        """Take note that the shard could not be opened.

        Args:
            error: why.
        """
        self._note("unreadable", describe_error(error))
        self._lost = 0
        self._unread.append((0, None))
        self._stopped = True

    def _pieces(self, stream: Any, length: int, taken: Callable[[bytes], None] | None) -> Iterator[bytes]:
        """Yield the tar stream in pieces, decompressed."""
        first = b""
        while len(first) < BLOCK and (more := stream.read(PIECE_BYTES)):
            first += more
        if taken is not None:
            taken(first)
        kind = self.compression = detect_compression(first)
        if kind is None:
            yield from self._plain_pieces(stream, first, length, taken)
            return
        engine = Decompressor(kind, ignore_trailing=True)
        piece = first
        while piece:
            yield from engine.feed(piece)
            piece = stream.read(PIECE_BYTES)
            if taken is not None:
                taken(piece)
        engine.finish()
        if engine.trailing is not None:
            self._note(
                "trailing-garbage",
                f"{engine.taken - engine.trailing} bytes after the {kind} stream, from compressed byte "
                f"{engine.trailing} on, belong to nothing",
            )

    def _plain_pieces(
        self, stream: Any, piece: bytes, length: int, taken: Callable[[bytes], None] | None
    ) -> Iterator[bytes]:
        while piece:
            yield piece
            ahead = self._skippable() if length and taken is None else 0
            if ahead > _SKIP_BYTES and self._length + ahead < length:
                stream.seek(ahead, 1)
                self._length += ahead
            piece = stream.read(PIECE_BYTES)
            if taken is not None:
                taken(piece)

    def _skippable(self) -> int:
        if self._pending is not None or self._lost is not None or self._walk.error is not None:
            return 0
        return self._walk.wants[0] - self._length

    def _feed(self, piece: bytes) -> None:
        """Take the next bytes of the tar stream."""
        base = self._length
        self._length += len(piece)
        if base == 0 and (found := describe_content(piece[:BLOCK])) is not None and piece[257:262] != b"ustar":
            self._note("wrong-file", f"its content is {found}", offset=0)
            self._unread.append((0, None))
            self._stopped = True
        if self._stopped:
            return
        if self._observer is not None:
            self._observer.take_piece(piece)
        if self._tail:
            piece, base, self._tail = self._tail + piece, base - len(self._tail), b""
        if self._pending is not None:
            self._collect(self._pending, piece, base)
        start = base
        while True:
            if self._lost is not None:
                found_at = self._search(self._lost, piece, base, start)
                if found_at is None:
                    self._tail = piece[1 - BLOCK :]
                    return
                start = found_at
            places = self._walk.walk(piece[start - base :] if start > base else piece, start)
            self._take(places, piece, base)
            if self._walk.error is None:
                return
            start = max(base, self._strike(self._walk.error))

    def _take(self, places: list[MemberPosition], piece: bytes, base: int) -> None:
        """Take members whose headers are read."""
        if places:
            self._members += len(places)
            self._last = places[-1]
            self._inspect(places, piece, base)
        members: list[Any] = [(place.name, place, place.offset) for place in places]
        links: dict[int, str] = {}
        for entry in reversed(self._walk.payloadless):
            if entry.kind == HARD_LINK:  # readers that can find its target give it as a field
                link = MemberPosition(entry.name, entry.offset, entry.offset, 0)
                members.insert(entry.place, (entry.name, link, entry.offset))
                links[entry.offset] = entry.target
        if members:
            if self._observer is not None:
                self._observer.take_links(links)
                self._observer.take_members(members)
            self._group(members)

    def _inspect(self, places: list[MemberPosition], piece: bytes, base: int) -> None:
        """Look at names and contents, one by one where there is something to see."""
        observer, decoding = self._observer, self._rules.decode
        if not decoding and observer is None and are_plain(places, self._checks.keys()):
            return
        odd, checks = ODD_NAME.search, self._checks
        for place in places:
            name = place.name
            if odd(name) is not None:
                for code, message in judge_name(name):
                    self._note(code, message, offset=place.offset, member=name)
            dot = name.find(".", name.rfind("/") + 1)
            extension = name[dot + 1 :] if dot > 0 and name[dot - 1] != "/" else ""
            check = checks[extension] if extension in checks else self._judge_extension(name, extension, place)
            if not place.size:
                fault = judge_empty(check) if check is not None and decoding else None
                code, message = fault or ("empty-member", "it has no bytes")
                self._note(code, message, offset=place.offset, member=name)
            elif (check is not None and decoding) or (observer is not None and observer.wants_payload(place)):
                self._fetch(place, check if decoding else None, piece, base)

    def _judge_extension(self, name: str, extension: str, place: MemberPosition) -> FieldCheck | None:
        """Return how fields of an extension are checked; tell of one that is none, or has capitals."""
        key, field = base_plus_ext(name)
        if key is None or field is None:
            if not is_meta(name):
                self._note("no-extension", "it belongs to no sample", offset=place.offset, member=name)
            return None
        if is_meta(name):
            return None
        check = find_field_check(field)
        if field != field.lower():
            self._note("upper-case-extension", f"its extension is {field!r}", offset=place.offset, member=name)
        elif len(self._checks) < _MOST_EXTENSIONS and not field.startswith("__"):
            self._checks[extension] = check
        return check

    def _fetch(self, place: MemberPosition, check: FieldCheck | None, piece: bytes, base: int) -> None:
        """Decode a field, now or as soon as all of it has come."""
        if place.sparse:
            return
        if place.size > self._rules.most_field_bytes:
            self._note(
                "too-large", f"{place.size} bytes, which are not decoded", offset=place.offset, member=place.name
            )
            return
        start = place.payload - base
        stop = start + place.size
        if stop <= len(piece):
            self._judge(place, check, piece[start:stop])
        else:
            self._pending = _Pending(place, check)
            self._parts = [piece[start:]] if start < len(piece) else []

    def _collect(self, pending: _Pending, piece: bytes, base: int) -> None:
        """Take bytes of the field that is collected."""
        start = max(0, pending.place.payload - base)
        stop = pending.place.payload + pending.place.size - base
        self._parts.append(piece[start:stop])
        if stop <= len(piece):
            whole, self._parts, self._pending = b"".join(self._parts), [], None
            self._judge(pending.place, pending.check, whole)

    def _judge(self, place: MemberPosition, check: FieldCheck | None, payload: bytes) -> None:
        if self._observer is not None and self._observer.wants_payload(place):
            self._observer.take_payload(place, payload)
        if check is None or check.extension in self._not_checked:
            return
        fault = check_field(check, payload)
        if fault is None:
            return
        if fault.code == "not-checked":
            key, field = base_plus_ext(place.name)
            places = {"offset": place.offset, "member": place.name, "key": key, "field": field}
            self._not_checked[check.extension] = {"message": fault.message, **places}
            return
        self._note(fault.code, fault.message, offset=place.offset, member=place.name)

    def _group(self, members: list[Any]) -> None:
        """Group members into samples, and tell of those that do not fit."""
        grouper = self._grouper
        if self._suspect and members:
            self._tell_suspect(members[0][0])
        self._add(grouper.add(members))
        while grouper.fault is not None:
            fault, place = grouper.fault, members[grouper.taken - 1][1]
            own = fault.field == "__key__" or (fault.field or "").startswith("__")
            self.findings.add(
                "own-field" if own else "duplicate-field",
                f"the field {fault.field!r} stands twice in the sample {fault.key!r}"
                if not own
                else f"a member may not be called {place.name!r}",
                offset=place.offset, member=place.name, key=fault.key, field=fault.field,
            )  # fmt: skip
            self._add(grouper.add(members, grouper.taken))

    def _add(self, samples: list[dict[str, Any]]) -> None:
        if samples:
            self._keys.add(samples, self._grouper.offsets, parts_known=self._interrupted)

    # damage

    def _strike(self, error: Exception) -> int:
        """Tell of damage; return the offset from which the next header is searched."""
        walk = self._walk
        offset = getattr(error, "offset", None)
        offset = self._length if offset is None else offset
        first = walk.chain_start
        resume = walk.resume if offset == first else offset + BLOCK
        self._note(
            _name_damage(error, walk, offset),
            error.message if isinstance(error, WebDatasetError) else describe_error(error),
            offset=offset,
        )
        self._lose(offset if first is None else first, told=walk.zero_blocks >= MARK)
        return resume

    def _lose(self, offset: int, *, told: bool) -> None:
        """Take note that what follows an offset cannot be read; the sample in progress may lack fields."""
        key = self._grouper.key
        self._add(self._grouper.close())
        if key is not None and not told:
            self._note(
                "interrupted-sample",
                f"the damage at byte {offset} follows the sample {key!r}: some of its fields may be missing",
                offset=offset, key=key,
            )  # fmt: skip
        self._interrupted = key
        if self._lost is None:
            self._lost = offset
        self._suspect = not told
        self._walk = HeaderWalk(self._note, offset)

    def _search(self, lost: int, piece: bytes, base: int, start: int) -> int | None:
        """Search the next header; return its offset, or None."""
        at = find_header(piece, start - base, (lost - base) % BLOCK)
        if at is None:
            return None
        self._unread.append((lost, base + at))
        self._lost = None
        self._walk = HeaderWalk(self._note, base + at)
        return base + at

    def _tell_suspect(self, name: str) -> None:
        self._suspect = False
        key = base_plus_ext(name)[0]
        if key is not None and key != self._interrupted:
            self._note(
                "interrupted-sample",
                f"damage stands before the sample {key!r}: some of its fields may be missing",
                member=name, key=key,
            )  # fmt: skip

    # the end

    def _finish(self) -> None:
        """Take note that the stream has ended."""
        if not self._stopped:
            self._judge_end()
        self._add(self._grouper.close())
        self._keys.finish()
        if self._length and not self._stopped and not self._keys.samples and not self._unread:
            self._note("empty-shard", "it holds no samples")
        self._judge_own_name()

    def _judge_end(self) -> None:
        length = self._length
        if self._lost is not None:
            self._unread.append((self._lost, length if length > self._lost else None))
            if not self._members and self._lost == 0 and length:
                self._note("wrong-file", "no tar header was found in it", offset=0)
            return
        if not length:
            self._note("empty-file", "it has no bytes", offset=0)
            return
        walk = self._walk
        ended = walk.end_at(length)
        if walk.error is not None:
            if walk.zero_blocks >= MARK:
                self._note(
                    "trailing-garbage", "bytes after its end mark belong to nothing", offset=length - length % BLOCK
                )
                return
            missing = max(0, walk.position - length)
            self._note(
                "cut",
                f"it ends at byte {length}, inside a member, a header or its padding"
                + (f"; at least {missing} bytes are missing" if missing else ""),
                offset=length,
                member=None if self._last is None or self._whole(length) else self._last.name,
            )
            self._cut(length)
        elif not ended:
            self._note("no-end-mark", f"it ends at byte {length}, after a whole member", offset=length)
            if self._grouper.key is not None:
                self._note(
                    "interrupted-sample",
                    f"the archive ends with the sample {self._grouper.key!r}: some of its fields may be missing",
                    offset=length, key=self._grouper.key,
                )  # fmt: skip
        elif walk.zero_blocks < MARK:
            self._note("short-end-mark", "its end mark is one block of zeros", offset=length - BLOCK)

    def _whole(self, length: int) -> bool:
        return self._last is None or self._walk.whole(self._last, length)

    def _cut(self, length: int) -> None:
        last = self._last
        start = last.offset if last is not None and not self._whole(length) else length - length % BLOCK
        self._unread.append((min(start, length), length))
        key = self._grouper.key
        if key is not None:
            self._note(
                "interrupted-sample",
                f"the archive is cut in or after the sample {key!r}: some of its fields are missing",
                offset=start, key=key,
            )  # fmt: skip

    def _judge_own_name(self) -> None:
        path = self.url.partition("?")[0].lower()
        stated = next(
            (kind for kind, ends in _SUFFIXES.items() if path.endswith(tuple(f".{end}" for end in ends))), None
        )
        named = stated is not None or path.endswith(".tar")
        if named and not self._stopped and self._length and stated != self.compression:
            found = self.compression or "no compression"
            self._note("misleading-name", f"its name says {stated or 'no compression'}, its bytes {found}")

    def result(self) -> ShardResult:
        """Return what was found, to be compared with other shards."""
        return ShardResult(
            self.url,
            self.findings,
            compression=self.compression,
            samples=self._keys.samples,
            members=self._members,
            size_bytes=self._length,
            unread=tuple(self._unread),
            fields=dict(self._keys.fields),
            not_checked=self._not_checked,
            most_keys=self._rules.most_keys,
            forgot=self._keys.forgot,
        )

    def report(self) -> ShardReport:
        """Return what was found in this shard alone."""
        return self.result().finish(set())
