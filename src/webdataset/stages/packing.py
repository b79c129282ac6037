"""Packs sequences of different lengths into rows of one length (sequence packing).

Theory. Between two rows the pieces that wait (:mod:`webdataset.stages.packed_rows`) are the whole state: each is
written as the address of its sample and the range of its tokens, so a restored stage reads these samples again and
cuts the same pieces. What a row holds follows from the lengths of the samples and their order; the state also has the
sum of the lengths of the samples that wait, by which other lengths than when it was saved are seen.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import SupportsIndex

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import (
    Handler,
    count_drop,
    make_handler_error,
    reraise_exception,
    should_continue,
)
from webdataset.core.errors import SampleError, StateMismatch, UsageError
from webdataset.core.json_types import Address, JsonValue, as_count, as_list, as_object, as_text
from webdataset.stages.address_codec import decode_addresses, encode_addresses
from webdataset.stages.base import Fetch, Run, Sample, Stage, StageState, with_blame
from webdataset.stages.packed_rows import (
    PackedSample,
    Piece,
    PieceWindow,
    RowKinds,
    TokenQueue,
    WaitingPieces,
    check_cost,
    check_padding,
    join_pieces,
    nest_place,
    read_columns,
)
from webdataset.stages.padding import check_fills, is_bfloat16, is_tensor

_CHOICES = {
    "how": ("window", "concat"),
    "output": ("padded", "flat", "samples"),
    "oversize": ("split", "truncate", "drop", "raise"),
}
WINDOW = 1536
# of the pieces of one virtual stream; with fewer to choose from, rows are padded more
LEAST_WINDOW = 32
_END = object()
# what a row has beside the fields of its samples
_MADE = frozenset(["position_ids", "segment_ids", "cu_seqlens", "max_seqlen", "__key__", "__keys__", "__url__"])

# what rows and messages say of a sample
_ORIGIN = ("__key__", "__url__", "__local_path__")


class PackState(StageState):
    """What packing remembers: the pieces that wait.

    Attributes:
        waiting: pieces.
        ended: a handler has ended the stage: nothing more is read.
    """

    plain = True

    def __init__(self, stage: "Pack") -> None:
        self._stage = stage
        self.waiting = stage.start_waiting()
        self.ended = False

    def snapshot(self) -> JsonValue:
        """Return the places of the pieces, and how long their samples are together."""
        pieces = list(self.waiting)
        return {
            "ended": self.ended,
            "tokens": sum(piece.content.length for piece in pieces),
            "waiting": encode_addresses([piece.flat_place() for piece in pieces], in_order=True),
        }

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Fetch the samples of the pieces again, and cut them.

        Raises:
            StateMismatch: they are longer or shorter than they were.
        """
        parts = as_object(state)
        self.ended = bool(parts["ended"])
        places = [nest_place(flat) for flat in decode_addresses(as_text(parts["waiting"]))]
        pieces = self._stage.cut_again(places, fetch)
        if sum(piece.content.length for piece in pieces) != as_count(parts["tokens"]):
            raise self._stage.mismatch()
        for piece in pieces:
            self.waiting.add(piece)


class Pack(Stage[PackState]):
    """Samples packed into rows; the arguments are those of :func:`pack`.

    Args:
        max_tokens: as there.
        how: the same.
        tokens: the same.
        also: the same.
        pad_id: the same.
        output: the same.
        cost: the same.
        window: the same.
        max_samples: the same.
        oversize: the same.
        handler: the same.

    Raises:
        UsageError: arguments that do not go together.
    """

    state_name = "Pack"

    def __init__(
        self,
        max_tokens: int,
        how: str,
        *,
        tokens: str,
        also: Iterable[str] | Mapping[str, float],
        pad_id: int,
        output: str,
        cost: Callable[[Sample], SupportsIndex] | None,
        window: int | None,
        max_samples: int | None,
        oversize: str | None,
        handler: Handler,
    ) -> None:
        whole = output == "samples"
        self.max_tokens = max_tokens
        self.how = how
        self.tokens = tokens
        self.output = output
        self.cost = cost
        self.window = WINDOW if window is None and how == "window" else window
        self.max_samples = max_samples
        self.oversize = oversize if oversize is not None else "raise" if whole else "split"
        self.handler = handler
        if handler is not None and not callable(handler):
            raise make_handler_error(handler)
        _check_choices(how=how, output=output, oversize=self.oversize)
        if max_tokens is None:
            raise UsageError("max_tokens is None: a row holds a whole number of tokens, such as pack(2048)")
        _check_bounds(max_tokens=max_tokens, window=window, max_samples=max_samples)
        if how == "concat" and window is not None:
            raise UsageError("how='concat' joins samples as they come: window= is for how='window'")
        fills = _read_fields(tokens, also)
        if made := _MADE.intersection([tokens, *fills]):
            raise UsageError(f"pack makes {', '.join(sorted(made))} itself: give tokens= and also= other fields")
        if tokens in fills:
            raise UsageError(f"also= names {tokens!r}, which tokens= names already: leave it out of also=")
        if whole and (how == "concat" or self.oversize in ("split", "truncate") or fills):
            raise UsageError(
                "output='samples' gives whole samples: how='concat', also=, splitting and cutting need tokens"
            )
        if cost is not None and not whole:
            raise UsageError("cost= measures whole samples: write output='samples', or leave cost= out")
        # what stands in the padding, by field, that of the tokens first
        self.fills = {tokens: pad_id, **fills}
        check_fills(
            self.fills,
            ". Where a tokenizer has no pad token, leave pad_id at 0: segment_ids say where the padding is",
        )

    def for_stream(self, stream: StreamNumber) -> "Pack":
        """Return the stage of one stream: the windows of all streams together are as large as this one, or larger."""
        part = copy.copy(self)
        if self.window is not None:
            part.window = min(self.window, max(LEAST_WINDOW, -(-self.window // stream.of)))
        return part

    def begin(self, run: Run) -> PackState:  # noqa: ARG002
        """Return a state in which nothing waits."""
        return PackState(self)

    def start_waiting(self) -> WaitingPieces:
        """Return what holds the pieces that wait."""
        # a piece has at least one token
        most = self.max_tokens if self.max_samples is None else self.max_samples
        if self.window is None:
            return TokenQueue(self.max_tokens, most)
        return PieceWindow(self.max_tokens, most, self.window)

    def flow(self, upstream: Iterator[object], state: PackState) -> Iterator[object]:
        """Yield rows."""
        waiting, over = state.waiting, False
        while True:
            while not (over or state.ended or waiting.is_ready()):
                sample = next(upstream, _END)
                if sample is _END:
                    over = True
                else:
                    self._take_in(sample, state)
            pieces = self._keep_fitting(waiting.take_row(), state)
            if not pieces:
                return
            if state.origin is not None:
                state.address = [piece.place() for piece in pieces]
            yield self.make_row(pieces)

    def _keep_fitting(self, pieces: Sequence[Piece], state: PackState) -> list[Piece]:
        """Return the pieces of a row without those whose fields do not fit the ones before them."""
        kinds, kept = RowKinds(), []
        for piece in pieces:
            try:
                kinds.add(piece)
            except SampleError as error:
                located = self.blame(error, piece.content.sample)
                state.ended |= not should_continue(self.handler, located, "pack")
            else:
                kept.append(piece)
        return kept

    def _take_in(self, sample: object, state: PackState) -> None:
        """Let the pieces of a sample wait."""
        try:
            content = self.measure(sample)
            ranges = self._cut(content)
        except Exception as exn:  # noqa: BLE001  a field that cannot be packed, or user code: the handler decides
            state.ended = not should_continue(self.handler, self.blame(exn, sample), "pack")
            return
        if not ranges:
            count_drop("pack")
        address = None if state.origin is None else state.origin()
        for first, stop in ranges:
            state.waiting.add(Piece(content, address, first, stop))

    def blame(self, error: Exception, sample: object) -> Exception:
        """Return an error that says which sample it is about."""
        return with_blame(error, "pack", sample)

    def measure(self, sample: object) -> PackedSample:
        """Return a sample with its length.

        Raises:
            SampleError: it cannot be packed.
        """
        if not isinstance(sample, dict):
            raise SampleError(f"pack takes samples that are dictionaries, and this is a {type(sample).__name__}")
        if self.output == "samples":
            length = len(read_columns(sample, [self.tokens])[self.tokens]) if self.cost is None else self.cost(sample)
            return PackedSample(check_cost(length), {}, sample)
        columns = read_columns(sample, list(self.fills))
        if self.output == "padded":
            check_padding(columns, self.fills)
        origin = {name: sample[name] for name in _ORIGIN if name in sample}
        halves = frozenset(name for name in self.fills if is_bfloat16(sample[name]))
        return PackedSample(len(columns[self.tokens]), columns, origin, is_tensor(sample[self.tokens]), halves)

    def _cut(self, content: PackedSample) -> list[tuple[int, int]]:
        """Return the ranges of tokens that are packed: none for a sample that is left out."""
        length, most = content.length, self.max_tokens
        if length <= most:
            return [(0, length)] if length else []
        if self.oversize == "raise":
            others = "oversize='truncate', 'split' or 'drop'" if content.columns else "oversize='drop'"
            raise SampleError(
                f"a sample of {length} tokens does not fit into a row of {most}: raise max_tokens, or choose {others}"
            )
        if self.oversize == "drop":
            return []
        if self.oversize == "truncate":
            return [(0, most)]
        if self.window is None:
            return [(0, length)]
        return [(first, min(first + most, length)) for first in range(0, length, most)]

    def make_row(self, pieces: Sequence[Piece]) -> object:
        """Return a row of pieces that fit together."""
        if self.output == "samples":
            return [piece.content.sample for piece in pieces]
        return join_pieces(pieces, self.fills, self.max_tokens if self.output == "padded" else None)

    def mismatch(self) -> StateMismatch:
        """Return the error for samples that have other lengths than in the run that was saved."""
        return StateMismatch(
            "samples that wait to be packed have other lengths than when this state was saved: is the tokenizer, the "
            "cost function or the data another one? Use the same, or begin the epoch again",
            stage=repr(self),
        )

    def cut_again(self, places: Sequence[Address], fetch: Fetch) -> list[Piece]:
        """Return pieces that waited, or stood in rows, once more.

        Args:
            places: what ``Piece.place`` returned.
            fetch: gives samples by their addresses; each is asked for once.

        Raises:
            StateMismatch: a sample is shorter than it was.
        """
        found = [as_list(place) for place in places]
        distinct = {repr(address): address for address, _, _ in found}
        contents = dict(zip(distinct, map(self._measure_again, fetch(list(distinct.values()))), strict=True))
        pieces = [
            Piece(contents[repr(address)], address, as_count(first), as_count(stop)) for address, first, stop in found
        ]
        if any(piece.stop > piece.content.length for piece in pieces):
            raise self.mismatch()
        return pieces

    def _measure_again(self, sample: object) -> PackedSample:
        """Return a sample with its length; a failure says which one it is, and no handler decides: it was packed."""
        try:
            return self.measure(sample)
        except Exception as error:  # user code: located and raised again
            self.blame(error, sample)
            raise

    def refetch(self, addresses: list[Address], fetch: Fetch, state: object = None) -> list[object]:  # noqa: ARG002
        """Make rows again, of samples that are fetched once for all of them."""
        rows = [as_list(address) for address in addresses]
        pieces = iter(self.cut_again([place for row in rows for place in row], fetch))
        return [self.make_row([next(pieces) for _ in row]) for row in rows]

    def __repr__(self) -> str:
        # without tokens=, which error messages would show as a secret
        named = {name: getattr(self, name) for name in ("output", "window", "max_samples", "oversize")}
        shown = [f"{name}={value!r}" for name, value in named.items() if value is not None]
        return f"pack({self.max_tokens}, {self.how!r}, {', '.join(shown)})"


def pack(
    max_tokens: int,
    how: str = "window",
    *,
    tokens: str = "input_ids",
    also: Iterable[str] | Mapping[str, float] = (),
    pad_id: int = 0,
    output: str = "padded",
    cost: Callable[[Sample], SupportsIndex] | None = None,
    window: int | None = None,
    max_samples: int | None = None,
    oversize: str | None = None,
    handler: Handler = reraise_exception,
) -> Pack:
    """Pack sequences of different lengths into rows of ``max_tokens`` tokens.

    Args:
        max_tokens: tokens in a row.
        how: ``"window"``: whole samples, the oldest that waits and then the longest that fit; ``"concat"``: all tokens,
            cut where a row is full.
        tokens: field with the tokens: a list, array or tensor ``[N]`` of whole numbers.
        also: fields with a value for each token (``[N]`` or ``[N, ...]``); as a dictionary, their padding, else 0.
            Where tokens are tensors, those of bfloat16 stay so; rows of arrays have no such type: they are float32.
        pad_id: what the padding of the tokens is.
        output: ``"padded"``: dictionaries of arrays ``[max_tokens]``: tokens, ``also``, ``position_ids`` (int64, from 0
            in each piece), ``segment_ids`` (int32, from 1; 0 is padding); ``"flat"``: the same without padding, and
            ``cu_seqlens`` (int32, ``[pieces + 1]``) and ``max_seqlen``; ``"samples"``: lists of the samples.
        cost: for ``output="samples"``: from a sample to its number of tokens; None is the length of ``tokens``.
        window: samples that wait, from which rows are made; None is 1536. The streams of an elastic dataset share it,
            with at least 32 each. Not with ``how="concat"``.
        max_samples: most pieces in a row; None for no bound.
        oversize: what becomes of a sample longer than a row: ``"split"`` into pieces, ``"truncate"``, ``"drop"``
            (counted) or ``"raise"``. None splits tokens, and raises for whole samples.
        handler: asked about a sample that cannot be packed.

    Returns:
        A stage. Rows have ``__keys__``, that of each piece. Samples without tokens are left out (counted as dropped).

    Raises:
        UsageError: arguments that do not go together.
        SampleError: fields that are missing or do not fit (when it runs).

    Flow: rows follow from the order and the lengths of the samples; holds ``window`` samples, or those of one row where
    all tokens are joined; resumes exactly.
    """
    return Pack(
        max_tokens, how, tokens=tokens, also=also, pad_id=pad_id, output=output, cost=cost, window=window,
        max_samples=max_samples, oversize=oversize, handler=handler,
    )  # fmt: skip


def _check_choices(**given: str) -> None:
    """Raise UsageError where an argument is none of its choices."""
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise UsageError(f"{name}={value!r}: there are {', '.join(map(repr, _CHOICES[name]))}")


def _read_fields(tokens: object, also: Iterable[str] | Mapping[str, float]) -> dict[str, float]:
    """Return what stands in the padding of the fields of ``also=``. Raises UsageError: something else names a field."""
    if not isinstance(tokens, str):
        raise UsageError(f"tokens= is the name of a field, such as 'input_ids', and not {tokens!r:.60}")
    names = [also] if isinstance(also, str) or not isinstance(also, Iterable) else list(also)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"also= names fields, not {also!r:.60}: write also=['labels'], or also={{'labels': -100}}")
    return dict(also) if isinstance(also, Mapping) else dict.fromkeys(names, 0)


def _check_bounds(**bounds: int | None) -> None:
    """Raise UsageError where a bound is no whole number of at least 1."""
    for name, bound in bounds.items():
        if bound is not None and (not isinstance(bound, int) or bound < 1):
            raise UsageError(f"{name} is {bound!r}: it is an int, at least 1")
