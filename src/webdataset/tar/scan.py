"""The scanner: chunks of a tar stream in, members out, without reading anything.

Theory. See docs/design/tar.md. The loop in ``_scan`` is the hot path of the library: a member whose header has the
same last 356 bytes as the one before costs two slices, one Adler sum over 156 bytes (exact: at most 39 780, below the
modulus) and three dictionary lookups. Every other header goes through ``_header``.

Flows in: bytes, in chunks of any size. Flows out: lists of (name, payload, offset of the first header block). Never
reads, never raises: what is wrong stands in ``error``, behind the members that came whole before it.
"""

from collections.abc import Callable
from typing import NamedTuple
from zlib import adler32

from webdataset.ground.errors import BadHeader, LimitExceeded, TarError, Truncated

from . import header, sparse
from .header import BLOCK, CONTINUATION, LONG_LINK, LONG_NAME, PAX_GLOBAL, PAX_LOCAL, REGULAR, WITHOUT_BODY, ZEROS, Limits
from .records import DECISIVE, NOTHING, Extension, extended

Member = tuple[str, bytes, int]
Admit = Callable[[str], str | None]

CHUNK = 256 * 1024
FIRST_CHUNK = 32 * 1024
LARGE = 64 * 1024
_REMEMBERED = 1 << 16
_PLAIN_NUMBER = frozenset(b"01234567")


class _Body(NamedTuple):
    """A body that is being collected over several chunks."""

    kind: int
    name: str | None  # None: to be thrown away
    size: int
    offset: int
    layout: sparse.Map | None = None


class TarScanner:
    """Bytes to members.

    Args:
        admit: gives each member's name, or None to leave the member out; called once a member.
        limits: bounds on headers and sparse members.

    Attributes:
        offset: number of bytes fed so far.
        error: what is wrong with the stream, or None. Nothing comes after an error.
    """

    __slots__ = (
        "_body", "_chain", "_chunk", "_directory", "_expected", "_extension", "_first", "_globals", "_need", "_parts",
        "_pax_expected", "_pax_sum", "_pax_tail", "_rest", "_sizes", "_skip", "_tail", "_tail_sum", "_zeros",
        "admit", "error", "limits", "offset",
    )  # fmt: skip

    def __init__(self, admit: Admit | None = None, limits: Limits = Limits()) -> None:  # noqa: B008  immutable
        self.admit = admit
        self.limits = limits
        self.offset = 0
        self.error: TarError | None = None
        self._chunk = FIRST_CHUNK
        self._rest = b""
        self._skip = 0
        self._body: _Body | None = None
        self._need = 0
        self._parts: list[bytes] = []
        self._zeros = 0
        self._extension = NOTHING
        self._globals = NOTHING
        self._chain = 0
        self._first: int | None = None  # offset of the chain's first header
        self._sizes: dict[bytes, int] = {}
        self._tail = b""
        self._tail_sum = 0
        self._expected: dict[bytes, int] = {}
        self._directory = ""
        self._pax_tail = b""
        self._pax_sum = 0
        self._pax_expected: dict[bytes, int] = {}

    @property
    def want(self) -> int:
        """Number of bytes that would serve best next (any other number is right too)."""
        if self._need >= LARGE:
            return self._need
        if self._body is None and self._chunk == 0:
            return self._skip + BLOCK
        chunk = self._chunk or CHUNK
        return chunk - self.offset % BLOCK

    @property
    def skippable(self) -> int:
        """Number of bytes to come that will be thrown away, so that a source that can seek need not read them."""
        return self._need if self._body is not None and self._body.name is None else 0

    @property
    def between_members(self) -> bool:
        """True where the stream may end (apart from the end mark)."""
        return self._body is None and not self._skip and not self._rest and self._first is None

    def skipped(self, count: int) -> None:
        """Take note that the source stepped over ``count`` bytes, fewer than ``skippable``."""
        self._need -= count
        self.offset += count

    def feed(self, chunk: bytes) -> list[Member]:
        """Take the next bytes of the stream.

        Args:
            chunk: bytes, any number of them.

        Returns:
            The members that are complete now, in order.
        """
        members: list[Member] = []
        base = self.offset - len(self._rest)
        self.offset += len(chunk)
        if self._rest:
            chunk = self._rest + chunk
            self._rest = b""
        if self.error is not None:
            return members
        try:
            self._advance(chunk, base, members)
        except TarError as error:
            self.error = error
        return members

    def _advance(self, buf: bytes, base: int, members: list[Member]) -> None:
        pos = 0
        large = False
        while True:
            if self._body is not None:
                large = self._need >= LARGE and pos == 0 and len(buf) == self._need
                pos = self._collect(buf, pos, members)
                if self._body is not None:
                    return
            if self._skip:
                step = min(self._skip, len(buf) - pos)
                self._skip -= step
                pos += step
                if self._skip:
                    break
            pos = self._scan(buf, pos, base, members)
            if self._body is None and not self._skip:
                break
        self._rest = buf[pos:]
        # after an exact read of a large body, ask for the next header alone; else grow towards whole chunks
        self._chunk = 0 if large else min(CHUNK, (self._chunk or CHUNK) * 2)

    def _scan(self, buf: bytes, pos: int, base: int, members: list[Member]) -> int:  # noqa: C901, PLR0912  hot path
        """Read headers and the bodies that are whole, from ``pos``; return where it stopped."""
        end = len(buf)
        admit = self.admit
        append = members.append
        size_of = self._sizes.get
        plain_tail, expect, directory = self._fast()
        lead = -1  # offset of a PAX header that says nothing about the member after it
        while end - pos >= BLOCK:
            head = buf[pos : pos + 156]
            tail = buf[pos + 156 : pos + BLOCK]
            if tail == plain_tail:
                size = size_of(head[124:136], -1)
                total = expect(head[148:156])
                if size < 0 or adler32(head) & 0xFFFF != total:
                    size = self._learn(head, self._tail, self._tail_sum, self._expected, base + pos)
                start = pos + BLOCK
                stop = start + size
                name = head[:100].rstrip(b"\0") if head[99] else head[: head.find(0)]
                path = name.decode("utf-8", "surrogateescape")
                offset = base + pos
                if lead >= 0:
                    offset, lead = lead, -1
                if directory:
                    path = directory + path
                if admit is not None:
                    path = admit(path)  # type: ignore[assignment]
                if stop > end:
                    return self._begin(_Body(0x30, path, size, offset), start)
                if path is not None:
                    append((path, buf[start:stop], offset))
                pos = start + (size + 511 & -512)
            elif tail == self._pax_tail and lead < 0 and self._indifferent(buf, head, pos, base):
                lead = base + pos
                pos += 2 * BLOCK
                continue
            else:
                if lead >= 0:
                    self._first, self._chain, lead = lead, 1, -1
                pos = self._header(head + tail, buf, pos, base, members)
                plain_tail, expect, directory = self._fast()
            if pos > end:
                self._skip = pos - end
                return end
            if self._body is not None:
                return pos
        if lead >= 0:
            self._first, self._chain = lead, 1
        return pos

    def _fast(self) -> tuple[bytes, Callable[[bytes], int | None], str]:
        """Return what the fast path compares with: no tail at all while an extended header waits for its member."""
        return (self._tail if self._first is None else b""), self._expected.get, self._directory

    def _learn(self, head: bytes, tail: bytes, tail_sum: int, expected: dict[bytes, int], offset: int) -> int:
        """Verify a header whose size or checksum field is new here; remember both fields; return the size."""
        field = head[148:156]
        text = field.partition(b"\0")[0].strip()
        if not text or not _PLAIN_NUMBER.issuperset(text):
            raise BadHeader(f"tar header has checksum field {field!r} at byte {offset}", offset=offset)
        total = int(text, 8) - tail_sum - 256 + 1 + sum(field)
        if adler32(head) & 0xFFFF != total:
            # the signed sums of early writers, or damage: parse decides
            header.parse(head + tail, offset)
        elif len(expected) < _REMEMBERED:
            expected[field] = total
        size = header.number(head[124:136], "size", offset)
        if len(self._sizes) < _REMEMBERED:
            self._sizes[head[124:136]] = size
        return size

    def _indifferent(self, buf: bytes, head: bytes, pos: int, base: int) -> bool:
        """Tell whether a PAX header seen here, with its one block of records, says nothing about the next member."""
        if self._first is not None or len(buf) - pos < 2 * BLOCK:
            return False
        size = self._sizes.get(head[124:136], -1)
        total = self._pax_expected.get(head[148:156])
        if size < 0 or total is None or adler32(head) & 0xFFFF != total:
            size = self._learn(head, self._pax_tail, self._pax_sum, self._pax_expected, base + pos)
        body = buf[pos + BLOCK : pos + BLOCK + size]
        if not 0 < size <= BLOCK or body[-1] != 0x0A or body[: body.find(b" ")] != b"%d" % size:
            return False  # more than one record, or malformed: the complete path
        return DECISIVE.search(body) is None

    def _begin(self, body: _Body, pos: int) -> int:
        """Start to collect a body that is not whole in this chunk."""
        self._body = body
        self._need = body.size
        return pos

    def _collect(self, buf: bytes, pos: int, members: list[Member]) -> int:
        """Take bytes for the body in progress; deliver it when it is whole."""
        body = self._body
        if body is None:
            return pos
        part = buf if pos == 0 and len(buf) == self._need else buf[pos : pos + self._need]
        self._need -= len(part)
        if body.name is not None or body.kind not in REGULAR:
            self._parts.append(part)
        if self._need:
            return len(buf)
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._body = None
        self._skip = -body.size & 511
        self._finish_body(body, whole, members)
        return pos + len(part)

    def _finish_body(self, body: _Body, whole: bytes, members: list[Member]) -> None:
        """Deliver a member, or take up an extended header."""
        if body.kind in REGULAR:
            if body.name is not None:
                payload = whole
                if body.layout is not None:
                    payload = sparse.expanded(body.layout, whole, body.offset, self.limits.expanded_bytes)
                members.append((body.name, payload, body.offset))
        elif body.kind == header.SPARSE:
            self._sparse_extension(body, whole)
        elif body.kind == LONG_NAME:
            self._extension = self._extension._replace(name=whole.partition(b"\0")[0])
        elif body.kind in PAX_LOCAL:
            self._extension = extended(self._extension, whole, body.offset)
        elif body.kind == PAX_GLOBAL:
            self._globals = extended(self._globals, whole, body.offset)._replace(sparse=())

    def _sparse_extension(self, body: _Body, block: bytes) -> None:
        layout, more = sparse.extended_map(body.layout or sparse.Map((), 0), block, body.offset)
        if len(layout.pieces or ()) > self.limits.record_bytes:
            raise LimitExceeded(f"sparse map at byte {body.offset} has too many pieces", offset=body.offset)
        if more:
            self._begin(body._replace(layout=layout), 0)
            self._need = BLOCK
        else:
            stored = sum(length for _, length in layout.pieces or ())
            self._begin(_Body(0x30, body.name, stored, body.offset, layout), 0)

    def _header(self, block: bytes, buf: bytes, pos: int, base: int, members: list[Member]) -> int:
        """Read one header block the complete way; return where the next thing starts."""
        offset = base + pos
        if block == ZEROS:
            if self._first is not None:
                raise BadHeader(f"an extended header stands before the zero block at byte {offset}", offset=offset)
            self._zeros += 1
            return pos + BLOCK
        if self._zeros == 1:
            raise BadHeader(
                f"a single zero block stands inside the archive at byte {offset - BLOCK}: a header was zeroed, or two "
                "archives were joined badly",
                offset=offset - BLOCK,
            )
        found = header.parse(block, offset)
        if self._zeros:
            self._zeros = 0
            self._globals = NOTHING
        first = self._first if self._first is not None else offset
        if found.kind in (LONG_NAME, LONG_LINK, PAX_GLOBAL) or found.kind in PAX_LOCAL:
            return self._extended_header(found, buf, pos, first, members)
        self._remember(found, block)
        said, self._extension, self._first, self._chain = self._extension, NOTHING, None, 0
        return self._member(found, said, buf, pos, first, members)

    def _extended_header(self, found: header.Header, buf: bytes, pos: int, first: int, members: list[Member]) -> int:
        self._first = first
        self._chain += 1
        if self._chain > self.limits.chain or found.size > self.limits.record_bytes:
            raise LimitExceeded(
                f"extended headers at byte {first}: {self._chain} in a row, the last of {found.size} bytes "
                f"(limits {self.limits.chain} and {self.limits.record_bytes})",
                offset=first,
            )
        if found.kind in PAX_LOCAL and found.size <= BLOCK:
            self._pax_tail = found.block[156:]
            self._pax_sum = sum(self._pax_tail)
            self._pax_expected = {}
        return self._deliver(_Body(found.kind, "", found.size, first), buf, pos + BLOCK, members)

    def _remember(self, found: header.Header, block: bytes) -> None:
        """Take this header's tail as the one to expect next, if its members are plain."""
        if found.kind not in REGULAR or found.name.endswith(b"/") or self._globals is not NOTHING:
            return
        self._tail = block[156:]
        self._tail_sum = sum(self._tail)
        self._expected = {}
        self._directory = header.path_prefix(block).decode("utf-8", "surrogateescape")

    def _member(
        self, found: header.Header, said: Extension, buf: bytes, pos: int, first: int, members: list[Member]
    ) -> int:
        """Deliver what a main header announces, under what extended headers said of it."""
        name = said.name if said.name is not None else self._globals.name
        name = found.name if name is None else name
        if len(name) > self.limits.name_bytes:
            raise LimitExceeded(f"member name of {len(name)} bytes at byte {first}", offset=first)
        if found.kind in WITHOUT_BODY:
            return pos + BLOCK
        if found.kind == CONTINUATION:
            raise BadHeader(f"a multi-volume continuation at byte {first}: join the volumes first", offset=first)
        size = said.size if said.size is not None else self._globals.size
        size = found.size if size is None else size
        if found.kind not in REGULAR and found.kind != header.SPARSE:
            return self._deliver(_Body(0x30, None, size, first), buf, pos + BLOCK, members)
        path: str | None = name.decode("utf-8", "surrogateescape")
        if self.admit is not None and path is not None:
            path = self.admit(path)
        layout = sparse.record_map(said.sparse, first) if said.sparse else None
        if found.kind == header.SPARSE:
            layout, more = sparse.old_map(found.block, first)
            if more:
                self._begin(_Body(header.SPARSE, path, size, first, layout), 0)
                self._need = BLOCK
                return pos + BLOCK
        return self._deliver(_Body(0x30, path, size, first, layout), buf, pos + BLOCK, members)

    def _deliver(self, body: _Body, buf: bytes, start: int, members: list[Member]) -> int:
        """Finish a body that is whole in this chunk, or begin to collect it."""
        stop = start + body.size
        if stop > len(buf):
            return self._begin(body, start)
        self._finish_body(body, buf[start:stop], members)
        return start + (body.size + 511 & -512)

    def finish(self) -> bool:
        """Take note that the stream has ended.

        Returns:
            True where the archive ended with its end mark; False where it ended on a member boundary without one.
            What else is wrong stands in ``error``.
        """
        if self.error is not None:
            return True
        try:
            self._check_end()
        except Truncated as error:
            self.error = error
        return self._zeros > 0 or bool(self._rest)

    def _check_end(self) -> None:
        if self._body is not None:
            body = self._body
            what = f"member {body.name!r}" if body.name else "a member or an extended header"
            missing = self._need
            raise Truncated(
                f"the stream ends at byte {self.offset}, {missing} bytes before the end of {what}",
                offset=body.offset, field=body.name or None,
            )  # fmt: skip
        if self._skip or self._first is not None or self._rest.strip(b"\0"):
            raise Truncated(f"the stream ends at byte {self.offset}, inside a header or its padding", offset=self.offset)
        if self.offset == 0:
            raise Truncated("the stream is empty: not even an end-of-archive mark", offset=0)
