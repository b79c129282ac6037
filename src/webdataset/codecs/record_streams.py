"""Cuts streams of msgpack and CBOR into items while their bytes arrive.

Theory. msgpack's own incremental unpacker keeps what it has understood of an unfinished item. cbor2 has none, so the
bytes of an unfinished item are kept and parsed again when there are twice as many: each byte is parsed about twice at
most, whatever the sizes of items and pieces.

An unfinished item is never taken for the end, and never more than one item's limit of bytes is held that make no item
yet. This module does no reading of its own.
"""

import io
from typing import Any

from webdataset.codecs.msgpack_cbor import cbor2, cbor_tag_decoders, describe_list_key, msgpack_extensions
from webdataset.core.errors import FormatError, LimitExceeded, Truncated, WebDatasetError, describe_error
from webdataset.core.optional_imports import require

_LONGEST_ARRAY = 1 << 24
_PIECE = 1 << 20
Items = tuple[list[Any], list[int]]


class MsgpackItems:
    """A sequence of msgpack items.

    Attributes:
        error: why the sequence cannot be read on, or None. Items before the fault are given first.
        start: where the next item starts.

    Raises:
        MissingExtra: msgpack is not installed.
    """

    def __init__(self, offset: int, limit_bytes: int) -> None:
        library = require("msgpack", extra="records", purpose="reading msgpack records")
        self.error: Exception | None = None
        self.start = self._base = offset
        self._fed = 0
        self._limit = limit_bytes
        self._over = library.OutOfData
        self._full = library.BufferFull
        self._unpacker = library.Unpacker(
            max_buffer_size=limit_bytes + _PIECE,
            max_array_len=_LONGEST_ARRAY,
            max_map_len=_LONGEST_ARRAY,
            strict_map_key=False,
            ext_hook=msgpack_extensions(),
        )

    def feed(self, piece: bytes) -> Items:
        """Take bytes and return the items that they complete.

        Args:
            piece: the next bytes, a megabyte at most.
        """
        items: list[Any] = []
        starts: list[int] = []
        unpacker = self._unpacker
        unpack, tell, base, start = unpacker.unpack, unpacker.tell, self._base, self.start
        try:
            unpacker.feed(piece)
            self._fed += len(piece)
            while True:
                item = unpack()
                items.append(item)
                starts.append(start)
                start = base + tell()
        except self._over:
            pass
        except self._full:
            self.error = _size_error(self._limit, start)
        except TypeError as error:
            self.error = _item_error("msgpack", error, start, describe_list_key(error))
        except Exception as error:  # noqa: BLE001  errors of the library have no common base; the hook's are ours
            self.error = _item_error("msgpack", error, start)
        self.start = start
        return items, starts

    def finish(self) -> Items:
        """Take note that no more bytes come."""
        if self.start < self._base + self._fed and self.error is None:
            self.error = _truncation_error("msgpack", self.start)
        return [], []


class CborItems:
    """A CBOR sequence (RFC 8742).

    Attributes:
        error: why the sequence cannot be read on, or None. Items before the fault are given first.
        start: where the next item starts.

    Raises:
        MissingExtra: cbor2 is not installed, or too old.
    """

    def __init__(self, offset: int, limit_bytes: int) -> None:
        self._library = cbor2()
        self._semantics = cbor_tag_decoders()
        self.error: Exception | None = None
        self.start = offset
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._kept = 0
        # bytes that are worth another attempt
        self._enough = 0

    def feed(self, piece: bytes) -> Items:
        """Take bytes and return the items that they complete."""
        self._pieces.append(piece)
        self._kept += len(piece)
        return self._parse_items() if self._kept >= self._enough else ([], [])

    def _parse_items(self) -> Items:
        content = b"".join(self._pieces)
        stream = io.BytesIO(content)
        decode = self._library.CBORDecoder(stream, semantic_decoders=self._semantics).decode
        tell, base, end = stream.tell, self.start, len(content)
        items: list[Any] = []
        starts: list[int] = []
        at = 0
        try:
            while at < end:
                item = decode()
                items.append(item)
                starts.append(base + at)
                at = tell()
        except self._library.CBORDecodeEOF:
            if end - at > self._limit:
                self.error = _size_error(self._limit, base + at)
        except Exception as error:  # noqa: BLE001  errors of the values' own types come through; ours are wrapped
            self.error = _item_error("CBOR", error, base + at)
        self.start = base + at
        self._pieces = [content[at:]] if at < end else []
        self._kept = end - at
        self._enough = min(2 * self._kept, self._limit + 1)
        return items, starts

    def finish(self) -> Items:
        """Take note that no more bytes come; return the items that had waited for them."""
        found: Items = ([], [])
        if self._kept and self.error is None:
            found = self._parse_items()
        if self._kept and self.error is None:
            self.error = _truncation_error("CBOR", self.start)
        return found


def _item_error(kind: str, error: Exception, offset: int, reason: str | None = None) -> Exception:
    cause = error if isinstance(error, WebDatasetError) else error.__cause__
    reason = reason or (cause.message if isinstance(cause, WebDatasetError) else describe_error(error))
    refused = FormatError(f"no {kind} item that can be read at byte {offset}: {reason}", offset=offset)
    refused.__cause__ = error
    return refused


def _size_error(limit_bytes: int, offset: int) -> Exception:
    return LimitExceeded(
        f"the item at byte {offset} is larger than {limit_bytes} bytes, or no item; pass limit_bytes= to read it",
        offset=offset,
    )


def _truncation_error(kind: str, offset: int) -> Exception:
    return Truncated(f"the shard ends inside the {kind} item at byte {offset}", offset=offset)
