"""Saves the buffer of a shuffle at little cost at every step: a base, and what entered since.

Theory. Writing the addresses of a whole buffer takes longer than a step may. But a buffer follows from an earlier
one, from the addresses that entered since, and from the generator's numbers; replaying that reads no sample. So a
snapshot is a *base* (all addresses, written at some step), the addresses that entered after it, and how many left.
Each time that a quarter of a buffer, and no less than 128, has entered, there is a border; at every ``SPAN``-th one a
new base is written, if snapshots are taken.

A base is smaller where the buffer is in the order of addresses, since the order need not be stored then. In the
streams of elastic datasets, buffers are put into that order at each border, whether or not snapshots are taken: it is
as good as any other, since every draw is uniform. A replay does the same at the same places.

With a bound in bytes, how many samples leave for one that enters depends on their weight, which no address tells. So
that number is written too, one sign for each sample that entered: twice the number that left before the next one
entered, and one more if the sample bypassed the buffer itself. Such a buffer is never put into the order of
addresses. Its length depends on the samples, so borders follow its length at the base.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

from webdataset.core.errors import StateMismatch
from webdataset.core.json_types import Address, JsonValue, SplitJson, as_int, as_list, as_text
from webdataset.stages.address_codec import AddressLog, decode_addresses, encode_addresses, flatten_address
from webdataset.stages.base import Item, StageState

FEWEST = 128
SPAN = 3
Pair = tuple[Address, Any]  # and the item
Replay = Callable[[Iterator[Address], list[Address]], Iterator[Address]]
_NONE = object()


class _Base(TypedDict):
    """A buffer as it was at some step: its addresses, its generator, and how many had entered since a border."""

    waiting: str
    random: int
    phase: int


class ShuffleJournal:
    """A base, and what came in after it.

    Args:
        bufsize: largest number of items that wait.
        waiting: the buffer, pairs of address and item.
        random: gives the state of the generator.
        sorts: put the buffer into the order of addresses at each border.
    """

    def __init__(self, bufsize: int, waiting: list[Pair], random: Callable[[], int], *, sorts: bool) -> None:
        self.border = max(bufsize // 4, FEWEST)
        self.waiting = waiting
        self.random = random
        self.sorts = sorts
        self._trail = AddressLog()
        self._entered = self._trail.entered  # after the base, or after the last border
        self._next = self.border  # how many have entered at the next border
        self._crossed = 0  # borders after the base
        self._base: _Base | None = None
        self._size = 0  # addresses in the base
        self._sealed = 0  # chunks after it that are in what lasts
        self._lasting: dict[str, JsonValue] | None = None  # see split_snapshot; None: it is another one since
        self._wanted = False  # a snapshot was taken since the border

    def note_addresses(self, upstream: Iterator[Item], origin: Callable[[], Address]) -> Iterator[tuple[Address, Item]]:
        """Pair each item with its address, and take note of the address."""
        enter = self._entered.append
        for item in upstream:
            address = origin()
            enter(address)
            yield address, item

    def deliver(self, pairs: Iterator[tuple[Address, Item]], state: StageState) -> Iterator[Item]:
        """Yield the items of ``pairs``, keep the address of the last one in ``state``, cross borders in between."""
        entered = self._entered
        if len(entered) >= self._next:  # restored right before a border
            self._cross()
        for address, item in pairs:
            state.address = address
            yield item
            if len(entered) >= self._next:
                self._cross()

    def _cross(self) -> None:
        """Cross a border; the buffer is complete between two items that are given."""
        ordered = self.sorts and _sort_buffer(self.waiting, _address_order)
        wanted, self._wanted = self._wanted, False
        self._crossed += 1
        if wanted and self._base is not None and not self._base["phase"] and self._crossed < SPAN:
            self._next = len(self._entered) + self.border
            return
        self._clear()
        self._next = self.border
        self._base = self._lasting = None
        if wanted:
            self._write(0, in_order=ordered)

    def _clear(self) -> None:
        self._trail.clear()

    def _border(self, size: int) -> int:  # noqa: ARG002  for journals whose borders follow the base
        """Return how many enter between two borders, where a base has ``size`` addresses."""
        return self.border

    def _write(self, phase: int, *, in_order: bool) -> _Base:
        """Write a base, and return it."""
        addresses = [address for address, _ in self.waiting]
        base: _Base = {
            "waiting": encode_addresses(addresses, in_order=in_order),
            "random": self.random(),
            "phase": phase,
        }
        self._base, self._lasting, self._size, self._crossed = base, None, len(addresses), 0
        return base

    def split_snapshot(self) -> SplitJson:
        """Return the buffer as JSON: how many went out and the last addresses that came in, and what came before."""
        self._wanted = True
        trail, entered = self._trail, self._entered
        base = self._base
        if base is None:
            phase = self.border - self._next + len(entered)
            self._clear()
            self._next = self.border - phase
            base = self._write(phase, in_order=False)
        tail = trail.tail()
        lasting = self._lasting
        if lasting is None or len(trail.sealed) != self._sealed:
            self._sealed = len(trail.sealed)
            lasting = self._lasting = {
                "phase": base["phase"],
                "random": base["random"],
                "since": trail.sealed.copy(),
                "waiting": base["waiting"],
            }
        return [{"given": self._size + len(entered) - len(self.waiting), "tail": tail}, lasting]

    def reread(self, state: Mapping[str, JsonValue], replay: Replay) -> list[Address]:
        """Take up what ``split_snapshot`` returned, and return the addresses of the buffer.

        Args:
            state: the JSON value.
            replay: shuffles addresses as the items were shuffled, through a buffer that it is given; its generator
                stands where the base was written.

        Raises:
            StateMismatch: it is no such value.
        """
        waiting, phase = as_text(state["waiting"]), as_int(state["phase"])
        buffer = decode_addresses(waiting)
        self._base, self._lasting = {"waiting": waiting, "random": as_int(state["random"]), "phase": phase}, None
        self._size, self._crossed, self.border = len(buffer), 0, self._border(len(buffer))
        self._next = self.border - phase
        self._clear()
        self._trail.reread([as_text(chunk) for chunk in as_list(state["since"])], state["tail"])
        self._follow(buffer, replay, as_int(state["given"]))
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
                    _sort_buffer(buffer, flatten_address)
                self._next = came + self.border
                self._crossed += 1
            if next(going, _NONE) is _NONE:
                break
        if came != len(self._entered) or len(buffer) != self._size + came - given:
            raise StateMismatch("the snapshot's shuffle buffer does not follow from what came into it")


def _address_order(pair: tuple[Address, object]) -> tuple[int, ...]:
    return flatten_address(pair[0])


def _sort_buffer(waiting: list[Item], order: Callable[[Item], tuple[int, ...]]) -> bool:
    """Put a buffer into the order of its addresses; return False where they cannot be ordered."""
    try:
        waiting.sort(key=order)
    except TypeError:  # addresses of a foreign kind
        return False
    return True


_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SIGN = re.compile(r"([0-9a-z])|\((\d{1,18})\)")
Picks = Callable[[list[Address]], Address]


class WeighedShuffleJournal(ShuffleJournal):
    """A base, what came in after it, and how many went out for each."""

    def __init__(self, bufsize: int, waiting: list[Pair], random: Callable[[], int]) -> None:
        super().__init__(bufsize, waiting, random, sorts=False)
        self.codes = [0]  # the first: what went out before anything came in
        self._written = 0  # codes that are in the text
        self._text = ""

    def _clear(self) -> None:
        super()._clear()
        self.codes[:] = [0]
        self._written, self._text = 0, ""

    def _write(self, phase: int, *, in_order: bool) -> _Base:  # noqa: ARG002  borders begin at the base
        base = super()._write(0, in_order=in_order)
        self._next = self.border = self._border(self._size)
        return base

    def _border(self, size: int) -> int:
        return max(size // 4, FEWEST)

    def outs(self) -> str:
        """Return the codes as a text."""
        codes, last = self.codes, len(self.codes) - 1
        if self._written < last:
            self._text += "".join(map(_format_code, codes[self._written : last]))
            self._written = last
        return self._text + _format_code(codes[last])

    def follow(self, state: Mapping[str, JsonValue], pick: Picks) -> list[Address]:
        """Take up what ``split_snapshot`` and ``outs`` returned, and return the addresses of the buffer.

        Args:
            state: the JSON value, the codes under ``outs``.
            pick: takes a random entry out of a buffer; its generator stands where the base was written.

        Raises:
            StateMismatch: it is no such value.
        """
        codes = _parse_codes(state["outs"])

        def replay(entering: Iterator[Address], buffer: list[Address]) -> Iterator[Address]:
            for _ in range(codes[0] >> 1):
                yield pick(buffer)
            for address, code in zip(entering, codes[1:], strict=False):
                if code & 1:
                    yield address
                else:
                    buffer.append(address)
                for _ in range(code >> 1):
                    yield pick(buffer)

        if sum((code >> 1) + (code & 1) for code in codes) != state["given"]:
            raise StateMismatch("the snapshot's shuffle buffer does not follow from what came into it")
        buffer = self.reread(state, replay)
        self.codes[:] = codes
        if len(codes) != len(self._entered) + 1:
            raise StateMismatch("the snapshot's shuffle buffer does not follow from what came into it")
        return buffer


def _format_code(code: int) -> str:
    return _SIGNS[code] if code < len(_SIGNS) else f"({code})"


def _parse_codes(text: JsonValue) -> list[int]:
    """Return the codes that a text tells of."""
    signs = list(_SIGN.finditer(text)) if isinstance(text, str) else []
    if not isinstance(text, str) or not signs or sum(len(sign.group()) for sign in signs) != len(text):
        raise StateMismatch("the snapshot does not tell how many samples went out")
    return [int(sign[2]) if sign[2] else _SIGNS.index(sign[1]) for sign in signs]
