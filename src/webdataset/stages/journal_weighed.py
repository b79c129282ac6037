"""What a shuffle with a bound in bytes remembers of its buffer, at little cost at every step.

Theory. As in :mod:`webdataset.stages.journal`, but how many samples go out for one that comes in depends on what they
weigh, which no address tells. So that number is written down too, one sign for each sample that came in: twice the
number that went out before the next one came, and one more if it passed by the buffer itself. Nothing is put into
order here. How long the buffer is depends on the samples, so borders follow its length at the base.

Flows in: addresses, as samples enter, and numbers, as they go out. Flows out: a JSON value.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.errors import StateMismatch

from .base import Address, Json
from .journal import FEWEST, Journal

_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SIGN = re.compile(r"([0-9a-z])|\((\d{1,18})\)")
Picks = Callable[[list[Address]], Address]


class WeighedJournal(Journal):
    """A base, what came in behind it, and how many went out for each.

    Args:
        bufsize: largest number of samples that wait.
        waiting: the buffer, pairs of address and sample.
        random: gives the state of the generator.
    """

    def __init__(self, bufsize: int, waiting: list[Any], random: Callable[[], Json]) -> None:
        super().__init__(bufsize, waiting, random, sorts=False)
        self.codes = [0]  # the first: what went out before anything came in
        self._told = 0  # codes that are in the text
        self._text = ""

    def _clear(self) -> None:
        super()._clear()
        self.codes[:] = [0]
        self._told, self._text = 0, ""

    def _write(self, phase: int, *, in_order: bool) -> dict[str, Any]:  # noqa: ARG002  borders begin at the base
        base = super()._write(0, in_order=in_order)
        self._next = self.border = self._border(self._size)
        return base

    def _border(self, size: int) -> int:
        return max(size // 4, FEWEST)

    def outs(self) -> str:
        """Return the codes as a text."""
        codes, last = self.codes, len(self.codes) - 1
        if self._told < last:
            self._text += "".join(map(_sign, codes[self._told : last]))
            self._told = last
        return self._text + _sign(codes[last])

    def followed(self, state: Json, pick: Picks) -> list[Address]:
        """Take up what ``written`` and ``outs`` returned, and return the addresses of the buffer.

        Args:
            state: the JSON value, the codes under ``outs``.
            pick: takes a random entry out of a buffer; its generator stands where the base was written.

        Raises:
            StateMismatch: it is no such value.
        """
        codes = _codes(state["outs"])

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


def _sign(code: int) -> str:
    return _SIGNS[code] if code < len(_SIGNS) else f"({code})"


def _codes(text: Json) -> list[int]:
    """Return the codes that a text tells of.

    Raises:
        StateMismatch: it tells of none.
    """
    signs = list(_SIGN.finditer(text)) if isinstance(text, str) else []
    if not signs or sum(len(sign.group()) for sign in signs) != len(text):
        raise StateMismatch("the snapshot does not tell how many samples went out")
    return [int(sign[2]) if sign[2] else _SIGNS.index(sign[1]) for sign in signs]
