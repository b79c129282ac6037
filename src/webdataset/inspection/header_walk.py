"""Walks the headers of a tar stream for a check: notes what is odd, and finds the next header after damage.

The walk is the library's own (:class:`~webdataset.tar.walker.TarWalker`), so that a check and a reader never disagree
about members. What its fast path passes is like the header before it; every other header comes through ``_member``
here.

Resynchronisation. After damage the bytes are searched for the next block that is a header by its checksum: at any
offset where it has the ``ustar`` magic, at multiples of 512 from the start of the search where it has none. A member
that is itself a tar archive, whose own header was damaged, would be taken for members: nothing in the format shows the
difference.

``MemberObserver`` is the protocol of what takes members as they are found: profiles of readers, and the repair.
"""

import re
from collections.abc import Callable
from typing import Final

from webdataset.core import errors
from webdataset.tar.header import (
    BLOCK,
    HARD_LINK,
    REGULAR,
    SPARSE,
    SYMBOLIC_LINK,
    Header,
    Limits,
    MemberExtension,
    is_checksum_right,
    parse_checksum,
    parse_number,
)
from webdataset.tar.member_assembly import MARK, RECORD, Member, MemberBody
from webdataset.tar.walker import MemberPosition, TarWalker

Note = Callable[..., None]
"""Takes code, message and places of a finding."""

_DIRECTORY: Final = ord("5")
_SPECIAL: Final = {ord("3"): "a character device", ord("4"): "a block device", ord("6"): "a FIFO"}
_LARGEST_OCTAL: Final = 0o77777777777
_MAGIC: Final = b"ustar"
_MAGIC_AT: Final = 257
_SHORT: Final = 100
_ASCII_NAME: Final = re.compile(rb"[ -~]+")


class HeaderWalk(TarWalker):
    """A walker that notes what headers say besides names and sizes.

    Args:
        note: takes findings.
        offset: where the first header stands.
        limits: bounds on headers.

    Attributes:
        resume: where the last extended header ends, its records included.
    """

    def __init__(self, note: Note, offset: int = 0, limits: Limits = Limits()) -> None:  # noqa: B008  immutable
        super().__init__(None, limits)
        self.position = offset
        self._archive = offset
        self._note = note
        self.resume = offset

    @property
    def zero_blocks(self) -> int:
        """Number of zero blocks passed since the last member."""
        return self._zeros

    @property
    def chain_start(self) -> int | None:
        """Where the chain of extended headers starts that is being read, or None."""
        return self._first

    def _extended_header(self, found: Header, buf: bytes, pos: int, first: int, members: list[Member]) -> int:
        size = found.size if found.size <= self.limits.record_bytes else 0
        self.resume = self._base + pos + BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
        return super()._extended_header(found, buf, pos, first, members)

    def _join(self, offset: int) -> None:
        zeros, archive = self._zeros, self._archive
        if zeros == 1 or (zeros != MARK and (offset - archive) % RECORD):
            blocks = "a block of zeros stands" if zeros == 1 else f"{zeros} blocks of zeros stand"
            self._note(
                "lone-zero-block",
                f"{blocks} before byte {offset}, with members after them: members may have been overwritten",
                offset=offset - zeros * BLOCK,
            )
        else:
            self._note("joined-archives", f"another archive starts at byte {offset}", offset=offset)
        super()._join(offset)

    def _say(self, body: MemberBody, whole: bytes) -> None:
        before = self._globals
        super()._say(body, whole)
        if self._globals is not before:
            changed = [
                word
                for word, old, new in zip(
                    ("path", "size", "linkpath"),
                    (before.name, before.size, before.link),
                    (self._globals.name, self._globals.size, self._globals.link),
                    strict=True,
                )
                if new is not None and new != old
            ]
            if changed:
                self._note(
                    "global-override",
                    f"a global PAX header sets {' and '.join(changed)} of all members after it",
                    offset=body.offset,
                )

    def _member(  # noqa: PLR0917  the scanner's state, as there
        self, found: Header, extension: MemberExtension, buf: bytes, pos: int, first: int, members: list[Member]
    ) -> int:
        stop = super()._member(found, extension, buf, pos, first, members)
        names = (extension.name, extension.gnu_name, self._globals.name, found.name)
        name = next(each for each in names if each is not None).decode("utf-8", "surrogateescape")
        self._note_conflicts(found, extension, name, first)
        self._note_kind(found, extension, name, first)
        return stop

    def _note_conflicts(self, found: Header, extension: MemberExtension, name: str, first: int) -> None:
        size = extension.size
        if size is not None and size != found.size and not (size > _LARGEST_OCTAL and found.size == 0):
            self._note(
                "size-conflict",
                f"its extended header says {size} bytes, its header {found.size}",
                offset=first,
                member=name,
            )
        pax, gnu = extension.name, extension.gnu_name
        if extension.sparse:
            return  # its header holds the name of a stand-in
        if pax is not None and gnu is not None and pax != gnu.rstrip(b"/"):
            self._note(
                "name-conflict", "its PAX header and its GNU header state different names", offset=first, member=name
            )
            return
        said = pax if pax is not None else gnu
        if said is None or len(said) >= _SHORT or _ASCII_NAME.fullmatch(said) is None:
            return  # what a header cannot hold is written there shortened, or in other letters
        if found.name.rstrip(b"/") != said.rstrip(b"/"):
            other = found.name.decode("utf-8", "surrogateescape")
            self._note("name-conflict", f"its header calls it {other!r}", offset=first, member=name)

    def _note_kind(self, found: Header, extension: MemberExtension, name: str, first: int) -> None:
        kind = found.kind
        if kind == SPARSE or extension.sparse:
            self._note("sparse-member", "it is stored without its holes", offset=first, member=name)
        elif kind in REGULAR or kind == _DIRECTORY:
            return
        elif kind in {HARD_LINK, SYMBOLIC_LINK}:
            raw = extension.link or extension.gnu_link or found.block[157:257].partition(b"\0")[0]
            target = raw.decode("utf-8", "surrogateescape")
            code = "hard-link" if kind == HARD_LINK else "symbolic-link"
            self._note(code, f"it is a {code.replace('-', ' ')} to {target!r}", offset=first, member=name)
        elif kind in _SPECIAL:
            self._note("special-member", f"it is {_SPECIAL[kind]}", offset=first, member=name)
        else:
            self._note("unknown-type", f"its type is {bytes([kind])!r}", offset=first, member=name)


def is_header(block: bytes) -> bool:
    """Tell whether a block is surely a tar header.

    Args:
        block: 512 bytes.
    """
    if len(block) < BLOCK or not block[0] or parse_checksum(block[148:156]) is None or not is_checksum_right(block):
        return False
    try:
        parse_number(block[124:136], "size", 0)
    except errors.BadHeader:
        return False
    return True


def find_header(buf: bytes, start: int, phase: int) -> int | None:
    """Return where the next header starts, or None where there is none in these bytes.

    Args:
        buf: some bytes of a damaged stream.
        start: where to start.
        phase: offset modulo 512, in ``buf``, at which headers without magic may stand.
    """
    with_magic = _find_magic(buf, start)
    stop = len(buf) if with_magic is None else with_magic
    for at in range(start + (phase - start) % BLOCK, min(stop, len(buf) - BLOCK + 1), BLOCK):
        field = buf[at + 148 : at + 156]
        if field.strip(b" \0") and is_header(buf[at : at + BLOCK]):
            return at
    return with_magic


def _find_magic(buf: bytes, start: int) -> int | None:
    at = buf.find(_MAGIC, start + _MAGIC_AT)
    while at >= 0:
        if is_header(buf[at - _MAGIC_AT : at - _MAGIC_AT + BLOCK]):
            return at - _MAGIC_AT
        at = buf.find(_MAGIC, at + 1)
    return None


class MemberObserver:
    """Takes what a check finds in a shard, in order; the base takes nothing."""

    def take_piece(self, piece: bytes) -> None:
        """Take the next bytes of the tar stream.

        Args:
            piece: after decompression.
        """

    def take_links(self, targets: dict[int, str]) -> None:
        """Take the hard links among the members that come next.

        Args:
            targets: the name that each leads to, by the offset of the link.
        """

    def take_members(self, members: list[tuple[str, MemberPosition, int]]) -> None:
        """Take the next members, hard links included.

        Args:
            members: name, place and offset of the first header of each.
        """

    def wants_payload(self, place: MemberPosition) -> bool:  # noqa: ARG002  none
        """Tell whether a member's bytes are wanted.

        Args:
            place: of the member.
        """
        return False

    def take_payload(self, place: MemberPosition, payload: bytes) -> None:
        """Take the bytes of a member; it is given by ``take_members`` before or after.

        Args:
            place: of the member.
            payload: its bytes.
        """
