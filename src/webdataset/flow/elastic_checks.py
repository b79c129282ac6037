"""Whether a value is a state that this library wrote, unchanged.

Theory. Most numbers of a state cannot be judged by themselves: any offset may be that of a sample. So a state carries
the sum of its memories, with seed, epoch and number of streams: the CRC-32 of each stream's memory, joined by exclusive
or, so that those of several ranks are put together in any order, and only what moved is summed again. It finds damage
and edits, not forgeries. What is summed is a memory in the oldest form of ``marshal``, which no later version changes:
JSON takes five times as long, at every step. Dictionaries have their keys sorted in it, and tuples are lists.

Flows in: anything. Flows out: nothing, or an error that names the entry. Never a part of a state that was not checked.
"""

import json
import marshal
import zlib
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import StateMismatch
from webdataset.stages.base import Json, normalize_json

VERSION = 2
KIND = "webdataset.elastic"
SUM = "check"
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
_SHOWN = 120  # characters
_written = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_ENDED, _RUNNING = 1, 5  # parts of a stream's memory: [count], or [count, passed, given, ended, memories]

Sums = dict[str, tuple[Json, int]]


def quoted(value: Any) -> str:
    """Return the beginning of a value as text, for a message; also of one that cannot be written down.

    Args:
        value: anything.
    """
    try:
        return str(value)[:_SHOWN]
    except Exception:  # noqa: BLE001  whatever a foreign value does when it is shown
        return f"a {type(value).__name__}"


def written_sum(value: Json, start: int = 0) -> int:
    """Return the CRC-32 of a JSON value.

    Args:
        value: a JSON value.
        start: what the sum begins with.

    Raises:
        StateMismatch: it is none.
    """
    try:
        return zlib.crc32(_written(value).encode(), start)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise StateMismatch(f"the state is no JSON value: {quoted(error)}") from error


def memory_sum(memory: Json, start: int = 0) -> int:
    """Return the CRC-32 of a stream's memory.

    Args:
        memory: as ``normalize_json`` returns it.
        start: what the sum begins with.

    Raises:
        StateMismatch: it is no JSON value.
    """
    try:
        return zlib.crc32(marshal.dumps(memory, 0), start)
    except ValueError as error:
        raise StateMismatch(f"the state is no JSON value: {quoted(error)}") from error


def sum_of(header: Mapping[str, Any], memories: Mapping[str, Json], known: Sums | None = None) -> int:
    """Return the sum of a state; 0 where it has no memories.

    Args:
        header: with seed, epoch, number of streams, and the digests of functions.
        memories: number of the stream, as text, to memory, as ``normalize_json`` returns it.
        known: sums of memories, by stream, which holds while a memory is the same; taken up and added to.
    """
    if not memories:
        return 0
    sums = {} if known is None else known
    functions = memory_sum(header["functions"])
    total = zlib.crc32(b"%x %d %d" % (header["seed"], header["epoch"], header["streams"]), functions)
    for name, memory in memories.items():
        before = sums.get(name)
        if before is None or before[0] is not memory:
            before = sums[name] = memory, memory_sum(memory, int(name) + 1)
        total ^= before[1]
    return total


def check_shape(state: Any) -> None:
    """Refuse what is no state: entries that lack, or are of another type, or are numbers that no state has.

    Args:
        state: anything.

    Raises:
        StateMismatch: it names the entry.
    """
    if not isinstance(state, Mapping) or state.get("kind") != KIND:
        raise StateMismatch(f"this is not the state of an elastic dataset: {quoted(state)!r}")
    if type(state.get("version")) is not int or state["version"] != VERSION:
        raise StateMismatch(f"the state has version {quoted(state.get('version'))!r}; this library reads {VERSION}")
    for name, kind in _PARTS.items():
        if type(state.get(name)) is not kind:
            raise StateMismatch(f"the state is incomplete: {name!r} is {quoted(state.get(name))!r}")
    if abs(state["seed"]) >= _SEEDS:
        raise StateMismatch("the state is malformed: 'seed' is too long for a seed")
    for name, lowest in (("epoch", 0), ("streams", 1), ("received", 0)):
        if not lowest <= state[name] <= _LARGEST:
            raise StateMismatch(f"the state is malformed: {name!r} is {quoted(state[name])}")
    if not all(isinstance(name, str) for name in state["description"]):
        raise StateMismatch(f"the state is malformed: 'description' is {quoted(state['description'])}")
    _check_functions(state["functions"])
    _check_memories(state)


def _check_functions(functions: list[Any]) -> None:
    for pair in functions:
        if type(pair) is not list or len(pair) != 2 or not all(isinstance(part, str | None) for part in pair):
            raise StateMismatch(f"the state is malformed: 'functions' has {quoted(pair)}")


def _check_memories(state: Mapping[str, Any]) -> None:
    streams = state["streams"]
    for name, memory in state["memories"].items():
        if not _numbers_a_stream(name, streams):
            raise StateMismatch(f"the state has a memory of stream {quoted(name)!r}, of {streams} streams")
        if not is_memory(memory):
            raise StateMismatch(
                f"the state is malformed: 'memories' has for stream {name}, which is not the memory of a stream: "
                f"{quoted(memory)}"
            )


def _numbers_a_stream(name: Any, streams: int) -> bool:
    """Tell whether a name is that of a stream, written as this library does."""
    return (
        isinstance(name, str) and len(name) < 20 and name.isdecimal() and str(int(name)) == name and int(name) < streams
    )


def is_memory(memory: Any) -> bool:
    """Tell whether a value has the shape of a stream's memory.

    Args:
        memory: None, ``[count]`` of a stream that is over, or ``[count, passed, given, ended, memories]``.
    """
    if memory is None:
        return True
    if type(memory) is not list or len(memory) not in (_ENDED, _RUNNING):
        return False
    if not all(type(part) is int and 0 <= part <= _LARGEST for part in memory[:3]):
        return False
    return len(memory) == _ENDED or (memory[2] <= memory[0] and isinstance(memory[4], list))


def check_sum(state: Mapping[str, Any]) -> None:
    """Refuse a state whose memories are not those that were saved.

    Args:
        state: of the right shape.

    Raises:
        StateMismatch: it was changed or damaged since.
    """
    counted = sum(memory[0] for memory in state["memories"].values() if memory is not None)
    if state["received"] != counted:
        raise StateMismatch(
            f"the state was changed since it was saved: 'received' is {state['received']}, and its streams gave "
            f"{counted}"
        )
    try:
        memories = normalize_json(state["memories"])
    except (TypeError, RecursionError) as error:
        raise StateMismatch(f"the state is no JSON value: {quoted(error)}") from error
    if state.get(SUM, 0) != sum_of(state, memories):
        raise StateMismatch(
            f"the state was changed or damaged since it was saved: {SUM!r} is {quoted(state.get(SUM))}, and does not "
            "agree with 'memories', 'seed', 'epoch' and 'streams'. Load another one"
        )


def checked_turn(turn: Json) -> Json:
    """Return whose turn a state says it is among the workers of a torch loader.

    Args:
        turn: ``[rank, ranks, workers, worker]``, or None.

    Raises:
        StateMismatch: neither.
    """
    if turn is None:
        return None
    if isinstance(turn, list | tuple) and len(turn) == 4 and all(type(part) is int for part in turn):
        rank, ranks, workers, worker = turn
        if 0 <= rank < ranks <= _LARGEST and 0 <= worker < workers <= _LARGEST:
            return list(turn)
    raise StateMismatch(f"the state is malformed: 'turn' is {quoted(turn)}")
