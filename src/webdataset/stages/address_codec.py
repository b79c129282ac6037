"""Encodes addresses in few bytes: a shuffle buffer of 10 000 samples in a snapshot of less than 64 KB.

Theory of buffers. Addresses of one stage have one shape: nested lists of whole numbers, ``[shard, ordinal, offset,
check]`` for a reader. Flattened they are rows of numbers. The rows are sorted, so that each column's differences are
small; the differences are stored as bytes of equal worth together (all lowest bytes, then all second bytes ...), of
which the higher ones are nearly all zero, and deflated. The order in the buffer, a permutation, is one more column.
Offsets into tar archives are multiples of 512: each column is divided by its greatest common divisor. Addresses of
different shapes are deflated as JSON. The order is never lost.

Theory of logs. An :class:`AddressLog` holds addresses in the order of arrival, as a text that grows at its end. A
reader's addresses rise: mostly the next sample of the same shard, some blocks of 512 bytes further on. So an address
is stored as its difference from the one before it and a sign for its check: ``"10H"`` for the next ordinal and 10
blocks, three numbers (shard, ordinal, bytes) for anything else. Each is written once. When enough have arrived to
fill a chunk, their text is kept, deflated where that makes it shorter, and begins anew, its first address in full.
Addresses of other shapes are encoded in columns.
"""

import base64
import json
import math
import re
import sys
import zlib
from array import array
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import floordiv, sub
from typing import Any, TypeAlias

from webdataset.core.errors import StateMismatch
from webdataset.core.json_types import Address, JsonValue, as_list
from webdataset.samples.address import CheckedAddress
from webdataset.samples.native_core import find_native

Shape: TypeAlias = "int | list[Shape] | None"
"""An address with 0 for each number in it; None for addresses of no common shape."""

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_MOST = 1 << 63
_SEQUENCES = {CheckedAddress, tuple, list}
_LITTLE = 4096  # bytes, below which the compressor is given a window of as many: setting up a large one takes longer
_encode_json = json.JSONEncoder(separators=(",", ":")).encode


def encode_addresses(addresses: Sequence[Address], *, in_order: bool = False) -> str:
    """Return addresses as a text.

    Args:
        addresses: JSON values; tuples count as lists.
        in_order: they rise anyway, or nearly so; sorting would gain nothing.

    Returns:
        Base64, or an empty text for no addresses.
    """
    if not addresses:
        return ""
    shape, columns = _lay_out(addresses)
    try:
        body = None if columns is None else b"\1" + _encode_columns(shape, columns, in_order=in_order)
    except OverflowError:
        body = None
    if body is None:
        body = b"\0" + _encode_json(addresses).encode()
    return deflate_text(body)


def deflate_text(body: bytes) -> str:
    """Return bytes as a short text."""
    if len(body) >= _LITTLE:
        return b2a_base64(zlib.compress(body, 1), newline=False).decode("ascii")
    compressor = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
    return b2a_base64(compressor.compress(body) + compressor.flush(), newline=False).decode("ascii")


def inflate_text(text: str) -> bytes:
    """Return the bytes that ``deflate_text`` made a text of.

    Raises:
        StateMismatch: it made no such text.
    """
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except (ValueError, TypeError, zlib.error) as error:
        raise StateMismatch("the snapshot holds addresses that cannot be read") from error


def decode_addresses(text: str) -> list[Address]:
    """Return the addresses that ``encode_addresses`` made a text of.

    Raises:
        StateMismatch: it made no such text.
    """
    if not text:
        return []
    body = memoryview(inflate_text(text))
    try:
        return list(json.loads(bytes(body[1:]))) if body[0] == 0 else _decode_rows(body[1:])
    except (ValueError, TypeError, IndexError) as error:
        raise StateMismatch("the snapshot holds addresses that cannot be read") from error


def flatten_address(address: Address) -> tuple[int, ...]:
    """Return the numbers of an address, in order.

    Raises:
        TypeError: it holds anything else.
    """
    if type(address) is CheckedAddress:
        return address
    if isinstance(address, int):
        return (address,)
    return tuple(_numbers(address))


def _lay_out(addresses: Sequence[Any]) -> tuple[Shape, list[tuple[int, ...]] | None]:
    """Return the common shape of some addresses and their numbers by column, or None for these where there is none."""
    first = addresses[0]
    if set(map(type, addresses)) <= _SEQUENCES and len(set(map(len, addresses))) == 1:
        columns = list(zip(*addresses, strict=True))
        if columns and all(set(map(type, column)) == {int} for column in columns):
            return [0] * len(columns), columns
    shape = _address_shape(first)
    if shape is None or any(_address_shape(address) != shape for address in addresses):
        return None, None
    return shape, list(zip(*map(_numbers, addresses), strict=True)) or None


def _address_shape(address: Address) -> Shape:
    """Return an address with 0 for each number in it; None where it holds anything else."""
    if type(address) is int:
        return 0
    if not isinstance(address, list | tuple):
        return None
    inner = [_address_shape(part) for part in address]
    return None if None in inner else inner


def _numbers(address: Address) -> Iterator[int]:
    if type(address) is int:
        yield address
    elif isinstance(address, list | tuple):
        for part in address:
            yield from _numbers(part)
    else:
        raise TypeError(f"{address!r} is no part of an address that is made of numbers")


def _encode_columns(shape: Shape, columns: list[tuple[int, ...]], *, in_order: bool) -> bytes:
    """Return columns of numbers as bytes: a JSON line about them, then the columns."""
    count = len(columns[0])
    laid: list[Sequence[int]] = list(columns)
    if not in_order:
        order = _sort_rows(columns)
        laid = [*(list(map(column.__getitem__, order)) for column in columns), order]
    heads, bodies = [], []
    for column in laid:
        head, body = _encode_column(column, differences=column is not laid[-1] or in_order)
        heads.append(head)
        bodies.append(body)
    return _encode_json([shape, count, in_order, heads]).encode() + b"\n" + b"".join(bodies)


def _sort_rows(columns: list[tuple[int, ...]]) -> list[int]:
    """Return the numbers of rows in rising order, by all columns but the last two (of many) or one (of few)."""
    first, *others = columns
    keys = list(first)
    for column in others[: -2 if len(others) > 2 else -1]:
        keys = [key << 40 | value for key, value in zip(keys, column, strict=True)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _encode_column(column: Sequence[int], *, differences: bool) -> tuple[list[int | None], bytes]:
    """Return what is to be known of a column, ``[divisor, first, least, width]``, and its bytes.

    ``first`` is None for a column whose numbers are written as they are, without differences.
    """
    if differences and _fits_bytes(column):
        return [1, None, 0, 1], bytes(column)
    divisor = math.gcd(*column) or 1
    first = column[0] // divisor
    if divisor > 1:
        column = list(map(floordiv, column, repeat(divisor)))
    if differences:
        column = list(map(sub, column[1:], column))
    least = min(column, default=0)
    if least:
        column = list(map(sub, column, repeat(least)))
    most = max(column, default=0)
    if max(most, abs(least), abs(first)) >= _MOST:
        raise OverflowError("a number in an address has more than 63 bits")
    if most < 1 << 8:
        return [divisor, first, least, 1], bytes(column)
    width = 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    numbers = array(_CODES[width], column)
    if sys.byteorder == "big":
        numbers.byteswap()
    plain = numbers.tobytes()
    return [divisor, first, least, width], b"".join([plain[place::width] for place in range(width)])


def _fits_bytes(column: Sequence[int]) -> bool:
    """Tell whether a column fits into bytes as it is, and its differences would not."""
    if not 0 <= min(column) <= max(column) < 1 << 8:
        return False
    steps = list(map(sub, column[1:], column))
    return max(steps, default=0) - min(steps, default=0) >= 1 << 8


def _decode_rows(body: memoryview) -> list[Address]:
    """Return the addresses that ``_encode_columns`` wrote."""
    head, _, rest = bytes(body).partition(b"\n")
    shape, count, in_order, heads = json.loads(head)
    columns, place = [], 0
    for number, (divisor, first, least, width) in enumerate(heads):
        differences = first is not None and (in_order or number < len(heads) - 1)
        size = (count - 1 if differences else count) * width
        columns.append(
            _decode_column(rest[place : place + size], width, divisor, least, first if differences else None)
        )
        place += size
    if place != len(rest):
        raise ValueError("the columns are not as long as they say")
    order = range(count) if in_order else columns.pop()
    found: list[Address] = [None] * count
    for position, row in zip(order, zip(*columns, strict=True), strict=True):
        found[position] = _restore_shape(shape, iter(row))
    return found


def _decode_column(body: bytes, width: int, divisor: int, least: int, first: int | None) -> list[int]:
    length = len(body) // width
    planes = bytearray(len(body))
    for plane in range(width):
        planes[plane::width] = body[plane * length : (plane + 1) * length]
    numbers = array(_CODES[width], bytes(planes))
    if sys.byteorder == "big":
        numbers.byteswap()
    values: Iterable[int] = (number + least for number in numbers)
    if first is not None:
        total, running = first, [first]
        for value in values:
            total += value
            running.append(total)
        values = running
    return [value * divisor for value in values]


def _restore_shape(shape: Shape, numbers: Iterator[int]) -> Address:
    return [_restore_shape(part, numbers) for part in shape] if isinstance(shape, list) else next(numbers)


CHUNK = 64
_BLOCK = 512
_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+,./"
_STEP = re.compile(r"(-?\d+)(?: (-?\d+) (-?\d+))?([A-Za-z!#$%&()*+,./])")
_SHORT = 4  # signs an address: a text of no more is hardly shorter when it is deflated, and that takes 15 us
_MARK = b"\2"  # of a text; those of ``encode_addresses`` are 0 and 1


class AddressLog:
    """Addresses that came in.

    Attributes:
        entered: the addresses; others append to it.
        sealed: the chunks that are full, as texts.
    """

    def __init__(self) -> None:
        self.entered: list[Address] = []
        self.sealed: list[str] = []
        self._start = 0  # where what is after the last chunk begins
        self._written = 0  # how many are written
        self._text = ""  # of those after the last chunk
        self._others: list[Address] | None = None  # the same as they are, where some have another shape
        module = find_native()
        self._write_natively = None if module is None else module.write_steps

    def clear(self) -> None:
        """Forget all addresses."""
        self.entered.clear()
        self.sealed.clear()
        self._start = self._written = 0
        self._text, self._others = "", None

    def tail(self) -> JsonValue:
        """Fill chunks, and return what is after them."""
        stop = len(self.entered)
        while stop - self._start >= CHUNK:
            self._seal(self._start + CHUNK)
        return self._tail(stop)

    def _seal(self, stop: int) -> None:
        tail = self._tail(stop)
        if not isinstance(tail, str):
            self.sealed.append(encode_addresses(as_list(tail), in_order=True))
        elif len(tail) > _SHORT * (stop - self._start):
            self.sealed.append(deflate_text(_MARK + tail.encode()))
        else:
            self.sealed.append(tail)
        self._start = self._written = stop
        self._text, self._others = "", None

    def _tail(self, stop: int) -> JsonValue:
        """Return the addresses after the last chunk and before ``stop``, as a text where all are a reader's."""
        if self._others is None:
            written = self._written
            if written == stop:
                return self._text
            # the same in C, for a reader's addresses
            steps = self._write_natively and self._write_natively(self.entered, written, stop, self._start)
            if steps is None:
                steps = self._write_steps(written, stop)
            if steps is not None:
                self._written = stop
                self._text += steps
                return self._text
            self._others = []
        self._others += map(_to_lists, self.entered[self._start + len(self._others) : stop])
        return self._others.copy()

    def _write_steps(self, written: int, stop: int) -> str | None:
        """Return the addresses from ``written`` on and before ``stop`` as text; None where one is not a reader's."""
        # a reader's addresses are numbers: what is not one is found below
        entered: list[Any] = self.entered
        shard, ordinal, offset, _ = entered[written - 1] if written > self._start else (0, 0, 0, 0)
        steps = []
        for address in entered[written:stop]:
            if type(address) is not CheckedAddress and not _is_reader_address(address):
                return None
            before, last, behind = shard, ordinal, offset
            shard, ordinal, offset, check = address
            size = offset - behind
            if shard == before and ordinal - last == 1 and not size % _BLOCK:
                steps.append(f"{size // _BLOCK}{_SIGNS[check]}")
            else:
                steps.append(f"{shard - before} {ordinal - last} {size}{_SIGNS[check]}")
        return "".join(steps)

    def reread(self, since: list[str], tail: JsonValue) -> None:
        """Take up what was in ``sealed``, and what ``tail`` returned.

        Raises:
            StateMismatch: it is nothing of the kind.
        """
        self.clear()
        for chunk in since:
            addresses = _decode_chunk(chunk)
            if not addresses:
                raise StateMismatch("the snapshot holds addresses that cannot be read")
            self.entered += addresses
        self.sealed[:] = since
        self._start = self._written = len(self.entered)
        self.entered += tail if isinstance(tail, list) else _parse_tail(tail)


def _is_reader_address(address: Address) -> bool:
    if not isinstance(address, tuple | list) or len(address) != 4 or {type(part) for part in address} != {int}:
        return False
    return address[3] in range(len(_SIGNS))


def _to_lists(address: Address) -> JsonValue:
    return [_to_lists(part) for part in address] if isinstance(address, tuple | list) else address


def _decode_chunk(text: str) -> list[Address]:
    if not text:
        return []
    # a text that was not deflated begins with an address in full
    if " " in text:
        return _parse_tail(text)
    body = inflate_text(text)
    return _parse_tail(str(body[1:], "utf-8", "replace")) if body[:1] == _MARK else decode_addresses(text)


def _parse_tail(tail: JsonValue) -> list[Address]:
    """Return the addresses that a text tells of."""
    if not isinstance(tail, str):
        raise StateMismatch("the snapshot holds addresses that cannot be read")
    shard = ordinal = offset = 0
    found: list[Address] = []
    end = 0
    for step in _STEP.finditer(tail):
        if step.start() != end:
            break
        end = step.end()
        one, ordinals, size, sign = step.groups()
        shards, steps, size_bytes = (0, 1, int(one) * _BLOCK) if size is None else (int(one), int(ordinals), int(size))
        shard, ordinal, offset = shard + shards, ordinal + steps, offset + size_bytes
        found.append([shard, ordinal, offset, _SIGNS.index(sign)])
    if end != len(tail):
        raise StateMismatch("the snapshot holds addresses that cannot be read")
    return found
