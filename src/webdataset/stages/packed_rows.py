"""Rows of packed sequences: which pieces make a row, and the arrays that a row is.

Theory. A *piece* is a sample's tokens, or a part of them; a *row* is a list of pieces that together are no longer than
``max_tokens``. Pieces wait in the order in which they arrived. :class:`PieceWindow` opens a row with the oldest piece
and adds the longest one that fits, until none fits: no piece waits for more rows than pieces came before it, and with
enough pieces to choose from little is padded. :class:`TokenQueue` joins all tokens, and cuts them where a row is full.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, NamedTuple, cast

from webdataset.core.errors import SampleError
from webdataset.core.json_types import Address, as_list
from webdataset.core.optional_imports import loaded_module
from webdataset.samples.address import CheckedAddress
from webdataset.stages.base import Sample
from webdataset.stages.padding import check_fill, join_kinds, read_array

if TYPE_CHECKING:
    from webdataset.stages.padding import Array, Kind

# types of a reader's address, as it comes back from a state
_NUMBERS = [int] * len(CheckedAddress._fields)


class PackedSample(NamedTuple):
    """A sample that waits to be packed.

    Args:
        length: its tokens, or what it costs.
        columns: arrays by field, each of this length; empty where whole samples are given.
        sample: as it came, or (with columns) where it is from: lists of tokens take five times as much as arrays.
        is_tensor: its tokens came as a tensor.
        halves: fields that came as tensors of bfloat16, of which float32 holds the numbers here.
    """

    length: int
    columns: "dict[str, Array]"
    sample: object
    is_tensor: bool = False
    halves: frozenset[str] = frozenset()


class Piece(NamedTuple):
    """Some tokens of a sample.

    Args:
        content: the sample.
        address: its address, in a tracked run.
        first: the first token.
        stop: the one after the last.
    """

    content: PackedSample
    address: Address
    first: int
    stop: int

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.stop - self.first

    def place(self) -> list[Address]:
        """Return the address of the sample and the range of tokens."""
        return [self.address, self.first, self.stop]

    def flat_place(self) -> list[Address]:
        """Return the same, of a reader's address its numbers one by one: states are made of these much faster."""
        address = self.address
        if type(address) is CheckedAddress or (isinstance(address, list) and [*map(type, address)] == _NUMBERS):
            return [*address, self.first, self.stop]
        return self.place()


def nest_place(flat: Address) -> list[Address]:
    """Return the ``place`` of a piece from its ``flat_place``."""
    *address, first, stop = as_list(flat)
    return [address[0] if len(address) == 1 else address, first, stop]


class WaitingPieces(ABC):
    """Pieces that wait for a row."""

    @abstractmethod
    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces in the order of arrival."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether a row can be made before more arrives."""

    @abstractmethod
    def add(self, piece: Piece) -> None:
        """Add one that has arrived."""

    @abstractmethod
    def take_row(self) -> list[Piece]:
        """Remove the pieces of the next row, and return them; none where nothing waits."""


class PieceWindow(WaitingPieces):
    """Pieces of which the oldest opens a row, and the longest that fit fill it.

    Args:
        max_tokens: in a row.
        max_samples: pieces in a row.
        window: so many have to wait before a row is made.
    """

    def __init__(self, max_tokens: int, max_samples: int, window: int) -> None:
        self._max_tokens = max_tokens
        self._max_samples = max_samples
        self._window = window
        # by number, in the order of arrival
        self._pieces: OrderedDict[int, Piece] = OrderedDict()
        # (length, -number), sorted: of equal lengths the oldest is last
        self._lengths: list[tuple[int, int]] = []
        self._arrived = 0

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces.values())

    def is_ready(self) -> bool:
        """Tell whether as many wait as there are to choose from."""
        return len(self._pieces) >= self._window

    def add(self, piece: Piece) -> None:
        """Add one."""
        self._pieces[self._arrived] = piece
        insort(self._lengths, (piece.length, -self._arrived))
        self._arrived += 1

    def take_row(self) -> list[Piece]:
        """Remove the oldest piece, and then again and again the longest that fits; return them."""
        if not self._pieces:
            return []
        number = next(iter(self._pieces))
        row: list[Piece] = []
        room = self._max_tokens
        # the oldest stands where its length and number say
        at = bisect_right(self._lengths, (self._pieces[number].length, -number)) - 1
        while at >= 0 and len(row) < self._max_samples:
            length, negative = self._lengths.pop(at)
            row.append(self._pieces.pop(-negative))
            room -= length
            # a number is never above 0: all that are no longer than the room come before this
            at = bisect_right(self._lengths, (room, 1)) - 1
        return row


class TokenQueue(WaitingPieces):
    """Pieces whose tokens follow each other, cut where a row is full.

    Args:
        max_tokens: in a row.
        max_samples: pieces in a row.
    """

    def __init__(self, max_tokens: int, max_samples: int) -> None:
        self._max_tokens = max_tokens
        self._max_samples = max_samples
        self._pieces: deque[Piece] = deque()
        self._waiting_tokens = 0

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def is_ready(self) -> bool:
        """Tell whether there is enough for a row."""
        return self._waiting_tokens >= self._max_tokens or len(self._pieces) >= self._max_samples

    def add(self, piece: Piece) -> None:
        """Add one."""
        self._pieces.append(piece)
        self._waiting_tokens += piece.length

    def take_row(self) -> list[Piece]:
        """Remove tokens from the front, as many as a row takes; return them."""
        row: list[Piece] = []
        room = self._max_tokens
        while self._pieces and room and len(row) < self._max_samples:
            piece = self._pieces.popleft()
            if piece.length > room:
                self._pieces.appendleft(piece._replace(first=piece.first + room))
                piece = piece._replace(stop=piece.first + room)
            row.append(piece)
            room -= piece.length
        self._waiting_tokens -= self._max_tokens - room
        return row


def read_columns(sample: Sample, names: Sequence[str]) -> "dict[str, Array]":
    """Return fields of a sample as arrays with one value for each token.

    Args:
        sample: lists, arrays or tensors by field.
        names: of the fields; the first one has the tokens.

    Raises:
        SampleError: a field is missing, or is no array of the right length.
    """
    columns = {name: read_array(sample, name, "pack") for name in names}
    tokens = columns[names[0]]
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise SampleError(
            f"tokens are whole numbers in one dimension, and {names[0]!r} has shape {tokens.shape} of {tokens.dtype}",
            field=names[0],
        )
    for name, column in columns.items():
        if not column.ndim or len(column) != len(tokens):
            raise SampleError(
                f"{name!r} has shape {column.shape}, and there are {len(tokens)} tokens: also= takes fields with one "
                "value for each token; output='samples' keeps whole samples together, images too",
                field=name,
            )
    return columns


def check_padding(columns: "Mapping[str, Array]", fills: Mapping[str, float]) -> None:
    """Refuse a sample that cannot be padded; one that lies in a full row, too, or rows would decide what is refused.

    Args:
        columns: its arrays, by field.
        fills: what stands in the padding, by field.

    Raises:
        SampleError: the type of a field does not hold the padding.
    """
    for name, column in columns.items():
        check_fill(name, column, fills[name], "pack", "pad_id" if name == next(iter(fills)) else "also")


class RowKinds:
    """The types and shapes of the fields of a row's pieces."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def add(self, piece: Piece) -> None:
        """Add a piece.

        Raises:
            SampleError: a field does not fit those of the pieces before; nothing was added.
        """
        found = {name: (column.shape[1:], column.dtype) for name, column in piece.content.columns.items()}
        if self._kinds and found != self._kinds:
            found = {name: join_kinds(name, self._kinds[name], kind, "pack") for name, kind in found.items()}
        self._kinds = found


def check_cost(cost: object) -> int:
    """Return what a sample costs.

    Raises:
        SampleError: it is no number of tokens.
    """
    try:
        length = index(cast("int", cost))
    except TypeError:
        length = -1
    if length < 0:
        raise SampleError(f"a sample costs a whole number of tokens, at least 0, and not {cost!r}")
    return length


def join_pieces(pieces: Sequence[Piece], fills: Mapping[str, float], length: int | None) -> dict[str, object]:
    """Make a row of arrays.

    Args:
        pieces: at least one; their fields fit together.
        fills: what stands in the padding, by field, that of the tokens first.
        length: the row is padded to it; None leaves it as long as it is.
    """
    import numpy as np  # noqa: PLC0415  loaded when tokens are packed

    lengths = [piece.length for piece in pieces]
    padding = 0 if length is None else length - sum(lengths)
    arrays = {name: _join_field(pieces, name, fill, padding) for name, fill in fills.items()}
    positions = [np.arange(count) for count in lengths]
    arrays["position_ids"] = np.concatenate([*positions, np.zeros(padding, np.int64)])
    numbers = np.arange(1, len(lengths) + 1, dtype=np.int32)
    arrays["segment_ids"] = np.concatenate([np.repeat(numbers, lengths), np.zeros(padding, np.int32)])
    if length is None:
        arrays["cu_seqlens"] = np.array([0, *accumulate(lengths)], np.int32)
    samples = [cast("Sample", piece.content.sample) for piece in pieces]
    first = samples[0]
    row: dict[str, object] = {name: first[name] for name in ("__key__", "__url__") if name in first}
    row["__keys__"] = [sample.get("__key__") for sample in samples]
    torch = loaded_module("torch")
    if torch is not None and pieces[0].content.is_tensor:
        row |= {name: torch.from_numpy(array) for name, array in arrays.items()}
        halves = frozenset.intersection(*[piece.content.halves for piece in pieces])
        row |= {name: torch.from_numpy(arrays[name]).bfloat16() for name in halves}
    else:
        row |= arrays
    if length is None:
        row["max_seqlen"] = max(lengths)
    return row


def _join_field(pieces: Sequence[Piece], name: str, fill: float, padding: int) -> "Array":
    import numpy as np  # noqa: PLC0415  loaded when tokens are packed

    parts = [piece.content.columns[name][piece.first : piece.stop] for piece in pieces]
    if padding:
        parts.append(np.full((padding, *parts[0].shape[1:]), fill, np.result_type(*parts)))
    return np.concatenate(parts)
