"""Walks the headers of a tar archive and reports the positions of its members, without reading payloads.

The header of a member says how long its payload is, so the position of the next header is known without reading what
lies between. The walker is the scanner (see docs/design/tar.md) with the payloads left out: every header goes through
the same two paths, so that a shard has one verdict, whether it is streamed or walked. ``wants`` is a position and the
least number of bytes needed there; the caller may feed more.

The result is a :class:`MemberPosition` for each member. The walker never reads and never raises: the error stands in
``error``, after the members that came before it.
"""

from typing import NamedTuple
from zlib import adler32

from webdataset.tar.header import BLOCK, REGULAR, Header, Limits, MemberExtension
from webdataset.tar.member_assembly import Admit, Member, MemberBody
from webdataset.tar.scanner import TarScanner


class MemberPosition(NamedTuple):
    """Where one member lies.

    Args:
        name: its name, as ``admit`` gave it.
        offset: where its first header starts, extended headers included, in bytes.
        payload: where its payload starts, in bytes.
        size: bytes of payload; of a sparse member, bytes after expansion.
        sparse: whether it is sparse: then its bytes do not lie at ``payload`` as they are.
    """

    name: str
    offset: int
    payload: int
    size: int
    sparse: bool = False

    def __bool__(self) -> bool:
        """Tell whether there is a payload: places stand for payloads where members are grouped."""
        return self.size > 0


class TarWalker(TarScanner):
    """Headers to places.

    Args:
        admit: gives each member's name, or None to leave the member out; called once a member.
        limits: bounds on headers.

    Attributes:
        position: where the next bytes to be fed should start.
        error: what is wrong with the archive, or None. Nothing comes after an error.
        end: where the end mark starts, or would start: after the last member of any kind, and its padding.
        joins: where further archives start, after the end mark of the one before.
    """

    def __init__(self, admit: Admit | None = None, limits: Limits = Limits()) -> None:  # noqa: B008  immutable
        super().__init__(admit, limits)
        self.position = 0
        self.end = 0
        self.joins: list[int] = []
        self._base = 0
        self._places: list[MemberPosition] = []
        # the member passed last, and where its payload stops
        self._last = MemberBody(0x30, None, 0, 0)
        self._last_stop = 0

    @property
    def wants(self) -> tuple[int, int]:
        """Where to read next, and how many bytes it takes at least to continue."""
        least = BLOCK if self._body is None else self._need
        return self.position, least - len(self._rest)

    def walk(self, chunk: bytes, offset: int) -> list[MemberPosition]:
        """Take bytes of the archive; return the members whose headers are complete now, in order.

        Args:
            chunk: any number of bytes; what lies before ``position`` is passed over.
            offset: where they start; at most ``position``.
        """
        self._places, self.payloadless = [], []
        skipped = self.position - offset
        if self.error is not None or skipped >= len(chunk):
            return []
        if skipped:
            chunk = chunk[skipped:]
        base = self.position - len(self._rest)
        buf = self._rest + chunk if self._rest else chunk
        self._rest = b""
        try:
            stop = self._through(buf, base)
        except Exception as error:  # noqa: BLE001  damage, or the user's ``admit``: kept until the places are given
            self.error = error
            stop = len(buf)
        self._rest = buf[stop:]
        self.position = base + max(stop, len(buf))
        return self._places

    def _through(self, buf: bytes, base: int) -> int:
        """Read all headers that are whole in a buffer; return where it stopped, perhaps after the buffer's end."""
        self._base = base
        pos = 0
        while True:
            body = self._body
            if body is not None:
                if body.kind not in REGULAR and len(buf) - pos < self._need:
                    return pos
                self._body = None
                # a sparse member's payload, after the blocks of its map
                if body.kind in REGULAR:
                    pos = self._deliver(body, buf, pos, [])
                else:
                    stop = pos + body.size
                    self._finish_body(body, buf[pos:stop], [])
                    pos = stop + (-body.size & 511)
                continue
            if len(buf) - pos < BLOCK:
                return pos
            pos = self._scan(buf, pos, base, [], len(buf))

    def _scan(self, buf: bytes, pos: int, base: int, members: list[Member], last: int) -> int:  # noqa: C901, PLR0912  hot path
        """Pass members whose headers are like the one before; return where the buffer ends or a body is wanted."""
        admit = self.admit
        size_of = self._sizes.get
        plain_tail, pax_tail, expect, directory = self._fast()
        append = self._places.append
        new = tuple.__new__
        # the last member: name, size, where it and its bytes start
        passed: tuple[str | None, int, int, int] | None = None
        # offset of a PAX header that says nothing about the member after it
        lead = -1
        try:
            while last - pos >= BLOCK:
                head = buf[pos : pos + 156]
                tail = buf[pos + 156 : pos + BLOCK]
                if tail == plain_tail:
                    size = size_of(head[124:136], -1)
                    if size < 0 or adler32(head) & 0xFFFF != expect(head[148:156]):
                        size = self._learn(head, self._tail, self._tail_sum, self._expected, base + pos)
                    name = (head[:100] if head[99] else head).partition(b"\0")[0]
                    path: str | None = directory + name.decode("utf-8", "surrogateescape")
                    offset, lead = base + pos if lead < 0 else lead, -1
                    if admit is not None and path is not None:
                        self.struck = offset
                        path = admit(path)
                        self.struck = None
                    pos += BLOCK
                    if path is not None:
                        append(new(MemberPosition, (path, offset, base + pos, size, False)))
                    passed = path, size, offset, base + pos
                    pos += size + 511 & -512
                elif tail == pax_tail and lead < 0 and self._indifferent(buf, head, pos, base):
                    lead = base + pos
                    pos += 2 * BLOCK
                    continue
                else:
                    if lead >= 0:
                        self._first, self._chain, lead = lead, 1, -1
                    if passed is not None:
                        self._note_last(*passed)
                        passed = None
                    pos = self._header(head + tail, buf, pos, base, members)
                    if self._body is not None:
                        return pos
                    plain_tail, pax_tail, expect, directory = self._fast()
        finally:
            if passed is not None:
                self._note_last(*passed)
        if lead >= 0:
            self._first, self._chain = lead, 1
        return pos

    def _note_last(self, name: str | None, size: int, offset: int, payload: int) -> None:
        """Take note of the member that the fast path has passed last."""
        self._last, self._last_stop = MemberBody(0x30, name, size, offset), payload + size
        self.end = payload + (size + 511 & -512)

    def _given_count(self, members: list[Member]) -> int:  # noqa: ARG002  it gives places instead
        return len(self._places)

    def _join(self, offset: int) -> None:
        self.joins.append(offset)
        super()._join(offset)

    def _deliver(self, body: MemberBody, buf: bytes, start: int, members: list[Member]) -> int:
        """Pass a member; read an extended header as the scanner does."""
        if body.kind in REGULAR:
            return self._pass(body, start)
        return super()._deliver(body, buf, start, members)

    def _member(  # noqa: PLR0917  the scanner's state, as there
        self, found: Header, extension: MemberExtension, buf: bytes, pos: int, first: int, members: list[Member]
    ) -> int:
        """Pass what a main header announces; folders and links move the end, too."""
        stop = super()._member(found, extension, buf, pos, first, members)
        self.end = max(self.end, self._base + stop)
        return stop

    def _pass(self, body: MemberBody, start: int) -> int:
        """Take note of a member; return where the next header starts."""
        payload = self._base + start
        self._last, self._last_stop = body, payload + body.size
        if body.name is not None:
            sparse = body.layout is not None
            size = body.layout.size if body.layout is not None else body.size
            self._places.append(MemberPosition(body.name, body.offset, payload, size, sparse))
        stop = start + (body.size + 511 & -512)
        self.end = self._base + stop
        return stop

    def whole(self, place: MemberPosition, length: int) -> bool:
        """Tell whether the payload of a member that this walk has found is whole in an archive of ``length`` bytes."""
        return place.offset != self._last.offset or self._last_stop <= length

    def end_at(self, length: int) -> bool:
        """Note that the archive has ended, after ``length`` bytes; the result is as for ``TarScanner.finish``."""
        if self.error is not None:
            return True
        self.offset = length
        # bytes of the last member that are missing
        ahead = self.position - len(self._rest) - length
        if self._body is not None:
            self._need -= len(self._rest)
        elif self._last_stop > length:
            self._body, self._need = self._last, self._last_stop - length
        elif ahead > 0:
            self._skip = ahead
        return self.finish()
