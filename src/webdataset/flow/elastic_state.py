"""The state of an elastic dataset: one JSON value, whatever the number of ranks and workers.

Flows in: memories of streams. Flows out: ``{"version", "kind", "seed", "epoch", "streams", "description", "received",
"memories", "check"}``; memories are by stream, so that the states of all ranks are merged by putting them together, and
shared out again by taking what one owns. Nothing in it grows with the number of items given.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from webdataset.ground.errors import StateMismatch, UsageError
from webdataset.stages.base import Json

from .elastic_checks import KIND, SUM, VERSION, Sums, check_shape, check_sum, quoted, sum_of

__all__ = [
    "KIND",
    "VERSION",
    "Received",
    "checked",
    "compare",
    "memories_for",
    "merge_states",
    "next_positions",
    "whole",
]

_OTHER_SHARDS = (
    "shards of other names or places, or in another order; where only their place has changed, keep the urls as they "
    "were and map them with WDS_REWRITE"
)


def checked(state: Any) -> dict[str, Any]:
    """Return a state, if it is one.

    Args:
        state: anything.

    Raises:
        StateMismatch: it is none, or of another version, or was changed since it was saved; the entry is named.
    """
    check_shape(state)
    check_sum(state)
    return dict(state)


def compare(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a state that belongs to another dataset.

    Args:
        state: what was saved.
        here: the state of the dataset that is to go on; a seed of None is any.

    Raises:
        StateMismatch: everything that differs, by name.
    """
    differing = [
        f"{name} {quoted(state[name])} (here {here[name]})"
        for name in ("seed", "streams")
        if here[name] is not None and state[name] != here[name]
    ]
    differing += _described(state["description"], here["description"])
    if differing:
        raise StateMismatch(f"the state belongs to another dataset; it has {'; '.join(differing)}")


def _described(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return what differs between two descriptions."""
    found = []
    for name in sorted(saved.keys() | here.keys()):
        before, now = saved.get(name), here.get(name)
        if before == now:
            continue
        if name == "urls":
            found.append(f"{_OTHER_SHARDS} (digest {quoted(before)}, here {quoted(now)})")
            continue
        if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            found += [
                f"{quoted(one)} (here {quoted(other)})" for one, other in zip(before, now, strict=True) if one != other
            ]
        else:
            found.append(f"{name} {_shown(before)} (here {_shown(now)})")
    return found


def _shown(part: Any) -> str:
    return ", ".join(map(quoted, part)) if isinstance(part, list) else quoted(part)


def memories_for(state: Mapping[str, Any], owned: Iterable[int]) -> dict[int, Json]:
    """Return the memories of the streams that a worker owns.

    Args:
        state: a state; one without memories stands at the start of its epoch.
        owned: numbers of streams.

    Raises:
        StateMismatch: the state lacks some: it is that of one rank among several.
    """
    memories = state["memories"]
    if not memories:
        return dict.fromkeys(owned)
    lacking = [number for number in owned if str(number) not in memories]
    if lacking:
        raise StateMismatch(
            f"the state has no memory of streams {', '.join(map(str, lacking))}: it holds those of one rank or worker. "
            "Merge the states of all of them first: webdataset.merge_states([...])"
        )
    return {number: memories[str(number)] for number in owned}


def next_positions(memories: Mapping[str, Json], streams: int) -> list[int]:
    """Return the positions of the items that some streams give next, without those that are known to be over.

    Args:
        memories: number of the stream, as text, to memory.
        streams: how many the dataset has.
    """
    waiting = [(int(name), memory) for name, memory in memories.items() if memory is None or len(memory) > 1]
    return [number + (0 if memory is None else memory[0]) * streams for number, memory in waiting]


def whole(header: Mapping[str, Any], memories: Mapping[str, Json], sums: Sums | None = None) -> dict[str, Any]:
    """Return a state.

    Args:
        header: everything but the memories.
        memories: number of the stream, as text, to memory.
        sums: what was summed for the last state, kept by who asks often.
    """
    received = sum(memory[0] for memory in memories.values() if memory is not None)
    summed = sum_of(header, memories, sums)
    return {**header, "received": received, "memories": dict(memories), SUM: summed}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the states of several ranks or workers together.

    Args:
        states: at least one; all of one dataset, seed and epoch. Where two know the same stream, the later one holds.

    Returns:
        One state, which can be loaded under any number of ranks and workers.

    Raises:
        StateMismatch: no state at all, or states of different datasets, seeds or epochs; the message says which.
        UsageError: one state, or something else than several.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise UsageError(f"merge_states takes a list of states, and got a {type(states).__name__}")
    known = list(states)
    for state in known:
        check_shape(state)
    if not known:
        raise StateMismatch("there are no states to merge")
    first = known[0]
    memories: dict[str, Json] = {}
    for state in known:
        compare(state, first)
        if state["epoch"] != first["epoch"]:
            raise StateMismatch(
                f"the states are of epochs {first['epoch']} and {state['epoch']}: take those of all ranks at one step"
            )
    for state in known:
        check_sum(state)
        for number, memory in state["memories"].items():
            before = memories.get(number)
            if before is None or (memory is not None and _later(memory, before)):
                memories[number] = memory
    ordered = {str(number): memories[str(number)] for number in sorted(map(int, memories))}
    header = {name: part for name, part in first.items() if name not in ("received", "memories")}
    return whole(header, ordered)


def _later(memory: Json, before: Json) -> bool:
    return (memory[0], len(memory) == 1) > (before[0], len(before) == 1)


class Received:
    """What a consumer has received from workers that run ahead of it.

    Args:
        header: a state to start from: ``ElasticRun.header()``, or one that was loaded.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        state = checked(header)
        self._memories: dict[str, Json] = state.pop("memories")
        self._header = state
        self._sums: Sums = {}

    def take(self, progress: Mapping[str, Json]) -> None:
        """Take note of an item that was received.

        Args:
            progress: what the worker's ``progress()`` was when it gave the item.
        """
        self._memories.update(progress)

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind what was received."""
        return whole(self._header, self._memories, self._sums)
