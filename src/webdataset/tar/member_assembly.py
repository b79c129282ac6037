"""Collects member bodies over several chunks, and handles extended headers and sparse members, for the scanner.

This is the complete path: it takes header blocks and the bytes after them, and appends members to the list of the
caller. Errors are raised here; the scanner keeps them until it has given the members that came whole before.
"""

import io
from collections.abc import Callable
from typing import NamedTuple

from webdataset.core import errors
from webdataset.tar import header, sparse
from webdataset.tar.header import (
    BLOCK,
    LONG_LINK,
    LONG_NAME,
    NO_EXTENSION,
    PAX_GLOBAL,
    PAX_LOCAL,
    REGULAR,
    WITHOUT_BODY,
    ZEROS,
    Limits,
    MemberExtension,
    apply_pax_header,
    describe_content,
)

LINKS = frozenset((header.HARD_LINK, header.SYMBOLIC_LINK))
# zero blocks that end an archive
MARK = 2
# what a header holds, prefix and slash included
SHORT_NAME = 256
# bytes of a body from which on its parts are put together as they come
GATHERED = 64 << 20
# GNU tar, bsdtar and tarfile fill an archive up to a multiple of this
RECORD = 10240
_ZERO_RECORDS = bytes(2 * RECORD)

# name, payload (a memoryview where the file is mapped), offset of the first header
Member = tuple[str, bytes, int]
Admit = Callable[[str], str | None]


class MemberBody(NamedTuple):
    """A body that is being collected.

    Args:
        kind: type byte of its header; payload of every kind counts as regular.
        name: the member's name; None: to be thrown away.
        size: bytes of it in the stream.
        offset: where its first header starts.
        layout: how to expand it, where it is sparse.
        stored: bytes of payload that follow the blocks of an old GNU sparse map.
    """

    kind: int
    name: str | None
    size: int
    offset: int
    layout: sparse.SparseMap | None = None
    stored: int = 0


class PayloadlessMember(NamedTuple):
    """A member that gives no payload of its own: a link, or one of an unknown type.

    Args:
        place: how many members stand before it, among those given with it.
        name: its name, as ``admit`` gave it.
        offset: where its first header starts.
        kind: type byte of its header.
        target: name of the member that a link points to.
        size: bytes of payload that are thrown away.
    """

    place: int
    name: str
    offset: int
    kind: int
    target: str
    size: int


def _count_zero_blocks(buf: bytes, pos: int) -> int:
    """Return how many zero blocks follow one another from the one at ``pos`` on."""
    left = (len(buf) - pos) // BLOCK * BLOCK
    # the usual end of a shard
    if left <= len(_ZERO_RECORDS) and buf.startswith(_ZERO_RECORDS[:left], pos):
        return left // BLOCK
    stop = pos + BLOCK
    while buf.startswith(ZEROS, stop):
        stop += BLOCK
    return (stop - pos) // BLOCK


class MemberAssembly:
    """What the scanner knows between two bytes of the stream, and the complete path.

    Args:
        admit: gives each member's name, or None to leave the member out; called once a member.
        limits: bounds on headers and sparse members.

    Attributes:
        offset: number of bytes fed so far.
        doubt: offset after the first run of zero blocks that looks less like joined archives than like members
            overwritten with zeros, and the number of blocks; or None.
        global_override: offset of the first global PAX header that gives all members after it a name or a size, or
            None.
        payloadless: links and members of unknown types among the members given last.
        weigh: called with each body that is not whole in its chunk, or sparse, before its bytes are taken; what it
            raises is the archive's error. None takes all.
        mapped: a view of the whole file that is scanned, whose parts are given as payloads; None where bytes are.
        struck: offset of the member at which ``admit`` raised, or None.
    """

    def __init__(self, admit: Admit | None = None, limits: Limits = Limits()) -> None:  # noqa: B008  immutable
        self.admit = admit
        self.limits = limits
        self.offset = 0
        self.doubt: tuple[int, int] | None = None
        self.global_override: int | None = None
        self.struck: int | None = None
        self.payloadless: list[PayloadlessMember] = []
        self.weigh: Callable[[MemberBody], None] | None = None
        self.mapped: memoryview | None = None
        # offset of the archive's first block, where archives are joined
        self._archive = 0
        self._rest = b""
        self._skip = 0
        self._body: MemberBody | None = None
        self._need = 0
        self._parts: list[bytes] = []
        # what has come of a large body
        self._whole: io.BytesIO | None = None
        self._zeros = 0
        self._extension = NO_EXTENSION
        self._globals = NO_EXTENSION
        self._chain = 0
        # offset of the chain's first header
        self._first: int | None = None
        self._tail = b""
        self._tail_sum = 0
        self._expected: dict[bytes, int] = {}
        self._directory = ""
        self._pax_tail = b""
        self._pax_sum = 0
        self._pax_expected: dict[bytes, int] = {}

    def _begin(self, body: MemberBody, pos: int) -> int:
        """Start to collect a body that is not whole in this chunk."""
        self._body = body
        self._need = body.size
        if self.weigh is not None and body.name is not None and body.kind in REGULAR:
            self.weigh(body)
        return pos

    def _collect(self, buf: bytes, pos: int, members: list[Member]) -> int:
        """Take bytes for the body in progress; deliver it when it is whole."""
        body = self._body
        if body is None:
            return pos
        part = buf if pos == 0 and len(buf) == self._need else buf[pos : pos + self._need]
        self._need -= len(part)
        if part and (body.name is not None or body.kind not in REGULAR):
            self._parts.append(part)
        if self._need:
            if body.size > GATHERED:
                self._gather()
            return len(buf)
        if self._whole is not None:
            self._gather()
            whole = self._whole.getvalue()
        else:
            whole = part if len(self._parts) == 1 and self._parts[0] is part else b"".join(self._parts)
        self._parts, self._whole = [], None
        self._body = None
        self._skip = -body.size & 511
        self._finish_body(body, whole, members)
        return pos + len(part)

    def _gather(self) -> None:
        """Put the parts of a large body together as they come: joined at the end, they would take twice the memory."""
        if self._whole is None:
            self._whole = io.BytesIO()
        for part in self._parts:
            self._whole.write(part)
        self._parts = []

    def _finish_body(self, body: MemberBody, whole: bytes, members: list[Member]) -> None:
        """Deliver a member, or take up an extended header."""
        if body.kind in REGULAR:
            if body.name is not None:
                payload = whole
                if body.layout is not None:
                    # where this raises, the body stays the one in progress, as where its bytes were still to come
                    self._body = body
                    if self.weigh is not None:
                        self.weigh(body)
                    payload = sparse.expand_sparse(body.layout, whole, body.offset, self.limits.expanded_bytes)
                    self._body = None
                members.append((body.name, payload, body.offset))
        elif body.kind == header.SPARSE:
            self._sparse_extension(body, whole)
        else:
            self._say(body, whole)

    def _say(self, body: MemberBody, whole: bytes) -> None:
        """Take up what an extended header says."""
        if body.kind == LONG_NAME:
            name = whole.partition(b"\0")[0]
            if not name:
                raise errors.BadHeader(f"GNU long name at byte {body.offset} is empty", offset=body.offset)
            self._extension = self._extension._replace(gnu_name=name)
        elif body.kind == LONG_LINK:
            self._extension = self._extension._replace(gnu_link=whole.partition(b"\0")[0])
        elif body.kind in PAX_LOCAL:
            self._extension = apply_pax_header(self._extension, whole, body.offset)
        elif body.kind == PAX_GLOBAL:
            self._globals = apply_pax_header(self._globals, whole, body.offset)._replace(sparse=())
            if self._globals != NO_EXTENSION:
                # the fast path knows nothing of global records
                self._tail = b""
            if self.global_override is None and (self._globals.name, self._globals.size) != (None, None):
                self.global_override = body.offset

    def _sparse_extension(self, body: MemberBody, block: bytes) -> None:
        layout, more = sparse.parse_map_extension(body.layout or sparse.SparseMap((), 0), block, body.offset)
        if len(layout.pieces or ()) > self.limits.record_bytes:
            raise errors.LimitExceeded(f"sparse map at byte {body.offset} has too many pieces", offset=body.offset)
        if more:
            self._begin(body._replace(layout=layout), 0)
        else:
            self._begin(MemberBody(0x30, body.name, body.stored, body.offset, layout), 0)

    def _header(self, block: bytes, buf: bytes, pos: int, base: int, members: list[Member]) -> int:
        """Read one header block the complete way; return where the next thing starts."""
        offset = base + pos
        if block == ZEROS:
            if self._first is not None:
                raise errors.BadHeader(
                    f"an extended header stands before the zero block at byte {offset}", offset=offset
                )
            count = _count_zero_blocks(buf, pos)
            self._zeros += count
            return pos + count * BLOCK
        try:
            found = header.parse_header(block, offset)
        except errors.BadHeader:
            if self._zeros != 1:
                raise
            raise errors.BadHeader(
                f"a single zero block stands inside the archive at byte {offset - BLOCK}, and no header follows it: a "
                "header was overwritten with zeros",
                offset=offset - BLOCK,
            ) from None
        if self._zeros:
            self._join(offset)
        first = self._first if self._first is not None else offset
        if found.kind in (LONG_NAME, LONG_LINK, PAX_GLOBAL) or found.kind in PAX_LOCAL:
            return self._extended_header(found, buf, pos, first, members)
        self._remember(found, block)
        extension, self._extension, self._first, self._chain = self._extension, NO_EXTENSION, None, 0
        return self._member(found, extension, buf, pos, first, members)

    def _join(self, offset: int) -> None:
        """Continue with the archive after an end mark; doubt a mark that no usual writer leaves."""
        unusual = self._zeros == 1 or (self._zeros != MARK and (offset - self._archive) % RECORD)
        if unusual and self.doubt is None:
            self.doubt = offset, self._zeros
        self._zeros = 0
        self._archive = offset
        self._globals = NO_EXTENSION

    def _extended_header(self, found: header.Header, buf: bytes, pos: int, first: int, members: list[Member]) -> int:
        self._first = first
        self._chain += 1
        if self._chain > self.limits.chain or found.size > self.limits.record_bytes:
            raise errors.LimitExceeded(
                f"extended headers at byte {first}: {self._chain} in a row, the last of {found.size} bytes "
                f"(limits {self.limits.chain} and {self.limits.record_bytes}): the shard is damaged, or "
                "made to fill memory",
                offset=first,
            )
        # the fast path counts no headers and weighs no records
        if found.kind in PAX_LOCAL and found.size <= BLOCK <= self.limits.record_bytes and self.limits.chain:
            tail = found.block[156:]
            if tail != self._pax_tail:
                self._pax_tail, self._pax_sum, self._pax_expected = tail, sum(tail), {}
        return self._deliver(MemberBody(found.kind, "", found.size, first), buf, pos + BLOCK, members)

    def _remember(self, found: header.Header, block: bytes) -> None:
        """Take this header's tail as the one to expect next, if its members are plain."""
        tail = block[156:]
        plain = found.kind in REGULAR and not found.name.endswith(b"/") and self._globals == NO_EXTENSION
        # of kind NUL are folders, too, and the tail of a v7 header is that of a zero block
        if not plain or not found.kind or self.limits.name_bytes < SHORT_NAME:
            return
        if tail == self._tail:
            # seen the complete way where a chunk ended before it: what was learned of its like holds
            return
        self._tail = tail
        self._tail_sum = sum(tail)
        self._expected = {}
        self._directory = header.path_prefix(block).decode("utf-8", "surrogateescape")

    def _member(  # noqa: PLR0917  the scanner's state, passed once a slow header
        self, found: header.Header, extension: MemberExtension, buf: bytes, pos: int, first: int, members: list[Member]
    ) -> int:
        """Deliver what a main header announces, under what extended headers said of it."""
        names = (extension.name, extension.gnu_name, self._globals.name, found.name)
        name = next(name for name in names if name is not None)
        if len(name) > self.limits.name_bytes:
            raise errors.LimitExceeded(f"member name of {len(name)} bytes at byte {first}", offset=first)
        if found.kind in WITHOUT_BODY:
            if found.kind in LINKS:
                self._add_payloadless(found, extension, name, 0, first, members)
            return pos + BLOCK
        if found.kind == header.CONTINUATION:
            raise errors.BadHeader(f"a multi-volume continuation at byte {first}: join the volumes first", offset=first)
        size = extension.size if extension.size is not None else self._globals.size
        size = found.size if size is None else size
        if found.kind not in REGULAR and found.kind != header.SPARSE:
            if size:
                self._add_payloadless(found, extension, name, size, first, members)
            return self._deliver(MemberBody(0x30, None, size, first), buf, pos + BLOCK, members)
        path = self._admit(name, first)
        layout = sparse.parse_record_map(extension.sparse, first) if extension.sparse else None
        if found.kind == header.SPARSE:
            layout, more = sparse.parse_old_map(found.block, first)
            if more:
                return self._begin(MemberBody(header.SPARSE, path, BLOCK, first, layout, size), pos + BLOCK)
        return self._deliver(MemberBody(0x30, path, size, first, layout), buf, pos + BLOCK, members)

    def _admit(self, name: bytes, first: int) -> str | None:
        """Return the name that ``admit`` gives a member, or None where it is left out."""
        path = name.decode("utf-8", "surrogateescape")
        if self.admit is None:
            return path
        self.struck = first
        admitted = self.admit(path)
        self.struck = None
        return admitted

    def _add_payloadless(  # noqa: PLR0917  the scanner's state, as above
        self,
        found: header.Header,
        extension: MemberExtension,
        name: bytes,
        size: int,
        first: int,
        members: list[Member],
    ) -> None:
        """Take note of a member without a payload of its own, unless ``admit`` leaves it out."""
        path = self._admit(name, first)
        if path is not None:
            links = (extension.link, extension.gnu_link, self._globals.link, header.link_target(found.block))
            target = next(link for link in links if link is not None)
            text = target.decode("utf-8", "surrogateescape") if found.kind in LINKS else ""
            self.payloadless.append(PayloadlessMember(self._given_count(members), path, first, found.kind, text, size))

    def _given_count(self, members: list[Member]) -> int:
        """Return how many members stand before the next one, among those given with it."""
        return len(members)

    def _deliver(self, body: MemberBody, buf: bytes, start: int, members: list[Member]) -> int:
        """Finish a body that is whole in this chunk, or begin to collect it."""
        stop = start + body.size
        # base of the chunk, whose end is where the bytes that were fed end
        place = self.offset - len(buf) + start
        mapped = self.mapped
        if mapped is not None and body.kind in REGULAR and not body.layout and place + body.size <= len(mapped):
            if body.name is not None:
                part = mapped[place : place + body.size]
                members.append((body.name, part, body.offset))  # type: ignore[arg-type]  # see Member
            return start + (body.size + 511 & -512)
        if stop > len(buf):
            return self._begin(body, start)
        self._finish_body(body, buf[start:stop], members)
        return start + (body.size + 511 & -512)

    def _check_end(self) -> None:
        if self._body is not None:
            body = self._body
            what = f"member {body.name!r}" if body.name else "a member or an extended header"
            missing = self._need
            raise errors.Truncated(
                f"the stream ends at byte {self.offset}, {missing} bytes before the end of {what}",
                offset=body.offset, field=body.name or None,
            )  # fmt: skip
        # all there was: less than a header
        if self._rest and len(self._rest) == self.offset and (found := describe_content(self._rest)) is not None:
            raise errors.BadHeader(f"not a tar archive: its content is {found}", offset=0)
        if self._skip or self._first is not None or self._rest.strip(b"\0"):
            raise errors.Truncated(
                f"the stream ends at byte {self.offset}, inside a header or padding", offset=self.offset
            )
        if self.offset == 0:
            raise errors.Truncated("the stream is empty: not even an end-of-archive mark", offset=0)
