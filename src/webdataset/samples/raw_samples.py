"""Reads members and samples as they stand in a shard: header blocks and payloads, to be written elsewhere unchanged.

The shard reader does the reading, so that a shard has one verdict whichever way it is read. A watch keeps the bytes
that the reader passes until the headers of the members in them have been copied. The header of a :class:`RawMember`
is what stood before its payload, byte by byte: name, mode, owner, times, PAX records.

Headers are made anew in three cases, where the bytes alone would mean something else in another shard: hard links get
the payload that they lead to, sparse members are written out, and the records of a global PAX header (``g``) go into
the headers of the members that they are about.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from webdataset.core.errors import DuplicateField
from webdataset.samples.grouping import is_meta
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import ShardReader
from webdataset.storage.open_url import open_stream
from webdataset.tar.builder import MAX_OCTAL_12, PADDING, format_extension_member, format_pax_records
from webdataset.tar.header import (
    BLOCK,
    LONG_LINK,
    LONG_NAME,
    PAX_GLOBAL,
    PAX_LOCAL,
    REGULAR,
    parse_number,
    parse_pax_records,
)

_EXTENDED = frozenset((LONG_LINK, LONG_NAME, PAX_GLOBAL)) | PAX_LOCAL


class RawMember(NamedTuple):
    """One file of a shard.

    Args:
        name: its full name.
        header: its header blocks, extended ones included.
        payload: its bytes.
    """

    name: str
    header: bytes
    payload: bytes

    def pieces(self) -> tuple[bytes, bytes, bytes]:
        """Return what to write: header, payload and padding."""
        return self.header, self.payload, PADDING[len(self.payload) & 511]

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in an archive."""
        return len(self.header) + (len(self.payload) + 511 & -512)


class RawSample(NamedTuple):
    """One sample as it stands in its shard.

    Args:
        key: its key.
        members: its files, in their order.
        fields: the full, lower-case extension of each file, in the same order.
        url: the shard.
        offset: where its first header starts, in bytes of the tar stream.
    """

    key: str
    members: tuple[RawMember, ...]
    fields: tuple[str, ...]
    url: str
    offset: int

    def payload(self, field: str) -> bytes | None:
        """Return the bytes of a field, or None where the sample has none of this name.

        Args:
            field: a full extension.
        """
        return self.members[self.fields.index(field)].payload if field in self.fields else None

    def payloads(self) -> dict[str, bytes]:
        """Return the bytes of every field."""
        return {field: member.payload for field, member in zip(self.fields, self.members, strict=True)}

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in an archive."""
        return sum(member.size_bytes for member in self.members)


class _HeaderWatch:
    """Keeps the bytes that a reader passes, until the headers in them have been copied."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._globals: dict[bytes, bytes] = {}
        self._joins: deque[int] = deque()

    def feed(self, piece: bytes, offset: int) -> None:
        """Take the next bytes.

        Args:
            piece: the bytes.
            offset: where they start.
        """
        self._pieces.append((offset, piece))

    def finish(self, length: int | None, compression: str | None) -> None:
        """Do nothing at the end of the shard."""

    def join(self, offset: int) -> None:
        """Take note that another archive begins in the same shard, to which global records do not reach.

        Args:
            offset: where it starts.
        """
        self._joins.append(offset)

    def header(self, name: str, size: int, offset: int) -> bytes:
        """Return the header blocks of a member.

        Args:
            name: its name.
            size: bytes of its payload.
            offset: where its first header starts; not before that of the member asked for last.
        """
        pieces = self._pieces
        while self._joins and self._joins[0] <= offset:
            self._joins.popleft()
            self._globals = {}
        while pieces and pieces[0][0] + len(pieces[0][1]) <= offset:
            pieces.popleft()
        start, piece = pieces[0]
        block = piece[offset - start : offset - start + BLOCK]
        if len(block) == BLOCK and block[156] in REGULAR and not self._globals and not _is_folder(block):
            return block
        return self._long_header(name, size, offset)

    def _long_header(self, name: str, size: int, offset: int) -> bytes:
        """Return the header of a member with extended headers, or of one that needs a new header."""
        position = offset
        local: dict[bytes, bytes] = {}
        kept: list[bytes] = []
        decisive = bool(self._globals)
        while True:
            block = self._copy_bytes(position, BLOCK)
            kind = block[156]
            if kind not in _EXTENDED:
                break
            length = parse_number(block[124:136], "size", position)
            blocks = BLOCK + (length + 511 & -512)
            body = self._copy_bytes(position + BLOCK, length)
            if kind == PAX_GLOBAL:
                # a comment, as git writes it, is about the archive
                records = {word: text for word, text in parse_pax_records(body, position) if word != b"comment"}
                self._globals.update(records)
                decisive = decisive or bool(records)
            else:
                if kind in PAX_LOCAL:
                    local.update(parse_pax_records(body, position))
                kept.append(self._copy_bytes(position, blocks))
            position += blocks
        sparse = any(word.startswith(b"GNU.sparse.") for word in local)
        if kind in REGULAR and not decisive and not sparse and not _is_folder(block):
            return b"".join((*kept, block))
        return _make_plain_header(name, size, block, {**self._globals, **local})

    def _copy_bytes(self, offset: int, size: int) -> bytes:
        parts = []
        for start, piece in self._pieces:
            stop = start + len(piece)
            if stop > offset:
                parts.append(piece[max(0, offset - start) : max(0, offset + size - start)])
            if stop >= offset + size:
                break
        return b"".join(parts)


def _is_folder(block: bytes) -> bool:
    """Tell whether an old header calls its member a folder by its name, though its kind says nothing."""
    return block[156] == 0 and block[:100].partition(b"\0")[0].endswith(b"/")


def _make_plain_header(name: str, size: int, block: bytes, records: dict[bytes, bytes]) -> bytes:
    """Return the header of a regular member with the mode, owner and times of another."""
    raw = name.encode("utf-8", "surrogateescape")
    told = {
        word: text
        for word, text in records.items()
        if not word.startswith(b"GNU.sparse.") and word not in (b"size", b"path", b"linkpath", b"hdrcharset")
    }
    if len(raw) > 100 or not raw.isascii():
        told[b"path"] = raw
    if size > MAX_OCTAL_12:
        told[b"size"] = b"%d" % size
    short = 0 if b"size" in told else size
    plain = b"".join(
        (
            raw[:100].ljust(100, b"\0"),
            block[100:124],
            b"%011o\0" % short,
            block[136:148],
            b" " * 8,
            b"0",
            bytes(100),
            block[257:345],
            bytes(167),
        )
    )
    plain = plain[:148] + b"%06o\0 " % sum(plain) + plain[156:]
    extended = format_extension_member(b"PaxHeaders/" + raw[-80:], b"x", format_pax_records(told.items()))
    return extended + plain if told else plain


def rename_member(member: RawMember, name: str) -> RawMember:
    """Return a member under another name, with the mode, owner, times and other records that it has.

    Args:
        member: as it stands in a shard.
        name: its new full name.
    """
    position = 0
    records: dict[bytes, bytes] = {}
    header = member.header
    while (kind := header[position + 156]) in _EXTENDED:
        length = parse_number(header[position + 124 : position + 136], "size", position)
        if kind in PAX_LOCAL:
            records.update(parse_pax_records(header[position + BLOCK : position + BLOCK + length], position))
        position += BLOCK + (length + 511 & -512)
    block = header[position : position + BLOCK]
    return RawMember(name, _make_plain_header(name, len(member.payload), block, records), member.payload)


def read_members(url: Any, reading: Reading | None = None) -> Iterator[RawMember]:
    """Yield the files of a shard in their order.

    Folders are left out, and so are links that lead to nothing in the shard: with one warning for each shard.

    Args:
        url: the shard: a url, a path, ``-`` or an open stream.
        reading: the rules of reading; names cannot be changed and members cannot be left out by them.

    Raises:
        SourceError: the shard cannot be read.
        TarError: it is damaged; the members before have been given.
    """
    return (member for member, offset in _read_with_offsets(url, reading or Reading()) if offset >= 0)


def _read_with_offsets(url: Any, reading: Reading) -> Iterator[tuple[RawMember, int]]:
    """Yield members and where they start; before an error inside a member its name, at -1."""
    stream = open_stream(url, level=reading.trust, storage_options=reading.storage_options)
    watch = _HeaderWatch()
    rules = dataclasses.replace(reading, observer=lambda *_: watch, select_files=None, rename_files=None)
    reader = ShardReader({"url": url if isinstance(url, str) else str(url), "stream": stream}, rules)
    join = reader.scanner._join  # noqa: SLF001  the one place that knows of joined archives

    def note_join(offset: int) -> None:
        watch.join(offset)
        join(offset)

    reader.scanner._join = note_join  # type: ignore[method-assign]  # noqa: SLF001
    try:
        for members in reader.member_lists():
            for some in reader.resolve(members):
                for name, payload, offset in some:
                    yield RawMember(name, watch.header(name, len(payload), offset), payload), offset
    except Exception as error:  # noqa: BLE001  it is raised again, with its place
        pending = reader.scanner.pending_name
        if pending is not None:
            yield RawMember(pending, b"", b""), -1
        raise reader.explain_error(error) from error.__cause__
    finally:
        reader.close()


class RawSamples:
    """The samples of one shard, as they stand.

    A sample is a run of members with one key, as for every reader of this library.

    Args:
        url: the shard.
        reading: the rules of reading.

    Attributes:
        loose: names of files that belong to no sample, up to ``MOST_NAMED``.
        loose_count: how many such files there were so far.

    Raises:
        SourceError: while it is iterated: the shard cannot be read.
        TarError: it is damaged.
        DuplicateField: a field stands twice in a sample.
        SplitSample: the members of a sample do not stand next to each other.
    """

    MOST_NAMED = 5

    def __init__(self, url: Any, reading: Reading | None = None) -> None:
        self.url = url if isinstance(url, str) else str(url)
        self._source = url
        self._reading = reading or Reading()
        self.loose: list[str] = []
        self.loose_count = 0

    def __iter__(self) -> Iterator[RawSample]:
        reading = self._reading
        grouper = reading.grouper()
        from webdataset.samples.split_samples import track_keys  # noqa: PLC0415  beside the reader that uses it

        finished = track_keys(self.url, reading, grouper)
        for sample in self._group():
            if finished is not None:
                stamp: dict[str, Any] = {"__key__": sample.key, **dict.fromkeys(sample.fields, b"")}
                for _, part in finished.add([stamp], [sample.offset]):
                    if reading.split_samples == "error":
                        raise part.locate(url=self.url)
            yield sample
        if finished is not None:
            finished.tell()

    def _group(self) -> Iterator[RawSample]:
        key: str | None = None
        start = 0
        members: list[RawMember] = []
        fields: list[str] = []
        keys = self._reading.keys
        for member, offset in _read_with_offsets(self._source, self._reading):
            its_key, extension = keys(member.name)
            if offset < 0:
                if key is not None and its_key not in (None, key):
                    yield RawSample(key, tuple(members), tuple(fields), self.url, start)
                continue
            if its_key is None or extension is None or is_meta(member.name):
                self.loose_count += 1
                if len(self.loose) < self.MOST_NAMED:
                    self.loose.append(member.name)
                continue
            field = extension.lower() if self._reading.lcase else extension
            if its_key != key:
                if key is not None:
                    yield RawSample(key, tuple(members), tuple(fields), self.url, start)
                key, start, members, fields = its_key, offset, [], []
            elif field in fields and self._reading.duplicates == "error":
                raise DuplicateField(
                    f"the field {field!r} stands twice in the sample", url=self.url, key=key, field=field, offset=offset
                )
            members.append(member)
            fields.append(field)
        if key is not None:
            yield RawSample(key, tuple(members), tuple(fields), self.url, start)


def read_samples(url: Any, reading: Reading | None = None) -> Iterator[RawSample]:
    """Yield the samples of a shard as they stand.

    Args:
        url: the shard.
        reading: the rules of reading.

    Raises:
        WebDatasetError: as for :class:`RawSamples`.
    """
    return iter(RawSamples(url, reading))
