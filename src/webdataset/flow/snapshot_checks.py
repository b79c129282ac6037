"""Checks the snapshot of a run, and reads its numbers, before anything is restored from it.

A snapshot comes from a file. Its sum tells damage; a snapshot of a run, or of a source of a mix, that was written or
changed by another program may have a right one. Never lets a number pass that no run has: it would be skipped to.
"""

from types import NoneType

from webdataset.core.errors import StateMismatch
from webdataset.core.json_types import as_count, as_list, as_object, as_object_of_numbers
from webdataset.stages.base import Json

VERSION = 1
_PARTS: dict[str, set[type]] = {
    "seed": {int},
    "common": {int, NoneType},
    "epoch": {int},
    "stages": {list},
    "first": {int},
    "memories": {list},
}


def check_snapshot(state: Json) -> None:
    """Refuse early what is no snapshot of a flow.

    Raises:
        StateMismatch: it has another version, or a part lacks or is of another type.
    """
    if not isinstance(state, dict) or state.get("version") != VERSION:
        version = state.get("version") if isinstance(state, dict) else None
        raise StateMismatch(f"the snapshot has version {version!r}; this library reads {VERSION}")
    wrong = [name for name, kinds in _PARTS.items() if type(state.get(name)) not in kinds or name not in state]
    ended = state.get("ended", -1)
    if ended is not None and not (type(ended) is int and 0 <= ended < 1 << 20):
        wrong.append("ended")
    if wrong or state["epoch"] < 0 or len(state["memories"]) != len(state["stages"]):
        raise StateMismatch(f"the snapshot is incomplete: {', '.join(sorted(wrong)) or 'memories'}")
    if not all(isinstance(name, str) for name in state["stages"]):
        raise StateMismatch(f"the snapshot is malformed: 'stages' is {str(state['stages'])[:80]}")


def find_generators(state: Json, stages: int) -> dict[int, list[Json]]:
    """Return what a snapshot tells of users' generators, by the number of the stage.

    Args:
        state: of a flow.
        stages: number of its stages.

    Raises:
        StateMismatch: it tells of stages that there are not.
    """
    try:
        found = {
            number: list(as_list(part)) for number, part in as_object_of_numbers(state.get("generators", {})).items()
        }
    except TypeError as error:
        raise StateMismatch(f"the snapshot is malformed: 'generators' has {error}") from error
    if max(found, default=0) >= max(stages, 1):
        raise StateMismatch(f"the snapshot has generators of stage {max(found)}, of {stages} stages")
    return found


def parse_snapshot(state: Json) -> tuple[int, int, int, dict[str, Json]]:
    """Return count, passes, items in this pass and the flow's snapshot.

    Raises:
        StateMismatch: it is no such snapshot.
    """
    try:
        count, passed, given = (as_count(state[name]) for name in ("count", "passed", "given"))
        flow = dict(as_object(state["flow"]))
    except (KeyError, TypeError, IndexError) as error:
        raise StateMismatch(f"this is not a snapshot of a pipeline: {error!r}") from error
    # the loop of a source that makes items of an earlier pass again has fewer passes than there were
    if given > count:
        raise StateMismatch(
            f"this is not a snapshot of a pipeline: it stands after {given} items of pass {passed + 1}, and {count} "
            "in all"
        )
    return count, passed, given, flow


def parse_earlier(state: Json) -> dict[int, dict[str, Json]]:
    """Return what a snapshot of a loop tells of users' generators before earlier passes.

    Raises:
        StateMismatch: it is no such snapshot.
    """
    try:
        known = as_object_of_numbers(state.get("earlier", {}))
        return {passed: dict(as_object(states)) for passed, states in known.items()}
    except (TypeError, AttributeError) as error:
        raise StateMismatch(f"this is not a snapshot of a pipeline: {error!r}") from error
