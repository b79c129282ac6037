"""Parses chunks of a tar stream into members, without reading anything.

The theory is in docs/design/tar.md. The loop in ``_scan`` is the hot path of the library: a member whose header has
the same last 356 bytes as the one before costs two slices, one Adler sum over 156 bytes (exact: at most 39 780, below
the modulus) and three dictionary lookups. Every other header goes through ``_header``.

Chunks may have any size; the result is lists of (name, payload, offset of the first header block). The scanner never
reads and never raises: the error stands in ``error``, after the members that came whole before it.
"""

from collections.abc import Callable
from typing import Protocol
from zlib import adler32

from webdataset.core import errors
from webdataset.tar import header
from webdataset.tar.header import BLOCK, DECISIVE, NO_EXTENSION, REGULAR, Limits
from webdataset.tar.member_assembly import GATHERED, Admit, Member, MemberAssembly, MemberBody

CHUNK = 512 * 1024
FIRST_CHUNK = 32 * 1024
LARGE = 128 * 1024
# of a mapped file, once so many bytes of a payload are skipped: members are large, and only headers are read
_LARGE_SKIP = 16 * 1024
_HEADER_CHUNK = 4096
# a header may claim any size; a reader makes room for what it is asked to read
MOST_AT_ONCE = 1 << 30
_MOST_REMEMBERED = 1 << 16
# what a record of so many bytes starts with
_LENGTHS = tuple(b"%d " % size for size in range(BLOCK + 1))
# what is read here before the taker is asked again: an extended header, its records and a member, and more each time
_ONE_MEMBER = 4 * BLOCK
_MANY_MEMBERS = 128 * 1024


class Taker(Protocol):
    """Takes whole plain members before the scanner does, in another way.

    Attributes:
        paused: the last call took as much as it was to take, and continues in the next one.
    """

    paused: bool

    def take(self, buf: bytes, pos: int, base: int, most: int) -> tuple[bytes, int, int]:
        """Take members from a header on.

        Args:
            buf: a chunk.
            pos: where in it a header begins.
            base: offset of the chunk in the stream.
            most: bytes from which on it reads no more by itself.

        Returns:
            The chunk, the position in it of the first header that was not taken, and the chunk's offset; it is another
            one where the taker continued in bytes that it read by itself.
        """
        ...


class TarScanner(MemberAssembly):
    """Bytes to members.

    Args:
        admit: gives each member's name, or None to leave the member out; called once a member.
        limits: bounds on headers and sparse members.

    Attributes:
        coming: name of the large member whose payload is being collected, or None.
        taker: is asked first at each header, or None. Members that it does not take are returned before it is asked
            again: then ``feed`` returns early, ``waiting`` is true, and ``feed_waiting`` continues. So it does where
            the taker reads by itself and pauses.
        error: what is wrong with the stream, or None. Nothing comes after an error.
        largest_chunk: bytes of the largest chunks that ``want`` asks for.
    """

    def __init__(self, admit: Admit | None = None, limits: Limits = Limits()) -> None:  # noqa: B008  immutable
        super().__init__(admit, limits)
        self.error: Exception | None = None
        self.coming: str | None = None
        self.taker: Taker | None = None
        self._left: tuple[bytes, int, int] | None = None
        self._window = _ONE_MEMBER
        self._chunk = FIRST_CHUNK
        self.largest_chunk = CHUNK
        self._sizes: dict[bytes, int] = {}
        self._mapped_length = 0

    @property
    def want(self) -> int:
        """Number of bytes that would serve best next (any other number is right too)."""
        if self._need >= LARGE:
            # in one read it is never copied; else it grows by parts that are not large beside it
            untouched = self._body is not None and self._body.name is not None and self._need == self._body.size
            return min(self._need, MOST_AT_ONCE if untouched and self._need <= MOST_AT_ONCE else GATHERED)
        if self._body is None and self._chunk == 0:
            return self._skip + BLOCK
        chunk = self._chunk or self.largest_chunk
        return chunk - self.offset % BLOCK

    def restart(self, offset: int) -> None:
        """Forget what is in progress, and expect the bytes from the header at ``offset`` on.

        What is known of how headers look here is kept.
        """
        self.offset = offset
        self._rest, self._parts, self._whole = b"", [], None
        self._skip = self._need = self._zeros = self._chain = 0
        self._left = None
        self._body = self._first = self.error = self.coming = self.struck = None
        self._extension = self._globals = NO_EXTENSION

    @property
    def least(self) -> int:
        """Number of bytes up to the next decision: the rest of a payload, or the next header. Never more is needed."""
        return self._need if self._body is not None else self._skip + BLOCK - len(self._rest)

    @property
    def pending_name(self) -> str | None:
        """Name of the member whose payload is being collected, whatever its size; None where there is none."""
        body = self._body
        return body.name if body is not None and body.kind in REGULAR else None

    @property
    def progress(self) -> tuple[MemberBody | None, int]:
        """The body that is being collected, and how many bytes of it have come."""
        return self._body, 0 if self._body is None else self._body.size - self._need

    @property
    def skippable(self) -> int:
        """Number of bytes to come that will be thrown away, so that a source that can seek need not read them."""
        return self._need if self._body is not None and self._body.name is None else 0

    def step_over(self, count: int) -> None:
        """Take note that the source stepped over ``count`` bytes, fewer than ``skippable``."""
        self._need -= count
        self.offset += count

    def map(self, view: memoryview) -> None:
        """Give parts of a view as payloads from now on; the source skips those that a chunk cuts off.

        Args:
            view: of the whole file.
        """
        self.mapped, self._mapped_length = view, len(view)

    def skip_to(self, length: int) -> None:
        """Take note that the source skips the rest of a payload, at most up to offset ``length``."""
        count = min(self._skip, length - self.offset)
        self._skip -= count
        self.offset += count

    def feed(self, chunk: bytes) -> list[Member]:
        """Take the next bytes of the stream, any number; return the members that are complete now, in order."""
        members: list[Member] = []
        if self.payloadless:
            self.payloadless = []
        base = self.offset - len(self._rest)
        self.offset += len(chunk)
        if self._rest:
            chunk = self._rest + chunk
            self._rest = b""
        if self.error is None:
            self._try_advance(chunk, 0, base, members)
        return members

    @property
    def waiting(self) -> bool:
        """Whether bytes that were fed wait for ``feed_waiting``."""
        return self._left is not None

    def feed_waiting(self) -> list[Member]:
        """Continue in the bytes that wait, as ``feed`` does."""
        members: list[Member] = []
        left, self._left = self._left, None
        if left is not None and self.error is None:
            self._try_advance(*left, members)
        return members

    def take_waiting(self) -> bool:
        """Let a taker that paused continue; tell whether it has paused again. Where not, ``feed_waiting`` continues."""
        taker, left = self.taker, self._left
        if taker is None or left is None or not taker.paused:
            return False
        try:
            buf, pos, base = taker.take(*left, self.largest_chunk)
        except Exception as error:  # noqa: BLE001  kept, as by _try_advance
            self.error, self._left = error, None
            return False
        self.offset = base + len(buf)
        self._pause(buf, pos, base)
        return taker.paused

    def _pause(self, buf: bytes, pos: int, base: int) -> None:
        """Keep what a taker left for ``feed_waiting``; the position may lie after the chunk."""
        end = len(buf)
        self._left = buf[pos:], max(0, pos - end), base + min(pos, end)

    def _try_advance(self, buf: bytes, pos: int, base: int, members: list[Member]) -> None:
        try:
            self._advance(buf, pos, base, members)
        except Exception as error:  # noqa: BLE001  damage, or the user's ``admit``: kept until the members are given
            self.error = error
            self.coming = None

    def _advance(self, buf: bytes, pos: int, base: int, members: list[Member]) -> None:  # noqa: C901  one loop
        taker = self.taker
        last = end = len(buf)
        large = False
        while True:
            if self._body is not None:
                large = self._need >= LARGE and pos == 0 and end == self._need
                pos = self._collect(buf, pos, members)
                # more of it is to come, or the next block of a sparse map, or the pieces after it: perhaps none
                if self._body is not None:
                    if pos >= end and self._need:
                        break
                    continue
            if self._skip:
                step = min(self._skip, end - pos)
                self._skip -= step
                pos += step
                if self._skip:
                    break
            if taker is not None:
                if members or self.payloadless:
                    if pos >= end:
                        break
                    self._left, self.coming = (buf, pos, base), None
                    return
                buf, pos, base, last = self._take(taker, buf, pos, base)
                end = len(buf)
                self.offset = base + end
                if taker.paused:
                    self.coming = None
                    self._pause(buf, pos, base)
                    self._chunk = min(self.largest_chunk, (self._chunk or self.largest_chunk) * 2)
                    return
                if pos > end:
                    self._skip = pos - end
                    break
            pos = self._scan(buf, pos, base, members, last)
            if pos >= end or (self._body is None and not self._skip and end - pos < BLOCK):
                break
        self._rest = buf[pos:] if pos < end else b""
        body = self._body
        self.coming = body.name if body is not None and self._need >= LARGE and body.kind in REGULAR else None
        # after an exact read of a large body, ask for the next header alone; else grow towards whole chunks
        chunk = 0 if large else min(self.largest_chunk, (self._chunk or self.largest_chunk) * 2)
        self._chunk = _HEADER_CHUNK if self._mapped_length and self._skip >= _LARGE_SKIP else chunk

    def _take(self, taker: Taker, buf: bytes, pos: int, base: int) -> tuple[bytes, int, int, int]:
        """Let the taker take what it can; return where it stopped, and how far to read here before it is asked again.

        Where it takes nothing, again and again, it is asked ever more seldom.
        """
        # what extended headers, global ones and zero blocks mean for the next header is not its to know
        if self._first is None and not self._zeros and self._globals == NO_EXTENSION:
            before = base + pos
            buf, pos, base = taker.take(buf, pos, base, self._chunk or self.largest_chunk)
            self._window = _ONE_MEMBER if base + pos > before else min(2 * self._window, _MANY_MEMBERS)
        return buf, pos, base, min(len(buf), pos + self._window)

    def _scan(self, buf: bytes, pos: int, base: int, members: list[Member], last: int) -> int:  # noqa: C901, PLR0912, PLR0915  hot path
        """Read headers that end before ``last``, and bodies that are whole, from ``pos``; return where it stopped."""
        end = len(buf)
        admit, mapped, mapped_length = self.admit, self.mapped, self._mapped_length
        append = members.append
        size_of = self._sizes.get
        plain_tail, pax_tail, expect, directory = self._fast()
        # offset of a PAX header that says nothing about the member after it
        lead = -1
        while last - pos >= BLOCK:
            head = buf[pos : pos + 156]
            tail = buf[pos + 156 : pos + BLOCK]
            if tail == plain_tail:
                size = size_of(head[124:136], -1)
                total = expect(head[148:156])
                if size < 0 or adler32(head) & 0xFFFF != total:
                    size = self._learn(head, self._tail, self._tail_sum, self._expected, base + pos)
                start = pos + BLOCK
                stop = start + size
                name = (head[:100] if head[99] else head).partition(b"\0")[0]
                try:
                    path = name.decode()
                except UnicodeDecodeError:
                    path = name.decode("utf-8", "surrogateescape")
                offset = base + pos
                if lead >= 0:
                    offset, lead = lead, -1
                if directory:
                    path = directory + path
                if admit is not None:
                    self.struck = offset
                    path = admit(path)  # type: ignore[assignment]
                    self.struck = None
                if stop > end and base + stop > mapped_length:
                    self._begin(MemberBody(0x30, path, size, offset), start)
                    self._need = stop - end
                    if path is not None and start < end:
                        self._parts.append(buf[start:end])
                    return end
                if path is not None:
                    payload = mapped[base + start : base + stop] if mapped else buf[start:stop]
                    append((path, payload, offset))  # type: ignore[arg-type]  # see Member
                pos = start + (size + 511 & -512)
            elif tail == pax_tail and lead < 0 and self._indifferent(buf, head, pos, base):
                lead = base + pos
                pos += 2 * BLOCK
                continue
            else:
                if lead >= 0:
                    self._first, self._chain, lead = lead, 1, -1
                pos = self._header(head + tail, buf, pos, base, members)
                plain_tail, pax_tail, expect, directory = self._fast()
            if pos > end:
                self._skip = pos - end
                return end
            if self._body is not None:
                return pos
        return self._leave(lead, pos, base, early=last < end)

    def _leave(self, lead: int, pos: int, base: int, *, early: bool) -> int:
        """Note an extended header that the last scan ended on; return where the next one begins."""
        if lead < 0:
            return pos
        if early:
            # it is the taker's to read, with the member after it
            return lead - base
        self._first, self._chain = lead, 1
        return pos

    def _fast(self) -> tuple[bytes, bytes, Callable[[bytes], int | None], str]:
        """Return what the fast path compares with: no tails while extended headers or zero blocks wait."""
        if self._first is not None or self._zeros:
            return b"", b"", self._expected.get, self._directory
        return self._tail, self._pax_tail, self._expected.get, self._directory

    def _learn(self, head: bytes, tail: bytes, tail_sum: int, expected: dict[bytes, int], offset: int) -> int:
        """Verify a header whose size or checksum field is new here; remember both fields; return the size."""
        field = head[148:156]
        stored = header.parse_checksum(field)
        total = -1 if stored is None else stored - tail_sum - 256 + 1 + sum(field)
        if adler32(head) & 0xFFFF != total:
            # the signed sums of early writers, or damage: parse decides
            header.parse_header(head + tail, offset)
        elif len(expected) < _MOST_REMEMBERED:
            expected[field] = total
        size = header.parse_number(head[124:136], "size", offset)
        if len(self._sizes) < _MOST_REMEMBERED:
            self._sizes[head[124:136]] = size
        return size

    def _indifferent(self, buf: bytes, head: bytes, pos: int, base: int) -> bool:
        """Tell whether a PAX header seen here, with its one block of records, says nothing about the next member."""
        if len(buf) - pos < 2 * BLOCK:
            return False
        size = self._sizes.get(head[124:136], -1)
        total = self._pax_expected.get(head[148:156])
        if size < 0 or total is None or adler32(head) & 0xFFFF != total:
            size = self._learn(head, self._pax_tail, self._pax_sum, self._pax_expected, base + pos)
        body = buf[pos + BLOCK : pos + BLOCK + size]
        if not 0 < size <= BLOCK or body[-1] != 0x0A or b"=" not in body or not body.startswith(_LENGTHS[size]):
            # more than one record, or malformed: the complete path
            return False
        return DECISIVE.search(body) is None

    def finish(self) -> bool:
        """Note that the stream has ended; tell whether it ended with its end mark, not only on a member's border.

        What else is wrong stands in ``error``.
        """
        if self.error is not None:
            return True
        try:
            self._check_end()
        except (errors.Truncated, errors.BadHeader) as error:
            self.error = error
        return self._zeros > 0
