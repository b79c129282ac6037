"""What a shuffle remembers of its buffer, at little cost at every step.

Theory. Writing the addresses of a whole buffer takes longer than a step may. But a buffer follows from an earlier one,
from the addresses that came in since, and from the generator's numbers; replaying that takes no sample. So a snapshot
is a *base* (all addresses, written down at some step), the addresses that came in behind it, and how many went out.
Each time that a quarter of a buffer, and no less than 128, has come in, a new base is written, if anybody takes
snapshots.

A base is smaller where the buffer is in the order of addresses, since the order need not be told then. In the streams
of elastic datasets, buffers are put into that order at each such border, whether or not anybody takes snapshots: it is
as good as any other, since every draw is uniform.

Flows in: addresses, as items enter a buffer. Flows out: a JSON value.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from typing import Any

from webdataset.ground.errors import StateMismatch

from .base import Address, Json, Memory
from .packing import flat, packed, unpacked

CHUNK = 32
FEWEST = 128
Replay = Callable[[Iterator[Address], list[Address]], Iterator[Address]]


class Journal:
    """A base, and what came in behind it.

    Args:
        bufsize: largest number of items that wait.
        waiting: the buffer, pairs of address and item.
        random: gives the state of the generator.
        sorts: put the buffer into the order of addresses at each border.
    """

    def __init__(self, bufsize: int, waiting: list[Any], random: Callable[[], Json], *, sorts: bool) -> None:
        self.border = max(bufsize // 4, FEWEST)
        self.waiting = waiting
        self.random = random
        self.sorts = sorts
        self.entered: list[Address] = []  # behind the base, or behind the last border
        self._base: dict[str, Any] | None = None
        self._size = 0  # addresses in the base
        self._phase = 0  # what had come in between the border and the base
        self._sealed: list[str] = []  # of what came in, packed chunk by chunk
        self._texts: list[str] = []  # of what came in behind the last chunk
        self._wanted = False  # somebody has taken a snapshot since the border

    def noted(self, upstream: Iterator[Any], origin: Callable[[], Address]) -> Iterator[tuple[Address, Any]]:
        """Pair each item with its address, and take note of the address."""
        enter = self.entered.append
        for item in upstream:
            address = origin()
            enter(address)
            yield address, item

    def delivered(self, pairs: Iterator[Any], memory: Memory) -> Iterator[Any]:
        """Yield the items of ``pairs``, keep the address of the last one in ``memory``, cross borders in between."""
        entered, border = self.entered, self.border
        if len(entered) + self._phase >= border:  # restored right before a border
            self._cross()
        for address, item in pairs:
            memory.address = address
            yield item
            if len(entered) + self._phase >= border:
                self._cross()

    def _cross(self) -> None:
        """Begin anew at a border; the buffer is complete between two items that are given."""
        ordered = self.sorts and _ordered(self.waiting)
        self._empty()
        self._phase = 0
        self._base = None
        if self._wanted:
            self._write(in_order=ordered)
        self._wanted = False

    def _empty(self) -> None:
        for part in (self.entered, self._sealed, self._texts):
            part.clear()

    def _write(self, *, in_order: bool) -> None:
        addresses = [address for address, _ in self.waiting]
        self._base = {"waiting": packed(addresses, in_order=in_order), "random": self.random(), "phase": self._phase}
        self._size = len(addresses)

    def written(self) -> Json:
        """Return the buffer as JSON."""
        self._wanted = True
        entered, sealed = self.entered, self._sealed
        if self._base is None:
            self._phase += len(entered)
            self._empty()
            self._write(in_order=False)
        while len(entered) - len(sealed) * CHUNK >= CHUNK:
            start = len(sealed) * CHUNK
            sealed.append(packed(entered[start : start + CHUNK], in_order=True))
            self._texts.clear()
        given = self._size + len(entered) - len(self.waiting)
        tail = self._told(entered[len(sealed) * CHUNK :])
        return {**(self._base or {}), "since": sealed.copy(), "tail": tail, "given": given}

    def _told(self, tail: list[Address]) -> Json:
        """Return the addresses behind the last chunk: a text of differences, where all are a reader's."""
        texts = self._texts
        for place in range(len(texts), len(tail)):
            address, (shard, ordinal, offset) = tail[place], tail[place - 1] if place else (0, 0, 0)
            if not _is_readers(address):
                texts.clear()
                return tail
            texts.append(f"{address[0] - shard} {address[1] - ordinal} {address[2] - offset}")
        return ";".join(texts)

    def reread(self, state: Json, replay: Replay) -> list[Address]:
        """Take up what ``written`` returned, and return the addresses of the buffer.

        Args:
            state: the JSON value.
            replay: shuffles addresses as the items were shuffled, through a buffer that it is given; its generator
                stands where the base was written.

        Raises:
            StateMismatch: it is no such value.
        """
        buffer = unpacked(state["waiting"])
        self._base = {name: state[name] for name in ("waiting", "random", "phase")}
        self._size, self._phase = len(buffer), int(state["phase"])
        self._empty()
        self._sealed[:] = state["since"]
        self.entered[:] = [address for chunk in self._sealed for address in unpacked(chunk)] + _heard(state["tail"])
        given = sum(1 for _ in islice(replay(iter(self.entered), buffer), state["given"]))
        if given != state["given"] or len(self.entered) // CHUNK != len(self._sealed):
            raise StateMismatch("the snapshot's shuffle buffer does not follow from what came into it")
        return buffer


def _ordered(waiting: list[Any]) -> bool:
    """Put a buffer into the order of its addresses; return False where they cannot be ordered."""
    try:
        waiting.sort(key=lambda pair: flat(pair[0]))
    except TypeError:  # addresses of a foreign kind
        return False
    return True


def _is_readers(address: Address) -> bool:
    return isinstance(address, tuple | list) and len(address) == 3 and {type(part) for part in address} == {int}


def _heard(tail: Json) -> list[Address]:
    """Return the addresses that ``_told`` told of."""
    if isinstance(tail, list):
        return tail
    if not isinstance(tail, str):
        raise StateMismatch("the snapshot holds addresses that cannot be read")
    try:
        rows = [list(map(int, text.split())) for text in tail.split(";") if text]
        return [list(row) for row in zip(*map(accumulate, zip(*rows, strict=True)), strict=True)]
    except ValueError as error:
        raise StateMismatch("the snapshot holds addresses that cannot be read") from error
