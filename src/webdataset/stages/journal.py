"""What a shuffle remembers of its buffer, at little cost at every step.

Theory. Writing the addresses of a whole buffer takes longer than a step may. But a buffer follows from an earlier one,
from the addresses that came in since, and from the generator's numbers; replaying that takes no sample. So a snapshot
is a *base* (all addresses, written down at some step), the addresses that came in behind it, and how many went out.
Each time that a quarter of a buffer, and no less than 128, has come in, there is a border; at every ``SPAN``-th one a
new base is written, if anybody takes snapshots.

A base is smaller where the buffer is in the order of addresses, since the order need not be told then. In the streams
of elastic datasets, buffers are put into that order at each border, whether or not anybody takes snapshots: it is
as good as any other, since every draw is uniform. A replay does the same at the same places.

Flows in: addresses, as items enter a buffer. Flows out: a JSON value.
"""

from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.errors import StateMismatch

from .base import Address, Json, Memory
from .packing import flat, packed, unpacked
from .packing_trails import Trail

FEWEST = 128
SPAN = 3
Replay = Callable[[Iterator[Address], list[Address]], Iterator[Address]]
_NONE = object()


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
        self._trail = Trail()
        self._entered = self._trail.entered  # behind the base, or behind the last border
        self._next = self.border  # how many have entered at the next border
        self._crossed = 0  # borders behind the base
        self._base: dict[str, Any] | None = None
        self._size = 0  # addresses in the base
        self._wanted = False  # somebody has taken a snapshot since the border

    def noted(self, upstream: Iterator[Any], origin: Callable[[], Address]) -> Iterator[tuple[Address, Any]]:
        """Pair each item with its address, and take note of the address."""
        enter = self._entered.append
        for item in upstream:
            address = origin()
            enter(address)
            yield address, item

    def delivered(self, pairs: Iterator[Any], memory: Memory) -> Iterator[Any]:
        """Yield the items of ``pairs``, keep the address of the last one in ``memory``, cross borders in between."""
        entered = self._entered
        if len(entered) >= self._next:  # restored right before a border
            self._cross()
        for address, item in pairs:
            memory.address = address
            yield item
            if len(entered) >= self._next:
                self._cross()

    def _cross(self) -> None:
        """Cross a border; the buffer is complete between two items that are given."""
        ordered = self.sorts and _ordered(self.waiting, _first)
        wanted, self._wanted = self._wanted, False
        self._crossed += 1
        if wanted and self._base is not None and not self._base["phase"] and self._crossed < SPAN:
            self._next = len(self._entered) + self.border
            return
        self._clear()
        self._next = self.border
        self._base = None
        if wanted:
            self._write(0, in_order=ordered)

    def _clear(self) -> None:
        self._trail.clear()

    def _border(self, size: int) -> int:  # noqa: ARG002  for journals whose borders follow the base
        """Return how many enter between two borders, where a base has ``size`` addresses."""
        return self.border

    def _write(self, phase: int, *, in_order: bool) -> dict[str, Any]:
        """Write a base, and return it.

        Args:
            phase: how many have entered behind the last border.
            in_order: the buffer is in the order of addresses.
        """
        addresses = [address for address, _ in self.waiting]
        base = {"waiting": packed(addresses, in_order=in_order), "random": self.random(), "phase": phase}
        self._base, self._size, self._crossed = base, len(addresses), 0
        return base

    def written(self) -> Json:
        """Return the buffer as JSON."""
        self._wanted = True
        base = self._base
        if base is None:
            phase = self.border - self._next + len(self._entered)
            self._clear()
            self._next = self.border - phase
            base = self._write(phase, in_order=False)
        since, tail = self._trail.written()
        given = self._size + len(self._entered) - len(self.waiting)
        return {
            "given": given,
            "phase": base["phase"],
            "random": base["random"],
            "since": since,
            "tail": tail,
            "waiting": base["waiting"],
        }

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
        self._size, self._crossed, self.border = len(buffer), 0, self._border(len(buffer))
        self._next = self.border - int(state["phase"])
        self._clear()
        self._trail.reread(state["since"], state["tail"])
        self._follow(buffer, replay, int(state["given"]))
        return buffer

    def _follow(self, buffer: list[Address], replay: Replay, given: int) -> None:
        """Bring a buffer to where it was when so many items had gone out."""
        came = 0

        def coming() -> Iterator[Address]:
            nonlocal came
            for address in self._entered:
                came += 1
                yield address

        going = replay(coming(), buffer)
        for _ in range(given):
            if came >= self._next:
                if self.sorts:
                    _ordered(buffer, flat)
                self._next = came + self.border
                self._crossed += 1
            if next(going, _NONE) is _NONE:
                break
        if came != len(self._entered) or len(buffer) != self._size + came - given:
            raise StateMismatch("the snapshot's shuffle buffer does not follow from what came into it")


def _first(pair: tuple[Address, Any]) -> tuple[int, ...]:
    return flat(pair[0])


def _ordered(waiting: list[Any], order: Callable[[Any], tuple[int, ...]]) -> bool:
    """Put a buffer into the order of its addresses; return False where they cannot be ordered."""
    try:
        waiting.sort(key=order)
    except TypeError:  # addresses of a foreign kind
        return False
    return True
