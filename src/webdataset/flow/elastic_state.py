"""The state of an elastic dataset: one JSON value, whatever the number of ranks and workers.

Flows in: memories of streams. Flows out: ``{"version", "kind", "seed", "epoch", "streams", "description", "functions",
"received", "memories", "check"}``; memories are by stream, so that the states of all ranks are merged by putting them
together, and shared out again by taking what one owns. Nothing in it grows with the number of items given.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from webdataset.ground.errors import StateMismatch, UsageError
from webdataset.ground.topology import worker_info
from webdataset.ground.tracebacks import warn_user
from webdataset.stages.base import Json

from .elastic_checks import KIND, SUM, VERSION, Sums, check_shape, check_sum, quoted, sum_of, written_sum

__all__ = [
    "KIND",
    "LOADER_KIND",
    "VERSION",
    "Received",
    "checked",
    "compare",
    "memories_for",
    "merge_states",
    "next_positions",
    "warn_other_functions",
    "whole",
]

LOADER_KIND = "webdataset.loader"  # of a loader with stages behind it; see webdataset.fluent.loader_states
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


_told: set[str] = set()


def warn_other_functions(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Warn, once in a process, where a stage had another function or other values when the state was saved.

    Args:
        state: what was saved.
        here: the state of the dataset that goes on.
    """
    info = worker_info()
    # behind no item nothing was made by another function; of several workers one tells
    if not state["memories"] or (info is not None and info.id):
        return
    pairs = zip(state["functions"], here["functions"], strict=False)
    differing = [
        f"stage {number}, {now[0] if now[0] == before[0] else f'{quoted(before[0])} (here {now[0]})'}"
        for number, (before, now) in enumerate(pairs)
        if before != now
    ]
    if not differing:
        return
    message = (
        f"since the state was saved, what these stages were given has changed: {'; '.join(differing)}. The run goes on "
        "behind the same samples, and gives what the functions of now make of the rest"
    )
    key = f"{message} {state['functions']}"
    if key not in _told:
        _told.add(key)
        warn_user(message)


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


def begun(state: Mapping[str, Any]) -> bool:
    """Tell whether a state is behind something: an item, or the end of a stream.

    Args:
        state: of an elastic dataset.
    """
    return any(memory is not None for memory in state["memories"].values())


def waiting(state: Mapping[str, Any]) -> dict[int, Json]:
    """Return the memories of the streams of which a state does not tell that they are over.

    Args:
        state: of an elastic dataset.
    """
    streams, items = state["streams"], state["description"].get("items")
    found = {}
    for name, memory in state["memories"].items():
        number, count = int(name), 0 if memory is None else memory[0]
        bounded = type(items) is int and count >= len(range(number, items, streams))
        if not bounded and (memory is None or len(memory) > 1):  # the memory of one that is over is its count alone
            found[number] = memory
    return found


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
            That of a rank that has not begun counts too, also of a loader with stages behind it; and one behind the end
            of an epoch beside those within the next.

    Returns:
        One state, which can be loaded under any number of ranks and workers.

    Raises:
        StateMismatch: no state at all, or states of different datasets, seeds or epochs; the message says which.
        UsageError: one state, or something else than several.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise UsageError(f"merge_states takes a list of states, and got a {type(states).__name__}")
    known = [_of_dataset(state) for state in states]
    for state in known:
        check_shape(state)
    if not known:
        raise StateMismatch("there are no states to merge")
    known = _at_one_epoch(known)
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


def _at_one_epoch(states: list[Any]) -> list[Any]:
    """Return states with those that are behind the end of an epoch at the start of the next, where others are in it."""
    latest = max(state["epoch"] for state in states)
    found = []
    for state in states:
        if state["epoch"] == latest - 1 and begun(state) and not waiting(state):
            check_sum(state)
            header = {name: part for name, part in state.items() if name not in ("received", "memories", SUM)}
            found.append(whole({**header, "epoch": latest}, dict.fromkeys(state["memories"])))
        else:
            found.append(state)
    return found


def _of_dataset(state: Any) -> Any:
    """Return the dataset's state within that of a loader with stages behind it, where nothing has come out of them.

    Raises:
        StateMismatch: the stages have begun, or the state was changed.
    """
    if not isinstance(state, Mapping) or state.get("kind") != LOADER_KIND:
        return state
    if state.get("loop") is not None:
        raise StateMismatch(
            "the state is of a loader with stages behind it, whose buffers hold items of one rank, so that it cannot "
            "be merged: put these stages into the dataset, in front of elastic()"
        )
    if state.get(SUM) != written_sum({name: part for name, part in state.items() if name != SUM}):
        raise StateMismatch(f"the state was changed or damaged since it was saved: {SUM!r} is {quoted(state.get(SUM))}")
    return state.get("begin")


def _later(memory: Json, before: Json) -> bool:
    return (memory[0], len(memory) == 1) > (before[0], len(before) == 1)


class Received:
    """What a consumer has received from workers that run ahead of it.

    Args:
        header: a state to start from: ``ElasticRun.header()``, or one that was loaded.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        state = checked(header)
        # a copy: the state that was given stays as it is
        self._memories: dict[str, Json] = dict(state.pop("memories"))
        self._header = state
        self._sums: Sums = {}

    def take(self, progress: Mapping[str, Json]) -> None:
        """Take note of an item that was received.

        Args:
            progress: what the worker's ``progress()`` was when it gave the item.
        """
        epoch = progress.get("epoch")
        if epoch is None:
            self._memories.update(progress)
            return
        if epoch > self._header["epoch"]:  # the state had nothing left of its own: all workers went on with the next
            self._header = {**self._header, "epoch": epoch}
            self._memories = dict.fromkeys(self._memories)
            self._sums = {}
        self._memories.update({name: memory for name, memory in progress.items() if name != "epoch"})

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind what was received."""
        return whole(self._header, self._memories, self._sums)
