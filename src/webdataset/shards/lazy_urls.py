"""Urls of texts with braces that are made when they are asked for.

``train-{000000..999999}.tar`` stands for a million urls. As a list they take 80 MB, a second to make, and 25 MB in the
pickle that each worker gets. :class:`LazyUrls` is the same sequence and takes as much as the text does.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, product
from math import prod
from typing import Any, Final, SupportsIndex, overload

from webdataset.core.redaction import redact

LAZY_FROM: Final = 10_000
"""From so many urls on they are made when they are asked for; fewer are a list."""

_PARTS = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?\}|\{([^{},\\]*(?:,[^{},\\]*)+)\}")
_MOST_DIGITS = 18
# what object names may carry that changes while the object stays the same, and what makes a command of a url
_NOT_PLAIN = re.compile(r"[?@]|^pipe:")


class _Numbers(Sequence[str]):
    """The texts of ``{first..last..step}``."""

    def __init__(self, first: str, last: str, step: str | None) -> None:
        padded = any(text.lstrip("-").startswith("0") and len(text.lstrip("-")) > 1 for text in (first, last))
        start, stop, by = int(first), int(last), int(step or 1) or 1
        self.numbers = range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by)
        self.form = f"%0{max(len(first), len(last))}d" if padded else "%d"

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        return map(self.form.__mod__, self.numbers)

    def __getitem__(self, index: Any) -> Any:
        return self.form % self.numbers[index]


class BraceText(Sequence[str]):
    """The urls of one text.

    Args:
        text: with braces that hold a range of numbers, or alternatives without braces in them.

    Raises:
        ValueError: the text has other braces, or a backslash: such a text is not made in this way.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._literals: list[str] = []
        self._choices: list[Sequence[str]] = []
        at = 0
        for match in _PARTS.finditer(text):
            first, last, step, words = match.groups()
            self._literals.append(text[at : match.start()])
            if words is None and max(map(len, (first, last, step or ""))) > _MOST_DIGITS:
                raise ValueError("numbers too long to be meant")
            self._choices.append(_Numbers(first, last, step) if words is None else words.split(","))
            at = match.end()
        self._literals.append(text[at:])
        if any(mark in literal for literal in self._literals for mark in "{}\\"):
            raise ValueError("braces of another kind")
        self._length = prod(map(len, self._choices))

    def __reduce__(self) -> tuple[Any, ...]:
        return BraceText, (self.text,)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        # no code of Python runs between one url and the next
        return chain.from_iterable(self._stretches())

    def _stretches(self) -> Iterator[Iterable[str]]:
        """Yield the urls in stretches in which only the last choice changes."""
        if not self._choices:
            yield [self.text]
            return
        *outer, inner = self._choices
        *before, between, after = self._literals
        numbers, form = (inner.numbers, inner.form) if isinstance(inner, _Numbers) else (inner, "%s")
        for chosen in product(*outer):
            start = "".join(part for pair in zip(before, chosen, strict=True) for part in pair) + between
            yield map((start.replace("%", "%%") + form + after.replace("%", "%%")).__mod__, numbers)

    def __getitem__(self, index: Any) -> Any:
        left = range(self._length)[index]
        parts = [self._literals[-1]]
        for literal, choices in zip(self._literals[-2::-1], self._choices[::-1], strict=True):
            left, number = divmod(left, len(choices))
            parts += choices[number], literal
        return "".join(reversed(parts))

    @property
    def is_plain(self) -> bool:
        """Whether each url names an object as it stands: no query, no user name, no command."""
        return _NOT_PLAIN.search(self.text) is None


class LazyUrls(Sequence[str]):
    """A long sequence of urls, made when they are asked for; equal to a list of them. It does not change.

    Args:
        parts: what it consists of, one after the other.
    """

    def __init__(self, parts: Sequence[BraceText | list[str]]) -> None:
        self.parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyUrls, (self.parts,)

    def __repr__(self) -> str:
        return f"<{len(self)} urls: {redact(self[0])} … {redact(self[-1])}>"

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | list[str]:
        """Return one url, or a list of those of a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        part = bisect_right(self._ends, number)
        return self.parts[part][number - self._ends[part]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes | bytearray):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    # as a list has none
    __hash__ = None  # type: ignore[assignment]
