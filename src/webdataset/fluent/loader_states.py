"""The state of a loader with stages behind it: one JSON value, with a sum, so that no changed one is loaded.

Flows in: parts of a state. Flows out: the state, or the error that it is none. See
:mod:`webdataset.flow.elastic_checks` for the sum.
"""

from collections.abc import Mapping
from typing import Any

from webdataset.flow.elastic_checks import SUM, quoted, written_sum
from webdataset.flow.elastic_state import LOADER_KIND
from webdataset.ground.errors import StateMismatch
from webdataset.stages.base import Json

VERSION = 1
KIND = LOADER_KIND


def summed(state: dict[str, Json]) -> dict[str, Json]:
    """Return a state with its sum.

    Args:
        state: all of it but the sum.
    """
    return {**state, SUM: written_sum(state)}


def mapped(state: Any) -> dict[str, Json]:
    """Return a copy of a state.

    Args:
        state: anything.

    Raises:
        StateMismatch: it is no dictionary.
    """
    if not isinstance(state, Mapping):
        raise StateMismatch(f"this is not the state of a loader: {quoted(state)!r}")
    return dict(state)


def check_whole(state: Mapping[str, Json]) -> None:
    """Refuse a state that lacks something, or is not the one that was saved.

    Args:
        state: of a loader with stages behind it.

    Raises:
        StateMismatch: it names the entry.
    """
    begin, loop = state.get("begin"), state.get("loop")
    for name, part in (("begin", begin), ("loop", loop)):
        if part is not None and not isinstance(part, dict):
            raise StateMismatch(f"the state is malformed: {name!r} is {quoted(part)}")
    if (begin is None) == (loop is None):
        raise StateMismatch("the state is incomplete: it has one of 'begin' and 'loop'")
    if state.get(SUM) != written_sum({name: part for name, part in state.items() if name != SUM}):
        raise StateMismatch(
            f"the state was changed or damaged since it was saved: {SUM!r} is {quoted(state.get(SUM))}, and does not "
            "agree with the rest. Load another one"
        )
