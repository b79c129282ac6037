"""Describes a saved state: of which dataset it is, and how far each of its streams is.

Reads the state alone: no dataset, no shard. A state is checked before it is described.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from webdataset.core.errors import StateMismatch, UsageError
from webdataset.flow.elastic_state import (
    KIND,
    LOADER_KIND,
    SUM_KEY,
    check_state,
    find_running_streams,
    has_progress,
    join_memories,
    quote_value,
    sum_json,
)
from webdataset.stages.base import Json

KINDS = (KIND, LOADER_KIND)


@dataclass(frozen=True)
class StreamProgress:
    """How far one virtual stream is.

    Args:
        stream: its number.
        items: items given, over all passes.
        passes: passes completed.
        over: it has ended.
        shard: number of the shard that was read last, in the stream's own list; None before the first sample.
        sample: number of the sample read last, in that shard.
        offset: byte at which it begins.
    """

    stream: int
    items: int
    passes: int | None = None
    over: bool = False
    shard: int | None = None
    sample: int | None = None
    offset: int | None = None


@dataclass(frozen=True)
class StateDescription:
    """What a state says.

    Args:
        kind: ``webdataset.elastic``, or ``webdataset.loader`` of a loader with stages behind it.
        version: of the format.
        seed: of the dataset.
        epoch: that the state stands in.
        over: that epoch is over, as far as the state tells: the next one follows.
        received: items given, all known streams together.
        streams: how many virtual streams the dataset has.
        known: how many of them the state knows; fewer than there are in the state of one rank among several.
        ended: how many of these are over.
        shards: how many shards the dataset has.
        passes: of an epoch; None for no end.
        items: bound on the items of an epoch, or None.
        stages: of the dataset, by name.
        ranks: of a loader with stages behind it: its rank, and the number of ranks.
        given: items that the stages after a loader have given.
        turn: of a torch loader: rank, ranks, workers, and the worker whose turn it is.
        progress: of each known stream.
    """

    kind: str
    version: int
    seed: int
    epoch: int
    over: bool
    received: int
    streams: int
    known: int
    ended: int
    shards: int | None
    passes: int | None
    items: int | None
    stages: list[str]
    ranks: list[int] | None = None
    given: int | None = None
    turn: list[int] | None = None
    progress: list[StreamProgress] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the description as a JSON value."""
        return asdict(self)


def find_state(value: Json) -> dict[str, Any]:
    """Return the state in a JSON value: the value itself, or the only state somewhere in it, as in a checkpoint.

    Args:
        value: anything.

    Raises:
        StateMismatch: there is none.
        UsageError: there are several.
    """
    found = dict(_walk_states(value, ""))
    if not found:
        raise StateMismatch(f"there is no state of a dataset or loader here: {quote_value(value)!r}")
    if len(found) > 1:
        raise UsageError(
            f"there are {len(found)} states here ({', '.join(list(found)[:4])}): merge those of all ranks with "
            "webdataset.merge_states, or take one of them out"
        )
    return next(iter(found.values()))


def _walk_states(value: Json, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if value.get("kind") in KINDS:
            yield place or ".", value
            return
        for name, part in value.items():
            yield from _walk_states(part, f"{place}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _walk_states(part, f"{place}[{number}]")


def describe_state(state: Mapping[str, Any]) -> StateDescription:
    """Return what a state says.

    Args:
        state: what ``state_dict()`` of an elastic dataset, a ``Loader`` or a ``WebLoader`` returned.

    Raises:
        StateMismatch: it is no state, or was changed since it was saved.
    """
    if not isinstance(state, Mapping) or state.get("kind") != LOADER_KIND:
        return _describe_dataset_state(check_state(state))
    if state.get(SUM_KEY) != sum_json({name: part for name, part in state.items() if name != SUM_KEY}):
        raise StateMismatch(f"the state was changed or damaged since it was saved: {SUM_KEY!r} does not agree")
    try:
        loop = state["loop"]
        inner = state["begin"] if loop is None else loop["flow"]["memories"][0]
        given = 0 if loop is None else int(loop["count"])
        ranks = [int(number) for number in state["ranks"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StateMismatch(f"the state of a loader is malformed: {error!r}") from error
    found = _describe_dataset_state(check_state(inner))
    return StateDescription(
        **{**found.__dict__, "kind": LOADER_KIND, "version": state["version"], "ranks": ranks, "given": given}
    )


def _describe_dataset_state(state: Mapping[str, Any]) -> StateDescription:
    memories, description = state["memories"], state["description"]
    progress = [_describe_stream(int(name), memories[name]) for name in sorted(memories, key=int)]
    stages = description.get("stages")
    return StateDescription(
        kind=KIND,
        version=state["version"],
        seed=state["seed"],
        epoch=state["epoch"],
        over=has_progress(state) and not find_running_streams(state),
        received=state["received"],
        streams=state["streams"],
        known=len(memories),
        ended=sum(each.over for each in progress),
        shards=_read_number(description.get("shards")),
        passes=_read_number(description.get("passes")),
        items=_read_number(description.get("items")),
        stages=[str(name) for name in stages] if isinstance(stages, list) else [],
        turn=state.get("turn"),
        progress=progress,
    )


def _read_number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _describe_stream(number: int, state: Json) -> StreamProgress:
    if state is None:
        return StreamProgress(number, 0, 0)
    if len(state) == 1:
        return StreamProgress(number, state[0], over=True)
    places = [place for place in map(read_reader_place, join_memories(state)) if place is not None]
    return StreamProgress(number, state[0], state[1], False, *(places[0] if places else (None, None, None)))


def read_reader_place(state: Json) -> tuple[int, int, int] | None:
    """Return the shard, sample and byte at which a reader stood; None for the state of another stage.

    Args:
        state: of one stage.
    """
    if isinstance(state, list) and len(state) == 8 and all(type(part) is int for part in state[:4]):
        return state[0], state[1], state[2]
    return None
