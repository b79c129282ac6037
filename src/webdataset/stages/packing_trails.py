"""Addresses in the order in which they came in, as texts that grow at their end.

Theory. A reader's addresses rise: mostly the next sample of the same shard, some blocks of 512 bytes further on. So an
address is told by its difference from the one before it and a sign for its check: ``"10H"`` for the next ordinal and 10
blocks, three numbers (shard, ordinal, bytes) for anything else. Each is written once. Each time that there are as many
as fill a chunk, their text is deflated and begins anew, its first address told in full. Addresses of other shapes are
packed in columns.

Flows in: addresses. Flows out: deflated chunks, and the text of those behind the last one.
"""

import re
from typing import Any

from webdataset.ground.errors import StateMismatch
from webdataset.samples.address import CheckedAddress as Place

from .base import Address, Json
from .packing import deflated, inflated, packed, unpacked

CHUNK = 64
_BLOCK = 512
_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+,./"
_STEP = re.compile(r"(-?\d+)(?: (-?\d+) (-?\d+))?([A-Za-z!#$%&()*+,./])")
_MARK = b"\2"  # of a text; those of ``packed`` are 0 and 1


class Trail:
    """Addresses that came in.

    Attributes:
        entered: the addresses; others append to it.
    """

    def __init__(self) -> None:
        self.entered: list[Address] = []
        self._sealed: list[str] = []
        self._start = 0  # where what is behind the last chunk begins
        self._told = 0  # how many are written
        self._text = ""  # of those behind the last chunk
        self._others: list[Address] | None = None  # the same as they are, where some have another shape

    def clear(self) -> None:
        """Forget all addresses."""
        self.entered.clear()
        self._sealed.clear()
        self._start = self._told = 0
        self._text, self._others = "", None

    def written(self) -> tuple[list[str], Json]:
        """Return the chunks, and what is behind them."""
        while len(self.entered) - self._start >= CHUNK:
            self._seal(self._start + CHUNK)
        tail = self._tail(len(self.entered))
        return self._sealed.copy(), tail

    def _seal(self, stop: int) -> None:
        tail = self._tail(stop)
        self._sealed.append(deflated(_MARK + tail.encode()) if isinstance(tail, str) else packed(tail, in_order=True))
        self._start = self._told = stop
        self._text, self._others = "", None

    def _tail(self, stop: int) -> Json:
        """Return the addresses behind the last chunk and before ``stop``, as a text where all are a reader's."""
        if self._others is None:
            if self._told == stop or self._tell(stop):
                return self._text
            self._others = []
        self._others += map(_listed, self.entered[self._start + len(self._others) : stop])
        return self._others.copy()

    def _tell(self, stop: int) -> bool:
        """Write the addresses before ``stop`` that are not written yet; return False where one is not a reader's."""
        entered, told = self.entered, self._told
        shard, ordinal, offset, _ = entered[told - 1] if told > self._start else (0, 0, 0, 0)
        steps = []
        for address in entered[told:stop]:
            if type(address) is not Place and not _is_readers(address):
                return False
            before, last, behind = shard, ordinal, offset
            shard, ordinal, offset, check = address
            size = offset - behind
            if shard == before and ordinal - last == 1 and not size % _BLOCK:
                steps.append(f"{size // _BLOCK}{_SIGNS[check]}")
            else:
                steps.append(f"{shard - before} {ordinal - last} {size}{_SIGNS[check]}")
        self._told = stop
        self._text += "".join(steps)
        return True

    def reread(self, since: list[str], tail: Json) -> None:
        """Take up what ``written`` returned.

        Args:
            since: the chunks.
            tail: what is behind them.

        Raises:
            StateMismatch: it is nothing of the kind.
        """
        self.clear()
        for chunk in since:
            addresses = _chunk(chunk)
            if not addresses:
                raise StateMismatch("the snapshot holds addresses that cannot be read")
            self.entered += addresses
        self._sealed[:] = since
        self._start = self._told = len(self.entered)
        self.entered += tail if isinstance(tail, list) else _heard(tail)


def _is_readers(address: Address) -> bool:
    if not isinstance(address, tuple | list) or len(address) != 4 or {type(part) for part in address} != {int}:
        return False
    return address[3] in range(len(_SIGNS))


def _listed(address: Address) -> Json:
    return [_listed(part) for part in address] if isinstance(address, tuple | list) else address


def _chunk(text: str) -> list[Address]:
    if not text:
        return []
    body = inflated(text)
    return _heard(str(body[1:], "utf-8", "replace")) if body[:1] == _MARK else unpacked(text)


def _heard(tail: Any) -> list[Address]:
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
