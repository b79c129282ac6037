"""Addresses in few bytes: a shuffle buffer of 10 000 samples in a snapshot of less than 64 KB.

Theory. Addresses of one stage have one shape: nested lists of whole numbers, ``[shard, ordinal, offset]`` for a reader.
Laid flat they are rows of numbers. The rows are sorted, so that each column's differences are small; the differences
are stored as bytes of equal worth together (all lowest bytes, then all second bytes …), of which the higher ones are
nearly all zero, and deflated. The order in the buffer, a permutation, is one more column. Offsets into tar archives are
multiples of 512: a column's greatest common divisor is taken out of it. Addresses of different shapes are deflated as
JSON.

Flows in: addresses. Flows out: a text. Never loses the order.
"""

import base64
import json
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import floordiv, sub
from typing import Any

from webdataset.ground.errors import StateMismatch
from webdataset.samples.address import Address as Place

from .base import Address

_CODES = "BHIQ"
_MOST = 1 << 63


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
    shape, rows = _flat(addresses)
    try:
        body = None if rows is None else b"\1" + _columns(shape, rows, in_order=in_order)
    except OverflowError:
        body = None
    if body is None:
        body = b"\0" + json.dumps(addresses, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(body, 1)).decode("ascii")


def unpacked(text: str) -> list[Address]:
    """Return the addresses that ``packed`` made a text of.

    Raises:
        StateMismatch: it made no such text.
    """
    if not text:
        return []
    try:
        body = memoryview(zlib.decompress(base64.b64decode(text, validate=True)))
        return list(json.loads(bytes(body[1:]))) if body[0] == 0 else _rows(body[1:])
    except (ValueError, TypeError, IndexError, zlib.error) as error:
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


def _flat(addresses: Sequence[Address]) -> tuple[Any, list[tuple[int, ...]] | None]:
    """Return the common shape of some addresses and their numbers, or None for numbers where there is none."""
    first = addresses[0]
    shape = _shape(first)
    if shape is None:
        return None, None
    if isinstance(first, tuple | list) and all(inner == 0 for inner in shape):
        width = len(shape)
        rows = list(map(tuple, addresses)) if all(map(_is_sequence, addresses)) else []
        plain = set(map(len, rows)) == {width} and set(map(type, chain.from_iterable(rows))) == {int}
        return shape, rows if plain else None
    if any(_shape(address) != shape for address in addresses):
        return shape, None
    return shape, [tuple(_numbers(address)) for address in addresses]


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


def _columns(shape: Any, rows: list[tuple[int, ...]], *, in_order: bool) -> bytes:
    """Return rows of numbers as bytes: a JSON line about the columns, then the columns."""
    count = len(rows)
    if in_order:
        columns: list[Sequence[int]] = list(zip(*rows, strict=True))
    else:
        order = _sorted(rows)
        columns = [*zip(*map(rows.__getitem__, order), strict=True), order]
    heads, bodies = [], []
    for column in columns:
        head, body = _column(column, differences=column is not columns[-1] or in_order)
        heads.append(head)
        bodies.append(body)
    written = json.dumps([shape, count, in_order, heads], separators=(",", ":"))
    return written.encode() + b"\n" + b"".join(bodies)


def _sorted(rows: list[tuple[int, ...]]) -> list[int]:
    """Return the numbers of rows in rising order, the last column being left out where there are others."""
    first, *others = zip(*rows, strict=True)
    keys = list(first)
    for column in others[:-1]:
        keys = [key << 40 | value for key, value in zip(keys, column, strict=True)]
    return sorted(range(len(rows)), key=keys.__getitem__)


def _is_sequence(address: Address) -> bool:
    return isinstance(address, list | tuple)


def _column(column: Sequence[int], *, differences: bool) -> tuple[list[int], bytes]:
    """Return what is to be known of a column, ``[divisor, first, least, width]``, and its bytes."""
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
    code = next(code for code in _CODES if most < 1 << 8 * array(code).itemsize)
    numbers = array(code, column)
    if sys.byteorder == "big":
        numbers.byteswap()
    plain, width = numbers.tobytes(), numbers.itemsize
    return [divisor, first, least, width], b"".join(plain[place::width] for place in range(width))


def _rows(body: memoryview) -> list[Address]:
    """Return the addresses that ``_columns`` wrote."""
    head, _, rest = bytes(body).partition(b"\n")
    shape, count, in_order, heads = json.loads(head)
    columns, place = [], 0
    for number, (divisor, first, least, width) in enumerate(heads):
        differences = in_order or number < len(heads) - 1
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
    numbers = array(next(code for code in _CODES if array(code).itemsize == width), bytes(planes))
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
