"""Builds, checks, compares and merges the state of an elastic dataset: one JSON value under any topology.

The state is ``{"version", "kind", "seed", "epoch", "streams", "description", "functions", "received", "memories",
"check"}``. The memories are the states of single streams, by stream, so that the states of all ranks are merged by
putting them together, and shared out again by taking those of the streams that a worker owns. Nothing in a state
grows with the number of items given.

Theory of the check. Most numbers of a state cannot be judged by themselves: any offset may be that of a sample. So a
state carries the sum of its streams' states, with seed, epoch and number of streams: the CRC-32 of each stream's
state, joined by exclusive or, so that those of several ranks are put together in any order, and only what moved is
summed again. It finds damage and edits, not forgeries. What is summed is a stream's state in the oldest form of
``marshal``, which no later version changes: JSON takes five times as long, at every step. Dictionaries have their keys
sorted in it, and tuples are lists. The parts of memories that last come first, so that their sum is kept as long as
they are the same objects, and the sum of the rest continues it. The native core makes the same sums.

Never uses a part of a state that was not checked; errors name the entry that is wrong.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from marshal import dumps
from operator import is_
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary
from zlib import crc32

from webdataset.core.distributed import worker_info
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.core.json_types import join_snapshot, normalize_json
from webdataset.core.tracebacks import warn_user
from webdataset.samples.native_core import find_native
from webdataset.stages.base import Json

VERSION = 3
KIND = "webdataset.elastic"
SUM_KEY = "check"
_PARTS = {
    "seed": int,
    "epoch": int,
    "streams": int,
    "received": int,
    "description": dict,
    "functions": list,
    "memories": dict,
}
_LARGEST = (1 << 53) - 1  # exact in JSON everywhere
_SEEDS = 1 << 4096
_QUOTED_LENGTH = 120  # characters
_encode_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_NO_MEMORY = None, None
held_states: WeakKeyDictionary[object, Callable[[], dict[str, Json]]] = WeakKeyDictionary()
"""Loaders from which more batches were taken than passed on, and what tells the state after the one passed on last."""
_ENDED_LENGTH, _RUNNING_LENGTH = 1, 5  # parts of a stream's state: [count], or [count, passed, given, ended, memories]


StreamSum: TypeAlias = tuple[Json, int, Json, int, int]
"""A stream's state, the sum of it, the parts of its memories that last, the sum of these, and where that begins."""


class Sums:
    """What was summed for a state, kept for the next one: only the streams that moved are summed again."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamSum] = {}
        self._header: tuple[Json, int, int, int] = None, 0, 0, 0
        self._header_sum = 0
        module = find_native()
        self._sum_natively = None if module is None else module.sum_streams

    def add(self, header: Mapping[str, Json], stream_states: dict[str, Json]) -> tuple[int, int]:
        """Return how many items the streams gave, and the sum of the state; 0 where it has no states of streams.

        Args:
            header: with seed, epoch, number of streams, and the digests of functions.
            stream_states: number of the stream, as text, to its state, as ``normalize_json`` returns it.

        Raises:
            StateMismatch: a stream's state is no JSON value.
        """
        if not stream_states:
            return 0, 0
        now = header["functions"], header["seed"], header["epoch"], header["streams"]
        try:
            if self._header != now:
                self._header, self._header_sum = now, crc32(b"%x %d %d" % now[1:], crc32(dumps(now[0], 0)))
            # the same in C, for all but unusual states
            found: tuple[int, int] | None = self._sum_natively and self._sum_natively(stream_states, self._streams)
            received, total = found or self._add_streams(stream_states)
        except ValueError as error:
            raise StateMismatch(f"the state is no JSON value: {quote_value(error)}") from error
        return received, total ^ self._header_sum

    def _add_streams(self, stream_states: dict[str, Json]) -> tuple[int, int]:
        streams, received, total = self._streams, 0, 0
        for name, stream_state in stream_states.items():
            known = streams.get(name)
            if known is None or known[0] is not stream_state:
                known = streams[name] = sum_stream(stream_state, known or (None, 0, None, 0, int(name) + 1))
            total ^= known[1]
            received += 0 if stream_state is None else stream_state[0]
        return received, total


def sum_stream(stream_state: Json, before: StreamSum) -> StreamSum:
    """Return the sum of a stream's state, with what the next sum needs.

    Args:
        stream_state: None, ``[count]``, or ``[count, passed, given, ended, memories]``.
        before: what this returned for the last state; one without a last state tells where the sum begins.

    Raises:
        ValueError: it is no JSON value.
    """
    _, _, lasting, lasting_sum, begin = before
    if stream_state is None or len(stream_state) != _RUNNING_LENGTH:
        return stream_state, crc32(dumps(stream_state, 0), begin), None, 0, begin
    count, passed, given, ended, memories = stream_state
    changing, now = [], []
    for memory in memories:
        one, other = memory or _NO_MEMORY
        changing.append(one)
        now.append(other)
    # what is the same has the same sum; what is equal may not: 1 is True
    if lasting is None or len(now) != len(lasting) or not all(map(is_, now, lasting)):
        lasting, lasting_sum = now, crc32(dumps(now, 0), begin)
    summed = crc32(dumps([count, passed, given, ended, changing], 0), lasting_sum)
    return stream_state, summed, lasting, lasting_sum, begin


def quote_value(value: object) -> str:
    """Return the beginning of a value as text, for a message; also of one that cannot be written down."""
    try:
        return str(value)[:_QUOTED_LENGTH]
    except Exception:  # noqa: BLE001  whatever a foreign value does when it is shown
        return f"a {type(value).__name__}"


def sum_json(value: Json, start: int = 0) -> int:
    """Return the CRC-32 of a JSON value.

    Raises:
        StateMismatch: it is none.
    """
    try:
        return crc32(_encode_json(value).encode(), start)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise StateMismatch(f"the state is no JSON value: {quote_value(error)}") from error


def _suggest_state(value: object) -> str:
    """Return what to load in the place of a value that is no state."""
    if isinstance(value, str):
        return "a state is a dictionary: json.load reads it from a file"
    inner = value.items() if isinstance(value, Mapping) else ()
    for name, part in inner:
        if isinstance(part, Mapping) and part.get("kind") in (KIND, LOADER_KIND):
            return f"it holds one: pass state[{name!r}]"
    return "pass what state_dict() of the dataset, its iterator or its loader returned"


def check_shape(state: object) -> Mapping[str, Any]:
    """Return a state; refuse what is none: entries that lack, or are of another type, or are numbers of no state.

    Raises:
        StateMismatch: it names the entry.
    """
    if not isinstance(state, Mapping) or state.get("kind") != KIND:
        raise StateMismatch(
            f"this is not the state of an elastic dataset: {quote_value(state)!r}; {_suggest_state(state)}"
        )
    if type(state.get("version")) is not int or state["version"] != VERSION:
        raise StateMismatch(
            f"the state has version {quote_value(state.get('version'))!r}; this library reads {VERSION}"
        )
    for name, kind in _PARTS.items():
        if type(state.get(name)) is not kind:
            raise StateMismatch(f"the state is incomplete: {name!r} is {quote_value(state.get(name))!r}")
    if abs(state["seed"]) >= _SEEDS:
        raise StateMismatch("the state is malformed: 'seed' is too long for a seed")
    # an epoch may be any number that set_epoch takes, a time in nanoseconds too
    for name, lowest, limit in (("epoch", 0, _SEEDS), ("streams", 1, _LARGEST), ("received", 0, _LARGEST)):
        if not lowest <= state[name] <= limit:
            raise StateMismatch(f"the state is malformed: {name!r} is {quote_value(state[name])}")
    if not all(isinstance(name, str) for name in state["description"]):
        raise StateMismatch(f"the state is malformed: 'description' is {quote_value(state['description'])}")
    _check_functions(state["functions"])
    _check_stream_states(state)
    return state


def _check_functions(functions: list[Any]) -> None:
    for pair in functions:
        if type(pair) is not list or len(pair) != 2 or not all(isinstance(part, str | None) for part in pair):
            raise StateMismatch(f"the state is malformed: 'functions' has {quote_value(pair)}")


def _check_stream_states(state: Mapping[str, Any]) -> None:
    streams = state["streams"]
    for name, stream_state in state["memories"].items():
        if not _is_stream_name(name, streams):
            raise StateMismatch(f"the state has a memory of stream {quote_value(name)!r}, of {streams} streams")
        if not is_stream_state(stream_state):
            raise StateMismatch(
                f"the state is malformed: 'memories' has for stream {name}, which is not the memory of a stream: "
                f"{quote_value(stream_state)}"
            )


def _is_stream_name(name: object, streams: int) -> bool:
    """Tell whether a name is that of a stream, written as this library does."""
    return (
        isinstance(name, str) and len(name) < 20 and name.isdecimal() and str(int(name)) == name and int(name) < streams
    )


def is_stream_state(stream_state: object) -> bool:
    """Tell whether a value has the shape of a stream's state.

    Args:
        stream_state: None, ``[count]`` of a stream that is over, or ``[count, passed, given, ended, memories]``, each
            memory None or in two parts (see ``StageState``).
    """
    if stream_state is None:
        return True
    if type(stream_state) is not list or len(stream_state) not in (_ENDED_LENGTH, _RUNNING_LENGTH):
        return False
    if not all(type(part) is int and 0 <= part <= _LARGEST for part in stream_state[:3]):
        return False
    if len(stream_state) == _ENDED_LENGTH:
        return True
    given, ended, memories = stream_state[2:]
    return (
        given <= stream_state[0]
        and (ended is None or (type(ended) is int and 0 <= ended <= _LARGEST))
        and type(memories) is list
        and all(memory is None or (type(memory) is list and len(memory) == 2) for memory in memories)
    )


def join_memories(stream_state: Json) -> list[Json]:
    """Return the memories of the stages of a stream that is running, each put together of its parts.

    Raises:
        StateMismatch: they do not fit together.
    """
    try:
        return [None if memory is None else join_snapshot(memory) for memory in stream_state[4]]
    except TypeError as error:
        raise StateMismatch(f"the memory of a stream cannot be read: {quote_value(error)}") from error


def check_sum(state: Mapping[str, Any]) -> None:
    """Refuse a state whose stream states are not those that were saved.

    Raises:
        StateMismatch: it was changed or damaged since.
    """
    try:
        stream_states = cast("dict[str, Json]", normalize_json(state["memories"]))
    except (TypeError, RecursionError) as error:
        raise StateMismatch(f"the state is no JSON value: {quote_value(error)}") from error
    received, summed = Sums().add(state, stream_states)
    if state["received"] != received:
        raise StateMismatch(
            f"the state was changed since it was saved: 'received' is {state['received']}, and its streams gave "
            f"{received}"
        )
    if state.get(SUM_KEY, 0) != summed:
        raise StateMismatch(
            f"the state was changed or damaged since it was saved: {SUM_KEY!r} is {quote_value(state.get(SUM_KEY))}, "
            "and does not agree with 'memories', 'seed', 'epoch' and 'streams'. Load another one"
        )


def check_turn(turn: Json) -> Json:
    """Return whose turn a state says it is among the workers of a torch loader.

    Raises:
        StateMismatch: neither.
    """
    if turn is None:
        return None
    if isinstance(turn, list | tuple) and len(turn) == 4 and all(type(part) is int for part in turn):
        rank, ranks, workers, worker = turn
        if 0 <= rank < ranks <= _LARGEST and 0 <= worker < workers <= _LARGEST:
            return list(turn)
    raise StateMismatch(f"the state is malformed: 'turn' is {quote_value(turn)}")


LOADER_KIND = "webdataset.loader"  # of a loader with stages after it; see webdataset.fluent.loader
_OTHER_SHARDS = (
    "shards of other names or places, or in another order; where only their place has changed, keep the urls as they "
    "were and map them with WDS_REWRITE"
)


def check_state(state: object) -> dict[str, Any]:
    """Return a state, if it is one.

    Raises:
        StateMismatch: it is none, or of another version, or was changed since it was saved; the entry is named.
    """
    found = check_shape(state)
    check_sum(found)
    return dict(found)


def check_same_dataset(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a state that belongs to another dataset.

    Args:
        state: what was saved.
        here: the state of the dataset that is to continue; a seed of None is any.

    Raises:
        StateMismatch: everything that differs, by name.
    """
    differing = [
        f"{name} {quote_value(state[name])} (here {here[name]})"
        for name in ("seed", "streams")
        if here[name] is not None and state[name] != here[name]
    ]
    differing += _describe_differences(state["description"], here["description"])
    if differing:
        hint = "; to continue with other weights, load wds.states.change_weights(state, dataset)"
        raise StateMismatch(
            "the state belongs to another dataset: load it into the pipeline that saved it; it has "
            + "; ".join(differing)
            + (hint if "probs=" in differing[-1] else "")
        )


def _describe_differences(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return what differs between two descriptions."""
    found = []
    for name in sorted(saved.keys() | here.keys()):
        before, now = saved.get(name), here.get(name)
        if before == now:
            continue
        if name == "urls":
            found.append(f"{_OTHER_SHARDS} (digest {quote_value(before)}, here {quote_value(now)})")
            continue
        if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            found += [_quote_both(one, other) for one, other in zip(before, now, strict=True) if one != other]
        else:
            found.append(f"{name} {_format_part(before)} (here {_format_part(now)})")
    return found


def _quote_both(before: object, now: object) -> str:
    """Return two values as text; of long ones that begin alike, what stands from the first difference on."""
    if isinstance(before, str) and isinstance(now, str) and max(len(before), len(now)) > _QUOTED_LENGTH:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
        # where the argument begins in which two stages differ
        first = before.rfind(", ", 0, same) + 2
        if first > 1:
            name = before.partition("(")[0]
            before, now = f"{name}(…, {before[first:]}", f"{name}(…, {now[first:]}"
    return f"{quote_value(before)} (here {quote_value(now)})"


def _format_part(part: object) -> str:
    return ", ".join(map(quote_value, part)) if isinstance(part, list) else quote_value(part)


_warned: set[str] = set()


def warn_other_functions(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Warn, once in a process, where a stage had another function or other values when the state was saved."""
    info = worker_info()
    # after no item nothing was made by another function; of several workers one tells
    if not state["memories"] or (info is not None and info.id):
        return
    pairs = zip(state["functions"], here["functions"], strict=False)
    differing = [
        f"stage {number}, {now[0] if now[0] == before[0] else f'{quote_value(before[0])} (here {now[0]})'}"
        for number, (before, now) in enumerate(pairs)
        if before != now
    ]
    if not differing:
        return
    message = (
        f"since the state was saved, what these stages were given has changed: {'; '.join(differing)}. The run "
        "continues after the same samples, and gives what the functions of now make of the rest"
    )
    key = f"{message} {state['functions']}"
    if key not in _warned:
        _warned.add(key)
        warn_user(message)


def select_stream_states(state: Mapping[str, Any], owned: Iterable[int]) -> dict[int, Json]:
    """Return the states of the streams that a worker owns.

    Args:
        state: a state; one without states of streams stands at the start of its epoch.
        owned: numbers of streams.

    Raises:
        StateMismatch: the state lacks some: it is that of one rank among several.
    """
    stream_states = state["memories"]
    if not stream_states:
        return dict.fromkeys(owned)
    lacking = [number for number in owned if str(number) not in stream_states]
    if lacking:
        raise StateMismatch(
            f"the state has no memory of streams {', '.join(map(str, lacking))}: it holds those of one rank or worker. "
            "Merge the states of all of them first: webdataset.merge_states([...])"
        )
    return {number: stream_states[str(number)] for number in owned}


def next_positions(stream_states: Mapping[str, Json], streams: int) -> list[int]:
    """Return the positions of the items that some streams give next, without those that are known to be over."""
    waiting = [
        (int(name), stream_state)
        for name, stream_state in stream_states.items()
        if stream_state is None or len(stream_state) > 1
    ]
    return [number + (0 if stream_state is None else stream_state[0]) * streams for number, stream_state in waiting]


def has_progress(state: Mapping[str, Any]) -> bool:
    """Tell whether a state is after something: an item, or the end of a stream."""
    return any(stream_state is not None for stream_state in state["memories"].values())


def find_running_streams(state: Mapping[str, Any]) -> dict[int, Json]:
    """Return the states of the streams of which a state does not tell that they are over."""
    streams, items = state["streams"], state["description"].get("items")
    found = {}
    for name, stream_state in state["memories"].items():
        number, count = int(name), 0 if stream_state is None else stream_state[0]
        bounded = type(items) is int and count >= len(range(number, items, streams))
        if not bounded and (
            stream_state is None or len(stream_state) > 1
        ):  # the state of one that is over is its count alone
            found[number] = stream_state
    return found


def build_state(
    header: Mapping[str, Any], stream_states: Mapping[str, Json], sums: Sums | None = None
) -> dict[str, Any]:
    """Return a state.

    Args:
        header: everything but the states of streams.
        stream_states: number of the stream, as text, to its state.
        sums: what was summed for the last state, kept by a caller that asks often.
    """
    held = dict(stream_states)
    received, summed = (sums or Sums()).add(header, held)
    return {**header, "received": received, "memories": held, SUM_KEY: summed}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the states of several ranks or workers together.

    Args:
        states: at least one; all of one dataset, seed and epoch. Where two know the same stream, the later one holds.
            That of a rank that has not begun counts too, also of a loader with stages after it; and one after the end
            of an epoch beside those within the next.

    Returns:
        One state, which can be loaded under any number of ranks and workers.

    Raises:
        StateMismatch: no state at all, or states of different datasets, seeds or epochs; the message says which.
        UsageError: one state, or something else than several.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise UsageError(f"merge_states takes a list of states, and got a {type(states).__name__}")
    known = [check_shape(_extract_dataset_state(state)) for state in states]
    if not known:
        raise StateMismatch("there are no states to merge")
    known = _align_epochs(known)
    first = known[0]
    stream_states: dict[str, Json] = {}
    for state in known:
        check_same_dataset(state, first)
        if state["epoch"] != first["epoch"]:
            raise StateMismatch(
                f"the states are of epochs {first['epoch']} and {state['epoch']}: take those of all ranks at one step"
            )
    for state in known:
        check_sum(state)
        for number, stream_state in state["memories"].items():
            before = stream_states.get(number)
            if before is None or (stream_state is not None and _is_later(stream_state, before)):
                stream_states[number] = stream_state
    ordered = {str(number): stream_states[str(number)] for number in sorted(map(int, stream_states))}
    header = {name: part for name, part in first.items() if name not in ("received", "memories")}
    return build_state(header, ordered)


def _align_epochs(states: list[Any]) -> list[Any]:
    """Return states with those that are after the end of an epoch at the start of the next, where others are in it."""
    latest = max(state["epoch"] for state in states)
    found = []
    for state in states:
        if state["epoch"] == latest - 1 and has_progress(state) and not find_running_streams(state):
            check_sum(state)
            header = {name: part for name, part in state.items() if name not in ("received", "memories", SUM_KEY)}
            found.append(build_state({**header, "epoch": latest}, dict.fromkeys(state["memories"])))
        else:
            found.append(state)
    return found


def _extract_dataset_state(state: object) -> object:
    """Return the dataset's state within that of a loader with stages after it, where nothing has come out of them."""
    if not isinstance(state, Mapping) or state.get("kind") != LOADER_KIND:
        return state
    if state.get("loop") is not None:
        raise StateMismatch(
            "the state is of a loader with stages after it, whose buffers hold items of one rank, so that it cannot "
            "be merged: put these stages into the dataset, in front of elastic()"
        )
    if state.get(SUM_KEY) != sum_json({name: part for name, part in state.items() if name != SUM_KEY}):
        raise StateMismatch(
            f"the state was changed or damaged since it was saved: {SUM_KEY!r} is {quote_value(state.get(SUM_KEY))}"
        )
    return state.get("begin")


def _is_later(stream_state: Json, before: Json) -> bool:
    return (stream_state[0], len(stream_state) == 1) > (before[0], len(before) == 1)


class ReceivedState:
    """What a consumer has received from workers that run ahead of it.

    Args:
        header: a state to start from: ``ElasticRun.header()``, or one that was loaded.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        state = check_state(header)
        # a copy: the state that was given stays as it is
        self._stream_states: dict[str, Json] = dict(state.pop("memories"))
        self._header = state
        self._sums = Sums()

    def take(self, progress: Mapping[str, Json]) -> None:
        """Take note of an item that was received.

        Args:
            progress: what the worker's ``progress()`` was when it gave the item.
        """
        epoch = progress.get("epoch")
        if epoch is None:
            self._stream_states.update(progress)
            return
        if epoch > self._header["epoch"]:  # the state had nothing left of its own: all workers continued with the next
            self._header = {**self._header, "epoch": epoch}
            self._stream_states = dict.fromkeys(self._stream_states)
            self._sums = Sums()
        self._stream_states.update({name: stream_state for name, stream_state in progress.items() if name != "epoch"})

    def state_dict(self) -> dict[str, Any]:
        """Return the state after what was received."""
        return build_state(self._header, self._stream_states, self._sums)
