"""Addresses in few bytes: a shuffle buffer of 10 000 samples in a snapshot of less than 64 KB.

Theory. Addresses of one stage have one shape: nested lists of whole numbers, ``[shard, ordinal, offset, check]`` for a
reader. Laid flat they are rows of numbers. The rows are sorted, so that each column's differences are small; the
differences are stored as bytes of equal worth together (all lowest bytes, then all second bytes …), of which the higher
ones are nearly all zero, and deflated. The order in the buffer, a permutation, is one more column. Offsets into tar
archives are multiples of 512: a column's greatest common divisor is taken out of it. Addresses of different shapes are
deflated as JSON.

Flows in: addresses. Flows out: a text. Never loses the order.
"""

import base64
import json
import math
import sys
import zlib
from array import array
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import floordiv, sub
from typing import Any

from webdataset.ground.errors import StateMismatch
from webdataset.samples.address import CheckedAddress as Place

from .base import Address

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_MOST = 1 << 63
_SEQUENCES = {Place, tuple, list}
_LITTLE = 4096  # bytes, below which the compressor is given a window of as many: setting up a large one takes longer
_line = json.JSONEncoder(separators=(",", ":")).encode


def packed(addresses: Sequence[Address], *, in_order: bool = False) -> str:
    """Return addresses as a text.

    Args:
        addresses: JSON values; tuples count as lists.
        in_order: they rise anyway, or nearly so; sorting would gain nothing.

    Returns:
        Base64, or an empty text for no addresses.
    """
    if not addresses:
        return ""
    shape, columns = _laid(addresses)
    try:
        body = None if columns is None else b"\1" + _columns(shape, columns, in_order=in_order)
    except OverflowError:
        body = None
    if body is None:
        body = b"\0" + _line(addresses).encode()
    return deflated(body)


def deflated(body: bytes) -> str:
    """Return bytes as a short text.

    Args:
        body: any bytes.
    """
    if len(body) >= _LITTLE:
        return b2a_base64(zlib.compress(body, 1), newline=False).decode("ascii")
    compressor = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
    return b2a_base64(compressor.compress(body) + compressor.flush(), newline=False).decode("ascii")


def inflated(text: str) -> bytes:
    """Return the bytes that ``deflated`` made a text of.

    Raises:
        StateMismatch: it made no such text.
    """
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except (ValueError, TypeError, zlib.error) as error:
        raise StateMismatch("the snapshot holds addresses that cannot be read") from error


def unpacked(text: str) -> list[Address]:
    """Return the addresses that ``packed`` made a text of.

    Raises:
        StateMismatch: it made no such text.
    """
    if not text:
        return []
    body = memoryview(inflated(text))
    try:
        return list(json.loads(bytes(body[1:]))) if body[0] == 0 else _rows(body[1:])
    except (ValueError, TypeError, IndexError) as error:
        raise StateMismatch("the snapshot holds addresses that cannot be read") from error


def flat(address: Address) -> tuple[int, ...]:
    """Return the numbers of an address, in order.

    Raises:
        TypeError: it holds anything else.
    """
    if type(address) is Place:
        return address
    if isinstance(address, int):
        return (address,)
    return tuple(_numbers(address))


def _laid(addresses: Sequence[Address]) -> tuple[Any, list[tuple[int, ...]] | None]:
    """Return the common shape of some addresses and their numbers by column, or None for these where there is none."""
    first = addresses[0]
    if set(map(type, addresses)) <= _SEQUENCES and len(set(map(len, addresses))) == 1:
        columns = list(zip(*addresses, strict=True))
        if columns and all(set(map(type, column)) == {int} for column in columns):
            return [0] * len(columns), columns
    shape = _shape(first)
    if shape is None or any(_shape(address) != shape for address in addresses):
        return None, None
    return shape, list(zip(*map(_numbers, addresses), strict=True)) or None


def _shape(address: Address) -> Any:
    """Return an address with 0 for each number in it; None where it holds anything else."""
    if type(address) is int:
        return 0
    if not isinstance(address, list | tuple):
        return None
    inner = [_shape(part) for part in address]
    return None if None in inner else inner


def _numbers(address: Address) -> Iterator[int]:
    if type(address) is int:
        yield address
    elif isinstance(address, list | tuple):
        for part in address:
            yield from _numbers(part)
    else:
        raise TypeError(f"{address!r} is no part of an address that is made of numbers")


def _columns(shape: Any, columns: list[tuple[int, ...]], *, in_order: bool) -> bytes:
    """Return columns of numbers as bytes: a JSON line about them, then the columns."""
    count = len(columns[0])
    laid: list[Sequence[int]] = list(columns)
    if not in_order:
        order = _sorted(columns)
        laid = [*(list(map(column.__getitem__, order)) for column in columns), order]
    heads, bodies = [], []
    for column in laid:
        head, body = _column(column, differences=column is not laid[-1] or in_order)
        heads.append(head)
        bodies.append(body)
    return _line([shape, count, in_order, heads]).encode() + b"\n" + b"".join(bodies)


def _sorted(columns: list[tuple[int, ...]]) -> list[int]:
    """Return the numbers of rows in rising order, by all columns but the last two (of many) or one (of few)."""
    first, *others = columns
    keys = list(first)
    for column in others[: -2 if len(others) > 2 else -1]:
        keys = [key << 40 | value for key, value in zip(keys, column, strict=True)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _column(column: Sequence[int], *, differences: bool) -> tuple[list[int | None], bytes]:
    """Return what is to be known of a column, ``[divisor, first, least, width]``, and its bytes.

    ``first`` is None for a column whose numbers are written as they are, without differences.
    """
    if differences and _is_byte_sized(column):
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


def _is_byte_sized(column: Sequence[int]) -> bool:
    """Tell whether a column fits into bytes as it is, and its differences would not."""
    if not 0 <= min(column) <= max(column) < 1 << 8:
        return False
    steps = list(map(sub, column[1:], column))
    return max(steps, default=0) - min(steps, default=0) >= 1 << 8


def _rows(body: memoryview) -> list[Address]:
    """Return the addresses that ``_columns`` wrote."""
    head, _, rest = bytes(body).partition(b"\n")
    shape, count, in_order, heads = json.loads(head)
    columns, place = [], 0
    for number, (divisor, first, least, width) in enumerate(heads):
        differences = first is not None and (in_order or number < len(heads) - 1)
        size = (count - 1 if differences else count) * width
        columns.append(_read(rest[place : place + size], width, divisor, least, first if differences else None))
        place += size
    if place != len(rest):
        raise ValueError("the columns are not as long as they say")
    order = range(count) if in_order else columns.pop()
    found: list[Address] = [None] * count
    for position, row in zip(order, zip(*columns, strict=True), strict=True):
        found[position] = _shaped(shape, iter(row))
    return found


def _read(body: bytes, width: int, divisor: int, least: int, first: int | None) -> list[int]:
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


def _shaped(shape: Any, numbers: Iterator[int]) -> Address:
    return next(numbers) if shape == 0 else [_shaped(part, numbers) for part in shape]
